//! Writes of components that read through filters: with the RVs that their views show.

use std::sync::Arc;

use http::{Method, StatusCode};
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Value, json};
use yurt_apimachinery::Status;
use yurt_apimachinery::kind::find_kind;
use yurt_codec::negotiation::{body_format, body_json};
use yurt_codec::{protobuf, schema};
use yurt_runtime::http::{Body, full, json as answer_json, read_body, status_response};
use yurt_test_support::eventually;

use super::client::{Answer, Client, request};
use super::cloud::Cloud;
use super::configuring::configure;
use super::harness::{HUB_OF_PODS, TestHub};

const PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
const POD: &str = "/api/v1/namespaces/shop/pods/web";
const MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
/// The address that only the cloud's pods have.
const PUBLIC: &str = "203.0.113.9";
const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const MERGE: &str = "application/merge-patch+json";

/// Annotation of a write whose answer the cloud sends in a form that no hub reads.
const UNREADABLE: &str = "unreadable";

/// Cloud with pod web, which takes writes of it as kube-apiserver does: 409 for another RV than the present one.
struct Writable {
    cloud: Arc<Cloud>,
    /// Methods of the writes that arrived.
    writes: Arc<Mutex<Vec<Method>>>,
}

// === impl Writable ===

impl Writable {
    async fn start() -> Self {
        let cloud = Arc::new(Cloud::start().await);
        let writes = Arc::new(Mutex::new(Vec::new()));
        for path in paths() {
            let (own, writes) = (cloud.clone(), writes.clone());
            cloud.on(&path, move |request| {
                let (cloud, writes) = (own.clone(), writes.clone());
                async move { answer(&cloud, &writes, request).await }
            });
        }
        let world = Self { cloud, writes };
        world.put_pod();
        world
    }

    fn put_pod(&self) {
        let env = json!([{"name": "KUBERNETES_SERVICE_HOST", "value": PUBLIC}]);
        self.cloud.put(
            "pods",
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "web"},
                "spec": {"nodeName": "n1", "containers": [{"name": "a", "env": env}]}}),
        );
    }

    fn pod(&self) -> Value {
        self.cloud.get("pods", Some("shop"), "web").unwrap()
    }

    fn writes(&self) -> Vec<Method> {
        std::mem::take(&mut *self.writes.lock())
    }
}

async fn answer(cloud: &Cloud, writes: &Mutex<Vec<Method>>, request: http::Request<Incoming>) -> http::Response<Body> {
    let Some(present) = cloud.get("pods", Some("shop"), "web") else {
        return status_response(&Status::failure(404, "NotFound", "no pod"));
    };
    let (head, body) = request.into_parts();
    let body = read_body(body, 1 << 20).await.unwrap();
    if head.method == Method::GET {
        return answer_json(StatusCode::OK, present.to_string());
    }
    writes.lock().push(head.method.clone());
    let content_type = head.headers.get("content-type").unwrap().to_str().unwrap();
    let sent: Value = match body_format(Some(content_type)) {
        Ok(format) => serde_json::from_slice(&body_json(format, "v1", "Pod", &body).unwrap()).unwrap(),
        Err(_) => serde_json::from_slice(&body).unwrap(),
    };
    let required = match sent.as_array() {
        Some(operations) => &operations[0]["value"],
        None if head.method == Method::DELETE => &sent["preconditions"]["resourceVersion"],
        None => &sent["metadata"]["resourceVersion"],
    };
    if !required.is_null() && *required != present["metadata"]["resourceVersion"] {
        return status_response(&Status::failure(409, "Conflict", "the object has been modified"));
    }
    if head.method == Method::DELETE {
        cloud.delete("pods", "shop", "web");
        return answer_json(StatusCode::OK, present.to_string());
    }
    if head.method == Method::PATCH && body.windows(10).any(|text| text == UNREADABLE.as_bytes()) {
        let mut response = http::Response::new(full(present.to_string()));
        let cbor = http::HeaderValue::from_static("application/cbor");
        response.headers_mut().insert("content-type", cbor);
        return response;
    }
    let mut next = if head.method == Method::PUT {
        sent
    } else {
        present.clone()
    };
    if head.method == Method::PATCH && body.windows(6).any(|text| text == b"\"noop\"") {
        return answer_json(StatusCode::OK, present.to_string());
    }
    (next["apiVersion"], next["kind"]) = (json!("v1"), json!("Pod"));
    next["metadata"]["annotations"] = json!({"write": format!("{}", cloud.version())});
    answer_json(StatusCode::OK, cloud.put("pods", next).to_string())
}

/// Paths that answer with the pod.
fn paths() -> [String; 4] {
    ["", "/status", "/resize", "/ephemeralcontainers"].map(|part| format!("{POD}{part}"))
}

fn version(object: &Value) -> u64 {
    let version = object["metadata"]["resourceVersion"].as_str().expect("an RV");
    version.parse().expect("a number")
}

fn host_of(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["env"][0]["value"].as_str().unwrap()
}

/// The pod that the list of `client` shows once it has this address.
async fn listed(client: &Client, host: &str) -> Value {
    let shown = async || {
        // A list that the change overtakes is refused.
        let answer = Some(client.get(PODS).await).filter(|answer| answer.code != 429)?;
        let pod = answer.json()["items"][0].clone();
        (host_of(&pod) == host).then_some(pod)
    };
    eventually("the list must show the pod with this address", shown).await
}

/// The pod as flanneld lists it: as the cloud has it, under a higher RV, because a filter showed another pod before.
async fn restamped(world: &Writable, hub: &TestHub) -> (Client, Value) {
    let agent = hub.component("flanneld");
    // The position moves on: a view repeats an object under the next RV only once there is one.
    world.cloud.put(
        "pods",
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "younger"},
            "spec": {"nodeName": "n1", "containers": []}}),
    );
    for (data, host) in [
        (json!({"serviceenvupdater": "flanneld"}), HUB_OF_PODS),
        (json!({}), PUBLIC),
    ] {
        configure(&world.cloud, &data);
        listed(&agent, host).await;
    }
    // The same state comes under the next number if its own was used before.
    let shown = async || {
        let pod = listed(&agent, PUBLIC).await;
        (version(&pod) > version(&world.pod())).then_some(pod)
    };
    (agent.clone(), eventually("the view must have its own RV", shown).await)
}

async fn write(client: &Client, method: Method, path: &str, kind: &str, body: impl Into<bytes::Bytes>) -> Answer {
    let headers = [("content-type", kind), ("accept", JSON)];
    client.send(request(method, path, &headers, full(body.into()))).await
}

/// The object as its client sends it in protobuf.
fn in_protobuf(pod: &Value) -> Vec<u8> {
    let message = schema::find("", "v1", "Pod").unwrap();
    let encoded = protobuf::encode(message, pod.to_string().as_bytes()).unwrap();
    assert!(find_kind("", "pods").is_some_and(protobuf::supports));
    protobuf::envelope("v1", "Pod", &encoded.bytes)
}

#[tokio::test]
async fn object_is_written_with_the_version_that_its_view_shows() {
    for form in [JSON, PROTOBUF] {
        let world = Writable::start().await;
        let hub = TestHub::start(&world.cloud, &[]).await;
        let (agent, shown) = restamped(&world, &hub).await;
        let body = match form {
            JSON => shown.to_string().into_bytes(),
            _ => in_protobuf(&shown),
        };
        let written = write(&agent, Method::PUT, POD, form, body.clone()).await;
        assert_eq!(written.code, 200, "{form}: {}", String::from_utf8_lossy(&written.body));
        assert_eq!(
            version(&written.json()),
            version(&world.pod()),
            "the write has a version of its own"
        );
        // Another write with the same version is a conflict, as at the cloud.
        write(&agent, Method::PUT, POD, form, body).await.expect(409);
    }
}

#[tokio::test]
async fn preconditions_of_patches_and_deletions_are_those_of_the_view() {
    let by_operations = |version: &Value| {
        json!([{"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/metadata/labels", "value": {}}])
    };
    let merged = |version: &Value| json!({"metadata": {"resourceVersion": version, "labels": {"a": "b"}}});
    let deleted = |version: &Value| json!({"preconditions": {"resourceVersion": version}});
    type OfVersion<'a> = &'a dyn Fn(&Value) -> Value;
    let cases: [(Method, &str, OfVersion<'_>); 4] = [
        (Method::PATCH, MERGE, &merged),
        (Method::PATCH, "application/strategic-merge-patch+json", &merged),
        (Method::PATCH, "application/json-patch+json", &by_operations),
        (Method::DELETE, JSON, &deleted),
    ];
    let world = Writable::start().await;
    let hub = TestHub::start(&world.cloud, &[]).await;
    for (method, kind, body) in cases {
        let (agent, shown) = restamped(&world, &hub).await;
        let body = body(&shown["metadata"]["resourceVersion"]).to_string();
        let answer = write(&agent, method.clone(), POD, kind, body).await;
        assert_eq!(
            answer.code,
            200,
            "{method} {kind}: {}",
            String::from_utf8_lossy(&answer.body)
        );
        if method == Method::PATCH {
            let written = version(&world.pod());
            let follows = async || (version(&listed(&agent, PUBLIC).await) == written).then_some(());
            eventually("the view must show the write", follows).await;
        }
    }
}

#[tokio::test]
async fn replacement_of_an_object_that_the_filters_change_is_refused() {
    let world = Writable::start().await;
    let hub = TestHub::start(&world.cloud, &[]).await;
    let kubelet = hub.kubelet();
    // The object of a get, which no view has, and that of a list.
    let got = kubelet.get(POD).await.json();
    for seen in [got, listed(&kubelet, HUB_OF_PODS).await] {
        let refused = write(&kubelet, Method::PUT, POD, JSON, seen.to_string()).await;
        let status = refused.json();
        assert_eq!((refused.code, &status["reason"]), (422, &json!("Invalid")), "{status}");
        let why = status["message"].as_str().unwrap();
        assert!(why.contains("serviceenvupdater") && why.contains("patch"), "{why}");
    }
    assert_eq!(world.writes(), [] as [Method; 0], "nothing of it reached the cloud");
    // An object that no filter changes is replaced, whatever its reader is.
    let plain = hub.component("flanneld").get(POD).await.json();
    write(&hub.component("flanneld"), Method::PUT, POD, JSON, plain.to_string())
        .await
        .expect(200);
}

#[tokio::test]
async fn answer_to_a_write_shows_the_object_as_its_reader_sees_it() {
    let world = Writable::start().await;
    let hub = TestHub::start(&world.cloud, &[]).await;
    let kubelet = hub.kubelet();
    let patch = json!({"status": {"phase": "Running"}}).to_string();
    for path in paths() {
        for accept in [JSON, PROTOBUF] {
            let headers = [("content-type", MERGE), ("accept", accept)];
            let answer = kubelet
                .send(request(Method::PATCH, &path, &headers, full(patch.clone())))
                .await;
            assert_eq!(answer.header("content-type"), Some(accept));
            let text = String::from_utf8_lossy(&answer.expect(200)).into_owned();
            assert!(
                text.contains(HUB_OF_PODS) && !text.contains(PUBLIC),
                "{path} as {accept}: {text}"
            );
        }
    }
    // A write that changes nothing is answered with the version of the view: the client's does not go back.
    let (agent, shown) = restamped(&world, &hub).await;
    let noop = json!({"noop": {}}).to_string();
    let answer = write(&agent, Method::PATCH, POD, MERGE, noop).await.json();
    assert_eq!(version(&answer), version(&shown));
}

#[tokio::test]
async fn answer_that_cannot_be_filtered_does_not_pass() {
    let world = Writable::start().await;
    let hub = TestHub::start(&world.cloud, &[]).await;
    let patch = json!({"metadata": {"labels": {UNREADABLE: "true"}}}).to_string();
    let answer = write(&hub.kubelet(), Method::PATCH, POD, MERGE, patch).await;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(!text.contains(PUBLIC), "{text}");
    let status = answer.expect(504);
    let status: Value = serde_json::from_slice(&status).unwrap();
    assert_eq!(status["reason"], json!("Timeout"), "{status}");
    let why = status["message"].as_str().unwrap();
    assert!(why.contains("accepted the write") && why.contains("cbor"), "{why}");
    assert_eq!(world.writes(), [Method::PATCH]);
}

#[tokio::test]
async fn encoding_of_a_write_is_no_way_past_the_filters() {
    let world = Writable::start().await;
    let hub = TestHub::start(&world.cloud, &[]).await;
    let patch = json!({"status": {"phase": "Running"}}).to_string();
    for (encoding, code) in [("identity", 200), ("gzip", 415), ("zstd", 415)] {
        let headers = [
            ("content-type", MERGE),
            ("accept", JSON),
            ("content-encoding", encoding),
        ];
        let patch = request(Method::PATCH, POD, &headers, full(patch.clone()));
        let answer = hub.kubelet().send(patch).await;
        let text = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.code, code, "{encoding}: {text}");
        assert!(!text.contains(PUBLIC), "{encoding}: {text}");
    }
    assert_eq!(
        world.writes(),
        [Method::PATCH],
        "what the hub cannot read does not pass"
    );
}

#[tokio::test]
async fn write_that_only_the_configuration_can_judge_is_refused_until_it_is_known() {
    let world = Writable::start().await;
    world.cloud.on(MAPS, async |_| {
        status_response(&Status::failure(403, "Forbidden", "no role"))
    });
    let hub = TestHub::start(&world.cloud, &[]).await;
    let (agent, kubelet) = (hub.component("flanneld"), hub.kubelet());
    let patch = json!({"status": {"phase": "Running"}}).to_string();
    let (pod, status) = (world.pod().to_string(), format!("{POD}/status"));
    for (method, path, kind, body) in [
        (Method::PATCH, POD, MERGE, &patch),
        (Method::PATCH, &*status, MERGE, &patch),
        (Method::PUT, POD, JSON, &pod),
        (Method::POST, "/api/v1/namespaces/shop/pods", JSON, &pod),
    ] {
        let refused = write(&agent, method.clone(), path, kind, body.clone()).await;
        let why = refused.json()["message"].as_str().unwrap().to_owned();
        let seen = (refused.code, refused.header("retry-after"));
        assert_eq!(seen, (503, Some("1")), "{method} {path}: {why}");
        assert!(why.contains("yurt-hub-cfg") && why.contains("no role"), "{why}");
    }
    assert_eq!(world.writes(), [] as [Method; 0], "nothing of it reached the cloud");

    // A new node reports its pods, and every component writes what no filter concerns.
    let reported = write(&kubelet, Method::PATCH, &status, MERGE, patch.clone()).await;
    assert_eq!(host_of(&reported.json()), HUB_OF_PODS);
    let node = "/api/v1/nodes/n1";
    world.cloud.on(node, async |_| answer_json(StatusCode::OK, "{}"));
    for writer in [&kubelet, &agent] {
        write(writer, Method::PATCH, node, MERGE, "{}").await.expect(200);
    }
    write(&agent, Method::DELETE, POD, JSON, "{}").await.expect(200);
    assert_eq!(world.writes(), [Method::PATCH, Method::DELETE]);

    world.put_pod();
    configure(&world.cloud, &json!({"serviceenvupdater": "flanneld"}));
    world.cloud.off(MAPS);
    hub.until("the configuration", |state| state["hubConfig"]["synced"] == true)
        .await;
    listed(&agent, HUB_OF_PODS).await;
    let answer = write(&agent, Method::PATCH, POD, MERGE, patch).await;
    assert_eq!(host_of(&answer.json()), HUB_OF_PODS);
}
