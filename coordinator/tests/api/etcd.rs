//! Coordinators over one etcd: together they are one server.

use serde_json::json;
use yurt_test_support::etcd::EtcdMember;
use yurt_test_support::eventually;

use crate::harness::{Client, Server, config_map, rv};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

async fn two(etcd: &EtcdMember) -> ([Server; 2], [Client; 2]) {
    let servers = [Server::sharing(etcd).await, Server::sharing(etcd).await];
    let admins = [servers[0].admin(), servers[1].admin()];
    (servers, admins)
}

/// After one has answered a write, the other one serves it. Conformance: 3.E18
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn reads_at_one_reflect_writes_at_the_other() {
    let etcd = EtcdMember::single(None, &[]);
    let (_servers, [one, other]) = two(&etcd).await;
    for n in 0..50 {
        let (name, path) = (format!("c{n}"), format!("{MAPS}/c{n}"));
        let created = one.post(MAPS, &config_map(&name, "1")).await.expect(201);
        assert_eq!(rv(&other.get(&path).await.expect(200)), rv(&created));
        let mut changed = created.clone();
        changed["data"]["key"] = json!("2");
        let changed = other.put(&path, &changed).await.expect(200);
        let listed = one.get(MAPS).await.expect(200);
        let found = listed["items"]
            .as_array()
            .unwrap()
            .iter()
            .find(|item| item["metadata"]["name"] == json!(name));
        assert_eq!(found.unwrap()["data"]["key"], "2");
        // A watch at an RV that only the other one has issued so far begins there.
        let mut watch = one.watch(&format!("{MAPS}?resourceVersion={}", rv(&changed))).await;
        other.delete(&path).await.expect(200);
        assert_eq!(watch.told().await, format!("DELETED {name}"));
        one.get(&path).await.expect(404);
    }
}

/// A write is judged by the stored state, not by the state that its coordinator has received so
/// far.
///
/// Conformance: 5.06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn writes_follow_each_other_across_coordinators() {
    let etcd = EtcdMember::single(None, &[]);
    let (_servers, [one, other]) = two(&etcd).await;
    for n in 0..50 {
        let path = format!("{MAPS}/c");
        let mut map = one.post(MAPS, &config_map("c", "0")).await.expect(201);
        map["data"]["key"] = json!("1");
        let mut map = other.put(&path, &map).await.expect(200);
        map["data"]["key"] = json!("2");
        let map = one.put(&path, &map).await.expect(200);
        // Not a change here, but one there.
        other.merge(&path, &json!({"data": {"key": "1"}})).await.expect(200);
        assert_eq!(
            one.merge(&path, &json!({"data": {"key": "2"}})).await.expect(200)["data"]["key"],
            "2"
        );
        assert_eq!(other.get(&path).await.expect(200)["data"]["key"], "2");
        // Of two writes based on the same state one wins.
        let base = one.get(&path).await.expect(200);
        let bid = |who: &str| {
            let mut bid = base.clone();
            bid["data"]["key"] = json!(who);
            bid
        };
        let (bid_one, bid_other) = (bid("one"), bid("other"));
        let (left, right) = tokio::join!(one.put(&path, &bid_one), other.put(&path, &bid_other));
        let mut codes = [left.code, right.code];
        codes.sort_unstable();
        assert_eq!(codes, [200, 409], "round {n}");
        other.put(&path, &map).await.expect(409);
        other.delete(&path).await.expect(200);
        one.delete(&path).await.expect(404);
        let space = json!({"metadata": {"name": format!("n{n}")}});
        other.post("/api/v1/namespaces", &space).await.expect(201);
        let inside = format!("/api/v1/namespaces/n{n}/configmaps");
        one.post(&inside, &config_map("c", "0")).await.expect(201);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn election_is_guarded_at_every_coordinator() {
    let etcd = EtcdMember::single(None, &[]);
    let (servers, [one, _]) = two(&etcd).await;
    let thief = servers[1].user("thief", &["system:masters"]);
    let path = format!("{LEASES}/election");
    let spec = json!({"holderIdentity": "a", "leaseDurationSeconds": 3, "renewTime": "2026-01-01T00:00:00.000000Z"});
    one.post(LEASES, &json!({"metadata": {"name": "election"}, "spec": spec}))
        .await
        .expect(201);
    let take = json!({"spec": {"holderIdentity": "b"}});
    // Longer than the lease lasts: each renewal at one is visible at the other.
    for second in 1..8 {
        let renewed = json!({"spec": {"renewTime": format!("2026-01-01T00:00:{second:02}.000000Z")}});
        one.merge(&path, &renewed).await.expect(200);
        thief.merge(&path, &take).await.expect(409);
        tokio::time::sleep(std::time::Duration::from_millis(700)).await;
        thief.merge(&path, &take).await.expect(409);
    }
    let silent = async || (thief.merge(&path, &take).await.code == 200).then_some(());
    eventually("a silent lease is taken", silent).await;
    let back = one
        .merge(&path, &json!({"spec": {"holderIdentity": "a"}}))
        .await
        .expect(409);
    assert!(
        back["message"]
            .as_str()
            .unwrap()
            .contains("through another coordinator"),
        "{back}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn without_etcd_reads_of_any_version_go_on_and_the_rest_says_why() {
    let mut etcd = EtcdMember::single(None, &[]);
    let server = Server::sharing(&etcd).await;
    let admin = server.admin();
    let created = admin.post(MAPS, &config_map("c", "0")).await.expect(201);
    let mut watch = admin.watch(&format!("{MAPS}?resourceVersion={}", rv(&created))).await;
    etcd.kill();
    for refused in [
        admin.post(MAPS, &config_map("d", "0")).await,
        admin.get(&format!("{MAPS}/c")).await,
        admin.get(MAPS).await,
    ] {
        assert!(matches!(refused.code, 503 | 504), "{refused:?}");
        // The outcome of a write that ends with 504 is unknown: clients must not repeat it by themselves.
        let is_repeatable = refused.code == 503;
        assert_eq!(refused.header("retry-after").is_some(), is_repeatable, "{refused:?}");
    }
    let old = admin.get(&format!("{MAPS}?resourceVersion=0")).await.expect(200);
    assert_eq!(rv(&old["items"][0]), rv(&created));
    admin.get(&format!("{MAPS}/c?resourceVersion=0")).await.expect(200);
    let ready = |code: u16| {
        let admin = &admin;
        async move || (admin.try_get("/readyz").await == Some(code)).then_some(())
    };
    eventually("readiness notices", ready(500)).await;
    assert_eq!(admin.try_get("/livez").await, Some(200));
    etcd.start();
    eventually("it is ready again", ready(200)).await;
    admin.post(MAPS, &config_map("e", "0")).await.expect(201);
    // The outcome of the write that met a dying etcd is open.
    let mut told = watch.told().await;
    if told == "ADDED d" {
        told = watch.told().await;
    }
    assert_eq!(told, "ADDED e", "the stream stayed open");
}

/// Connections made during the wait go on when it is ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn a_start_that_waited_for_etcd_ends_ready() {
    let mut etcd = EtcdMember::single(None, &[]);
    etcd.kill();
    let server = Server::waiting(&["--profile", "standalone", "--etcd-servers", &etcd.url()]).await;
    let admin = server.admin();
    admin.post(MAPS, &config_map("a", "1")).await.expect(503);
    etcd.start();
    let ready = async || (admin.try_get("/readyz").await == Some(200)).then_some(());
    eventually("it is ready", ready).await;
    admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    admin.get(MAPS).await.expect(200);
}
