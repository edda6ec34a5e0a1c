//! Endpoints of this node's pods, which get other addresses while the cloud is away.

use serde_json::{Value, json};

use super::client::Watch;
use super::cloud::Cloud;
use super::harness::TestHub;
use super::offline_writes::{Stored, patch, read, until_sent};

const POD: &str = "/api/v1/namespaces/shop/pods/web";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const ENDPOINTS: &str = "/api/v1/endpoints";

fn pod(version: &str) -> Value {
    let metadata = json!({"namespace": "shop", "name": "web", "uid": "u-web", "resourceVersion": version});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}], "conditions": [{"type": "Ready", "status": "True"}]}})
}

/// A status as a strategic merge patch, in which addresses have the merge key `ip`.
fn status(ip: &str, is_ready: bool) -> Value {
    let ready = if is_ready { "True" } else { "False" };
    json!({"phase": "Running", "podIP": ip, "podIPs": [{"$patch": "replace"}, {"ip": ip}], "conditions": [{"type": "Ready", "status": ready}]})
}

/// A slice of Service web: this pod with that address, and a pod of another node.
fn slice(ip: &str) -> Value {
    let endpoint = |ip: &str, node: &str, uid: &str| {
        let pod = json!({"kind": "Pod", "namespace": "shop", "name": uid, "uid": uid});
        json!({"addresses": [ip], "conditions": {"ready": true, "serving": true, "terminating": false}, "nodeName": node, "targetRef": pod})
    };
    let labels = json!({"kubernetes.io/service-name": "web"});
    json!({"metadata": {"namespace": "shop", "name": "web-1", "labels": labels}, "addressType": "IPv4",
        "endpoints": [endpoint(ip, "n1", "u-web"), endpoint("10.1.1.1", "n2", "u-far")], "ports": [{"port": 80}]})
}

fn endpoints(ip: &str) -> Value {
    let address = json!({"ip": ip, "nodeName": "n1", "targetRef": {"kind": "Pod", "uid": "u-web"}});
    let subset = json!({"addresses": [address], "ports": [{"port": 80}]});
    json!({"metadata": {"namespace": "shop", "name": "web"}, "subsets": [subset]})
}

/// The addresses of a slice, those that are not ready with a mark.
fn addresses(slice: &Value) -> Vec<String> {
    let one = |endpoint: &Value| {
        let mark = if endpoint["conditions"]["ready"] == true {
            ""
        } else {
            "!"
        };
        format!("{mark}{}", endpoint["addresses"][0].as_str().unwrap())
    };
    slice["endpoints"].as_array().unwrap().iter().map(one).collect()
}

async fn listed(hub: &TestHub, component: &str) -> Vec<String> {
    addresses(&hub.component(component).get(SLICES).await.json()["items"][0])
}

/// Opens a watch at the present state, as a client does after its list.
async fn watch(hub: &TestHub, component: &str, path: &str) -> Watch {
    let client = hub.component(component);
    let list = client.get(path).await.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    client.watch(&format!("{path}?resourceVersion={version}")).await
}

/// Reads events up to a slice with these addresses; a restarted hub sends once more what it may have shown otherwise.
async fn until_told(watch: &mut Watch, expected: &[&str]) {
    loop {
        let event = watch.next().await.unwrap();
        assert_eq!(event.kind, "MODIFIED");
        if addresses(&event.object) == expected {
            return;
        }
    }
}

async fn report(hub: &TestHub, status: Value) {
    let body = json!({"metadata": {"uid": "u-web"}, "status": status});
    patch(&hub.kubelet(), POD, &body).await.expect(200);
}

/// OpenYurt shows the addresses from before the reboot until the cloud is back.
#[tokio::test]
async fn pod_that_got_another_address_without_the_cloud_is_reached_there() {
    let mut cloud = Cloud::start().await;
    cloud.put(
        "services",
        json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {}}),
    );
    let original = cloud.put("endpointslices", slice("10.1.0.1"));
    cloud.put("endpoints", endpoints("10.1.0.1"));
    let at_pod = Stored::at(&cloud, POD, pod(&cloud.version()));
    let mut hub = TestHub::start(&cloud, &[]).await;
    read(&hub, &[POD]).await;
    assert_eq!(hub.kube_proxy().get(SLICES).await.json()["items"][0], original);
    cloud.go_away().await;
    hub.crash().await;
    let mut proxy = watch(&hub, "kube-proxy", SLICES).await;
    let mut dns = watch(&hub, "coredns", SLICES).await;
    let mut older = watch(&hub, "kube-proxy", ENDPOINTS).await;
    report(&hub, status("10.1.0.9", false)).await;
    for watch in [&mut proxy, &mut dns] {
        until_told(watch, &["!10.1.0.9", "10.1.1.1"]).await;
    }
    loop {
        let subset = &older.next().await.unwrap().object["subsets"][0];
        if subset["notReadyAddresses"][0]["ip"] == "10.1.0.9" {
            assert_eq!(subset["addresses"], Value::Null);
            break;
        }
    }
    report(&hub, status("10.1.0.9", true)).await;
    until_told(&mut proxy, &["10.1.0.9", "10.1.1.1"]).await;
    assert_eq!(listed(&hub, "kube-proxy").await, ["10.1.0.9", "10.1.1.1"]);
    assert_eq!(
        older.next().await.unwrap().object["subsets"],
        endpoints("10.1.0.9")["subsets"]
    );

    hub.crash().await;
    assert_eq!(
        listed(&hub, "kube-proxy").await,
        ["10.1.0.9", "10.1.1.1"],
        "the status is on the disk"
    );
    assert_eq!(listed(&hub, "coredns").await, ["10.1.0.9", "10.1.1.1"]);
    let mut proxy = watch(&hub, "kube-proxy", SLICES).await;
    cloud.come_back().await;
    until_sent(&hub).await;
    assert_eq!(at_pod.patches(), 1);
    assert_eq!(
        listed(&hub, "kube-proxy").await,
        ["10.1.0.9", "10.1.1.1"],
        "no slice knows of it yet"
    );
    // The controller of the cloud, whose slice is later than the status.
    cloud.put(
        "configmaps",
        json!({"metadata": {"namespace": "shop", "name": "another-change"}}),
    );
    let changed = cloud.put("endpointslices", slice("10.1.0.77"));
    until_told(&mut proxy, &["10.1.0.77", "10.1.1.1"]).await;
    assert_eq!(hub.kube_proxy().get(SLICES).await.json()["items"][0], changed);
}

/// A pod that has ended, or has no network yet, is no endpoint; the address of another pod is not touched.
#[tokio::test]
async fn pod_without_an_address_is_no_endpoint() {
    let mut cloud = Cloud::start().await;
    cloud.put(
        "services",
        json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {}}),
    );
    cloud.put("endpointslices", slice("10.1.0.1"));
    let _ = Stored::at(&cloud, POD, pod(&cloud.version()));
    let hub = TestHub::start(&cloud, &[]).await;
    read(&hub, &[POD]).await;
    let mut proxy = watch(&hub, "kube-proxy", SLICES).await;
    cloud.go_away().await;
    report(&hub, json!({"phase": "Running", "podIP": null, "podIPs": null})).await;
    until_told(&mut proxy, &["10.1.1.1"]).await;
    report(&hub, status("10.1.0.3", true)).await;
    until_told(&mut proxy, &["10.1.0.3", "10.1.1.1"]).await;
    report(&hub, json!({"phase": "Failed"})).await;
    until_told(&mut proxy, &["10.1.1.1"]).await;
}

/// The kubelet writes once more before the cloud's controllers have answered the first status.
#[tokio::test]
async fn status_written_at_the_cloud_replaces_the_one_that_was_sent_before_it() {
    let mut cloud = Cloud::start().await;
    cloud.put(
        "services",
        json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {}}),
    );
    cloud.put("endpointslices", slice("10.1.0.1"));
    let at_pod = Stored::at(&cloud, POD, pod(&cloud.version()));
    let hub = TestHub::start(&cloud, &[]).await;
    read(&hub, &[POD]).await;
    let mut proxy = watch(&hub, "kube-proxy", SLICES).await;
    cloud.go_away().await;
    report(&hub, status("10.1.0.9", false)).await;
    until_told(&mut proxy, &["!10.1.0.9", "10.1.1.1"]).await;
    cloud.come_back().await;
    until_sent(&hub).await;
    report(&hub, status("10.1.0.10", true)).await;
    assert_eq!(at_pod.status()["podIP"], "10.1.0.10");
    until_told(&mut proxy, &["10.1.0.10", "10.1.1.1"]).await;
    cloud.go_away().await;
    assert_eq!(listed(&hub, "kube-proxy").await, ["10.1.0.10", "10.1.1.1"]);
}
