//! Effects of filters that a client sees through a hub: what appears, what leaves, and what stays in its namespace. The
//! evaluations that this costs.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::cloud::Cloud;
use super::configuring::configure;
use super::harness::TestHub;

const SERVICES: &str = "/api/v1/services";
const ENDPOINTS: &str = "/api/v1/endpoints";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
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

/// A slice of Service web with an endpoint on this node and one outside of the pool.
fn slice(name: &str, port: u32) -> Value {
    let metadata = json!({"namespace": "shop", "name": name, "labels": {"kubernetes.io/service-name": "web"}});
    let endpoint = |node: &str| json!({"addresses": ["10.1.0.1"], "nodeName": node});
    json!({"metadata": metadata, "addressType": "IPv4", "ports": [{"port": port}], "endpoints": [endpoint("n1"), endpoint("n9")]})
}

/// A cloud with Service web, whose topology is the pool, and its slices web-0, web-1 and web-2.
async fn cloud_with_slices() -> Cloud {
    let cloud = cloud().await;
    let near = json!({"openyurt.io/topologyKeys": "openyurt.io/nodepool"});
    cloud.put("services", service("web", "ClusterIP", near));
    for number in 0..3 {
        cloud.put("endpointslices", slice(&format!("web-{number}"), 80));
    }
    cloud
}

/// Number of evaluations of each filter that evaluated anything, also those because of a changed input.
async fn evaluations(hub: &TestHub) -> BTreeMap<String, u64> {
    let report = hub.admin().get("/debug/filters").await.json();
    let of = |filter: &Value| {
        let counts = filter["objects"].as_object().unwrap().values();
        let sum = counts.map(|count| count.as_u64().unwrap()).sum::<u64>();
        (filter["name"].as_str().unwrap().to_owned(), sum)
    };
    let filters = report["filters"].as_array().unwrap().iter().map(of);
    filters.filter(|(_, sum)| *sum > 0).collect()
}

fn each(filters: &[&str], count: u64) -> BTreeMap<String, u64> {
    filters.iter().map(|name| ((*name).to_owned(), count)).collect()
}

/// Clients of one view share its evaluations: one per object at its start, and one per event.
#[tokio::test]
async fn event_costs_one_evaluation_however_many_clients_read_the_view() {
    let chain = ["servicetopology", "localendpoints", "forwardkubesvctraffic"];
    for clients in [1, 20] {
        let cloud = cloud_with_slices().await;
        let hub = TestHub::start(&cloud, POOL).await;
        let mut watches = Vec::new();
        for _ in 0..clients {
            let proxy = hub.kube_proxy();
            assert_eq!(proxy.get(SLICES).await.names(), ["web-0", "web-1", "web-2"]);
            let mut watch = proxy.watch(SLICES).await;
            for name in ["web-0", "web-1", "web-2"] {
                assert_eq!(watch.told().await, format!("ADDED {name}"));
            }
            watches.push(watch);
        }
        assert_eq!(evaluations(&hub).await, each(&chain, 3), "{clients} clients");
        for event in 1..=5 {
            cloud.put("endpointslices", slice("web-1", 80 + event));
            for watch in &mut watches {
                let told = watch.next().await.expect("the stream must go on");
                assert_eq!(
                    (told.kind.as_str(), &told.object["ports"][0]["port"]),
                    ("MODIFIED", &json!(80 + event))
                );
                assert_eq!(told.object["endpoints"].as_array().unwrap().len(), 1);
            }
            let expected = each(&chain, 3 + u64::from(event));
            assert_eq!(evaluations(&hub).await, expected, "{clients} clients, event {event}");
        }
    }
}

/// Filters are bound to components: reads of others, and filters that the ConfigMap unbinds, evaluate nothing.
#[tokio::test]
async fn filter_that_is_not_bound_evaluates_nothing() {
    let cloud = cloud_with_slices().await;
    configure(&cloud, &json!({"servicetopology": "-kube-proxy"}));
    let hub = TestHub::start(&cloud, POOL).await;
    let mut watches = vec![
        hub.kubelet().watch(SLICES).await,
        hub.component("flanneld").watch(SLICES).await,
    ];
    for watch in &mut watches {
        for _ in 0..3 {
            assert_eq!(watch.next().await.unwrap().kind, "ADDED");
        }
    }
    cloud.put("endpointslices", slice("web-1", 81));
    for watch in &mut watches {
        assert_eq!(watch.told().await, "MODIFIED web-1");
    }
    assert_eq!(evaluations(&hub).await, each(&[], 0));

    let mut watch = hub.kube_proxy().watch(SLICES).await;
    for _ in 0..3 {
        assert_eq!(watch.next().await.unwrap().kind, "ADDED");
    }
    cloud.put("endpointslices", slice("web-1", 82));
    let told = watch.next().await.unwrap();
    assert_eq!(told.object["endpoints"].as_array().unwrap().len(), 2, "all endpoints");
    let rest = ["localendpoints", "forwardkubesvctraffic"];
    assert_eq!(evaluations(&hub).await, each(&rest, 4));
}
