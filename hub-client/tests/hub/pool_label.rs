//! A hub without `--nodepool-name` is in the pool that the label of its Node names.

use std::collections::BTreeSet;

use serde_json::json;
use yurt_test_support::eventually;

use super::cloud::Cloud;
use super::harness::{NODE, TestHub};

/// Two NodePort Services, each for one pool, and the node in `pool`.
async fn cloud_with_node_in(pool: &str) -> Cloud {
    let cloud = Cloud::start().await;
    for name in ["east", "west"] {
        let annotations = json!({"nodeport.openyurt.io/listen": name});
        let metadata = json!({"namespace": "shop", "name": name, "annotations": annotations});
        cloud.put("services", json!({"metadata": metadata, "spec": {"type": "NodePort"}}));
    }
    label(&cloud, pool);
    cloud
}

fn label(cloud: &Cloud, pool: &str) {
    let labels = json!({"apps.openyurt.io/nodepool": pool});
    cloud.put("nodes", json!({"metadata": {"name": NODE, "labels": labels}}));
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
    until_seen(&hub, &["east"]).await;
    hub.wait_until_complete().await;
    cloud.go_away().await;
    hub.restart().await;
    until_seen(&hub, &["east"]).await;
}

#[tokio::test]
async fn change_of_the_label_ends_the_hub_and_counts_from_the_next_start() {
    let cloud = cloud_with_node_in("east").await;
    let mut hub = TestHub::start(&cloud, &[]).await;
    until_seen(&hub, &["east"]).await;
    hub.stop().await;
    label(&cloud, "west");
    hub.restart().await;
    assert_eq!(hub.failed().await, "follow-pool-label");
    hub.restart().await;
    until_seen(&hub, &["west"]).await;
}

#[tokio::test]
async fn flag_wins_over_the_label() {
    let cloud = cloud_with_node_in("east").await;
    let labels = json!({"apps.openyurt.io/nodepool": "west"});
    cloud.put("nodes", json!({"metadata": {"name": "w1", "labels": labels}}));
    let hub = TestHub::start(&cloud, &["--nodepool-name=west"]).await;
    until_seen(&hub, &["west"]).await;
}
