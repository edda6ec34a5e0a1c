//! Effects of filters that a client sees through a hub: what appears, what leaves, and what stays in its namespace.

use serde_json::{Value, json};

use super::cloud::Cloud;
use super::harness::TestHub;

const SERVICES: &str = "/api/v1/services";
const ENDPOINTS: &str = "/api/v1/endpoints";
const POOL: &[&str] = &["--nodepool-name=hangzhou"];

/// A Service of namespace shop.
fn service(name: &str, ty: &str, annotations: Value) -> Value {
    let metadata = json!({"namespace": "shop", "name": name, "annotations": annotations});
    json!({"metadata": metadata, "spec": {"type": ty, "clusterIP": "10.96.0.7"}})
}

/// A cloud whose pool hangzhou has this node.
async fn cloud() -> Cloud {
    let cloud = Cloud::start().await;
    let labels = json!({"apps.openyurt.io/nodepool": "hangzhou"});
    cloud.put("nodes", json!({"metadata": {"name": "n1", "labels": labels}}));
    cloud
}

/// OpenYurt 1.4 swallows the change, so that kube-proxy keeps the old Service until it restarts.
#[tokio::test]
async fn service_that_becomes_a_load_balancer_leaves_the_view_of_kube_proxy() {
    let cloud = cloud().await;
    cloud.put("services", service("web", "ClusterIP", json!({})));
    let hub = TestHub::start(&cloud, POOL).await;
    let mut watch = hub.kube_proxy().watch(SERVICES).await;
    assert_eq!(watch.told().await, "ADDED web");
    let changed = cloud.put("services", service("web", "LoadBalancer", json!({})));
    let event = watch.next().await.unwrap();
    assert_eq!(event.kind, "DELETED");
    assert_eq!(event.object["spec"]["type"], "ClusterIP", "its last state in this view");
    assert_eq!(
        event.object["metadata"]["resourceVersion"],
        changed["metadata"]["resourceVersion"]
    );
    let list = hub.kube_proxy().get(SERVICES).await.json();
    assert_eq!(list["items"], json!([]), "never null");
    assert_eq!(hub.component("coredns").get(SERVICES).await.names(), ["web"]);
    let skips = json!({"openyurt.io/skip-discard": "true"});
    let exempt = cloud.put("services", service("web", "LoadBalancer", skips));
    assert_eq!(watch.next().await.unwrap().object, exempt, "it is there again");
}

#[tokio::test]
async fn node_port_is_seen_in_the_pools_it_names() {
    let cloud = cloud().await;
    for (name, pools) in [
        ("here", "hangzhou"),
        ("there", "beijing"),
        ("all", "*"),
        ("nowhere", "-hangzhou,*"),
    ] {
        let listens = json!({"nodeport.openyurt.io/listen": pools});
        cloud.put("services", service(name, "NodePort", listens));
    }
    let hub = TestHub::start(&cloud, POOL).await;
    assert_eq!(hub.kube_proxy().get(SERVICES).await.names(), ["all", "here"]);
    let path = "/api/v1/namespaces/shop/services/there";
    hub.kube_proxy().get(path).await.expect(404);
    hub.component("coredns").get(path).await.expect(200);
}

#[tokio::test]
async fn endpoints_without_subsets_are_seen_by_kube_proxy() {
    let cloud = cloud().await;
    let near = json!({"openyurt.io/topologyKeys": "openyurt.io/nodepool"});
    cloud.put("services", service("annotated", "ClusterIP", near));
    cloud.put("services", service("plain", "ClusterIP", json!({})));
    for name in ["annotated", "plain", "without-service"] {
        cloud.put("endpoints", json!({"metadata": {"namespace": "shop", "name": name}}));
    }
    let far = json!([{"addresses": [{"ip": "10.1.0.1", "nodeName": "n9"}]}]);
    let hidden = json!({"metadata": {"namespace": "shop", "name": "unknown"}, "subsets": far});
    cloud.put("endpoints", hidden);
    let hub = TestHub::start(&cloud, POOL).await;
    let seen = hub.kube_proxy().get(ENDPOINTS).await.names();
    assert_eq!(seen, ["annotated", "plain", "without-service"]);
}

/// OpenYurt 1.6 answers such a list with the objects of all namespaces.
#[tokio::test]
async fn filtered_list_of_a_namespace_shows_no_other_while_the_cloud_is_away() {
    let mut cloud = cloud().await;
    cloud.put("services", service("web", "ClusterIP", json!({})));
    cloud.put("services", service("front", "LoadBalancer", json!({})));
    let other = json!({"metadata": {"namespace": "other", "name": "db"}, "spec": {"type": "ClusterIP"}});
    cloud.put("services", other);
    let mut hub = TestHub::start(&cloud, POOL).await;
    hub.stop().await;
    cloud.go_away().await;
    hub.restart().await;
    let list = |namespace: &str| format!("/api/v1/namespaces/{namespace}/services");
    assert_eq!(hub.kube_proxy().get(&list("shop")).await.names(), ["web"]);
    assert_eq!(hub.kube_proxy().get(&list("other")).await.names(), ["db"]);
}
