//! Golden bytes of the feed: bodies that a hub sends. Coordinators of other versions read them; see
//! `yurt_test_support::golden` for a wanted change.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use yurt_runtime::http::{json as answer_json, read_body};
use yurt_test_support::eventually;
use yurt_test_support::golden::Recording;

use super::cloud::Cloud;
use super::harness::TestHub;
use super::pool::{Pool, STORE};
use super::sharing::{define_widgets, entry, list};

const FEED: &str = "/yurt/v1/feed";
const REPORTS: &str = "/yurt/v1/reports";
/// Query of every call.
const VERSION: &str = "version=1";
/// Fed collections, in the order of the recording.
const FED: [&str; 4] = ["members", "services", "endpoints", "endpointslices.discovery.k8s.io"];
/// Their paths for readers.
const READ: [&str; 4] = [
    "/apis/yurt.openyurt.io/v1/members",
    "/api/v1/services",
    "/api/v1/endpoints",
    "/apis/discovery.k8s.io/v1/endpointslices",
];
/// Recording of the bodies that a hub sends.
const CALLS: &str = "feed/calls.txt";
/// Store of a coordinator that lost its disk.
const OTHER_STORE: &str = "another-store";
/// Recording of a coordinator's answers, by the title of the call.
const ANSWERS: &str = "feed/answers.txt";

/// Calls in the order of their arrival: path below the feed's, and body.
type Calls = Arc<Mutex<Vec<(String, Bytes)>>>;

/// Title of a call: its path, its store, and its number among those with other bodies, from 1.
fn title(calls: &[(String, Bytes)], path: &str, body: &Bytes) -> String {
    let store = store_of(body);
    let mut same = calls
        .iter()
        .filter(|(of, other)| of == path && store_of(other) == store);
    let number = same.position(|(_, other)| other == body).unwrap_or_default() + 1;
    format!("POST {path} ({store} {number})")
}

fn store_of(body: &Bytes) -> String {
    let call: Value = serde_json::from_slice(body).unwrap();
    call["store"].as_str().unwrap_or("none").to_owned()
}

/// Keeps a call and returns its title. The same call again is a repetition after a lost answer; a replica that is not
/// fresh yet is a matter of timing.
fn take(calls: &Calls, path: &str, body: &Bytes) -> String {
    let mut calls = calls.lock();
    let is_told_later = body.ends_with(br#""fresh":false,"step":false,"events":[]}"#);
    let call = (path.to_owned(), body.clone());
    if !calls.contains(&call) && !is_told_later {
        calls.push(call);
    }
    title(&calls, path, body)
}

/// Answer of a recorded coordinator. It misses every body of a call that was not recorded.
fn answer(recorded: &Recording, title: &str, body: &Bytes) -> String {
    let found = recorded.sections().find(|(one, _)| *one == format!("{title} -> 200"));
    if let Some((_, answer)) = found {
        return String::from_utf8(answer.to_vec()).unwrap();
    }
    let call: Value = serde_json::from_slice(body).unwrap();
    let keys = call["index"].as_array().cloned().unwrap_or_default();
    json!({"missing": keys.iter().map(|row| &row[0]).collect::<Vec<_>>()}).to_string()
}

/// Makes `coordinator` answer as the recorded one and returns what it is sent.
fn recorder(coordinator: &Cloud) -> Calls {
    let (calls, answers) = (Calls::default(), Arc::new(Recording::read(ANSWERS)));
    let paths = FED.iter().flat_map(|name| {
        let calls = ["events", "snapshot", "snapshot/bodies"];
        calls.map(|call| format!("{FEED}/{name}/{call}"))
    });
    for path in paths.chain([format!("{FEED}/scope"), REPORTS.to_owned()]) {
        let (calls, answers) = (calls.clone(), answers.clone());
        coordinator.on(&path.clone(), move |request| {
            let (path, calls, answers) = (path.clone(), calls.clone(), answers.clone());
            async move {
                let path = match request.uri().query() {
                    Some(query) => format!("{path}?{query}"),
                    None => path,
                };
                let body = read_body(request.into_body(), 1 << 20).await.unwrap();
                let title = take(&calls, &path, &body);
                answer_json(StatusCode::OK, answer(&answers, &title, &body))
            }
        });
    }
    calls
}

/// The coordinator has this store, which is empty, from now on.
fn empty_store(coordinator: &Cloud, store: &str) {
    let recorded = Recording::read(ANSWERS);
    let state = String::from_utf8(recorded.section("GET /yurt/v1/feed (empty) -> 200").to_vec());
    let state = state.unwrap().replace(STORE, store);
    coordinator.set_store(store);
    coordinator.on(FEED, move |_| {
        let state = state.clone();
        async move { answer_json(StatusCode::OK, state) }
    });
}

/// Waits for a call of `path` with a body that contains all of `parts`.
async fn until_sent(calls: &Calls, path: &str, parts: &[&str]) {
    let path = format!("{FEED}/{path}?{VERSION}");
    let is_it = |(of, body): &&(String, Bytes)| {
        let body = std::str::from_utf8(body).unwrap();
        *of == path && parts.iter().all(|part| body.contains(part))
    };
    eventually(&format!("{path} with {parts:?}"), async || {
        calls.lock().iter().find(is_it).map(drop)
    })
    .await;
}

/// A Service. Its age would change what a table shows of it, so it has none.
fn service(name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "namespace": "shop", "name": name, "labels": {"app": name},
            "annotations": {"text": "\"quoted\" <ä&€> \u{1f980}\n"},
        },
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": port, "protocol": "TCP"}]},
        "later": {"field": 1.0, "list": [null, true, -7]},
    })
}

/// The pool and the Services of the recording, before any hub runs. Its coordinator has no pool data to read.
async fn pool() -> Pool {
    let pool = Pool::start().await;
    for path in READ {
        let refused = json!({"kind": "Status", "code": 429, "reason": "TooManyRequests"}).to_string();
        pool.coordinator.on(path, move |_| {
            let refused = refused.clone();
            async move { answer_json(StatusCode::TOO_MANY_REQUESTS, refused) }
        });
    }
    define_widgets(&pool.cloud);
    list(&pool.cloud, &json!([entry("example.com", "v1", "widgets")]).to_string());
    pool.cloud.put("services", service("db", 5432));
    pool.cloud.put("services", service("web", 80));
    pool
}

#[tokio::test]
async fn golden_bodies_of_the_feed_are_sent() {
    let mut pool = pool().await;
    empty_store(&pool.coordinator, STORE);
    let calls = recorder(&pool.coordinator);
    let hub = pool.hub("n1", &[]).await;
    for name in FED {
        until_sent(&calls, &format!("{name}/events"), &[r#""fresh":true"#]).await;
    }
    until_sent(&calls, "scope", &[]).await;
    // One change per call.
    for change in ["MODIFIED", "ADDED", "DELETED"] {
        match change {
            "MODIFIED" => drop(pool.cloud.put("services", service("web", 8080))),
            "ADDED" => drop(pool.cloud.put("services", service("new", 81))),
            _ => pool.cloud.delete("services", "shop", "db"),
        }
        let up_to = format!(r#""upTo":"{}""#, pool.cloud.version());
        until_sent(&calls, "services/events", &[&up_to, change]).await;
    }
    let mut recorded = calls.lock().clone();
    relist(&mut pool, &hub).await;
    // A store without a copy gets the remembered deletions, too.
    empty_store(&pool.coordinator, OTHER_STORE);
    for name in FED {
        until_sent(&calls, &format!("{name}/events"), &[OTHER_STORE, r#""fresh":true"#]).await;
    }
    until_sent(&calls, "scope", &[OTHER_STORE]).await;
    let calls = calls.lock();
    let to_other = calls.iter().filter(|(_, body)| store_of(body) == OTHER_STORE);
    recorded.extend(to_other.map(|(path, body)| (path.clone(), of_second_epoch(body))));
    recording_of(&recorded).check(CALLS);
}

/// The hub loses the cloud, which then has forgotten its history: the hub lists, and does not see when `new` vanished.
async fn relist(pool: &mut Pool, hub: &TestHub) {
    pool.cloud.go_away().await;
    hub.until("the link must be gone", |state| {
        FED.iter().all(|name| state["collections"][name]["fresh"] == false)
    })
    .await;
    pool.cloud.put("services", service("web", 9090));
    pool.cloud.delete("services", "shop", "new");
    pool.cloud.restore(pool.cloud.backup());
    pool.cloud.come_back().await;
    hub.until("the cloud must be listed", |state| {
        FED.iter().all(|name| {
            let held = &state["collections"][name];
            held["rv"] == pool.cloud.version() && held["fresh"] == true
        })
    })
    .await;
}

/// The number of elections until then is a matter of timing.
fn of_second_epoch(body: &Bytes) -> Bytes {
    let call: Value = serde_json::from_slice(body).unwrap();
    let epoch = format!(r#""epoch":{}"#, call["epoch"]);
    let text = std::str::from_utf8(body).unwrap();
    text.replacen(&epoch, r#""epoch":2"#, 1).into()
}

/// All calls, by collection.
fn recording_of(calls: &[(String, Bytes)]) -> Recording {
    let mut recording = Recording::default();
    for name in FED.into_iter().chain(["scope"]) {
        let prefix = format!("{FEED}/{name}");
        let is_of_name = |path: &str| {
            path.strip_prefix(&prefix)
                .is_some_and(|rest| rest.starts_with(['/', '?']))
        };
        for (path, body) in calls.iter().filter(|(path, _)| is_of_name(path)) {
            recording.add(title(calls, path, body), body);
        }
    }
    recording
}

async fn follower(pool: &Pool) -> TestHub {
    let hub = pool
        .hub("n1", &["--leader-elect=false", "--pool-data-verify-period=24h"])
        .await;
    hub.until("the hub must follow the coordinator", |state| {
        state["collections"]["services"]["source"] == "coordinator"
    })
    .await;
    hub
}

/// The report about the Service `web`, which the coordinator has at `version`, after n2 reported it.
async fn report(pool: &Pool, version: &Value) -> Bytes {
    let calls = recorder(&pool.coordinator);
    let _hub = follower(pool).await;
    let open = json!([{
        "accuser": "n2", "collection": "services", "generation": 0, "key": "shop/web", "resourceVersion": version,
    }]);
    let state = json!({"store": STORE, "versions": [1], "holder": "n3_1", "reports": open}).to_string();
    pool.coordinator.on(FEED, move |_| {
        let state = state.clone();
        async move { answer_json(StatusCode::OK, state) }
    });
    eventually("a report must be posted", async || {
        let calls = calls.lock();
        calls
            .iter()
            .find(|(path, _)| path == REPORTS)
            .map(|(_, body)| body.clone())
    })
    .await
}

#[tokio::test]
async fn golden_reports_of_forgeries_are_sent() {
    let mut recording = Recording::default();
    let forged = Pool::start().await;
    forged.cloud.put("services", service("web", 80));
    // Both reports are about the same RV: one denies the other.
    for port in 1..4 {
        forged.coordinator.put("services", service("web", port));
    }
    let version = forged.coordinator.put("services", service("web", 6666))["metadata"]["resourceVersion"].clone();
    recording.add("forged", report(&forged, &version).await);
    let honest = Pool::start_fed().await;
    let version = honest.cloud.put("services", service("web", 80))["metadata"]["resourceVersion"].clone();
    recording.add("honest", report(&honest, &version).await);
    recording.check("feed/reports.txt");
}
