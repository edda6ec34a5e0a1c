//! Cloud mode: nothing is answered without the cloud, and filters apply all the same.

use http::Method;
use serde_json::{Value, json};
use yurt_runtime::http::full;

use super::client::request;
use super::cloud::Cloud;
use super::harness::{NODE, TestHub};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const MAP: &str = "/api/v1/namespaces/kube-system/configmaps/kube-proxy";
/// Text that only the cloud's objects have.
const UNFILTERED: &str = "203.0.113.9";
/// A component that filters are bound to: a list, and one of its objects.
const FILTERED: [(&str, &str, &str); 4] = [
    (
        "kube-proxy",
        SLICES,
        "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/web-1",
    ),
    ("coredns", "/api/v1/endpoints", "/api/v1/namespaces/shop/endpoints/web"),
    ("kubelet", SERVICES, "/api/v1/namespaces/default/services/kubernetes"),
    ("kubelet", "/api/v1/namespaces/kube-system/configmaps", MAP),
];
/// The filters that exist for the sake of a node without the cloud.
const EDGE_ONLY: [&str; 5] = [
    "localendpoints",
    "discardcloudservice",
    "hostnetworkpropagation",
    "forwardkubesvctraffic",
    "serviceenvupdater",
];

#[tokio::test]
async fn hub_in_cloud_mode_answers_nothing_from_its_own_data() {
    let mut cloud = Cloud::start().await;
    cloud.put(
        "services",
        json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {}}),
    );
    let hub = TestHub::start(&cloud, &["--working-mode=cloud"]).await;
    let flanneld = hub.component("flanneld/1");
    assert_eq!(
        hub.kubelet().get(SERVICES).await.names(),
        ["web"],
        "filtered, from the hub"
    );
    hub.kubelet()
        .get("/api/v1/namespaces/shop/configmaps/c")
        .await
        .expect(404);
    cloud.go_away().await;
    hub.until("the loss must be detected", |state| state["cloudReachable"] == false)
        .await;
    for answer in [hub.kubelet().get(SERVICES).await, flanneld.get(SERVICES).await] {
        assert!([502, 503].contains(&answer.code), "{answer:?}");
    }
}

#[tokio::test]
async fn lease_in_cloud_mode_is_a_request_as_any_other() {
    let mut cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &["--working-mode=cloud"]).await;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"namespace": "kube-node-lease", "name": NODE},
        "spec": {"holderIdentity": NODE, "leaseDurationSeconds": 40},
    });
    let send = async || {
        let headers = [("content-type", "application/json")];
        hub.kubelet()
            .send(request(Method::POST, LEASES, &headers, full(lease.to_string())))
            .await
    };
    send().await.expect(201);
    cloud.go_away().await;
    hub.until("the loss must be detected", |state| state["cloudReachable"] == false)
        .await;
    let code = send().await.code;
    assert!(
        [502, 503].contains(&code),
        "{code}: no hub may claim that the cloud took the lease"
    );
}

/// A cloud with the objects of [`FILTERED`]. `number` changes their content.
fn put_filtered(cloud: &Cloud, number: u32) {
    let labels = json!({"kubernetes.io/service-name": "web", "number": number.to_string()});
    let metadata = |namespace: &str, name: &str| json!({"namespace": namespace, "name": name, "labels": labels});
    let endpoints = json!([
        {"addresses": ["10.1.0.1"], "nodeName": NODE},
        {"addresses": [UNFILTERED], "nodeName": "n9"},
    ]);
    cloud.put(
        "endpointslices",
        json!({"metadata": metadata("shop", "web-1"), "addressType": "IPv4", "endpoints": endpoints}),
    );
    let addresses = json!([{"ip": "10.1.0.1", "nodeName": NODE}, {"ip": UNFILTERED, "nodeName": "n9"}]);
    cloud.put(
        "endpoints",
        json!({"metadata": metadata("shop", "web"), "subsets": [{"addresses": addresses}]}),
    );
    let spec = json!({"clusterIP": UNFILTERED});
    cloud.put(
        "services",
        json!({"metadata": metadata("default", "kubernetes"), "spec": spec}),
    );
    let data = json!({"config.conf": format!("clientConnection:\n  kubeconfig: /{UNFILTERED}\n")});
    cloud.put(
        "configmaps",
        json!({"metadata": metadata("kube-system", "kube-proxy"), "data": data}),
    );
}

/// A cloud with this node in pool hangzhou, and the objects of [`FILTERED`].
async fn cloud() -> Cloud {
    let cloud = Cloud::start().await;
    let labels = json!({"apps.openyurt.io/nodepool": "hangzhou"});
    cloud.put("nodes", json!({"metadata": {"name": NODE, "labels": labels}}));
    let near = json!({"openyurt.io/topologyKeys": "openyurt.io/nodepool"});
    let metadata = json!({"namespace": "shop", "name": "web", "annotations": near});
    cloud.put("services", json!({"metadata": metadata, "spec": {}}));
    let elsewhere = json!({"nodeport.openyurt.io/listen": "beijing"});
    let metadata = json!({"namespace": "shop", "name": "elsewhere", "annotations": elsewhere});
    cloud.put("services", json!({"metadata": metadata, "spec": {"type": "NodePort"}}));
    put_filtered(&cloud, 1);
    cloud
}

async fn hub(cloud: &Cloud, mode: &str) -> TestHub {
    let mode = format!("--working-mode={mode}");
    TestHub::start(cloud, &[&mode, "--nodepool-name=hangzhou"]).await
}

/// Returns the object, which must be one that a filter changed.
fn filtered(object: &Value) -> Value {
    let text = object.to_string();
    let is_commented = text.contains("#kubeconfig: ");
    assert!(is_commented || !text.contains(UNFILTERED), "{text}");
    object.clone()
}

/// Lists, gets and watch events of [`FILTERED`] at a hub in this mode.
async fn reads(mode: &str) -> Vec<Value> {
    let cloud = cloud().await;
    let hub = hub(&cloud, mode).await;
    let (mut seen, mut open) = (Vec::new(), Vec::new());
    for (agent, list, one) in FILTERED {
        let client = hub.component(agent);
        let items = client.get(list).await.json()["items"].clone();
        let name = one.rsplit('/').next().unwrap();
        let items = items
            .as_array()
            .unwrap()
            .iter()
            .filter(|item| item["metadata"]["name"] == name);
        let items: Vec<Value> = items.map(filtered).collect();
        assert_eq!(items.len(), 1, "{mode}: {agent} {list}");
        let got = filtered(&client.get(one).await.json());
        assert_eq!(got, items[0], "{mode}: {agent} {one}");
        let mut watch = client.watch(list).await;
        loop {
            let event = watch.next().await.expect("the stream must go on");
            if event.object["metadata"]["name"] == name {
                assert_eq!((event.kind.as_str(), filtered(&event.object)), ("ADDED", got.clone()));
                break;
            }
        }
        seen.push(got);
        open.push((watch, name));
    }
    put_filtered(&cloud, 2);
    for (watch, name) in &mut open {
        loop {
            let event = watch.next().await.expect("the stream must go on");
            if event.object["metadata"]["name"] == *name && event.kind == "MODIFIED" {
                assert_eq!(event.object["metadata"]["labels"]["number"], "2");
                seen.push(filtered(&event.object));
                break;
            }
        }
    }
    let proxy = hub.kube_proxy();
    assert_eq!(proxy.get(SERVICES).await.names(), ["kubernetes", "web"], "{mode}");
    proxy
        .get("/api/v1/namespaces/shop/services/elsewhere")
        .await
        .expect(404);
    // The object of a get comes from the cloud, which has the latest state.
    let is_of_kubelet = |agent: Option<&http::HeaderValue>| agent.is_some_and(|agent| agent == "kubelet");
    let mut gets = cloud.seen(MAP).into_iter();
    assert!(gets.any(|get| is_of_kubelet(get.headers.get("user-agent"))), "{mode}");
    seen
}

#[tokio::test]
async fn components_see_the_same_in_cloud_mode_as_in_edge_mode() {
    assert_eq!(reads("cloud").await, reads("edge").await);
}

#[tokio::test]
async fn filters_for_nodes_without_the_cloud_do_not_run_in_cloud_mode() {
    let cloud = cloud().await;
    let metadata = json!({"namespace": "shop", "name": "front"});
    cloud.put(
        "services",
        json!({"metadata": metadata, "spec": {"type": "LoadBalancer"}}),
    );
    let env = json!([{"name": "KUBERNETES_SERVICE_HOST", "value": UNFILTERED}]);
    let spec = json!({"nodeName": NODE, "containers": [{"name": "a", "env": env}]});
    cloud.put(
        "pods",
        json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": spec}),
    );
    for mode in ["edge", "cloud"] {
        let hub = hub(&cloud, mode).await;
        let report = hub.admin().get("/debug/filters").await.json();
        let filters = report["filters"].as_array().unwrap().iter();
        let off = filters.filter(|filter| filter["offBecause"] == "--working-mode=cloud");
        let off: Vec<_> = off.map(|filter| filter["name"].as_str().unwrap()).collect();
        let is_cloud = mode == "cloud";
        assert_eq!(off, if is_cloud { &EDGE_ONLY[..] } else { &[] });
        let services = hub.kube_proxy().get(SERVICES).await.names();
        assert_eq!(services.iter().any(|name| name == "front"), is_cloud, "{services:?}");
        for path in [
            "/api/v1/namespaces/shop/pods/web",
            "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1",
        ] {
            let pod = hub.kubelet().get(path).await.expect(200);
            let has_own = String::from_utf8_lossy(&pod).contains(UNFILTERED);
            assert_eq!(has_own, is_cloud, "{mode} {path}");
        }
    }
}
