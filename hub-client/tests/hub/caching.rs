//! Lists and watches of cacheable components: one stream per selection, served with and without the cloud, also after a
//! restart.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use serde_json::{Value, json};
use yurt_apimachinery::Status;
use yurt_runtime::http::status_response;
use yurt_test_support::eventually;

use super::client::{Client, Watch};
use super::cloud::{Cloud, SeenRequest};
use super::harness::{NODE_USER, TestHub};

const PODS: &str = "/api/v1/pods";
const OWN_PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
const SECRETS: &str = "/api/v1/namespaces/shop/secrets";
const SECRET: &str = "/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Ddb";
pub(super) const MAPS: &str = "/api/v1/namespaces/shop/configmaps";
pub(super) const MAPS_OF_TOKENS: &str = "/api/v1/namespaces/shop/configmaps#tokens";
/// Seconds; OpenYurt ends watches without the cloud after two.
const LONGER: u32 = 3;

fn pod(name: &str, node: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name, "labels": {"app": name}}, "spec": {"nodeName": node}})
}

pub(super) fn named(name: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name}, "data": {"a": "Yg=="}})
}

/// A cloud with two pods of this node, one of another node, two secrets and a ConfigMap.
pub(super) async fn cloud_with_a_node() -> Cloud {
    let cloud = Cloud::start().await;
    for (name, node) in [("web", "n1"), ("db", "n1"), ("elsewhere", "n2")] {
        cloud.put("pods", pod(name, node));
    }
    cloud.put("secrets", named("db"));
    cloud.put("secrets", named("other"));
    cloud.put("configmaps", named("settings"));
    cloud
}

fn is_watch(seen: &SeenRequest) -> bool {
    seen.query.as_deref().unwrap_or_default().contains("watch=1")
}

/// Lists and watches of a path that arrived at the cloud.
fn counts(cloud: &Cloud, path: &str) -> (usize, usize) {
    let seen = cloud.seen(path);
    let watches = seen.iter().filter(|seen| is_watch(seen)).count();
    (seen.len() - watches, watches)
}

/// Lists as an informer does, from any state that the server has; returns the names and the resourceVersion.
pub(super) async fn list(client: &Client, path: &str) -> (Vec<String>, String) {
    let separator = if path.contains('?') { '&' } else { '?' };
    let listed = client.get(&format!("{path}{separator}resourceVersion=0")).await;
    let version = listed.json()["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    (listed.names(), version.unwrap_or_default())
}

pub(super) async fn watch_from(client: &Client, path: &str, version: &str) -> Watch {
    let separator = if path.contains('?') { '&' } else { '?' };
    client
        .watch(&format!("{path}{separator}resourceVersion={version}"))
        .await
}

/// State of one selection.
pub(super) fn selection<'a>(state: &'a Value, name: &str) -> &'a Value {
    &state["cache"]["selections"][name]
}

pub(super) async fn until_live(hub: &TestHub, name: &str) {
    let is_live = |state: &Value| selection(state, name)["live"] == true && selection(state, name)["complete"] == true;
    hub.until("the selection must be followed", is_live).await;
}

pub(super) async fn until_cloud_is(hub: &TestHub, reachable: bool) {
    hub.until("the probes must notice", |state| state["cloudReachable"] == reachable)
        .await;
}

#[tokio::test]
async fn clients_of_one_selection_share_one_stream_of_the_cloud() {
    let cloud = cloud_with_a_node().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let clients = [hub.kubelet(), hub.kube_proxy(), hub.component("flanneld/1")];
    let mut watches = Vec::new();
    for client in &clients {
        let (names, version) = list(client, OWN_PODS).await;
        assert_eq!(names, ["db", "web"]);
        watches.push(watch_from(client, OWN_PODS, &version).await);
    }
    until_live(&hub, OWN_PODS).await;
    cloud.put("pods", pod("not-ours", "n2"));
    let new = cloud.put("pods", pod("new", "n1"));
    for watch in &mut watches {
        let event = watch.next().await.unwrap();
        assert_eq!(
            (event.kind.as_str(), &event.object),
            ("ADDED", &new),
            "nothing of other nodes"
        );
    }
    assert_eq!(counts(&cloud, PODS), (1, 1));
    let asked = cloud.seen(PODS);
    assert!(asked.iter().all(|seen| seen.user.as_deref() == Some(NODE_USER)));
    let selects = |seen: &SeenRequest| {
        seen.query
            .as_ref()
            .unwrap()
            .contains("fieldSelector=spec.nodeName%3Dn1")
    };
    assert!(asked.iter().all(selects), "never more than the clients read");
}

#[tokio::test]
async fn node_goes_on_without_the_cloud_and_over_a_restart_and_resumes_without_a_list() {
    let mut cloud = cloud_with_a_node().await;
    let mut hub = TestHub::start(&cloud, &[]).await;
    // No filter is bound to its pods: after a restart a filtered client receives everything once more.
    let agent = |hub: &TestHub| hub.component("flanneld/1");
    let (pods, version) = list(&agent(&hub), OWN_PODS).await;
    assert_eq!(list(&agent(&hub), SECRET).await.0, ["db"]);
    let mut watch = watch_from(&agent(&hub), OWN_PODS, &version).await;
    until_live(&hub, OWN_PODS).await;
    until_live(&hub, SECRET).await;
    let seen = (counts(&cloud, PODS), counts(&cloud, SECRETS));

    cloud.go_away().await;
    until_cloud_is(&hub, false).await;
    for (started_again, seconds) in [(false, 1), (true, LONGER)] {
        if started_again {
            hub.restart().await;
            if let Some(event) = watch.next().await {
                panic!("the hub stopped, and nothing had changed: {event:?}");
            }
            watch = watch_from(&agent(&hub), OWN_PODS, &version).await;
        }
        let reader = agent(&hub);
        assert_eq!(list(&reader, OWN_PODS).await, (pods.clone(), version.clone()));
        assert_eq!(list(&reader, SECRET).await.0, ["db"]);
        reader.get("/api/v1/namespaces/shop/pods/web").await.expect(200);
        reader.get("/api/v1/namespaces/shop/secrets/db").await.expect(200);
        // Its absence in a selection says nothing about an object.
        reader.get("/api/v1/namespaces/shop/pods/elsewhere").await.expect(503);
        reader.get("/api/v1/namespaces/shop/secrets/other").await.expect(503);
        let brief = format!("{OWN_PODS}&timeoutSeconds={seconds}");
        let mut silent = watch_from(&reader, &brief, &version).await;
        assert!(silent.next().await.is_none(), "no event, no error, a clean end");
    }

    cloud.come_back().await;
    cloud.put("pods", pod("new", "n1"));
    // It began before the last one of the others, so it was open for longer.
    assert_eq!(watch.told().await, "ADDED new");
    until_live(&hub, OWN_PODS).await;
    assert_eq!(counts(&cloud, PODS).0, seen.0.0, "resumed without a list");
    assert_eq!(counts(&cloud, SECRETS).0, seen.1.0);
}

#[tokio::test]
async fn loss_that_no_probe_has_noticed_costs_no_read() {
    let mut cloud = cloud_with_a_node().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let before = list(&hub.kubelet(), OWN_PODS).await;
    until_live(&hub, OWN_PODS).await;
    cloud.go_away().await;
    let pod = "/api/v1/namespaces/shop/pods/web";
    hub.kubelet().get(pod).await.expect(200);
    assert_eq!(list(&hub.kubelet(), OWN_PODS).await, before);
    watch_from(&hub.kubelet(), OWN_PODS, &before.1).await;
}

#[tokio::test]
async fn selection_that_is_not_complete_is_never_an_empty_list() {
    let mut cloud = cloud_with_a_node().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(PODS, |_| async {
        status_response(&Status::service_unavailable("busy", 1))
    });
    hub.kubelet().get(OWN_PODS).await.expect(503);
    cloud.go_away().await;
    until_cloud_is(&hub, false).await;
    for path in [OWN_PODS, &format!("{OWN_PODS}&watch=1"), SECRET] {
        let answer = hub.kubelet().get(path).await;
        assert!(answer.headers.contains_key("retry-after"), "{path}");
        answer.expect(503);
    }
}

#[tokio::test]
async fn selections_of_one_resource_never_mix() {
    let mut cloud = cloud_with_a_node().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let flannel = hub.component("flanneld/1");
    let by_label = "/api/v1/namespaces/shop/pods?labelSelector=app%3Dweb";
    let selections = [
        (OWN_PODS, vec!["db", "web"]),
        (by_label, vec!["web"]),
        ("/api/v1/namespaces/shop/pods", vec!["db", "elsewhere", "web"]),
        ("/api/v1/namespaces/empty/pods", vec![]),
    ];
    for (path, names) in &selections {
        assert_eq!(list(&flannel, path).await.0, *names, "{path}");
        until_live(&hub, path).await;
    }
    let version = list(&flannel, by_label).await.1;
    let mut watch = watch_from(&flannel, by_label, &version).await;
    let mut left = pod("web", "n1");
    left["metadata"]["labels"] = json!({});
    cloud.put("pods", left);
    assert_eq!(watch.told().await, "DELETED web", "it left the selection");
    cloud.go_away().await;
    until_cloud_is(&hub, false).await;
    for (path, names) in &selections {
        let names: Vec<_> = names.iter().filter(|_| *path != by_label).collect();
        assert_eq!(
            list(&flannel, path).await.0,
            names.iter().map(|name| **name).collect::<Vec<_>>(),
            "{path}"
        );
    }
    // The widest selection says most about an object.
    flannel.get("/api/v1/namespaces/shop/pods/elsewhere").await.expect(200);
    flannel.get("/api/v1/namespaces/shop/pods/unknown").await.expect(404);
}

#[tokio::test]
async fn component_that_is_not_cacheable_reads_at_the_cloud() {
    let cloud = cloud_with_a_node().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.allow("robot", true);
    let robot = hub.bearer("agent/1", "robot");
    for _ in 0..2 {
        assert_eq!(list(&robot, MAPS).await.0, ["settings"]);
    }
    assert_eq!(counts(&cloud, MAPS), (2, 0), "each list is passed on");
    let config = json!({
        "metadata": {"namespace": "kube-system", "name": "yurt-hub-cfg"}, "data": {"cache_agents": "agent, ../x"},
    });
    cloud.put("configmaps", config);
    eventually("the agent must become cacheable", async || {
        list(&robot, MAPS).await;
        let state = hub.state().await;
        Some(()).filter(|()| selection(&state, MAPS_OF_TOKENS)["complete"] == true)
    })
    .await;
    let state = hub.state().await;
    assert!(
        state["troubles"]["cache_agents"]["why"]
            .as_str()
            .unwrap()
            .contains("../x")
    );
}

#[tokio::test]
async fn excluded_component_reads_at_the_cloud_and_nothing_without_it() {
    let mut cloud = cloud_with_a_node().await;
    cloud.allow("ipam", true);
    cloud.put(
        "configmaps",
        json!({
            "metadata": {"namespace": "kube-system", "name": "yurt-hub-cfg"}, "data": {"cache_agents": "*,-calico-ipam"},
        }),
    );
    let hub = TestHub::start(&cloud, &[]).await;
    hub.until("the configuration", |state| {
        state["hubConfig"]["keys"] == json!(["cache_agents"])
    })
    .await;
    let (ipam, other) = (hub.bearer("calico-ipam/1", "ipam"), hub.bearer("calico_node/1", "ipam"));
    assert_eq!(list(&other, MAPS).await.0, ["settings"]);
    until_live(&hub, MAPS_OF_TOKENS).await;
    let before = counts(&cloud, MAPS).0;
    ipam.get_with(MAPS, &[("edge-cache", "true")]).await.expect(200);
    assert_eq!(list(&ipam, MAPS).await.0, ["settings"]);
    assert_eq!(counts(&cloud, MAPS).0, before + 2, "each list is passed on");
    cloud.go_away().await;
    until_cloud_is(&hub, false).await;
    assert_eq!(list(&other, MAPS).await.0, ["settings"]);
    for path in [MAPS.to_owned(), format!("{MAPS}?watch=1"), format!("{MAPS}/settings")] {
        ipam.get(&path).await.expect(503);
    }
}

#[tokio::test]
async fn service_account_that_is_named_is_cached_by_its_name_whatever_its_user_agent_says() {
    let mut cloud = cloud_with_a_node().await;
    let names = ["agent", "ipam"].map(|name| format!("system:serviceaccount:kube-system:{name}"));
    let tokens = names.each_ref().map(|account| {
        let claims = URL_SAFE_NO_PAD.encode(json!({"sub": account}).to_string());
        format!("e30.{claims}.c2ln")
    });
    tokens.iter().for_each(|token| cloud.allow(token, true));
    cloud.put(
        "configmaps",
        json!({
            "metadata": {"namespace": "kube-system", "name": "yurt-hub-cfg"},
            "data": {"cache_agents": format!("{},-{}", names[0], names[1])},
        }),
    );
    let hub = TestHub::start(&cloud, &[]).await;
    hub.until("the configuration", |state| {
        state["hubConfig"]["keys"] == json!(["cache_agents"])
    })
    .await;
    let [agent, ipam] = tokens.each_ref().map(|token| hub.bearer("coredns/1", token));
    let nameless = hub.bearer("my agent/1", &tokens[0]);
    assert_eq!(list(&nameless, MAPS).await.0, ["settings"]);
    until_live(&hub, MAPS_OF_TOKENS).await;
    assert_eq!(list(&ipam, MAPS).await.0, ["settings"]);
    cloud.go_away().await;
    until_cloud_is(&hub, false).await;
    for client in [&agent, &nameless] {
        assert_eq!(list(client, MAPS).await.0, ["settings"]);
    }
    ipam.get(MAPS).await.expect(503);
    let made_up = format!("{}x", tokens[0]);
    hub.bearer("coredns/1", &made_up).get(MAPS).await.expect(429);
}

#[tokio::test]
async fn caller_without_the_right_is_refused_with_and_without_the_cloud() {
    let mut cloud = cloud_with_a_node().await;
    cloud.allow("bad", false);
    let hub = TestHub::start(&cloud, &[]).await;
    assert_eq!(list(&hub.kubelet(), SECRET).await.0, ["db"]);
    until_live(&hub, SECRET).await;
    let (bad, stranger) = (hub.bearer("coredns/1", "bad"), hub.bearer("coredns/1", "stranger"));
    let paths = [SECRET.to_owned(), format!("{SECRET}&watch=1"), format!("{SECRETS}/db")];
    for path in &paths {
        bad.get(path).await.expect(403);
    }
    assert!(
        cloud.seen(SECRETS).iter().any(|seen| seen.user.is_none()),
        "the cloud's own refusal, not one of the hub"
    );
    cloud.go_away().await;
    until_cloud_is(&hub, false).await;
    bad.get(SECRET).await.expect(403);
    for path in &paths {
        let answer = stranger.get(path).await;
        assert_eq!(answer.code, 429, "its rights are not known: {path}");
    }
    assert_eq!(list(&hub.kubelet(), SECRET).await.0, ["db"]);
}

/// The followed selection of the node covers what the pod reads at the cloud.
#[tokio::test]
async fn refusal_of_a_read_at_the_cloud_takes_the_right_to_the_selection_away() {
    let mut cloud = cloud_with_a_node().await;
    cloud.allow("revoked", true);
    let hub = TestHub::start(&cloud, &[]).await;
    assert_eq!(list(&hub.kubelet(), SECRET).await.0, ["db"]);
    until_live(&hub, SECRET).await;
    let (pod, path) = (hub.bearer("agent/1", "revoked"), format!("{SECRETS}/db"));
    pod.get(&path).await.expect(200);
    cloud.allow("revoked", false);
    pod.get(&path).await.expect(403);
    cloud.go_away().await;
    until_cloud_is(&hub, false).await;
    pod.get(&path).await.expect(403);
}

#[tokio::test]
async fn selection_that_the_cloud_forbids_is_passed_on_and_followed_once_it_is_allowed() {
    let cloud = cloud_with_a_node().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(SECRETS, |_| async {
        status_response(&Status::failure(403, "Forbidden", "no relationship found"))
    });
    let answer = hub.kubelet().get(SECRET).await;
    assert_eq!(answer.json()["message"], "no relationship found");
    answer.expect(403);
    let asked = cloud.seen(SECRETS).len();
    hub.kubelet().get(SECRET).await.expect(403);
    assert_eq!(cloud.seen(SECRETS).len(), asked + 1, "the stream pauses");
    cloud.off(SECRETS);
    assert_eq!(list(&hub.kubelet(), SECRET).await.0, ["db"]);
    until_live(&hub, SECRET).await;
}

#[tokio::test]
async fn new_token_of_a_pod_continues_the_stream_of_its_old_one() {
    let mut cloud = cloud_with_a_node().await;
    cloud.allow("first", true);
    let hub = TestHub::start(&cloud, &[]).await;
    let (names, version) = list(&hub.bearer("coredns/1", "first"), MAPS).await;
    assert_eq!(names, ["settings"]);
    until_live(&hub, MAPS_OF_TOKENS).await;
    let mut watch = watch_from(&hub.bearer("coredns/1", "first"), MAPS, &version).await;
    let lists = counts(&cloud, MAPS).0;

    cloud.refuse_token("first");
    cloud.allow("second", true);
    cloud.go_away().await;
    cloud.come_back().await;
    hub.until("the stream must pause", |state| {
        selection(state, MAPS_OF_TOKENS)["live"] == false
    })
    .await;
    until_cloud_is(&hub, true).await;
    let second = hub.bearer("coredns/1", "second");
    let _renewed = eventually("the new token must be known", async || {
        let answer = second.get(&format!("{MAPS}?resourceVersion=0")).await;
        Some(answer).filter(|answer| answer.code == 200)
    })
    .await;
    until_live(&hub, MAPS_OF_TOKENS).await;
    cloud.put("configmaps", named("new"));
    assert_eq!(watch.told().await, "ADDED new");
    let of_second = |seen: &SeenRequest| is_watch(seen) && seen.headers["authorization"] == "Bearer second";
    assert!(cloud.seen(MAPS).iter().any(of_second));
    let of_hub = |seen: &SeenRequest| seen.query.as_deref().unwrap_or_default().contains("limit=");
    assert_eq!(
        cloud.seen(MAPS).iter().filter(|seen| of_hub(seen)).count(),
        lists,
        "no second list"
    );
    let users: Vec<_> = cloud.seen(MAPS).into_iter().filter_map(|seen| seen.user).collect();
    assert!(users.is_empty(), "a pod's reads never use the node's rights: {users:?}");
}

/// A pod may read what its node may not.
#[tokio::test]
async fn selection_of_a_token_shows_the_node_nothing_that_it_may_not_read() {
    let mut cloud = cloud_with_a_node().await;
    cloud.allow("first", true);
    cloud.allow(NODE_USER, false);
    cloud.forbid_path(NODE_USER, MAPS);
    let mut hub = TestHub::start(&cloud, &[]).await;
    assert_eq!(list(&hub.bearer("coredns/1", "first"), MAPS).await.0, ["settings"]);
    until_live(&hub, MAPS_OF_TOKENS).await;
    let paths = [
        format!("{MAPS}?resourceVersion=0"),
        format!("{MAPS}?watch=1&resourceVersion=0"),
    ];
    for path in &paths {
        hub.kubelet().get(path).await.expect(403);
    }
    cloud.go_away().await;
    until_cloud_is(&hub, false).await;
    for _ in 0..2 {
        for path in &paths {
            hub.kubelet().get(path).await.expect(403);
        }
        let one = hub.kubelet().get(&format!("{MAPS}/settings")).await;
        assert_eq!(one.code, 503, "a right that the cloud was not asked about");
        assert_eq!(list(&hub.bearer("coredns/1", "first"), MAPS).await.0, ["settings"]);
        hub.restart().await;
        until_cloud_is(&hub, false).await;
    }
}

#[tokio::test]
async fn node_reads_a_selection_of_a_token_with_its_own_right() {
    let mut cloud = cloud_with_a_node().await;
    cloud.allow("first", true);
    cloud.allow(NODE_USER, true);
    let mut hub = TestHub::start(&cloud, &[]).await;
    assert_eq!(list(&hub.bearer("coredns/1", "first"), MAPS).await.0, ["settings"]);
    assert_eq!(list(&hub.kubelet(), MAPS).await.0, ["settings"]);
    let own = cloud.reviews("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
    assert_eq!(own.len(), 2, "one of each reader: {own:?}");
    until_live(&hub, MAPS_OF_TOKENS).await;
    cloud.go_away().await;
    for _ in 0..2 {
        until_cloud_is(&hub, false).await;
        assert_eq!(list(&hub.kubelet(), MAPS).await.0, ["settings"]);
        hub.restart().await;
    }
}

/// The stream of a selection that the node reads has the node's rights, also for callers with tokens.
#[tokio::test]
async fn selection_of_the_node_is_never_filled_with_the_rights_of_a_token() {
    let cloud = cloud_with_a_node().await;
    cloud.allow("first", true);
    let mut hub = TestHub::start(&cloud, &[]).await;
    assert_eq!(list(&hub.kubelet(), MAPS).await.0, ["settings"]);
    until_live(&hub, MAPS).await;
    hub.restart().await;
    assert_eq!(list(&hub.bearer("coredns/1", "first"), MAPS).await.0, ["settings"]);
    until_live(&hub, MAPS).await;
    let watches = cloud.seen(MAPS).into_iter().filter(is_watch);
    let users: Vec<_> = watches.map(|seen| seen.user).collect();
    assert_eq!(users, [Some(NODE_USER.to_owned()), Some(NODE_USER.to_owned())]);
}

#[tokio::test]
async fn names_made_up_by_a_client_stay_names() {
    let mut cloud = cloud_with_a_node().await;
    let mut hub = TestHub::start(&cloud, &[]).await;
    let hostile = "/api/v1/namespaces/a%23b%3Fc%26d/pods?fieldSelector=spec.nodeName%3D..%252F%23%26watch";
    assert_eq!(list(&hub.kubelet(), hostile).await.0, Vec::<String>::new());
    hub.kubelet().get("/api/v1/namespaces/..%2F..%2Fx/pods").await;
    let state = hub.state().await;
    let names: Vec<_> = state["cache"]["selections"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    assert!(
        names.iter().all(|name| !name.contains("..") || name.contains("..%25")),
        "{names:?}"
    );
    cloud.go_away().await;
    hub.restart().await;
    until_cloud_is(&hub, false).await;
    assert_eq!(
        list(&hub.kubelet(), hostile).await.0,
        Vec::<String>::new(),
        "complete, and really empty"
    );
}

#[tokio::test]
async fn what_does_not_fit_is_passed_on_and_reported() {
    let cloud = cloud_with_a_node().await;
    let large = "x".repeat(200_000);
    for number in 0..8 {
        let mut map = named(&format!("m{number}"));
        map["data"] = json!({ "a": large });
        cloud.put("configmaps", map);
    }
    let hub = TestHub::start(&cloud, &["--max-cache-bytes=1048576"]).await;
    for _ in 0..2 {
        assert_eq!(list(&hub.kubelet(), MAPS).await.0.len(), 9);
    }
    let state = hub.state().await;
    assert_eq!(selection(&state, MAPS)["complete"], false);
    let why = state["troubles"][format!("size of {MAPS}")]["why"].as_str().unwrap();
    assert!(why.contains("--max-cache-bytes=1048576"), "{why}");
    assert_eq!(list(&hub.kubelet(), SECRET).await.0, ["db"], "smaller ones fit");
    until_live(&hub, SECRET).await;
}

#[tokio::test]
async fn cloud_that_came_back_from_a_backup_begins_a_new_generation_of_each_selection() {
    let mut cloud = cloud_with_a_node().await;
    let backup = cloud.backup();
    let hub = TestHub::start(&cloud, &[]).await;
    // Its view waits for the commit of the new generation.
    let reader = hub.kubelet();
    assert_eq!(list(&reader, OWN_PODS).await.0, ["db", "web"]);
    until_live(&hub, OWN_PODS).await;
    cloud.put("pods", pod("lost", "n1"));
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "lost"}}));
    let has_three =
        |state: &Value| selection(state, OWN_PODS)["objects"] == 3 && state["collections"]["services"]["objects"] == 1;
    hub.until("the pod must arrive", has_three).await;
    let version = list(&reader, OWN_PODS).await.1;
    cloud.go_away().await;
    cloud.restore(backup);
    until_cloud_is(&hub, false).await;
    cloud.come_back().await;
    let mut watch = watch_from(&reader, OWN_PODS, &version).await;
    hub.until("the past must be restored", |state| {
        selection(state, OWN_PODS)["objects"] == 2
    })
    .await;
    // The stream of the other history ends; the next one says what is gone.
    while let Some(event) = watch.next().await {
        assert_eq!(event.kind, "ERROR");
    }
    assert_eq!(list(&reader, OWN_PODS).await.0, ["db", "web"]);
}

#[tokio::test]
async fn own_writes_are_in_the_next_list() {
    let cloud = cloud_with_a_node().await;
    let hub = TestHub::start(&cloud, &[]).await;
    // No filter is bound to its pods: the kubelet's reads wait for the view.
    let reader = hub.component("flanneld/1");
    list(&reader, OWN_PODS).await;
    until_live(&hub, OWN_PODS).await;
    // The cloud answers before its watches know.
    let path = "/api/v1/namespaces/shop/pods/web/status";
    let mut written = pod("web", "n1");
    written["apiVersion"] = json!("v1");
    written["kind"] = json!("Pod");
    written["metadata"]["resourceVersion"] = json!("99999999");
    let answer = written.to_string();
    cloud.on(path, move |_| {
        let answer = answer.clone();
        async move { yurt_runtime::http::json(StatusCode::OK, answer) }
    });
    hub.kubelet()
        .put(path, "application/json", written.to_string())
        .await
        .expect(200);
    let lists = counts(&cloud, PODS).0;
    reader.get(OWN_PODS).await.expect(200);
    assert_eq!(
        counts(&cloud, PODS).0,
        lists + 1,
        "only the cloud has that state already"
    );
    list(&reader, OWN_PODS).await;
    assert_eq!(counts(&cloud, PODS).0, lists + 1, "it accepts an older state");
}
