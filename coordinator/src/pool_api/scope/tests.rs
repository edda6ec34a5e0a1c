//! A leader that disconnects during a call.

use futures_util::FutureExt as _;
use serde_json::json;
use yurt_test_support::eventually;

use super::*;
use crate::authn::{NODE_PREFIX, NODES};
use crate::config::Config;

const NAME: &str = "widgets.example.com";

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

#[tokio::test]
async fn call_whose_leader_hangs_up_changes_what_is_shared_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
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
    let app = &coordinator.app;
    let lease = json!({"epoch": 1, "holder": "n1_1"}).to_string();
    let put = yurt_storage::Op {
        key: crate::feed::fence::EPOCH_KEY.to_owned(),
        expect: yurt_storage::Expect::Absent,
        action: yurt_storage::Action::Put(Bytes::from(lease).into(), yurt_storage::Durability::Durable),
    };
    coordinator.stores.storage().write(vec![put]).await.unwrap();
    let widgets = json!([{
        "group": "example.com", "version": "v1", "resource": "widgets", "singular": "widget",
        "kind": "Widget", "listKind": "WidgetList", "namespaced": true,
    }]);
    let is_served = || app.served().registry.find("example.com", "widgets").is_some();
    for (resources, is_shared) in [(widgets, true), (json!([]), false)] {
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
