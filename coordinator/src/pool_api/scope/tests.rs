//! A leader that disconnects during a call, and data that an earlier deletion left.

use std::path::Path;

use futures_util::FutureExt as _;
use serde_json::json;
use yurt_apimachinery::ResourceVersion;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::resource_version::Space;
use yurt_runtime::Clock;
use yurt_storage::contract::Recorder;
use yurt_storage::embedded::replicas::ReplicaStore;
use yurt_storage::replica::Durable;
use yurt_storage::{Action, Durability, Embedded, Expect, OnlyWriter as _, Op, Replicas, Storage as _};
use yurt_test_support::eventually;

use super::*;
use crate::Coordinator;
use crate::authn::{NODE_PREFIX, NODES};
use crate::config::Config;

const NAME: &str = "widgets.example.com";
const OTHER: &str = "gadgets.example.com";

fn leader() -> User {
    User::new(&format!("{NODE_PREFIX}n1"), &[NODES])
}

/// A call of the leader n1, which is elected first.
fn call(app: &App, resources: &Value) -> Bytes {
    let store = app.feed.fence().store();
    json!({"store": store, "epoch": 1, "resources": resources})
        .to_string()
        .into()
}

/// A coordinator in `folder` whose election n1 has won.
async fn led(folder: &Path) -> Coordinator {
    let data = folder.to_str().unwrap();
    let flags = [
        "yurt-coordinator",
        "--data-dir",
        data,
        "--bind-address",
        "127.0.0.1",
        "--secure-port",
        "0",
    ];
    let Ok(config) = Config::parse(flags.into_iter().chain(["--initial-members", "n1"])) else {
        panic!("flags")
    };
    let coordinator = crate::build(config).await.unwrap();
    let lease = json!({"epoch": 1, "holder": "n1_1"}).to_string();
    let put = Op {
        key: crate::feed::fence::EPOCH_KEY.to_owned(),
        expect: Expect::Absent,
        action: Action::Put(Bytes::from(lease).into(), Durability::Durable),
    };
    coordinator.stores.storage().write(vec![put]).await.unwrap();
    coordinator
}

fn custom(singular: &str) -> Value {
    let kind = singular.to_uppercase();
    json!({
        "group": "example.com", "version": "v1", "resource": format!("{singular}s"), "singular": singular,
        "kind": kind, "listKind": format!("{kind}List"), "namespaced": true,
    })
}

#[tokio::test]
async fn call_whose_leader_hangs_up_changes_what_is_shared_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let coordinator = led(folder.path()).await;
    let app = &coordinator.app;
    let is_served = || app.served().registry.find("example.com", "widgets").is_some();
    for (resources, is_shared) in [(json!([custom("widget")]), true), (json!([]), false)] {
        let body = call(app, &resources);
        assert!(
            app.take_scope(&leader(), body).now_or_never().is_none(),
            "it waits for the store"
        );
        let is_whole = async || {
            let parts = [
                app.feed.collections().any(|one| one.name() == NAME),
                app.feed.replicas().named(NAME).is_some(),
                is_served(),
            ];
            (parts == [is_shared; 3]).then_some(())
        };
        eventually("all of it is changed", is_whole).await;
    }
}

/// Data of two resources, of which [`OTHER`] is shared. The other one left the scope, and the coordinator was killed
/// before the disk had deleted its data.
async fn leave_data(folder: &Path) {
    let kind = find_kind("", "services").unwrap();
    let store = Embedded::open(&folder.join("store.redb"), Clock::system(), Space::Own).unwrap();
    let file = ReplicaStore::open(store.disk()).unwrap();
    let kinds = [NAME, OTHER].map(|name| (name.to_owned(), kind));
    let replicas = Replicas::open(&kinds, Some(file)).unwrap();
    for left in replicas.iter() {
        left.collection()
            .update(|held| held.restart(0, Vec::new(), ResourceVersion(100)));
    }
    replicas.persist(None).await.unwrap();
    store.attach(Arc::new(Recorder::default())).await.unwrap();
    let record = json!([custom("gadget")]).to_string();
    let put = Op {
        key: crate::feed::scope::SCOPE_KEY.to_owned(),
        expect: Expect::Absent,
        action: Action::Put(Bytes::from(record).into(), Durability::Durable),
    };
    store.write(vec![put]).await.unwrap();
    store.close().await.unwrap();
}

#[tokio::test]
async fn data_of_a_resource_that_is_not_shared_is_gone_after_a_start() {
    let folder = tempfile::tempdir().unwrap();
    leave_data(folder.path()).await;
    let coordinator = led(folder.path()).await;
    let app = &coordinator.app;
    let both = json!([custom("widget"), custom("gadget")]);
    app.take_scope(&leader(), call(app, &both)).await.unwrap();
    let durable = |name| app.feed.replicas().named(name).unwrap().durable();
    assert_eq!(durable(NAME), Durable::default(), "it waits for the leader's data");
    assert_eq!(
        durable(OTHER).position,
        ResourceVersion(100),
        "it was shared all the time"
    );
}
