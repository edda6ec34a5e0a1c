//! World of the filters' worked examples, and tests for all filters.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::{Value, json};
use yurt_apimachinery::kind::find_kind;

use super::context::FilterOptions;
use super::*;

/// World of the tests. This node is e1; pool east has e1 and e2; each Service of namespace shop requests a topology.
pub(super) struct World {
    pub(super) host: &'static str,
    pub(super) pool: WorldPool,
    pub(super) services: BTreeMap<&'static str, Option<&'static str>>,
    pub(super) members: BTreeSet<String>,
}

/// [`Pool`] without the borrow.
#[derive(Clone, Copy, Debug)]
pub(super) enum WorldPool {
    East,
    Void,
    NoPool,
    Missing,
    Unknown,
}

impl Default for World {
    fn default() -> Self {
        Self::with_pool(WorldPool::East)
    }
}

impl World {
    pub(super) fn with_pool(pool: WorldPool) -> Self {
        let services = [
            ("web", Some("openyurt.io/nodepool")),
            ("loc", Some("kubernetes.io/hostname")),
            ("zon", Some("kubernetes.io/zone")),
            ("odd", Some("openyurt.io/nodePool")),
            ("plain", None),
        ];
        let members = if matches!(pool, WorldPool::East) {
            vec!["e1", "e2"]
        } else {
            Vec::new()
        };
        World {
            host: "169.254.2.1",
            pool,
            services: services.into_iter().collect(),
            members: members.into_iter().map(str::to_owned).collect(),
        }
    }

    pub(super) fn context(&self) -> FilterContext<'_> {
        let named = |members| {
            Pool::Named(NodePool {
                name: "east",
                members,
                host_network: None,
            })
        };
        let pool = match self.pool {
            WorldPool::East | WorldPool::Void => named(Members::Names(&self.members)),
            WorldPool::NoPool => Pool::NoPool,
            WorldPool::Missing => named(Members::Missing),
            WorldPool::Unknown => named(Members::Unknown),
        };
        let hub = HubAddress {
            host: self.host,
            secure_port: 10268,
        };
        FilterContext {
            hub,
            node_name: "e1",
            pool,
            services: self,
            options: FilterOptions::default(),
        }
    }
}

impl ServiceLookup for World {
    fn service(&self, namespace: &str, name: &str) -> Option<Object> {
        let keys = self.services.get(name).filter(|_| namespace == "shop")?;
        let annotations = keys.map(|keys| json!({ servicetopology::TOPOLOGY_KEYS_ANNOTATION: keys }));
        let metadata = json!({"namespace": namespace, "name": name, "annotations": annotations});
        Some(Object::from_value(json!({ "metadata": metadata }), kind("", "services")).unwrap())
    }
}

pub(super) fn object(kind: &ResourceKind, text: &str) -> Object {
    Object::parse(Bytes::copy_from_slice(text.as_bytes()), kind).unwrap()
}

pub(super) fn kind(group: &str, resource: &str) -> &'static ResourceKind {
    find_kind(group, resource).unwrap()
}

pub(super) fn service(text: &str) -> (&'static ResourceKind, Object) {
    let kind = kind("", "services");
    (kind, object(kind, text))
}

pub(super) fn slice(text: &str) -> (&'static ResourceKind, Object) {
    let kind = kind("discovery.k8s.io", "endpointslices");
    (kind, object(kind, text))
}

/// `in` and `out` of a worked example; `None` = dropped, equal texts = kept byte for byte.
pub(super) fn check(filter: &dyn ObjectFilter, kind: &ResourceKind, world: &World, input: &str, output: Option<&str>) {
    let given = object(kind, input);
    match (filter.filter(kind, &given, &world.context()), output) {
        (Verdict::Drop, None) => {}
        (Verdict::Keep, Some(output)) => assert_eq!(input, output),
        (Verdict::Replace(seen), Some(output)) => {
            assert_ne!(input, output, "an object that does not change has to be kept: {seen:?}");
            let expected: Value = serde_json::from_str(output).unwrap();
            let mut seen = seen.to_value();
            for inserted in ["apiVersion", "kind"] {
                seen.as_object_mut().unwrap().remove(inserted);
            }
            assert_eq!(seen, expected);
        }
        (verdict, output) => panic!("{verdict:?} instead of {output:?}"),
    }
}

#[test]
fn filters_have_distinct_names_and_something_to_judge() {
    let names: BTreeSet<_> = FILTERS.iter().map(|registered| registered.filter.name()).collect();
    assert_eq!(names.len(), FILTERS.len());
    assert!(FILTERS.iter().all(|registered| !registered.resources.is_empty()));
}

#[test]
fn objects_of_other_kinds_are_kept() {
    let world = World::default();
    let text =
        r#"{"metadata":{"namespace":"default","name":"kubernetes","labels":{"kubernetes.io/service-name":"web"}}}"#;
    for registered in &FILTERS {
        check(registered.filter, kind("", "configmaps"), &world, text, Some(text));
    }
}
