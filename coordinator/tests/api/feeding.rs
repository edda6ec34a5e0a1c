//! The feed: permitted callers, accepted calls, and the readers' view of it.

use std::time::Duration;

use serde_json::{Value, json};
use yurt_test_support::etcd::EtcdMember;

use crate::harness::{Answer, Client, Server, rv};

const SERVICES: &str = "/api/v1/services";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

/// A leader of the pool, with the claim that the coordinator expects.
pub(crate) struct Leader {
    pub(crate) client: Client,
    store: String,
    epoch: u64,
}

// === impl Leader ===

impl Leader {
    /// Elects `node`; the lease has to be free.
    pub(crate) async fn elect(server: &Server, node: &str) -> Self {
        let client = server.node(node);
        let lease = json!({
            "metadata": {"name": "yurthub"},
            "spec": {"holderIdentity": format!("{node}_1"), "leaseDurationSeconds": 15},
        });
        let path = format!("{LEASES}/yurthub");
        let found = client.get(&path).await;
        let answer = if found.code == 404 {
            client.post(LEASES, &lease).await
        } else {
            let mut lease = lease;
            lease["metadata"] = found.body["metadata"].clone();
            client.put(&path, &lease).await
        };
        assert!(answer.code < 300, "{:?}", answer.body);
        let epoch = answer.header("yurt-epoch").unwrap().parse().unwrap();
        Self {
            client,
            store: answer.header("yurt-store").unwrap().to_owned(),
            epoch,
        }
    }

    /// The leader that `node` still is after a restart of the server: it renews.
    pub(crate) async fn again(server: &Server, node: &str) -> Self {
        let client = server.node(node);
        let path = format!("{LEASES}/yurthub");
        let lease = client.get(&path).await.expect(200);
        let answer = client.put(&path, &lease).await;
        let epoch = answer.header("yurt-epoch").unwrap().parse().unwrap();
        let store = answer.header("yurt-store").unwrap().to_owned();
        Self { client, store, epoch }
    }

    pub(crate) fn store(&self) -> &str {
        &self.store
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) async fn release(&self) {
        let path = format!("{LEASES}/yurthub");
        let mut lease = self.client.get(&path).await.expect(200);
        lease["spec"]["holderIdentity"] = json!("");
        self.client.put(&path, &lease).await.expect(200);
    }

    pub(crate) async fn call(&self, path: &str, body: Value) -> Answer {
        self.client
            .post(&format!("/yurt/v1/feed/{path}?version=1"), &self.claiming(body))
            .await
    }

    /// `body` with the claim of this leader.
    pub(crate) fn claiming(&self, mut body: Value) -> Value {
        body["store"] = json!(self.store);
        body["epoch"] = json!(self.epoch);
        if body["generation"].is_null() {
            body["generation"] = json!(0);
        }
        body
    }

    pub(crate) async fn events(&self, after: u64, events: Value, up_to: u64) -> Answer {
        let body = json!({"after": after.to_string(), "events": events, "upTo": up_to.to_string(), "fresh": true});
        self.call("services/events", body).await
    }

    /// Index and bodies of a snapshot, as far as bodies are missing.
    pub(crate) async fn snapshot(&self, collection: &str, generation: u64, at: u64, objects: &[Value]) -> Answer {
        let key = |object: &Value| {
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
            let (namespace, name) = (text("namespace"), text("name"));
            if namespace.is_empty() {
                name
            } else {
                format!("{namespace}/{name}")
            }
        };
        let index: Vec<Value> = objects.iter().map(|object| json!([key(object), rv(object)])).collect();
        let at = at.to_string();
        let body = json!({"generation": generation, "after": "0", "at": at, "index": index, "fresh": true});
        let answer = self.call(&format!("{collection}/snapshot"), body).await;
        if answer.code != 200 || answer.body["missing"] == json!([]) {
            return answer;
        }
        let missing = answer.body["missing"].as_array().unwrap().clone();
        let bodies: Vec<&Value> = objects
            .iter()
            .filter(|object| missing.contains(&json!(key(object))))
            .collect();
        let body = json!({"generation": generation, "at": at, "objects": bodies, "last": true, "fresh": true});
        self.call(&format!("{collection}/snapshot/bodies"), body).await
    }

    pub(crate) async fn feed_members(&self, names: &[&str]) {
        let objects: Vec<Value> = names
            .iter()
            .map(|name| json!({"metadata": {"name": name, "uid": name, "resourceVersion": "10"}}))
            .collect();
        self.snapshot("members", 0, 10, &objects).await.expect(200);
    }
}

pub(crate) fn service(name: &str, version: u64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "x", "uid": name, "resourceVersion": version.to_string()},
        "spec": {"clusterIP": "10.0.0.1", "unknown": {"kept": true}},
    })
}

pub(crate) fn event(kind: &str, object: Value) -> Value {
    json!({"type": kind, "object": object})
}

/// A pool whose leader n1 has fed members n1 and n2, and services a and b at 100.
pub(crate) async fn fed_pool() -> (Server, Leader) {
    let server = Server::pool().await;
    let leader = Leader::elect(&server, "n1").await;
    leader.feed_members(&["n1", "n2"]).await;
    let answer = leader
        .snapshot("services", 0, 100, &[service("a", 50), service("b", 60)])
        .await;
    assert_eq!(answer.expect(200)["appliedUpTo"], "100");
    (server, leader)
}

/// Conformance: 3.E16, 3.F03, 4.13, 7.58, 7.76
#[tokio::test]
async fn incomplete_collections_are_never_served_as_empty_ones() {
    let server = Server::pool().await;
    let node = server.node("n1");
    for path in [
        SERVICES.to_owned(),
        format!("{SERVICES}?watch=1"),
        "/api/v1/namespaces/x/services/a".to_owned(),
    ] {
        let answer = node.get(&path).await;
        assert_eq!((answer.code, answer.header("retry-after")), (429, Some("1")), "{path}");
        assert_eq!(
            (&answer.body["reason"], &answer.body["details"]["retryAfterSeconds"]),
            (&json!("TooManyRequests"), &json!(1)),
            "{path}"
        );
    }
}

/// Conformance: 7.45, 7.46
#[tokio::test]
async fn pool_data_keeps_the_clouds_versions_and_unknown_fields() {
    let (server, leader) = fed_pool().await;
    let reader = server.node("n2");
    let answer = reader.get(SERVICES).await;
    assert_eq!(
        (answer.header("yurt-generation"), answer.header("yurt-stale")),
        (Some("0"), None)
    );
    let list = answer.expect(200);
    assert_eq!(rv(&list), "100");
    assert_eq!(list["items"], json!([service("a", 50), service("b", 60)]));
    let mut watch = reader.watch(&format!("{SERVICES}?resourceVersion=100")).await;
    let events = json!([
        event("MODIFIED", service("a", 110)),
        event("DELETED", service("b", 120))
    ]);
    assert_eq!(leader.events(100, events, 130).await.expect(200)["appliedUpTo"], "130");
    assert_eq!(
        (watch.told().await, watch.told().await),
        ("MODIFIED a".into(), "DELETED b".into())
    );
    let refused = reader
        .put("/api/v1/namespaces/x/services/a", &service("a", 110))
        .await
        .expect(405);
    assert!(refused["message"].as_str().unwrap().contains("comes from the cloud"));
    server
        .admin()
        .post("/api/v1/namespaces/x/services", &service("c", 0))
        .await
        .expect(405);
}

/// Conformance: 7.53
#[tokio::test]
async fn batches_must_continue_and_repeats_are_harmless() {
    let (_server, leader) = fed_pool().await;
    let one = json!([event("MODIFIED", service("a", 110))]);
    leader.events(100, one.clone(), 110).await.expect(200);
    assert_eq!(
        leader.events(100, one, 110).await.expect(200)["appliedUpTo"],
        "110",
        "the answer was lost"
    );
    let gap = leader.events(115, json!([]), 120).await.expect(409);
    assert_eq!(gap, json!({"reason": "gap", "appliedUpTo": "110"}));
    let early = json!([event("MODIFIED", service("a", 105))]);
    leader.events(110, early, 120).await.expect(400);
    let body = json!({"after": "110", "events": [], "upTo": "120", "generation": 7, "fresh": true});
    assert_eq!(
        leader.call("services/events", body).await.expect(409)["reason"],
        "generation"
    );
    leader.call("secrets/events", json!({})).await.expect(404);
}

#[tokio::test]
async fn deposed_leader_is_fenced_by_epoch_store_and_name() {
    let (server, first) = fed_pool().await;
    first.release().await;
    let second = Leader::elect(&server, "n2").await;
    assert_eq!(second.epoch, first.epoch + 2, "release and acquisition are two changes");
    let late = first
        .events(100, json!([event("MODIFIED", service("a", 110))]), 110)
        .await
        .expect(409);
    assert_eq!(
        (&late["reason"], &late["store"]),
        (&json!("fenced"), &json!(second.store))
    );
    let wrong_store = Leader {
        client: second.client.clone(),
        store: "other".into(),
        epoch: second.epoch,
    };
    assert_eq!(
        wrong_store.events(100, json!([]), 110).await.expect(409)["reason"],
        "fenced"
    );
    let thief = Leader {
        client: first.client.clone(),
        store: second.store.clone(),
        epoch: second.epoch,
    };
    assert_eq!(thief.events(100, json!([]), 110).await.expect(409)["reason"], "fenced");
    second
        .events(100, json!([event("MODIFIED", service("a", 111))]), 111)
        .await
        .expect(200);
    let metrics = server.admin().get("/metrics").await.expect(200);
    let text = metrics.as_str().unwrap();
    assert!(text.contains("yurt_coordinator_feed_fenced_total 3"), "{text}");
    assert!(text.contains("yurt_coordinator_feed_late_accepted_total 0"), "{text}");
}

/// The series `name` of a scrape.
fn series(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

#[tokio::test]
async fn metrics_tell_who_leads_what_is_stale_and_what_clients_suffered() {
    let (server, leader) = fed_pool().await;
    let scrape = async || {
        let metrics = server.admin().get("/metrics").await.expect(200);
        metrics.as_str().unwrap().to_owned()
    };
    let staleness = r#"yurt_coordinator_collection_staleness_seconds{collection="services"}"#;
    let relists = r#"yurt_coordinator_collection_relists_forced_total{collection="services"}"#;
    let text = scrape().await;
    for (name, value) in [
        (r#"yurt_coordinator_leader{node="n1"}"#, 1.0),
        ("yurt_coordinator_election_epochs_total", 1.0),
        ("yurt_coordinator_delegated_leases", 0.0),
        (relists, 0.0),
        (
            r#"yurt_coordinator_collection_staleness_seconds{collection="endpoints"}"#,
            f64::INFINITY,
        ),
    ] {
        assert_eq!(series(&text, name), Some(value), "{name}\n{text}");
    }
    assert!(series(&text, staleness).unwrap() < 60.0, "{text}");
    let own = r#"yurt_coordinator_collection_staleness_seconds{collection="configmaps"}"#;
    assert_eq!(series(&text, own), None, "own data has no source that could be away");
    let members = text
        .matches("yurt_coordinator_collection_objects{collection=\"members")
        .count();
    assert_eq!(members, 1, "the membership is one collection: {text}");

    // A feed that reports the cloud as away keeps the collection served, and its age growing.
    let before = series(&scrape().await, staleness).unwrap();
    let body = json!({"after": "100", "events": [], "upTo": "100", "fresh": false});
    leader.call("services/events", body).await.expect(200);
    let text = scrape().await;
    assert!(series(&text, staleness).unwrap() > before, "{text}");
    let fresh = r#"yurt_coordinator_collection_fresh{collection="services"}"#;
    assert_eq!(series(&text, fresh), Some(0.0), "{text}");
    let state = leader.client.get("/yurt/v1/feed").await.expect(200);
    let services = &state["collections"]["services"];
    assert_eq!(
        (&services["fresh"], &services["complete"]),
        (&json!(false), &json!(true))
    );
    assert!(services["stalenessSeconds"].is_u64(), "{state}");
    assert_eq!(state["collections"]["endpoints"]["stalenessSeconds"], Value::Null);

    // A number of the other space was never ours: that client has to list again.
    let mut foreign = server
        .node("n2")
        .watch(&format!("{SERVICES}?resourceVersion={}", 1_u64 << 62))
        .await;
    assert_eq!(foreign.next().await.unwrap().object["code"], 410);
    assert_eq!(series(&scrape().await, relists), Some(1.0));

    let lease = json!({
        "metadata": {"name": "n2", "annotations": {"openyurt.io/delegate-heartbeat": "true"}},
        "spec": {"holderIdentity": "n2", "leaseDurationSeconds": 40},
    });
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    server.node("n2").post(leases, &lease).await.expect(201);
    leader.release().await;
    let text = scrape().await;
    assert_eq!(series(&text, "yurt_coordinator_delegated_leases"), Some(1.0));
    assert_eq!(series(&text, "yurt_coordinator_election_epochs_total"), Some(2.0));
    assert!(!text.contains("yurt_coordinator_leader{"), "there is no leader: {text}");
}

/// Conformance: 7.54
#[tokio::test]
async fn snapshots_send_missing_bodies_only_and_never_go_back() {
    let (server, leader) = fed_pool().await;
    let mut replica = server
        .node("n2")
        .watch_with(&format!("{SERVICES}?resourceVersion=100"), &[("yurt-replica", "1")])
        .await;
    let first = replica.next().await.unwrap();
    assert_eq!(
        (first.kind.as_str(), rv(&first.object).as_str()),
        ("BOOKMARK", "100"),
        "a position immediately"
    );
    let index = json!([["x/a", "50"], ["x/c", "140"]]);
    let body = json!({"after": "0", "at": "150", "index": index});
    let answer = leader.call("services/snapshot", body).await.expect(200);
    assert_eq!(answer["missing"], json!(["x/c"]), "a is here already");
    let none = json!({"at": "150", "objects": [], "last": false});
    assert_eq!(
        leader.call("services/snapshot/bodies", none).await.expect(200)["missing"],
        1
    );
    let wrong = json!({"at": "150", "objects": [service("c", 139)], "last": true});
    leader.call("services/snapshot/bodies", wrong).await.expect(400);
    let objects = [service("a", 50), service("c", 140)];
    let done = leader.snapshot("services", 0, 150, &objects).await.expect(200);
    assert_eq!(
        (&done["appliedUpTo"], &done["durableUpTo"]),
        (&json!("150"), &json!("150"))
    );
    let annotation = |event: &crate::harness::Event, name: &str| event.object["metadata"]["annotations"][name].clone();
    let begin = replica.next().await.unwrap();
    assert_eq!(
        (begin.kind.as_str(), annotation(&begin, "openyurt.io/diff-to")),
        ("BOOKMARK", json!("150"))
    );
    assert_eq!(
        (replica.told().await, replica.told().await),
        ("DELETED b".into(), "ADDED c".into())
    );
    let end = replica.next().await.unwrap();
    assert_eq!(
        (annotation(&end, "openyurt.io/diff-done"), rv(&end.object)),
        (json!("150"), "150".to_owned())
    );
    let behind = leader.snapshot("services", 0, 140, &objects).await.expect(409);
    assert_eq!(behind, json!({"reason": "behind", "appliedUpTo": "150"}));
    let repeated = json!({"at": "150", "objects": [], "last": true});
    assert_eq!(
        leader.call("services/snapshot/bodies", repeated).await.expect(200)["appliedUpTo"],
        "150"
    );
}

/// Conformance: 7.55
#[tokio::test]
async fn new_generation_starts_over_and_ends_old_streams() {
    let (server, leader) = fed_pool().await;
    let reader = server.node("n2");
    let mut watch = reader.watch(&format!("{SERVICES}?resourceVersion=100")).await;
    let answer = leader
        .snapshot("services", 1, 40, &[service("a", 30)])
        .await
        .expect(200);
    assert_eq!(answer["appliedUpTo"], "40", "lower than before, on another timeline");
    let event = watch.next().await.unwrap();
    assert_eq!((event.kind.as_str(), &event.object["code"]), ("ERROR", &json!(410)));
    let answer = reader.get(SERVICES).await;
    assert_eq!(answer.header("yurt-generation"), Some("1"));
    assert_eq!(rv(&answer.body), "40");
    // Bodies of the previous generation do not count as those applied in this one.
    let late = json!({"generation": 0, "at": "30", "objects": []});
    let late = leader.call("services/snapshot/bodies", late).await.expect(409);
    assert_eq!(late["reason"], "gap");
    assert_eq!(
        leader.snapshot("services", 0, 500, &[]).await.expect(409)["reason"],
        "generation"
    );
}

#[tokio::test]
async fn membership_comes_first_and_contains_who_tells_it() {
    let server = Server::pool().await;
    let leader = Leader::elect(&server, "n1").await;
    let state = leader.client.get("/yurt/v1/feed").await.expect(200);
    assert_eq!(
        (&state["members"], &state["holder"], &state["epoch"]),
        (&json!(null), &json!("n1_1"), &json!(1))
    );
    let early = leader.snapshot("services", 0, 100, &[]).await.expect(409);
    assert_eq!(early["reason"], "members");
    let other = [json!({"metadata": {"name": "n7", "resourceVersion": "10"}})];
    assert_eq!(
        leader.snapshot("members", 0, 10, &other).await.expect(409)["reason"],
        "members"
    );
    server.node("n3").get("/yurt/v1/feed").await.expect(200);
    leader.feed_members(&["n1", "n2"]).await;
    let refused = server.node("n3").get("/yurt/v1/feed").await.expect(403);
    assert!(
        refused["message"].as_str().unwrap().contains("not a member"),
        "trust has ended"
    );
    let state = server.node("n2").get("/yurt/v1/feed").await.expect(200);
    assert_eq!(state["members"], json!(2));
    assert_eq!(state["collections"]["services"]["complete"], false);
    let names = server.node("n2").get("/yurt/v1/members").await.expect(200);
    assert_eq!(names, json!({"members": ["n1", "n2"], "membersFrom": "leader"}));
    server.node("n3").get("/yurt/v1/members").await.expect(403);
    server.node("n2").post("/yurt/v1/members", &names).await.expect(403);
    server.admin().post("/yurt/v1/members", &names).await.expect(405);
}

/// All labels of a pool are removed by mistake, or by a controller that writes them again. Leaders feed the state of
/// the cloud.
#[tokio::test]
async fn membership_never_shuts_out_the_node_that_tells_it() {
    let (server, leader) = fed_pool().await;
    let member = |name: &str, at: &str| json!({"metadata": {"name": name, "uid": name, "resourceVersion": at}});
    let events = async |events: Value| {
        let body = json!({"after": "10", "events": events, "upTo": "20", "fresh": true});
        leader.call("members/events", body).await
    };
    for refused in [
        leader.snapshot("members", 0, 20, &[]).await,
        leader.snapshot("members", 0, 20, &[member("n2", "10")]).await,
        leader.snapshot("members", 1, 20, &[member("n2", "10")]).await,
        events(json!([event("DELETED", member("n1", "11"))])).await,
        events(json!([
            event("DELETED", member("n1", "11")),
            event("DELETED", member("n2", "12"))
        ]))
        .await,
    ] {
        let refused = refused.expect(409);
        assert_eq!(refused["reason"], "members");
        let message = refused["message"].as_str().unwrap();
        assert!(
            message.contains("n1") || message.contains("without any node"),
            "{message}"
        );
    }
    let names = async || server.node("n2").get("/yurt/v1/members").await.expect(200)["members"].clone();
    assert_eq!(names().await, json!(["n1", "n2"]), "nothing was taken");
    // It left and came back: only the final state counts.
    let around = json!([
        event("DELETED", member("n1", "11")),
        event("DELETED", member("n2", "12")),
        event("ADDED", member("n1", "13"))
    ]);
    events(around).await.expect(200);
    assert_eq!(
        leader.client.get("/yurt/v1/members").await.expect(200)["members"],
        json!(["n1"])
    );
    leader
        .snapshot("members", 0, 30, &[member("n1", "13"), member("n2", "25")])
        .await
        .expect(200);
    assert_eq!(names().await, json!(["n1", "n2"]));
}

#[tokio::test]
async fn feed_calls_of_another_version_are_refused_before_they_are_read() {
    let (_server, leader) = fed_pool().await;
    let state = leader.client.get("/yurt/v1/feed").await.expect(200);
    assert_eq!(state["versions"], json!([1]));
    let body = json!({"after": "100", "events": [event("DELETED", service("a", 110))], "upTo": "110"});
    let body = leader.claiming(body);
    for (path, older) in [
        ("services/events", "upgrade the hub"),
        ("services/events?version=2", "upgrade this coordinator"),
        ("scope", "upgrade the hub"),
        ("scope?version=2", "upgrade this coordinator"),
    ] {
        let refused = leader
            .client
            .post(&format!("/yurt/v1/feed/{path}"), &body)
            .await
            .expect(409);
        assert_eq!(refused["reason"], "version", "{path}");
        assert!(refused["message"].as_str().unwrap().contains(older), "{refused}");
    }
    let state = leader.client.get("/yurt/v1/feed").await.expect(200);
    assert_eq!(state["collections"]["services"]["appliedUpTo"], "100");
}

/// Every hub requests it every 5 s.
#[tokio::test]
async fn state_of_the_feed_stays_small_in_a_pool_of_ten_thousand_nodes() {
    let server = Server::pool().await;
    let leader = Leader::elect(&server, "edge-node-00001").await;
    let names: Vec<String> = (0..10_000).map(|n| format!("edge-node-{n:05}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    leader.feed_members(&names).await;
    let answer = leader.client.get("/yurt/v1/feed").await;
    assert_eq!(answer.body["members"], json!(10_000));
    assert!(answer.bytes.len() < 8 << 10, "{} bytes", answer.bytes.len());
}

/// Conformance: 7.43, 7.57
#[tokio::test]
async fn restart_keeps_complete_data_position_members_and_epoch() {
    let (mut server, leader) = fed_pool().await;
    leader
        .events(100, json!([event("MODIFIED", service("a", 110))]), 115)
        .await
        .expect(200);
    server.stop();
    server.start_again().await;
    let reader = server.node("n2");
    let answer = reader.get(SERVICES).await;
    assert_eq!(
        answer.header("yurt-stale"),
        Some("true"),
        "there was no feed call since"
    );
    assert_eq!(rv(&answer.expect(200)), "115");
    let state = reader.get("/yurt/v1/feed").await.expect(200);
    assert_eq!(
        (&state["epoch"], &state["store"]),
        (&json!(leader.epoch), &json!(leader.store))
    );
    assert_eq!(state["members"], json!(2));
    server.node("n3").get(SERVICES).await.expect(403);
    let leader = Leader {
        client: server.node("n1"),
        ..leader
    };
    leader
        .events(115, json!([event("MODIFIED", service("a", 120))]), 120)
        .await
        .expect(200);
    let mut watch = reader.watch(&format!("{SERVICES}?resourceVersion=100")).await;
    assert_eq!(watch.told().await, "MODIFIED a");
}

/// Conformance: 7.50, 7.51
#[tokio::test]
async fn kill_loses_no_snapshot_and_readers_ahead_are_held() {
    let (mut server, leader) = fed_pool().await;
    leader
        .events(100, json!([event("MODIFIED", service("a", 110))]), 115)
        .await
        .expect(200);
    server.kill();
    server.start_again().await;
    let reader = server.node("n2");
    let list = reader.get(SERVICES).await.expect(200);
    let back = rv(&list);
    assert!(
        back == "100" || back == "115",
        "the snapshot is durable, events soon: {back}"
    );
    let mut ahead = reader.watch(&format!("{SERVICES}?resourceVersion=118")).await;
    assert!(ahead.within(Duration::from_millis(300)).await.is_err(), "held silently");
    let leader = Leader {
        client: server.node("n1"),
        ..leader
    };
    if back == "100" {
        let gap = leader.events(115, json!([]), 118).await.expect(409);
        assert_eq!(gap["appliedUpTo"], "100");
        leader
            .events(100, json!([event("MODIFIED", service("a", 110))]), 115)
            .await
            .expect(200);
    }
    leader
        .events(
            115,
            json!([
                event("MODIFIED", service("a", 117)),
                event("MODIFIED", service("b", 125))
            ]),
            125,
        )
        .await
        .expect(200);
    assert_eq!(ahead.told().await, "MODIFIED b", "only what is newer than its position");
}

/// Conformance: 4.18, 7.14, 7.41
#[tokio::test]
async fn foreign_and_early_versions_of_pool_data() {
    let (server, _leader) = fed_pool().await;
    let reader = server.node("n2");
    let own = (1_u64 << 62) + 5;
    reader
        .get(&format!("{SERVICES}?resourceVersion={own}"))
        .await
        .expect(410);
    let mut watch = reader.watch(&format!("{SERVICES}?resourceVersion={own}")).await;
    assert_eq!(watch.next().await.unwrap().object["code"], 410);
    let early = reader.get(&format!("{SERVICES}?resourceVersion=101")).await;
    assert_eq!(early.header("retry-after"), Some("1"));
    let early = early.expect(504);
    assert_eq!(early["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
}

#[tokio::test]
async fn sync_lease_belongs_to_the_leader_alone() {
    let (server, leader) = fed_pool().await;
    let sync = json!({"metadata": {"name": "leader-informer-sync"}, "spec": {"holderIdentity": "leader-yurthub", "leaseDurationSeconds": 30}});
    let refused = server.node("n2").post(LEASES, &sync).await.expect(403);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("does not hold the election lease")
    );
    leader.client.post(LEASES, &sync).await.expect(201);
}

#[tokio::test]
async fn replicas_hear_of_every_advance() {
    let (server, leader) = fed_pool().await;
    let mut replica = server
        .node("n2")
        .watch_with(&format!("{SERVICES}?resourceVersion=100"), &[("yurt-replica", "1")])
        .await;
    assert_eq!(rv(&replica.next().await.unwrap().object), "100");
    leader.events(100, json!([]), 130).await.expect(200);
    let bookmark = replica.within(Duration::from_secs(3)).await.expect("soon").unwrap();
    assert_eq!(
        (bookmark.kind.as_str(), rv(&bookmark.object).as_str()),
        ("BOOKMARK", "130")
    );
    assert!(bookmark.object["metadata"]["annotations"]["openyurt.io/stale"].is_null());
}

/// A leader has only the last state of each key: no reader may stop in the middle of such a step.
#[tokio::test]
async fn step_of_the_feed_reaches_replicas_as_one_step() {
    let (server, leader) = fed_pool().await;
    let mut replica = server
        .node("n2")
        .watch_with(&format!("{SERVICES}?resourceVersion=100"), &[("yurt-replica", "1")])
        .await;
    assert_eq!(rv(&replica.next().await.unwrap().object), "100");
    let events =
        json!([{"type": "MODIFIED", "object": service("a", 110)}, {"type": "ADDED", "object": service("d", 120)}]);
    let batch = json!({"after": "100", "upTo": "130", "fresh": true, "step": true, "events": events});
    leader.call("services/events", batch).await.expect(200);
    let annotations = |event: &crate::harness::Event| event.object["metadata"]["annotations"].clone();
    let begin = replica.next().await.unwrap();
    assert_eq!(annotations(&begin), json!({"openyurt.io/diff-to": "130"}));
    let told = (replica.told().await, replica.told().await);
    assert_eq!(told, ("MODIFIED a".into(), "ADDED d".into()));
    let end = replica.next().await.unwrap();
    let done = json!({"openyurt.io/diff-done": "130", "openyurt.io/diff-watched": "true"});
    assert_eq!((rv(&end.object).as_str(), annotations(&end)), ("130", done));
}

/// Names and versions of the services at a coordinator, once it has got to `up_to`.
async fn services_at(reader: &Client, up_to: u64) -> Vec<String> {
    let listed = yurt_test_support::eventually("pool data arrives", async || {
        let answer = reader.get(SERVICES).await;
        let there = answer.code == 200 && rv(&answer.body).parse::<u64>().unwrap() >= up_to;
        there.then_some(answer.body)
    });
    let listed = listed.await;
    let items = listed["items"].as_array().unwrap();
    let shown = |item: &Value| format!("{}@{}", item["metadata"]["name"].as_str().unwrap(), rv(item));
    items.iter().map(shown).collect()
}

/// Data fed through one coordinator is served by the other, which a new leader may feed from there; the old leader is
/// fenced at both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn coordinators_over_one_etcd_share_the_pool() {
    let etcd = EtcdMember::single(None, &[]);
    let (one, other) = (Server::sharing_a_pool(&etcd).await, Server::sharing_a_pool(&etcd).await);
    let old = Leader::elect(&one, "n1").await;
    old.feed_members(&["n1", "n2"]).await;
    let many: Vec<Value> = (0..300).map(|n| service(&format!("s{n}"), 100 + n)).collect();
    old.snapshot("services", 0, 500, &many).await.expect(200);
    let reader = other.node("n2");
    assert_eq!(services_at(&reader, 500).await.len(), 300);
    let mut watch = reader.watch(&format!("{SERVICES}?resourceVersion=500")).await;
    let batch = json!([
        event("MODIFIED", service("s0", 501)),
        event("DELETED", service("s1", 502)),
        event("ADDED", service("new", 503)),
    ]);
    let answer = old.events(500, batch, 510).await.expect(200);
    assert_eq!(
        (&answer["appliedUpTo"], &answer["durableUpTo"]),
        (&json!("510"), &json!("510"))
    );
    for told in ["MODIFIED s0", "DELETED s1", "ADDED new"] {
        assert_eq!(watch.told().await, told);
    }
    old.release().await;
    let new = Leader::elect(&other, "n2").await;
    assert!(new.epoch > old.epoch);
    let stand = other.node("n2").get("/yurt/v1/feed").await.expect(200);
    assert_eq!(stand["collections"]["services"]["appliedUpTo"], "510");
    let answer = new
        .events(510, json!([event("MODIFIED", service("new", 511))]), 511)
        .await;
    answer.expect(200);
    let late = old
        .events(511, json!([event("MODIFIED", service("new", 512))]), 512)
        .await
        .expect(409);
    assert_eq!(late["reason"], "fenced");
    assert_eq!(watch.told().await, "MODIFIED new");
    let mut here = services_at(&one.node("n1"), 511).await;
    let mut there = services_at(&reader, 511).await;
    here.sort();
    there.sort();
    assert_eq!(here, there);
    assert!(here.contains(&"new@511".to_owned()) && here.len() == 300, "{here:?}");
    // A large difference goes through a folder of its own; a coordinator that starts afterwards reads the right one.
    let fewer: Vec<Value> = (0..150).map(|n| service(&format!("s{n}"), 600 + n)).collect();
    new.snapshot("services", 0, 900, &fewer).await.expect(200);
    new.events(900, json!([event("DELETED", service("s0", 901))]), 901)
        .await
        .expect(200);
    let third = Server::sharing_a_pool(&etcd).await;
    for server in [&one, &other, &third] {
        assert_eq!(services_at(&server.node("n1"), 901).await.len(), 149);
    }
    // A new generation reaches all readers, too.
    new.snapshot("services", 1, 50, &[service("s", 40)]).await.expect(200);
    let on_new = async || {
        let answer = one.node("n1").get(SERVICES).await;
        (answer.header("yurt-generation") == Some("1")).then_some(answer.body)
    };
    let listed = yurt_test_support::eventually("the new timeline", on_new).await;
    assert_eq!(
        (rv(&listed), listed["items"].as_array().unwrap().len()),
        ("50".to_owned(), 1)
    );
}

/// An administrator reaches one of them; hubs may read from the other, and a leader may feed through it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn collection_voided_at_one_coordinator_is_void_at_the_others() {
    let etcd = EtcdMember::single(None, &[]);
    let (one, other) = (Server::sharing_a_pool(&etcd).await, Server::sharing_a_pool(&etcd).await);
    let leader = Leader::elect(&one, "n1").await;
    leader.feed_members(&["n1", "n2"]).await;
    let forged = [service("forged", 100)];
    leader.snapshot("services", 7, 500, &forged).await.expect(200);
    let reader = other.node("n2");
    assert_eq!(services_at(&reader, 500).await.len(), 1);
    one.admin().delete("/yurt/v1/feed/services").await.expect(200);
    let (state, refused) = ("/yurt/v1/feed", async || {
        (reader.get(SERVICES).await.code == 429).then_some(())
    });
    yurt_test_support::eventually("no coordinator serves it", refused).await;
    let required = |state: &Value| state["collections"]["services"]["generation"].clone();
    let here = one.admin().get(state).await.expect(200);
    assert_eq!(required(&other.admin().get(state).await.expect(200)), required(&here));
    leader.release().await;
    let next = Leader::elect(&other, "n2").await;
    let again = next.snapshot("services", 7, 500, &forged).await.expect(409);
    assert_eq!(again["reason"], "generation");
    let third = Server::sharing_a_pool(&etcd).await;
    let there = third.admin().get(state).await.expect(200);
    assert_eq!(required(&there), required(&here), "a coordinator that starts later");
    let clean = [service("web", 90)];
    next.snapshot("services", 2_000_001, 150, &clean).await.expect(200);
    for server in [&one, &other, &third] {
        assert_eq!(services_at(&server.node("n1"), 150).await, ["web@90"]);
    }
    // The members have no generations.
    one.admin().delete("/yurt/v1/members").await.expect(200);
    let unknown =
        async || (other.admin().get("/yurt/v1/members").await.expect(200)["members"] == Value::Null).then_some(());
    yurt_test_support::eventually("no coordinator knows members", unknown).await;
}

/// etcd has a limit of its own, here its default one. No part of a refused call stays in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn object_above_the_limit_of_etcd_is_refused_by_its_name() {
    let etcd = EtcdMember::single(None, &[]);
    let (one, other) = (Server::sharing_a_pool(&etcd).await, Server::sharing_a_pool(&etcd).await);
    let leader = Leader::elect(&one, "n1").await;
    leader.feed_members(&["n1", "n2"]).await;
    leader
        .snapshot("services", 0, 100, &[service("a", 50)])
        .await
        .expect(200);
    let large = |version: u64, bytes: usize| {
        let mut large = service("large", version);
        large["metadata"]["annotations"] = json!({"padding": "x".repeat(bytes)});
        large
    };
    let batch = json!([event("ADDED", service("b", 101)), event("ADDED", large(102, 2 << 20))]);
    let refused = leader.events(100, batch, 102).await.expect(413);
    let message = refused["message"].as_str().unwrap();
    for part in [
        "services x/large has 2097",
        "--max-request-bytes",
        "--etcd-max-request-bytes",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(
        (&refused["details"]["kind"], &refused["details"]["name"]),
        (&json!("services"), &json!("x/large"))
    );
    let refused = leader
        .snapshot("services", 0, 103, &[service("a", 50), large(102, 2 << 20)])
        .await;
    refused.expect(413);
    for server in [&one, &other] {
        assert_eq!(services_at(&server.node("n1"), 100).await, ["a@50"]);
    }
    // It became smaller.
    let objects = [service("a", 50), service("b", 101), large(104, 1 << 20)];
    leader.snapshot("services", 0, 104, &objects).await.expect(200);
    assert_eq!(
        services_at(&other.node("n2"), 104).await,
        ["a@50", "b@101", "large@104"]
    );
}

/// One leader must not be able to number a copy so that no later leader can continue.
#[tokio::test]
async fn numbers_that_nothing_could_follow_are_refused() {
    let server = Server::pool().await;
    let leader = Leader::elect(&server, "n1").await;
    leader.feed_members(&["n1", "n2"]).await;
    let refused = |answer: Answer, reason: &str| {
        let body = answer.expect(409);
        assert_eq!(body["reason"], reason, "{body}");
        assert!(body["message"].as_str().unwrap().len() > 20, "{body}");
    };
    let forged = [service("forged", 100)];
    for generation in [u64::MAX, 1 << 53, 1_001 * 1_000_000] {
        refused(
            leader.snapshot("services", generation, 200, &forged).await,
            "generation",
        );
    }
    for at in [(1 << 62) - 1, 1 << 53] {
        refused(leader.snapshot("services", 0, at, &forged).await, "position");
    }
    for ahead in [201, 1 << 53, 1 << 62, u64::MAX] {
        let objects = [service("web", 90), service("forged", ahead)];
        refused(leader.snapshot("services", 0, 200, &objects).await, "position");
    }
    leader
        .snapshot("services", 1_000_000_007, 200, &forged)
        .await
        .expect(200);
    for up_to in [(1_u64 << 62) - 1, 1 << 53] {
        let events = json!({"generation": 1_000_000_007, "after": "200", "events": [], "upTo": up_to.to_string()});
        refused(leader.call("services/events", events).await, "position");
    }
    leader.release().await;

    let next = Leader::elect(&server, "n2").await;
    next.snapshot("services", 1_001_000_000, 150, &[service("web", 90)])
        .await
        .expect(200);
    let told = next.client.get("/api/v1/services").await.expect(200);
    assert_eq!(told["items"][0]["metadata"]["name"], "web");
}

/// Data that a hostile member fed disappears from readers and from the disk, and hubs drop their copies of it.
#[tokio::test]
async fn voided_collection_is_fed_from_nothing_under_a_new_generation() {
    let mut server = Server::pool().await;
    let leader = Leader::elect(&server, "n1").await;
    leader.feed_members(&["n1", "n2"]).await;
    let (old, path) = (7_000_003, "/yurt/v1/feed/services");
    leader
        .snapshot("services", old, 1 << 52, &[service("forged", 100)])
        .await
        .expect(200);
    leader.client.get(SERVICES).await.expect(200);

    leader.client.delete(path).await.expect(403);
    server.admin().delete("/yurt/v1/feed/nothing").await.expect(404);
    server.admin().delete("/yurt/v1/feed/members").await.expect(400);
    let state = server.admin().delete(path).await.expect(200);
    let services = &state["collections"]["services"];
    assert_eq!(
        (&services["complete"], &services["appliedUpTo"]),
        (&json!(false), &json!("0"))
    );
    let required = services["generation"].as_u64().unwrap();
    assert_eq!(required / 1_000_000, 8);
    leader.client.get(SERVICES).await.expect(429);

    // A call that was in flight.
    let late = leader
        .snapshot("services", old, 1 << 52, &[service("forged", 100)])
        .await
        .expect(409);
    assert_eq!(late["reason"], "generation");
    let event = json!({"generation": old, "after": (1_u64 << 52).to_string(), "events": [], "upTo": ((1_u64 << 52) + 1).to_string()});
    assert_eq!(
        leader.call("services/events", event).await.expect(409)["reason"],
        "generation"
    );

    let metrics = String::from_utf8(server.admin().get_bytes("/metrics", &[]).await.1.to_vec()).unwrap();
    assert!(
        metrics.contains(r#"yurt_coordinator_feed_voids_total{collection="services"} 1"#),
        "{metrics}"
    );

    server.kill();
    server.start_again().await;
    let leader = Leader::again(&server, "n1").await;
    leader.client.get(SERVICES).await.expect(429);
    let state = server.admin().get("/yurt/v1/feed").await.expect(200);
    assert_eq!(
        state["collections"]["services"]["generation"], required,
        "also after a crash"
    );
    let old_data = leader.snapshot("services", old, 150, &[service("forged", 100)]).await;
    assert_eq!(old_data.expect(409)["reason"], "generation");
    leader
        .snapshot("services", 9_000_001, 150, &[service("web", 90)])
        .await
        .expect(200);
    let told = leader.client.get(SERVICES).await.expect(200);
    assert_eq!(told["items"].as_array().unwrap().len(), 1);
    assert_eq!(told["items"][0]["metadata"]["name"], "web");
}

#[tokio::test]
async fn forced_relists_are_counted_on_after_a_void() {
    let server = Server::pool().await;
    let leader = Leader::elect(&server, "n1").await;
    leader.feed_members(&["n1", "n2"]).await;
    for (generation, relists) in [(1, 1.0), (5_000_000, 2.0)] {
        leader.snapshot("services", generation, 100, &[]).await.expect(200);
        let foreign = format!("{SERVICES}?resourceVersion={}", 1_u64 << 62);
        let told = server.node("n2").watch(&foreign).await.next().await;
        assert_eq!(told.unwrap().object["code"], 410);
        let text = server.admin().get("/metrics").await.expect(200);
        let name = r#"yurt_coordinator_collection_relists_forced_total{collection="services"}"#;
        assert_eq!(series(text.as_str().unwrap(), name), Some(relists));
        server.admin().delete("/yurt/v1/feed/services").await.expect(200);
    }
}
