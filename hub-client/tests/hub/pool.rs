//! A pool for tests of the election and of the leader's work: a cloud, perhaps behind two servers, and a coordinator.
//! The coordinator keeps leases, serves the test's objects and accepts everything that is fed.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use yurt_apimachinery::time::MicroTime;
use yurt_hub_client::pool::lease_client::from_micros;
use yurt_pool_protocol::heartbeat::UnixMicros;
use yurt_runtime::http::{json as answer_json, read_body};
use yurt_test_support::{TestDir, eventually};

use super::cloud::leases::ELECTION;
use super::cloud::{Cloud, SeenRequest};
use super::harness::TestHub;

/// Path of the collection of the election lease at the coordinator.
pub(crate) const ELECTION_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
/// Path of all node leases.
pub(crate) const NODE_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// User that forwards beats of others.
pub(crate) const DELEGATE: &str = "yurt-hub-delegate";
/// The coordinator's store at the start.
pub(crate) const STORE: &str = "store-of-the-test";
pub(super) const POOL: &str = "hangzhou";
const FEED: &str = "/yurt/v1/feed";
/// Collections fed in a pool without additional resources.
const FED: [&str; 4] = ["members", "services", "endpoints", "endpointslices.discovery.k8s.io"];

/// The pool; its hubs are started one by one.
pub(crate) struct Pool {
    pub(crate) cloud: Cloud,
    pub(crate) coordinator: Cloud,
    fed: Fed,
    folder: TestDir,
}

/// Bodies of feed calls, by path below the feed's.
type Fed = Arc<Mutex<BTreeMap<String, Vec<Value>>>>;

// === impl Pool ===

impl Pool {
    /// Starts a pool with the members n1, n2 and n3; no hub runs yet, and the lease is free.
    pub(crate) async fn start() -> Self {
        let cloud = Cloud::start().await;
        let coordinator = cloud.start_beside().await;
        Self::of(cloud, coordinator)
    }

    /// The same, but the coordinator serves the cloud's objects, as if fed without delay.
    pub(crate) async fn start_fed() -> Self {
        let cloud = Cloud::start().await;
        let coordinator = cloud.another_server().await;
        Self::of(cloud, coordinator)
    }

    fn of(cloud: Cloud, coordinator: Cloud) -> Self {
        for node in ["n1", "n2", "n3"] {
            let label = json!({"apps.openyurt.io/nodepool": POOL});
            cloud.put("nodes", json!({"metadata": {"name": node, "labels": label}}));
            coordinator.put("members", json!({"metadata": {"name": node}}));
        }
        let fed = Fed::default();
        let calls = FED.iter().flat_map(|name| {
            let calls = ["events", "snapshot", "snapshot/bodies"];
            calls.map(|call| format!("{name}/{call}"))
        });
        for call in calls.chain(["scope".to_owned()]) {
            let (path, fed) = (format!("{FEED}/{call}"), fed.clone());
            coordinator.on(&path, move |request| {
                let (call, fed) = (call.clone(), fed.clone());
                async move {
                    let body = read_body(request.into_body(), 1 << 20).await.unwrap();
                    let body = serde_json::from_slice(&body).unwrap();
                    fed.lock().entry(call).or_default().push(body);
                    answer_json(StatusCode::OK, json!({"missing": []}).to_string())
                }
            });
        }
        let folder = TestDir::new();
        say_store(&coordinator, STORE);
        let delegate = cloud.pki().client(DELEGATE, &[]);
        cloud
            .pki()
            .write_kubeconfig(&folder, "delegate.conf", &cloud.url(), &delegate);
        Self {
            cloud,
            coordinator,
            fed,
            folder,
        }
    }

    /// Starts the hub of `node`, which reaches the cloud at `servers`.
    pub(crate) async fn hub_at(&self, node: &str, servers: &str, more: &[&str]) -> TestHub {
        let delegate = self.folder.path().join("delegate.conf");
        let flags = [
            format!("--nodepool-name={POOL}"),
            "--enable-coordinator".to_owned(),
            format!("--coordinator-server-addr={}", self.coordinator.url()),
            format!("--delegate-kubeconfig={}", delegate.display()),
            "--enable-relay=false".to_owned(),
        ];
        let flags: Vec<_> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        TestHub::start_node(&self.cloud, node, servers, &flags).await
    }

    /// Starts the hub of `node`.
    pub(crate) async fn hub(&self, node: &str, more: &[&str]) -> TestHub {
        self.hub_at(node, &self.cloud.url(), more).await
    }

    /// Starts a hub of `node` that leads and has fed all collections.
    pub(crate) async fn leader(&self, node: &str) -> TestHub {
        let hub = self.hub(node, &[]).await;
        self.until_held_by(node).await;
        self.until_fed().await;
        hub
    }

    /// Waits until all collections were fed to the present store: as snapshots, then as events.
    pub(crate) async fn until_fed(&self) {
        eventually("all must be fed", async || {
            let fed = self.fed.lock();
            let is_fed = |name: &&str| {
                let calls = ["snapshot", "events"].map(|call| format!("{name}/{call}"));
                calls.iter().all(|call| fed.contains_key(call))
            };
            FED.iter().all(is_fed).then_some(())
        })
        .await;
    }

    /// Holder of the election lease; empty if it is free.
    pub(crate) fn holder(&self) -> String {
        let lease = self.election();
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    }

    /// The election lease; null if it does not exist.
    pub(crate) fn election(&self) -> Value {
        let lease = self.coordinator.get("leases", Some(ELECTION.0), ELECTION.1);
        lease.unwrap_or_default()
    }

    /// Waits until the hub of `node` holds the lease.
    pub(crate) async fn until_held_by(&self, node: &str) {
        let prefix = format!("{node}_");
        eventually("the lease must change hands", async || {
            self.holder().starts_with(&prefix).then_some(())
        })
        .await;
    }

    /// Writes the election lease for another holder; an empty name frees it.
    pub(crate) fn give_lease_to(&self, holder: &str) {
        let mut lease = self.election();
        lease["metadata"] = json!({"namespace": ELECTION.0, "name": ELECTION.1});
        lease["spec"]["holderIdentity"] = json!(holder);
        lease["spec"]["leaseDurationSeconds"] = json!(15);
        let last = lease["spec"]["renewTime"].as_str().unwrap_or_default().to_owned();
        lease["spec"]["renewTime"] = json!(later(&last));
        self.coordinator.put_lease(lease);
    }

    /// Writes the `number`th beat of `node`, with a request to forward it, into the pool.
    pub(crate) fn delegated_beat(&self, node: &str, number: u64) {
        let annotations = json!({"openyurt.io/delegate-heartbeat": "true"});
        let metadata = json!({"namespace": "kube-node-lease", "name": node, "annotations": annotations});
        let spec = json!({"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": time(number)});
        self.coordinator.put_lease(json!({"metadata": metadata, "spec": spec}));
    }

    /// Gives the coordinator this store, which is empty, from now on.
    pub(crate) fn new_store(&self, store: &str) {
        say_store(&self.coordinator, store);
        self.fed.lock().clear();
    }

    /// Lets the coordinator's state say that it has the members up to where they were fed.
    pub(crate) fn hold_members(&self) {
        let up_to = self.fed("members/events").last().unwrap()["upTo"].clone();
        let held = json!({"appliedUpTo": up_to, "durableUpTo": up_to, "complete": true, "generation": 0});
        let state = json!({"store": STORE, "versions": [1], "collections": {"members": held}});
        say_state(&self.coordinator, &state);
    }

    /// Bodies fed by calls of this path.
    pub(crate) fn fed(&self, call: &str) -> Vec<Value> {
        self.fed.lock().get(call).cloned().unwrap_or_default()
    }

    /// Requests of the hub of `node` to the coordinator about leases, watches included.
    pub(crate) fn asked_about_leases(&self, node: &str) -> Vec<SeenRequest> {
        let user = format!("system:node:{node}");
        let is_it = |seen: &SeenRequest| seen.user.as_ref() == Some(&user) && seen.path.contains("/leases");
        self.coordinator.all_seen().into_iter().filter(is_it).collect()
    }
}

fn say_store(coordinator: &Cloud, store: &str) {
    coordinator.set_store(store);
    say_state(coordinator, &json!({"store": store, "versions": [1]}));
}

fn say_state(coordinator: &Cloud, state: &Value) {
    let state = state.to_string();
    coordinator.on(FEED, move |_| {
        let state = state.clone();
        async move { answer_json(StatusCode::OK, state) }
    });
}

/// Returns a time that increases with the number.
fn time(number: u64) -> String {
    format!(
        "2026-01-01T{:02}:{:02}:{:02}.000000Z",
        number / 3600 % 24,
        number / 60 % 60,
        number % 60
    )
}

/// Returns a time after `last`, if that is a time.
fn later(last: &str) -> String {
    let micros = MicroTime::parse(last).map_or(0, |time| UnixMicros::from(time).0);
    from_micros(micros + 1).to_string()
}
