//! Dry runs: only the cloud can tell their outcome, and nothing of them is kept.

use http::Method;
use serde_json::{Value, json};
use yurt_runtime::http::full;

use super::client::{Answer, Client, request};
use super::cloud::Cloud;
use super::harness::TestHub;
use super::offline_tokens;
use super::offline_writes::{NODE, POD, Stored, pod, read, running};

const JSON: &str = "application/json";
const EVENTS: &str = "/api/v1/namespaces/shop/events";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

async fn send(client: &Client, method: Method, target: &str, body: &Value) -> Answer {
    let content_type = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => JSON,
    };
    let headers = [("content-type", content_type)];
    client
        .send(request(method, target, &headers, full(body.to_string())))
        .await
}

fn node() -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "u-n1", "resourceVersion": "10"}})
}

fn event() -> Value {
    json!({"kind": "Event", "apiVersion": "v1", "metadata": {"namespace": "shop", "name": "e1"},
        "involvedObject": {"kind": "Pod", "name": "web"}, "reason": "BackOff", "count": 1})
}

#[tokio::test]
async fn dry_run_is_refused_without_the_cloud_and_changes_nothing() {
    let mut cloud = Cloud::start().await;
    let at_pod = Stored::at(&cloud, POD, pod("web", "n1"));
    let _ = Stored::at(&cloud, NODE, node());
    offline_tokens::issue(&cloud, "2999-01-01T00:00:00Z");
    let hub = TestHub::start(&cloud, &[]).await;
    read(&hub, &[NODE, POD]).await;
    let kubelet = hub.kubelet();
    offline_tokens::ask(&kubelet, "u1").await.expect(201);
    offline_tokens::kept(&hub, 1).await;
    cloud.go_away().await;
    send(&kubelet, Method::POST, EVENTS, &event()).await.expect(201);
    let before = kubelet.get(POD).await.expect(200);
    let lease = json!({"metadata": {"name": "n1", "namespace": "kube-node-lease"}, "spec": {"holderIdentity": "n1"}});
    let mut whole = pod("web", "n1");
    whole["status"] = running()["status"].clone();
    for (method, target, body) in [
        (Method::PATCH, format!("{POD}/status?dryRun=All"), running()),
        (Method::PUT, format!("{POD}/status?timeout=1s&dryRun=All"), whole),
        (Method::PATCH, format!("{POD}/status?dryRun=maybe"), running()),
        (Method::PATCH, format!("{NODE}/status?%64ryRun=All"), running()),
        (Method::POST, "/api/v1/nodes?dryRun=All".to_owned(), node()),
        (Method::POST, format!("{EVENTS}?dryRun=All"), event()),
        (Method::PATCH, format!("{EVENTS}/e1?dryRun=All"), json!({"count": 2})),
        (
            Method::POST,
            format!("{}?dryRun=All", offline_tokens::TOKEN),
            offline_tokens::body("u1", &json!(["api"])),
        ),
        (Method::PUT, format!("{LEASES}/n1?dryRun=All"), lease.clone()),
        (Method::POST, format!("{LEASES}?dryRun=All"), lease),
    ] {
        let refused = send(&kubelet, method.clone(), &target, &body).await;
        let outcome = (refused.code, refused.header("retry-after").is_some());
        assert_eq!(outcome, (503, true), "{method} {target}");
    }
    let state = hub.state().await;
    assert_eq!(state["offline"]["localWrites"], json!([]));
    assert_eq!(kubelet.get(POD).await.expect(200), before);
    assert_eq!(at_pod.patches(), 0);
}

#[tokio::test]
async fn answer_to_a_dry_run_is_not_kept_as_the_object() {
    let mut cloud = Cloud::start().await;
    let _ = Stored::at(&cloud, POD, pod("web", "n1"));
    let hub = TestHub::start(&cloud, &[]).await;
    read(&hub, &[POD]).await;
    let status = format!("{POD}/status");
    cloud.on(&status, async |_| {
        let mut tried = pod("web", "n1");
        tried["status"]["phase"] = "Running".into();
        yurt_runtime::http::json(http::StatusCode::OK, tried.to_string())
    });
    let dry = format!("{status}?dryRun=All");
    send(&hub.kubelet(), Method::PATCH, &dry, &running()).await.expect(200);
    cloud.go_away().await;
    assert_eq!(hub.kubelet().get(POD).await.json()["status"]["phase"], "Pending");
}
