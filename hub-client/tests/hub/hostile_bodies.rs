//! Bodies that cost their reader much more than their sender: compressed ones and deep JSON.

use http::{Method, StatusCode};
use serde_json::json;
use yurt_runtime::http::{full, gzip_bytes, json as answer_json};

use super::client::{Answer, request};
use super::cloud::Cloud;
use super::harness::TestHub;

const EVENTS: &str = "/api/v1/namespaces/shop/events";
const MAPS: &str = "/api/v1/namespaces/shop/configmaps";

/// JSON nested so deep. Decoders go down 127 levels, and 8-bit counters of levels 255.
fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

fn event(padding: &str) -> String {
    format!(
        r#"{{"kind":"Event","apiVersion":"v1","metadata":{{"namespace":"shop","name":"e"}},"count":1,"padding":{padding}}}"#
    )
}

/// A hub that keeps events itself, because the cloud is away.
async fn hub_on_its_own(cloud: &mut Cloud) -> TestHub {
    let hub = TestHub::start(cloud, &[]).await;
    cloud.go_away().await;
    hub.until("the loss", |state| state["cloudReachable"] == false).await;
    hub
}

async fn post(hub: &TestHub, headers: &[(&str, &str)], body: impl Into<bytes::Bytes>) -> Answer {
    hub.kubelet()
        .send(request(Method::POST, EVENTS, headers, full(body)))
        .await
}

#[tokio::test]
async fn body_of_a_request_is_not_decompressed() {
    let mut cloud = Cloud::start().await;
    let hub = hub_on_its_own(&mut cloud).await;
    let zipped = gzip_bytes(event(&format!("\"{}\"", "x".repeat(16 << 20))).as_bytes());
    assert!(zipped.len() < 64 << 10, "{} bytes", zipped.len());
    let headers = [("content-type", "application/json"), ("content-encoding", "gzip")];
    post(&hub, &headers, zipped).await.expect(400);
    assert_eq!(hub.state().await["offline"]["events"]["records"], 0);
}

#[tokio::test]
async fn deep_body_of_a_request_is_refused() {
    let mut cloud = Cloud::start().await;
    let hub = hub_on_its_own(&mut cloud).await;
    let headers = [("content-type", "application/json")];
    for depth in [200, 30_000] {
        post(&hub, &headers, event(&nested(depth))).await.expect(400);
    }
    post(&hub, &headers, event(&nested(100))).await.expect(201);
}

#[tokio::test]
async fn deep_object_of_the_cloud_is_not_cached_and_the_hub_goes_on() {
    let cloud = Cloud::start().await;
    cloud.put("configmaps", json!({"metadata": {"namespace": "shop", "name": "good"}}));
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(MAPS, async |_| {
        let deep = format!(
            r#"{{"metadata":{{"namespace":"shop","name":"deep","resourceVersion":"5"}},"data":{}}}"#,
            nested(200)
        );
        let list = format!(
            r#"{{"kind":"ConfigMapList","apiVersion":"v1","metadata":{{"resourceVersion":"6"}},"items":[{deep}]}}"#
        );
        answer_json(StatusCode::OK, list)
    });
    // The answer is the cloud's: the hub cannot render it.
    drop(hub.component("flanneld").get(MAPS).await);
    hub.until("the selection must be refused", |state| {
        let trouble = state["troubles"].to_string();
        state["cache"]["selections"][MAPS]["complete"] == false && trouble.contains("recursion limit exceeded")
    })
    .await;
    cloud.off(MAPS);
    hub.until("the selection must be complete", |state| {
        state["cache"]["selections"][MAPS]["complete"] == true
    })
    .await;
    assert_eq!(hub.component("flanneld").get(MAPS).await.names(), ["good"]);
}
