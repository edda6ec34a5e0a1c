//! Cached lists and watches of kinds that are not built in.

use serde_json::{Value, json};
use yurt_apimachinery::Status;
use yurt_pool_protocol::pool_scope::SharedResource;
use yurt_runtime::http::status_response;
use yurt_test_support::eventually;

use super::caching::{cloud_with_a_node, list, selection, until_cloud_is, until_live, watch_from};
use super::cloud::resources::widgets;
use super::harness::TestHub;
use super::sharing::{define, define_widgets, widget};

#[tokio::test]
async fn custom_resource_is_cached_with_the_names_that_discovery_gave_it() {
    let mut cloud = cloud_with_a_node().await;
    define_widgets(&cloud);
    let first = cloud.put("widgets", widget("a", 1));
    let mut hub = TestHub::start(&cloud, &[]).await;
    let path = format!("{}/namespaces/shop/widgets", "/apis/example.com/v1");
    let name = format!("{path}#Widget#WidgetList#widget#namespaced");
    assert_eq!(list(&hub.component("flanneld"), &path).await.0, ["a"]);
    until_live(&hub, &name).await;
    cloud.go_away().await;
    hub.restart().await;
    until_cloud_is(&hub, false).await;
    let listed = hub.component("flanneld").get(&path).await.json();
    assert_eq!(
        (&listed["kind"], &listed["items"]),
        (&json!(widgets().list_kind), &json!([first]))
    );
    hub.component("flanneld").get(&format!("{path}/a")).await.expect(200);
}

#[tokio::test]
async fn custom_resource_that_is_defined_again_is_cached_with_its_new_names() {
    let mut cloud = cloud_with_a_node().await;
    define_widgets(&cloud);
    cloud.put("widgets", widget("a", 1));
    let hub = TestHub::start(&cloud, &[]).await;
    let path = "/apis/example.com/v1/namespaces/shop/widgets";
    let agent = hub.component("flanneld");
    assert_eq!(list(&agent, path).await.0, ["a"]);
    until_live(&hub, &format!("{path}#Widget#WidgetList#widget#namespaced")).await;
    cloud.go_away().await;
    let again = SharedResource {
        singular: "gadget".to_owned(),
        ..widgets()
    };
    define(&cloud, &again);
    cloud.on(path, |_| async { status_response(&Status::unknown_resource()) });
    cloud.come_back().await;
    eventually("the cloud has no such resource", async || {
        Some(agent.get(path).await).filter(|answer| answer.code == 404)
    })
    .await;
    cloud.off(path);
    eventually("it must be cached with the new names", async || {
        assert_eq!(list(&agent, path).await.0, ["a"]);
        let state = hub.state().await;
        let new = format!("{path}#Widget#WidgetList#gadget#namespaced");
        (selection(&state, &new)["live"] == true).then_some(())
    })
    .await;
    let old = format!("{path}#Widget#WidgetList#widget#namespaced");
    assert_eq!(selection(&hub.state().await, &old), &Value::Null);
}

/// kube-apiserver ends the watches of a resource whose schema has changed, and answers 410 to those that resume.
#[tokio::test]
async fn custom_resource_whose_schema_changes_is_listed_in_its_new_form() {
    let cloud = cloud_with_a_node().await;
    define_widgets(&cloud);
    cloud.put("widgets", widget("a", 1));
    let hub = TestHub::start(&cloud, &[]).await;
    let path = "/apis/example.com/v1/namespaces/shop/widgets";
    let agent = hub.component("flanneld");
    let (_, version) = list(&agent, path).await;
    until_live(&hub, &format!("{path}#Widget#WidgetList#widget#namespaced")).await;
    let mut watch = watch_from(&agent, path, &version).await;
    cloud.change_form("widgets", |widget| widget["spec"]["color"] = "red".into());
    let event = watch.next().await.unwrap();
    assert_eq!((event.kind.as_str(), &event.object["code"]), ("ERROR", &json!(410)));
    let listed = agent.get(&format!("{path}?resourceVersion=0")).await.json();
    let now = cloud.get("widgets", Some("shop"), "a").unwrap();
    assert_eq!(listed["items"], json!([now]));
}
