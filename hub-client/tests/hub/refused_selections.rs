//! Selections that the cloud no longer gives: their open watches, and what is left of them without the cloud.

use yurt_test_support::eventually;

use super::caching::{
    MAPS, MAPS_OF_TOKENS, cloud_with_a_node, list, named, selection, until_cloud_is, until_live, watch_from,
};
use super::harness::{NODE_USER, TestHub};

/// Two pods of one agent share a selection. The stream has the newest token, and ends with the pod that it belongs to.
#[tokio::test]
async fn watch_does_not_stay_silent_after_the_token_of_another_reader_is_refused() {
    let mut cloud = cloud_with_a_node().await;
    for token in ["first", "second"] {
        cloud.allow(token, true);
    }
    let hub = TestHub::start(&cloud, &[]).await;
    let (first, second) = (hub.bearer("coredns/1", "first"), hub.bearer("coredns/1", "second"));
    let (_, version) = list(&first, MAPS).await;
    until_live(&hub, MAPS_OF_TOKENS).await;
    let mut watch = watch_from(&first, MAPS, &version).await;
    list(&second, MAPS).await;
    cloud.refuse_token("second");
    cloud.go_away().await;
    cloud.come_back().await;
    cloud.put("configmaps", named("new"));
    if watch.next().await.is_none() {
        watch = watch_from(&first, MAPS, &version).await;
        assert_eq!(watch.told().await, "ADDED new");
    }
    until_live(&hub, MAPS_OF_TOKENS).await;
}

/// The loss of the cloud ends no watch. Its return decides again, also about a selection that was refused before.
#[tokio::test]
async fn watch_that_began_without_the_cloud_ends_if_the_cloud_refuses_its_selection() {
    let mut cloud = cloud_with_a_node().await;
    cloud.allow("first", true);
    let hub = TestHub::start(&cloud, &[]).await;
    let first = hub.bearer("coredns/1", "first");
    let (_, version) = list(&first, MAPS).await;
    until_live(&hub, MAPS_OF_TOKENS).await;
    let mut watch = watch_from(&first, MAPS, &version).await;
    cloud.refuse_token("first");
    for _ in 0..2 {
        cloud.go_away().await;
        until_cloud_is(&hub, false).await;
        cloud.come_back().await;
        assert!(watch.next().await.is_none(), "its client reads at the cloud");
        cloud.go_away().await;
        until_cloud_is(&hub, false).await;
        watch = watch_from(&first, MAPS, &version).await;
    }
}

/// The one that lists is gone, with its token. The answer to the other one outlives the selection.
#[tokio::test]
async fn get_is_kept_although_a_selection_without_a_stream_has_the_object() {
    let mut cloud = cloud_with_a_node().await;
    for token in ["first", "second"] {
        cloud.allow(token, true);
    }
    let hub = TestHub::start(&cloud, &[]).await;
    let (first, second) = (hub.bearer("coredns/1", "first"), hub.bearer("coredns/1", "second"));
    list(&first, MAPS).await;
    until_live(&hub, MAPS_OF_TOKENS).await;
    cloud.refuse_token("first");
    cloud.go_away().await;
    until_cloud_is(&hub, false).await;
    cloud.come_back().await;
    until_cloud_is(&hub, true).await;
    eventually("the answer must be kept", async || {
        second.get(&format!("{MAPS}/settings")).await.expect(200);
        (hub.state().await["offline"]["answers"]["records"] == 1).then_some(())
    })
    .await;
    let state = hub.state().await;
    assert_eq!(
        state["cache"]["selections"][MAPS_OF_TOKENS]["complete"], true,
        "it is still there"
    );
}

/// Its list is refused, and what it listed is still there. The object changed since, and another caller has read it.
#[tokio::test]
async fn get_without_the_cloud_returns_no_older_state_than_the_cloud_has_answered_since() {
    let mut cloud = cloud_with_a_node().await;
    for token in ["first", "second"] {
        cloud.allow(token, true);
    }
    cloud.put("configmaps", named("unchanged"));
    let hub = TestHub::start(&cloud, &[]).await;
    let (first, second) = (hub.bearer("coredns/1", "first"), hub.bearer("coredns/1", "second"));
    let (settings, unchanged) = (format!("{MAPS}/settings"), format!("{MAPS}/unchanged"));
    list(&first, MAPS).await;
    until_live(&hub, MAPS_OF_TOKENS).await;
    cloud.refuse_token("first");
    cloud.go_away().await;
    until_cloud_is(&hub, false).await;
    let changed = cloud.put("configmaps", named("settings"));
    cloud.come_back().await;
    until_cloud_is(&hub, true).await;
    eventually("the answers must be kept", async || {
        for path in [&settings, &unchanged] {
            second.get(path).await.expect(200);
        }
        (hub.state().await["offline"]["answers"]["records"] == 2).then_some(())
    })
    .await;
    cloud.go_away().await;
    assert_eq!(second.get(&settings).await.json(), changed, "before the probes know");
    until_cloud_is(&hub, false).await;
    let later = second.get(&settings).await;
    assert_eq!((later.json(), later.header("yurt-stale")), (changed, Some("true")));
    second.get(&unchanged).await.expect(200);
    let named: u64 = later.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    for (version, code) in [(named, 200), (named + 1, 504)] {
        let path = format!("{settings}?resourceVersion={version}");
        second.get(&path).await.expect(code);
    }
    assert_eq!(
        selection(&hub.state().await, MAPS_OF_TOKENS)["complete"],
        true,
        "it is still there"
    );
}

/// A component of the node reads it first, and is refused. A pod may read it.
#[tokio::test]
async fn selection_that_the_cloud_denies_the_node_does_not_stand_in_for_tokens() {
    let mut cloud = cloud_with_a_node().await;
    cloud.allow("first", true);
    cloud.allow(NODE_USER, false);
    cloud.forbid_path(NODE_USER, MAPS);
    let hub = TestHub::start(&cloud, &[]).await;
    let (node, pod) = (hub.component("coredns"), hub.bearer("coredns/1", "first"));
    node.get(MAPS).await.expect(403);
    assert_eq!(list(&pod, MAPS).await.0, ["settings"]);
    until_live(&hub, MAPS_OF_TOKENS).await;
    node.get(MAPS).await.expect(403);
    assert!(selection(&hub.state().await, MAPS).is_null(), "the node has none");
    cloud.go_away().await;
    until_cloud_is(&hub, false).await;
    assert_eq!(list(&pod, MAPS).await.0, ["settings"]);
    node.get(MAPS).await.expect(403);
}
