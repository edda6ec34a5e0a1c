//! Hubs that tell the pool of a forgery, and hubs that are warned of one.

use std::sync::Arc;

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use yurt_runtime::http::{json as answer_json, read_body};
use yurt_test_support::eventually;

use super::cloud::Cloud;
use super::harness::TestHub;
use super::pool::{Pool, STORE};
use super::relay_pool::{Link, RelayPool};

const SERVICES: &str = "/api/v1/services";
const IN_SHOP: &str = "/api/v1/namespaces/shop/services";
const REPORTS: &str = "/yurt/v1/reports";
const FEED: &str = "/yurt/v1/feed";
/// No sample is taken while a test runs.
const NEVER: &str = "--pool-data-verify-period=24h";

fn service(name: &str, ip: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name, "uid": name}, "spec": {"clusterIP": ip}})
}

async fn follower(pool: &Pool, more: &[&str]) -> TestHub {
    let flags: Vec<_> = ["--leader-elect=false"]
        .into_iter()
        .chain(more.iter().copied())
        .collect();
    let hub = pool.hub("n1", &flags).await;
    hub.until("the hub must follow the coordinator", |state| {
        let services = &state["collections"]["services"];
        services["source"] == "coordinator" && services["complete"] == true
    })
    .await;
    hub
}

/// Bodies of the reports that the coordinator takes from now on.
fn reports(coordinator: &Cloud) -> Arc<Mutex<Vec<Value>>> {
    let reports: Arc<Mutex<Vec<Value>>> = Arc::default();
    let taken = reports.clone();
    coordinator.on(REPORTS, move |request| {
        let taken = taken.clone();
        async move {
            let body = read_body(request.into_body(), 1 << 12).await.unwrap();
            taken.lock().push(serde_json::from_slice(&body).unwrap());
            answer_json(StatusCode::OK, json!({"decision": "open"}).to_string())
        }
    });
    reports
}

/// The coordinator shows a report of n2 about the Service `web` at `version` from now on.
fn warn(coordinator: &Cloud, version: &Value) {
    show(
        coordinator,
        json!([{
            "accuser": "n2", "collection": "services", "generation": 0, "key": "shop/web", "resourceVersion": version,
        }]),
    );
}

/// The coordinator shows these reports from now on.
fn show(coordinator: &Cloud, reports: Value) {
    let state = json!({"store": STORE, "versions": [1], "holder": "n3_1", "reports": reports}).to_string();
    coordinator.on(FEED, move |_| {
        let state = state.clone();
        async move { answer_json(StatusCode::OK, state) }
    });
}

async fn first(reports: &Mutex<Vec<Value>>) -> Value {
    eventually("a report must be posted", async || reports.lock().first().cloned()).await
}

/// Lists of the one object that was reported.
fn checks(pool: &Pool) -> usize {
    let seen = pool.cloud.seen(IN_SHOP);
    let is_of_web = |query: &Option<String>| query.as_deref() == Some("fieldSelector=metadata.name%3Dweb");
    seen.iter().filter(|seen| is_of_web(&seen.query)).count()
}

#[tokio::test]
async fn forgery_that_a_sample_shows_is_reported() {
    let pool = Pool::start().await;
    pool.cloud.put("services", service("web", "10.0.0.1"));
    let forged = pool.coordinator.put("services", service("web", "6.6.6.6"));
    let posted = reports(&pool.coordinator);
    let hub = follower(&pool, &["--pool-data-verify-period=100ms"]).await;
    let report = first(&posted).await;
    assert_eq!(
        (
            &report["collection"],
            &report["key"],
            &report["verdict"],
            &report["generation"]
        ),
        (&json!("services"), &json!("shop/web"), &json!("forged"), &json!(0))
    );
    assert_eq!(report["resourceVersion"], forged["metadata"]["resourceVersion"]);
    assert!(
        report["reason"].as_str().unwrap().contains("another object"),
        "{report}"
    );
    drop(hub);
}

#[tokio::test]
async fn hub_that_is_warned_checks_that_object_and_confirms() {
    let pool = Pool::start().await;
    let real = pool.cloud.put("services", service("web", "10.0.0.1"));
    let forged = pool.coordinator.put("services", service("web", "6.6.6.6"));
    let posted = reports(&pool.coordinator);
    let hub = follower(&pool, &[NEVER]).await;
    warn(&pool.coordinator, &forged["metadata"]["resourceVersion"]);
    let report = first(&posted).await;
    assert_eq!(
        (&report["key"], &report["verdict"]),
        (&json!("shop/web"), &json!("forged"))
    );
    let state = hub
        .until("the cloud must be followed", |state| {
            state["collections"]["services"]["source"] == "cloud"
                && state["collections"]["services"]["generation"].as_u64() > Some(0)
        })
        .await;
    let why = state["troubles"]["truth of services"]["why"].as_str().unwrap();
    assert!(why.contains("shop/web") && why.contains("n3_1 leads"), "{why}");
    let served = eventually("the services must be served", async || {
        Some(hub.kube_proxy().get(SERVICES).await).filter(|answer| answer.code == 200)
    })
    .await;
    assert_eq!(served.json()["items"], json!([real]));
}

#[tokio::test]
async fn report_that_is_not_true_is_denied_after_one_check() {
    let pool = Pool::start_fed().await;
    let real = pool.cloud.put("services", service("web", "10.0.0.1"));
    let posted = reports(&pool.coordinator);
    let hub = follower(&pool, &[NEVER]).await;
    warn(&pool.coordinator, &real["metadata"]["resourceVersion"]);
    let report = first(&posted).await;
    assert_eq!(
        (&report["verdict"], &report["accuser"]),
        (&json!("honest"), &json!("n2"))
    );
    let state = hub.state().await;
    assert_eq!(state["collections"]["services"]["source"], "coordinator");
    let warning = state["troubles"]["reports of forged data"]["why"].as_str().unwrap();
    assert!(warning.contains("n2") && warning.contains("shop/web"), "{warning}");
    // Coordinator and cloud are one here: each was asked once.
    assert_eq!((checks(&pool), posted.lock().len()), (2, 1));
}

#[tokio::test]
async fn report_about_another_state_is_neither_confirmed_nor_denied() {
    let pool = Pool::start_fed().await;
    pool.cloud.put("services", service("web", "10.0.0.1"));
    let posted = reports(&pool.coordinator);
    let hub = follower(&pool, &[NEVER]).await;
    warn(&pool.coordinator, &json!("12345"));
    eventually("the object must be checked", async || (checks(&pool) > 1).then_some(())).await;
    warn(&pool.coordinator, &json!("0"));
    hub.until("the hub must go on", |state| {
        state["troubles"]["reports of forged data"].is_object()
    })
    .await;
    assert!(posted.lock().is_empty());
}

#[tokio::test]
async fn cut_off_hub_checks_through_a_peer_and_stays_with_the_coordinator() {
    let pool = RelayPool::start().await;
    for node in ["n1", "n2", "n3", "n4"] {
        pool.coordinator.put("members", json!({"metadata": {"name": node}}));
    }
    pool.cloud.put("services", service("web", "10.0.0.1"));
    let forged = pool.coordinator.put("services", service("web", "6.6.6.6"));
    show(&pool.coordinator, json!([]));
    let posted = reports(&pool.coordinator);
    let (_peer, address) = pool.hub("n2", &pool.cloud.url(), &[NEVER]).await;
    pool.offer("n2", address, &pool.cloud.addr().to_string());
    let mut link = Link::to(pool.cloud.addr()).await;
    let (hub, _) = pool.hub("n1", &link.url(), &[NEVER]).await;
    link.cut().await;
    hub.until("the link must be gone", |state| state["cloudReachable"] == false)
        .await;
    warn(&pool.coordinator, &forged["metadata"]["resourceVersion"]);
    let report = first(&posted).await;
    assert_eq!(
        (&report["key"], &report["verdict"]),
        (&json!("shop/web"), &json!("forged"))
    );
    let state = hub.state().await;
    assert_eq!(state["relay"]["through"], "n2");
    assert_eq!(
        state["collections"]["services"]["source"], "coordinator",
        "it has no other source"
    );
}
