//! Condition `Autonomy` of the Node.

use http::StatusCode;
use serde_json::{Value, json};
use yurt_runtime::http::json as json_answer;
use yurt_test_support::eventually;

use super::cloud::Cloud;
use super::harness::TestHub;
use super::offline_writes::{Stored, until_sent};

const NODE: &str = "/api/v1/nodes/n1";
/// The kubelet's list of its own Node.
const OWN: &str = "/api/v1/nodes?fieldSelector=metadata.name%3Dn1";
const AUTONOMY: &str = "node.beta.openyurt.io/autonomy";

fn node(annotations: Value, conditions: Value) -> Value {
    let metadata = json!({"name": "n1", "uid": "u-n1", "resourceVersion": "10", "annotations": annotations});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"conditions": conditions}})
}

fn ready() -> Value {
    json!({"type": "Ready", "status": "True"})
}

/// The status of the condition; empty if there is none.
fn autonomy(status: &Value) -> String {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let found = conditions.find(|condition| condition["type"] == "Autonomy");
    found.map_or(String::new(), |found| found["status"].as_str().unwrap().to_owned())
}

async fn until(at_node: &Stored, expected: &str) {
    let what = format!("the cloud must have Autonomy {expected}");
    eventually(&what, async || (autonomy(&at_node.status()) == expected).then_some(())).await;
}

#[tokio::test]
async fn condition_of_the_node_follows_its_annotation() {
    let cloud = Cloud::start().await;
    cloud.put("nodes", node(json!({AUTONOMY: "true"}), json!([ready()])));
    let at_node = Stored::at(&cloud, NODE, node(json!({AUTONOMY: "true"}), json!([ready()])));
    let hub = TestHub::start(&cloud, &[]).await;
    hub.kubelet().get(OWN).await.expect(200);
    until(&at_node, "True").await;
    assert_eq!(at_node.status()["conditions"][0], ready(), "the kubelet's own stay");
    until_sent(&hub).await;
    let is = json!({"type": "Autonomy", "status": "True"});
    cloud.put("nodes", node(json!({AUTONOMY: "false"}), json!([ready(), is])));
    until(&at_node, "False").await;
    assert_eq!(at_node.patches(), 2);
}

#[tokio::test]
async fn condition_is_kept_over_a_restart_without_the_cloud() {
    let mut cloud = Cloud::start().await;
    cloud.put("nodes", node(json!({AUTONOMY: "true"}), json!([ready()])));
    cloud.on(NODE, async |_| json_answer(StatusCode::SERVICE_UNAVAILABLE, "{}"));
    let mut hub = TestHub::start(&cloud, &[]).await;
    hub.kubelet().get(OWN).await.expect(200);
    let folder = hub.folder().path().join("cache/local-writes");
    let is_whole = |file: &std::fs::DirEntry| !file.file_name().to_string_lossy().starts_with('.');
    let files = || std::fs::read_dir(&folder).into_iter().flatten().map(Result::unwrap);
    eventually("the condition must be on the disk", async || {
        files().any(|file| is_whole(&file)).then_some(())
    })
    .await;
    cloud.go_away().await;
    hub.crash().await;
    let seen = hub.kubelet().get(NODE).await;
    assert_eq!((seen.code, autonomy(&seen.json()["status"]).as_str()), (200, "True"));
    let at_node = Stored::at(&cloud, NODE, node(json!({AUTONOMY: "true"}), json!([ready()])));
    cloud.come_back().await;
    until(&at_node, "True").await;
    until_sent(&hub).await;
    assert_eq!(at_node.patches(), 1);
}
