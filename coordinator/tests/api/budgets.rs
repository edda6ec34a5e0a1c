//! Limits on the bytes that a leader, and a member, may store.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::feeding::{Leader, event, service};
use crate::harness::{Server, TRUSTING};

const EVENTS: &str = "/api/v1/namespaces/x/events";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces";

fn large(name: &str, version: u64, bytes: usize) -> Value {
    let mut service = service(name, version);
    service["metadata"]["annotations"] = json!({ "padding": "x".repeat(bytes) });
    service
}

async fn metric(server: &Server, series: &str) -> f64 {
    let text = server.admin().get("/metrics").await.body;
    let line = text
        .as_str()
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix(series));
    line.unwrap_or_else(|| panic!("{series} must be shown"))
        .trim()
        .parse()
        .unwrap()
}

#[tokio::test]
async fn leader_fills_the_pool_up_to_its_limit_and_what_is_held_stays() {
    let server = Server::start(&["--nodepool", "hangzhou", TRUSTING, "--max-pool-bytes", "100000"]).await;
    let leader = Leader::elect(&server, "n1").await;
    leader.feed_members(&["n1", "n2"]).await;
    let few = [large("a", 10, 20_000), large("b", 11, 20_000)];
    leader.snapshot("services", 0, 100, &few).await.expect(200);
    let many: Vec<Value> = (0..5).map(|n| large(&format!("c{n}"), 110 + n, 30_000)).collect();
    let refused = leader.snapshot("services", 0, 200, &many).await.expect(413);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("services") && message.contains("--max-pool-bytes"),
        "{message}"
    );
    // Each of these arrives alone, on top of the held data, which counts as well.
    for (n, code) in [(1, 200), (2, 413)] {
        let at = 100 + n;
        let events = json!([event("ADDED", large(&format!("d{n}"), at, 35_000))]);
        assert_eq!(leader.events(at - 1, events, at).await.code, code, "event {n}");
    }
    let smaller = json!([event("MODIFIED", service("a", 102))]);
    leader.events(101, smaller, 102).await.expect(200);
    let reader = server.node("n2");
    let served = reader.get("/api/v1/services").await.expect(200);
    assert_eq!(served["items"].as_array().unwrap().len(), 3, "what is held is served");
    let held = metric(&server, "yurt_coordinator_stored_bytes{of=\"pool\"}").await;
    let limit = metric(&server, "yurt_coordinator_stored_bytes_limit{of=\"pool\"}").await;
    assert!(held > 50_000.0 && held < limit && limit == 100_000.0, "{held} {limit}");
}

#[tokio::test]
async fn index_that_never_ends_is_refused() {
    let server = Server::start(&["--nodepool", "hangzhou", TRUSTING, "--max-pool-bytes", "100000"]).await;
    let leader = Leader::elect(&server, "n1").await;
    leader.feed_members(&["n1"]).await;
    let mut refused = 0;
    for part in 0..10_u64 {
        let index: Vec<Value> = (0..500).map(|n| json!([format!("x/s{part}-{n}"), "5"])).collect();
        let body = json!({"after": "0", "at": "10", "index": index, "from": part * 500, "more": true});
        let code = leader.call("services/snapshot", body).await.code;
        assert!([200, 409, 413].contains(&code), "{code}");
        refused += usize::from(code == 413);
    }
    assert_eq!(refused, 1, "the first part above the limit ends it");
}

#[tokio::test]
async fn own_objects_have_a_limit_and_heartbeats_go_on_above_it() {
    let server = Server::start(&["--nodepool", "hangzhou", TRUSTING, "--max-own-bytes", "40000"]).await;
    let admin = server.admin();
    let map = |name: &str, bytes: usize| json!({"metadata": {"name": name}, "data": {"a": "x".repeat(bytes)}});
    let maps = "/api/v1/namespaces/default/configmaps";
    admin.post(maps, &map("a", 20_000)).await.expect(201);
    let refused = admin.post(maps, &map("b", 20_000)).await.expect(403);
    assert!(
        refused["message"].as_str().unwrap().contains("--max-own-bytes"),
        "{refused}"
    );
    admin.put(&format!("{maps}/a"), &map("a", 24_000)).await.expect(200);
    admin.post(maps, &map("c", 9_000)).await.expect(201);
    let lease = json!({
        "metadata": {"name": "n1", "annotations": {"a": "x".repeat(5_000)}},
        "spec": {"holderIdentity": "n1", "leaseDurationSeconds": 40},
    });
    server
        .node("n1")
        .post(&format!("{LEASES}/kube-node-lease/leases"), &lease)
        .await
        .expect(201);
    admin.delete(&format!("{maps}/a")).await.expect(200);
    admin.post(maps, &map("b", 5_000)).await.expect(201);
}

#[tokio::test]
async fn nodes_write_small_events_and_leases_and_not_too_many() {
    let server = Server::pool().await;
    let node = server.node("n1");
    let about = |name: &str, message: &str| {
        json!({
            "metadata": {"name": name},
            "involvedObject": {"kind": "Pod", "namespace": "x", "name": "p"},
            "reason": "Because", "message": message, "type": "Normal",
        })
    };
    let refused = node.post(EVENTS, &about("long", &"x".repeat(1_025))).await.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "message");
    let mut padded = about("padded", "short");
    padded["metadata"]["annotations"] = json!({"a": "x".repeat(20_000)});
    node.post(EVENTS, &padded).await.expect(413);
    let lease =
        json!({"metadata": {"name": "n1", "annotations": {"a": "x".repeat(20_000)}}, "spec": {"holderIdentity": "n1"}});
    node.post(&format!("{LEASES}/kube-node-lease/leases"), &lease)
        .await
        .expect(413);
    server
        .admin()
        .post(EVENTS, &about("admin", &"x".repeat(2_000)))
        .await
        .expect(201);
    // In parallel: one more is allowed per second, on a machine of any speed.
    let events: Vec<Value> = (0..150).map(|n| about(&format!("e{n}"), "short")).collect();
    let answers = join_all(events.iter().map(|event| node.post(EVENTS, event))).await;
    let taken = answers.iter().filter(|answer| answer.code == 201).count();
    let refused = answers
        .iter()
        .find(|answer| answer.code != 201)
        .expect("they are too many");
    assert_eq!(refused.code, 429, "{:?}", refused.body);
    assert!(
        refused.header("retry-after").is_some() && (50..150).contains(&taken),
        "{taken}"
    );
    server
        .node("n2")
        .post(EVENTS, &about("other", "short"))
        .await
        .expect(201);
}

/// A renewal stays in memory. Every other change of a lease waits for the disk.
#[tokio::test]
async fn node_changes_its_lease_a_few_times_and_renews_it_without_limit() {
    let server = Server::pool().await;
    let node = server.node("n1");
    let leases = format!("{LEASES}/kube-node-lease/leases");
    let path = format!("{leases}/n1");
    let lease =
        |name: &str| json!({"metadata": {"name": name}, "spec": {"holderIdentity": name, "leaseDurationSeconds": 40}});
    node.post(&leases, &lease("n1")).await.expect(201);
    let renew = async |number: usize| {
        let renewed = format!("2026-01-01T00:00:00.{number:06}Z");
        let patch = json!({"spec": {"renewTime": renewed}});
        node.patch("merge", &path, &patch).await.expect(200);
    };
    for number in 0..150 {
        renew(number).await;
    }
    // One more is allowed per second, on a machine of any speed.
    let mut taken = 0;
    let refused = loop {
        let patch = json!({"spec": {"leaseDurationSeconds": 41 + taken % 2}});
        let answer = node.patch("merge", &path, &patch).await;
        match answer.code {
            200 if taken < 10_000 => taken += 1,
            _ => break answer,
        }
    };
    assert_eq!(refused.code, 429, "{taken}: {:?}", refused.body);
    assert!(taken >= 49 && refused.header("retry-after").is_some(), "{taken}");
    renew(150).await;
    server.node("n2").post(&leases, &lease("n2")).await.expect(201);
}

#[tokio::test]
async fn leases_of_direct_watchers_are_nobodys() {
    let server = Server::pool().await;
    let lease = json!({"metadata": {"name": "yurthub-direct-0"}, "spec": {"holderIdentity": "n1"}});
    server
        .node("n1")
        .post(&format!("{LEASES}/kube-system/leases"), &lease)
        .await
        .expect(403);
}
