//! Members of the pool, from flags and files.

use std::time::Duration;

use serde_json::{Value, json};
use yurt_test_support::eventually;

use crate::feeding::{Leader, event, service};
use crate::harness::{Server, TRUSTING, rv};

const ELECTION: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/yurthub";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const MEMBERS: &str = "/apis/yurt.openyurt.io/v1/members";
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
        "admitted; they are not fed yet"
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
    let server = Server::over_some_store(&["--nodepool", "hangzhou", TRUSTING, "--departed-lease-ttl", "3s"]).await;
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
    // The other two leases have been unchanged for as long as that of n2.
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
    // The leader is silent: there is no successor before its lease expires.
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

#[tokio::test]
async fn fresh_store_trusts_nobody_unless_it_is_asked_to() {
    let server = Server::waiting(&["--nodepool", "hangzhou"]).await;
    let node = server.node("n3");
    let lease =
        json!({"metadata": {"name": "yurthub"}, "spec": {"holderIdentity": "n3_1", "leaseDurationSeconds": 15}});
    for refused in [node.get("/api/v1/services").await, node.post(LEASES, &lease).await] {
        let refused = refused.expect(403);
        let message = refused["message"].as_str().unwrap();
        let says = |part| message.contains(part);
        assert!(
            says("no members yet") && says("--initial-members") && says("--trust-first-leader"),
            "{message}"
        );
    }
    let unready = server.anonymous().get("/readyz").await;
    assert_eq!(unready.code, 500);
    assert!(
        unready.body.as_str().unwrap().contains("[-]members failed"),
        "{:?}",
        unready.body
    );
    assert_eq!(server.anonymous().get("/livez").await.code, 200);
    let state = server.admin().get("/yurt/v1/feed").await.expect(200);
    assert_eq!(
        (&state["members"], &state["membersFrom"]),
        (&json!(0), &json!("nobody"))
    );
    assert!(server.log().contains("Every node is refused"), "{}", server.log());
}

#[tokio::test]
async fn leader_adds_no_members_to_those_of_the_flag_unless_it_is_believed() {
    for (flag, code, basis) in [
        ("--members-from-leader=false", 403, "initial-members"),
        ("--members-from-leader", 429, "initial-members,leader"),
    ] {
        let server = Server::start(&["--nodepool", "hangzhou", "--initial-members", "n1,n2", flag]).await;
        let leader = Leader::elect(&server, "n1").await;
        leader.feed_members(&["n1", "n9"]).await;
        let stranger = server.node("n9").get("/api/v1/services").await;
        assert_eq!(stranger.code, code, "{flag}: {:?}", stranger.body);
        assert_eq!(
            server.node("n2").get("/api/v1/services").await.code,
            429,
            "{flag}: of the flag"
        );
        let state = leader.client.get("/yurt/v1/members").await.expect(200);
        assert_eq!(state["membersFrom"], basis);
    }
}

#[tokio::test]
async fn administrator_voids_what_a_leader_told_of_the_members() {
    let mut server = Server::pool().await;
    let hostile = Leader::elect(&server, "n3").await;
    hostile.feed_members(&["n3"]).await;
    let victim = server.node("n2");
    let refused = victim.get("/api/v1/services").await.expect(403);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("DELETE /yurt/v1/members"), "{message}");
    hostile.client.delete("/yurt/v1/members").await.expect(403);
    let mut watch = hostile.client.watch(MEMBERS).await;
    let voided = server.admin().delete("/yurt/v1/members").await.expect(200);
    assert_eq!(
        (&voided["members"], &voided["membersFrom"]),
        (&Value::Null, &json!("first-leader"))
    );
    while watch.next().await.is_some() {}
    assert_eq!(
        victim.get(MEMBERS).await.code,
        429,
        "admitted again, and no leader has fed the members"
    );
    server.kill();
    server.start_again().await;
    assert_eq!(server.node("n2").get(MEMBERS).await.code, 429, "also after a crash");
    server.admin().delete(ELECTION).await.expect(200);
    let honest = Leader::elect(&server, "n2").await;
    honest.feed_members(&["n1", "n2"]).await;
    server.node("n3").get("/api/v1/services").await.expect(403);
    server.node("n1").get(MEMBERS).await.expect(200);
}
