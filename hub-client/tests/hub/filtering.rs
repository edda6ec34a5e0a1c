//! View of pool data for the components of a node.

use serde_json::{Value, json};
use yurt_test_support::eventually;

use super::cloud::Cloud;
use super::configuring::configure;
use super::harness::{HUB_OF_PODS, TestHub};

const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const ENDPOINTS: &str = "/api/v1/endpoints";
const POOL: &[&str] = &["--nodepool-name=hangzhou"];

fn node(name: &str, pool: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"apps.openyurt.io/nodepool": pool}}, "status": {"big": "x"}})
}

fn service(topology: Option<&str>) -> Value {
    let mut service = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {"clusterIP": "10.96.0.7"}});
    if let Some(topology) = topology {
        service["metadata"]["annotations"] = json!({"openyurt.io/topologyKeys": topology});
    }
    service
}

/// A slice of Service web with an endpoint on each of these nodes.
fn slice(name: &str, nodes: &[&str]) -> Value {
    let endpoints: Vec<Value> = nodes
        .iter()
        .map(|node| json!({"addresses": ["10.1.0.1"], "nodeName": node}))
        .collect();
    let labels = json!({"kubernetes.io/service-name": "web"});
    json!({"metadata": {"namespace": "shop", "name": name, "labels": labels}, "addressType": "IPv4", "endpoints": endpoints})
}

/// The nodes of the endpoints of a slice.
fn nodes(slice: &Value) -> Vec<&str> {
    let endpoints = slice["endpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    endpoints
        .iter()
        .map(|endpoint| endpoint["nodeName"].as_str().unwrap())
        .collect()
}

/// A cloud with n1 and n2 in the pool and n3 in another.
async fn cloud_with_nodes() -> Cloud {
    let cloud = Cloud::start().await;
    for (name, pool) in [("n1", "hangzhou"), ("n2", "hangzhou"), ("n3", "beijing")] {
        cloud.put("nodes", node(name, pool));
    }
    cloud
}

#[tokio::test]
async fn kubelet_finds_the_kubernetes_service_at_the_hub() {
    let cloud = Cloud::start().await;
    let ports = json!([{"name": "https", "port": 443, "targetPort": 6443}]);
    let spec = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": ports});
    let raw = cloud.put(
        "services",
        json!({"metadata": {"namespace": "default", "name": "kubernetes"}, "spec": spec}),
    );
    let other = cloud.put("services", service(None));
    let hub = TestHub::start(&cloud, &[]).await;
    let mut expected = raw.clone();
    expected["spec"]["clusterIP"] = HUB_OF_PODS.into();
    expected["spec"]["clusterIPs"] = json!([HUB_OF_PODS]);
    expected["spec"]["ports"][0]["port"] = hub.secure_port().into();
    let kubelet = hub.kubelet();
    assert_eq!(
        kubelet.get(SERVICES).await.json()["items"],
        json!([expected, other]),
        "and nothing else is changed"
    );
    assert_eq!(
        kubelet
            .get("/api/v1/namespaces/default/services/kubernetes")
            .await
            .json(),
        expected
    );
    let mut watch = kubelet.watch(SERVICES).await;
    assert_eq!(watch.next().await.unwrap().object, expected);
    for raw_reader in [hub.kube_proxy(), hub.component("coredns")] {
        assert_eq!(raw_reader.get(SERVICES).await.json()["items"][0], raw);
        assert_eq!(
            raw_reader
                .get("/api/v1/namespaces/default/services/kubernetes")
                .await
                .json(),
            raw
        );
        assert_eq!(raw_reader.watch(SERVICES).await.next().await.unwrap().object, raw);
    }
}

#[tokio::test]
async fn hub_without_an_address_for_pods_leaves_them_kube_apiservers_and_says_so() {
    let cloud = Cloud::start().await;
    let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]});
    let metadata = json!({"namespace": "default", "name": "kubernetes"});
    let raw = cloud.put("services", json!({"metadata": metadata, "spec": spec}));
    let mut hub = TestHub::start(&cloud, &["--bind-proxy-address=127.0.0.1"]).await;
    assert_eq!(hub.kubelet().get(SERVICES).await.json()["items"], json!([raw]));
    let why = hub.state().await["troubles"]["address for pods"]["why"].to_string();
    assert!(
        why.contains("kube-apiserver") && why.contains("--enable-dummy-if=false"),
        "{why}"
    );
    // No interface has such a name, and none a multicast address.
    for flag in [
        "--enable-dummy-if=true",
        "--dummy-if-name=no/name",
        "--dummy-if-ip=ff02::5",
    ] {
        hub.set_flag(flag);
    }
    hub.restart().await;
    hub.wait_until_complete().await;
    assert_eq!(hub.kubelet().get(SERVICES).await.json()["items"], json!([raw]));
    let why = hub.state().await["troubles"]["address for pods"]["why"].to_string();
    for part in ["kube-apiserver", "restarted", "no dummy interface no/name"] {
        assert!(why.contains(part), "{part} in {why}");
    }
}

/// The Service has one family, also in a dual-stack cluster: that of the first Service range.
#[tokio::test]
async fn hub_without_an_address_of_the_services_family_says_so() {
    let cloud = Cloud::start().await;
    let spec = json!({"clusterIP": "fd01::1", "clusterIPs": ["fd01::1"]});
    let metadata = json!({"namespace": "default", "name": "kubernetes"});
    let raw = cloud.put("services", json!({"metadata": metadata, "spec": spec}));
    let mut hub = TestHub::start(&cloud, &[]).await;
    assert_eq!(hub.kubelet().get(SERVICES).await.json()["items"], json!([raw]));
    let family = |state: &Value| state["troubles"]["IP family of Services"]["why"].to_string();
    let expected = ["fd01::1", HUB_OF_PODS, "--bind-proxy-address=::1"];
    let is_named = |state: &Value| expected.iter().all(|part| family(state).contains(part));
    hub.until("troubles must name it", is_named).await;
    // The cluster is created again with the other family first, and back.
    let other = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"]});
    cloud.put("services", json!({"metadata": metadata, "spec": other}));
    hub.until("nothing is wrong", |state| family(state) == "null").await;
    cloud.put("services", json!({"metadata": metadata, "spec": spec}));
    hub.until("troubles must name it", is_named).await;
    // Pods are meant to use the cloud's address.
    configure(&cloud, &json!({"masterservice": "-kubelet"}));
    hub.until("nothing is wrong", |state| family(state) == "null").await;
    hub.set_flag("--disabled-resource-filters=masterservice");
    configure(&cloud, &json!({}));
    hub.restart().await;
    hub.wait_until_complete().await;
    assert_eq!(family(&hub.state().await), "null");
}

#[tokio::test]
async fn kube_proxy_sees_endpoints_of_its_pool_only() {
    let cloud = cloud_with_nodes().await;
    cloud.put("services", service(Some("openyurt.io/nodepool")));
    let raw = cloud.put("endpointslices", slice("web-1", &["n1", "n2", "n3"]));
    let addresses: Vec<Value> = ["n2", "n3"]
        .iter()
        .map(|node| json!({"ip": "10.1.0.1", "nodeName": node}))
        .collect();
    let endpoints = json!({"metadata": {"namespace": "shop", "name": "web"}, "subsets": [{"addresses": addresses}]});
    cloud.put("endpoints", endpoints);
    let hub = TestHub::start(&cloud, POOL).await;
    for near in [hub.kube_proxy(), hub.component("coredns/1.12")] {
        let list = near.get(SLICES).await.json();
        assert_eq!(nodes(&list["items"][0]), ["n1", "n2"]);
        assert_eq!(
            list["items"][0]["metadata"], raw["metadata"],
            "it stays the same object"
        );
        let mut watch = near.watch(SLICES).await;
        assert_eq!(nodes(&watch.next().await.unwrap().object), ["n1", "n2"]);
        let subsets = near.get(ENDPOINTS).await.json()["items"][0]["subsets"].clone();
        assert_eq!(subsets, json!([{"addresses": [{"ip": "10.1.0.1", "nodeName": "n2"}]}]));
        let one = near
            .get("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/web-1")
            .await
            .json();
        assert_eq!(nodes(&one), ["n1", "n2"], "a get is no way around");
    }
    assert_eq!(hub.kubelet().get(SLICES).await.json()["items"], json!([raw]));
}

#[tokio::test]
async fn node_that_joins_the_pool_is_near_from_the_next_list_on() {
    let cloud = cloud_with_nodes().await;
    cloud.put("services", service(Some("openyurt.io/nodepool")));
    cloud.put("endpointslices", slice("web-1", &["n1", "n3", "n4"]));
    let hub = TestHub::start(&cloud, POOL).await;
    let near = hub.kube_proxy();
    assert_eq!(nodes(&near.get(SLICES).await.json()["items"][0]), ["n1"]);
    cloud.put("nodes", node("n4", "hangzhou"));
    let joined = async || Some(near.get(SLICES).await.json()).filter(|list| nodes(&list["items"][0]) == ["n1", "n4"]);
    eventually("the new member's endpoint must be seen", joined).await;
    let read = cloud.seen("/api/v1/nodes");
    assert!(!read.is_empty());
    for seen in read {
        assert!(
            seen.query
                .as_deref()
                .unwrap()
                .contains("labelSelector=apps.openyurt.io%2Fnodepool%3Dhangzhou")
        );
        assert!(
            seen.headers["accept"]
                .to_str()
                .unwrap()
                .contains("as=PartialObjectMetadata"),
            "names, not Nodes"
        );
    }
}

#[tokio::test]
async fn node_topology_means_this_node_alone() {
    let cloud = cloud_with_nodes().await;
    cloud.put("services", service(Some("kubernetes.io/hostname")));
    cloud.put("endpointslices", slice("web-1", &["n1", "n2"]));
    cloud.put("endpointslices", slice("web-2", &["n2", "n3"]));
    let hub = TestHub::start(&cloud, POOL).await;
    let list = hub.kube_proxy().get(SLICES).await;
    assert_eq!(
        list.names(),
        ["web-1", "web-2"],
        "an emptied slice says that there is nothing to reach"
    );
    let list = list.json();
    assert_eq!(nodes(&list["items"][0]), ["n1"]);
    assert_eq!(nodes(&list["items"][1]), Vec::<&str>::new());
}

/// Conformance: 7.73
#[tokio::test]
async fn slice_appears_on_an_open_watch_when_its_service_arrives() {
    let cloud = cloud_with_nodes().await;
    let hub = TestHub::start(&cloud, POOL).await;
    let proxy = hub.kube_proxy();
    let at = proxy.get(SLICES).await.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut open = vec![
        proxy.watch(SLICES).await,
        proxy.watch(&format!("{SLICES}?resourceVersion={at}")).await,
    ];
    cloud.put("endpointslices", slice("web-1", &["n1", "n2", "n3"]));
    // A slice without a Service comes after it and is shown: the other one was held back, not late.
    cloud.put(
        "endpointslices",
        json!({"metadata": {"namespace": "shop", "name": "mark"}, "endpoints": []}),
    );
    for watch in &mut open {
        assert_eq!(watch.told().await, "ADDED mark");
    }
    // A stream that begins only now waits for the same slice.
    let at = proxy.get(SLICES).await.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(proxy.get(SLICES).await.names(), ["mark"]);
    open.push(proxy.watch(&format!("{SLICES}?resourceVersion={at}")).await);
    cloud.put("services", service(Some("openyurt.io/nodepool")));
    for watch in &mut open {
        let event = watch.next().await.unwrap();
        assert_eq!(
            (event.kind.as_str(), &event.object["metadata"]["name"]),
            ("ADDED", &json!("web-1"))
        );
        assert_eq!(nodes(&event.object), ["n1", "n2"]);
    }
    let raw = cloud.put("endpointslices", slice("web-1", &["n3"]));
    for watch in &mut open {
        let event = watch.next().await.unwrap();
        assert_eq!((event.kind.as_str(), nodes(&event.object)), ("MODIFIED", vec![]));
        assert_eq!(
            event.object["metadata"]["resourceVersion"],
            raw["metadata"]["resourceVersion"]
        );
    }
}

/// RV of an object or a list.
fn version(object: &Value) -> u64 {
    let version = object["metadata"]["resourceVersion"].as_str().expect("an RV");
    version.parse().expect("a number")
}

/// A hub whose cloud has Service web without a topology, and a slice of it on n1, n2 and n3. Other objects are younger
/// than the slice.
async fn hub_without_topology() -> (Cloud, TestHub) {
    let cloud = cloud_with_nodes().await;
    cloud.put("endpointslices", slice("web-1", &["n1", "n2", "n3"]));
    cloud.put("services", service(None));
    let hub = TestHub::start(&cloud, POOL).await;
    (cloud, hub)
}

/// Waits until kube-proxy's list shows exactly these endpoints.
async fn until_listed(hub: &TestHub, wanted: &[&str]) -> Value {
    let proxy = hub.kube_proxy();
    let listed = async || {
        let list = proxy.get(SLICES).await.json();
        (nodes(&list["items"][0]) == wanted).then_some(list)
    };
    eventually("the list must show the change of the input", listed).await
}

/// Conformance: 7.73
#[tokio::test]
async fn annotation_of_a_service_changes_what_open_watches_show() {
    let (cloud, hub) = hub_without_topology().await;
    let proxy = hub.kube_proxy();
    let list = proxy.get(SLICES).await.json();
    assert_eq!(nodes(&list["items"][0]), ["n1", "n2", "n3"]);
    let at = version(&list);
    let mut watch = proxy.watch(&format!("{SLICES}?resourceVersion={at}")).await;
    let steps: [(Option<&str>, &[&str]); 3] = [
        (Some("openyurt.io/nodepool"), &["n1", "n2"]),
        (Some("kubernetes.io/hostname"), &["n1"]),
        (None, &["n1", "n2", "n3"]),
    ];
    let mut last = at;
    for (topology, wanted) in steps {
        cloud.put("services", service(topology));
        // The first change of the source after a second revision repeats it under a new number.
        let event = watch.next().await.expect("the stream must go on");
        assert_eq!(
            (event.kind.as_str(), nodes(&event.object)),
            ("MODIFIED", wanted.to_vec())
        );
        assert!(version(&event.object) >= last, "{} {last}", event.object);
        last = version(&event.object);
        let list = until_listed(&hub, wanted).await;
        assert_eq!(list["items"][0], event.object, "list and watch agree");
        assert_eq!(version(&list), last);
    }
    // Two revisions had the same number: the object comes once more with the next one.
    cloud.put("endpointslices", slice("web-2", &["n1"]));
    assert_eq!(watch.told().await, "ADDED web-2");
    let repeated = watch.next().await.expect("the stream must go on");
    assert_eq!(
        (repeated.kind.as_str(), nodes(&repeated.object)),
        ("MODIFIED", vec!["n1", "n2", "n3"])
    );
    assert!(version(&repeated.object) > last);
}

/// Conformance: 7.73
#[tokio::test]
async fn service_that_goes_and_comes_hides_and_shows_its_slices() {
    let (cloud, hub) = hub_without_topology().await;
    let proxy = hub.kube_proxy();
    let at = version(&proxy.get(SLICES).await.json());
    let mut watch = proxy.watch(&format!("{SLICES}?resourceVersion={at}")).await;
    cloud.delete("services", "shop", "web");
    let event = watch.next().await.expect("the stream must go on");
    assert_eq!(event.kind, "DELETED");
    assert_eq!(nodes(&event.object), ["n1", "n2", "n3"], "its last state");
    assert_eq!(version(&event.object), at);
    assert_eq!(proxy.get(SLICES).await.names(), Vec::<String>::new());
    cloud.put("services", service(Some("openyurt.io/nodepool")));
    let event = watch.next().await.expect("the stream must go on");
    assert_eq!((event.kind.as_str(), nodes(&event.object)), ("ADDED", vec!["n1", "n2"]));
}

#[tokio::test]
async fn node_that_joins_or_leaves_the_pool_changes_open_watches() {
    let cloud = cloud_with_nodes().await;
    cloud.put("endpointslices", slice("web-1", &["n1", "n3", "n4"]));
    cloud.put("services", service(Some("openyurt.io/nodepool")));
    let hub = TestHub::start(&cloud, POOL).await;
    let mut watch = hub.kube_proxy().watch(SLICES).await;
    assert_eq!(nodes(&watch.next().await.unwrap().object), ["n1"]);
    cloud.put("nodes", node("n4", "hangzhou"));
    let event = watch.next().await.unwrap();
    assert_eq!(
        (event.kind.as_str(), nodes(&event.object)),
        ("MODIFIED", vec!["n1", "n4"])
    );
    cloud.put("nodes", node("n4", "beijing"));
    let event = watch.next().await.unwrap();
    assert_eq!((event.kind.as_str(), nodes(&event.object)), ("MODIFIED", vec!["n1"]));
}

/// A client that was not connected when the input changed knows nothing of it.
#[tokio::test]
async fn change_between_two_watches_reaches_the_second_one() {
    let (cloud, hub) = hub_without_topology().await;
    let at = version(&hub.kube_proxy().get(SLICES).await.json());
    cloud.put("services", service(Some("openyurt.io/nodepool")));
    let list = until_listed(&hub, &["n1", "n2"]).await;
    assert_eq!(version(&list), at, "the source has not moved");
    let mut watch = hub.kube_proxy().watch(&format!("{SLICES}?resourceVersion={at}")).await;
    let event = watch.next().await.unwrap();
    assert_eq!(
        (event.kind.as_str(), nodes(&event.object)),
        ("MODIFIED", vec!["n1", "n2"])
    );
    // The same for an object that is hidden now.
    drop(watch);
    cloud.delete("services", "shop", "web");
    let proxy = hub.kube_proxy();
    let is_hidden = async || proxy.get(SLICES).await.names().is_empty().then_some(());
    eventually("the slice must be hidden", is_hidden).await;
    let mut watch = hub.kube_proxy().watch(&format!("{SLICES}?resourceVersion={at}")).await;
    assert_eq!(watch.told().await, "DELETED web-1");
}

/// The client holds the slice under the RV that it has in the cloud.
#[tokio::test]
async fn change_while_the_hub_was_stopped_comes_under_a_new_number() {
    let (cloud, mut hub) = hub_without_topology().await;
    let list = hub.kube_proxy().get(SLICES).await.json();
    let at = version(&list);
    hub.stop().await;
    cloud.put("services", service(Some("openyurt.io/nodepool")));
    cloud.put("endpointslices", {
        let mut orphan = slice("orphan", &["n1"]);
        orphan["metadata"]["labels"]["kubernetes.io/service-name"] = "unknown".into();
        orphan
    });
    hub.restart().await;
    until_listed(&hub, &["n1", "n2"]).await;
    let mut watch = hub
        .kube_proxy()
        .watch(&format!("{SLICES}?resourceVersion={at}&allowWatchBookmarks=true"))
        .await;
    let orphan = watch.next().await.unwrap();
    assert_eq!(
        (orphan.kind.as_str(), &orphan.object["endpoints"]),
        ("DELETED", &Value::Null)
    );
    let event = watch.next().await.unwrap();
    assert_eq!(
        (event.kind.as_str(), nodes(&event.object)),
        ("MODIFIED", vec!["n1", "n2"])
    );
    assert!(version(&event.object) > version(&list["items"][0]), "{}", event.object);
    assert_eq!(watch.next().await.unwrap().kind, "BOOKMARK");
}

#[tokio::test]
async fn without_members_nothing_of_the_pool_is_shown() {
    let cloud = cloud_with_nodes().await;
    cloud.on("/api/v1/nodes", async |_| {
        yurt_runtime::http::json(http::StatusCode::FORBIDDEN, "{}")
    });
    cloud.put("services", service(Some("openyurt.io/nodepool")));
    cloud.put("endpointslices", slice("web-1", &["n1", "n3"]));
    let hub = TestHub::start_at_once(&cloud, POOL).await;
    let whole = ["services", "endpoints", "endpointslices.discovery.k8s.io"];
    hub.until("the other replicas must become complete", |state| {
        whole.iter().all(|name| state["collections"][name]["complete"] == true)
    })
    .await;
    assert_eq!(hub.kube_proxy().get(SLICES).await.names(), Vec::<String>::new());
    let mut watch = hub.kube_proxy().watch(SLICES).await;
    cloud.off("/api/v1/nodes");
    let event = watch.next().await.unwrap();
    assert_eq!((event.kind.as_str(), nodes(&event.object)), ("ADDED", vec!["n1"]));
}

/// Data that cannot be filtered is refused, without a request to the cloud.
#[tokio::test]
async fn unfiltered_data_reaches_no_filtered_component() {
    let cloud = cloud_with_nodes().await;
    cloud.put("services", service(None));
    cloud.put("endpointslices", slice("web-1", &["n1", "n3"]));
    let hub = TestHub::start(&cloud, POOL).await;
    let beta = "/apis/discovery.k8s.io/v1beta1";
    let impersonating: &[(&str, &str)] = &[("impersonate-user", "jane")];
    for (component, path, headers, code) in [
        ("kube-proxy/v1", format!("{beta}/endpointslices"), &[][..], 404),
        ("kube-proxy/v1", format!("{beta}/endpointslices?watch=1"), &[], 404),
        (
            "coredns",
            format!("{beta}/namespaces/shop/endpointslices/web-1"),
            &[],
            404,
        ),
        ("coredns", format!("{beta}/watch/endpointslices"), &[], 404),
        ("kubelet/v1", format!("{SERVICES}/status"), &[], 404),
        (
            "kubelet/v1",
            "/api/v1/namespaces/shop/services/web/status".to_owned(),
            &[],
            404,
        ),
        ("kube-proxy/v1", SLICES.to_owned(), impersonating, 403),
        ("kubelet/v1", SERVICES.to_owned(), impersonating, 403),
    ] {
        let asked = path.split('?').next().unwrap().to_owned();
        cloud.on(&asked, async |_| {
            yurt_runtime::http::json(http::StatusCode::OK, r#"{"kind":"EndpointSliceList","items":[]}"#)
        });
        let own = cloud.seen(&asked).len();
        let refused = hub.component(component).get_with(&path, headers).await;
        assert_eq!(refused.code, code, "{component} {path}: {:?}", refused.body);
        let passed = cloud.seen(&asked).into_iter().skip(own).filter(|seen| {
            let agent = seen.headers.get("user-agent").and_then(|agent| agent.to_str().ok());
            agent.is_some_and(|agent| component.starts_with(agent) || agent.starts_with(component))
        });
        assert_eq!(passed.count(), 0, "{component} {path}");
        cloud.off(&asked);
    }
    // Requests without a filter go to the cloud as before.
    let path = format!("{beta}/endpointslices");
    cloud.on(&path, async |_| yurt_runtime::http::json(http::StatusCode::OK, "{}"));
    hub.bearer("pod/v1", "t").get(&path).await.expect(200);
    hub.kubelet().get(&path).await.expect(200);
    // A backend behind a Service answers its own requests.
    let path = "/api/v1/namespaces/shop/services/web/proxy/";
    cloud.on(path, async |_| yurt_runtime::http::text(http::StatusCode::OK, "hello"));
    assert_eq!(hub.kubelet().get(path).await.expect(200), "hello");
}

/// A filter runs before the object becomes a row or is reduced to its metadata; other encodings are refused.
#[tokio::test]
async fn every_representation_is_filtered() {
    let cloud = cloud_with_nodes().await;
    cloud.put("services", service(Some("openyurt.io/nodepool")));
    cloud.put("endpointslices", slice("web-1", &["n1", "n3"]));
    cloud.put("endpointslices", {
        let mut orphan = slice("orphan", &["n3"]);
        orphan["metadata"]["labels"]["kubernetes.io/service-name"] = "unknown".into();
        orphan
    });
    let hub = TestHub::start(&cloud, POOL).await;
    let proxy = hub.kube_proxy();
    for accept in [
        "application/json;as=Table;g=meta.k8s.io;v=v1",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
    ] {
        let path = format!("{SLICES}?includeObject=Object");
        let body = proxy.get_with(&path, &[("accept", accept)]).await.expect(200);
        let text = String::from_utf8_lossy(&body);
        assert!(text.contains("web-1") && !text.contains("orphan"), "{accept}: {text}");
        assert!(!text.contains("n3"), "{accept}: {text}");
    }
    for accept in ["application/cbor", "application/x-unknown"] {
        let own = cloud.seen(SLICES).len();
        proxy.get_with(SLICES, &[("accept", accept)]).await.expect(406);
        assert_eq!(cloud.seen(SLICES).len(), own, "{accept}");
    }
}

#[tokio::test]
async fn filtered_get_reflects_this_nodes_write() {
    let cloud = Cloud::start().await;
    cloud.put("services", service(None));
    let hub = TestHub::start(&cloud, &[]).await;
    let path = "/api/v1/namespaces/shop/services/web";
    // The replica gets the change only when the test sends it.
    let ahead = cloud.version().parse::<u64>().unwrap() + 1;
    let metadata = json!({"namespace": "shop", "name": "web", "resourceVersion": ahead.to_string()});
    let written = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata}).to_string();
    cloud.on(path, move |_| {
        let written = written.clone();
        async move { yurt_runtime::http::json(http::StatusCode::OK, written) }
    });
    let kubelet = hub.kubelet();
    kubelet.put(path, "application/json", "{}").await.expect(200);
    let reading = kubelet.get(path);
    let storing = async {
        // The read has arrived, and waits.
        eventually("the read must be counted", async || {
            let metrics = hub.admin().get("/metrics").await.expect(200);
            let text = String::from_utf8(metrics.to_vec()).unwrap();
            text.lines()
                .any(|line| line.contains("in_flight") && line.ends_with(" 1"))
                .then_some(())
        })
        .await;
        cloud.put("services", service(None));
    };
    tokio::pin!(reading, storing);
    let read = tokio::select! {
        biased;
        read = &mut reading => read,
        () = &mut storing => reading.await,
    };
    // If this takes more than 3 s on a slow machine, the read has timed out, which shows the same.
    if read.code != 504 {
        assert_eq!(read.json()["metadata"]["resourceVersion"], ahead.to_string());
    }
}
