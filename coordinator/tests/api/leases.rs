//! Leases: validation, renewals that live in memory, and the guard of elections.

use serde_json::{Value, json};
use yurt_test_support::eventually;

use crate::harness::{Client, Server, rv};

const ELECTION: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

fn lease(name: &str, holder: &str, seconds: i64) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": "2026-01-01T00:00:00.000000Z"},
    })
}

async fn renew(client: &Client, path: &str, second: u32) -> Value {
    let mut lease = client.get(path).await.expect(200);
    lease["spec"]["renewTime"] = json!(format!("2026-01-01T00:00:{second:02}.000000Z"));
    client.put(path, &lease).await.expect(200)
}

/// Conformance: 3.B03, 3.B04, 5.01, 5.03
#[tokio::test]
async fn leases_need_a_version_and_valid_numbers() {
    let server = Server::standalone().await;
    let admin = server.admin();
    admin.post(ELECTION, &lease("l", "a", 0)).await.expect(422);
    admin.post(ELECTION, &lease("l", "a", 15)).await.expect(201);
    let unconditional = admin
        .put(&format!("{ELECTION}/l"), &lease("l", "a", 15))
        .await
        .expect(422);
    assert!(
        unconditional["message"]
            .as_str()
            .unwrap()
            .contains("must be specified for an update")
    );
    admin
        .put(&format!("{ELECTION}/new"), &lease("new", "a", 15))
        .await
        .expect(201);
    for path in [
        "/api/v1/namespaces/default/configmaps/new",
        "/api/v1/namespaces/default/secrets/new",
        "/api/v1/nodes/new",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/new",
    ] {
        let body = json!({"metadata": {"name": "new"}, "addressType": "IPv4"});
        assert_eq!(admin.put(path, &body).await.expect(404)["reason"], "NotFound", "{path}");
    }
    let mut with_uid = lease("other", "a", 15);
    with_uid["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    admin.put(&format!("{ELECTION}/other"), &with_uid).await.expect(409);
}

#[tokio::test]
async fn blind_writes_of_another_elector_are_refused_while_the_lease_is_alive() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let path = format!("{ELECTION}/l");
    for (name, seconds) in [("l", 600), ("silent", 1)] {
        admin
            .post(&format!("{ELECTION}?fieldManager=a"), &lease(name, "a", seconds))
            .await
            .expect(201);
    }
    let steal = json!({"spec": {"holderIdentity": "b"}});
    let touch = json!({"spec": {"renewTime": "2026-01-01T00:00:09.000000Z"}});
    for patch in [&steal, &touch, &json!({"spec": {"holderIdentity": ""}})] {
        let refused = admin.merge(&format!("{path}?fieldManager=b"), patch).await.expect(409);
        assert_eq!(refused["reason"], "Conflict");
    }
    admin.merge(&format!("{path}?fieldManager=a"), &touch).await.expect(200);
    let silent = format!("{ELECTION}/silent");
    eventually("a lease that is not renewed is taken", async || {
        let taken = admin.merge(&format!("{silent}?fieldManager=b"), &steal).await;
        (taken.code == 200).then_some(())
    })
    .await;
    let refused = admin.merge(&format!("{silent}?fieldManager=a"), &touch).await;
    assert_eq!(refused.code, 409, "the old owner has lost it");
}

/// Conformance: 5.04
#[tokio::test]
async fn versioned_takeover_follows_optimistic_locking() {
    let mut server = Server::standalone().await;
    let (admin, other) = (server.admin(), server.user("other", &["system:masters"]));
    let path = format!("{ELECTION}/l");
    let held_by = |holder: &str, lease: &Value| {
        let mut lease = lease.clone();
        lease["spec"]["holderIdentity"] = json!(holder);
        lease
    };
    let created = admin.post(ELECTION, &lease("l", "a", 600)).await.expect(201);
    let released = other.put(&path, &held_by("", &created)).await.expect(200);
    let stale = other.put(&path, &held_by("b", &created)).await;
    assert_eq!(stale.code, 409, "the version it is based on is not the last");
    other.put(&path, &held_by("b", &released)).await.expect(200);
    // Renewals of loaded leases may have been lost: no takeover, with or without version.
    server.kill();
    server.start_again().await;
    let (admin, other) = (server.admin(), server.user("other", &["system:masters"]));
    let found = admin.get(&path).await.expect(200);
    let refused = admin.put(&path, &held_by("a", &found)).await.expect(409);
    assert!(refused["message"].as_str().unwrap().contains("may have been lost"));
    // Later writes cannot have been lost.
    let renewed = renew(&other, &path, 9).await;
    admin.put(&path, &held_by("a", &renewed)).await.expect(200);
    let created = admin.post(ELECTION, &lease("new", "a", 600)).await.expect(201);
    let new = format!("{ELECTION}/new");
    other.put(&new, &held_by("b", &created)).await.expect(200);
}

/// Conformance: 3.E17
#[tokio::test]
async fn times_have_the_precision_of_their_type() {
    let server = Server::standalone().await;
    let admin = server.admin();
    for (time, code) in [
        ("2026-01-01T00:00:07.123456Z", 201),
        ("2026-01-01T00:00:07.123456789Z", 400),
        ("2026-01-01T00:00:07Z", 400),
    ] {
        let mut body = lease("l", "a", 15);
        body["spec"]["renewTime"] = json!(time);
        admin.post(ELECTION, &body).await.expect(code);
    }
    let patch = json!({"spec": {"renewTime": "2026-01-01T02:00:08.500000+02:00"}});
    let lease = admin.merge(&format!("{ELECTION}/l"), &patch).await.expect(200);
    assert_eq!(lease["spec"]["renewTime"], "2026-01-01T00:00:08.500000Z");
    let created = lease["metadata"]["creationTimestamp"].as_str().unwrap();
    assert_eq!((created.len(), created.ends_with('Z')), (20, true), "{created}");
}

/// Conformance: 7.40, 7.42
#[tokio::test]
async fn acknowledged_transitions_survive_a_kill_and_versions_never_go_back() {
    let mut server = Server::start(&["--profile", "standalone"]).await;
    let admin = server.admin();
    let path = format!("{ELECTION}/l");
    admin.post(ELECTION, &lease("l", "a", 2)).await.expect(201);
    let mut last = String::new();
    for second in 1..5 {
        last = rv(&renew(&admin, &path, second).await);
    }
    server.kill();
    server.start_again().await;
    let admin = server.admin();
    let found = admin.get(&path).await.expect(200);
    assert_eq!(found["spec"]["holderIdentity"], "a");
    assert!(rv(&found) > last, "renewals may be lost, resourceVersions not");
    let mut watch = admin.watch(&format!("{ELECTION}?resourceVersion={last}")).await;
    assert_eq!(
        watch.told().await,
        "MODIFIED l",
        "a client at an issued version receives the lease again"
    );
}

/// Conformance: 5.05
#[tokio::test]
async fn clean_stop_keeps_the_last_renewal() {
    let mut server = Server::standalone().await;
    let admin = server.admin();
    let path = format!("{ELECTION}/l");
    admin.post(ELECTION, &lease("l", "a", 15)).await.expect(201);
    renew(&admin, &path, 7).await;
    server.stop();
    server.start_again().await;
    let admin = server.admin();
    let found = admin.get(&path).await;
    assert_eq!(found.body["spec"]["renewTime"], "2026-01-01T00:00:07.000000Z");
    assert_eq!(admin.get(&path).await.bytes, found.bytes, "followers compare bytes");
}
