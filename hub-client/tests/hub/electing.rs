//! Election and work of the leader, against a coordinator that keeps leases: requests, tasks that end, and state that
//! remains.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Method, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use yurt_runtime::http::{APPLICATION_JSON, empty, json as answer_json, respond, stream as body_of};
use yurt_test_support::{TestDir, eventually};

use super::cloud::{Cloud, SeenRequest};
use super::harness::TestHub;
use super::pool::{DELEGATE, ELECTION_LEASES, NODE_LEASES, POOL, Pool};
use super::relay_pool::Link;

const SERVICES: &str = "/api/v1/services";

/// Number of probes of the coordinator, one every 5 s, that take longer than the limit of a lease request, 2 s.
const PROBES: usize = 2;
/// Number of further requests after which the pauses between them are judged.
const REPETITIONS: usize = 3;

/// Waits until the coordinator was probed `count` more times.
async fn probes(pool: &Pool, count: usize) {
    let probed = || pool.coordinator.seen("/yurt/v1/feed").len();
    let enough = probed() + count;
    eventually("the coordinator is probed", async || (probed() >= enough).then_some(())).await;
}

fn leads(state: &Value) -> bool {
    state["hubState"] == "LeaderHub"
}

fn follows(state: &Value) -> bool {
    state["hubState"] == "FollowerHub"
}

fn service(name: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name}})
}

fn cloud_lease(cloud: &Cloud, node: &str) -> Option<Value> {
    cloud.get("leases", Some("kube-node-lease"), node)
}

/// Gives the lease to another holder, then frees it.
async fn lead_again(pool: &Pool, hub: &TestHub) {
    pool.give_lease_to("other_1");
    hub.until("a deposed leader stops", follows).await;
    pool.give_lease_to("");
    let state = hub.until("a free lease is taken", leads).await;
    let services = &state["collections"]["services"];
    let kept = (&services["complete"], &services["generation"]);
    assert_eq!(
        kept,
        (&json!(true), &json!(0)),
        "no change of leader undoes what is known"
    );
}

#[tokio::test]
async fn fifty_changes_of_leader_leave_no_task_and_no_connection_behind() {
    let pool = Pool::start().await;
    let hub = pool.leader("n1").await;
    // The leader feeds a collection before its own first commit, which readers wait for.
    hub.wait_until_complete().await;
    let connections = || -> BTreeSet<SocketAddr> {
        let seen = [pool.coordinator.all_seen(), pool.cloud.all_seen()].concat();
        seen.iter().map(|seen| seen.peer).collect()
    };
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..5 {
        lead_again(&pool, &hub).await;
    }
    let (connections_before, tasks_before) = (connections(), tasks());
    for _ in 0..50 {
        lead_again(&pool, &hub).await;
    }
    assert_eq!(hub.state().await["electionsWon"], 56);
    let more: BTreeSet<_> = connections().difference(&connections_before).copied().collect();
    assert!(
        more.len() <= 5,
        "one that broke is replaced, none is made per change: {more:?}"
    );
    // A client of the test, or a request in flight, may come and go.
    let is_same = async || (tasks() <= tasks_before + 10).then_some(());
    eventually("what a leadership started must have ended with it", is_same).await;
}

/// The coordinator limits the bytes of a lease and the range of its numbers. A member could fill both, and then free
/// the lease.
#[tokio::test]
async fn successor_keeps_nothing_that_a_former_holder_left_in_the_lease() {
    let pool = Pool::start().await;
    pool.coordinator.put_lease(json!({
        "metadata": {
            "namespace": "kube-system",
            "name": "yurthub",
            "labels": {"filled": "x"},
            "annotations": {"filled": "x".repeat(16_000)},
            "finalizers": ["example.com/filled"],
            "managedFields": [{"manager": "filled", "operation": "Apply"}],
        },
        "spec": {"holderIdentity": "", "leaseTransitions": i32::MAX, "filled": "x"},
        "filled": "x",
    }));
    let hub = pool.leader("n1").await;
    hub.until("it leads", leads).await;
    let lease = pool.election();
    assert!(!lease.to_string().contains("filled"), "{lease}");
    assert_eq!(lease["spec"]["leaseTransitions"], 0);
}

/// A lease that is filled up to the coordinator's limit has no room for what a successor adds.
#[tokio::test]
async fn successor_keeps_nothing_that_a_former_leader_left_in_the_sync_lease() {
    let pool = Pool::start().await;
    let sync = || {
        pool.coordinator
            .get("leases", Some("kube-system"), "leader-informer-sync")
    };
    pool.coordinator.put_lease(json!({
        "metadata": {
            "namespace": "kube-system",
            "name": "leader-informer-sync",
            "annotations": {"openyurt.io/rv-filled": "7", "filled": "x".repeat(16_000)},
            "managedFields": [{"manager": "filled", "operation": "Apply"}],
        },
        "spec": {"holderIdentity": "n2_1", "renewTime": "2020-01-01T00:00:00.000000Z", "filled": "x"},
    }));
    let _hub = pool.leader("n1").await;
    let is_ours = |lease: &Value| {
        lease["spec"]["holderIdentity"]
            .as_str()
            .is_some_and(|one| one.starts_with("n1_"))
    };
    let lease = eventually("the leader renews it", async || sync().filter(is_ours)).await;
    assert!(!lease.to_string().contains("filled"), "{lease}");
    assert!(
        lease["metadata"]["annotations"]["openyurt.io/rv-services"].is_string(),
        "{lease}"
    );
}

#[tokio::test]
async fn flood_of_lease_changes_does_not_stop_the_election() {
    let pool = Pool::start().await;
    let hub = pool.leader("n1").await;
    // Far more facts than the machine's queue holds; changes of the coordinator's status are among them.
    for round in 0..20 {
        for number in 0..100 {
            pool.give_lease_to(&format!("other_{number}"));
        }
        pool.new_store(&format!("store-{round}"));
        tokio::task::yield_now().await;
    }
    hub.until("a deposed leader stops", |state| !leads(state)).await;
    pool.give_lease_to("");
    hub.until("a free lease is taken", leads).await;
}

#[tokio::test]
async fn lease_watch_lasts_longer_than_a_request_is_opened_again_and_asks_for_one_lease() {
    let pool = Pool::start().await;
    pool.give_lease_to("other_1");
    pool.coordinator.on(ELECTION_LEASES, async |_| {
        respond(StatusCode::OK, APPLICATION_JSON, empty())
    });
    let hub = pool.hub("n1", &[]).await;
    let watches = || pool.coordinator.seen(ELECTION_LEASES);
    eventually("a watch that ended is opened again", async || {
        (watches().len() >= 3).then_some(())
    })
    .await;
    pool.coordinator.off(ELECTION_LEASES);
    let ended = watches().len();
    eventually("and again", async || (watches().len() > ended).then_some(())).await;
    let opened = watches().len();
    probes(&pool, PROBES).await;
    assert_eq!(watches().len(), opened, "it lives as long as it asked for");
    let one = "watch=1&fieldSelector=metadata.name%3Dyurthub&timeoutSeconds=300";
    assert!(watches().iter().all(|watch| watch.query.as_deref() == Some(one)));
    let own = [format!("{ELECTION_LEASES}/yurthub"), format!("{NODE_LEASES}/n1")];
    for asked in pool.asked_about_leases("n1") {
        let is_own = asked.path == ELECTION_LEASES || own.contains(&asked.path);
        assert!(is_own, "a follower has no use for the leases of others: {asked:?}");
    }
    pool.give_lease_to("");
    hub.until("the watch still gets changes", leads).await;
    let all = async || {
        pool.asked_about_leases("n1")
            .into_iter()
            .find(|seen| seen.path == NODE_LEASES)
    };
    eventually("a leader looks after all nodes", all).await;
}

#[tokio::test]
async fn hub_that_may_not_lead_does_not_ask_for_the_lease() {
    let pool = Pool::start().await;
    let hub = pool.hub("n1", &["--leader-elect=false"]).await;
    hub.until("cloud and coordinator must be reached", |state| {
        state["cloudReachable"] == true && state["coordinatorReachable"] == true
    })
    .await;
    // n2 had the same opportunity for longer.
    let _other = pool.leader("n2").await;
    assert_eq!(
        pool.asked_about_leases("n1").len(),
        0,
        "{:?}",
        pool.asked_about_leases("n1")
    );
    pool.give_lease_to("");
    pool.until_held_by("n2").await;
    assert_eq!(pool.asked_about_leases("n1").len(), 0);
    assert_eq!(hub.state().await["electionsWon"], 0);
}

#[tokio::test]
async fn leader_that_is_no_member_any_more_stops() {
    let pool = Pool::start().await;
    let hub = pool.leader("n1").await;
    pool.coordinator.forbid("system:node:n1");
    hub.until("a leader whose renewals are refused stops", |state| !leads(state))
        .await;
    pool.give_lease_to("");
    let _successor = pool.leader("n2").await;
    assert_eq!(hub.state().await["electionsWon"], 1);
}

/// The position from which the cloud is watched is above a name that only an earlier leader fed.
#[tokio::test]
async fn new_leader_reads_who_belongs_to_the_pool_from_the_cloud() {
    let pool = Pool::start_fed().await;
    pool.give_lease_to("n2_leads");
    pool.coordinator.put("members", json!({"metadata": {"name": "ghost"}}));
    pool.cloud.put("services", service("later"));
    let hub = pool.hub("n1", &[]).await;
    let members = |state: &Value| state["collections"]["members"]["objects"].as_u64();
    let of = |state: &Value| state["collections"]["members"]["source"].clone();
    hub.until("the coordinator says who they are", |state| {
        of(state) == "coordinator" && members(state) == Some(4)
    })
    .await;
    pool.cloud.put("services", service("latest"));
    pool.give_lease_to("");
    hub.until("the cloud says who they are", |state| {
        leads(state) && of(state) == "cloud" && members(state) == Some(3)
    })
    .await;
}

/// Only its link is cut: hub and clients live, and the others reach the cloud.
#[tokio::test]
async fn leader_cut_off_from_the_cloud_gives_up_and_no_client_hears_of_it() {
    let pool = Pool::start_fed().await;
    for name in ["a", "b", "c"] {
        pool.cloud.put("services", service(name));
    }
    let mut link = Link::to(pool.cloud.addr()).await;
    let first = pool.hub_at("n1", &link.url(), &[]).await;
    first.until("the first hub leads", leads).await;
    let second = pool.hub("n2", &[]).await;
    let mut watches = Vec::new();
    for hub in [&first, &second] {
        hub.wait_until_complete().await;
        let list = hub.kube_proxy().get(SERVICES).await;
        assert_eq!(list.names(), ["a", "b", "c"]);
        let at = list.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        watches.push(
            hub.kube_proxy()
                .watch(&format!("{SERVICES}?resourceVersion={at}"))
                .await,
        );
    }
    let relists = async |hub: &TestHub| hub.state().await["collections"]["services"]["relistsForced"].clone();
    let before = [relists(&first).await, relists(&second).await];
    link.cut().await;
    pool.until_held_by("n2").await;
    second.until("the second hub leads", leads).await;
    first.until("the first one follows", follows).await;
    pool.cloud.put("services", service("late"));
    for watch in &mut watches {
        assert_eq!(watch.told().await, "ADDED late", "and nothing before it");
    }
    assert_eq!([relists(&first).await, relists(&second).await], before);
    let state = first.state().await;
    assert_eq!(
        (&state["electionsWon"], &state["cloudReachable"]),
        (&json!(1), &json!(false))
    );
}

/// A hub that is refused for a while retries with pauses.
#[tokio::test]
async fn refusals_are_met_with_pauses() {
    let pool = Pool::start().await;
    let paths = |feed: &str| format!("/yurt/v1/feed/{feed}");
    let [snapshot, scope] = [paths("services/snapshot"), paths("scope")];
    let refused = [
        (&pool.cloud, "/apis/discovery.k8s.io/v1/endpointslices"),
        (&pool.cloud, "/api/v1/endpoints"),
        (&pool.coordinator, ELECTION_LEASES),
        (&pool.coordinator, NODE_LEASES),
        (&pool.coordinator, &snapshot),
        (&pool.coordinator, &scope),
    ];
    for (server, path) in refused {
        server.on(path, async |_| {
            answer_json(StatusCode::INTERNAL_SERVER_ERROR, r#"{"kind":"Status","code":500}"#)
        });
    }
    // An existing lease is replaced: leading needs no watch and no create.
    pool.give_lease_to("");
    let hub = pool.hub("n1", &[]).await;
    hub.until("the hub leads", leads).await;
    let began = tokio::time::Instant::now();
    let asked = || refused.map(|(server, path)| server.seen(path).len());
    let before = asked();
    let again = async || {
        asked()
            .iter()
            .zip(&before)
            .all(|(now, before)| *now >= before + REPETITIONS)
            .then_some(())
    };
    eventually("each gets requests again", again).await;
    let (seconds, after) = (began.elapsed().as_secs() as usize + 1, asked());
    for (((_, path), before), after) in refused.into_iter().zip(before).zip(after) {
        let times = after - before;
        assert!(times <= 10 * seconds, "{path}: {times} times in {seconds} s");
    }
}

/// The coordinator's store has a limit. A retry fails until the object changes.
#[tokio::test]
async fn object_that_is_too_large_is_fed_again_when_it_is_another_one() {
    let pool = Pool::start().await;
    let hub = pool.leader("n1").await;
    let [events, snapshot] = ["events", "snapshot"].map(|call| format!("/yurt/v1/feed/services/{call}"));
    pool.coordinator.on(&events, async |_| {
        let details = json!({"name": "default/large", "kind": "services"});
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 413,
            "reason": "RequestEntityTooLarge", "message": "services default/large has 2 MiB", "details": details});
        answer_json(StatusCode::PAYLOAD_TOO_LARGE, status.to_string())
    });
    let large = |size: &str| json!({"metadata": {"name": "large", "namespace": "default", "labels": {"size": size}}});
    pool.cloud.put("services", large("2"));
    hub.until("the refusal is reported", |state| {
        state["troubles"]
            .to_string()
            .contains("services default/large has 2 MiB")
    })
    .await;
    let calls = || -> Vec<String> {
        let paths = pool.coordinator.all_seen().into_iter().map(|seen| seen.path);
        paths.filter(|path| [&events, &snapshot].contains(&path)).collect()
    };
    let before = calls().len();
    // A leader renews every 2 s.
    let renewals = || {
        pool.asked_about_leases("n1")
            .iter()
            .filter(|seen| seen.method == Method::PUT)
            .count()
    };
    let renewed = renewals() + 2;
    eventually("the leader goes on renewing", async || {
        (renewals() >= renewed).then_some(())
    })
    .await;
    assert_eq!(calls().len(), before);
    pool.cloud.put("services", large("1"));
    let again = async || (calls().len() > before).then_some(());
    eventually("the leader feeds again", again).await;
    // The changes in between would still be refused: a snapshot comes first, then events follow it.
    assert_eq!(calls()[before], snapshot);
}

/// Stops the coordinator; after the hub detects that, it returns with an empty store.
async fn lose_store(pool: &mut Pool, hub: &TestHub) {
    pool.coordinator.go_away().await;
    hub.until("the loss must be noticed", |state| {
        state["coordinatorReachable"] == false
    })
    .await;
    pool.new_store("an-empty-one");
    pool.coordinator.come_back().await;
}

/// The cloud goes first, then the coordinator. The coordinator returns empty while the cloud is still away.
#[tokio::test]
async fn coordinator_that_comes_back_empty_in_an_outage_is_fed_everything_after_it() {
    let mut pool = Pool::start().await;
    let hub = pool.leader("n1").await;
    pool.cloud.go_away().await;
    hub.until("a leader without the cloud stops", |state| !leads(state))
        .await;
    lose_store(&mut pool, &hub).await;
    hub.until("the coordinator is back", follows).await;
    pool.cloud.come_back().await;
    hub.until("the hub leads again", leads).await;
    pool.until_fed().await;
    let fed = pool.fed("services/snapshot");
    assert!(fed.iter().all(|call| call["store"] == "an-empty-one"), "{fed:?}");
}

/// The leader keeps the history of deletions; a new store has none. Hubs that were killed are behind it.
#[tokio::test]
async fn coordinator_that_lost_its_disk_is_told_what_the_leader_remembers() {
    let mut pool = Pool::start().await;
    for name in ["stays", "goes"] {
        pool.cloud
            .put("services", json!({"metadata": {"namespace": "shop", "name": name}}));
    }
    let hub = pool.leader("n1").await;
    let number = |value: &Value| value.as_str().unwrap().parse::<u64>().unwrap();
    let first_fed = number(&pool.fed("services/snapshot")[0]["at"]);
    pool.cloud.delete("services", "shop", "goes");
    let fed_at = pool.cloud.version();
    let is_fed = |call: &Value| call["upTo"] == fed_at.as_str();
    eventually("the deletion is fed", async || {
        pool.fed("services/events").iter().any(is_fed).then_some(())
    })
    .await;
    lose_store(&mut pool, &hub).await;
    pool.until_fed().await;
    let fed = pool.fed("services/snapshot");
    let history = &fed[0]["history"];
    assert!(number(&history["floor"]) <= first_fed, "{fed:?}");
    let gone = &history["tombstones"][0]["metadata"];
    assert_eq!(
        (&gone["name"], &gone["resourceVersion"]),
        (&json!("goes"), &json!(fed_at))
    );
    assert_eq!((&history["gaps"], &history["ranges"]), (&json!([]), &json!([])));
}

/// Sends beats of `node` until `has` finds one at the cloud.
async fn beat_until(pool: &Pool, node: &str, beats: &mut u64, has: impl Fn() -> bool) {
    eventually("a beat must be forwarded", async || {
        *beats += 1;
        pool.delegated_beat(node, *beats);
        has().then_some(())
    })
    .await;
}

/// More beats than any test sends.
const MANY: u64 = 1 << 20;

#[tokio::test]
async fn carried_beat_changes_two_fields_and_makes_no_lease() {
    let pool = Pool::start().await;
    let lease = json!({
        "metadata": {
            "namespace": "kube-node-lease", "name": "n2", "labels": {"l": "1"}, "annotations": {"others": "stay"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n2", "uid": "u"}],
        },
        "spec": {"holderIdentity": "n2", "leaseDurationSeconds": 40, "renewTime": "2020-01-01T00:00:00.000000Z", "later": {"a": 1}},
    });
    let before = pool.cloud.put_lease(lease);
    let hub = pool.leader("n1").await;
    let mut beats = 0;
    let asked_for = |node: &str| {
        let path = format!("{NODE_LEASES}/{node}");
        let mut seen = pool.cloud.seen(&path);
        seen.retain(|seen| seen.user.as_deref() == Some(DELEGATE));
        seen
    };
    // n3 was never registered in the cloud, and the cloud does not count m1 among the members.
    let beat_of_others = || {
        pool.delegated_beat("m1", MANY + u64::try_from(asked_for("n3").len()).unwrap());
        asked_for("n3").len() >= 3
    };
    beat_until(&pool, "n3", &mut beats, beat_of_others).await;
    assert!(
        asked_for("m1").is_empty(),
        "the forwarding identity is for members only"
    );
    let trouble = hub.state().await["troubles"]["heartbeats of cut-off nodes"].clone();
    assert_eq!(
        trouble,
        Value::Null,
        "the forwarding identity is not to blame for a missing lease"
    );
    let renewed = || cloud_lease(&pool.cloud, "n2").unwrap()["spec"]["renewTime"] != before["spec"]["renewTime"];
    beat_until(&pool, "n2", &mut beats, renewed).await;
    let mut after = cloud_lease(&pool.cloud, "n2").unwrap();
    assert_eq!(
        after["metadata"]["annotations"]["openyurt.io/delegate-heartbeat"],
        "true"
    );
    after["metadata"]["annotations"] = before["metadata"]["annotations"].clone();
    after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
    after["spec"]["renewTime"] = before["spec"]["renewTime"].clone();
    assert_eq!(after, before, "nothing else is touched");
    assert_eq!(cloud_lease(&pool.cloud, "n3"), None, "a missing lease is not created");
    assert!(asked_for("n3").iter().all(|seen| seen.method == Method::GET));
    assert!(pool.cloud.seen(NODE_LEASES).is_empty(), "nothing is created or listed");
}

#[tokio::test]
async fn leader_goes_on_at_another_server_of_the_cloud() {
    let mut pool = Pool::start().await;
    let second = pool.cloud.another_server().await;
    let lease = json!({
        "metadata": {"namespace": "kube-node-lease", "name": "n2"},
        "spec": {"holderIdentity": "n2", "leaseDurationSeconds": 40, "renewTime": "2020-01-01T00:00:00.000000Z"},
    });
    pool.cloud.put_lease(lease);
    let servers = format!("{},{}", pool.cloud.url(), second.url());
    let hub = pool.hub_at("n1", &servers, &[]).await;
    hub.until("the hub leads", leads).await;
    let carried_at = |pool: &Pool, server: SocketAddr| {
        let path = format!("{NODE_LEASES}/n2");
        let seen = pool.cloud.seen(&path);
        seen.iter()
            .any(|seen| seen.at == server && seen.method == Method::PATCH)
    };
    let (mut beats, first) = (0, pool.cloud.addr());
    beat_until(&pool, "n2", &mut beats, || carried_at(&pool, first)).await;
    let epoch = hub.state().await["epoch"].clone();
    pool.cloud.go_away().await;
    pool.cloud.put("services", service("web"));
    let fed = async || {
        let batches = pool.fed("services/events");
        let mut events = batches.iter().flat_map(|batch| batch["events"].as_array().unwrap());
        events
            .any(|event| event["object"]["metadata"]["name"] == "web")
            .then_some(())
    };
    eventually("the feed must go on", fed).await;
    beat_until(&pool, "n2", &mut beats, || carried_at(&pool, second.addr())).await;
    let state = hub.state().await;
    assert!(leads(&state) && state["epoch"] == epoch, "the same leadership: {state}");
    assert_eq!(state["electionsWon"], 1);
}

/// A bound token lives for an hour; the kubelet writes the next one into the same file.
#[tokio::test]
async fn rotated_token_of_the_forwarding_identity_is_used() {
    let pool = Pool::start().await;
    let folder = TestDir::new();
    let file = folder.write("token", "one");
    let ca = folder.write("ca.pem", pool.cloud.pki().ca_pem());
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": pool.cloud.url(), "certificate-authority": ca}}],
        "users": [{"name": "u", "user": {"tokenFile": file}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    let kubeconfig = folder.write("token.conf", kubeconfig.to_string());
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let seen = tokens.clone();
    pool.cloud.on(&format!("{NODE_LEASES}/n2"), move |request| {
        let sent = request
            .headers()
            .get("authorization")
            .map(|sent| sent.to_str().unwrap().to_owned());
        seen.lock().push(sent.unwrap_or_default());
        async { answer_json(StatusCode::UNAUTHORIZED, "{}") }
    });
    let mut hub = pool.hub("n1", &[]).await;
    hub.set_flag(&format!("--delegate-kubeconfig={}", kubeconfig.display()));
    hub.restart().await;
    hub.until("the hub leads", leads).await;
    let mut beats = 0;
    let has = |token: &str| tokens.lock().iter().any(|sent| *sent == format!("Bearer {token}"));
    beat_until(&pool, "n2", &mut beats, || has("one")).await;
    folder.write("token", "two");
    beat_until(&pool, "n2", &mut beats, || has("two")).await;
}

/// The initial events of a watch do not show the time of the beat.
#[tokio::test]
async fn beat_that_came_while_the_watch_of_the_leases_was_broken_is_not_carried() {
    let pool = Pool::start().await;
    for node in ["n2", "n3"] {
        pool.cloud
            .put_lease(json!({"metadata": {"namespace": "kube-node-lease", "name": node}, "spec": {}}));
    }
    let (watches, told_of_n3) = (Arc::new(Mutex::new(0)), Arc::new(Notify::new()));
    let (opened, go_on) = (watches.clone(), told_of_n3.clone());
    pool.coordinator.on(NODE_LEASES, move |_| {
        let number = {
            let mut opened = opened.lock();
            *opened += 1;
            *opened
        };
        let first = stream::iter(match number {
            1 => vec![lease_event("n2", 1), lease_event("n3", 1)],
            2 => vec![lease_event("n2", 2), lease_event("n3", 2), lease_event("n3", 3)],
            _ => Vec::new(),
        });
        let go_on = go_on.clone();
        let then = stream::once(async move {
            go_on.notified().await;
            lease_event("n2", 3)
        });
        async move {
            match number {
                1 => respond(StatusCode::OK, APPLICATION_JSON, body_of(first)),
                _ => respond(
                    StatusCode::OK,
                    APPLICATION_JSON,
                    body_of(first.chain(then).chain(stream::pending())),
                ),
            }
        }
    });
    let _hub = pool.hub("n1", &[]).await;
    let carried = |node: &str| {
        let seen = pool.cloud.seen(&format!("{NODE_LEASES}/{node}"));
        seen.iter()
            .filter(|seen| seen.method == Method::PATCH && seen.user.as_deref() == Some(DELEGATE))
            .count()
    };
    eventually("an observed beat is forwarded", async || {
        (carried("n3") > 0).then_some(())
    })
    .await;
    assert_eq!(carried("n2"), 0, "a beat during the gap of the watch is not");
    told_of_n3.notify_one();
    eventually("the next one is", async || (carried("n2") > 0).then_some(())).await;
}

fn lease_event(node: &str, number: u64) -> Result<Bytes, Infallible> {
    let annotations = json!({"openyurt.io/delegate-heartbeat": "true"});
    let metadata =
        json!({"namespace": "kube-node-lease", "name": node, "annotations": annotations, "resourceVersion": "1"});
    let renewed = format!("2026-01-01T00:00:{number:02}.000000Z");
    let spec = json!({"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": renewed});
    let event = json!({"type": "MODIFIED", "object": {"metadata": metadata, "spec": spec}});
    Ok(Bytes::from(format!("{event}\n")))
}

/// By the membership that it reads, the leader is not a member: the coordinator rejects that.
#[tokio::test]
async fn leader_that_is_no_member_gives_up_for_one_that_is() {
    let pool = Pool::start().await;
    pool.coordinator.on("/yurt/v1/feed/members/snapshot", |_| async {
        let refusal = json!({"reason": "members", "message": "n1 would be no member"});
        answer_json(StatusCode::CONFLICT, refusal.to_string())
    });
    let hub = pool.hub("n1", &[]).await;
    let is_given_up = |state: &Value| state["electionsWon"].as_u64() > Some(0) && follows(state);
    hub.until("the leader gives up", is_given_up).await;
    eventually("the lease is free", async || pool.holder().is_empty().then_some(())).await;
    let other = pool.hub("n2", &[]).await;
    pool.until_held_by("n2").await;
    assert_eq!(hub.state().await["electionsWon"], 1);
    drop(other);
}

/// The coordinator has the membership already. A Node that loses its label is an event, a changed NodePool a snapshot.
#[tokio::test]
async fn leader_that_leaves_its_pool_gives_up() {
    for has_node_pool in [false, true] {
        let pool = Pool::start_fed().await;
        if has_node_pool {
            pool.cloud.put("nodepools", node_pool(&["n1", "n2", "n3"]));
        }
        let hub = pool.leader("n1").await;
        pool.hold_members();
        for call in ["events", "snapshot"] {
            pool.coordinator
                .on(&format!("/yurt/v1/feed/members/{call}"), |_| async {
                    let refusal = json!({"reason": "members", "message": "n1 would be no member"});
                    answer_json(StatusCode::CONFLICT, refusal.to_string())
                });
        }
        match has_node_pool {
            true => pool.cloud.put("nodepools", node_pool(&["n2", "n3"])),
            false => pool.cloud.put("nodes", json!({"metadata": {"name": "n1"}})),
        };
        hub.until("the leader gives up", follows).await;
        eventually("the lease is free", async || pool.holder().is_empty().then_some(())).await;
    }
}

fn node_pool(nodes: &[&str]) -> Value {
    json!({
        "apiVersion": "apps.openyurt.io/v1beta2", "kind": "NodePool",
        "metadata": {"name": POOL}, "status": {"nodes": nodes},
    })
}

/// A coordinator has a thousand hubs.
#[tokio::test]
async fn follower_keeps_one_connection_to_the_coordinator_and_a_leader_two() {
    let pool = Pool::start_fed().await;
    let connections = |node: &str| -> BTreeSet<SocketAddr> {
        let user = format!("system:node:{node}");
        let seen = pool.coordinator.all_seen().into_iter();
        // The first start checks the certificates before anything else.
        let is_it = |seen: &SeenRequest| {
            seen.at == pool.coordinator.addr() && seen.user.as_ref() == Some(&user) && seen.path != "/livez"
        };
        seen.filter(is_it).map(|seen| seen.peer).collect()
    };
    let leader = pool.leader("n1").await;
    let follower = pool.hub("n2", &["--leader-elect=false"]).await;
    follower.wait_until_complete().await;
    let lease = format!("{NODE_LEASES}/n2");
    let beat = r#"{"metadata":{"name":"n2","namespace":"kube-node-lease"},"spec":{"holderIdentity":"n2"}}"#;
    follower.kubelet().put(&lease, "application/json", beat).await;
    let is_written =
        |seen: &SeenRequest| seen.user.as_deref() == Some("system:node:n2") && seen.path.starts_with(NODE_LEASES);
    eventually("the beat is in the pool", async || {
        let seen = pool.coordinator.all_seen();
        seen.iter()
            .any(|seen| seen.at == pool.coordinator.addr() && is_written(seen))
            .then_some(())
    })
    .await;
    assert_eq!(connections("n2").len(), 1, "copies, probes and leases share it");
    assert_eq!(connections("n1").len(), 2, "and the feed has its own");
    drop(leader);
}

/// As leader it would replace the pool's members with the nodes of the other pool.
#[tokio::test]
async fn hub_with_the_name_of_another_pool_than_its_node_does_not_lead_and_says_why() {
    let pool = Pool::start().await;
    let label = json!({"apps.openyurt.io/nodepool": "shore"});
    pool.cloud
        .put("nodes", json!({"metadata": {"name": "n1", "labels": label}}));
    let hub = pool.hub("n1", &[]).await;
    let state = hub
        .until("the mismatch must be reported", |state| {
            state["troubles"]["pool of the node"]["why"].is_string()
        })
        .await;
    let why = state["troubles"]["pool of the node"]["why"].as_str().unwrap();
    for part in ["--nodepool-name", POOL, "apps.openyurt.io/nodepool", "shore"] {
        assert!(why.contains(part), "{why}");
    }
    hub.until("it follows", follows).await;
    let _other = pool.hub("n2", &[]).await;
    pool.until_held_by("n2").await;
    let writes = pool.asked_about_leases("n1").into_iter();
    let elections = writes.filter(|seen| seen.method != Method::GET && seen.path.starts_with(ELECTION_LEASES));
    assert_eq!(elections.count(), 0);
}
