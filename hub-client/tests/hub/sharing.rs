//! Resources listed in ConfigMap yurt-hub-cfg: copied, served and removed while the hub runs.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};
use yurt_pool_protocol::pool_scope::SharedResource;
use yurt_runtime::http::{json as answer_json, respond, stream as body_of};

use super::client::Answer;
use super::cloud::resources::widgets;
use super::cloud::{Cloud, SeenRequest};
use super::harness::TestHub;
use super::thin_links::Link;

const GROUP: &str = "/apis/example.com/v1";
const WIDGETS: &str = "/apis/example.com/v1/widgets";
const NAME: &str = "widgets.example.com";

/// Makes a component act as the node that is not cacheable: what pool data does not answer goes to the cloud.
const NOT_CACHED: &[&str] = &["--node-identity-components=kube-proxy,sidecar"];

pub(super) fn widget(name: &str, size: u64) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"namespace": "shop", "name": name}, "spec": {"size": size},
    })
}

/// Defines widgets at the cloud.
pub(super) fn define_widgets(cloud: &Cloud) {
    define(cloud, &widgets());
}

/// Makes discovery describe the resource `widgets`.
pub(super) fn define(cloud: &Cloud, widgets: &SharedResource) {
    let document = json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "example.com/v1",
        "resources": [{
            "name": widgets.resource, "singularName": widgets.singular, "kind": widgets.kind,
            "namespaced": widgets.namespaced, "verbs": ["get", "list", "watch"],
        }],
    });
    cloud.on(GROUP, move |_| {
        let document = document.to_string();
        async move { answer_json(StatusCode::OK, document) }
    });
}

pub(super) fn list(cloud: &Cloud, text: &str) {
    let config = json!({
        "metadata": {"namespace": "kube-system", "name": "yurt-hub-cfg"}, "data": {"pool_scope_resources": text},
    });
    cloud.put("configmaps", config);
}

pub(super) fn entry(group: &str, version: &str, resource: &str) -> Value {
    json!({ "Group": group, "Version": version, "Resource": resource })
}

/// Lists in the form that clients send: the hub's own have a limit or are watches.
fn passed_on(cloud: &Cloud) -> usize {
    cloud.seen(WIDGETS).iter().filter(|seen| seen.query.is_none()).count()
}

fn has_copy(state: &Value) -> bool {
    state["collections"][NAME]["complete"] == true
}

fn problems(state: &Value) -> Vec<&str> {
    let problems = state["scope"]["problems"].as_array().unwrap();
    problems
        .iter()
        .map(|problem| problem["entry"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn listed_resource_is_copied_at_runtime_and_served_without_the_cloud() {
    let mut cloud = Cloud::start().await;
    define_widgets(&cloud);
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    let first = cloud.put("widgets", widget("a", 1));
    let mut hub = TestHub::start(&cloud, &[]).await;
    let mut services = hub.kube_proxy().watch("/api/v1/services").await;
    assert_eq!(services.told().await, "ADDED web");
    assert_eq!(
        hub.component("flanneld").get(WIDGETS).await.names(),
        ["a"],
        "passed on to the cloud"
    );

    let asked = json!([
        entry("example.com", "v1", "widgets"),
        entry("", "v1", "secrets"),
        entry("example.com", "v1", "unknown"),
    ]);
    list(&cloud, &asked.to_string());
    let state = hub.until("widgets must be copied", has_copy).await;
    let state = if problems(&state).len() == 2 {
        state
    } else {
        hub.state().await
    };
    assert_eq!(problems(&state), ["secrets", "unknown.example.com"]);
    let asked = passed_on(&cloud);
    let listed = hub.component("flanneld").get(WIDGETS).await;
    assert_eq!(
        (listed.json()["items"].clone(), listed.json()["kind"].clone()),
        (json!([first]), json!("WidgetList"))
    );
    let at = listed.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut watch = hub
        .component("flanneld")
        .watch(&format!("{WIDGETS}?resourceVersion={at}"))
        .await;
    let second = cloud.put("widgets", widget("b", 2));
    assert_eq!(watch.next().await.unwrap().object, second);
    assert_eq!(passed_on(&cloud), asked, "the cloud is not asked for what is copied");

    cloud.go_away().await;
    assert_eq!(
        hub.component("flanneld").get(WIDGETS).await.json()["items"],
        json!([first, second])
    );
    hub.restart().await;
    assert_eq!(
        hub.component("flanneld").get(WIDGETS).await.json()["items"],
        json!([first, second]),
        "remembered"
    );
}

/// Conformance: 7.60
#[tokio::test]
async fn mistake_takes_nothing_away_and_a_shorter_list_does() {
    let cloud = Cloud::start().await;
    define_widgets(&cloud);
    cloud.put("widgets", widget("a", 1));
    list(&cloud, &json!([entry("example.com", "v1", "widgets")]).to_string());
    let mut hub = TestHub::start(&cloud, NOT_CACHED).await;
    hub.until("widgets must be copied", has_copy).await;
    let mut watch = hub.component("sidecar").watch(WIDGETS).await;
    assert_eq!(watch.told().await, "ADDED a");
    let mut services = hub.kube_proxy().watch("/api/v1/services").await;

    list(&cloud, "[{");
    let reported = |state: &Value| problems(state) == ["pool_scope_resources"];
    let state = hub.until("the mistake must be reported", reported).await;
    assert!(has_copy(&state));
    cloud.put("widgets", widget("b", 2));
    assert_eq!(watch.told().await, "ADDED b", "what works goes on");

    list(&cloud, "[]");
    let is_gone = |state: &Value| state["collections"][NAME].is_null() && problems(state).is_empty();
    hub.until("widgets must be given up", is_gone).await;
    while watch.next().await.is_some() {}
    let asked = passed_on(&cloud);
    assert_eq!(hub.component("sidecar").get(WIDGETS).await.names(), ["a", "b"]);
    assert_eq!(passed_on(&cloud), asked + 1, "read in the cloud again");
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    assert_eq!(services.told().await, "ADDED web", "streams of other resources go on");
    hub.restart().await;
    assert!(is_gone(&hub.state().await), "and forgotten");
}

#[tokio::test]
async fn resource_the_node_may_not_read_stays_with_the_cloud_until_it_may() {
    let cloud = Cloud::start().await;
    define_widgets(&cloud);
    cloud.on(WIDGETS, async |_| {
        answer_json(StatusCode::FORBIDDEN, r#"{"kind":"Status","code":403,"message":"no"}"#)
    });
    list(&cloud, &json!([entry("example.com", "v1", "widgets")]).to_string());
    let hub = TestHub::start(&cloud, &[]).await;
    let reported = |state: &Value| problems(state) == [NAME];
    let state = hub.until("the refusal must be reported", reported).await;
    assert!(state["collections"][NAME].is_null(), "no source would ever fill it");
    assert!(state["scope"]["problems"][0]["why"].as_str().unwrap().contains("no"));
}

/// A partial list is removed with the replica: a definition of the same name may have another
/// version.
#[tokio::test]
async fn begun_list_of_a_resource_that_is_given_up_is_dropped() {
    let mut cloud = Cloud::start().await;
    define_widgets(&cloud);
    for number in 0..100 {
        let mut large = widget(&format!("w{number:03}"), 1);
        large["spec"]["padding"] = "x".repeat(10_000).into();
        cloud.put("widgets", large);
    }
    let link = Link::to(cloud.addr(), 200_000, u64::MAX).await;
    cloud.put_behind(link.addr);
    let hub = TestHub::start(&cloud, &[]).await;
    let widgets = entry("example.com", "v1", "widgets");
    list(&cloud, &json!([widgets]).to_string());
    let begun = |state: &Value| state["collections"][NAME]["listing"]["objects"].as_u64() > Some(10);
    hub.until("some pages must arrive", begun).await;
    list(&cloud, "[]");
    hub.until("it must be given up", |state| state["collections"][NAME].is_null())
        .await;
    let begins = |seen: &&SeenRequest| !seen.is_of_metadata() && seen.query.as_deref().is_some_and(is_first_page);
    let before = cloud.seen(WIDGETS).iter().filter(begins).count();
    list(&cloud, &json!([widgets]).to_string());
    hub.until("it must be copied", has_copy).await;
    let after = cloud.seen(WIDGETS).iter().filter(begins).count();
    assert!(after > before, "from the beginning: {before} first pages, then {after}");
    assert_eq!(hub.component("flanneld").get(WIDGETS).await.names().len(), 100);
    link.end().await;
}

/// First page of a replica's list: the leader requests one object to check its rights.
fn is_first_page(query: &str) -> bool {
    query.starts_with("limit=") && query != "limit=1" && !query.contains("continue=")
}

/// A client that was away when the replica began.
#[tokio::test]
async fn watch_that_goes_on_before_the_copy_began_goes_on_at_the_cloud() {
    let cloud = Cloud::start().await;
    define_widgets(&cloud);
    cloud.put("widgets", widget("a", 1));
    let hub = TestHub::start(&cloud, NOT_CACHED).await;
    let listed = hub.component("sidecar").get(WIDGETS).await;
    let at = |listed: &Answer| {
        listed.json()["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    cloud.put("widgets", widget("b", 1));
    cloud.delete("widgets", "shop", "a");
    list(&cloud, &json!([entry("example.com", "v1", "widgets")]).to_string());
    hub.until("the widgets must be copied", has_copy).await;
    let watches = |cloud: &Cloud| {
        let seen = cloud.seen(WIDGETS).into_iter();
        let passed_on = |query: &str| query.contains("watch=1") && !query.contains("Bookmarks");
        seen.filter(|seen| seen.query.as_deref().is_some_and(passed_on)).count()
    };
    let resume = async |at: String| {
        hub.component("sidecar")
            .watch(&format!("{WIDGETS}?resourceVersion={at}"))
            .await
    };
    let mut watch = resume(at(&listed)).await;
    assert_eq!(watch.told().await, "ADDED b");
    assert_eq!(watch.told().await, "DELETED a");
    assert_eq!(watches(&cloud), 1);
    let mut present = resume(at(&hub.component("sidecar").get(WIDGETS).await)).await;
    cloud.put("widgets", widget("c", 1));
    assert_eq!(present.told().await, "ADDED c");
    assert_eq!(watches(&cloud), 1, "from then on the copy is enough");
}

/// A resource of an aggregated apiserver, or of one with `--etcd-servers-overrides`.
#[tokio::test]
async fn resource_with_the_numbers_of_another_etcd_says_nothing_against_the_cloud() {
    let mut cloud = Cloud::start().await;
    define_widgets(&cloud);
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    cloud.on(WIDGETS, async |request| {
        if request.uri().query().unwrap_or_default().contains("watch=1") {
            let bookmark = json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "900000"}}});
            let first = stream::iter([Ok::<_, Infallible>(Bytes::from(format!("{bookmark}\n")))]);
            let json = HeaderValue::from_static("application/json");
            return respond(StatusCode::OK, json, body_of(first.chain(stream::pending())));
        }
        let list = json!({
            "kind": "WidgetList", "apiVersion": "example.com/v1", "metadata": {"resourceVersion": "900000"}, "items": [],
        });
        answer_json(StatusCode::OK, list.to_string())
    });
    list(&cloud, &json!([entry("example.com", "v1", "widgets")]).to_string());
    let hub = TestHub::start(&cloud, &[]).await;
    hub.until("widgets must be copied", has_copy).await;
    cloud.go_away().await;
    hub.until("it must be noticed", |state| state["cloudReachable"] == false)
        .await;
    let put = cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "more"}}));
    cloud.come_back().await;
    let state = hub
        .until("the hub must follow", |state| {
            state["collections"]["services"]["rv"] == put["metadata"]["resourceVersion"]
        })
        .await;
    assert_eq!(state["collections"]["services"]["generation"], 0);
}
