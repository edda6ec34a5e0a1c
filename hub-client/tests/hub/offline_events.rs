//! Events that the node writes while the cloud is away reach it later, once each and with their last count.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Value, json};
use yurt_apimachinery::Status;
use yurt_patch::apply_merge_patch;
use yurt_runtime::http::{Body, full, json as json_answer, read_body, status_response};

use super::client::{Answer, Client, request};
use super::cloud::Cloud;
use super::harness::TestHub;

pub(super) const EVENTS: &str = "/api/v1/namespaces/shop/events";

/// Events at the cloud, by name.
#[derive(Clone, Default)]
struct Stored {
    events: Arc<Mutex<BTreeMap<String, Value>>>,
    writes: Arc<Mutex<u32>>,
}

// === impl Stored ===

impl Stored {
    fn at(cloud: &Cloud, names: &[&str]) -> Self {
        let stored = Self::default();
        let paths = names.iter().map(|name| format!("{EVENTS}/{name}"));
        for path in paths.chain([EVENTS.to_owned()]) {
            let script = stored.clone();
            cloud.on(&path, move |request| script.clone().answer(request));
        }
        stored
    }

    async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = read_body(body, 1 << 20).await.unwrap();
        let mut events = self.events.lock();
        let name = if head.method == Method::POST {
            let event: Value = serde_json::from_slice(&body).unwrap();
            let name = event["metadata"]["name"].as_str().unwrap().to_owned();
            if events.contains_key(&name) {
                return status_response(&Status::failure(409, "AlreadyExists", "exists"));
            }
            events.insert(name.clone(), event);
            name
        } else {
            let name = head.uri.path().rsplit('/').next().unwrap().to_owned();
            let Some(event) = events.get_mut(&name) else {
                return status_response(&Status::failure(404, "NotFound", "none"));
            };
            let before = event.clone();
            apply_merge_patch(event, &body).unwrap();
            if *event == before {
                // No write, as in kube-apiserver.
                return json_answer(StatusCode::OK, before.to_string());
            }
            name
        };
        *self.writes.lock() += 1;
        json_answer(StatusCode::CREATED, events[&name].to_string())
    }

    fn count(&self, name: &str) -> Value {
        self.events.lock()[name]["count"].clone()
    }
}

pub(super) async fn create(client: &Client, name: &str) -> Answer {
    let event = json!({"kind": "Event", "apiVersion": "v1", "metadata": {"namespace": "shop", "name": name},
        "involvedObject": {"kind": "Pod", "name": "web"}, "reason": "BackOff", "count": 1});
    let headers = [("content-type", "application/json")];
    client
        .send(request(Method::POST, EVENTS, &headers, full(event.to_string())))
        .await
}

async fn count(client: &Client, name: &str, count: u32) -> Answer {
    let headers = [("content-type", "application/strategic-merge-patch+json")];
    let body = json!({"count": count}).to_string();
    client
        .send(request(
            Method::PATCH,
            &format!("{EVENTS}/{name}"),
            &headers,
            full(body),
        ))
        .await
}

pub(super) async fn until_kept(hub: &TestHub, events: u64) {
    hub.until("the events", |state| state["offline"]["events"]["records"] == events)
        .await;
}

#[tokio::test]
async fn events_of_an_outage_reach_the_cloud_once_with_their_last_count() {
    let mut cloud = Cloud::start().await;
    let stored = Stored::at(&cloud, &["web.1", "web.2", "web.3"]);
    let mut hub = TestHub::start(&cloud, &[]).await;
    create(&hub.kubelet(), "web.1").await.expect(201);
    cloud.go_away().await;
    count(&hub.kubelet(), "web.1", 5).await.expect(404);
    for name in ["web.1", "web.2", "web.3"] {
        let answer = create(&hub.kubelet(), name).await;
        assert_eq!((answer.code, &answer.json()["metadata"]["name"]), (201, &json!(name)));
    }
    count(&hub.kubelet(), "web.1", 5).await.expect(200);
    let answer = count(&hub.kubelet(), "web.2", 7).await;
    assert_eq!(
        (answer.code, &answer.json()["count"], &answer.json()["reason"]),
        (200, &json!(7), &json!("BackOff"))
    );
    until_kept(&hub, 3).await;
    hub.restart().await;
    until_kept(&hub, 3).await;
    cloud.come_back().await;
    until_kept(&hub, 0).await;
    assert_eq!(
        ["web.1", "web.2", "web.3"].map(|name| stored.count(name)),
        [json!(5), json!(7), json!(1)]
    );
    assert_eq!(
        *stored.writes.lock(),
        4,
        "one before the outage, one of each afterwards"
    );
    hub.restart().await;
    assert_eq!(hub.state().await["offline"]["events"]["records"], 0);
}

#[tokio::test]
async fn event_that_a_crash_brings_back_does_not_lower_the_count_at_the_cloud() {
    let mut cloud = Cloud::start().await;
    let stored = Stored::at(&cloud, &["web.1"]);
    let mut hub = TestHub::start(&cloud, &[]).await;
    cloud.go_away().await;
    create(&hub.kubelet(), "web.1").await.expect(201);
    // A stop stores it.
    hub.restart().await;
    cloud.come_back().await;
    until_kept(&hub, 0).await;
    count(&hub.kubelet(), "web.1", 9).await.expect(201);
    let writes = *stored.writes.lock();
    hub.crash().await;
    until_kept(&hub, 0).await;
    assert_eq!((stored.count("web.1"), *stored.writes.lock()), (json!(9), writes));
}

#[tokio::test]
async fn only_the_nodes_events_are_kept() {
    let mut cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.go_away().await;
    create(&hub.bearer("kubelet/v1", "pod-token"), "web.1")
        .await
        .expect(503);
    create(&hub.kubelet(), "../web").await.expect(400);
    create(&hub.kubelet(), &"x".repeat(70 << 10)).await.expect(413);
    assert_eq!(hub.state().await["offline"]["events"]["records"], 0);
}
