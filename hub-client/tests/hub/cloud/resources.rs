//! Objects of the cloud, listed and watched by the same code that the coordinator uses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{ListOptions, Object, ObjectKey, RequestInfo, ResourceVersion, Status, Verb};
use yurt_codec::negotiation::{Shape, negotiate};
use yurt_codec::protobuf;
use yurt_pool_protocol::pool_scope::SharedResource;
use yurt_runtime::Clock;
use yurt_runtime::http::{APPLICATION_JSON, Body, full, respond, stream};
use yurt_storage::serve::{self, Selection, Unfiltered, WatchRequest};
use yurt_storage::{OnlyWriter as _, SharedCollection};

/// Group and plural of the stored resources.
const STORED: [(&str, &str); 8] = [
    ("", "services"),
    ("", "endpoints"),
    ("discovery.k8s.io", "endpointslices"),
    ("", "nodes"),
    ("", "pods"),
    ("", "configmaps"),
    ("", "secrets"),
    ("coordination.k8s.io", "leases"),
];

/// An additional stored custom resource.
pub(crate) fn widgets() -> SharedResource {
    SharedResource {
        group: "example.com".to_owned(),
        version: "v1".to_owned(),
        resource: "widgets".to_owned(),
        singular: "widget".to_owned(),
        kind: "Widget".to_owned(),
        list_kind: "WidgetList".to_owned(),
        namespaced: true,
    }
}

/// The resourceVersion before the first change.
const FIRST: ResourceVersion = ResourceVersion(1000);
/// Duration of a watch; longer than any test.
const WATCH_LASTS: Duration = Duration::from_secs(600);

fn node_pools() -> SharedResource {
    SharedResource {
        group: "apps.openyurt.io".to_owned(),
        version: "v1beta2".to_owned(),
        resource: "nodepools".to_owned(),
        singular: "nodepool".to_owned(),
        kind: "NodePool".to_owned(),
        list_kind: "NodePoolList".to_owned(),
        namespaced: false,
    }
}

/// All collections. They share one counter, as in etcd, except leases: a coordinator numbers those itself.
pub(super) struct Resources {
    collections: BTreeMap<&'static str, Arc<SharedCollection>>,
    /// Version of the last change; locked during a change.
    version: Mutex<ResourceVersion>,
    /// The same of the leases.
    leases: Mutex<ResourceVersion>,
}

/// All objects at one moment.
pub(crate) struct Backup(ResourceVersion, Vec<(&'static str, Vec<Object>)>);

// === impl Resources ===

impl Resources {
    pub(super) fn new() -> Self {
        let builtin = STORED.map(|(group, plural)| (plural, find_kind(group, plural).unwrap()));
        let custom = [("widgets", widgets()), ("nodepools", node_pools())];
        let custom = custom.map(|(plural, shared)| (plural, shared.custom_kind().leak()));
        let members = ("members", yurt_pool_protocol::members::kind());
        let collection = |(plural, kind)| {
            let collection = SharedCollection::new(kind, false);
            collection.update(|collection| collection.restart(0, Vec::new(), FIRST));
            (plural, Arc::new(collection))
        };
        Self {
            collections: builtin
                .into_iter()
                .chain(custom)
                .chain([members])
                .map(collection)
                .collect(),
            version: Mutex::new(FIRST),
            leases: Mutex::new(FIRST),
        }
    }

    pub(super) fn version(&self) -> String {
        self.version.lock().to_string()
    }

    pub(super) fn get(&self, resource: &str, namespace: Option<&str>, name: &str) -> Option<Value> {
        let key = ObjectKey::new(namespace, name);
        let object = self.collections[resource].read(|collection| collection.object(&key).cloned());
        object.map(|object| object.to_value())
    }

    pub(super) fn put(&self, resource: &str, mut object: Value) -> Value {
        let counter = if resource == "leases" {
            &self.leases
        } else {
            &self.version
        };
        let mut version = counter.lock();
        let next = ResourceVersion(version.0 + 1);
        let collection = &self.collections[resource];
        object["metadata"]["resourceVersion"] = next.to_string().into();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("uid-of-{}", object["metadata"]["name"]).into();
        }
        let object = Object::from_value(object, collection.kind()).unwrap();
        let known = collection.read(|collection| collection.object(object.key()).is_some());
        let event = if known { EventType::Modified } else { EventType::Added };
        self.apply(resource, event, object.clone());
        *version = next;
        object.to_value()
    }

    pub(super) fn delete(&self, resource: &str, namespace: &str, name: &str) {
        let mut version = self.version.lock();
        let next = ResourceVersion(version.0 + 1);
        let key = ObjectKey::new((!namespace.is_empty()).then_some(namespace), name);
        let last = self.collections[resource]
            .read(|collection| collection.object(&key).cloned())
            .unwrap();
        self.apply(resource, EventType::Deleted, last.with_resource_version(next));
        *version = next;
    }

    /// Shows the objects of `resource` in another form under their resourceVersions, as after a change of their schema.
    pub(super) fn change_form(&self, resource: &str, change: impl Fn(&mut Value)) {
        let mut version = self.version.lock();
        *version = ResourceVersion(version.0 + 1);
        let changed = &self.collections[resource];
        let in_new_form = |object: &Object| {
            let mut value = object.to_value();
            change(&mut value);
            Object::from_value(value, changed.kind()).unwrap()
        };
        let objects = changed.read(|collection| collection.objects().map(in_new_form).collect());
        changed.update(|collection| collection.restart(0, objects, *version));
        for (_, collection) in self.collections.iter().filter(|(plural, _)| **plural != "leases") {
            collection.update(|collection| collection.advance(*version));
        }
    }

    /// Returns the whole state, for [`Self::restore`].
    pub(super) fn backup(&self) -> Backup {
        let version = self.version.lock();
        let objects = |(plural, collection): (&&'static str, &Arc<SharedCollection>)| {
            (
                *plural,
                collection.read(|collection| collection.objects().cloned().collect()),
            )
        };
        Backup(*version, self.collections.iter().map(objects).collect())
    }

    /// Restores that state.
    pub(super) fn restore(&self, backup: Backup) {
        let mut version = self.version.lock();
        *version = backup.0;
        for (plural, objects) in backup.1 {
            self.collections[plural].update(|collection| collection.restart(0, objects, *version));
        }
    }

    fn apply(&self, resource: &str, event: EventType, object: Object) {
        let at = object.resource_version();
        self.collections[resource].update(|collection| collection.apply(event, object));
        if resource == "leases" {
            return;
        }
        for (_, collection) in self.collections.iter().filter(|(plural, _)| **plural != "leases") {
            collection.update(|collection| collection.advance(at));
        }
    }

    /// Answers get, list and watch; 404 for everything else.
    pub(super) async fn answer(
        &self,
        info: &RequestInfo,
        query: Option<&str>,
        headers: &HeaderMap,
        shutdown: CancellationToken,
    ) -> Result<Response<Body>, Status> {
        let found = self
            .collections
            .get(info.resource.as_str())
            .filter(|_| info.subresource.is_none());
        let collection = found.ok_or_else(Status::unknown_resource)?;
        let kind = collection.kind();
        let shape = match info.verb {
            Verb::Watch => Shape::Watch,
            Verb::Get => Shape::Object,
            _ => Shape::List,
        };
        let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let how = negotiate(accept, shape, protobuf::supports(kind), query, None)?;
        let content_type = HeaderValue::from_static(how.content_type(shape));
        let options = ListOptions::parse(query, info.verb == Verb::Watch, kind)?;
        let selection = Selection {
            namespace: info.namespace.clone(),
            labels: options.label_selector.clone(),
            fields: options.field_selector.clone(),
        };
        match info.verb {
            Verb::Get => {
                let name = info.name.as_deref().unwrap_or_default();
                let key = ObjectKey::new(info.namespace.as_deref(), name);
                let object = collection.read(|collection| collection.object(&key).cloned());
                let object = object.ok_or_else(|| Status::not_found(&kind.group_resource(), name))?;
                let body = full(how.object(kind, &object, Time::from_unix(0)));
                Ok(respond(StatusCode::OK, content_type, body))
            }
            Verb::List => {
                let listed = serve::list(collection, &options, &selection, &Unfiltered, ResourceVersion::ZERO).await?;
                let pieces = how.list(kind, &listed.meta, listed.objects, Time::from_unix(0));
                let chunks: Vec<_> = pieces.collect();
                Ok(respond(StatusCode::OK, content_type, full(chunks.concat())))
            }
            Verb::Watch => {
                let request = WatchRequest {
                    options,
                    selection,
                    view: Arc::new(Unfiltered),
                    how,
                    clock: Clock::system(),
                    replica: false,
                    lasts: WATCH_LASTS,
                    least: ResourceVersion::ZERO,
                    is_fresh: Arc::new(|| true),
                    shutdown,
                    on_initial_end: None,
                    lingers: std::time::Duration::ZERO,
                };
                let frames = serve::watch(collection.clone(), request)?.map(Ok::<_, std::convert::Infallible>);
                Ok(respond(StatusCode::OK, APPLICATION_JSON, stream(frames)))
            }
            _ => Err(Status::method_not_allowed()),
        }
    }
}
