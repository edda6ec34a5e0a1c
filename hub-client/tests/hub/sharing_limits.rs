//! A coordinator, or its leader, that makes hubs copy more than the cloud's ConfigMap lists.

use http::StatusCode;
use serde_json::{Value, json};
use yurt_pool_protocol::pool_scope::SharedResource;
use yurt_runtime::http::json as answer_json;

use super::cloud::resources::widgets;
use super::harness::TestHub;
use super::pool::{Pool, STORE};

const WIDGETS: &str = "/apis/example.com/v1/widgets";
const NAME: &str = "widgets.example.com";
const PODS: &str = "/api/v1/pods";

/// A built-in kind of the core group.
fn core(resource: &str, kind: &str) -> SharedResource {
    SharedResource {
        group: String::new(),
        resource: resource.to_owned(),
        singular: kind.to_lowercase(),
        kind: kind.to_owned(),
        list_kind: format!("{kind}List"),
        ..widgets()
    }
}

/// Makes the coordinator report from now on that the pool shares these.
fn say(pool: &Pool, told: &[SharedResource], configured: &[SharedResource]) {
    let scope = json!({ "configured": configured, "told": told });
    let state = json!({"store": STORE, "versions": [1], "scope": scope}).to_string();
    pool.coordinator.on("/yurt/v1/feed", move |_| {
        let state = state.clone();
        async move { answer_json(StatusCode::OK, state) }
    });
}

/// Lists the widgets in the cloud as the operator does, or removes them.
fn list_widgets(pool: &Pool, are_listed: bool) {
    let entry = json!({"Group": "example.com", "Version": "v1", "Resource": "widgets"});
    let list = if are_listed { json!([entry]) } else { json!([]) };
    let metadata = json!({"namespace": "kube-system", "name": "yurt-hub-cfg"});
    let config = json!({"metadata": metadata, "data": {"pool_scope_resources": list.to_string()}});
    pool.cloud.put("configmaps", config);
}

fn has_copy(state: &Value) -> bool {
    state["collections"][NAME]["complete"] == true
}

fn difference(state: &Value) -> &str {
    state["troubles"]["scope"]["why"].as_str().unwrap_or_default()
}

async fn follower(pool: &Pool) -> TestHub {
    let hub = pool.hub("n1", &["--leader-elect=false"]).await;
    hub.until("the hub must follow the coordinator", |state| {
        let services = &state["collections"]["services"];
        services["source"] == "coordinator" && services["complete"] == true
    })
    .await;
    hub
}

#[tokio::test]
async fn pods_of_a_leader_reach_no_kubelet() {
    let pool = Pool::start().await;
    pool.coordinator
        .put("pods", json!({"metadata": {"namespace": "default", "name": "owned"}}));
    list_widgets(&pool, true);
    let everything = [core("pods", "Pod"), core("nodes", "Node"), widgets()];
    say(&pool, &everything, &everything);
    let hub = follower(&pool).await;
    let state = hub.until("the widgets must be copied", has_copy).await;
    assert_eq!(state["scope"]["added"], json!([NAME]));
    assert_eq!(state["collections"]["pods"], Value::Null);
    let pods = hub.kubelet().get(PODS).await;
    assert_eq!(pods.json()["items"], json!([]), "the cloud has none");
}

#[tokio::test]
async fn kubelet_reads_of_the_copy_nothing_but_services() {
    let pool = Pool::start().await;
    let forged = json!({"metadata": {"namespace": "shop", "name": "forged"}});
    pool.coordinator.put("widgets", forged.clone());
    pool.coordinator.put("services", forged.clone());
    pool.coordinator.put("endpoints", forged);
    list_widgets(&pool, true);
    say(&pool, &[widgets()], &[]);
    let hub = follower(&pool).await;
    hub.until("the widgets must be copied", has_copy).await;
    for path in [WIDGETS, "/api/v1/endpoints"] {
        assert_eq!(
            hub.kubelet().get(path).await.json()["items"],
            json!([]),
            "{path} of the cloud"
        );
        assert_eq!(
            hub.component("flanneld").get(path).await.names(),
            ["forged"],
            "{path} of the copy"
        );
    }
    assert_eq!(hub.kubelet().get("/api/v1/services").await.names(), ["forged"]);
}

#[tokio::test]
async fn hub_copies_what_coordinator_and_cloud_both_say() {
    let pool = Pool::start().await;
    list_widgets(&pool, false);
    say(&pool, &[widgets()], &[]);
    let hub = follower(&pool).await;
    let differs = |state: &Value| difference(state).contains(NAME);
    let state = hub.until("the difference must be reported", differs).await;
    assert!(state["collections"][NAME].is_null());
    // The hub reads the list again when the coordinator's report changes.
    list_widgets(&pool, true);
    say(&pool, &[], &[]);
    hub.until("they say the same", |state| difference(state).is_empty())
        .await;
    say(&pool, &[widgets()], &[]);
    let agrees = |state: &Value| has_copy(state) && difference(state).is_empty();
    hub.until("both say it", agrees).await;
    say(&pool, &[], &[]);
    hub.until("one does not say it any more", |state| {
        state["collections"][NAME].is_null()
    })
    .await;
}

#[tokio::test]
async fn without_a_link_a_hub_copies_what_it_knew_itself() {
    let mut pool = Pool::start().await;
    list_widgets(&pool, true);
    say(&pool, &[widgets()], &[]);
    let mut hub = follower(&pool).await;
    hub.until("the widgets must be copied", has_copy).await;
    pool.cloud.go_away().await;
    hub.restart().await;
    let gears = SharedResource {
        resource: "gears".to_owned(),
        ..widgets()
    };
    say(&pool, &[widgets(), gears.clone()], &[]);
    let differs = |state: &Value| difference(state).contains("gears");
    let state = hub.until("the gears are not known here", differs).await;
    assert_eq!(state["scope"]["added"], json!([NAME]));

    let new = pool.hub("n2", &["--leader-elect=false"]).await;
    let state = new.until("nothing was ever read here", differs).await;
    assert_eq!(state["scope"]["added"], json!([]));
}
