//! Hubs that compare the coordinator's data with the cloud's.

use serde_json::{Value, json};
use yurt_test_support::eventually;

use super::client::Answer;
use super::harness::TestHub;
use super::pool::Pool;

const SERVICES: &str = "/api/v1/services";
const ALL: [&str; 3] = ["services", "endpoints", "endpointslices"];
/// One sample every 100 ms by a pool of three.
const OFTEN: &str = "--pool-data-verify-period=100ms";

fn service(name: &str, ip: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name, "uid": name}, "spec": {"clusterIP": ip}})
}

async fn follower(pool: &Pool, more: &[&str]) -> TestHub {
    let flags: Vec<_> = ["--leader-elect=false"]
        .into_iter()
        .chain(more.iter().copied())
        .collect();
    pool.hub("n1", &flags).await
}

fn source<'a>(state: &'a Value, collection: &str) -> &'a str {
    state["collections"][collection]["source"].as_str().unwrap_or_default()
}

async fn until_caught(hub: &TestHub) -> Value {
    hub.until("the forgery must be found, and the cloud followed", |state| {
        source(state, "services") == "cloud" && state["collections"]["services"]["generation"].as_u64() > Some(0)
    })
    .await
}

/// Returns the services as kube-proxy reads them, once a commit has their generation.
async fn services(hub: &TestHub) -> Answer {
    eventually("the services must be served", async || {
        Some(hub.kube_proxy().get(SERVICES).await).filter(|answer| answer.code == 200)
    })
    .await
}

async fn samples(hub: &TestHub) -> u64 {
    let metrics = String::from_utf8(hub.admin().get("/metrics").await.expect(200).to_vec()).unwrap();
    let lines = metrics
        .lines()
        .filter(|line| line.starts_with("node_yurthub_pool_data_samples_total{"));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

#[tokio::test]
async fn forged_service_is_found_and_replaced_for_everybody_who_saw_it() {
    let pool = Pool::start().await;
    let real = pool.cloud.put("services", service("web", "10.0.0.1"));
    pool.coordinator.put("services", service("web", "6.6.6.6"));
    let hub = follower(&pool, &[]).await;
    hub.until("the hub must follow the coordinator", |state| {
        source(state, "services") == "coordinator" && state["collections"]["services"]["complete"] == true
    })
    .await;
    let mut watch = hub.kube_proxy().watch(SERVICES).await;
    assert_eq!(watch.next().await.unwrap().object["spec"]["clusterIP"], "6.6.6.6");
    let hub = {
        let mut hub = hub;
        hub.set_flag(OFTEN);
        hub.restart().await;
        hub
    };
    let state = until_caught(&hub).await;
    let why = state["troubles"]["truth of services"]["why"].as_str().unwrap();
    assert!(
        why.contains("services shop/web") && why.contains("another object"),
        "{why}"
    );
    assert_eq!(services(&hub).await.json()["items"], json!([real]));
    let metrics = String::from_utf8(hub.admin().get("/metrics").await.expect(200).to_vec()).unwrap();
    assert!(metrics.contains(r#"node_yurthub_pool_data_forgeries_total{collection="services"} 1"#));
    assert_eq!(
        source(&state, "endpoints"),
        "coordinator",
        "what was not forged is shared as before"
    );
}

#[tokio::test]
async fn hidden_service_is_found() {
    let pool = Pool::start().await;
    for name in ["a", "hidden"] {
        pool.cloud.put("services", service(name, "10.0.0.1"));
    }
    pool.coordinator.put("services", service("a", "10.0.0.1"));
    // The leader reports the cloud's position.
    pool.coordinator.put("services", service("b", "10.0.0.1"));
    pool.coordinator.delete("services", "shop", "b");
    let hub = follower(&pool, &[OFTEN]).await;
    until_caught(&hub).await;
    assert_eq!(services(&hub).await.names(), ["a", "hidden"]);
}

#[tokio::test]
async fn honest_pool_is_sampled_and_never_accused() {
    let pool = Pool::start_fed().await;
    for number in 0..20 {
        for resource in ALL {
            pool.cloud
                .put(resource, service(&format!("web-{number:02}"), "10.0.0.1"));
        }
    }
    let hub = follower(&pool, &[OFTEN]).await;
    for round in 0..10_u64 {
        let taken = samples(&hub).await;
        for resource in ALL {
            pool.cloud
                .put(resource, service(&format!("web-{round:02}"), "10.0.0.2"));
            pool.cloud.delete(resource, "shop", &format!("web-{:02}", round + 10));
        }
        eventually("samples must be taken", async || {
            (samples(&hub).await > taken + 1).then_some(())
        })
        .await;
    }
    let state = hub.state().await;
    assert_eq!(
        (source(&state, "services"), &state["troubles"]),
        ("coordinator", &json!({}))
    );
    assert_eq!(state["collections"]["services"]["generation"], 0);
}

#[tokio::test]
async fn members_that_differ_from_the_clouds_are_reported() {
    let pool = Pool::start_fed().await;
    let node_pool = |nodes: &[&str]| {
        let object = json!({
            "apiVersion": "apps.openyurt.io/v1beta2", "kind": "NodePool",
            "metadata": {"name": super::pool::POOL}, "status": {"nodes": nodes},
        });
        pool.cloud.put("nodepools", object);
    };
    node_pool(&["n1", "n2", "n4"]);
    let hub = follower(&pool, &[OFTEN]).await;
    let why = |state: &Value| state["troubles"]["truth of members"]["why"].as_str().map(str::to_owned);
    let state = hub
        .until("the difference must be reported", |state| why(state).is_some())
        .await;
    let text = why(&state).unwrap();
    assert!(text.contains("have [n3]") && text.contains("lack [n4]"), "{text}");
    node_pool(&["n1", "n2", "n3"]);
    hub.until("the difference is over", |state| why(state).is_none()).await;
}
