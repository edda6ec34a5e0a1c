//! The resources this server knows: one entry per kind with its authority (own or replicated) and its strategy.
//!
//! In reading order: the table below, [`strategy`] (what a kind may decide about its writes), [`own`] (how a write of an
//! own object happens), then one file per kind that has rules of its own. Adding a kind is one line here.

use std::collections::BTreeMap;
use std::sync::Arc;

use yurt_apimachinery::kind::builtin_kinds;
use yurt_apimachinery::{FieldSelector, GroupResource, Object, ResourceKind, Space};
use yurt_runtime::BootTime;
use yurt_storage::serve::{self, Unfiltered};
use yurt_storage::{Cacher, SharedCollection};

use crate::config::Profile;
use crate::feed::collection::PoolCollection;

mod configmaps;
mod endpoints;
mod endpointslices;
pub(crate) mod events;
mod fields;
pub(crate) mod leases;
pub(crate) mod namespaces;
mod nodepools;
mod nodes;
pub(crate) mod own;
mod pods;
pub(crate) mod prepare;
mod secrets;
mod serviceaccounts;
mod services;
pub(crate) mod strategy;
pub(crate) mod views;

use strategy::Strategy;
use views::{Shown, View};

/// One resource as served.
pub(crate) struct Resource {
    /// What the API knows of it.
    pub(crate) kind: &'static ResourceKind,
    /// `resource.group` of what is stored: the name of its collection.
    pub(crate) name: String,
    /// Set when the objects are stored as another kind.
    pub(crate) view: Option<&'static View>,
    /// Whose data it is.
    pub(crate) authority: Authority,
    /// What its writes have to obey.
    pub(crate) strategy: &'static dyn Strategy,
}

/// Who may change a resource. One resource has one authority.
#[derive(Clone)]
pub(crate) enum Authority {
    /// This server: objects have RVs of our own space.
    Own(Arc<SharedCollection>),
    /// The cloud, through the feed: objects keep the cloud's RVs.
    Pool(Arc<PoolCollection>),
}

/// All resources, by group and plural.
pub(crate) struct Registry {
    resources: BTreeMap<GroupResource, Arc<Resource>>,
}

/// Own kinds of profile pool, beside those the cloud owns.
const POOL_OWN: [&str; 4] = ["leases.coordination.k8s.io", "events", "namespaces", "configmaps"];

/// The rules of kinds that have their own; all others follow [`strategy::Plain`].
fn strategy_of(name: &str) -> &'static dyn Strategy {
    match name {
        "leases.coordination.k8s.io" => &leases::Leases,
        "namespaces" => &namespaces::Namespaces,
        "endpointslices.discovery.k8s.io" => &endpointslices::EndpointSlices,
        "configmaps" => &configmaps::ConfigMaps,
        "endpoints" => &endpoints::Endpoints,
        "events" => &events::Events::Core,
        "events.events.k8s.io" => &events::Events::Strict,
        "nodes" => &nodes::Nodes,
        "nodepools.apps.openyurt.io" => &nodepools::NodePools,
        "pods" => &pods::Pods,
        "secrets" => &secrets::Secrets,
        "serviceaccounts" => &serviceaccounts::ServiceAccounts,
        "services" => &services::Services,
        _ => &strategy::Plain,
    }
}

/// The kinds of which this server is the authority, views among them.
pub(crate) fn own_kinds(profile: Profile) -> impl Iterator<Item = &'static ResourceKind> {
    builtin_kinds().iter().filter(move |kind| match profile {
        Profile::Standalone => true,
        Profile::Pool => POOL_OWN.contains(&collection_of(kind).as_str()),
    })
}

/// The kinds that own objects are stored as.
pub(crate) fn stored_kinds(profile: Profile) -> impl Iterator<Item = &'static ResourceKind> {
    own_kinds(profile).filter(|kind| views::of(kind).is_none())
}

fn collection_of(kind: &ResourceKind) -> String {
    views::of(kind).map_or_else(|| kind.group_resource().to_string(), View::collection)
}

// === impl Registry ===

impl Registry {
    /// The resources of a server whose own objects are in `cacher` and whose replicas are `pool`.
    pub(crate) fn new<'a>(
        own: impl IntoIterator<Item = &'static ResourceKind>,
        cacher: &Cacher,
        pool: impl IntoIterator<Item = &'a Arc<PoolCollection>>,
    ) -> Self {
        let mut resources = BTreeMap::new();
        for collection in pool {
            let entry = Resource::new(collection.objects().kind(), Authority::Pool(collection.clone()));
            resources.insert(entry.kind.group_resource(), Arc::new(entry));
        }
        for kind in own {
            let Some(collection) = cacher.collection(&collection_of(kind)) else {
                continue;
            };
            let entry = Resource::new(kind, Authority::Own(collection.clone()));
            // A kind the pool replicates has its authority already.
            resources
                .entry(kind.group_resource())
                .or_insert_with(|| Arc::new(entry));
        }
        Self { resources }
    }

    /// The resource of a group and plural name.
    pub(crate) fn find(&self, group: &str, resource: &str) -> Option<&Arc<Resource>> {
        self.resources.get(&GroupResource::new(group, resource))
    }

    /// All resources, by group and name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }
}

// === impl Resource ===

impl Resource {
    fn new(kind: &'static ResourceKind, authority: Authority) -> Self {
        let strategy = strategy_of(&kind.group_resource().to_string());
        Self {
            kind,
            name: collection_of(kind),
            view: views::of(kind),
            authority,
            strategy,
        }
    }

    /// The objects.
    pub(crate) fn objects(&self) -> &Arc<SharedCollection> {
        match &self.authority {
            Authority::Own(collection) => collection,
            Authority::Pool(collection) => collection.objects(),
        }
    }

    /// What the objects are stored as.
    pub(crate) fn stored_kind(&self) -> &'static ResourceKind {
        self.objects().kind()
    }

    /// What clients of this resource see of the stored objects.
    pub(crate) fn look(&self) -> Arc<dyn serve::View> {
        match self.view {
            Some(view) => Arc::new(Shown { view, kind: self.kind }),
            None => Arc::new(Unfiltered),
        }
    }

    /// An object as clients of this resource see it.
    pub(crate) fn shown(&self, object: &Object) -> Object {
        self.look().show(object).unwrap_or_else(|| object.clone())
    }

    /// A client's field selector, for stored objects.
    pub(crate) fn stored_fields(&self, selector: &FieldSelector) -> FieldSelector {
        self.view
            .map_or_else(|| selector.clone(), |view| view.stored_selector(selector))
    }

    /// Space of the objects' RVs.
    pub(crate) fn space(&self) -> Space {
        self.objects().read(|held| held.position().space())
    }

    /// Whether this server may be asked for it now.
    pub(crate) fn is_served(&self) -> bool {
        match &self.authority {
            Authority::Own(collection) => collection.read(yurt_storage::Collection::is_complete),
            Authority::Pool(collection) => collection.is_served(),
        }
    }

    /// Whether changes may be missing because the cloud is away. Own data never is stale.
    pub(crate) fn is_stale(&self, now: BootTime) -> bool {
        match &self.authority {
            Authority::Own(_) => false,
            Authority::Pool(collection) => !collection.is_fresh(now),
        }
    }
}
