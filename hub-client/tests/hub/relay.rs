//! A node that is cut off from the cloud: its beats and its status go through another node's link.

use http::{Method, StatusCode};
use serde_json::{Value, json};
use yurt_runtime::http::{full, json as answer_json};
use yurt_test_support::{LOOPBACK, eventually};

use super::client::request;
use super::harness::TestHub;
use super::offline_writes::{NODE, OWN_NODE, Stored, patch};
use super::relay_pool::{LEASES, Link, RelayPool};

const DELEGATED: &str = "openyurt.io/delegate-heartbeat";
const RELAYED: &str = "openyurt.io/relayed";
const ADDRESS: &str = "openyurt.io/relay-address";
const STATUS: &str = "/api/v1/nodes/n1/status";
const MERGE: &str = "application/strategic-merge-patch+json";

fn lease() -> String {
    format!("{LEASES}/n1")
}

fn annotation<'a>(lease: &'a Value, name: &str) -> &'a Value {
    &lease["metadata"]["annotations"][name]
}

/// The kubelet's renewal, with the version it last saw.
async fn beat(hub: &TestHub, version: &str) -> u16 {
    let metadata = json!({"name": "n1", "namespace": "kube-node-lease", "resourceVersion": version});
    let body =
        json!({"metadata": metadata, "spec": {"holderIdentity": "n1", "renewTime": "2026-01-01T00:00:00.000000Z"}});
    hub.kubelet()
        .put(&lease(), "application/json", body.to_string())
        .await
        .code
}

/// Renews as the kubelet does, until the renewal takes the relay: a busy peer may be too late for a beat.
async fn until_relayed(pool: &RelayPool, hub: &TestHub, is_relayed: impl Fn(&Value) -> bool) -> Value {
    eventually("a beat must take the relay", async || {
        assert_eq!(beat(hub, "2").await, 200, "the kubelet is unaffected");
        pool.leases.get("n1").filter(|lease| is_relayed(lease))
    })
    .await
}

/// A node with a lease at the cloud, and its hub behind a link.
async fn node(pool: &RelayPool, more: &[&str]) -> (TestHub, Link) {
    pool.leases.put(
        "n1",
        json!({"metadata": {"name": "n1", "annotations": {}}, "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}),
    );
    let link = Link::to(pool.cloud.addr()).await;
    let (hub, _) = pool.hub("n1", &link.url(), more).await;
    (hub, link)
}

async fn until_pool_lease(pool: &RelayPool, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually(what, async || pool.pool_leases.get("n1").filter(|lease| is_so(lease))).await
}

#[tokio::test]
async fn cut_off_node_renews_through_a_peer_and_comes_back() {
    let pool = RelayPool::start().await;
    let url = pool.cloud.url();
    let (peer, address) = pool.hub("n2", &url, &[]).await;
    pool.offer("n2", address, &pool.cloud.addr().to_string());
    let (hub, mut link) = node(&pool, &[]).await;
    assert_eq!(beat(&hub, "1").await, 200);
    let own = until_pool_lease(&pool, "a node with a link offers its own relay", |lease| {
        annotation(lease, ADDRESS).is_string()
    })
    .await;
    assert!(annotation(&own, DELEGATED).is_null());

    link.cut().await;
    let there = until_relayed(&pool, &hub, |lease| annotation(lease, DELEGATED) == "true").await;
    let first = there["spec"]["renewTime"].as_str().unwrap().to_owned();
    assert!(first.as_str() > "2026-01-01T00:00:00.000000Z", "{there}");
    let told = until_pool_lease(&pool, "the pool must hear of it", |lease| {
        annotation(lease, RELAYED).is_string()
    })
    .await;
    assert_eq!(annotation(&told, DELEGATED), "true");
    assert_eq!(annotation(&told, RELAYED), &told["spec"]["renewTime"]);
    assert!(
        annotation(&told, ADDRESS).is_null(),
        "a cut-off node offers no relay: {told}"
    );
    let state = hub.state().await;
    assert_eq!(
        (&state["cutOff"], &state["relay"]["through"]),
        (&json!(true), &json!("n2"))
    );
    peer.until("one tunnel", |state| state["relay"]["tunnels"] == 1).await;

    // A write of another client, with a clock that is ahead: the next beat replaces it without going back in
    // time.
    let mut ahead = pool.leases.get("n1").unwrap();
    ahead["spec"]["renewTime"] = "2099-01-01T00:00:00.000000Z".into();
    pool.leases.put("n1", ahead);
    let renewed = |lease: &Value| lease["spec"]["renewTime"].as_str().unwrap().to_owned();
    let replaced = until_relayed(&pool, &hub, |lease| renewed(lease) != "2099-01-01T00:00:00.000000Z").await;
    assert!(
        renewed(&replaced).starts_with("2099-01-01T00:00:00.00000"),
        "{replaced}"
    );

    // After a cut that was too short to be noticed, the next beat removes the annotation.
    hub.until("the loss must be noticed", |state| state["cloudReachable"] == false)
        .await;
    link.resume().await;
    eventually("the annotation must go as soon as the link is back", async || {
        annotation(&pool.leases.get("n1").unwrap(), DELEGATED)
            .is_null()
            .then_some(())
    })
    .await;
    let version = pool.leases.get("n1").unwrap()["metadata"]["resourceVersion"].clone();
    assert_eq!(beat(&hub, version.as_str().unwrap()).await, 200);
    until_pool_lease(&pool, "mark and annotation must go together", |lease| {
        annotation(lease, DELEGATED).is_null() && annotation(lease, RELAYED).is_null()
    })
    .await;
    peer.until("the tunnel must be closed", |state| state["relay"]["tunnels"] == 0)
        .await;
    assert_eq!(hub.state().await["relay"]["through"], Value::Null);
    let page = hub.admin().get("/metrics").await;
    let page = String::from_utf8(page.expect(200).to_vec()).unwrap();
    let relayed = page
        .lines()
        .find_map(|line| line.strip_prefix("node_yurthub_heartbeats_relayed_total "));
    assert!(relayed.unwrap().parse::<u64>().unwrap() >= 2, "{page}");
}

#[tokio::test]
async fn annotation_goes_without_a_beat_also_if_the_cloud_refuses_at_first() {
    let pool = RelayPool::start().await;
    let (_peer, address) = pool.hub("n2", &pool.cloud.url(), &[]).await;
    pool.offer("n2", address, &pool.cloud.addr().to_string());
    let (hub, mut link) = node(&pool, &[]).await;
    link.cut().await;
    until_relayed(&pool, &hub, |lease| annotation(lease, DELEGATED) == "true").await;
    hub.until("the loss must be noticed", |state| state["cloudReachable"] == false)
        .await;
    pool.leases.refuse_patches(2);
    link.resume().await;
    eventually("the annotation must go", async || {
        annotation(&pool.leases.get("n1").unwrap(), DELEGATED)
            .is_null()
            .then_some(())
    })
    .await;
    assert_eq!(pool.leases.patches_to_refuse(), 0);
}

#[tokio::test]
async fn only_heartbeat_and_status_of_the_own_node_take_the_relay() {
    let pool = RelayPool::start().await;
    let (_peer, address) = pool.hub("n2", &pool.cloud.url(), &[]).await;
    pool.offer("n2", address, &pool.cloud.addr().to_string());
    let (hub, mut link) = node(&pool, &[]).await;
    pool.cloud
        .on(STATUS, async |_| answer_json(StatusCode::OK, r#"{"kind":"Node"}"#));
    let patch = || {
        request(
            Method::PATCH,
            STATUS,
            &[("content-type", MERGE)],
            full(r#"{"status":{}}"#),
        )
    };
    assert_eq!(hub.kubelet().send(patch()).await.expect(200), r#"{"kind":"Node"}"#);
    link.cut().await;
    assert_eq!(hub.kubelet().send(patch()).await.expect(200), r#"{"kind":"Node"}"#);
    let seen = pool.cloud.seen(STATUS);
    assert_eq!(seen.len(), 2);
    assert_eq!(
        seen[1].user.as_deref(),
        Some("system:node:n1"),
        "with the node's own certificate"
    );
    assert_eq!(seen[1].headers["content-type"], MERGE);
    assert!(seen[1].headers["user-agent"].to_str().unwrap().starts_with("kubelet/"));
    for (method, path) in [
        (Method::GET, "/api/v1/nodes/n2"),
        (Method::PATCH, "/api/v1/nodes/n1"),
        (Method::PATCH, "/api/v1/nodes/n2/status"),
        (Method::GET, "/api/v1/pods"),
        (
            Method::PUT,
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n2",
        ),
    ] {
        let before = pool.cloud.seen(path).len();
        let code = if path.ends_with("n2/status") { 403 } else { 503 };
        hub.kubelet()
            .send(request(method, path, &[("content-type", MERGE)], full("{}")))
            .await
            .expect(code);
        assert_eq!(pool.cloud.seen(path).len(), before, "{path}");
    }
    hub.kube_proxy().send(patch()).await.expect(503);
    hub.bearer("kubelet/v1", "t").send(patch()).await.expect(503);
}

/// A node whose kubelet lists it, with status `True` of its condition Ready, behind a link that is cut.
async fn listed_node(pool: &RelayPool) -> (TestHub, Link, Stored) {
    let (hub, mut link) = node(pool, &[]).await;
    let mut object = pool.cloud.get("nodes", None, "n1").unwrap();
    object["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    let stored = Stored::at(&pool.cloud, NODE, pool.cloud.put("nodes", object));
    assert_eq!(listed_status(&hub).await, "True");
    link.cut().await;
    hub.until("the loss must be noticed", |state| state["cloudReachable"] == false)
        .await;
    (hub, link, stored)
}

/// Status of the condition Ready in the kubelet's list of its Node.
async fn listed_status(hub: &TestHub) -> Value {
    let list = hub.kubelet().get(OWN_NODE).await;
    assert_eq!(list.code, 200);
    list.json()["items"][0]["status"]["conditions"][0]["status"].clone()
}

/// The kubelet patches what differs from the Node that it lists; the heartbeat alone leaves the cloud's status.
#[tokio::test]
async fn kubelet_lists_what_the_cloud_has_after_a_relayed_status() {
    let pool = RelayPool::start().await;
    let (_peer, address) = pool.hub("n2", &pool.cloud.url(), &[]).await;
    pool.offer("n2", address, &pool.cloud.addr().to_string());
    let (hub, mut link, stored) = listed_node(&pool).await;
    let mut watch = hub.kubelet().watch(OWN_NODE).await;
    assert_eq!(watch.told().await, "ADDED n1");
    stored.change(|node| node["status"]["conditions"][0]["status"] = "Unknown".into());
    let heartbeat = json!({"type": "Ready", "lastHeartbeatTime": "2026-01-01T00:00:10Z"});
    let report = json!({"status": {"conditions": [heartbeat]}});
    patch(&hub.kubelet(), NODE, &report).await.expect(200);
    assert_eq!(watch.told().await, "MODIFIED n1");
    assert_eq!(listed_status(&hub).await, "Unknown");

    // When the link is back, the selection goes on from there.
    let lists = || {
        let of_node = |query: &String| query.contains("metadata.name") && !query.contains("watch=1");
        let seen = pool.cloud.seen("/api/v1/nodes");
        seen.iter().filter(|seen| seen.query.iter().any(of_node)).count()
    };
    let before = lists();
    let mut object = pool.cloud.get("nodes", None, "n1").unwrap();
    object["status"]["conditions"][0]["status"] = "False".into();
    let version = |object: &Value| {
        object["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let listed = version(&hub.kubelet().get(OWN_NODE).await.json()["items"][0]);
    while version(&pool.cloud.put("nodes", object.clone())) <= listed {}
    link.resume().await;
    assert_eq!(watch.told().await, "MODIFIED n1");
    assert_eq!(listed_status(&hub).await, "False");
    assert_eq!(lists(), before, "without a list");
}

/// The cloud marked the node as lost while no peer had a link either.
#[tokio::test]
async fn kubelet_lists_what_the_cloud_has_after_the_first_relayed_beat() {
    let pool = RelayPool::start().await;
    let (_peer, address) = pool.hub("n2", &pool.cloud.url(), &[]).await;
    let (hub, _link, stored) = listed_node(&pool).await;
    assert_eq!(beat(&hub, "1").await, 200);
    stored.change(|node| node["status"]["conditions"][0]["status"] = "Unknown".into());
    pool.offer("n2", address, &pool.cloud.addr().to_string());
    until_relayed(&pool, &hub, |lease| annotation(lease, DELEGATED) == "true").await;
    eventually("the list must show the cloud's state", async || {
        (listed_status(&hub).await == "Unknown").then_some(())
    })
    .await;
}

#[tokio::test]
async fn peers_that_do_not_work_are_passed_over_within_the_beat() {
    let pool = RelayPool::start().await;
    let (peer, address) = pool.hub("n2", &pool.cloud.url(), &[]).await;
    // An unreachable peer, one with another identity, and one that accepts everything and stays silent.
    let hole = tokio::net::TcpListener::bind(LOOPBACK).await.unwrap();
    pool.offer("n3", hole.local_addr().unwrap(), &pool.cloud.addr().to_string());
    pool.offer("n4", address, &pool.cloud.addr().to_string());
    pool.offer("n2", address, &pool.cloud.addr().to_string());
    let (hub, mut link) = node(&pool, &[]).await;
    assert_eq!(beat(&hub, "1").await, 200);
    link.cut().await;
    let began = yurt_runtime::Clock::system().boot();
    assert_eq!(beat(&hub, "2").await, 200);
    let took = yurt_runtime::Clock::system().boot().since(began);
    assert!(
        took < std::time::Duration::from_secs(10),
        "the kubelet waits for 10 s: {took:?}"
    );
    // Within the first beat on a quiet machine; in any case the working peer is found.
    eventually("a beat must get through", async || {
        assert_eq!(beat(&hub, "2").await, 200);
        (annotation(&pool.leases.get("n1").unwrap(), DELEGATED) == "true").then_some(())
    })
    .await;
    hub.until("the good peer is kept", |state| state["relay"]["through"] == "n2")
        .await;
    drop(peer);
}

#[tokio::test]
async fn lease_of_one_peer_that_cannot_be_read_hides_no_other_peer() {
    let pool = RelayPool::start().await;
    let (peer, address) = pool.hub("n2", &pool.cloud.url(), &[]).await;
    pool.offer("n2", address, &pool.cloud.addr().to_string());
    pool.coordinator.on(&format!("{LEASES}/n3"), async |_| {
        answer_json(StatusCode::INTERNAL_SERVER_ERROR, "{}")
    });
    let (hub, mut link) = node(&pool, &[]).await;
    assert_eq!(beat(&hub, "1").await, 200);
    link.cut().await;
    until_relayed(&pool, &hub, |lease| annotation(lease, DELEGATED) == "true").await;
    drop(peer);
}

#[tokio::test]
async fn without_a_relay_the_leader_is_asked_to_speak() {
    for flags in [["--enable-relay=false"].as_slice(), &[]] {
        let pool = RelayPool::start().await;
        if !flags.is_empty() {
            // There is a peer, but this node does not use relays.
            let (_peer, address) = pool.hub("n2", &pool.cloud.url(), &[]).await;
            pool.offer("n2", address, &pool.cloud.addr().to_string());
        }
        let (hub, mut link) = node(&pool, flags).await;
        assert_eq!(beat(&hub, "1").await, 200);
        link.cut().await;
        assert_eq!(beat(&hub, "2").await, 200);
        let told = until_pool_lease(&pool, "the leader must be asked", |lease| {
            annotation(lease, DELEGATED) == "true"
        })
        .await;
        assert!(annotation(&told, RELAYED).is_null(), "{told}");
        let there = pool.leases.get("n1").unwrap();
        assert!(
            annotation(&there, DELEGATED).is_null(),
            "no write arrived there: {there}"
        );
        let status = request(Method::PATCH, STATUS, &[("content-type", MERGE)], full("{}"));
        let refused = hub.kubelet().send(status).await;
        assert_eq!((refused.code, refused.header("retry-after")), (503, Some("1")));
    }
}

#[tokio::test]
async fn mark_goes_with_the_relay() {
    let pool = RelayPool::start().await;
    let (mut peer, address) = pool.hub("n2", &pool.cloud.url(), &[]).await;
    pool.offer("n2", address, &pool.cloud.addr().to_string());
    let (hub, mut link) = node(&pool, &[]).await;
    assert_eq!(beat(&hub, "1").await, 200);
    link.cut().await;
    assert_eq!(beat(&hub, "2").await, 200);
    until_pool_lease(&pool, "the relay must work", |lease| {
        annotation(lease, RELAYED).is_string()
    })
    .await;
    peer.stop().await;
    assert_eq!(beat(&hub, "2").await, 200);
    let told = until_pool_lease(&pool, "the leader must be asked for this very beat", |lease| {
        annotation(lease, RELAYED).is_null()
    })
    .await;
    assert_eq!(annotation(&told, DELEGATED), "true");
}

/// A link that drops all packets, the most common outage: beats take the relay. Once the hub knows of the loss, they do
/// not wait for the link.
#[tokio::test]
async fn silent_link_costs_the_first_beat_its_wait_and_later_ones_nothing() {
    let pool = RelayPool::start().await;
    let (_peer, address) = pool.hub("n2", &pool.cloud.url(), &[]).await;
    pool.offer("n2", address, &pool.cloud.addr().to_string());
    let (hub, mut link) = node(&pool, &[]).await;
    assert_eq!(beat(&hub, "1").await, 200);
    link.swallow().await;
    let there = until_relayed(&pool, &hub, |lease| annotation(lease, DELEGATED) == "true").await;
    hub.until("the prober must notice", |state| state["cloudReachable"] == false)
        .await;
    let clock = yurt_runtime::Clock::system();
    let began = clock.boot();
    assert_eq!(beat(&hub, "2").await, 200);
    let took = clock.boot().since(began);
    assert!(
        took < std::time::Duration::from_secs(4),
        "the dead link must not be waited for: {took:?}"
    );
    assert_ne!(
        pool.leases.get("n1").unwrap()["spec"]["renewTime"],
        there["spec"]["renewTime"]
    );
}

/// No node has a link: kubelets get answers, no node forwards for another, and earlier offers are useless.
#[tokio::test]
async fn whole_pool_that_is_cut_off_falls_silent_and_comes_back() {
    let mut pool = RelayPool::start().await;
    let (peer, address) = pool.hub("n2", &pool.cloud.url(), &[]).await;
    pool.offer("n2", address, &pool.cloud.addr().to_string());
    let (hub, _link) = node(&pool, &[]).await;
    assert_eq!(beat(&hub, "1").await, 200);
    let before = pool.leases.get("n1").unwrap();
    pool.cloud.go_away().await;
    for hub in [&hub, &peer] {
        hub.until("every hub must detect it", |state| state["cloudReachable"] == false)
            .await;
    }
    for _ in 0..3 {
        assert_eq!(beat(&hub, "2").await, 200);
        let told = until_pool_lease(&pool, "the pool must get the state", |lease| {
            annotation(lease, DELEGATED) == "true"
        })
        .await;
        assert!(annotation(&told, RELAYED).is_null(), "nothing was relayed: {told}");
    }
    pool.cloud.come_back().await;
    hub.until("the link must be noticed", |state| state["cloudReachable"] == true)
        .await;
    let there = pool.leases.get("n1").unwrap();
    assert_eq!(
        there["spec"]["renewTime"], before["spec"]["renewTime"],
        "no beat was invented"
    );
    assert_eq!(
        beat(&hub, there["metadata"]["resourceVersion"].as_str().unwrap()).await,
        200
    );
    let there = pool.leases.get("n1").unwrap();
    assert!(annotation(&there, DELEGATED).is_null(), "{there}");
}

/// The link comes and goes: every beat arrives one way or the other, and no annotation remains in the end.
#[tokio::test]
async fn flapping_link_loses_no_beat_and_leaves_no_annotation() {
    let pool = RelayPool::start().await;
    let (peer, address) = pool.hub("n2", &pool.cloud.url(), &[]).await;
    pool.offer("n2", address, &pool.cloud.addr().to_string());
    let (hub, mut link) = node(&pool, &[]).await;
    let mut last = pool.leases.get("n1").unwrap()["metadata"]["resourceVersion"].clone();
    for round in 0..6 {
        if round % 2 == 0 {
            link.cut().await;
        } else {
            link.resume().await;
        }
        // As the kubelet does after a conflict: it reads, and retries once.
        let version = pool.leases.get("n1").unwrap()["metadata"]["resourceVersion"].clone();
        let code = beat(&hub, version.as_str().unwrap()).await;
        assert!(code == 200 || code == 409, "{code}");
        let now = pool.leases.get("n1").unwrap()["metadata"]["resourceVersion"].clone();
        assert_ne!(
            now, last,
            "round {round}: the beat arrived, or another write came just before it"
        );
        last = now;
    }
    hub.until("the link is up", |state| state["cloudReachable"] == true)
        .await;
    eventually("a beat is heard and nothing is left", async || {
        let version = pool.leases.get("n1").unwrap()["metadata"]["resourceVersion"].clone();
        let heard = beat(&hub, version.as_str().unwrap()).await == 200;
        let there = pool.leases.get("n1").unwrap();
        let own = pool.pool_leases.get("n1").unwrap();
        let clean = [DELEGATED, RELAYED].iter().all(|name| annotation(&own, name).is_null());
        (heard && clean && annotation(&there, DELEGATED).is_null()).then_some(())
    })
    .await;
    peer.until("no tunnel is left", |state| state["relay"]["tunnels"] == 0)
        .await;
}
