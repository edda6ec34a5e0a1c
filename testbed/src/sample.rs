//! The objects in the demo's cloud: the nodes of two pools, and enough Services and EndpointSlices to be worth sharing.

use serde_json::{Value, json};

/// The pool of the story.
pub const POOL: &str = "shore";
/// Its nodes, one hub each.
pub const NODES: [&str; 3] = ["shore-1", "shore-2", "shore-3"];
/// A node of another pool, which the pool's hubs must ignore.
pub const FOREIGN_NODE: &str = "inland-1";
/// Namespace of the sample.
pub const NAMESPACE: &str = "demo";
/// The Service whose endpoints are kept within each pool (`openyurt.io/topologyKeys`).
pub const POOL_LOCAL_SERVICE: &str = "cache";

/// Number of Services in addition to the special ones.
const SERVICES: usize = 19;
/// Endpoints of each of them.
const ENDPOINTS: usize = 40;

/// One object and the collection it is created in.
pub struct Sample {
    /// `/api/v1/namespaces/demo/services`
    pub collection: String,
    /// The object as JSON.
    pub object: Value,
}

/// All objects, in the order of creation.
pub fn all() -> Vec<Sample> {
    let mut samples = vec![
        sample(
            "/api/v1/namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        ),
        sample("/api/v1/namespaces/default/services", kubernetes_service()),
    ];
    samples.extend(NODES.iter().map(|name| node(name, POOL)));
    samples.push(node(FOREIGN_NODE, "inland"));
    for number in 1..=SERVICES {
        let name = format!("app-{number:02}");
        let endpoints = (0..ENDPOINTS)
            .map(|index| endpoint(number, index, NODES[index % NODES.len()]))
            .collect();
        samples.push(service(&name, number, json!({})));
        samples.push(slice(&name, endpoints));
    }
    let pool_local = json!({"openyurt.io/topologyKeys": "openyurt.io/nodepool"});
    samples.push(service(POOL_LOCAL_SERVICE, SERVICES + 1, pool_local));
    let everywhere = [NODES[0], NODES[1], FOREIGN_NODE];
    let endpoints = everywhere
        .iter()
        .enumerate()
        .map(|(index, node)| endpoint(SERVICES + 1, index, node))
        .collect();
    samples.push(slice(POOL_LOCAL_SERVICE, endpoints));
    samples
}

/// A Service that the story creates and deletes again.
pub fn short_lived_service() -> Sample {
    service("flash", SERVICES + 2, json!({}))
}

fn sample(collection: &str, object: Value) -> Sample {
    Sample {
        collection: collection.to_owned(),
        object,
    }
}

/// A Node of a pool.
pub fn node(name: &str, pool: &str) -> Sample {
    let labels = json!({"apps.openyurt.io/nodepool": pool, "kubernetes.io/hostname": name});
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
    sample("/api/v1/nodes", object)
}

/// The Service that every cluster has; the masterservice filter rewrites it to point pods at the hub.
fn kubernetes_service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443, "targetPort": 6443}]},
    })
}

fn service(name: &str, number: usize, annotations: Value) -> Sample {
    let object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations},
        "spec": {
            "clusterIP": format!("10.96.1.{number}"),
            "selector": {"app": name},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
        },
    });
    sample(&format!("/api/v1/namespaces/{NAMESPACE}/services"), object)
}

fn slice(service: &str, endpoints: Vec<Value>) -> Sample {
    let object = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("{service}-x2k7p"), "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": endpoints,
    });
    sample(
        &format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"),
        object,
    )
}

fn endpoint(service: usize, index: usize, node: &str) -> Value {
    json!({
        "addresses": [format!("10.244.{service}.{}", index + 1)],
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": node,
        "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": format!("app-{service:02}-{index:02}")},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_says_what_it_is_and_has_a_place() {
        let samples = all();
        let mut seen = std::collections::BTreeSet::new();
        for Sample { collection, object } in &samples {
            let name = object["metadata"]["name"].as_str().expect("a name");
            assert!(seen.insert(format!("{collection}/{name}")), "{name} twice");
            let version = object["apiVersion"].as_str().expect("an apiVersion");
            let prefix = if version == "v1" {
                "/api/v1/".to_owned()
            } else {
                format!("/apis/{version}/")
            };
            assert!(collection.starts_with(&prefix), "{collection} {version}");
        }
        let of_kind = |kind: &str| samples.iter().filter(|sample| sample.object["kind"] == kind).count();
        assert_eq!(
            (of_kind("Node"), of_kind("Service"), of_kind("EndpointSlice")),
            (4, 21, 20)
        );
    }
}
