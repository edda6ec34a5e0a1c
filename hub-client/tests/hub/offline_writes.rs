//! Statuses that the kubelet writes while the cloud is away: accepted, durable, and at the cloud once it is back.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Value, json};
use yurt_apimachinery::Status;
use yurt_apimachinery::time::Time;
use yurt_codec::{protobuf, schema};
use yurt_patch::{apply_merge_patch, apply_strategic_merge_patch, read_strategic_merge_patch};
use yurt_runtime::Clock;
use yurt_runtime::http::{Body, full, json as json_answer, read_body, status_response};
use yurt_test_support::eventually;

use super::client::{Answer, Client, request};
use super::cloud::{Cloud, LONGER_THAN_WITHOUT_THE_CLOUD};
use super::harness::TestHub;

const NODES: &str = "/api/v1/nodes";
pub(super) const NODE: &str = "/api/v1/nodes/n1";
const JSON: &str = "application/json";
pub(super) const POD: &str = "/api/v1/namespaces/shop/pods/web";
pub(super) const OWN_NODE: &str = "/api/v1/nodes?fieldSelector=metadata.name%3Dn1";
const OWN_PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// An object at the cloud with a status subresource.
#[derive(Clone)]
pub(super) struct Stored {
    object: Arc<Mutex<Value>>,
    patches: Arc<Mutex<Vec<Value>>>,
    /// Number of patches that get 409 first.
    conflicts: Arc<Mutex<u32>>,
    /// Number of reads that get 403 first.
    denials: Arc<Mutex<u32>>,
}

// === impl Stored ===

impl Stored {
    pub(super) fn at(cloud: &Cloud, path: &str, object: Value) -> Self {
        let stored = Self {
            object: Arc::new(Mutex::new(object)),
            patches: Arc::default(),
            conflicts: Arc::default(),
            denials: Arc::default(),
        };
        for path in [path.to_owned(), format!("{path}/status")] {
            let script = stored.clone();
            cloud.on(&path, move |request| script.clone().answer(request));
        }
        stored
    }

    async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        if head.method == Method::GET {
            let mut denials = self.denials.lock();
            if *denials > 0 {
                *denials -= 1;
                return status_response(&Status::failure(403, "Forbidden", "no relationship found"));
            }
            return json_answer(StatusCode::OK, self.object.lock().to_string());
        }
        let body = read_body(body, 1 << 20).await.unwrap();
        let patch: Value = serde_json::from_slice(&body).unwrap();
        let mut object = self.object.lock();
        let mut conflicts = self.conflicts.lock();
        let named = &patch["metadata"]["resourceVersion"];
        if *conflicts > 0 || (named.is_string() && *named != object["metadata"]["resourceVersion"]) {
            *conflicts = conflicts.saturating_sub(1);
            return status_response(&Status::failure(409, "Conflict", "changed"));
        }
        if head.headers["content-type"] == STRATEGIC {
            let kind = object["kind"].as_str().unwrap().to_owned();
            let schema = schema::find("", "v1", &kind).unwrap();
            apply_strategic_merge_patch(&mut object, read_strategic_merge_patch(&body).unwrap(), schema).unwrap();
        } else {
            apply_merge_patch(&mut object, &body).unwrap();
        }
        next_version(&mut object);
        self.patches.lock().push(patch);
        json_answer(StatusCode::OK, object.to_string())
    }

    /// Changes the object, as another client of the cloud does.
    pub(super) fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut object = self.object.lock();
        change(&mut object);
        next_version(&mut object);
    }

    pub(super) fn status(&self) -> Value {
        self.object.lock()["status"].clone()
    }

    pub(super) fn patches(&self) -> usize {
        self.patches.lock().len()
    }
}

fn next_version(object: &mut Value) {
    let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    object["metadata"]["resourceVersion"] = (version + 1).to_string().into();
}

fn node() -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "u-n1", "resourceVersion": "10"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

pub(super) fn pod(name: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": name, "uid": format!("u-{name}"), "resourceVersion": "20"},
        "spec": {"nodeName": node}, "status": {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]}})
}

/// The present as the kubelet writes it.
fn now() -> String {
    Time::from_unix(Clock::system().unix().secs).to_string()
}

pub(super) async fn patch(client: &Client, path: &str, body: &Value) -> Answer {
    let headers = [("content-type", STRATEGIC)];
    client
        .send(request(
            Method::PATCH,
            &format!("{path}/status"),
            &headers,
            full(body.to_string()),
        ))
        .await
}

pub(super) fn running() -> Value {
    json!({"metadata": {"uid": "u-web"}, "status": {"phase": "Running", "podIP": "10.0.0.7",
        "conditions": [{"type": "Ready", "status": "True"}]}})
}

/// Lets the kubelet read so many objects, and waits until they are kept.
pub(super) async fn read(hub: &TestHub, paths: &[&str]) {
    for path in paths {
        hub.kubelet().get(path).await.expect(200);
    }
    hub.until("the objects must be kept", |state| {
        state["offline"]["answers"]["records"] == paths.len()
    })
    .await;
}

pub(super) async fn until_sent(hub: &TestHub) {
    hub.until("the cloud must have all local writes", |state| {
        state["offline"]["localWrites"] == json!([])
    })
    .await;
}

#[tokio::test]
async fn statuses_written_without_the_cloud_reach_it_once_also_after_a_crash() {
    let mut cloud = Cloud::start().await;
    let (at_node, at_pod) = (
        Stored::at(&cloud, NODE, node()),
        Stored::at(&cloud, POD, pod("web", "n1")),
    );
    let mut hub = TestHub::start(&cloud, &[]).await;
    read(&hub, &[NODE, POD]).await;
    cloud.go_away().await;
    let kubelet = hub.kubelet();
    let pressure = json!({"type": "DiskPressure", "status": "True"});
    let report = json!({"status": {"phase": "Running", "conditions": [pressure]}});
    patch(&kubelet, NODE, &report).await.expect(200);
    patch(&kubelet, POD, &running()).await.expect(200);
    hub.crash().await;
    let kubelet = hub.kubelet();
    let answer = patch(&kubelet, POD, &json!({"status": {"startTime": "2026-01-01T00:00:00Z"}})).await;
    let expected = json!({"phase": "Running", "podIP": "10.0.0.7", "startTime": "2026-01-01T00:00:00Z",
        "conditions": [{"type": "Ready", "status": "True"}]});
    assert_eq!((answer.code, &answer.json()["status"]), (200, &expected));
    let own = kubelet.get(NODE).await.json();
    assert_eq!(own["status"]["phase"], "Running", "the kubelet sees its own write");
    let listed = json!([{"type": "Ready", "status": "True"}]);
    assert_eq!(own["status"]["conditions"], listed, "and the conditions that it lists");
    assert_eq!(hub.state().await["offline"]["localWrites"], json!(["/n1", "shop/web"]));
    at_pod.change(|pod| pod["status"]["nominatedNodeName"] = "n9".into());
    at_node.change(|node| node["status"]["conditions"][0]["status"] = "Unknown".into());
    cloud.come_back().await;
    until_sent(&hub).await;
    let mut merged = expected;
    merged["nominatedNodeName"] = "n9".into();
    assert_eq!(at_pod.status(), merged);
    let conditions = json!([{"type": "Ready", "status": "Unknown"}, {"type": "DiskPressure", "status": "True"}]);
    assert_eq!(at_node.status()["conditions"], conditions);
    assert_eq!((at_node.patches(), at_pod.patches()), (1, 1));
    hub.crash().await;
    hub.kubelet().get(POD).await.expect(200);
    assert_eq!((at_node.patches(), at_pod.patches()), (1, 1), "nothing is sent again");
    assert_eq!(hub.admin().get("/metrics").await.code, 200);
}

#[tokio::test]
async fn status_that_takes_a_healthy_cloud_longer_than_the_limit_without_it_is_written_once() {
    let mut cloud = Cloud::start().await;
    let at_pod = Stored::at(&cloud, POD, pod("web", "n1"));
    let status = format!("{POD}/status");
    cloud.delay(&status, LONGER_THAN_WITHOUT_THE_CLOUD);
    let hub = TestHub::start(&cloud, &[]).await;
    read(&hub, &[POD]).await;
    let answer = patch(&hub.kubelet(), POD, &running()).await;
    assert_eq!((answer.code, answer.header("yurt-stale")), (200, None));
    assert_eq!((at_pod.patches(), cloud.seen(&status).len()), (1, 1));
    cloud.go_away().await;
    let started = json!({"status": {"startTime": "2026-01-01T00:00:00Z"}});
    patch(&hub.kubelet(), POD, &started).await.expect(200);
    cloud.come_back().await;
    until_sent(&hub).await;
    assert_eq!(at_pod.status()["startTime"], "2026-01-01T00:00:00Z");
    assert!(at_pod.patches() >= 2, "once more if the cloud was taken for away");
}

/// The node lifecycle controller takes any new heartbeat as a sign of life.
#[tokio::test]
async fn node_after_a_power_cut_is_not_reported_ready_before_its_kubelet_runs() {
    let mut cloud = Cloud::start().await;
    let at_node = Stored::at(&cloud, NODE, node());
    let mut hub = TestHub::start(&cloud, &[]).await;
    read(&hub, &[NODE]).await;
    cloud.go_away().await;
    let unknown = json!({"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:01:00Z"});
    at_node.change(|node| node["status"]["conditions"][0] = unknown.clone());
    let heartbeat = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T02:00:00Z"});
    let report = json!({"status": {"phase": "Running", "conditions": [heartbeat]}});
    patch(&hub.kubelet(), NODE, &report).await.expect(200);
    hub.crash().await;
    cloud.come_back().await;
    until_sent(&hub).await;
    assert_eq!(at_node.status(), json!({"phase": "Running", "conditions": [unknown]}));
    let heartbeat = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": now()});
    let report = json!({"status": {"conditions": [heartbeat]}});
    patch(&hub.kubelet(), NODE, &report).await.expect(200);
    assert_eq!(at_node.status()["conditions"][0]["status"], "True");
}

#[tokio::test]
async fn condition_of_the_node_that_changed_and_changed_back_reaches_the_cloud_as_it_is() {
    let mut cloud = Cloud::start().await;
    let mut before = node();
    before["status"]["conditions"][0] = json!({"type": "DiskPressure", "status": "False"});
    let at_node = Stored::at(&cloud, NODE, before);
    let hub = TestHub::start(&cloud, &[]).await;
    read(&hub, &[NODE]).await;
    cloud.go_away().await;
    let report = |condition: Value| json!({"status": {"conditions": [condition]}});
    let pressure = json!({"type": "DiskPressure", "status": "True", "lastHeartbeatTime": now()});
    patch(&hub.kubelet(), NODE, &report(pressure)).await.expect(200);
    // Nothing but the heartbeat differs from the Node that the kubelet lists.
    let back = json!({"type": "DiskPressure", "lastHeartbeatTime": now()});
    patch(&hub.kubelet(), NODE, &report(back)).await.expect(200);
    cloud.come_back().await;
    until_sent(&hub).await;
    assert_eq!(at_node.status()["conditions"][0]["status"], "False");
}

/// The kubelet lists its Node for a report, and reads it by name for a repetition.
#[tokio::test]
async fn repeated_report_about_the_node_is_of_the_conditions_that_the_kubelet_read() {
    let mut cloud = Cloud::start().await;
    let at_node = Stored::at(&cloud, NODE, node());
    let hub = TestHub::start(&cloud, &[]).await;
    read(&hub, &[NODE]).await;
    cloud.go_away().await;
    let kubelet = hub.kubelet();
    let report = |condition: Value| json!({"status": {"conditions": [condition]}});
    let failed = json!({"type": "Ready", "status": "False", "lastHeartbeatTime": now()});
    patch(&kubelet, NODE, &report(failed)).await.expect(200);
    let read = kubelet.get(NODE).await.json();
    let mut again = json!({"type": "Ready", "lastHeartbeatTime": now()});
    if read["status"]["conditions"][0]["status"] != "False" {
        again["status"] = "False".into();
    }
    patch(&kubelet, NODE, &report(again)).await.expect(200);
    cloud.come_back().await;
    until_sent(&hub).await;
    assert_eq!(at_node.status()["conditions"][0]["status"], "False");
}

/// The link returns for a moment: a status is sent, and the selection of the node's pods does not go on yet.
#[tokio::test]
async fn kubelet_reads_its_sent_status_although_its_selection_is_older() {
    let mut cloud = Cloud::start().await;
    let object = cloud.put("pods", pod("web", "n1"));
    let at_pod = Stored::at(&cloud, POD, object);
    let hub = TestHub::start(&cloud, &[]).await;
    hub.kubelet().get(OWN_PODS).await.expect(200);
    cloud.go_away().await;
    patch(&hub.kubelet(), POD, &running()).await.expect(200);
    cloud.come_back().await;
    until_sent(&hub).await;
    let at_cloud = at_pod.object.lock().clone();
    assert_eq!(at_cloud["status"]["phase"], "Running");
    cloud.go_away().await;
    // Before and after the probes know of the loss.
    assert_eq!(hub.kubelet().get(POD).await.json(), at_cloud);
    hub.until("the loss must be noticed", |state| state["cloudReachable"] == false)
        .await;
    let read = hub.kubelet().get(POD).await;
    assert_eq!((read.header("yurt-stale"), read.json()), (Some("true"), at_cloud));
}

/// The kubelet computes its report from the Node that it lists, which is older than the one that the hub sent.
#[tokio::test]
async fn report_about_the_node_is_of_the_listed_one_although_a_later_one_was_sent() {
    let mut cloud = Cloud::start().await;
    let mut before = node();
    before["status"]["conditions"][0] = json!({"type": "DiskPressure", "status": "False"});
    let at_node = Stored::at(&cloud, NODE, cloud.put("nodes", before));
    let hub = TestHub::start(&cloud, &[]).await;
    hub.kubelet().get(OWN_NODE).await.expect(200);
    let report = |condition: Value| json!({"status": {"conditions": [condition]}});
    let pressure = json!({"type": "DiskPressure", "status": "True", "lastHeartbeatTime": now()});
    let back = json!({"type": "DiskPressure", "lastHeartbeatTime": now()});
    for (condition, expected) in [(pressure, "True"), (back, "False")] {
        cloud.go_away().await;
        patch(&hub.kubelet(), NODE, &report(condition)).await.expect(200);
        cloud.come_back().await;
        until_sent(&hub).await;
        assert_eq!(at_node.status()["conditions"][0]["status"], expected);
        cloud.go_away().await;
        hub.until("the loss must be noticed", |state| state["cloudReachable"] == false)
            .await;
        let read = hub.kubelet().get(NODE).await.json();
        assert_eq!(read["status"]["conditions"][0]["status"], "False", "as it is listed");
        cloud.come_back().await;
        hub.until("the cloud must be back", |state| state["cloudReachable"] == true)
            .await;
    }
}

#[tokio::test]
async fn write_after_the_return_is_not_overwritten_by_an_earlier_one() {
    let mut cloud = Cloud::start().await;
    let at_pod = Stored::at(&cloud, POD, pod("web", "n1"));
    let hub = TestHub::start(&cloud, &[]).await;
    read(&hub, &[POD]).await;
    cloud.go_away().await;
    patch(&hub.kubelet(), POD, &running()).await.expect(200);
    *at_pod.conflicts.lock() = 2;
    cloud.come_back().await;
    let later = json!({"status": {"podIP": "10.0.0.8", "message": "later"}});
    patch(&hub.kubelet(), POD, &later).await.expect(200);
    until_sent(&hub).await;
    let status = at_pod.status();
    assert_eq!(
        (&status["phase"], &status["podIP"], &status["message"]),
        (&json!("Running"), &json!("10.0.0.8"), &json!("later"))
    );
}

#[tokio::test]
async fn status_of_an_object_that_is_gone_or_was_replaced_is_dropped() {
    let mut cloud = Cloud::start().await;
    let other = "/api/v1/namespaces/shop/pods/other";
    let at_pod = Stored::at(&cloud, POD, pod("web", "n1"));
    let _ = Stored::at(&cloud, other, pod("other", "n1"));
    let hub = TestHub::start(&cloud, &[]).await;
    read(&hub, &[POD, other]).await;
    cloud.go_away().await;
    patch(&hub.kubelet(), POD, &running()).await.expect(200);
    patch(&hub.kubelet(), other, &json!({"status": {"phase": "Failed"}}))
        .await
        .expect(200);
    at_pod.change(|pod| pod["metadata"]["uid"] = "another".into());
    cloud.off(other);
    cloud.off(&format!("{other}/status"));
    cloud.come_back().await;
    until_sent(&hub).await;
    assert_eq!((at_pod.patches(), &at_pod.status()["phase"]), (0, &json!("Pending")));
    let metrics = String::from_utf8(hub.admin().get("/metrics").await.body.to_vec()).unwrap();
    assert!(
        metrics.contains("node_yurthub_local_writes_total{result=\"gone\"} 2"),
        "{metrics}"
    );
}

/// The Node authorizer of a kube-apiserver that starts does not know the pods of a node at first.
#[tokio::test]
async fn status_of_a_pod_that_may_not_be_read_yet_reaches_the_cloud_later() {
    let mut cloud = Cloud::start().await;
    let at_pod = Stored::at(&cloud, POD, pod("web", "n1"));
    let hub = TestHub::start(&cloud, &[]).await;
    read(&hub, &[POD]).await;
    cloud.go_away().await;
    patch(&hub.kubelet(), POD, &running()).await.expect(200);
    *at_pod.denials.lock() = 1;
    cloud.come_back().await;
    eventually("a read must be denied", async || {
        (*at_pod.denials.lock() == 0).then_some(())
    })
    .await;
    // The request of the kubelet sends the status before the next attempt is due.
    hub.kubelet().get(POD).await.expect(200);
    until_sent(&hub).await;
    assert_eq!(at_pod.status()["phase"], "Running");
}

/// The Node authorizer denies the read of a deleted pod: it no longer knows whose it was.
#[tokio::test]
async fn status_of_a_deleted_pod_that_may_not_be_read_is_dropped() {
    let mut cloud = Cloud::start().await;
    let object = cloud.put("pods", pod("web", "n1"));
    let at_pod = Stored::at(&cloud, POD, object);
    let hub = TestHub::start(&cloud, &[]).await;
    hub.kubelet().get(OWN_PODS).await.expect(200);
    cloud.go_away().await;
    patch(&hub.kubelet(), POD, &running()).await.expect(200);
    cloud.delete("pods", "shop", "web");
    *at_pod.denials.lock() = u32::MAX;
    cloud.come_back().await;
    eventually("the status must be dropped", async || {
        // Each read is an attempt.
        hub.kubelet().get(POD).await;
        (hub.state().await["offline"]["localWrites"] == json!([])).then_some(())
    })
    .await;
    assert_eq!(at_pod.patches(), 0);
    let metrics = String::from_utf8(hub.admin().get("/metrics").await.body.to_vec()).unwrap();
    let gone = "node_yurthub_local_writes_total{result=\"gone\"} 1";
    assert!(metrics.contains(gone), "{metrics}");
}

#[tokio::test]
async fn only_the_node_writes_and_only_its_own_objects() {
    let mut cloud = Cloud::start().await;
    let (elsewhere, another) = ("/api/v1/namespaces/shop/pods/db", "/api/v1/nodes/n2");
    let _ = Stored::at(&cloud, POD, pod("web", "n1"));
    let _ = Stored::at(&cloud, elsewhere, pod("db", "n2"));
    let mut n2 = node();
    n2["metadata"]["name"] = "n2".into();
    let _ = Stored::at(&cloud, another, n2);
    let hub = TestHub::start(&cloud, &[]).await;
    read(&hub, &[POD, elsewhere, another]).await;
    cloud.go_away().await;
    let (kubelet, body) = (hub.kubelet(), json!({"status": {"phase": "Running"}}));
    patch(&kubelet, elsewhere, &body).await.expect(403);
    patch(&kubelet, another, &json!({"status": {}})).await.expect(403);
    patch(&hub.bearer("kubelet/v1", "pod-token"), POD, &body)
        .await
        .expect(503);
    for refused in [
        patch(&kubelet, "/api/v1/namespaces/shop/pods/unknown", &body).await,
        kubelet.send(request(Method::DELETE, POD, &[], full(""))).await,
        kubelet
            .send(request(
                Method::POST,
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                &[],
                full("{}"),
            ))
            .await,
        kubelet
            .send(request(
                Method::POST,
                "/apis/authentication.k8s.io/v1/tokenreviews",
                &[],
                full("{}"),
            ))
            .await,
        kubelet
            .put("/api/v1/namespaces/shop/configmaps/c", "application/json", "{}")
            .await,
    ] {
        assert_eq!(
            (refused.code, &refused.json()["reason"]),
            (503, &json!("ServiceUnavailable"))
        );
        assert!(refused.header("retry-after").is_some());
        let message = refused.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("the cloud"), "{message}");
    }
    patch(&kubelet, POD, &json!({"metadata": {"uid": "u-old"}, "status": {}}))
        .await
        .expect(409);
    patch(&kubelet, POD, &json!({"status": {"message": "x".repeat(4 << 20)}}))
        .await
        .expect(413);
    patch(&kubelet, "/api/v1/namespaces/shop/pods/..%2fx", &body)
        .await
        .expect(400);
    assert_eq!(hub.state().await["offline"]["localWrites"], json!([]));
    assert!(!hub.folder().path().join("cache/local-writes").exists());
}

#[tokio::test]
async fn write_that_no_server_accepts_gets_405_without_the_cloud() {
    let mut cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.go_away().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    for (method, path) in [(Method::PUT, NODES), (Method::PATCH, NODES), (Method::PUT, leases)] {
        let write = request(method.clone(), path, &[("content-type", JSON)], full("{}"));
        let answer = hub.kubelet().send(write).await;
        assert_eq!(answer.code, 405, "{method} {path}");
    }
}

/// kubelet `tryRegisterWithAPIServer`: after 409 AlreadyExists it reads its Node and goes on, after all else it loops.
#[tokio::test]
async fn kubelet_that_restarts_without_the_cloud_learns_that_its_node_exists() {
    let mut cloud = Cloud::start().await;
    let another = "/api/v1/nodes/n2";
    let _ = Stored::at(&cloud, NODE, node());
    let mut n2 = node();
    n2["metadata"]["name"] = "n2".into();
    let _ = Stored::at(&cloud, another, n2.clone());
    let mut hub = TestHub::start(&cloud, &[]).await;
    let create = async |client: &Client, body: Vec<u8>, content_type: &str| {
        let headers = [("content-type", content_type)];
        client.send(request(Method::POST, NODES, &headers, full(body))).await
    };
    let json_of = |node: &Value| node.to_string().into_bytes();
    cloud.go_away().await;
    let unknown = create(&hub.kubelet(), json_of(&node()), JSON).await;
    assert_eq!(unknown.code, 503, "the hub knows no Node");
    assert!(unknown.header("retry-after").is_some());
    cloud.come_back().await;
    hub.until("the cloud must be back", |state| state["cloudReachable"] == true)
        .await;
    read(&hub, &[NODE, another]).await;
    cloud.go_away().await;
    hub.restart().await;
    hub.until("the loss must be noticed", |state| state["cloudReachable"] == false)
        .await;
    let kubelet = hub.kubelet();
    let message = schema::find("", "v1", "Node").unwrap();
    let encoded = protobuf::encode(message, &json_of(&node())).unwrap();
    let envelope = protobuf::envelope("v1", "Node", &encoded.bytes);
    for (body, content_type) in [
        (json_of(&node()), JSON),
        (envelope, "application/vnd.kubernetes.protobuf"),
    ] {
        let exists = create(&kubelet, body, content_type).await;
        let expected = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "nodes \"n1\" already exists", "reason": "AlreadyExists",
            "details": {"name": "n1", "kind": "nodes"}, "code": 409});
        assert_eq!((exists.code, exists.json()), (409, expected), "{content_type}");
    }
    kubelet.get(NODE).await.expect(200);
    patch(&kubelet, NODE, &json!({"status": {"phase": "Running"}}))
        .await
        .expect(200);
    let pod = hub.bearer("kubelet/v1", "pod-token");
    for (client, body) in [
        (&kubelet, json_of(&n2)),
        (&pod, json_of(&node())),
        (&kubelet, b"{}".to_vec()),
        (&kubelet, b"not an object".to_vec()),
    ] {
        let refused = create(client, body, JSON).await;
        assert_eq!((refused.code, refused.header("retry-after")), (503, Some("1")));
    }
    for path in ["/api/v1/namespaces/shop/pods", "/api/v1/nodes?dryRun=All&x"] {
        let headers = [("content-type", JSON)];
        let refused = kubelet.send(request(Method::POST, path, &headers, full("{}"))).await;
        assert_eq!(refused.code, 503, "{path}");
    }
}

/// A balancer answers for kube-apiservers that are down.
#[tokio::test]
async fn kubelet_that_restarts_learns_that_its_node_exists_although_a_balancer_answers() {
    let cloud = Cloud::start().await;
    let _ = Stored::at(&cloud, NODE, node());
    let hub = TestHub::start(&cloud, &[]).await;
    read(&hub, &[NODE]).await;
    for path in ["/livez", NODES] {
        cloud.on(path, async |_| {
            json_answer(StatusCode::SERVICE_UNAVAILABLE, "no backend")
        });
    }
    hub.until("the loss must be noticed", |state| state["cloudReachable"] == false)
        .await;
    let headers = [("content-type", JSON)];
    let create = request(Method::POST, NODES, &headers, full(node().to_string()));
    let exists = hub.kubelet().send(create).await;
    assert_eq!((exists.code, &exists.json()["reason"]), (409, &json!("AlreadyExists")));
}

#[tokio::test]
async fn local_status_is_answered_in_the_clients_format() {
    let mut cloud = Cloud::start().await;
    let _ = Stored::at(&cloud, POD, pod("web", "n1"));
    let hub = TestHub::start(&cloud, &[]).await;
    read(&hub, &[POD]).await;
    cloud.go_away().await;
    let headers = [
        ("content-type", STRATEGIC),
        ("accept", "application/vnd.kubernetes.protobuf, */*"),
    ];
    let path = format!("{POD}/status");
    let answer = hub
        .kubelet()
        .send(request(Method::PATCH, &path, &headers, full(running().to_string())))
        .await;
    assert_eq!(
        (answer.code, answer.header("content-type")),
        (200, Some("application/vnd.kubernetes.protobuf"))
    );
    assert!(answer.body.starts_with(b"k8s\0"));
    let seen = eventually("the local status", async || {
        Some(hub.kubelet().get(POD).await).filter(|seen| seen.code == 200)
    });
    let seen = seen.await;
    assert_eq!(
        (seen.header("yurt-stale"), &seen.json()["metadata"]["resourceVersion"]),
        (Some("true"), &json!("20"))
    );
}

#[tokio::test]
async fn kept_status_of_a_pod_ends_with_the_pod() {
    let cloud = Cloud::start().await;
    for name in ["web", "db"] {
        let pod = cloud.put("pods", pod(name, "n1"));
        Stored::at(&cloud, &format!("/api/v1/namespaces/shop/pods/{name}"), pod);
    }
    let hub = TestHub::start(&cloud, &[]).await;
    let kubelet = hub.kubelet();
    kubelet.get(OWN_PODS).await.expect(200);
    for name in ["web", "db"] {
        let status = json!({"status": {"phase": "Running"}});
        let path = format!("/api/v1/namespaces/shop/pods/{name}");
        patch(&kubelet, &path, &status).await.expect(200);
    }
    let records = async |count: u64| {
        hub.until("the number of kept answers", |state| {
            state["offline"]["answers"]["records"] == count
        })
        .await;
    };
    records(2).await;
    cloud.delete("pods", "shop", "web");
    records(1).await;
}
