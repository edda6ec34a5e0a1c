//! Membership of the pool: the NodePool's nodes, otherwise the labels of the Nodes.

use serde_json::{Value, json};

use super::cloud::Cloud;
use super::harness::TestHub;

fn node(cloud: &Cloud, name: &str) {
    cloud.put(
        "nodes",
        json!({"metadata": {"name": name, "labels": {"apps.openyurt.io/nodepool": "p"}}}),
    );
}

fn node_pool(cloud: &Cloud, name: &str, nodes: &[&str]) {
    let pool = json!({
        "apiVersion": "apps.openyurt.io/v1beta2", "kind": "NodePool",
        "metadata": {"name": name}, "status": {"nodes": nodes},
    });
    cloud.put("nodepools", pool);
}

fn members(state: &Value) -> u64 {
    state["collections"]["members"]["objects"].as_u64().unwrap()
}

#[tokio::test]
async fn node_pool_wins_over_labels_while_it_names_somebody() {
    let cloud = Cloud::start().await;
    node(&cloud, "n1");
    node_pool(&cloud, "other", &["n7", "n8"]);
    node_pool(&cloud, "p", &["n1", "n2", "n3"]);
    let hub = TestHub::start(&cloud, &["--nodepool-name=p"]).await;
    assert_eq!(members(&hub.state().await), 3);
    assert!(cloud.seen("/api/v1/nodes").is_empty(), "the hub does not request Nodes");
    node_pool(&cloud, "p", &["n1", "n2", "n3", "n4"]);
    hub.until("a node joins", |state| members(state) == 4).await;
    node_pool(&cloud, "p", &["n4"]);
    hub.until("three leave", |state| members(state) == 1).await;
    node(&cloud, "n2");
    node_pool(&cloud, "p", &[]);
    // n4 has left, because only the NodePool named it; n1 is back.
    hub.until("the labels decide", |state| members(state) == 2).await;
    cloud.delete("nodes", "", "n1");
    cloud.delete("nodes", "", "n2");
    // No label is left: that is no valid membership.
    let state = hub
        .until("the loss of all labels is noticed", |state| {
            state["troubles"]["labels of the pool's Nodes"]["why"]
                .as_str()
                .is_some_and(|why| why.contains("no Node"))
        })
        .await;
    let copy = &state["collections"]["members"];
    assert_eq!(
        (members(&state), &copy["complete"], &copy["generation"]),
        (1, &json!(true), &json!(0))
    );
    node(&cloud, "n3");
    hub.until("the labels decide again", |state| {
        members(state) == 1 && state["troubles"] == json!({})
    })
    .await;
}

#[tokio::test]
async fn pool_without_any_labelled_node_is_not_known() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start_at_once(&cloud, &["--nodepool-name=p"]).await;
    let state = hub
        .until("the lack of labels is noticed", |state| {
            state["troubles"]["members"]["why"]
                .as_str()
                .is_some_and(|why| why.contains("no Node"))
        })
        .await;
    assert_eq!(state["collections"]["members"]["complete"], false);
    node(&cloud, "n1");
    hub.until("a node joins", |state| members(state) == 1).await;
}

#[tokio::test]
async fn without_a_node_pool_the_labels_decide() {
    let cloud = Cloud::start().await;
    node(&cloud, "n1");
    node_pool(&cloud, "other", &["n7", "n8"]);
    let hub = TestHub::start(&cloud, &["--nodepool-name=p"]).await;
    assert_eq!(members(&hub.state().await), 1);
    node(&cloud, "n2");
    hub.until("a node joins", |state| members(state) == 2).await;
}

#[tokio::test]
async fn node_pool_that_comes_later_is_noticed_at_once() {
    let cloud = Cloud::start().await;
    node(&cloud, "n1");
    let hub = TestHub::start(&cloud, &["--nodepool-name=p"]).await;
    assert_eq!(members(&hub.state().await), 1);
    // The watch on the Nodes goes on for minutes.
    node_pool(&cloud, "other", &["n7", "n8"]);
    node_pool(&cloud, "p", &[]);
    node_pool(&cloud, "p", &["n1", "n2", "n3"]);
    hub.until("the NodePool decides", |state| members(state) == 3).await;
    cloud.delete("nodepools", "", "p");
    hub.until("the labels decide again", |state| members(state) == 1).await;
    node_pool(&cloud, "p", &["n1", "n4"]);
    hub.until("the NodePool decides again", |state| members(state) == 2)
        .await;
}
