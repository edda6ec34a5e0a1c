//! Pods: refusals, mutable fields, binding and eviction.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use yurt_apimachinery::{ResourceVersion, Space};
use yurt_runtime::Clock;
use yurt_storage::backend::{Committed, Loaded, Sink};
use yurt_storage::{Action, Durability, Embedded, Expect, Op, Storage as _, StorageError};
use yurt_test_support::eventually;

use crate::harness::{Client, Server};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}})
}

/// The causes of a refusal, as `field: message`.
fn causes(refused: &Value) -> Vec<String> {
    let causes = refused["details"]["causes"].as_array().cloned().unwrap_or_default();
    let text = |cause: &Value, name: &str| cause[name].as_str().unwrap_or_default().to_owned();
    let one = |cause: &Value| format!("{}: {}", text(cause, "field"), text(cause, "message"));
    causes.iter().map(one).collect()
}

/// Errors of a pod with these members of `spec`.
async fn faults(admin: &Client, spec: Value) -> Vec<String> {
    let mut wrong = pod("wrong");
    wrong["spec"]
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    causes(&admin.post(PODS, &wrong).await.expect(422))
}

fn container(more: Value) -> Value {
    let mut container = json!({"name": "c", "image": "i"});
    container
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    json!({ "containers": [container] })
}

#[tokio::test]
async fn a_pod_with_faults_is_refused_with_all_of_them() {
    let server = Server::standalone().await;
    let admin = server.admin();
    for (spec, want) in [
        (json!({"containers": []}), "spec.containers: Required value"),
        (
            json!({"containers": [{"name": "c"}]}),
            "spec.containers[0].image: Required value",
        ),
        (
            json!({"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "j"}]}),
            "spec.containers[1].name: Duplicate value: \"c\"",
        ),
        (
            container(json!({"ports": [{"containerPort": 99999}]})),
            "spec.containers[0].ports[0].containerPort: Invalid value: 99999: must be between 1 and 65535, inclusive",
        ),
        (
            container(json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]})),
            "spec.containers[0].volumeMounts[0].name: Not found: \"v\"",
        ),
        (
            container(json!({"resources": {"limits": {"cpu": "1000m"}, "requests": {"cpu": "2"}}})),
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        ),
        (
            container(json!({"livenessProbe": {"periodSeconds": 5}})),
            "spec.containers[0].livenessProbe: Required value: must specify a handler type",
        ),
        (
            container(json!({"imagePullPolicy": "Perhaps"})),
            "spec.containers[0].imagePullPolicy: Unsupported value: \"Perhaps\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ),
        (
            container(json!({"env": [{"name": "a=b"}]})),
            "spec.containers[0].env[0].name: Invalid value: \"a=b\": a valid environment variable name must consist only of printable ASCII characters other than '='",
        ),
        (
            json!({"restartPolicy": "Maybe"}),
            "spec.restartPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        ),
        (
            json!({"dnsPolicy": "None"}),
            "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
        ),
        (
            json!({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]}),
            "spec.volumes[1].name: Duplicate value: \"v\"",
        ),
        (
            json!({"tolerations": [{"key": "k", "operator": "Exists", "value": "v"}]}),
            "spec.tolerations[0].operator: Invalid value: \"v\": value must be empty when `operator` is 'Exists'",
        ),
        (
            json!({"ephemeralContainers": [{"name": "e", "image": "i"}]}),
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ),
    ] {
        assert_eq!(faults(&admin, spec).await, [want]);
    }
    let dotted = admin.post(PODS, &pod("a.b")).await;
    let said = dotted.header("warning").unwrap_or_default().to_owned();
    assert!(
        said.contains("a DNS label is recommended: [must not contain dots]"),
        "{said}"
    );
    dotted.expect(201);
}

#[tokio::test]
async fn an_update_changes_images_and_little_else() {
    let server = Server::standalone().await;
    let admin = server.admin();
    admin.post(PODS, &pod("a")).await.expect(201);
    let path = format!("{PODS}/a");
    let image = json!({"spec": {"containers": [{"name": "c", "image": "i:2"}]}});
    let changed = admin.patch("strategic-merge", &path, &image).await.expect(200);
    assert_eq!(changed["metadata"]["generation"], 2);
    let refused = admin
        .merge(&path, &json!({"spec": {"nodeName": "n"}}))
        .await
        .expect(422);
    let message = refused["message"].as_str().unwrap();
    let want = "Pod \"a\" is invalid: spec: Forbidden: pod updates may not change fields other than \
                `spec.containers[*].image`,";
    assert!(message.starts_with(want), "{message}");
    let more = json!({"spec": {"containers": [{"name": "d", "image": "i"}]}});
    let refused = admin.patch("strategic-merge", &path, &more).await.expect(422);
    assert_eq!(
        causes(&refused),
        ["spec.containers: Forbidden: pod updates may not add or remove containers"]
    );
}

#[tokio::test]
async fn a_binding_puts_a_pod_on_a_node_once() {
    let server = Server::standalone().await;
    let admin = server.admin();
    admin.post(PODS, &pod("a")).await.expect(201);
    let path = format!("{PODS}/a/binding");
    let binding = |name: &str, node: &str| json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "labels": {"zone": "z"}}, "target": {"kind": "Node", "name": node}});
    let refused = admin.post(&path, &binding("b", "n1")).await.expect(400);
    assert_eq!(refused["message"], "name in URL does not match name in Binding object");
    let refused = admin.post(&path, &binding("a", "")).await.expect(422);
    assert_eq!(causes(&refused), ["target.name: Required value"]);
    let dry = format!("{path}?dryRun=All");
    admin.post(&dry, &binding("a", "n1")).await.expect(201);
    let done = admin.post(&path, &binding("a", "n1")).await.expect(201);
    assert_eq!((&done["kind"], &done["status"]), (&json!("Status"), &json!("Success")));
    let bound = admin.get(&format!("{PODS}/a")).await.expect(200);
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["metadata"]["labels"]["zone"], "z");
    let condition = &bound["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("PodScheduled"), &json!("True"))
    );
    let again = admin.post(&path, &binding("a", "n2")).await.expect(409);
    assert_eq!(
        again["message"],
        "Operation cannot be fulfilled on pods/binding \"a\": pod a is already assigned to node \"n1\""
    );
    admin
        .post(&format!("{PODS}/none/binding"), &binding("none", "n"))
        .await
        .expect(404);
    admin.get(&path).await.expect(405);
    let viewer = server.user("viewer", &[]);
    viewer.post(&path, &binding("a", "n1")).await.expect(403);
}

#[tokio::test]
async fn an_eviction_deletes_the_pod_and_a_node_evicts_its_own_only() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let mut running = pod("a");
    running["spec"]["nodeName"] = json!("n1");
    admin.post(PODS, &running).await.expect(201);
    let path = format!("{PODS}/a/eviction");
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}, "deleteOptions": {"gracePeriodSeconds": 7}});
    let stranger = server.node("n2");
    stranger.post(&path, &eviction).await.expect(403);
    let dry = format!("{path}?dryRun=All");
    admin.post(&dry, &eviction).await.expect(201);
    server.node("n1").post(&path, &eviction).await.expect(201);
    let marked = admin.get(&format!("{PODS}/a")).await.expect(200);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 7);
    let why = &marked["status"]["conditions"][0];
    assert_eq!(
        (&why["type"], &why["reason"]),
        (&json!("DisruptionTarget"), &json!("EvictionByEvictionAPI"))
    );
    let mut wrong = eviction.clone();
    wrong["deleteOptions"] = json!({"preconditions": {"uid": "other"}});
    admin.post(&path, &wrong).await.expect(409);
}

/// An eviction is two writes, and a client may disconnect at any moment: the pod is never left with the condition
/// alone.
#[tokio::test]
async fn eviction_that_was_begun_ends_when_its_client_hangs_up() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let count = 60;
    for n in 0..count {
        admin.post(PODS, &pod(&format!("p{n}"))).await.expect(201);
    }
    for n in 0..count {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": format!("p{n}")},
            "deleteOptions": {"gracePeriodSeconds": 0}});
        let path = format!("{PODS}/p{n}/eviction");
        let hangs_up_after = Duration::from_micros(100 * n);
        // Most disconnect before the answer, some before the request has arrived.
        let _ = tokio::time::timeout(hangs_up_after, admin.post(&path, &eviction)).await;
    }
    // Its commit comes after all that had begun.
    admin.post(PODS, &pod("last")).await.expect(201);
    eventually("no pod is left half evicted", async || {
        let pods = admin.get(PODS).await.expect(200);
        let is_marked = |pod: &Value| pod["status"]["conditions"].to_string().contains("DisruptionTarget");
        let marked = pods["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|pod| is_marked(pod))
            .count();
        (marked == 0).then_some(())
    })
    .await;
}

/// Reads nothing of a store.
struct Blind;

impl Sink for Blind {
    fn load(&self, _loaded: Loaded) -> Result<(), StorageError> {
        Ok(())
    }

    fn committed(&self, _rv: ResourceVersion, _changes: &[Committed]) {}

    fn reloaded(&self, _loaded: Loaded) {}
}

/// A delete without a grace period is two commits, and the server may end between them.
#[tokio::test]
async fn pod_whose_deletion_was_interrupted_can_be_deleted() {
    let mut server = Server::start(&["--profile", "standalone"]).await;
    let namespace = json!({"metadata": {"name": "n"}});
    server.admin().post("/api/v1/namespaces", &namespace).await.expect(201);
    let pods = "/api/v1/namespaces/n/pods";
    let mut halves = Vec::new();
    for (name, grace) in [("a", json!(0)), ("b", Value::Null), ("c", json!(0))] {
        let mut object = server.admin().post(pods, &pod(name)).await.expect(201);
        let metadata = object["metadata"].as_object_mut().unwrap();
        metadata.remove("resourceVersion");
        metadata.insert("deletionTimestamp".to_owned(), json!("2026-01-01T00:00:00Z"));
        if !grace.is_null() {
            metadata.insert("deletionGracePeriodSeconds".to_owned(), grace);
        }
        halves.push(Op {
            key: format!("/pods/n/{name}"),
            expect: Expect::Any,
            action: Action::Put(bytes::Bytes::from(object.to_string()).into(), Durability::Durable),
        });
    }
    server.stop();
    let store = Embedded::open(&server.folder().join("store.redb"), Clock::system(), Space::Cloud).unwrap();
    store.attach(Arc::new(Blind)).await.unwrap();
    store.write(halves).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    server.start_again().await;
    let admin = server.admin();
    for name in ["a", "b"] {
        let path = format!("{pods}/{name}");
        admin.delete(&format!("{path}?dryRun=All")).await.expect(200);
        admin.get(&path).await.expect(200);
        admin.delete(&path).await.expect(200);
        admin.get(&path).await.expect(404);
    }
    admin.delete("/api/v1/namespaces/n").await.expect(200);
    eventually("its namespace is emptied", async || {
        (admin.get("/api/v1/namespaces/n").await.code == 404).then_some(())
    })
    .await;
}
