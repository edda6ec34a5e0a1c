//! The resources of this server: one entry per kind with its authority (own or replicated) and its strategy.
//!
//! In reading order: the table below, [`strategy`] (decisions of a kind about its writes), [`own`] (writes of own
//! objects), then one file per kind of a pool with own rules. `standalone` has the rules of all other kinds. Kinds
//! declared by files ([`custom`]) are added and removed while the server runs: a new registry then replaces the old
//! one. Resources that stay the same are the same value in both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use yurt_apiextensions::structural::Structural;
use yurt_apimachinery::kind::builtin_kinds;
use yurt_apimachinery::time::BootTime;
use yurt_apimachinery::{FieldSelector, GroupResource, Object, ResourceKind, Space};
use yurt_storage::serve::{self, Unfiltered};
use yurt_storage::{Cacher, SharedCollection};

use crate::config::Profile;
use crate::feed::collection::PoolCollection;

pub(crate) mod configmaps;
pub(crate) mod custom;
pub(crate) mod events;
pub(crate) mod fields;
pub(crate) mod leases;
pub(crate) mod namespaces;
pub(crate) mod own;
pub(crate) mod prepare;
pub(crate) mod reviews;
pub(crate) mod strategy;
pub(crate) mod views;

use custom::{Declared, ServedKind};
use strategy::Strategy;
use views::{Misfits, Reshaped, Shown, View};

/// One resource as served.
pub(crate) struct Resource {
    /// The kind, as the API describes it.
    pub(crate) kind: &'static ResourceKind,
    /// Name of its collection: `resource.group` of the stored kind.
    pub(crate) name: String,
    /// Set when the objects are stored as another kind.
    pub(crate) view: Option<View>,
    /// Authority over its data.
    pub(crate) authority: Authority,
    /// Rules of its writes.
    pub(crate) strategy: &'static dyn Strategy,
    /// OpenAPI schema of a custom resource.
    pub(crate) schema: Option<Arc<Value>>,
    /// Structural schema that its writes have to match.
    pub(crate) structural: Option<Arc<Structural>>,
    /// True if no version writes by another schema.
    has_one_schema: bool,
    /// Objects that the schema may show otherwise than they are stored.
    misfits: Misfits,
    /// Cancelled when the resource is no longer served, or served differently.
    pub(crate) gone: CancellationToken,
}

/// Component that may change a resource. One resource has one authority.
#[derive(Clone)]
pub(crate) enum Authority {
    /// This server: objects have RVs of our own space.
    Own(Arc<SharedCollection>),
    /// The cloud, through the feed: objects keep the cloud's RVs.
    Pool(Arc<PoolCollection>),
}

/// All resources, by group and plural; the preferred version first.
pub(crate) struct Registry {
    resources: BTreeMap<GroupResource, Vec<Arc<Resource>>>,
    strategies: Strategies,
}

/// Own kinds of profile pool, apart from those the cloud owns.
const POOL_OWN: [&str; 4] = ["leases.coordination.k8s.io", "events", "namespaces", "configmaps"];

/// Rules of further kinds, by the name of their collection.
pub(crate) type Strategies = fn(&str) -> Option<&'static dyn Strategy>;

/// The rules of a kind: those of a pool's own kinds, those of `others`, or the defaults.
pub(crate) fn strategy_of(name: &str, others: Strategies) -> &'static dyn Strategy {
    match name {
        "leases.coordination.k8s.io" => &leases::Leases,
        "namespaces" => &namespaces::Namespaces,
        "configmaps" => &configmaps::ConfigMaps,
        "events" => &events::Events::Core,
        "events.events.k8s.io" => &events::Events::Strict,
        _ => others(name).unwrap_or(&strategy::DefaultStrategy),
    }
}

/// The kinds whose authority is this server, views included.
fn own_kinds(profile: Profile) -> impl Iterator<Item = &'static ResourceKind> {
    builtin_kinds().iter().filter(move |kind| match profile {
        Profile::Standalone => true,
        Profile::Pool => POOL_OWN.contains(&collection_of(kind).as_str()),
    })
}

/// The kinds in which own objects are stored.
pub(crate) fn stored_kinds(profile: Profile) -> impl Iterator<Item = &'static ResourceKind> {
    own_kinds(profile).filter(|kind| views::of(kind).is_none())
}

fn collection_of(kind: &ResourceKind) -> String {
    views::of(kind).map_or_else(|| kind.group_resource().to_string(), View::collection)
}

// === impl Registry ===

impl Registry {
    /// The built-in resources of a server of this profile, whose own objects are in `cacher` and whose replicas are
    /// `pool`. Watches end with `end`. `strategies` are the rules of kinds that a pool does not own.
    pub(crate) fn new(
        profile: Profile,
        strategies: Strategies,
        cacher: &Cacher,
        pool: &[Arc<PoolCollection>],
        end: &CancellationToken,
    ) -> Self {
        let mut resources = BTreeMap::new();
        for collection in pool {
            let kind = collection.objects().kind();
            if !kind.is_custom() {
                let entry = Resource::new(kind, Authority::Pool(collection.clone()), strategies, end);
                resources.insert(kind.group_resource(), vec![Arc::new(entry)]);
            }
        }
        for kind in own_kinds(profile) {
            let Some(collection) = cacher.collection(&collection_of(kind)) else {
                continue;
            };
            // A kind that the pool replicates has its authority already.
            resources.entry(kind.group_resource()).or_insert_with(|| {
                vec![Arc::new(Resource::new(
                    kind,
                    Authority::Own(collection),
                    strategies,
                    end,
                ))]
            });
        }
        Self { resources, strategies }
    }

    /// A copy with exactly these custom resources, and with the resources that the pool shares now.
    ///
    /// # Errors
    /// The resource that cannot be served and the reason; nothing has changed then.
    pub(crate) fn with_custom(
        &self,
        declared: &[Declared],
        cacher: &Cacher,
        pool: &[Arc<PoolCollection>],
        end: &CancellationToken,
    ) -> Result<Self, String> {
        let mut authorities: BTreeMap<GroupResource, Authority> = BTreeMap::new();
        let mut declared = declared.to_vec();
        for collection in pool.iter().filter(|collection| collection.objects().kind().is_custom()) {
            let (kind, name) = (collection.objects().kind(), collection.name());
            let of_file = declared
                .iter()
                .find(|declared| declared.stored.group_resource() == kind.group_resource());
            match (collection.is_from_leader(), of_file) {
                (true, None) => declared.push(Declared::shared(kind)),
                (true, Some(_)) => {
                    return Err(format!(
                        "{name} belongs to the cloud: the pool's leader added it to the shared resources"
                    ));
                }
                (false, Some(declared)) if declared.stored == kind => {}
                (false, _) => {
                    return Err(format!(
                        "{name} is pool-scope: it cannot be changed or removed while the server runs"
                    ));
                }
            }
            authorities.insert(kind.group_resource(), Authority::Pool(collection.clone()));
        }
        let is_own = |declared: &&Declared| !authorities.contains_key(&declared.stored.group_resource());
        let own: Vec<&'static ResourceKind> = declared.iter().filter(is_own).map(|declared| declared.stored).collect();
        for (kind, collection) in own.iter().zip(cacher.declare(&own)?) {
            authorities.insert(kind.group_resource(), Authority::Own(collection));
        }
        let mut resources = self.builtin(pool, end);
        for declared in &declared {
            let name = declared.stored.group_resource();
            let Some(authority) = authorities.get(&name) else {
                continue;
            };
            let versions = declared.served.iter().map(|served| {
                let new = Resource::custom(declared, served, authority.clone(), end);
                let held = self.find_version(&name.group, &served.kind.version, &name.resource);
                held.filter(|held| held.is_same(&new))
                    .cloned()
                    .unwrap_or_else(|| Arc::new(new))
            });
            let versions: Vec<_> = versions.collect();
            if !versions.is_empty() {
                resources.insert(name, versions);
            }
        }
        Ok(Self {
            resources,
            strategies: self.strategies,
        })
    }

    /// The built-in resources, with those that the pool shares now.
    fn builtin(
        &self,
        pool: &[Arc<PoolCollection>],
        end: &CancellationToken,
    ) -> BTreeMap<GroupResource, Vec<Arc<Resource>>> {
        let is_shared = |resource: &Arc<Resource>| match &resource.authority {
            Authority::Own(_) => true,
            Authority::Pool(collection) => pool.iter().any(|shared| Arc::ptr_eq(shared, collection)),
        };
        let mut resources = self.resources.clone();
        resources.retain(|_, versions| versions.iter().all(|one| !one.kind.is_custom() && is_shared(one)));
        for collection in pool {
            let kind = collection.objects().kind();
            if !kind.is_custom() {
                resources.entry(kind.group_resource()).or_insert_with(|| {
                    vec![Arc::new(Resource::new(
                        kind,
                        Authority::Pool(collection.clone()),
                        self.strategies,
                        end,
                    ))]
                });
            }
        }
        resources
    }

    /// Finds the objects of custom resources that were stored under another schema. Call it when the writes of the
    /// registry before this one have ended; until then, every object is converted.
    pub(crate) fn find_misfits(&self) {
        self.iter().for_each(|resource| resource.find_misfits());
    }

    /// Names of the resources that the cloud owns.
    pub(crate) fn pool_kinds(&self) -> Vec<String> {
        let is_pool = |resource: &&Arc<Resource>| matches!(resource.authority, Authority::Pool(_));
        let name = |resource: &Arc<Resource>| resource.kind.group_resource().to_string();
        self.collections().filter(is_pool).map(name).collect()
    }

    /// Ends the watches of resources that the new registry no longer serves, or serves differently.
    pub(crate) fn replaced_by(&self, new: &Self, cacher: &Cacher) {
        for old in self.iter() {
            let stays = |new: &Arc<Resource>| Arc::ptr_eq(new, old);
            let GroupResource { group, resource } = old.kind.group_resource();
            if new
                .find_version(&group, &old.kind.version, &resource)
                .is_some_and(stays)
            {
                continue;
            }
            old.gone.cancel();
            if let Authority::Own(collection) = &old.authority
                && cacher
                    .collection(&old.name)
                    .is_none_or(|current| !Arc::ptr_eq(&current, collection))
            {
                Cacher::retire(collection);
            }
        }
    }

    /// The resource of a group and plural name, in the preferred version.
    pub(crate) fn find(&self, group: &str, resource: &str) -> Option<&Arc<Resource>> {
        self.resources.get(&GroupResource::new(group, resource))?.first()
    }

    /// The resource of a group, version and plural name.
    pub(crate) fn find_version(&self, group: &str, version: &str, resource: &str) -> Option<&Arc<Resource>> {
        let versions = self.resources.get(&GroupResource::new(group, resource))?;
        versions.iter().find(|resource| resource.kind.version == version)
    }

    /// All resources, by group and name; of several versions the preferred one first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values().flatten()
    }

    /// One resource for each collection.
    pub(crate) fn collections(&self) -> impl Iterator<Item = &Arc<Resource>> {
        let mut seen = BTreeSet::new();
        self.iter().filter(move |resource| seen.insert(resource.name.as_str()))
    }
}

// === impl Resource ===

impl Resource {
    fn new(kind: &'static ResourceKind, authority: Authority, strategies: Strategies, end: &CancellationToken) -> Self {
        let strategy = strategy_of(&kind.group_resource().to_string(), strategies);
        Self {
            kind,
            name: collection_of(kind),
            view: views::of(kind),
            authority,
            strategy,
            schema: None,
            structural: None,
            has_one_schema: true,
            misfits: Misfits::default(),
            gone: end.child_token(),
        }
    }

    /// One version of a custom resource.
    fn custom(declared: &Declared, served: &ServedKind, authority: Authority, end: &CancellationToken) -> Self {
        let (stored, shown) = (declared.stored, served.kind);
        let is_stored = stored.version == shown.version;
        Self {
            kind: shown,
            name: stored.group_resource().to_string(),
            view: (!is_stored).then_some(View::Version { stored, shown }),
            authority,
            strategy: if shown.has_status {
                &custom::WithStatus
            } else {
                &custom::WithoutStatus
            },
            schema: served.schema.clone(),
            structural: served.structural.clone(),
            has_one_schema: declared.has_one_schema(),
            misfits: Misfits::default(),
            gone: end.child_token(),
        }
    }

    /// Finds the objects that were stored under another schema. A view converts all objects anyway.
    fn find_misfits(&self) {
        let is_needed = self.view.is_none() && self.has_one_schema && !self.misfits.are_known();
        if let Some(schema) = self.reshapes().filter(|_| is_needed) {
            let objects: Vec<Object> = self.objects().read(|held| held.objects().cloned().collect());
            self.misfits.find(&objects, schema);
        }
    }

    /// The schema that shapes what is shown. The cloud's objects are shown as the cloud sent them.
    fn reshapes(&self) -> Option<&Arc<Structural>> {
        let is_own = matches!(self.authority, Authority::Own(_));
        self.structural.as_ref().filter(|_| is_own)
    }

    /// True if clients can see no difference.
    fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.kind, other.kind)
            && self.schema == other.schema
            && self.has_one_schema == other.has_one_schema
            && self.view.is_some() == other.view.is_some()
            && Arc::ptr_eq(self.objects(), other.objects())
    }

    /// The collection of its objects.
    pub(crate) fn objects(&self) -> &Arc<SharedCollection> {
        match &self.authority {
            Authority::Own(collection) => collection,
            Authority::Pool(collection) => collection.objects(),
        }
    }

    /// The kind in which the objects are stored.
    pub(crate) fn stored_kind(&self) -> &'static ResourceKind {
        self.objects().kind()
    }

    /// The stored objects as clients of this resource see them.
    pub(crate) fn look(&self) -> Arc<dyn serve::View> {
        let schema = self.reshapes().cloned();
        match (self.view, schema) {
            (Some(view), schema) => Arc::new(Shown {
                view,
                kind: self.kind,
                schema,
            }),
            (None, Some(schema)) => Arc::new(Reshaped {
                kind: self.kind,
                schema,
                misfits: self.misfits.clone(),
            }),
            (None, None) => Arc::new(Unfiltered),
        }
    }

    /// One object as clients of this resource see it.
    pub(crate) fn shown(&self, object: &Object) -> Object {
        self.look().show(object)
    }

    /// Translates a client's field selector for stored objects.
    pub(crate) fn stored_fields(&self, selector: &FieldSelector) -> FieldSelector {
        self.view
            .map_or_else(|| selector.clone(), |view| view.stored_selector(selector))
    }

    /// Space of the objects' RVs.
    pub(crate) fn space(&self) -> Space {
        self.objects().read(|held| held.position().space())
    }

    /// True if this server can serve it now.
    pub(crate) fn is_served(&self) -> bool {
        match &self.authority {
            Authority::Own(collection) => collection.read(yurt_collection::Collection::is_complete),
            Authority::Pool(collection) => collection.is_served(),
        }
    }

    /// True if changes may be missing because the cloud is away. Own data is never stale.
    pub(crate) fn is_stale(&self, now: BootTime) -> bool {
        match &self.authority {
            Authority::Own(_) => false,
            Authority::Pool(collection) => !collection.is_fresh(now),
        }
    }
}
