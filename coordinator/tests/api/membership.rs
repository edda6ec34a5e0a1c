//! Which nodes belong to the pool, from flags and files.

use std::time::Duration;

use serde_json::{Value, json};
use yurt_test_support::eventually;

use crate::feeding::{Leader, event, service};
use crate::harness::{Server, rv};

const ELECTION: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/yurthub";
const NODE_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

fn members(since: &[(&str, u64)]) -> Vec<Value> {
    let member =
        |(name, at): &(&str, u64)| json!({"metadata": {"name": name, "uid": name, "resourceVersion": at.to_string()}});
    since.iter().map(member).collect()
}

#[tokio::test]
async fn strangers_are_told_how_to_become_members() {
    let server = Server::start(&["--nodepool", "hangzhou", "--initial-members", "n1,n2"]).await;
    let refused = server.node("n9").get("/api/v1/services").await.expect(403);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("node \"n9\" is not a member of NodePool \"hangzhou\""),
        "{message}"
    );
    let member = server.node("n1");
    assert_eq!(
        member.get("/api/v1/services").await.code,
        429,
        "let in; nobody has fed them yet"
    );
    let state = member.get("/yurt/v1/feed").await.expect(200);
    assert_eq!(state["members"], json!(2));
}

#[tokio::test]
async fn members_only_may_be_elected_and_only_in_their_own_name() {
    let server = Server::start(&["--initial-members", "n1,n2"]).await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let lease = |holder: &str| json!({"metadata": {"name": "yurthub"}, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15}});
    server.node("n9").post(leases, &lease("n9_1")).await.expect(403);
    for holder in ["n9_1", "n2_1"] {
        let refused = server.node("n1").post(leases, &lease(holder)).await.expect(403);
        let message = refused["message"].as_str().unwrap();
        assert!(
            message.contains("only be elected under its own name"),
            "{holder}: {message}"
        );
    }
    let refused = server.admin().post(leases, &lease("n9_1")).await.expect(403);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("only members of the NodePool may be elected"),
        "{message}"
    );
    let elected = server.node("n1").post(leases, &lease("n1_1")).await;
    assert_eq!(elected.header("yurt-epoch"), Some("1"));
    elected.expect(201);
}

#[tokio::test]
async fn lease_of_a_node_that_left_the_pool_goes_and_no_other() {
    let server = Server::over_some_store(&["--nodepool", "hangzhou", "--departed-lease-ttl", "3s"]).await;
    let leader = Leader::elect(&server, "n1").await;
    leader.feed_members(&["n1", "n2", "n3"]).await;
    let lease = |name: &str| json!({"metadata": {"name": name}, "spec": {"holderIdentity": name}});
    for node in ["n1", "n2", "n3"] {
        server.node(node).post(NODE_LEASES, &lease(node)).await.expect(201);
    }
    let at = rv(&server.node("n1").get(NODE_LEASES).await.expect(200));
    let mut watch = server
        .node("n1")
        .watch(&format!("{NODE_LEASES}?resourceVersion={at}"))
        .await;
    leader
        .snapshot("members", 0, 11, &members(&[("n1", 10), ("n3", 10)]))
        .await
        .expect(200);
    assert_eq!(watch.told().await, "DELETED n2");
    // Both kept silent as long as it did.
    assert!(watch.within(Duration::from_secs(3)).await.is_err(), "members stay");
    leader
        .snapshot("members", 0, 12, &members(&[("n1", 10), ("n2", 12), ("n3", 10)]))
        .await
        .expect(200);
    server.node("n2").post(NODE_LEASES, &lease("n2")).await.expect(201);
}

#[tokio::test]
async fn leader_that_left_the_pool_is_stopped_and_a_member_takes_over() {
    let server = Server::pool().await;
    let leader = Leader::elect(&server, "n1").await;
    leader.feed_members(&["n1", "n2"]).await;
    leader
        .snapshot("services", 0, 100, &[service("a", 50)])
        .await
        .expect(200);
    let mut lease = leader.client.get(ELECTION).await.expect(200);
    lease["spec"]["leaseDurationSeconds"] = json!(2);
    let lease = leader.client.put(ELECTION, &lease).await.expect(200);
    let refused = leader.snapshot("members", 0, 11, &members(&[("n2", 10)])).await;
    assert_eq!(refused.expect(409)["reason"], "members", "a member has to say so");
    let successor = server.node("n2");
    // The leader keeps silent: nobody replaces it before its lease is over.
    let taken = eventually("a member must take over", async || {
        let mut lease = successor.get(ELECTION).await.expect(200);
        lease["spec"]["holderIdentity"] = json!("n2_1");
        Some(successor.put(ELECTION, &lease).await).filter(|answer| answer.code != 409)
    })
    .await;
    assert_eq!(taken.header("yurt-epoch"), Some("2"));
    taken.expect(200);
    let successor = Leader::again(&server, "n2").await;
    successor
        .snapshot("members", 0, 11, &members(&[("n2", 10)]))
        .await
        .expect(200);
    let more = json!([event("ADDED", service("b", 101))]);
    leader.events(100, more.clone(), 101).await.expect(403);
    let refused = leader.client.put(ELECTION, &lease).await.expect(403);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("\"n1\" is not a member"), "{message}");
    successor.events(100, more, 101).await.expect(200);
    leader.client.get(ELECTION).await.expect(403);
}
