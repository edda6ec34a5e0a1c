//! Everything that a hub keeps on its disk, after a kill and after a power cut at each of its writes: the next start
//! without the cloud serves nothing false, has what was acknowledged, and finds no damage.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::StreamExt as _;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use yurt_runtime::http::{full, json as json_answer};
use yurt_test_support::TestDir;
use yurt_test_support::fault_fs::FaultFs;
use yurt_test_support::fault_fs::power::{Change, Followed, Loss, Tree};

use super::client::{Answer, Client, request};
use super::cloud::Cloud;
use super::configuring::configure;
use super::harness::{TestHub, flags_of, own_uid};

const OWN_PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
const SECRET: &str = "/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Ddb";
const NODE: &str = "/api/v1/nodes/n1";
const POD: &str = "/api/v1/namespaces/shop/pods/web";
const EVENTS: &str = "/api/v1/namespaces/shop/events";
const TOKEN: &str = "/api/v1/namespaces/shop/serviceaccounts/web/token";
const TOKEN_ANSWER: &str =
    r#"{"kind":"TokenRequest","status":{"token":"real","expirationTimestamp":"2999-01-01T00:00:00Z"}}"#;

/// Images that one run tries, in addition to those of the acknowledgements; `YURT_EVERY_WRITE=1` tries all.
const IMAGES: usize = 40;
/// Hubs that start at the same time: most of a start without the cloud is waiting.
const AT_ONCE: usize = 12;
const LOSSES: [Loss; 4] = [Loss::Killed, Loss::All, Loss::Bytes, Loss::Some];

/// Acknowledgements, in the order of the life below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fact {
    /// The hub serves the selections from its replicas.
    Cached,
    /// The status was accepted without the cloud.
    Written,
    /// A clean stop: events, kept answers, tokens and the configuration are on the disk, too.
    Stopped,
    /// The second status was accepted.
    WrittenAgain,
    /// The cloud is back and may have everything.
    Returned,
}

const FACTS: [Fact; 5] = [
    Fact::Cached,
    Fact::Written,
    Fact::Stopped,
    Fact::WrittenAgain,
    Fact::Returned,
];

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": name}, "spec": {"nodeName": "n1"},
        "status": {"phase": "Pending"}})
}

fn node() -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "u-n1", "resourceVersion": "10"}, "status": {}})
}

async fn write_status(client: &Client, phase: &str) -> Answer {
    let headers = [("content-type", "application/merge-patch+json")];
    let body = json!({"status": {"phase": phase}}).to_string();
    let path = format!("{POD}/status");
    client.send(request(Method::PATCH, &path, &headers, full(body))).await
}

async fn create_event(client: &Client, name: &str) -> Answer {
    let event = json!({"kind": "Event", "apiVersion": "v1", "metadata": {"namespace": "shop", "name": name},
        "involvedObject": {"kind": "Pod", "name": "web"}, "reason": "BackOff", "count": 1});
    let headers = [("content-type", "application/json")];
    client
        .send(request(Method::POST, EVENTS, &headers, full(event.to_string())))
        .await
}

async fn ask_for_a_token(client: &Client) -> Answer {
    let spec = json!({"audiences": ["api"], "expirationSeconds": 3607});
    let body = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": spec}).to_string();
    let headers = [("content-type", "application/json")];
    client.send(request(Method::POST, TOKEN, &headers, full(body))).await
}

async fn list(client: &Client, path: &str) -> Answer {
    client.get(&format!("{path}&resourceVersion=0")).await
}

/// Failures of the disk in a state of the hub, with their reasons.
pub(super) fn disk_troubles(state: &Value) -> Vec<(&'static str, &Value)> {
    let found = |name: &'static str| state["troubles"].get(name).map(|why| (name, why));
    ["durable copy", "cache", "local writes", "kept answers"]
        .into_iter()
        .filter_map(found)
        .collect()
}

/// A cloud with what a node needs.
async fn cloud() -> Cloud {
    let cloud = Cloud::start().await;
    cloud.put("pods", pod("web"));
    cloud.put("pods", pod("db"));
    cloud.put(
        "secrets",
        json!({"metadata": {"namespace": "shop", "name": "db"}, "data": {"a": "Yg=="}}),
    );
    cloud.on(NODE, |_| async { json_answer(StatusCode::OK, node().to_string()) });
    cloud.on(TOKEN, |_| async { json_answer(StatusCode::CREATED, TOKEN_ANSWER) });
    cloud.on(EVENTS, |_| async { json_answer(StatusCode::CREATED, "{}") });
    cloud.allow("good", true);
    cloud.allow("bad", false);
    configure(&cloud, &json!({"masterservice": "a"}));
    cloud
}

/// Flags of a hub in this folder.
pub(super) fn flags(cloud: &Cloud, folder: &TestDir) -> Vec<String> {
    let mut flags = flags_of(cloud, folder, super::harness::NODE, &cloud.url());
    flags.push(format!("--node-identity-uids={}", own_uid()));
    flags
}

async fn until_live(hub: &TestHub) {
    let is_live = |state: &Value| {
        let selection = |name: &str| state["cache"]["selections"][name]["complete"] == true;
        selection(OWN_PODS) && selection(SECRET) && state["hubConfig"]["current"] == true
    };
    hub.until("the selections must be followed", is_live).await;
}

/// Lives on a recorded disk: a node with the cloud, without it, over a restart, and with it again. Returns the changes
/// of the disk before the hub's start and after it.
async fn live(cloud: &mut Cloud) -> Option<(Vec<Change>, Vec<Change>)> {
    let (folder, behind) = (Arc::new(TestDir::new()), TestDir::new());
    let disk = FaultFs::mount_or_skip(folder.path(), behind.path())?;
    disk.record();
    let flags = flags(cloud, &folder);
    let before = disk.stop_recording();
    disk.record();
    let note = |fact: Fact| disk.note(fact as usize);
    let mut hub = TestHub::try_start(flags, folder.clone()).await.expect("it starts");
    hub.wait_until_complete().await;
    let kubelet = hub.kubelet();
    for path in [OWN_PODS, SECRET] {
        list(&kubelet, path).await.expect(200);
    }
    list(&hub.bearer("kubelet/v1", "good"), SECRET).await.expect(200);
    list(&hub.bearer("kubelet/v1", "bad"), SECRET).await.expect(403);
    until_live(&hub).await;
    note(Fact::Cached);
    kubelet.get(NODE).await.expect(200);
    kubelet.get(POD).await.expect(200);
    hub.until("the Node must be kept", |state| {
        state["offline"]["answers"]["records"].as_u64() > Some(0)
    })
    .await;
    ask_for_a_token(&kubelet).await.expect(201);
    cloud.put("pods", pod("new"));
    cloud.delete("pods", "shop", "db");
    cloud.go_away().await;
    write_status(&kubelet, "Running").await.expect(200);
    note(Fact::Written);
    for name in ["web.1", "web.2"] {
        create_event(&kubelet, name).await.expect(201);
    }
    hub.stop().await;
    note(Fact::Stopped);
    hub.restart().await;
    write_status(&hub.kubelet(), "Failed").await.expect(200);
    note(Fact::WrittenAgain);
    cloud.on(&format!("{POD}/status"), |_| async {
        json_answer(StatusCode::OK, pod("web").to_string())
    });
    cloud.come_back().await;
    note(Fact::Returned);
    hub.until("the cloud must have everything", |state| {
        state["offline"]["localWrites"] == json!([]) && state["offline"]["events"]["records"] == 0
    })
    .await;
    hub.stop().await;
    cloud.go_away().await;
    Some((before, disk.stop_recording()))
}

/// Starts a hub with this content of its disk, and asks it for everything.
async fn check(cloud: &Cloud, image: &Tree, last: Option<Fact>) -> Result<(), String> {
    let folder = TestDir::new();
    // Flags name files of the administrator, which no cut of the hub's writes can damage.
    let flags = flags(cloud, &folder);
    image.write_to(folder.path()).expect("a folder");
    let hub = TestHub::try_start(flags, folder).await;
    let mut hub = hub.map_err(|error| format!("does not start: {error}"))?;
    let found = ask(&hub, last).await;
    hub.stop().await;
    found
}

async fn ask(hub: &TestHub, last: Option<Fact>) -> Result<(), String> {
    let kubelet = hub.kubelet();
    let is = |fact: Fact| last >= Some(fact);
    let state = hub.state().await;
    if let Some((name, why)) = disk_troubles(&state).first() {
        return Err(format!("trouble with {name}: {why}"));
    }
    let require = |what: &str, is_certain: bool, answer: &Answer| match answer.code {
        200 | 201 => Ok(true),
        429 | 503 if !is_certain => Ok(false),
        code => Err(format!("{what}: {code} {}", String::from_utf8_lossy(&answer.body))),
    };
    let pods = list(&kubelet, OWN_PODS).await;
    if require("the pods", is(Fact::Cached), &pods)? {
        let names: BTreeSet<String> = pods.names().into_iter().collect();
        let known = [&["db", "web"][..], &["db", "new", "web"], &["new", "web"]];
        if !known.iter().any(|known| known.iter().eq(names.iter())) {
            return Err(format!("pods that the cloud never had together: {names:?}"));
        }
    }
    let secrets = list(&kubelet, SECRET).await;
    if require("the secret", is(Fact::Cached), &secrets)? && secrets.json()["items"][0]["data"]["a"] != "Yg==" {
        return Err(format!("another secret: {}", secrets.json()));
    }
    for token in ["bad", "unknown"] {
        let answer = list(&hub.bearer("kubelet/v1", token), SECRET).await;
        if !matches!(answer.code, 401 | 403 | 429 | 503) {
            return Err(format!("token {token:?} reads the secret: {}", answer.code));
        }
    }
    let node = kubelet.get(NODE).await;
    if require("the Node", is(Fact::Stopped), &node)? && node.json() != self::node() {
        return Err(format!("another Node: {}", node.json()));
    }
    let token = ask_for_a_token(&kubelet).await;
    if require("the token", is(Fact::Stopped), &token)? && token.body != TOKEN_ANSWER {
        return Err("another token".to_owned());
    }
    if is(Fact::Stopped) && state["hubConfig"]["keys"] != json!(["masterservice"]) {
        return Err(format!("the configuration is lost: {}", state["hubConfig"]));
    }
    let events = state["offline"]["events"]["records"].as_u64().expect("a number");
    if events > 2 || (is(Fact::Stopped) && !is(Fact::Returned) && events != 2) {
        return Err(format!("{events} events"));
    }
    if is(Fact::Written) && !is(Fact::Returned) && state["offline"]["localWrites"] != json!(["shop/web"]) {
        return Err(format!("the status is lost: {}", state["offline"]["localWrites"]));
    }
    Ok(())
}

/// True for a write into the database, whose own tests cut the power at each of them.
fn is_of_database(change: &Change, databases: &BTreeSet<u64>) -> bool {
    matches!(change, Change::Write { file, .. } | Change::Resize { file, .. } | Change::Sync { file } if databases.contains(file))
}

/// Content of the disk after a crash.
struct Crash {
    /// Place in the history of the disk, and what was lost.
    place: String,
    image: Tree,
    last: Option<Fact>,
}

/// Probability that a crash at this change is tried: a third of the images is of the database.
fn shares(changes: &[Change]) -> impl Fn(&Change) -> f64 {
    let databases: BTreeSet<u64> = changes
        .iter()
        .filter_map(|change| match change {
            Change::Create { at, number } if at.1 == "replicas.redb" => Some(*number),
            _ => None,
        })
        .collect();
    let all = std::env::var_os("YURT_EVERY_WRITE").is_some();
    let writes = changes
        .iter()
        .filter(|change| is_of_database(change, &databases))
        .count();
    let others = changes.len() - writes;
    move |change| match is_of_database(change, &databases) {
        _ if all => 1.0,
        true => IMAGES as f64 / 3.0 / LOSSES.len() as f64 / writes.max(1) as f64,
        false => IMAGES as f64 / 1.5 / LOSSES.len() as f64 / others.max(1) as f64,
    }
}

/// The crashes that one run tries.
fn crashes(before: &[Change], changes: &[Change]) -> impl Iterator<Item = Crash> {
    let share = shares(changes);
    let mut random = fastrand::Rng::with_seed(1);
    let mut disk = Followed::after(before);
    let mut last = None;
    changes.iter().enumerate().flat_map(move |(point, change)| {
        disk.apply(change);
        if let Change::Note(fact) = change {
            last = Some(FACTS[*fact]);
        }
        // Every crash right after an acknowledged write is checked; others are a sample.
        let is_note = matches!(change, Change::Note(_));
        let chosen = LOSSES.map(|loss| (loss, random.f64() < share(change) || is_note));
        let chosen = chosen.into_iter().filter(|(_, is_chosen)| *is_chosen);
        let crashes: Vec<Crash> = chosen
            .map(|(loss, _)| Crash {
                place: format!("write point {point}, {loss:?}, after {last:?}, {change:?}"),
                image: disk.image(loss, || random.bool()),
                last,
            })
            .collect();
        crashes
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_or_power_cut_at_any_write_of_a_hub_loses_nothing_that_was_acknowledged() {
    let mut cloud = cloud().await;
    let Some((before, changes)) = live(&mut cloud).await else {
        return;
    };
    let checks = crashes(&before, &changes).map(|crash| {
        let cloud = &cloud;
        async move {
            let found = check(cloud, &crash.image, crash.last).await;
            found.unwrap_or_else(|why| panic!("{}: {why}", crash.place));
        }
    });
    let images = futures_util::stream::iter(checks)
        .buffer_unordered(AT_ONCE)
        .count()
        .await;
    eprintln!("{images} contents of the disk, {} changes", changes.len());
    let is_note = |change: &&Change| matches!(change, Change::Note(_));
    assert_eq!(changes.iter().filter(is_note).count(), FACTS.len());
    assert!(images > LOSSES.len() * FACTS.len(), "{images}");
}
