//! ConfigMap yurt-hub-cfg as hubs follow it.

use http::StatusCode;
use serde_json::{Value, json};
use yurt_runtime::http::{json as answer_json, text};
use yurt_test_support::eventually;

use super::cloud::Cloud;
use super::harness::TestHub;
use super::pool::Pool;

const MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";

/// Sets the data of the ConfigMap.
pub(super) fn configure(cloud: &Cloud, data: &Value) {
    put(cloud, "kube-system", data);
}

fn put(cloud: &Cloud, namespace: &str, data: &Value) {
    let metadata = json!({"namespace": namespace, "name": "yurt-hub-cfg"});
    cloud.put("configmaps", json!({"metadata": metadata, "data": data}));
}

/// True if the hub has read the ConfigMap in this run, with these keys.
fn has_keys(state: &Value, keys: &[&str]) -> bool {
    state["hubConfig"]["current"] == true && state["hubConfig"]["keys"] == json!(keys)
}

/// Queries of the hub's requests for the ConfigMap.
fn queries(cloud: &Cloud) -> Vec<String> {
    let seen = cloud.seen(MAPS);
    seen.iter().map(|seen| seen.query.clone().unwrap_or_default()).collect()
}

#[tokio::test]
async fn each_hub_of_a_pool_follows_its_configuration_with_one_watch() {
    let pool = Pool::start_fed().await;
    let hub = pool.hub("n1", &["--leader-elect=false"]).await;
    let state = hub
        .until("an absent one must be known", |state| has_keys(state, &[]))
        .await;
    assert_eq!(state["hubConfig"]["synced"], true);
    let listed = json!([{"Group": "example.com", "Version": "v1", "Resource": "widgets"}]);
    configure(
        &pool.cloud,
        &json!({"masterservice": "a", "pool_scope_resources": listed.to_string()}),
    );
    let both = ["masterservice", "pool_scope_resources"];
    hub.until("it must arrive", |state| has_keys(state, &both)).await;
    configure(&pool.cloud, &json!({"masterservice": "b"}));
    hub.until("the change must arrive", |state| has_keys(state, &["masterservice"]))
        .await;
    pool.cloud.delete("configmaps", "kube-system", "yurt-hub-cfg");
    hub.until("a deletion empties it", |state| has_keys(state, &[])).await;
    let queries = queries(&pool.cloud);
    let watches = queries.iter().filter(|query| query.contains("watch=1"));
    assert_eq!((queries.len(), watches.count()), (2, 1), "{queries:?}");
    let one = |query: &String| query.starts_with("fieldSelector=metadata.name%3Dyurt-hub-cfg");
    assert!(queries.iter().all(one), "{queries:?}");
}

#[tokio::test]
async fn configuration_on_disk_serves_a_start_without_the_cloud_unless_it_is_damaged() {
    let mut cloud = Cloud::start().await;
    configure(&cloud, &json!({"masterservice": "a"}));
    let mut hub = TestHub::start(&cloud, &[]).await;
    hub.until("it must arrive", |state| has_keys(state, &["masterservice"]))
        .await;
    cloud.go_away().await;
    hub.restart().await;
    let kept = |state: &Value| (state["hubConfig"]["synced"].clone(), state["hubConfig"]["keys"].clone());
    let state = hub.state().await;
    assert_eq!(kept(&state), (json!(true), json!(["masterservice"])));
    assert_eq!(state["hubConfig"]["current"], false);

    hub.stop().await;
    hub.folder().write("cache/hub-config", "damaged");
    hub.restart().await;
    assert_eq!(kept(&hub.state().await), (json!(false), json!([])));
    cloud.come_back().await;
    hub.until("the cloud replaces it", |state| has_keys(state, &["masterservice"]))
        .await;
}

#[tokio::test]
async fn refusal_is_reported_and_ends_when_the_right_is_granted() {
    let cloud = Cloud::start().await;
    cloud.on(MAPS, async |_| {
        answer_json(
            StatusCode::FORBIDDEN,
            r#"{"kind":"Status","code":403,"message":"no role"}"#,
        )
    });
    put(&cloud, "other", &json!({"elsewhere": ""}));
    let hub = TestHub::start(&cloud, &[]).await;
    let refused = |state: &Value| {
        state["hubConfig"]["refused"]
            .as_str()
            .is_some_and(|why| why.contains("no role"))
    };
    let state = hub.until("the refusal must be reported", refused).await;
    assert_eq!(state["hubConfig"]["synced"], false);
    assert!(
        state["troubles"]["hub config"]["why"]
            .as_str()
            .unwrap()
            .contains("no role")
    );
    cloud.off(MAPS);
    let state = hub.until("it must be read", |state| has_keys(state, &[])).await;
    assert!(state["troubles"]["hub config"].is_null());

    let elsewhere = TestHub::start(&cloud, &["--namespace=other"]).await;
    elsewhere
        .until("the flag names the namespace", |state| has_keys(state, &["elsewhere"]))
        .await;
}

/// kube-apiserver answers a list without objects with 200. A proxy in front of it may answer 404.
#[tokio::test]
async fn answer_404_is_no_absent_configuration() {
    let cloud = Cloud::start().await;
    configure(&cloud, &json!({"masterservice": "a"}));
    let not_found = async |_| answer_json(StatusCode::NOT_FOUND, "{}");
    cloud.on(MAPS, not_found);
    let mut hub = TestHub::start(&cloud, &[]).await;
    let asked = async || (queries(&cloud).len() > 1).then_some(());
    eventually("the hub must repeat the list", asked).await;
    assert_eq!(hub.state().await["hubConfig"]["synced"], false);
    cloud.off(MAPS);
    hub.until("it must arrive", |state| has_keys(state, &["masterservice"]))
        .await;

    hub.stop().await;
    cloud.on(MAPS, not_found);
    let asked_before = queries(&cloud).len();
    hub.restart().await;
    let asked = async || (queries(&cloud).len() > asked_before + 1).then_some(());
    eventually("the hub must repeat the list", asked).await;
    let state = hub.state().await;
    assert_eq!(
        state["hubConfig"]["keys"],
        json!(["masterservice"]),
        "the last state stays"
    );
    assert_eq!(state["hubConfig"]["current"], false);
}

/// A stream that stays open would delay the stop of an apiserver by its whole grace period.
#[tokio::test]
async fn watch_of_the_configuration_ends_once_the_cloud_is_lost() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    hub.until("it must be read", |state| has_keys(state, &[])).await;
    cloud.on("/livez", async |_| {
        text(StatusCode::INTERNAL_SERVER_ERROR, "shutting down")
    });
    hub.until("the watch must end", |state| state["hubConfig"]["current"] == false)
        .await;
    configure(&cloud, &json!({"masterservice": "a"}));
    cloud.off("/livez");
    hub.until("it must be read again", |state| has_keys(state, &["masterservice"]))
        .await;
}
