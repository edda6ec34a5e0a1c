//! Start of a hub with the disk of another pool or another cluster, or with a damaged file.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use yurt_runtime::http::json as answer_json;
use yurt_test_support::eventually;

use super::cloud::{Cloud, IDENTITY};
use super::harness::TestHub;
use super::offline_events::{self, EVENTS};
use super::offline_tokens;
use super::offline_writes::{self, POD, Stored};
use super::pool::Pool;

const SERVICES: &str = "/api/v1/services";

fn node_of(cloud: &Cloud, pool: &str, name: &str) {
    let labels = json!({"apps.openyurt.io/nodepool": pool});
    cloud.put("nodes", json!({"metadata": {"name": name, "labels": labels}}));
}

fn service(cloud: &Cloud, name: &str) {
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": name}}));
}

fn members(state: &Value) -> u64 {
    state["collections"]["members"]["objects"].as_u64().unwrap()
}

fn services(state: &Value) -> u64 {
    state["collections"]["services"]["objects"].as_u64().unwrap()
}

#[tokio::test]
async fn node_that_changed_its_pool_knows_the_members_of_the_new_one() {
    let cloud = Cloud::start().await;
    for name in ["b1", "b2", "b3"] {
        node_of(&cloud, "q", name);
    }
    for name in ["n1", "a2"] {
        node_of(&cloud, "p", name);
    }
    service(&cloud, "web");
    let mut hub = TestHub::start(&cloud, &["--nodepool-name=p"]).await;
    assert_eq!(members(&hub.state().await), 2);
    hub.stop().await;
    node_of(&cloud, "q", "n1");
    hub.set_flag("--nodepool-name=q");
    let lists = cloud.seen(SERVICES).len();
    hub.restart().await;
    hub.until("the new pool has four members", |state| members(state) == 4)
        .await;
    let state = hub.state().await;
    assert_eq!(services(&state), 1);
    let listed = cloud.seen(SERVICES).into_iter().skip(lists);
    let listed =
        listed.filter(|seen| !seen.is_of_metadata() && !seen.query.as_deref().unwrap_or("").contains("watch=1"));
    assert_eq!(listed.count(), 0, "pool data is the cluster's and stays");
}

#[tokio::test]
async fn leader_that_changed_its_pool_feeds_the_members_of_the_new_one() {
    let pool = Pool::start().await;
    let mut hub = pool.leader("n1").await;
    let fed = |pool: &Pool| {
        let last = pool.fed("members/snapshot").pop().unwrap();
        let index = last["index"].as_array().unwrap().clone();
        index
            .iter()
            .map(|entry| entry[0].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(fed(&pool), ["n1", "n2", "n3"]);
    hub.stop().await;
    for name in ["m1", "m2", "n1"] {
        node_of(&pool.cloud, "ningbo", name);
    }
    pool.new_store("the-store-of-ningbo");
    // That store is still empty.
    let members = yurt_pool_protocol::members::kind().collection_path();
    pool.coordinator
        .on(&members, |_| async { answer_json(StatusCode::TOO_MANY_REQUESTS, "{}") });
    hub.set_flag("--nodepool-name=ningbo");
    hub.restart().await;
    pool.until_fed().await;
    assert_eq!(fed(&pool), ["m1", "m2", "n1"]);
}

/// Two clusters of one CA, whose numbers overlap.
async fn two_clusters() -> (Cloud, Cloud) {
    let old = Cloud::start().await;
    service(&old, "old");
    let new = old.start_beside().await;
    new.set_cluster("uid-of-another-cluster");
    // Below and above the position of the copy.
    for name in ["a", "b", "c", "d"] {
        service(&new, name);
    }
    (old, new)
}

#[tokio::test]
async fn copies_of_another_cluster_are_dropped_before_anything_is_taken_from_this_one() {
    let (old, new) = two_clusters().await;
    old.allow("token-of-the-old-one", true);
    let mut hub = TestHub::start(&old, &[]).await;
    assert_eq!(services(&hub.state().await), 1);
    let reader = hub.bearer("pod/v1", "token-of-the-old-one");
    reader.get(SERVICES).await.expect(200);
    hub.stop().await;
    let rights = hub.folder().path().join("cache/authorizations");
    assert!(rights.exists());
    hub.set_flag(&format!("--server-addr={}", new.url()));
    hub.restart().await;
    assert_eq!(hub.failed().await, "prove-timeline");
    hub.stop().await;
    assert!(!rights.exists(), "rights in one cluster do not count in the other");
    assert!(new.seen(SERVICES).is_empty(), "neither proved nor copied");
    hub.restart().await;
    hub.wait_until_complete().await;
    assert_eq!(hub.kube_proxy().get(SERVICES).await.names(), ["a", "b", "c", "d"]);
    // The replicas are this cluster's now.
    hub.restart().await;
    hub.until("the cloud is followed", |state| {
        state["collections"]["services"]["source"] == "cloud"
    })
    .await;
    assert_eq!(services(&hub.state().await), 4);
}

/// Files and folders of what a hub keeps for a time without the cloud.
const KEPT: [&str; 5] = ["answers", "authorizations", "events", "local-writes", "tokens"];

/// The names of [`KEPT`] with content.
fn kept(hub: &TestHub) -> Vec<&'static str> {
    let is_kept = |name: &&str| {
        let path = hub.folder().path().join("cache").join(name);
        let files = std::fs::read_dir(&path).map_or(0, Iterator::count);
        path.is_file() || files > 0
    };
    KEPT.into_iter().filter(is_kept).collect()
}

/// A hub of the old cluster that was stopped while its cloud was away, with all of [`KEPT`].
async fn hub_that_keeps_everything(old: &mut Cloud) -> TestHub {
    old.allow("token-of-the-old-one", true);
    Stored::at(old, POD, offline_writes::pod("web", "n1"));
    offline_tokens::issue(old, "2999-01-01T00:00:00Z");
    let mut hub = TestHub::start(old, &[]).await;
    let reader = hub.bearer("pod/v1", "token-of-the-old-one");
    reader.get(SERVICES).await.expect(200);
    offline_writes::read(&hub, &[POD]).await;
    offline_tokens::ask(&hub.kubelet(), "u1").await.expect(201);
    offline_tokens::kept(&hub, 1).await;
    old.go_away().await;
    let running = offline_writes::running();
    offline_writes::patch(&hub.kubelet(), POD, &running).await.expect(200);
    offline_events::create(&hub.kubelet(), "web.1").await.expect(201);
    hub.stop().await;
    assert_eq!(kept(&hub), KEPT);
    hub
}

#[tokio::test]
async fn what_is_kept_of_another_cluster_is_dropped_also_without_the_replicas() {
    let (mut old, new) = two_clusters().await;
    let mut hub = hub_that_keeps_everything(&mut old).await;
    std::fs::remove_file(hub.folder().path().join("cache/replicas.redb")).unwrap();
    hub.set_flag(&format!("--server-addr={}", new.url()));
    hub.restart().await;
    assert_eq!(hub.failed().await, "prove-timeline");
    // A kill before the end of the removal.
    hub.crash().await;
    assert_eq!(hub.failed().await, "prove-timeline");
    hub.stop().await;
    assert_eq!(kept(&hub), [""; 0]);
    hub.restart().await;
    hub.wait_until_complete().await;
    assert_eq!(hub.kube_proxy().get(SERVICES).await.names(), ["a", "b", "c", "d"]);
}

#[tokio::test]
async fn events_wait_for_the_identity_of_the_cluster() {
    let (mut old, new) = two_clusters().await;
    let mut hub = hub_that_keeps_everything(&mut old).await;
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    new.on(IDENTITY, move |_| {
        let opened = opened.clone();
        async move {
            let _permit = opened.acquire().await;
            answer_json(StatusCode::OK, r#"{"metadata":{"uid":"uid-of-another-cluster"}}"#)
        }
    });
    hub.set_flag(&format!("--server-addr={}", new.url()));
    hub.restart().await;
    eventually("the question for the identity", async || {
        (!new.seen(IDENTITY).is_empty()).then_some(())
    })
    .await;
    hub.until("the cloud is up", |state| state["cloudReachable"] == true)
        .await;
    gate.add_permits(100);
    assert_eq!(hub.failed().await, "prove-timeline");
    hub.stop().await;
    assert!(new.seen(EVENTS).is_empty(), "they are the other cluster's");
}

#[tokio::test]
async fn cluster_that_does_not_say_who_it_is_keeps_the_copies() {
    let cloud = Cloud::start().await;
    service(&cloud, "web");
    let refuse = |_| async { answer_json(StatusCode::FORBIDDEN, r#"{"kind":"Status","code":403,"message":"no"}"#) };
    cloud.on(IDENTITY, refuse);
    let mut hub = TestHub::start(&cloud, &[]).await;
    let state = hub.state().await;
    let why = state["troubles"]["identity of the cluster"]["why"].as_str().unwrap();
    assert!(
        why.contains("namespaces/kube-system") && why.contains("pool-rbac.yaml"),
        "{why}"
    );
    // With the right granted, the replicas count as this cluster's.
    cloud.off(IDENTITY);
    hub.restart().await;
    let record = hub.folder().path().join("cache/origin.json");
    eventually("the cluster is recorded", async || {
        let record: Value = serde_json::from_slice(&std::fs::read(&record).ok()?).ok()?;
        record["cluster"].as_str().map(str::to_owned)
    })
    .await;
    // With the right removed again, the known identity stays.
    cloud.on(IDENTITY, refuse);
    hub.restart().await;
    let state = hub.until("the cloud is followed", |state| {
        state["collections"]["services"]["source"] == "cloud"
    });
    assert_eq!(services(&state.await), 1);
    cloud.set_cluster("uid-of-another-cluster");
    cloud.off(IDENTITY);
    hub.restart().await;
    assert_eq!(hub.failed().await, "prove-timeline");
}

#[tokio::test]
async fn damaged_copy_is_moved_aside_and_made_again() {
    let cloud = Cloud::start().await;
    service(&cloud, "web");
    let mut hub = TestHub::start(&cloud, &[]).await;
    for round in 0..2 {
        hub.stop().await;
        let file = hub.folder().path().join("cache/replicas.redb");
        let mut bytes = std::fs::read(&file).unwrap();
        let half = bytes.len() / 2;
        bytes[4096..half].iter_mut().for_each(|byte| *byte ^= 0x55 + round);
        std::fs::write(&file, &bytes).unwrap();
        hub.restart().await;
        hub.wait_until_complete().await;
        let state = hub.state().await;
        let why = state["troubles"]["durable copy"]["why"].as_str().unwrap();
        let aside = hub.folder().path().join("cache/replicas.redb.damaged");
        assert!(why.contains(&aside.display().to_string()), "{why}");
        assert!(std::fs::read(&aside).unwrap() == bytes, "the last one is kept");
    }
    hub.restart().await;
    let state = hub.state().await;
    assert_eq!(
        (services(&state), &state["troubles"]),
        (1, &json!({})),
        "the new file is sound"
    );
}

#[tokio::test]
async fn without_any_server_a_start_serves_what_it_finds() {
    let mut cloud = Cloud::start().await;
    service(&cloud, "web");
    let mut hub = TestHub::start(&cloud, &[]).await;
    hub.stop().await;
    cloud.go_away().await;
    hub.restart().await;
    let listed = tokio::time::timeout(Duration::from_secs(60), hub.kube_proxy().get(SERVICES)).await;
    assert_eq!(listed.unwrap().names(), ["web"]);
}
