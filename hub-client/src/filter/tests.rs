//! World of the filters' worked examples, and tests for all filters.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::Value;
use yurt_apimachinery::kind::find_kind;

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
        let pool = match self.pool {
            WorldPool::East | WorldPool::Void => Pool::Members(&self.members),
            WorldPool::NoPool => Pool::NoPool,
            WorldPool::Missing => Pool::Missing,
            WorldPool::Unknown => Pool::Unknown,
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
        }
    }
}

impl ServiceLookup for World {
    fn topology_keys(&self, namespace: &str, name: &str) -> TopologyKeys {
        match self.services.get(name).filter(|_| namespace == "shop") {
            None => TopologyKeys::UnknownService,
            Some(None) => TopologyKeys::Unset,
            Some(Some(value)) => TopologyKeys::Value((*value).to_owned()),
        }
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
    let names: BTreeSet<_> = FILTERS.iter().map(|filter| filter.name()).collect();
    assert_eq!(names.len(), FILTERS.len());
    assert!(FILTERS.iter().all(|filter| !filter.resources().is_empty()));
}

#[test]
fn objects_of_other_kinds_are_kept() {
    let world = World::default();
    let text =
        r#"{"metadata":{"namespace":"default","name":"kubernetes","labels":{"kubernetes.io/service-name":"web"}}}"#;
    for filter in FILTERS {
        check(filter, kind("", "configmaps"), &world, text, Some(text));
    }
}
