//! Service account tokens while the cloud is away: the last real answer, or none.

use std::fs::DirEntry;
use std::os::unix::fs::PermissionsExt as _;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use yurt_runtime::http::{full, json as json_answer, read_body};

use super::client::{Answer, Client, request};
use super::cloud::{Cloud, LONGER_THAN_WITHOUT_THE_CLOUD};
use super::harness::TestHub;

pub(super) const TOKEN: &str = "/api/v1/namespaces/shop/serviceaccounts/web/token";

pub(super) async fn ask(client: &Client, pod: &str) -> Answer {
    ask_for(client, pod, &json!(["api"])).await
}

/// A request for a token of a pod.
pub(super) fn body(pod: &str, audiences: &Value) -> Value {
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "web-1", "uid": pod});
    json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
        "spec": {"audiences": audiences, "expirationSeconds": 3607, "boundObjectRef": bound}})
}

async fn ask_for(client: &Client, pod: &str, audiences: &Value) -> Answer {
    let body = body(pod, audiences);
    let headers = [("content-type", "application/json")];
    client
        .send(request(Method::POST, TOKEN, &headers, full(body.to_string())))
        .await
}

/// Issues tokens that end at `end`, each with the uid of its pod.
pub(super) fn issue(cloud: &Cloud, end: &'static str) {
    cloud.on(TOKEN, move |request| async move {
        let body = read_body(request.into_body(), 1 << 20).await.unwrap();
        let mut answer: Value = serde_json::from_slice(&body).unwrap();
        let token = format!("token-of-{}", answer["spec"]["boundObjectRef"]["uid"].as_str().unwrap());
        answer["status"] = json!({"token": token, "expirationTimestamp": end});
        json_answer(StatusCode::CREATED, answer.to_string())
    });
}

/// Waits until the hub keeps so many tokens, and returns their files.
pub(super) async fn kept(hub: &TestHub, count: usize) -> Vec<DirEntry> {
    let is_kept = |state: &Value| state["offline"]["tokens"]["records"] == count;
    hub.until("the tokens must be kept", is_kept).await;
    let files = std::fs::read_dir(hub.folder().path().join("cache/tokens")).unwrap();
    files.map(Result::unwrap).collect()
}

#[tokio::test]
async fn last_real_token_is_returned_unchanged_to_the_node_alone() {
    let mut cloud = Cloud::start().await;
    issue(&cloud, "2999-01-01T00:00:00Z");
    let mut hub = TestHub::start(&cloud, &[]).await;
    let issued = ask(&hub.kubelet(), "u1").await.expect(201);
    ask(&hub.bearer("kubelet/v1", "pod-token"), "u2").await.expect(201);
    let files = kept(&hub, 1).await;
    let mode = files[0].metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    cloud.go_away().await;
    hub.crash().await;
    assert_eq!(ask(&hub.kubelet(), "u1").await.expect(201), issued);
    for refused in [
        ask(&hub.kubelet(), "u2").await,
        ask(&hub.bearer("kubelet/v1", "pod-token"), "u1").await,
    ] {
        assert_eq!((refused.code, refused.header("retry-after").is_some()), (503, true));
    }
}

/// The kubelet names no audience in the requests for the token volume that every pod has.
#[tokio::test]
async fn token_for_the_apiservers_own_audience_is_returned() {
    let mut cloud = Cloud::start().await;
    issue(&cloud, "2999-01-01T00:00:00Z");
    let hub = TestHub::start(&cloud, &[]).await;
    let issued = ask_for(&hub.kubelet(), "u1", &Value::Null).await.expect(201);
    kept(&hub, 1).await;
    cloud.go_away().await;
    let again = ask_for(&hub.kubelet(), "u1", &Value::Null).await.expect(201);
    assert_eq!(again, issued);
    ask(&hub.kubelet(), "u1").await.expect(503);
}

/// The request is in a queue of the cloud, or behind a slow webhook.
#[tokio::test]
async fn token_that_takes_a_healthy_cloud_longer_than_the_limit_without_it_is_issued() {
    let cloud = Cloud::start().await;
    issue(&cloud, "2999-01-01T00:00:00Z");
    cloud.delay(TOKEN, LONGER_THAN_WITHOUT_THE_CLOUD);
    let hub = TestHub::start(&cloud, &[]).await;
    ask(&hub.kubelet(), "u1").await.expect(201);
    assert_eq!(cloud.seen(TOKEN).len(), 1);
}

#[tokio::test]
async fn expired_token_is_not_returned() {
    let mut cloud = Cloud::start().await;
    issue(&cloud, "2020-01-01T00:00:00Z");
    let hub = TestHub::start(&cloud, &[]).await;
    ask(&hub.kubelet(), "u1").await.expect(201);
    cloud.go_away().await;
    ask(&hub.kubelet(), "u1").await.expect(503);
}

/// The kubelet renewed the pod's token, and the cloud was lost before the pod used it.
#[tokio::test]
async fn token_that_was_never_used_has_the_rights_of_its_service_account() {
    const SERVICES: &str = "/api/v1/services";
    let mut cloud = Cloud::start().await;
    issue(&cloud, "2999-01-01T00:00:00Z");
    cloud.allow("token-of-first", true);
    let mut hub = TestHub::start(&cloud, &[]).await;
    for (pod, audiences) in [
        ("first", Value::Null),
        ("next", Value::Null),
        ("vault", json!(["vault"])),
    ] {
        ask_for(&hub.kubelet(), pod, &audiences).await.expect(201);
    }
    kept(&hub, 3).await;
    hub.bearer("pod/v1", "token-of-first").get(SERVICES).await.expect(200);
    cloud.go_away().await;
    hub.restart().await;
    ask_for(&hub.kubelet(), "next", &Value::Null).await.expect(201);
    hub.bearer("pod/v1", "token-of-next").get(SERVICES).await.expect(200);
    let another = hub.bearer("pod/v1", "token-of-next").get("/api/v1/endpoints").await;
    for refused in [
        another,
        hub.bearer("pod/v1", "token-of-vault").get(SERVICES).await,
        hub.bearer("pod/v1", "token-of-a-stranger").get(SERVICES).await,
    ] {
        assert_eq!((refused.code, refused.header("retry-after")), (429, Some("5")));
    }
}
