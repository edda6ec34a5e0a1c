//! A hub without `--nodepool-name` is in the pool that the label of its Node names.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use yurt_apimachinery::Status;
use yurt_runtime::http::{full, json as answer_json, read_body, status_response};
use yurt_test_support::eventually;

use super::client::request;
use super::cloud::Cloud;
use super::harness::{NODE, NODE_USER, TestHub};

const NODES: &str = "/api/v1/nodes";

/// Two NodePort Services, each for one pool, and one for all.
async fn cloud() -> Cloud {
    let cloud = Cloud::start().await;
    for name in ["east", "west"] {
        let annotations = json!({"nodeport.openyurt.io/listen": name});
        let metadata = json!({"namespace": "shop", "name": name, "annotations": annotations});
        cloud.put("services", json!({"metadata": metadata, "spec": {"type": "NodePort"}}));
    }
    let metadata = json!({"namespace": "shop", "name": "all"});
    cloud.put("services", json!({"metadata": metadata, "spec": {"type": "NodePort"}}));
    cloud
}

/// The same, with the node in `pool`.
async fn cloud_with_node_in(pool: &str) -> Cloud {
    let cloud = cloud().await;
    label(&cloud, pool);
    cloud
}

/// The same, without the Node until it is created.
async fn cloud_without_node() -> Arc<Cloud> {
    let cloud = Arc::new(cloud().await);
    let path = format!("{NODES}/{NODE}");
    cloud.on(&path, async |_| {
        status_response(&Status::failure(404, "NotFound", "no such node"))
    });
    let own = cloud.clone();
    cloud.on(NODES, move |request| {
        let (cloud, path) = (own.clone(), path.clone());
        async move {
            assert_eq!(request.method(), Method::POST);
            let body = read_body(request.into_body(), 1 << 20).await.unwrap();
            let node = cloud.put("nodes", serde_json::from_slice(&body).unwrap());
            cloud.off(&path);
            cloud.off(NODES);
            answer_json(StatusCode::CREATED, node.to_string())
        }
    });
    cloud
}

fn label(cloud: &Cloud, pool: &str) {
    let labels = json!({"apps.openyurt.io/nodepool": pool});
    cloud.put("nodes", json!({"metadata": {"name": NODE, "labels": labels}}));
}

/// Registers the Node through the hub, as the kubelet does.
async fn register(hub: &TestHub, labels: &Value) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}});
    let headers = [("content-type", "application/json")];
    let post = request(Method::POST, NODES, &headers, full(node.to_string()));
    hub.kubelet().send(post).await.expect(201);
}

/// Waits until kube-proxy sees exactly these Services.
async fn until_seen(hub: &TestHub, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
    let kube_proxy = hub.kube_proxy();
    eventually("kube-proxy must see the Services of the pool", async || {
        let answer = kube_proxy.get("/api/v1/services").await;
        let items = (answer.code == 200).then(|| answer.json())?["items"].take();
        let names = items
            .as_array()?
            .iter()
            .filter_map(|item| item["metadata"]["name"].as_str());
        (names.map(str::to_owned).collect::<BTreeSet<_>>() == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn node_is_in_the_pool_of_its_label_also_after_a_restart_without_the_cloud() {
    let mut cloud = cloud_with_node_in("east").await;
    let mut hub = TestHub::start(&cloud, &[]).await;
    until_seen(&hub, &["all", "east"]).await;
    hub.wait_until_complete().await;
    cloud.go_away().await;
    hub.restart().await;
    until_seen(&hub, &["all", "east"]).await;
}

#[tokio::test]
async fn pool_of_a_node_that_has_not_registered_is_unknown_and_followed_once_it_has() {
    let cloud = cloud_without_node().await;
    let mut hub = TestHub::start(&cloud, &[]).await;
    assert_eq!(hub.state().await["nodePool"], Value::Null);
    until_seen(&hub, &["all"]).await;
    let kubelet = hub.kubelet();
    kubelet.get(&format!("{NODES}/{NODE}")).await.expect(404);
    kubelet
        .get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")
        .await
        .expect(200);
    register(&hub, &json!({"apps.openyurt.io/nodepool": "east"})).await;
    assert_eq!(hub.failed().await, "follow-pool-label");
    hub.restart().await;
    until_seen(&hub, &["all", "east"]).await;
}

#[tokio::test]
async fn hub_whose_node_registers_without_a_pool_goes_on_and_shows_what_it_hid() {
    let cloud = cloud_without_node().await;
    let mut hub = TestHub::start(&cloud, &[]).await;
    until_seen(&hub, &["all"]).await;
    let listed = hub.kube_proxy().get("/api/v1/services").await.json();
    let version = listed["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("/api/v1/services?resourceVersion={version}");
    let mut watch = hub.kube_proxy().watch(&path).await;
    register(&hub, &json!({})).await;
    let mut shown = [watch.told().await, watch.told().await];
    shown.sort();
    assert_eq!(shown, ["ADDED east", "ADDED west"]);
    assert_eq!(hub.state().await["nodePool"], "");
    let trouble = hub.state().await["troubles"].get("pool of the node").cloned();
    assert_eq!(trouble, None);
    hub.restart().await;
    until_seen(&hub, &["all", "east", "west"]).await;
}

#[tokio::test]
async fn lasting_refusal_of_the_node_is_reported() {
    let cloud = cloud_with_node_in("east").await;
    cloud.forbid_path(NODE_USER, &format!("{NODES}/{NODE}"));
    let hub = TestHub::start(&cloud, &[]).await;
    hub.until("the refusal must be reported", |state| {
        let why = state["troubles"]["pool of the node"]["why"].as_str();
        why.is_some_and(|why| why.contains("not you"))
    })
    .await;
    until_seen(&hub, &["all"]).await;
}

#[tokio::test]
async fn pool_that_the_disk_has_lost_is_read_at_the_start_or_unknown_without_the_cloud() {
    let mut cloud = cloud_with_node_in("east").await;
    let mut hub = TestHub::start(&cloud, &[]).await;
    for is_away in [false, true] {
        hub.wait_until_complete().await;
        hub.stop().await;
        hub.folder().write("root/node-pool", "damaged");
        if is_away {
            cloud.go_away().await;
        }
        hub.restart().await;
        let pool = if is_away { Value::Null } else { json!("east") };
        assert_eq!(hub.state().await["nodePool"], pool);
    }
    until_seen(&hub, &["all"]).await;
    cloud.come_back().await;
    assert_eq!(hub.failed().await, "follow-pool-label");
    hub.restart().await;
    until_seen(&hub, &["all", "east"]).await;
}

#[tokio::test]
async fn change_of_the_label_ends_the_hub_and_counts_from_the_next_start() {
    let cloud = cloud_with_node_in("east").await;
    let mut hub = TestHub::start(&cloud, &[]).await;
    until_seen(&hub, &["all", "east"]).await;
    hub.stop().await;
    label(&cloud, "west");
    hub.restart().await;
    assert_eq!(hub.failed().await, "follow-pool-label");
    hub.restart().await;
    until_seen(&hub, &["all", "west"]).await;
}

#[tokio::test]
async fn flag_wins_over_the_label() {
    let cloud = cloud_with_node_in("east").await;
    let labels = json!({"apps.openyurt.io/nodepool": "west"});
    cloud.put("nodes", json!({"metadata": {"name": "w1", "labels": labels}}));
    let hub = TestHub::start(&cloud, &["--nodepool-name=west"]).await;
    until_seen(&hub, &["all", "west"]).await;
}
