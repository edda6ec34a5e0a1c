//! Pool data that a leader feeds is no evidence of the history of selections, which the hub reads from the cloud
//! itself.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};
use yurt_runtime::http::{empty, respond, stream as body_of};
use yurt_test_support::eventually;

use super::caching::{cloud_with_a_node, list, until_cloud_is, until_live, watch_from};
use super::client::Watch;
use super::cloud::Cloud;
use super::harness::TestHub;
use super::pool::Pool;

const SERVICES: &str = "/api/v1/services";
const PODS: &str = "/api/v1/pods";
const OWN_PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
/// A resourceVersion that no cloud reaches.
const NEVER: u64 = 1 << 52;

fn pod(name: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"nodeName": "n1"}})
}

fn service(name: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name}})
}

/// A follower with a watch of the node's pods.
struct Started {
    pool: Pool,
    hub: TestHub,
    watch: Watch,
}

/// Makes the coordinator send these Services and `position`, as a leader fed them.
async fn forge(coordinator: &mut Cloud, position: u64, names: &[&str]) {
    let version = position.to_string();
    let told = |kind: &str, name: &str| {
        let metadata = json!({"namespace": "shop", "name": name, "uid": "forged", "resourceVersion": version});
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata});
        Bytes::from(format!("{}\n", json!({"type": kind, "object": object})))
    };
    let objects = names.iter().map(|name| told("ADDED", name));
    let frames: Vec<_> = objects.chain([told("BOOKMARK", "")]).collect();
    coordinator.on(SERVICES, move |_| {
        let sent = stream::iter(frames.clone()).map(Ok::<_, Infallible>);
        let body = body_of(sent.chain(stream::pending()));
        async move { respond(StatusCode::OK, HeaderValue::from_static("application/json"), body) }
    });
    coordinator.go_away().await;
    coordinator.come_back().await;
}

/// A hub that follows the coordinator and cannot lead.
async fn follower(pool: &Pool) -> TestHub {
    let hub = pool.hub("n1", &["--leader-elect=false"]).await;
    hub.wait_until_complete().await;
    hub
}

/// Lists of the selection of the node's pods at the cloud.
fn lists(cloud: &Cloud) -> usize {
    let seen = cloud.seen(PODS).into_iter();
    let is_list = |query: &str| query.contains("spec.nodeName") && !query.contains("watch=1");
    seen.filter(|seen| !seen.is_of_metadata() && seen.query.as_deref().is_some_and(is_list))
        .count()
}

/// Cuts the cloud link of a follower whose coordinator has a forgery. No watch of a selection ends.
async fn selections_go_on_despite(position: impl Fn(u64) -> u64, names: &[&str]) -> Started {
    let mut pool = Pool::start().await;
    pool.cloud.put("pods", pod("web"));
    let web = pool.cloud.put("services", service("web"));
    let own: u64 = web["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    for name in ["a", "b", "c"] {
        pool.cloud.put("secrets", service(name));
    }
    let hub = follower(&pool).await;
    let reader = hub.component("flanneld/1");
    let (_, version) = list(&reader, OWN_PODS).await;
    let mut watch = watch_from(&reader, OWN_PODS, &version).await;
    until_live(&hub, OWN_PODS).await;
    let before = lists(&pool.cloud);
    let forged = position(own);
    forge(&mut pool.coordinator, forged, names).await;
    let forged = forged.to_string();
    hub.until("the forgery must be served", |state| {
        let services = &state["collections"]["services"];
        services["rv"] == forged && services["objects"] == names.len()
    })
    .await;

    pool.cloud.go_away().await;
    until_cloud_is(&hub, false).await;
    pool.cloud.come_back().await;
    pool.cloud.put("pods", pod("new"));
    assert_eq!(watch.told().await, "ADDED new");
    assert_eq!(lists(&pool.cloud), before, "nothing is listed again");
    Started { pool, hub, watch }
}

/// The hub turns to the cloud, which contradicts its pool data.
async fn only_pool_data_starts_over(started: Started) {
    let Started {
        mut pool,
        hub,
        mut watch,
    } = started;
    let before = lists(&pool.cloud);
    pool.coordinator.go_away().await;
    hub.until("the cloud's Services must be served", |state| {
        let services = &state["collections"]["services"];
        services["source"] == "cloud" && services["objects"] == 1 && services["generation"] != 0
    })
    .await;
    pool.cloud.put("pods", pod("later"));
    assert_eq!(watch.told().await, "ADDED later");
    assert_eq!(lists(&pool.cloud), before, "nothing is listed again");
}

#[tokio::test]
async fn position_that_a_leader_forged_ends_no_selection() {
    only_pool_data_starts_over(selections_go_on_despite(|_| NEVER, &[]).await).await;
}

/// The proof looks for the newest objects. A name that is none cannot be part of a path.
#[tokio::test]
async fn names_that_a_leader_forged_delay_no_proof() {
    selections_go_on_despite(|own| own + 1, &["a b"]).await;
}

#[tokio::test]
async fn objects_that_a_leader_forged_end_no_selection() {
    only_pool_data_starts_over(selections_go_on_despite(|own| own + 1, &["web"]).await).await;
}

/// The pool data lacks a Service, which nothing that the proof checks shows. The first event of it does.
#[tokio::test]
async fn event_that_contradicts_pool_data_ends_no_selection() {
    let started = selections_go_on_despite(|own| own + 1, &[]).await;
    started.pool.cloud.put("services", service("web"));
    only_pool_data_starts_over(started).await;
}

/// The hub is off while the cloud is restored, and the pool's leader feeds the restored state before the hub is back.
async fn selection_after_a_restore(meanwhile: impl Fn(&Cloud)) {
    let mut pool = Pool::start().await;
    pool.cloud.put("pods", pod("web"));
    let backup = pool.cloud.backup();
    pool.cloud.put("pods", pod("lost"));
    let mut hub = follower(&pool).await;
    assert_eq!(list(&hub.component("flanneld/1"), OWN_PODS).await.0, ["lost", "web"]);
    until_live(&hub, OWN_PODS).await;
    hub.stop().await;
    pool.cloud.go_away().await;
    pool.cloud.restore(backup);
    meanwhile(&pool.cloud);
    pool.cloud.come_back().await;
    hub.restart().await;
    eventually("the restored pods must be served", async || {
        let names = list(&hub.component("flanneld/1"), OWN_PODS).await.0;
        (names == ["web"]).then_some(())
    })
    .await;
    until_live(&hub, OWN_PODS).await;
}

#[tokio::test]
async fn lost_history_of_a_selection_is_noticed_though_the_pool_has_the_new_one() {
    selection_after_a_restore(|_| {}).await;
}

#[tokio::test]
async fn lost_history_of_a_selection_is_noticed_after_the_cloud_has_passed_it() {
    selection_after_a_restore(|cloud| {
        for name in ["a", "b", "c", "d"] {
            cloud.put("secrets", service(name));
        }
    })
    .await;
}

/// As a Secret whose key the cloud has lost: it serves all else.
#[tokio::test]
async fn object_that_the_cloud_cannot_read_delays_no_proof() {
    let mut cloud = cloud_with_a_node().await;
    cloud.put("pods", pod("web"));
    let hub = TestHub::start(&cloud, &[]).await;
    let reader = hub.component("flanneld/1");
    let (_, version) = list(&reader, OWN_PODS).await;
    let mut watch = watch_from(&reader, OWN_PODS, &version).await;
    until_live(&hub, OWN_PODS).await;
    cloud.on("/api/v1/namespaces/shop/pods/web", |_| async {
        respond(
            StatusCode::INTERNAL_SERVER_ERROR,
            HeaderValue::from_static("text/plain"),
            empty(),
        )
    });
    cloud.go_away().await;
    until_cloud_is(&hub, false).await;
    cloud.come_back().await;
    cloud.put("pods", pod("new"));
    assert_eq!(watch.told().await, "ADDED new");
}
