//! Service account tokens while the cloud is away: the last real answer, or none.

use std::os::unix::fs::PermissionsExt as _;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use yurt_runtime::http::{full, json as json_answer, read_body};

use super::client::{Answer, Client, request};
use super::cloud::Cloud;
use super::harness::TestHub;
use yurt_test_support::eventually;

const TOKEN: &str = "/api/v1/namespaces/shop/serviceaccounts/web/token";

async fn ask(client: &Client, pod: &str) -> Answer {
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "web-1", "uid": pod});
    let body = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
        "spec": {"audiences": ["api"], "expirationSeconds": 3607, "boundObjectRef": bound}});
    let headers = [("content-type", "application/json")];
    client
        .send(request(Method::POST, TOKEN, &headers, full(body.to_string())))
        .await
}

/// Issues tokens that end at `end`, each with the uid of its pod.
fn issue(cloud: &Cloud, end: &'static str) {
    cloud.on(TOKEN, move |request| async move {
        let body = read_body(request.into_body(), 1 << 20).await.unwrap();
        let mut answer: Value = serde_json::from_slice(&body).unwrap();
        let token = format!("token-of-{}", answer["spec"]["boundObjectRef"]["uid"].as_str().unwrap());
        answer["status"] = json!({"token": token, "expirationTimestamp": end});
        json_answer(StatusCode::CREATED, answer.to_string())
    });
}

#[tokio::test]
async fn last_real_token_is_returned_unchanged_to_the_node_alone() {
    let mut cloud = Cloud::start().await;
    issue(&cloud, "2999-01-01T00:00:00Z");
    let mut hub = TestHub::start(&cloud, &[]).await;
    let issued = ask(&hub.kubelet(), "u1").await.expect(201);
    ask(&hub.bearer("kubelet/v1", "pod-token"), "u2").await.expect(201);
    let folder = hub.folder().path().join("cache/tokens");
    let files = || {
        let files = std::fs::read_dir(&folder).into_iter().flatten().map(Result::unwrap);
        // Not those that are being written.
        let is_whole = |file: &std::fs::DirEntry| !file.file_name().to_string_lossy().starts_with('.');
        files.filter(is_whole).collect::<Vec<_>>()
    };
    eventually("the token must be kept", async || (files().len() == 1).then_some(())).await;
    let mode = files()[0].metadata().unwrap().permissions().mode() & 0o777;
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

#[tokio::test]
async fn expired_token_is_not_returned() {
    let mut cloud = Cloud::start().await;
    issue(&cloud, "2020-01-01T00:00:00Z");
    let hub = TestHub::start(&cloud, &[]).await;
    ask(&hub.kubelet(), "u1").await.expect(201);
    cloud.go_away().await;
    ask(&hub.kubelet(), "u1").await.expect(503);
}
