//! Bodies that do not arrive, and too many bodies: others are still served.

use bytes::Bytes;
use serde_json::json;
use tokio::task::JoinSet;
use yurt_test_support::eventually;

use crate::harness::{Client, PATIENCE, Server, config_map};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
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

/// Two users hold all room for large bodies, and never end them.
#[tokio::test]
async fn unfinished_large_bodies_delay_large_ones_alone() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let mut held = JoinSet::new();
    for user in ["a", "b"] {
        let user = server.user(user, &["system:masters"]);
        for _ in 0..2 {
            let user: Client = user.clone();
            held.spawn(async move { user.begin(MAPS, of(1 << 20)).await });
        }
    }
    let large = json!({"metadata": {"name": "large"}, "data": {"k": "x".repeat(200 << 10)}});
    // Once all of them have begun, there is no room; a client retries.
    let full = async || {
        let answer = admin.post(MAPS, &large).await;
        admin.delete(&format!("{MAPS}/large")).await;
        (answer.code == 429).then_some(())
    };
    eventually("there is no room", full).await;
    admin.post(MAPS, &config_map("small", "1")).await.expect(201);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = json!({"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}});
    server.node("n1").post(leases, &lease).await.expect(201);
    held.abort_all();
    while held.join_next().await.is_some() {}
    admin.post(MAPS, &large).await.expect(201);
}
