//! Bodies that do not arrive, and too many bodies: others are still served.

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::Method;
use serde_json::json;
use tokio::task::JoinSet;

use crate::harness::{PATIENCE, Server, config_map};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Most memory that large bodies may add: three states of an object near the limit, their texts, and a parser.
const MEMORY_MAX: usize = 64 << 20;
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

fn of(bytes: usize) -> Bytes {
    Bytes::from(vec![b' '; bytes])
}

async fn within<T>(answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, answer)
        .await
        .expect("it is answered before the body has come")
}

/// A node that does not lead is refused before its body is read: bodies of the feed are the largest.
#[tokio::test]
async fn feed_of_a_node_that_does_not_lead_is_refused_without_its_body() {
    let server = Server::start(&["--nodepool", "hangzhou", "--initial-members", "n1,n3"]).await;
    let snapshot = "/yurt/v1/feed/services/snapshot?version=1";
    for path in [
        snapshot,
        "/yurt/v1/feed/members/snapshot?version=1",
        "/yurt/v1/feed/scope?version=1",
    ] {
        let code = within(server.node("n3").begin(path, of(1 << 20))).await;
        assert_eq!(code, 409, "{path}");
    }
}

/// Every caller may send a review, so its body is small.
#[tokio::test]
async fn reviews_are_small() {
    let server = Server::standalone().await;
    let jane = server.user("jane", &[]);
    let review = |padding: usize| json!({"metadata": {"annotations": {"a": "x".repeat(padding)}}});
    let rest = (64 << 10) - review(0).to_string().len();
    jane.post(REVIEWS, &review(rest)).await.expect(201);
    let refused = jane.post(REVIEWS, &review(rest + 1)).await.expect(413);
    assert_eq!(refused["message"], "Request entity too large: limit is 65536");
    assert_eq!(within(jane.begin(REVIEWS, of(100_000))).await, 413);
}

/// The peak of the process stays near that of its start, even for a user with all rights.
#[tokio::test]
async fn wide_bodies_of_an_administrator_take_little_memory() {
    let server = Server::standalone().await;
    let admin = server.admin();
    admin.post(MAPS, &config_map("map", "1")).await.expect(201);
    let one = format!("{MAPS}/map");
    let sets = |count: usize| {
        let head = r#"{"metadata":{"name":"map","managedFields":[{"fieldsV1":{"a":["#;
        Bytes::from(format!("{head}{}0]}}}}]}}}}", r#"{"a":0},"#.repeat(count)))
    };
    let keys = |count: usize| {
        let keys: String = (0..count).map(|at| format!(r#""k{at:05}":"v","#)).collect();
        Bytes::from(format!(r#"{{"metadata":{{"name":"map"}},"data":{{{keys}"k":"v"}}}}"#))
    };
    let before = server.memory_peak();
    let mut answers = std::collections::BTreeMap::new();
    for body in [sets(18_000), sets(300_000), keys(60_000)] {
        for (method, path, kind) in [
            (Method::PUT, &one, "application/json"),
            (Method::PUT, &one, "application/yaml"),
            (Method::PATCH, &one, "application/merge-patch+json"),
        ] {
            let headers = [("content-type", kind)];
            let answer = admin.send_bytes(method, path, body.clone(), &headers).await;
            *answers.entry(answer.code).or_insert(0) += 1;
        }
    }
    let grown = server.memory_peak() - before;
    assert!(grown < MEMORY_MAX, "{} MiB more, {answers:?}", grown >> 20);
    assert!(answers[&413] > 0 && answers[&200] > 0, "{answers:?}");
}

/// Nodes of a pool write leases and events, which are small.
#[tokio::test]
async fn large_body_of_a_node_is_refused_before_it_has_come() {
    let server = Server::start(&["--nodepool", "hangzhou", "--initial-members", "n1"]).await;
    for path in [LEASES, "/api/v1/namespaces/default/events"] {
        let code = within(server.node("n1").begin(path, of(40 << 10))).await;
        assert_eq!(code, 413, "{path}");
    }
    let admin = server.admin();
    let large = json!({"metadata": {"name": "large"}, "data": {"k": "x".repeat(200 << 10)}});
    admin
        .post("/api/v1/namespaces/kube-system/configmaps", &large)
        .await
        .expect(201);
}

/// Two users hold all room for large bodies, and never end them: they lose it to another one, and small ones never
/// wait.
#[tokio::test]
async fn unfinished_large_bodies_delay_large_ones_alone() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let mut held = JoinSet::new();
    for user in ["a", "b"] {
        let user = server.user(user, &["system:masters"]);
        held.spawn(async move { user.begin(MAPS, of(1 << 20)).await });
    }
    let large = json!({"metadata": {"name": "large"}, "data": {"k": "x".repeat(200 << 10)}});
    // Once both have begun, each of these waits for the room of one that is lost.
    let others = async {
        loop {
            admin.post(MAPS, &large).await.expect(201);
            admin.delete(&format!("{MAPS}/large")).await.expect(200);
            if let Some(lost) = held.join_next().now_or_never() {
                return lost.expect("two have begun").unwrap();
            }
        }
    };
    let small = async {
        admin.post(MAPS, &config_map("small", "1")).await.expect(201);
        let lease = json!({"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}});
        server.node("n1").post(LEASES, &lease).await.expect(201);
    };
    let (lost, ()) = tokio::join!(within(others), small);
    assert_eq!(lost, 429);
}
