//! Filtered watches over a restart of the hub: a client resumes at its RV and ends with exactly the view that a fresh
//! filtered list gives, whatever changed while the hub was stopped.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use yurt_test_support::{PATIENCE, eventually};

use super::client::{Event, Watch};
use super::cloud::Cloud;
use super::configuring::configure;
use super::harness::TestHub;

const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
const POOL: &[&str] = &["--nodepool-name=hangzhou"];
/// Address that only objects have as they are without filters.
const UNFILTERED: &str = "203.0.113.9";

/// A client that lists once and then only watches at its last RV.
struct Informer {
    agent: &'static str,
    path: &'static str,
    at: String,
    known: BTreeMap<String, Value>,
    /// Types of the received events by name of the object.
    told: BTreeMap<String, Vec<String>>,
}

// === impl Informer ===

impl Informer {
    async fn list(hub: &TestHub, agent: &'static str, path: &'static str) -> Self {
        let list = hub.component(agent).get(path).await.json();
        let mut informer = Self {
            agent,
            path,
            at: version(&list),
            known: BTreeMap::new(),
            told: BTreeMap::new(),
        };
        informer.known = informer.fresh(hub).await;
        informer
    }

    /// Objects of a list without an RV, by name.
    async fn fresh(&self, hub: &TestHub) -> BTreeMap<String, Value> {
        let list = hub.component(self.agent).get(self.path).await.json();
        let items = list["items"].as_array().expect("a list").iter();
        items.map(|item| (name(item), filtered(item))).collect()
    }

    async fn resume(&self, hub: &TestHub) -> Watch {
        let separator = if self.path.contains('?') { '&' } else { '?' };
        let at = format!("resourceVersion={}&allowWatchBookmarks=true", self.at);
        let path = format!("{}{separator}{at}", self.path);
        hub.component(self.agent).watch(&path).await
    }

    /// A handler is not called for a state under the RV that the client has.
    fn take(&mut self, event: &Event) {
        self.at = version(&event.object);
        if event.kind == "BOOKMARK" {
            return;
        }
        let (name, object) = (name(&event.object), filtered(&event.object));
        self.told.entry(name.clone()).or_default().push(event.kind.clone());
        match event.kind.as_str() {
            "DELETED" => drop(self.known.remove(&name)),
            "ADDED" | "MODIFIED" => {
                let is_other = self.known.get(&name).map(version) != Some(self.at.clone());
                if is_other {
                    self.known.insert(name, object);
                }
            }
            other => panic!("{other}: {}", event.object),
        }
    }

    /// Resumes, and reads what the hub sends before it continues with changes.
    async fn catch_up(&mut self, hub: &TestHub) -> Watch {
        let mut watch = self.resume(hub).await;
        loop {
            let event = watch.next().await.expect("the stream must go on");
            self.take(&event);
            if event.kind == "BOOKMARK" {
                return watch;
            }
        }
    }

    /// Reads until the objects are exactly those of a fresh list, which has this content. Watches again if a stream
    /// ends.
    async fn settle(&mut self, hub: &TestHub, watch: &mut Watch, expected: &[(&str, &str)]) {
        let reading = async {
            while !self.has(expected) || self.known != self.fresh(hub).await {
                match watch.next().await {
                    Some(event) => self.take(&event),
                    None => *watch = self.resume(hub).await,
                }
            }
        };
        if tokio::time::timeout(PATIENCE, reading).await.is_err() {
            let fresh = self.fresh(hub).await;
            panic!(
                "{} of {}: {:?}\nlist: {fresh:?}\nevents: {:?}",
                self.agent, self.path, self.known, self.told
            );
        }
    }

    /// True if the objects have these names and contents.
    fn has(&self, expected: &[(&str, &str)]) -> bool {
        let known = self.known.iter().map(|(name, object)| (name.clone(), content(object)));
        known.eq(expected
            .iter()
            .map(|(name, content)| ((*name).to_owned(), (*content).to_owned())))
    }

    /// Types of the events of an object.
    fn events_of(&self, name: &str) -> Vec<&str> {
        let events = self.told.get(name).map(Vec::as_slice).unwrap_or_default();
        events.iter().map(String::as_str).collect()
    }
}

/// Returns the object, which must have nothing that a filter removes.
fn filtered(object: &Value) -> Value {
    assert!(!object.to_string().contains(UNFILTERED), "{object}");
    object.clone()
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"]
        .as_str()
        .expect("an RV")
        .to_owned()
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().expect("a name").to_owned()
}

/// The part that the tests change: the type of a Service, the nodes of a slice, phase and network of a pod.
fn content(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match object["kind"].as_str() {
        Some("Service") => text(&object["spec"]["type"]),
        Some("EndpointSlice") => {
            let endpoints = object["endpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
            let nodes: Vec<_> = endpoints.iter().map(|endpoint| text(&endpoint["nodeName"])).collect();
            nodes.join(" ")
        }
        Some("Pod") => match object["spec"]["hostNetwork"] == true {
            true => "host network".to_owned(),
            false => text(&object["status"]["phase"]),
        },
        _ => panic!("{object}"),
    }
}

fn service(name: &str, ty: &str, topology: Option<&str>) -> Value {
    let mut service = json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"type": ty}});
    if let Some(topology) = topology {
        service["metadata"]["annotations"] = json!({"openyurt.io/topologyKeys": topology});
    }
    service
}

/// A Service that kube-proxy does not see.
fn hidden(name: &str) -> Value {
    let mut service = service(name, "LoadBalancer", None);
    service["spec"]["loadBalancerIP"] = UNFILTERED.into();
    service
}

/// A slice of `service` with an endpoint on each of these nodes. n9 is in no pool.
fn slice(name: &str, service: &str, nodes: &[&str]) -> Value {
    let address = |node: &str| if node == "n9" { UNFILTERED } else { "10.1.0.1" };
    let endpoints = nodes
        .iter()
        .map(|node| json!({"addresses": [address(node)], "nodeName": node}));
    let labels = json!({"kubernetes.io/service-name": service});
    json!({"metadata": {"namespace": "shop", "name": name, "labels": labels}, "addressType": "IPv4",
        "endpoints": endpoints.collect::<Vec<_>>()})
}

/// A pod of this node that finds kube-apiserver at [`UNFILTERED`].
fn pod(name: &str, phase: &str) -> Value {
    let env = json!([{"name": "KUBERNETES_SERVICE_HOST", "value": UNFILTERED}]);
    json!({"metadata": {"namespace": "shop", "name": name, "uid": format!("u-{name}")},
        "spec": {"nodeName": "n1", "containers": [{"name": "a", "env": env}]}, "status": {"phase": phase}})
}

fn put_node(cloud: &Cloud, name: &str, pool: &str) {
    let labels = json!({"apps.openyurt.io/nodepool": pool});
    cloud.put("nodes", json!({"metadata": {"name": name, "labels": labels}}));
}

/// A cloud with n1 and n2 in the pool, and Service web whose topology is the pool.
async fn cloud() -> Cloud {
    let cloud = Cloud::start().await;
    put_node(&cloud, "n1", "hangzhou");
    put_node(&cloud, "n2", "hangzhou");
    cloud.put("services", service("web", "ClusterIP", Some("openyurt.io/nodepool")));
    cloud
}

/// Objects of all three resources that stay, leave, enter or go with [`change`].
async fn cloud_with_objects() -> Cloud {
    let cloud = cloud().await;
    for name in ["goes", "leaves", "stays"] {
        cloud.put("services", service(name, "ClusterIP", None));
    }
    for name in ["enters", "hidden"] {
        cloud.put("services", hidden(name));
    }
    cloud.put("endpointslices", slice("goes", "web", &["n1"]));
    cloud.put("endpointslices", slice("leaves", "web", &["n1", "n9"]));
    cloud.put("endpointslices", slice("stays", "web", &["n1", "n9"]));
    cloud.put("endpointslices", slice("enters", "unknown", &["n2", "n9"]));
    cloud.put("pods", pod("goes", "Pending"));
    cloud.put("pods", pod("stays", "Pending"));
    cloud
}

/// Objects leave the views, enter them, are created and deleted.
fn change(cloud: &Cloud) {
    cloud.put("services", hidden("leaves"));
    cloud.put("services", service("enters", "ClusterIP", None));
    cloud.put("services", hidden("new-hidden"));
    cloud.delete("services", "shop", "goes");
    cloud.put("services", service("new", "ClusterIP", None));
    cloud.put("endpointslices", slice("leaves", "unknown", &["n1", "n9"]));
    cloud.put("endpointslices", slice("enters", "web", &["n2", "n9"]));
    cloud.put("endpointslices", slice("stays", "web", &["n1", "n2", "n9"]));
    cloud.delete("endpointslices", "shop", "goes");
    cloud.put("endpointslices", slice("new", "web", &["n2", "n9"]));
    cloud.put("pods", pod("stays", "Running"));
    cloud.delete("pods", "shop", "goes");
    cloud.put("pods", pod("new", "Pending"));
}

/// Contents of one view before and after [`change`].
type Contents = [&'static [(&'static str, &'static str)]; 2];

const VIEWS: [(&str, &str, Contents); 3] = [
    (
        "kube-proxy",
        SERVICES,
        [
            &[
                ("goes", "ClusterIP"),
                ("leaves", "ClusterIP"),
                ("stays", "ClusterIP"),
                ("web", "ClusterIP"),
            ],
            &[
                ("enters", "ClusterIP"),
                ("new", "ClusterIP"),
                ("stays", "ClusterIP"),
                ("web", "ClusterIP"),
            ],
        ],
    ),
    (
        "kube-proxy",
        SLICES,
        [
            &[("goes", "n1"), ("leaves", "n1"), ("stays", "n1")],
            &[("enters", "n2"), ("new", "n2"), ("stays", "n1 n2")],
        ],
    ),
    (
        "kubelet",
        PODS,
        [
            &[("goes", "Pending"), ("stays", "Pending")],
            &[("new", "Pending"), ("stays", "Running")],
        ],
    ),
];

async fn informers(hub: &TestHub) -> Vec<(Informer, Contents)> {
    let mut informers = Vec::new();
    for (agent, path, contents) in VIEWS {
        let informer = Informer::list(hub, agent, path).await;
        assert!(informer.has(contents[0]), "{path}: {:?}", informer.known);
        informers.push((informer, contents));
    }
    hub.until("the selection must be complete", |state| {
        state["cache"]["selections"][PODS]["complete"] == true
    })
    .await;
    informers
}

/// The events of [`change`]: a restarted hub does not know which objects a client holds, so an entered one may be
/// MODIFIED, and an object that the client never had may be DELETED.
fn check_events(informer: &Informer) {
    let is_of = |name: &str, allowed: &[&str]| informer.events_of(name).iter().all(|kind| allowed.contains(kind));
    let told = &informer.told;
    assert!(is_of("stays", &["MODIFIED"]), "{told:?}");
    assert!(
        is_of("hidden", &["DELETED"]) && is_of("new-hidden", &["DELETED"]),
        "{told:?}"
    );
    for name in ["enters", "new"]
        .iter()
        .filter(|name| informer.known.contains_key(**name))
    {
        let last = informer.events_of(name).last().copied();
        assert!(matches!(last, Some("ADDED" | "MODIFIED")), "{name}: {told:?}");
    }
    for name in ["leaves", "goes"].iter().filter(|name| told.contains_key(**name)) {
        assert_eq!(informer.events_of(name).last(), Some(&"DELETED"), "{told:?}");
    }
}

/// Changes that the hub finds in the cloud at its start.
#[tokio::test]
async fn client_resumes_after_a_restart_and_has_the_view_of_a_fresh_list() {
    let cloud = cloud_with_objects().await;
    let mut hub = TestHub::start(&cloud, POOL).await;
    let informers = informers(&hub).await;
    hub.stop().await;
    change(&cloud);
    hub.restart().await;
    // The views begin after these changes: they never show what has left.
    for path in [SERVICES, SLICES] {
        let reader = hub.component("flanneld");
        eventually("the replicas must have the changes", async || {
            let names = reader.get(path).await.names();
            names.iter().any(|name| name == "new").then_some(())
        })
        .await;
    }
    for (mut informer, [_, after]) in informers {
        let mut watch = informer.catch_up(&hub).await;
        informer.settle(&hub, &mut watch, after).await;
        check_events(&informer);
        // Nothing that came later is to be taken back.
        informer.told.clear();
        let last = [after, &[("zz", after[0].1)]].concat();
        match informer.path {
            SERVICES => cloud.put("services", service("zz", "ClusterIP", None)),
            SLICES => cloud.put("endpointslices", slice("zz", "web", &["n2", "n9"])),
            _ => cloud.put("pods", pod("zz", "Pending")),
        };
        informer.settle(&hub, &mut watch, &last).await;
        assert_eq!(informer.events_of("zz")[0], "ADDED");
        let is_deleted = informer.told.values().flatten().any(|kind| kind == "DELETED");
        assert!(!is_deleted, "{:?}", informer.told);
    }
}

/// The views come from the disk, then follow the cloud when it is back, on the same streams.
#[tokio::test]
async fn client_resumes_after_a_restart_without_the_cloud() {
    let mut cloud = cloud_with_objects().await;
    let mut hub = TestHub::start(&cloud, POOL).await;
    let informers = informers(&hub).await;
    hub.stop().await;
    cloud.go_away().await;
    hub.restart().await;
    let mut open = Vec::new();
    for (mut informer, [before, after]) in informers {
        let watch = informer.catch_up(&hub).await;
        assert!(informer.has(before), "{:?}", informer.known);
        assert_eq!(informer.known, informer.fresh(&hub).await);
        for (name, _) in before {
            let events = informer.events_of(name);
            assert!(events.iter().all(|kind| *kind == "MODIFIED"), "{name}: {events:?}");
        }
        open.push((informer, watch, after));
    }
    change(&cloud);
    cloud.come_back().await;
    for (mut informer, mut watch, after) in open {
        informer.settle(&hub, &mut watch, after).await;
        check_events(&informer);
    }
}

/// A slice leaves with its Service and enters with it, although it does not change itself.
#[tokio::test]
async fn services_that_came_and_went_while_the_hub_was_stopped_change_the_view() {
    let cloud = cloud().await;
    cloud.put("endpointslices", slice("enters", "late", &["n1", "n2", "n9"]));
    cloud.put("endpointslices", slice("leaves", "web", &["n1", "n2", "n9"]));
    cloud.put("endpointslices", slice("stays", "other", &["n1", "n2"]));
    // Later than the slices, so that a view has an RV for what it changes.
    cloud.put("services", service("other", "ClusterIP", None));
    let mut hub = TestHub::start(&cloud, POOL).await;
    let mut informer = Informer::list(&hub, "kube-proxy", SLICES).await;
    let before = [("leaves", "n1 n2"), ("stays", "n1 n2")];
    assert!(informer.has(&before), "{:?}", informer.known);
    hub.stop().await;
    cloud.delete("services", "shop", "web");
    cloud.put(
        "services",
        service("other", "ClusterIP", Some("kubernetes.io/hostname")),
    );
    cloud.put("services", service("late", "ClusterIP", Some("openyurt.io/nodepool")));
    hub.restart().await;
    // The view begins with the changed Services, under the RVs that the client has.
    let reader = hub.component("flanneld");
    eventually("the Services must arrive", async || {
        (reader.get(SERVICES).await.names() == ["late", "other"]).then_some(())
    })
    .await;
    let after = [("enters", "n1 n2"), ("stays", "n1")];
    let mut watch = informer.catch_up(&hub).await;
    informer.settle(&hub, &mut watch, &after).await;
    assert_eq!(informer.events_of("leaves").last(), Some(&"DELETED"));
    assert!(informer.events_of("stays").iter().all(|kind| *kind == "MODIFIED"));
}

#[tokio::test]
async fn nodes_that_left_and_joined_the_pool_while_the_hub_was_stopped_change_the_view() {
    let cloud = cloud().await;
    cloud.put("endpointslices", slice("web-1", "web", &["n1", "n2", "n4", "n9"]));
    cloud.put("endpointslices", slice("web-2", "web", &["n1", "n9"]));
    cloud.put("services", service("other", "ClusterIP", None));
    let mut hub = TestHub::start(&cloud, POOL).await;
    let mut informer = Informer::list(&hub, "kube-proxy", SLICES).await;
    assert!(
        informer.has(&[("web-1", "n1 n2"), ("web-2", "n1")]),
        "{:?}",
        informer.known
    );
    hub.stop().await;
    put_node(&cloud, "n2", "beijing");
    put_node(&cloud, "n4", "hangzhou");
    hub.restart().await;
    // The view begins with the changed members, under the RVs that the client has.
    hub.until("the members must arrive", |state| {
        state["collections"]["members"]["rv"] == cloud.version()
    })
    .await;
    let after = [("web-1", "n1 n4"), ("web-2", "n1")];
    let mut watch = informer.catch_up(&hub).await;
    informer.settle(&hub, &mut watch, &after).await;
    for name in ["web-1", "web-2"] {
        assert!(informer.events_of(name).iter().all(|kind| *kind == "MODIFIED"));
    }
}

/// One component loses a filter and keeps another one, one gets its first filter, one gets a further filter.
#[tokio::test]
async fn configuration_that_changed_while_the_hub_was_stopped_changes_the_views() {
    let cloud = cloud().await;
    let metadata = json!({"name": "hangzhou"});
    cloud.put(
        "nodepools",
        json!({"apiVersion": "apps.openyurt.io/v1beta2", "kind": "NodePool", "metadata": metadata,
            "spec": {"hostNetwork": true}, "status": {"nodes": ["n1", "n2"]}}),
    );
    cloud.put("pods", pod("web", "Running"));
    cloud.put("services", service("balanced", "LoadBalancer", None));
    let mut hub = TestHub::start(&cloud, POOL).await;
    let (plain, all) = (
        &[("web", "ClusterIP")][..],
        &[("balanced", "LoadBalancer"), ("web", "ClusterIP")][..],
    );
    let (own, host) = (&[("web", "Running")][..], &[("web", "host network")][..]);
    let views = [
        ("kube-proxy", SERVICES, plain, all),
        ("flanneld", SERVICES, all, plain),
        ("kubelet", PODS, own, host),
    ];
    let mut informers = Vec::new();
    for (agent, path, before, after) in views {
        let informer = Informer::list(&hub, agent, path).await;
        assert!(informer.has(before), "{agent}: {:?}", informer.known);
        informers.push((informer, after));
    }
    hub.until("the selection must be complete", |state| {
        state["cache"]["selections"][PODS]["complete"] == true
    })
    .await;
    hub.stop().await;
    configure(
        &cloud,
        &json!({"discardcloudservice": "-kube-proxy, flanneld", "hostnetworkpropagation": "kubelet"}),
    );
    hub.restart().await;
    for (mut informer, after) in informers {
        let mut watch = informer.resume(&hub).await;
        informer.settle(&hub, &mut watch, after).await;
        if informer.agent == "flanneld" {
            assert_eq!(informer.events_of("balanced").last(), Some(&"DELETED"));
        }
    }
}
