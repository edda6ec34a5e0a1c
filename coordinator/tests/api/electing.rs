//! The election lease of a pool under a hostile member: permitted writers, the time for which it protects its holder,
//! and requests that are never refused.

use serde_json::{Value, json};
use yurt_test_support::eventually;

use crate::harness::{Answer, Client, Server, rv};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const ELECTION: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/yurthub";
/// Maximum number of seconds of silence for which a holder is protected.
const PROTECTED_MAX: u64 = 60;

async fn pool() -> Server {
    Server::start(&["--nodepool", "hangzhou", "--initial-members", "n1,n2,n3"]).await
}

fn lease(holder: &str, seconds: i64) -> Value {
    json!({
        "metadata": {"name": "yurthub"},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds},
    })
}

async fn elect(client: &Client, holder: &str) -> Value {
    client.post(LEASES, &lease(holder, 15)).await.expect(201)
}

/// A PUT over the stored state, with its resourceVersion.
async fn put(client: &Client, change: impl Fn(&mut Value)) -> Answer {
    let mut lease = client.get(ELECTION).await.expect(200);
    change(&mut lease);
    client.put(ELECTION, &lease).await
}

async fn hold(client: &Client, holder: &str) -> Answer {
    put(client, |lease| lease["spec"]["holderIdentity"] = json!(holder)).await
}

#[tokio::test]
async fn nobody_but_its_node_writes_the_lease_of_a_leader_that_renews() {
    let server = pool().await;
    let (leader, thief) = (server.node("n1"), server.node("n2"));
    elect(&leader, "n1_a").await;
    let attempts: [fn(&mut Value); 5] = [
        |lease| lease["spec"]["holderIdentity"] = json!(""),
        |lease| lease["spec"]["holderIdentity"] = json!("n2_a"),
        |lease| lease["spec"]["renewTime"] = json!("2026-01-01T00:00:09.000000Z"),
        |lease| lease["metadata"]["annotations"] = json!({"a": "b"}),
        |_| {},
    ];
    for (number, attempt) in attempts.into_iter().enumerate() {
        let refused = put(&thief, attempt).await;
        let message = refused.expect(409)["message"].as_str().unwrap().to_owned();
        assert!(
            message.contains("held by \\\"n1_a\\\"") || message.contains("held by \"n1_a\""),
            "{number}: {message}"
        );
    }
    let patch = json!({"spec": {"holderIdentity": ""}});
    assert_eq!(thief.merge(ELECTION, &patch).await.code, 409, "a patch");
    let renewed = put(&leader, |lease| {
        lease["spec"]["renewTime"] = json!("2026-01-01T00:00:09.000000Z")
    })
    .await;
    assert_eq!(renewed.header("yurt-epoch"), Some("1"), "nothing changed hands");
    hold(&leader, "").await.expect(200);
    let taken = hold(&thief, "n2_a").await;
    assert_eq!(taken.header("yurt-epoch"), Some("3"), "what was given back is free");
}

#[tokio::test]
async fn one_write_keeps_the_lease_for_a_minute_at_the_most() {
    let mut server = pool().await;
    let refused = server.node("n1").post(LEASES, &lease("n1_a", 2_147_483_647)).await;
    let refused = refused.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "spec.leaseDurationSeconds");
    assert!(
        refused["message"].as_str().unwrap().contains("at most 300"),
        "{refused:?}"
    );
    server.node("n1").post(LEASES, &lease("n1_a", 300)).await.expect(201);
    let longer = put(&server.node("n1"), |lease| {
        lease["spec"]["leaseDurationSeconds"] = json!(301)
    })
    .await;
    longer.expect(422);
    server.kill();
    server.start_again().await;
    let refused = hold(&server.node("n2"), "n2_a").await.expect(409);
    let message = refused["message"].as_str().unwrap();
    let seconds = message
        .split("again in ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(seconds.is_some_and(|seconds| seconds <= PROTECTED_MAX), "{message}");
}

/// Node of the leader in the metrics, and the two fields about the holder in the state of the feed.
async fn reported_leader(server: &Server) -> (bool, Value, Value) {
    let metrics = server.admin().get("/metrics").await.expect(200);
    let leads = metrics
        .as_str()
        .unwrap()
        .contains("yurt_coordinator_leader{node=\"n1\"} 1");
    let state = server.admin().get("/yurt/v1/feed").await.expect(200);
    (leads, state["holder"].clone(), state["holderSilentSince"].clone())
}

/// A leader that lost power releases nothing, and without the cloud no other hub is a candidate.
#[tokio::test]
async fn leader_is_reported_as_silent_once_its_lease_has_expired() {
    let server = pool().await;
    let leader = server.node("n1");
    elect(&leader, "n1_a").await;
    assert_eq!(reported_leader(&server).await, (true, json!("n1_a"), Value::Null));
    put(&leader, |lease| lease["spec"]["leaseDurationSeconds"] = json!(1))
        .await
        .expect(200);
    let since = eventually("the lease expires", async || match reported_leader(&server).await {
        (false, holder, Value::String(since)) => {
            assert_eq!(holder, "n1_a", "the lease still names its holder");
            Some(since)
        }
        _ => None,
    })
    .await;
    assert!(since.ends_with('Z'), "a time: {since}");
    put(&leader, |lease| lease["spec"]["leaseDurationSeconds"] = json!(15))
        .await
        .expect(200);
    assert_eq!(reported_leader(&server).await, (true, json!("n1_a"), Value::Null));
}

#[tokio::test]
async fn node_raises_the_count_of_transitions_by_one_at_most() {
    let server = pool().await;
    let (node, admin) = (server.node("n1"), server.admin());
    let mut first = lease("n1_a", 15);
    first["spec"]["leaseTransitions"] = json!(2);
    node.post(LEASES, &first).await.expect(422);
    elect(&node, "n1_a").await;
    let count = async |client: &Client, count: i64| {
        let change = |lease: &mut Value| lease["spec"]["leaseTransitions"] = json!(count);
        put(client, change).await
    };
    let refused = count(&node, i64::from(i32::MAX)).await.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "spec.leaseTransitions");
    for (to, code) in [(1, 200), (3, 422), (2, 200), (0, 200)] {
        let answer = count(&node, to).await;
        assert_eq!(answer.code, code, "{to}: {:?}", answer.body);
    }
    count(&admin, i64::from(i32::MAX)).await.expect(200);
    hold(&node, "").await.expect(200);
}

/// A member could fill the lease up to the limit of a node's objects, and then free it.
#[tokio::test]
async fn node_that_takes_the_lease_replaces_all_of_it() {
    let server = pool().await;
    let (filler, successor) = (server.node("n1"), server.node("n2"));
    elect(&filler, "n1_a").await;
    let fill = |lease: &mut Value| {
        lease["metadata"]["annotations"] = json!({"filled": "x".repeat(15_000)});
        lease["metadata"]["managedFields"] = json!([{
            "manager": "filled", "operation": "Apply", "apiVersion": "coordination.k8s.io/v1",
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:leaseDurationSeconds": {}}},
        }]);
    };
    let filled = put(&filler, fill).await.expect(200).to_string();
    assert_eq!(filled.matches("\"filled\"").count(), 2, "{filled}");
    hold(&filler, "").await.expect(200);
    let mut blank = lease("n2_a", 15);
    blank["metadata"]["resourceVersion"] =
        server.admin().get(ELECTION).await.expect(200)["metadata"]["resourceVersion"].clone();
    blank["metadata"]["managedFields"] = json!([{}]);
    let taken = successor.put(ELECTION, &blank).await.expect(200).to_string();
    assert!(!taken.contains("filled"), "{taken}");
}

#[tokio::test]
async fn administrator_is_never_refused() {
    let server = pool().await;
    let admin = server.admin();
    elect(&server.node("n1"), "n1_a").await;
    let deleted = admin.delete(ELECTION).await;
    assert_eq!(deleted.code, 200, "{:?}", deleted.body);
    elect(&server.node("n2"), "n2_a").await;
    let released = admin.merge(ELECTION, &json!({"spec": {"holderIdentity": null}})).await;
    assert_eq!(released.code, 200, "{:?}", released.body);
    hold(&server.node("n3"), "n3_a").await.expect(200);
}

#[tokio::test]
async fn node_takes_the_lease_once_per_retry_period() {
    let server = pool().await;
    let (one, other) = (server.node("n1"), server.node("n2"));
    elect(&one, "n1_a").await;
    hold(&one, "").await.expect(200);
    for holder in ["n1_a", "n1_b"] {
        let refused = hold(&one, holder).await;
        assert_eq!(refused.code, 429, "{:?}", refused.body);
        let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=2).contains(&seconds), "{seconds}");
    }
    hold(&other, "n2_a").await.expect(200);
    hold(&other, "").await.expect(200);
    assert_eq!(hold(&one, "").await.code, 409, "an empty lease is for candidates");
}

#[tokio::test]
async fn holder_that_is_no_member_protects_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("members");
    std::fs::write(&file, "n1,n2").unwrap();
    let flag = format!("@{}", file.display());
    let mut server = Server::start(&["--nodepool", "hangzhou", "--initial-members", &flag]).await;
    let elected = elect(&server.node("n1"), "n1_a").await;
    std::fs::write(&file, "n2").unwrap();
    server.kill();
    server.start_again().await;
    server.node("n1").put(ELECTION, &elected).await.expect(403);
    let taken = hold(&server.node("n2"), "n2_a").await;
    assert_eq!(taken.header("yurt-epoch"), Some("2"), "{:?}", taken.body);
    assert_ne!(rv(&taken.expect(200)), rv(&elected));
}

/// The lease of the pool's data is no election: a leader that left a long duration in it kept every successor out after
/// a restart, when renewals may have been lost.
#[tokio::test]
async fn sync_lease_of_a_former_leader_keeps_no_successor_out() {
    let mut server = pool().await;
    let former = server.node("n1");
    elect(&former, "n1_a").await;
    let sync = json!({
        "metadata": {"name": "leader-informer-sync"},
        "spec": {"holderIdentity": "n1_a", "leaseDurationSeconds": i32::MAX},
    });
    former.post(LEASES, &sync).await.expect(201);
    hold(&former, "").await.expect(200);
    server.kill();
    server.start_again().await;
    let successor = server.node("n2");
    hold(&successor, "n2_a").await.expect(200);
    let path = format!("{LEASES}/leader-informer-sync");
    let mut sync = successor.get(&path).await.expect(200);
    sync["spec"]["holderIdentity"] = json!("n2_a");
    successor.put(&path, &sync).await.expect(200);
}
