//! Pool data that is larger than `--max-pool-bytes`.

use std::convert::Infallible;
use std::future::ready;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::StatusCode;
use serde_json::{Value, json};
use yurt_runtime::http::respond;

use super::cloud::Cloud;
use super::harness::TestHub;

const SERVICES: &str = "/api/v1/services";
const SMALL: &str = "--max-pool-bytes=1048576";
const LARGE: &str = "--max-pool-bytes=16777216";

fn put(cloud: &Cloud, name: &str, bytes: usize) {
    let annotations = json!({"padding": "x".repeat(bytes)});
    cloud.put(
        "services",
        json!({"metadata": {"namespace": "shop", "name": name, "annotations": annotations}}),
    );
}

fn too_large(state: &Value) -> bool {
    let why = state["troubles"]["size of services"]["why"]
        .as_str()
        .unwrap_or_default();
    why.contains("--max-pool-bytes=1048576")
}

#[tokio::test]
async fn hub_keeps_what_it_has_and_says_what_does_not_fit() {
    let cloud = Cloud::start().await;
    put(&cloud, "first", 300_000);
    let mut hub = TestHub::start(&cloud, &[SMALL]).await;
    for name in ["second", "third", "fourth", "fifth"] {
        put(&cloud, name, 300_000);
    }
    let state = hub.until("the size must be reported", too_large).await;
    let copy = &state["collections"]["services"];
    assert!(copy["bytes"].as_u64().unwrap() <= 1 << 20, "{copy}");
    assert_eq!((&copy["complete"], &copy["fresh"]), (&json!(true), &json!(false)));
    assert!(copy["oversized"].as_u64() > Some(0), "{copy}");
    let served = hub.kube_proxy().get(SERVICES).await;
    assert!(served.names().contains(&"first".to_owned()));
    assert_eq!(served.header("yurt-stale"), Some("true"));
    let metrics = String::from_utf8(hub.admin().get("/metrics").await.expect(200).to_vec()).unwrap();
    let counted = |line: &str| {
        line.starts_with(r#"node_yurthub_collection_oversized_total{collection="services"}"#) && !line.ends_with(" 0")
    };
    assert!(metrics.lines().any(counted), "{metrics}");

    hub.set_flag(LARGE);
    hub.restart().await;
    hub.until("there is room now", |state| {
        state["collections"]["services"]["objects"] == 5 && state["troubles"] == json!({})
    })
    .await;
}

#[tokio::test]
async fn list_that_is_too_large_costs_no_other_collection() {
    let cloud = Cloud::start().await;
    cloud.put("endpoints", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    for number in 0..8 {
        put(&cloud, &format!("web-{number}"), 300_000);
    }
    let hub = TestHub::start_at_once(&cloud, &[SMALL]).await;
    let state = hub
        .until("the size must be reported", |state| {
            too_large(state) && state["collections"]["endpoints"]["complete"] == true
        })
        .await;
    assert_eq!(state["collections"]["services"]["complete"], false);
    assert_eq!(
        hub.component("flanneld").get("/api/v1/endpoints").await.names(),
        ["web"]
    );
}

/// The page never ends: a hub that reads it to its end reports nothing.
#[tokio::test]
async fn page_that_is_too_large_is_dropped_while_it_arrives() {
    let cloud = Cloud::start().await;
    cloud.on(SERVICES, |_| {
        let piece = || Bytes::from(vec![b' '; 64 << 10]);
        let pieces = stream::iter(std::iter::repeat_with(move || Ok::<_, Infallible>(piece())).take(17));
        let body = yurt_runtime::http::stream(pieces.chain(stream::pending()));
        ready(respond(StatusCode::OK, "application/json".parse().unwrap(), body))
    });
    let hub = TestHub::start_at_once(&cloud, &[SMALL]).await;
    hub.until("the size must be reported", too_large).await;
}

#[tokio::test]
async fn start_with_a_file_that_is_too_large_loads_within_the_bound() {
    let mut cloud = Cloud::start().await;
    cloud.put("endpoints", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    for number in 0..8 {
        put(&cloud, &format!("web-{number}"), 300_000);
    }
    let mut hub = TestHub::start(&cloud, &[LARGE]).await;
    cloud.go_away().await;
    hub.set_flag(SMALL);
    hub.restart().await;
    let state = hub.until("the size must be reported", too_large).await;
    let copies = &state["collections"];
    assert_eq!(
        (&copies["services"]["objects"], &copies["services"]["complete"]),
        (&json!(0), &json!(false))
    );
    assert_eq!(copies["endpoints"]["objects"], 1);
}
