//! The coordinator cannot resume a follower's replica: it resumes at the cloud where possible, and clients are
//! unaffected.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderValue, StatusCode};
use serde_json::json;
use yurt_runtime::http::{json as answer_json, respond, stream as body_of};
use yurt_test_support::eventually;

use super::client::Watch;
use super::cloud::Cloud;
use super::harness::TestHub;
use super::pool::Pool;

const SERVICES: &str = "/api/v1/services";

fn service(name: &str) -> serde_json::Value {
    json!({"metadata": {"namespace": "shop", "name": name}})
}

/// Lists of a replica; the proof of the history requests one object.
fn lists(at: &Cloud) -> usize {
    let is_list = |query: &str| query.starts_with("limit=") && query != "limit=1";
    let seen = at.seen(SERVICES).into_iter();
    seen.filter(|seen| seen.query.as_deref().is_some_and(is_list)).count()
}

fn watches(at: &Cloud) -> usize {
    let seen = at.seen(SERVICES).into_iter();
    seen.filter(|seen| seen.query.as_deref().is_some_and(|query| query.contains("watch=1")))
        .count()
}

/// Compacts the whole history; only the present objects remain.
fn forget(at: &Cloud) {
    at.restore(at.backup());
}

/// A pool whose follower has copied one Service and is down. During that time the Service is deleted, another one is
/// created, and the coordinator compacts its history. Also returns the position of a client of the follower.
async fn follower_left_behind() -> (Pool, TestHub, String) {
    let pool = Pool::start().await;
    let both = [&pool.cloud, &pool.coordinator];
    for at in both {
        at.put("services", service("web"));
    }
    assert_eq!(pool.cloud.version(), pool.coordinator.version(), "one history");
    let mut hub = pool.hub("n1", &["--leader-elect=false"]).await;
    hub.wait_until_complete().await;
    let listed = hub.component("flanneld").get(SERVICES).await;
    assert_eq!((lists(&pool.cloud), lists(&pool.coordinator)), (0, 1));
    hub.stop().await;
    for at in both {
        at.put("services", service("db"));
        at.delete("services", "shop", "web");
    }
    forget(&pool.coordinator);
    let at = listed.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    (pool, hub, at)
}

async fn resumed(hub: &TestHub, at: &str) -> Watch {
    hub.component("flanneld")
        .watch(&format!("{SERVICES}?resourceVersion={at}"))
        .await
}

#[tokio::test]
async fn copy_that_the_coordinator_cannot_lead_on_goes_on_at_the_cloud_and_comes_back() {
    let (pool, mut hub, at) = follower_left_behind().await;
    hub.restart().await;
    let mut watch = resumed(&hub, &at).await;
    assert_eq!(watch.told().await, "ADDED db");
    assert_eq!(watch.told().await, "DELETED web");
    // Once the coordinator sends something after that position, the hub follows it.
    let asked = format!("resourceVersion={}&", pool.cloud.version());
    let is_asked = async || {
        let seen = pool.coordinator.seen(SERVICES).into_iter();
        let mut queries = seen.filter_map(|seen| seen.query);
        queries.any(|query| query.contains(&asked)).then_some(())
    };
    eventually("the coordinator gets a request again", is_asked).await;
    pool.coordinator.put("services", service("cache"));
    assert_eq!(watch.told().await, "ADDED cache");
    let is_back = |state: &serde_json::Value| state["collections"]["services"]["sourceSwitches"] == 1;
    let state = hub.until("the coordinator is followed again", is_back).await;
    assert_eq!(state["collections"]["services"]["relistsForced"], 0);
    assert_eq!((lists(&pool.cloud), lists(&pool.coordinator)), (0, 1), "no list");
    pool.cloud.put("services", service("nobody-reads-this"));
    pool.coordinator.put("services", service("queue"));
    assert_eq!(watch.told().await, "ADDED queue");
    assert_eq!(watches(&pool.cloud), 1, "once per break");
}

#[tokio::test]
async fn where_the_cloud_has_forgotten_as_well_the_coordinator_is_listed() {
    let (pool, mut hub, _) = follower_left_behind().await;
    forget(&pool.cloud);
    hub.restart().await;
    let is_there =
        async || Some(hub.component("flanneld").get(SERVICES).await.names()).filter(|names| *names == ["db"]);
    eventually("the copy must follow", is_there).await;
    assert_eq!((lists(&pool.cloud), lists(&pool.coordinator)), (0, 2));
    assert_eq!(watches(&pool.cloud), 1, "the cloud gets one request");
}

#[tokio::test]
async fn while_the_cloud_is_away_the_coordinator_is_listed() {
    let (mut pool, mut hub, _) = follower_left_behind().await;
    pool.cloud.go_away().await;
    hub.restart().await;
    let is_there =
        async || Some(hub.component("flanneld").get(SERVICES).await.names()).filter(|names| *names == ["db"]);
    eventually("the copy must follow", is_there).await;
    assert_eq!(lists(&pool.coordinator), 2);
}

/// The cloud would resume a replica of the old history in the new one. So when a stream of the coordinator ends, the
/// hub requests the reason there.
#[tokio::test]
async fn coordinator_that_begins_another_history_is_listed_and_the_cloud_is_not_asked() {
    let pool = Pool::start().await;
    for at in [&pool.cloud, &pool.coordinator] {
        at.put("services", service("web"));
    }
    let mut hub = pool.hub("n1", &["--leader-elect=false"]).await;
    hub.wait_until_complete().await;
    hub.stop().await;
    let (has_begun, at) = (Arc::new(AtomicBool::new(false)), pool.coordinator.version());
    pool.coordinator.on(SERVICES, move |request| {
        let (has_begun, at) = (Arc::clone(&has_begun), at.clone());
        async move {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let bookmark = |at: &str| json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": at}}});
            let gone = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}});
            let list = json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "9000"},
                "items": [service("db")]});
            let is_old = !has_begun.swap(true, Ordering::Relaxed);
            let body = match query.contains("watch=1") {
                true if is_old => format!("{}\n{gone}\n", bookmark(&at)),
                true => format!("{}\n", bookmark("9000")),
                false => list.to_string(),
            };
            let mut answer = answer_json(StatusCode::OK, body);
            if !is_old {
                answer
                    .headers_mut()
                    .insert("yurt-generation", HeaderValue::from_static("7"));
            }
            answer
        }
    });
    hub.restart().await;
    let is_there = async || {
        Some(hub.component("flanneld").get(SERVICES).await)
            .filter(|listed| listed.code == 200 && listed.names() == ["db"])
    };
    let listed = eventually("the new history must be served", is_there).await;
    assert_eq!(listed.header("yurt-generation"), Some("7"));
    assert_eq!(watches(&pool.cloud), 0);
}

/// A coordinator whose store was restored from a copy serves the copy, complete and stale, until a leader feeds it.
#[tokio::test]
async fn earlier_history_that_no_leader_confirms_replaces_no_copy() {
    let pool = Pool::start().await;
    let (is_restored, is_fed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (restored, fed) = (Arc::clone(&is_restored), Arc::clone(&is_fed));
    pool.coordinator.on(SERVICES, move |request| {
        let is_watch = request.uri().query().unwrap_or_default().contains("watch=1");
        let (is_restored, is_fed) = (restored.load(Ordering::Relaxed), fed.load(Ordering::Relaxed));
        let (generation, name) = match is_restored {
            true => ("0", "old"),
            false => ("5000000", "new"),
        };
        let metadata = json!({"resourceVersion": "9000"});
        let body = match is_watch {
            true => json!({"type": "BOOKMARK", "object": {"metadata": metadata}}),
            false => json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": metadata, "items": [service(name)]}),
        };
        let mut answer = answer_json(StatusCode::OK, format!("{body}\n"));
        let headers = answer.headers_mut();
        headers.insert("yurt-generation", HeaderValue::from_static(generation));
        if is_restored && !is_fed {
            headers.insert("yurt-stale", HeaderValue::from_static("true"));
        }
        std::future::ready(answer)
    });
    let hub = pool.hub("n1", &["--leader-elect=false"]).await;
    hub.wait_until_complete().await;
    is_restored.store(true, Ordering::Relaxed);
    hub.until("the earlier history is refused", |state| {
        let why = &state["troubles"]["services"]["why"];
        why.as_str().is_some_and(|why| why.contains("restored from a copy"))
    })
    .await;
    let names = async || hub.component("flanneld").get(SERVICES).await.names();
    assert_eq!(names().await, ["new"]);
    // A leader of an earlier generation may be right, too.
    is_fed.store(true, Ordering::Relaxed);
    eventually("the pool's data is served", async || {
        (names().await == ["old"]).then_some(())
    })
    .await;
}

/// The coordinator sends the difference of a list: readers may have a position inside the gap.
#[tokio::test]
async fn copy_that_readers_may_be_ahead_of_takes_no_jump_but_the_way_over_the_cloud() {
    let (pool, mut hub, at) = follower_left_behind().await;
    let (behind, present) = (at.clone(), pool.cloud.version());
    let db = pool.cloud.get("services", Some("shop"), "db").expect("it is there");
    pool.coordinator.on(SERVICES, move |request| {
        let (query, behind, present) = (
            request.uri().query().unwrap_or_default().to_owned(),
            behind.clone(),
            present.clone(),
        );
        let bookmark = |at: &str, annotations: serde_json::Value| {
            let metadata = json!({"resourceVersion": at, "annotations": annotations});
            json!({"type": "BOOKMARK", "object": {"metadata": metadata}})
        };
        let is_behind = query.contains(&format!("resourceVersion={behind}&"));
        let told = match is_behind {
            true => format!(
                "{}\n{}\n{}\n",
                bookmark(&behind, json!({"openyurt.io/diff-to": present})),
                json!({"type": "ADDED", "object": db}),
                bookmark(&present, json!({"openyurt.io/diff-done": present})),
            ),
            false => format!("{}\n", bookmark(&present, json!({}))),
        };
        let told = stream::iter([Ok::<_, Infallible>(Bytes::from(told))]).chain(stream::pending());
        std::future::ready(respond(
            StatusCode::OK,
            "application/json".parse().unwrap(),
            body_of(told),
        ))
    });
    hub.restart().await;
    let mut watch = resumed(&hub, &at).await;
    assert_eq!(watch.told().await, "ADDED db");
    assert_eq!(watch.told().await, "DELETED web");
    let is_back = |state: &serde_json::Value| state["collections"]["services"]["source"] == "coordinator";
    hub.until("the coordinator is followed again", is_back).await;
    assert_eq!(watches(&pool.cloud), 1, "once per break");
    assert_eq!((lists(&pool.cloud), lists(&pool.coordinator)), (0, 1), "no list");
}
