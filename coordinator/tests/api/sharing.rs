//! Shared resources of a pool: the leader adds and removes them while everything else goes on.

use std::sync::Arc;

use serde_json::{Value, json};
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::{ResourceVersion, Space};
use yurt_runtime::TaskGroup;
use yurt_storage::contract::Recorder;
use yurt_storage::etcd3::{Config, MAX_REQUEST_BYTES};
use yurt_storage::{Etcd, OnlyWriter as _, Replicas, Storage as _};
use yurt_test_support::etcd::EtcdMember;
use yurt_test_support::eventually;

use crate::feeding::{Leader, event, fed_pool, service};
use crate::harness::{Client, Server, config_map, rv};

const NAME: &str = "widgets.example.com";
const WIDGETS: &str = "/apis/example.com/v1/widgets";
const SERVICES: &str = "/api/v1/services";

fn shared(group: &str, resource: &str, kind: &str) -> Value {
    json!({
        "group": group, "version": "v1", "resource": resource, "singular": kind.to_lowercase(),
        "kind": kind, "listKind": format!("{kind}List"), "namespaced": true,
    })
}

fn widgets() -> Value {
    shared("example.com", "widgets", "Widget")
}

fn widget(name: &str, version: u64) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"name": name, "namespace": "x", "uid": name, "resourceVersion": version.to_string()},
        "spec": {"size": version},
    })
}

async fn tell(leader: &Leader, resources: &Value) -> Value {
    leader
        .call("scope", json!({ "resources": resources }))
        .await
        .expect(200)["refused"]
        .clone()
}

async fn told(client: &Client) -> Value {
    client.get("/yurt/v1/feed").await.expect(200)["scope"]["told"].clone()
}

#[tokio::test]
async fn leader_adds_a_custom_resource_and_takes_it_away_while_others_go_on() {
    let (server, leader) = fed_pool().await;
    let reader = server.node("n2");
    let mut services = reader.watch(&format!("{SERVICES}?resourceVersion=100")).await;
    reader.get(WIDGETS).await.expect(403);
    assert_eq!(told(&reader).await, Value::Null);
    assert_eq!(tell(&leader, &json!([widgets()])).await, json!([]));
    assert_eq!(told(&reader).await, json!([widgets()]));
    let incomplete = reader.get(WIDGETS).await;
    assert_eq!((incomplete.code, incomplete.header("retry-after")), (429, Some("1")));
    let discovered = reader.get("/apis/example.com/v1").await.expect(200);
    assert_eq!(
        (&discovered["resources"][0]["name"], &discovered["resources"][0]["kind"]),
        (&json!("widgets"), &json!("Widget"))
    );

    leader.snapshot(NAME, 0, 100, &[widget("a", 90)]).await.expect(200);
    let list = reader.get(WIDGETS).await.expect(200);
    assert_eq!((rv(&list).as_str(), &list["items"]), ("100", &json!([widget("a", 90)])));
    assert_eq!(list["kind"], "WidgetList");
    let mut watch = reader.watch(&format!("{WIDGETS}?resourceVersion=100")).await;
    let batch = json!({
        "after": "100", "upTo": "120", "fresh": true, "events": [event("ADDED", widget("b", 110))],
    });
    leader.call("widgets.example.com/events", batch).await.expect(200);
    assert_eq!(watch.told().await, "ADDED b");
    let refused = reader
        .post("/apis/example.com/v1/namespaces/x/widgets", &widget("c", 0))
        .await;
    assert!(
        refused.code == 405
            && refused.body["message"]
                .as_str()
                .unwrap()
                .contains("comes from the cloud")
    );

    tell(&leader, &json!([])).await;
    while watch.next().await.is_some() {}
    reader.get(WIDGETS).await.expect(403);
    server.admin().get(WIDGETS).await.expect(404);
    leader.snapshot(NAME, 0, 130, &[]).await.expect(404);
    leader
        .events(100, json!([event("MODIFIED", service("a", 140))]), 140)
        .await
        .expect(200);
    assert_eq!(services.told().await, "MODIFIED a", "a watch of something else goes on");

    tell(&leader, &json!([widgets()])).await;
    reader.get(WIDGETS).await.expect(429);
}

/// A forger could remove the resource to be no longer its only feeder.
#[tokio::test]
async fn resource_that_leaves_the_scope_and_returns_keeps_the_record_of_its_feeders() {
    let server = Server::start(&["--nodepool", "hangzhou", "--initial-members", "n1,n2,n3"]).await;
    let forger = Leader::elect(&server, "n1").await;
    forger.feed_members(&["n1", "n2", "n3"]).await;
    tell(&forger, &json!([widgets()])).await;
    server
        .admin()
        .delete(&format!("/yurt/v1/feed/{NAME}"))
        .await
        .expect(200);
    tell(&forger, &json!([])).await;
    tell(&forger, &json!([widgets()])).await;
    let state = server.admin().get("/yurt/v1/feed").await.expect(200);
    let generation = state["collections"][NAME]["generation"].as_u64().unwrap();
    forger
        .snapshot(NAME, generation, 100, &[widget("a", 90)])
        .await
        .expect(200);
    for node in ["n2", "n3"] {
        let report = json!({
            "collection": NAME, "generation": generation, "key": "x/a", "resourceVersion": "90",
            "reason": "the cloud does not have it", "verdict": "forged",
        });
        server.node(node).post("/yurt/v1/reports", &report).await.expect(200);
    }
    let state = server.admin().get("/yurt/v1/feed").await.expect(200);
    assert_eq!(state["barred"][0]["node"], "n1", "{state}");
}

#[tokio::test]
async fn what_cannot_be_shared_is_refused_by_name_and_costs_nothing_else() {
    let server = Server::pool().await;
    let admin = server.admin();
    admin
        .post("/api/v1/namespaces/default/configmaps", &config_map("kept", "1"))
        .await
        .expect(201);
    let leader = Leader::elect(&server, "n1").await;
    let early = leader.call("scope", json!({ "resources": [] })).await.expect(409);
    assert_eq!(early["reason"], "members");
    leader.feed_members(&["n1", "n2"]).await;
    let mut bad = widgets();
    bad["resource"] = json!("../secrets");
    let asked = json!([
        shared("", "secrets", "Secret"),
        shared("coordination.k8s.io", "leases", "Lease"),
        shared("", "configmaps", "ConfigMap"),
        bad,
        widgets(),
        shared("", "pods", "Pod"),
        shared("", "nodes", "Node"),
        shared("node.k8s.io", "runtimeclasses", "RuntimeClass"),
        shared("", "services", "Service"),
    ]);
    let refused = tell(&leader, &asked).await;
    let entries: Vec<&str> = refused
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["entry"].as_str().unwrap())
        .collect();
    let expected = [
        "secrets",
        "leases.coordination.k8s.io",
        "configmaps",
        "../secrets.example.com",
        "pods",
        "nodes",
        "runtimeclasses.node.k8s.io",
    ];
    assert_eq!(entries, expected);
    admin
        .get("/api/v1/namespaces/default/configmaps/kept")
        .await
        .expect(200);
    admin.get("/api/v1/nodes").await.expect(404);
    admin.get(WIDGETS).await.expect(429);

    let other = server.node("n2");
    let claim = json!({ "store": leader.store(), "epoch": leader.epoch(), "generation": 0, "resources": [] });
    assert_eq!(
        other.post("/yurt/v1/feed/scope?version=1", &claim).await.expect(409)["reason"],
        "fenced"
    );
    let many: Vec<Value> = (0..33)
        .map(|n| shared("example.com", &format!("w{n}"), &format!("W{n}")))
        .collect();
    leader.call("scope", json!({ "resources": many })).await.expect(400);
    leader.release().await;
    let late = leader.call("scope", json!({ "resources": [] })).await.expect(409);
    assert_eq!(late["reason"], "fenced");
    admin.get(WIDGETS).await.expect(429);
}

#[tokio::test]
async fn what_was_told_and_fed_survives_a_kill() {
    let (mut server, leader) = fed_pool().await;
    tell(&leader, &json!([widgets()])).await;
    leader.snapshot(NAME, 0, 100, &[widget("a", 90)]).await.expect(200);
    server.kill();
    server.start_again().await;
    let reader = server.node("n2");
    assert_eq!(told(&reader).await, json!([widgets()]));
    let list = reader.get(WIDGETS).await.expect(200);
    assert_eq!((rv(&list).as_str(), &list["items"]), ("100", &json!([widget("a", 90)])));
    let leader = Leader::again(&server, "n1").await;
    tell(&leader, &json!([])).await;
    server.kill();
    server.start_again().await;
    assert_eq!(told(&server.node("n2")).await, json!([]));
    server.admin().get(WIDGETS).await.expect(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn coordinators_over_one_etcd_share_the_same_resources() {
    let etcd = EtcdMember::single(None, &[]);
    let (one, other) = (Server::sharing_a_pool(&etcd).await, Server::sharing_a_pool(&etcd).await);
    let leader = Leader::elect(&one, "n1").await;
    leader.feed_members(&["n1", "n2"]).await;
    tell(&leader, &json!([widgets()])).await;
    leader.snapshot(NAME, 0, 100, &[widget("a", 90)]).await.expect(200);
    let reader = other.node("n2");
    let listed = async || {
        let answer = reader.get(WIDGETS).await;
        (answer.code == 200).then(|| answer.body["items"].clone())
    };
    assert_eq!(
        eventually("the other serves it", listed).await,
        json!([widget("a", 90)])
    );
    // A coordinator that starts later finds both.
    let third = Server::sharing_a_pool(&etcd).await;
    assert_eq!(
        third.node("n1").get(WIDGETS).await.expect(200)["items"],
        json!([widget("a", 90)])
    );
    tell(&leader, &json!([])).await;
    let is_gone = async || (other.admin().get(WIDGETS).await.code == 404).then_some(());
    eventually("the other gives it up", is_gone).await;
    tell(&leader, &json!([widgets()])).await;
    let is_empty = async || (third.admin().get(WIDGETS).await.code == 429).then_some(());
    eventually("nothing is left of it", is_empty).await;
}

/// Data of a resource that left the scope, which etcd failed to delete.
async fn leave_data(etcd: &EtcdMember) {
    let config = Config {
        servers: vec![etcd.url()],
        tls: None,
        prefix: "/yurt-coordinator".into(),
        space: Space::Own,
        compaction_interval: None,
        mark: None,
        max_request_bytes: MAX_REQUEST_BYTES,
    };
    let tasks = TaskGroup::new();
    let storage = Arc::new(Etcd::connect(config, &tasks).await.unwrap());
    let kinds = [(NAME.to_owned(), find_kind("", "services").unwrap())];
    let replicas = Replicas::shared(&kinds, storage.clone());
    storage.attach(Arc::new(Recorder::default())).await.unwrap();
    let left = replicas.named(NAME).unwrap();
    left.collection()
        .update(|held| held.restart(0, Vec::new(), ResourceVersion(100)));
    replicas.persist(None).await.unwrap();
    tasks.token().cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn data_that_a_failed_deletion_left_at_etcd_is_gone_when_its_resource_is_shared_again() {
    let etcd = EtcdMember::single(None, &[]);
    leave_data(&etcd).await;
    let server = Server::sharing_a_pool(&etcd).await;
    let leader = Leader::elect(&server, "n1").await;
    leader.feed_members(&["n1"]).await;
    assert_eq!(tell(&leader, &json!([widgets()])).await, json!([]));
    server.admin().get(WIDGETS).await.expect(429);
    leader.snapshot(NAME, 0, 50, &[widget("a", 40)]).await.expect(200);
    let list = server.admin().get(WIDGETS).await.expect(200);
    assert_eq!((rv(&list).as_str(), &list["items"]), ("50", &json!([widget("a", 40)])));
}
