//! Lists that a client with kube-proxy's filters must hold, computed from the cloud's objects.
//!
//! The rules are written once more here, for the objects of the sample and the traffic: a LoadBalancer Service is
//! hidden, and the slices of a Service with topology `openyurt.io/nodepool` have the endpoints on nodes of the pool
//! alone.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use yurt_testbed::api::{Api, key_and_version};
use yurt_testbed::hub::COLLECTIONS;
use yurt_testbed::sample::{NAMESPACE, POOL, POOL_LOCAL_SERVICE};

/// The Service of all slices that come and go. The traffic changes its topology.
pub(super) const SWITCHED_SERVICE: &str = "app-01";
/// Annotation with the topology of a Service.
pub(super) const TOPOLOGY_KEYS: &str = "openyurt.io/topologyKeys";
/// The topology that is limited to the pool.
pub(super) const NODE_POOL: &str = "openyurt.io/nodepool";

/// Objects that a client with filters must hold, by collection and key, without their resourceVersions.
pub(super) struct Expected(BTreeMap<&'static str, BTreeMap<String, Value>>);

// === impl Expected ===

impl Expected {
    /// The cloud's present objects, filtered.
    pub(super) async fn of(cloud: &Api) -> Result<Self> {
        let [services, slices] = COLLECTIONS;
        let nodes = items(&cloud.get("/api/v1/nodes").await?)?;
        let is_member = |node: &&Value| node["metadata"]["labels"]["apps.openyurt.io/nodepool"] == POOL;
        let members = nodes.iter().filter(is_member).map(|node| key_and_version(node).0);
        let members: BTreeSet<String> = members.map(|key| name(&key).to_owned()).collect();
        let (listed, sliced) = (items(&cloud.get(services).await?)?, items(&cloud.get(slices).await?)?);
        Ok(Self::filtered(&listed, &sliced, &members))
    }

    fn filtered(services: &[Value], slices: &[Value], members: &BTreeSet<String>) -> Self {
        let by_key: BTreeMap<String, &Value> = services.iter().map(|one| (key_and_version(one).0, one)).collect();
        let shown = services
            .iter()
            .filter(|service| service["spec"]["type"] != "LoadBalancer");
        let sliced = slices.iter().filter_map(|slice| {
            let namespace = slice["metadata"]["namespace"].as_str().unwrap_or_default();
            let Some(service) = slice["metadata"]["labels"]["kubernetes.io/service-name"].as_str() else {
                return Some(slice.clone());
            };
            let service = by_key.get(&format!("{namespace}/{service}"))?;
            let mut slice = slice.clone();
            if service["metadata"]["annotations"][TOPOLOGY_KEYS] == NODE_POOL
                && let Some(endpoints) = slice["endpoints"].as_array_mut()
            {
                endpoints.retain(|one| one["nodeName"].as_str().is_some_and(|node| members.contains(node)));
            }
            Some(slice)
        });
        let [of_services, of_slices] = COLLECTIONS;
        Self(BTreeMap::from([
            (of_services, shown.map(content).collect()),
            (of_slices, sliced.map(|slice| content(&slice)).collect()),
        ]))
    }

    /// Checks a list of a hub.
    ///
    /// # Errors
    /// Names the first object that differs.
    pub(super) fn check(&self, collection: &str, listed: &Value) -> Result<()> {
        let expected = self.0.get(collection).context("a collection without filters")?;
        let shown: BTreeMap<String, Value> = items(listed)?.iter().map(content).collect();
        let keys: BTreeSet<&String> = expected.keys().chain(shown.keys()).collect();
        for key in keys {
            let (expected, shown) = (expected.get(key), shown.get(key));
            let of = |one: Option<&Value>| {
                one.map_or_else(
                    || "hidden".to_owned(),
                    |one| one.to_string().chars().take(600).collect(),
                )
            };
            ensure!(
                expected == shown,
                "{key} is shown as {}, expected {}",
                of(shown),
                of(expected)
            );
        }
        Ok(())
    }
}

/// True for an object that the filters hide while the members of the pool are unknown.
pub(super) fn may_hide(key: &str) -> bool {
    let slices = [SWITCHED_SERVICE, POOL_LOCAL_SERVICE, "chaos"];
    slices
        .iter()
        .any(|slice| key.starts_with(&format!("{NAMESPACE}/{slice}-")))
}

fn items(list: &Value) -> Result<Vec<Value>> {
    list["items"].as_array().cloned().context("it is not a list")
}

/// Key and content of an object.
fn content(object: &Value) -> (String, Value) {
    let mut content = object.clone();
    if let Some(metadata) = content["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    (key_and_version(object).0, content)
}

/// The name in a key.
fn name(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(name: &str, topology: &str) -> Value {
        json!({"metadata": {"namespace": "demo", "name": name, "resourceVersion": "5", "annotations": {TOPOLOGY_KEYS: topology}}, "spec": {}})
    }

    fn slice(name: &str, nodes: &[&str], version: &str) -> Value {
        let endpoints: Vec<_> = nodes.iter().map(|node| json!({"nodeName": node})).collect();
        let metadata = json!({"namespace": "demo", "name": name, "resourceVersion": version,
            "labels": {"kubernetes.io/service-name": name}});
        json!({"metadata": metadata, "endpoints": endpoints})
    }

    fn list(items: &[Value]) -> Value {
        json!({"metadata": {"resourceVersion": "9"}, "items": items})
    }

    #[test]
    fn view_that_differs_from_the_filtered_cloud_is_noticed() {
        let [services, slices] = COLLECTIONS;
        let balanced = json!({"metadata": {"namespace": "demo", "name": "lb"}, "spec": {"type": "LoadBalancer"}});
        let near = service("near", NODE_POOL);
        let cloud = [slice("near", &["a", "x"], "6"), slice("unknown", &["a"], "7")];
        let members = BTreeSet::from(["a".to_owned()]);
        let expected = Expected::filtered(&[near.clone(), balanced.clone()], &cloud, &members);
        let check = |collection, items: &[Value]| expected.check(collection, &list(items)).is_ok();
        assert!(
            check(slices, &[slice("near", &["a"], "8")]),
            "a revised object has a number of the view"
        );
        assert!(check(services, std::slice::from_ref(&near)));
        for (what, shown) in [
            ("not filtered", vec![slice("near", &["a", "x"], "8")]),
            ("too much removed", vec![slice("near", &[], "8")]),
            ("hidden", vec![]),
            (
                "its Service is unknown",
                vec![slice("near", &["a"], "8"), slice("unknown", &["a"], "8")],
            ),
        ] {
            assert!(!check(slices, &shown), "{what}");
        }
        assert!(!check(services, &[near, balanced]));
    }
}
