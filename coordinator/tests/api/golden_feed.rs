//! Golden bytes of the feed: recorded bodies of a hub are accepted, and the answers to them are the recorded ones. Hubs
//! of other versions send and read these bytes; see `yurt_test_support::golden` for a wanted change.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use yurt_test_support::golden::Recording;

use crate::feeding::{Leader, event, service};
use crate::harness::{Answer, Client, Server, TRUSTING, rv};

const FEED: &str = "/yurt/v1/feed";
/// Store in the recordings; each server has a random one.
pub(crate) const STORE: &str = "store-of-the-test";
/// Store in the recorded calls to a coordinator that lost its disk.
const OTHER_STORE: &str = "another-store";
/// RV of the recorded Service `new`.
const CREATED: &str = "1008";
/// Recording of the bodies that a hub sends.
const CALLS: &str = "feed/calls.txt";
/// Recording of the answers to them.
const ANSWERS: &str = "feed/answers.txt";

/// A pool over the embedded store, and its leader n1.
pub(crate) async fn led_pool() -> (Server, Leader) {
    let server = Server::start(&["--nodepool", "hangzhou", TRUSTING]).await;
    let leader = Leader::elect(&server, "n1").await;
    (server, leader)
}

/// Sends the recorded calls of a hub to `store`; adds each answer to `answers`.
pub(crate) async fn play(leader: &Leader, store: &str, answers: &mut Recording) {
    for (title, body) in Recording::read(CALLS).sections() {
        let call: Value = serde_json::from_slice(body).unwrap();
        if call["store"] == store {
            let path = title.split(' ').nth(1).unwrap();
            let body = claimed(leader, body, &call);
            let answer = post(&leader.client, path, body).await;
            assert_eq!(answer.code, 200, "{title}: {:?}", answer.body);
            add(answers, title, &answer, leader.store());
        }
    }
}

/// The recorded bytes with the claim of `leader`, and no other change.
fn claimed(leader: &Leader, body: &[u8], call: &Value) -> String {
    let text = std::str::from_utf8(body).unwrap();
    let claim = |field: &str, value: &Value| format!("\"{field}\":{value}");
    let store = (claim("store", &call["store"]), claim("store", &json!(leader.store())));
    let epoch = (claim("epoch", &call["epoch"]), claim("epoch", &json!(leader.epoch())));
    assert!(text.contains(&store.0) && text.contains(&epoch.0), "{text}");
    text.replacen(&store.0, &store.1, 1).replacen(&epoch.0, &epoch.1, 1)
}

async fn post(client: &Client, path: &str, body: impl Into<Bytes>) -> Answer {
    let headers = [("content-type", "application/json")];
    client.send_bytes(Method::POST, path, body.into(), &headers).await
}

/// Adds an answer. The store is random, and pool data becomes durable at a time of its own.
fn add(recording: &mut Recording, title: &str, answer: &Answer, store: &str) {
    let text = std::str::from_utf8(&answer.bytes).unwrap().replace(store, STORE);
    let text = match title.contains("/events") || title.contains("(fed)") {
        true => masked(&masked(&text, "durableUpTo"), "stalenessSeconds"),
        false => text,
    };
    recording.add(format!("{title} -> {}", answer.code), text);
}

/// The JSON with 0 as the value of each `field`.
pub(crate) fn masked(text: &str, field: &str) -> String {
    let begin = format!("\"{field}\":");
    let mut parts = text.split(&begin);
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find([',', '}', ']']).unwrap_or(part.len());
        let zero = if part.starts_with('"') { "\"0\"" } else { "0" };
        masked.extend([&begin, zero, &part[end..]]);
    }
    masked
}

#[tokio::test]
async fn golden_bodies_of_the_feed_are_applied_and_answered() {
    let (server, leader) = led_pool().await;
    let mut answers = Recording::default();
    let state = leader.client.get(FEED).await;
    add(&mut answers, "GET /yurt/v1/feed (empty)", &state, leader.store());
    play(&leader, STORE, &mut answers).await;
    let state = leader.client.get(FEED).await;
    add(&mut answers, "GET /yurt/v1/feed (fed)", &state, leader.store());
    let members = server.admin().get("/yurt/v1/members").await;
    add(&mut answers, "GET /yurt/v1/members", &members, leader.store());
    let fed = server.node("n2").get("/api/v1/services").await;
    answers.add("services (fed)", &fed.bytes);

    // A coordinator that lost its disk knows the deletions that the leader remembers.
    let (other, leader) = led_pool().await;
    play(&leader, OTHER_STORE, &mut answers).await;
    let reader = other.node("n2");
    let fed = reader.get("/api/v1/services").await;
    answers.add("services (after a lost disk)", &fed.bytes);
    let query = format!("resourceVersion={CREATED}&allowWatchBookmarks=true&timeoutSeconds=3");
    let mut watch = reader.watch(&format!("/api/v1/services?{query}")).await;
    let mut told = Vec::new();
    while told.last().is_none_or(|last| last != "BOOKMARK") {
        told.push(watch.told().await);
    }
    assert_eq!(told, ["DELETED db", "DELETED new", "MODIFIED web", "BOOKMARK"]);
    answers.check(ANSWERS);
}

#[tokio::test]
async fn golden_refusals_of_the_feed_are_answered() {
    let (server, leader) = led_pool().await;
    let mut refusals = Recording::default();
    let early = leader.snapshot("services", 0, 100, &[service("a", 50)]).await;
    add(&mut refusals, "before the members", &early, leader.store());
    let names = [json!({"metadata": {"name": "n2", "uid": "n2", "resourceVersion": "10"}})];
    let without = leader.snapshot("members", 0, 10, &names).await;
    add(&mut refusals, "members without the leader", &without, leader.store());
    leader.feed_members(&["n1", "n2"]).await;
    let fed = leader.snapshot("services", 0, 100, &[service("a", 50)]).await;
    fed.expect(200);
    let batch = |generation: u64, after: u64, up_to: u64, events: Value| {
        let (after, up_to) = (after.to_string(), up_to.to_string());
        json!({"generation": generation, "after": after, "upTo": up_to, "fresh": true, "events": events})
    };
    let early = json!([event("MODIFIED", service("a", 40))]);
    for (title, path, body) in [
        ("gap", "services/events", batch(0, 115, 120, json!([]))),
        ("generation", "services/events", batch(7, 100, 120, json!([]))),
        ("position", "services/events", batch(0, 100, 1 << 53, json!([]))),
        ("event before after", "services/events", batch(0, 100, 120, early)),
        ("no message", "services/events", json!({})),
        ("no collection", "secrets/events", json!({})),
        ("no call", "services/other", json!({})),
    ] {
        let refused = leader.call(path, body).await;
        add(&mut refusals, title, &refused, leader.store());
    }
    for (title, generation, at, version) in [
        ("behind", 0, 90, 50),
        ("backwards", 0, 200, 40),
        ("leap", 1_001_000_000, 200, 50),
    ] {
        let refused = leader
            .snapshot("services", generation, at, &[service("a", version)])
            .await;
        add(&mut refusals, title, &refused, leader.store());
    }
    for (title, query) in [("no version", ""), ("later version", "?version=2")] {
        let body = leader.claiming(batch(0, 100, 110, json!([]))).to_string();
        let refused = post(&leader.client, &format!("{FEED}/services/events{query}"), body).await;
        add(&mut refusals, title, &refused, leader.store());
    }
    let body = leader.claiming(batch(0, 100, 110, json!([]))).to_string();
    let refused = post(&server.node("n2"), &format!("{FEED}/services/events?version=1"), body).await;
    add(&mut refusals, "fenced", &refused, leader.store());
    refusals.check("feed/refusals.txt");
}

#[tokio::test]
async fn golden_reports_voids_and_bars_are_answered() {
    let reports = Recording::read("feed/reports.txt");
    let report: Value = serde_json::from_slice(reports.section("forged")).unwrap();
    let (server, leader) = led_pool().await;
    leader.feed_members(&["n1", "n2", "n3"]).await;
    let mut web = service("web", report["resourceVersion"].as_str().unwrap().parse().unwrap());
    web["metadata"]["namespace"] = json!("shop");
    let at = rv(&web).parse().unwrap();
    leader.snapshot("services", 0, at, &[web]).await.expect(200);
    let mut answers = Recording::default();
    let post = async |node: &str, section: &str| {
        post(
            &server.node(node),
            "/yurt/v1/reports",
            reports.section(section).to_vec(),
        )
        .await
    };
    let open = post("n2", "forged").await;
    add(&mut answers, "POST /yurt/v1/reports (forged)", &open, leader.store());
    let state = server.node("n3").get(FEED).await.expect(200);
    answers.add("reports in GET /yurt/v1/feed", state["reports"].to_string());
    let denied = post("n3", "honest").await;
    add(&mut answers, "POST /yurt/v1/reports (honest)", &denied, leader.store());
    let admin = server.admin();
    let bars = admin.get("/yurt/v1/bars").await;
    add(&mut answers, "GET /yurt/v1/bars", &bars, leader.store());
    let members = admin.delete("/yurt/v1/feed/members").await;
    add(&mut answers, "DELETE /yurt/v1/feed/members", &members, leader.store());
    let void = admin.delete("/yurt/v1/feed/services").await.expect(200);
    let generation = void["collections"]["services"]["generation"].as_u64().unwrap();
    assert_eq!(generation / 1_000_000, 1, "the next step, with a random rest");
    let void = void.to_string().replace(&generation.to_string(), "1000000");
    let void = masked(&void.replace(leader.store(), STORE), "stalenessSeconds");
    answers.add("DELETE /yurt/v1/feed/services -> 200", masked(&void, "durableUpTo"));
    let mut answer = admin.delete("/yurt/v1/members").await;
    let text = String::from_utf8(answer.bytes.to_vec()).unwrap();
    answer.bytes = text.replace(&generation.to_string(), "1000000").into();
    add(&mut answers, "DELETE /yurt/v1/members", &answer, leader.store());
    answers.check("feed/administration.txt");
}
