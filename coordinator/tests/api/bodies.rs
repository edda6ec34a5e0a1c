//! Bodies that do not arrive, and too many bodies: others are still served.

use bytes::Bytes;
use futures_util::FutureExt as _;
use serde_json::json;
use tokio::task::JoinSet;

use crate::harness::{PATIENCE, Server, config_map};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
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

/// Two users hold all room for large bodies, and never end them: they lose it to another one, and small ones never wait.
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
