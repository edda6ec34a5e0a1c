//! Changes in the cloud while faults occur: Services, EndpointSlices and NodePools are created, changed and deleted at
//! a steady pace. At times there is a huge EndpointSlice.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use yurt_testbed::api::{Api, refusal};
use yurt_testbed::sample::NAMESPACE;

use super::environment::Environment;
use super::filtered::{NODE_POOL, SWITCHED_SERVICE, TOPOLOGY_KEYS};
use super::history::MARK;

/// Pause between two writes.
const PACE: Duration = Duration::from_millis(25);
/// Pause after a write without an answer: the cloud is unavailable.
const AWAY: Duration = Duration::from_millis(200);
/// Time until the cloud has taken the last writes of a run.
const END_LIMIT: Duration = Duration::from_secs(90);
/// Objects of each kind that come and go.
const NAMES: u64 = 12;

/// The huge object.
const HUGE: &str = "chaos-huge";
/// One write in so many is for the huge object.
const HUGE_SHARE: u64 = 16;
/// One write in so many switches the topology of a Service, which changes what filters show of its slices.
const TOPOLOGY_SHARE: u64 = 24;
/// Its endpoints: the limit of Kubernetes.
const HUGE_ENDPOINTS: u32 = 1_000;

/// Parameters of the traffic.
struct Plan {
    seed: u64,
    /// The mark of the first write; later ones count on.
    first: u64,
    /// Collections to write.
    collections: Vec<&'static str>,
    /// True while there shall be a huge object.
    huge: watch::Receiver<bool>,
}

/// Totals of the traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) created: u64,
    pub(super) changed: u64,
    pub(super) deleted: u64,
    /// Writes that the cloud did not answer.
    pub(super) failed: u64,
}

/// Writes at the cloud, until this is dropped.
pub(super) struct Traffic {
    written: watch::Receiver<Written>,
    _ends: oneshot::Sender<()>,
}

/// Kind of object that a write changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Service,
    Slice,
    Pool,
}

/// The writing client.
struct Writer {
    cloud: Api,
    random: fastrand::Rng,
    kinds: Vec<Kind>,
    written: Written,
}

// === impl Written ===

impl Written {
    /// Writes that arrived.
    pub(super) fn total(self) -> u64 {
        self.created + self.changed + self.deleted
    }
}

// === impl Traffic ===

impl Traffic {
    /// Starts to write into these collections, from a seed and with marks from the second number on.
    pub(super) fn start(environment: &Environment, (seed, first): (u64, u64), collections: &[&'static str]) -> Self {
        let (told, written) = watch::channel(Written::default());
        let tasks = &environment.pool.setup.tasks;
        let (cloud, token) = (environment.pool.cloud.api.clone(), tasks.token());
        let (ends, ended) = oneshot::channel();
        let plan = Plan {
            seed,
            first,
            collections: collections.to_vec(),
            huge: environment.huge(),
        };
        tasks.spawn("traffic", async move {
            let writes = write(cloud, plan, move |total| {
                told.send_replace(total);
            });
            tokio::select! {
                () = writes => {}
                _ = ended => {}
                () = token.cancelled() => {}
            }
        });
        Self { written, _ends: ends }
    }

    /// Totals so far, and later ones.
    pub(super) fn written(&self) -> watch::Receiver<Written> {
        self.written.clone()
    }

    /// Waits for some more changes, then ends.
    pub(super) async fn end_after(mut self, changes: u64) -> Result<()> {
        let enough = self.written.borrow().total() + changes;
        let going = tokio::time::timeout(END_LIMIT, self.written.wait_for(|written| written.total() > enough)).await;
        going.context("the cloud takes no writes after the faults")??;
        Ok(())
    }
}

/// Writes until dropped; passes the totals to `told` after each write.
async fn write(cloud: Api, plan: Plan, told: impl Fn(Written)) {
    let mut writer = Writer {
        cloud,
        random: fastrand::Rng::with_seed(plan.seed),
        kinds: plan.collections.iter().filter_map(|path| Kind::of(path)).collect(),
        written: Written::default(),
    };
    let mut has_huge = false;
    for mark in plan.first.. {
        let wants_huge = *plan.huge.borrow();
        let outcome = match (mark % HUGE_SHARE, wants_huge) {
            (0, true) => {
                has_huge = true;
                writer.put(Kind::Slice, HUGE, mark).await
            }
            (0, false) if has_huge => {
                let outcome = writer.delete(Kind::Slice, HUGE).await;
                has_huge = outcome.is_err();
                outcome
            }
            _ => writer.any(mark).await,
        };
        let pause = match outcome {
            Ok(()) => PACE,
            Err(_) => {
                writer.written.failed += 1;
                AWAY
            }
        };
        told(writer.written);
        tokio::time::sleep(pause).await;
    }
}

// === impl Writer ===

impl Writer {
    /// Creates the object if it is missing; otherwise changes it, and now and then deletes it.
    async fn any(&mut self, mark: u64) -> Result<()> {
        if mark.is_multiple_of(TOPOLOGY_SHARE) && self.kinds.contains(&Kind::Service) {
            return self.switch_topology(mark).await;
        }
        let kind = self.kinds[self.random.usize(..self.kinds.len())];
        let name = format!("chaos-{:02}", self.random.u64(..NAMES));
        match self.random.u8(..5) {
            0 => self.delete(kind, &name).await,
            _ => self.put(kind, &name, mark).await,
        }
    }

    async fn put(&mut self, kind: Kind, name: &str, mark: u64) -> Result<()> {
        let collection = kind.collection();
        let patch = json!({"metadata": {"annotations": {MARK: mark.to_string()}}});
        match self.cloud.merge(&format!("{collection}/{name}"), &patch).await {
            Ok(_) => self.written.changed += 1,
            Err(error) if refusal(&error) == Some(404) => {
                self.cloud.create(&collection, &kind.object(name, mark)).await?;
                self.written.created += 1;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn switch_topology(&mut self, mark: u64) -> Result<()> {
        let topology = match mark / TOPOLOGY_SHARE % 2 {
            0 => Value::Null,
            _ => NODE_POOL.into(),
        };
        let annotations = json!({MARK: mark.to_string(), TOPOLOGY_KEYS: topology});
        let path = format!("{}/{SWITCHED_SERVICE}", Kind::Service.collection());
        self.cloud
            .merge(&path, &json!({"metadata": {"annotations": annotations}}))
            .await?;
        self.written.changed += 1;
        Ok(())
    }

    async fn delete(&mut self, kind: Kind, name: &str) -> Result<()> {
        match self.cloud.delete(&format!("{}/{name}", kind.collection())).await {
            Ok(()) => self.written.deleted += 1,
            Err(error) if refusal(&error) == Some(404) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

// === impl Kind ===

impl Kind {
    fn of(path: &str) -> Option<Self> {
        let kinds = [
            ("services", Self::Service),
            ("endpointslices", Self::Slice),
            ("nodepools", Self::Pool),
        ];
        let found = kinds.into_iter().find(|(plural, _)| path.ends_with(plural));
        found.map(|(_, kind)| kind)
    }

    fn collection(self) -> String {
        match self {
            Self::Service => format!("/api/v1/namespaces/{NAMESPACE}/services"),
            Self::Pool => "/apis/apps.openyurt.io/v1beta2/nodepools".to_owned(),
            Self::Slice => format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"),
        }
    }

    fn object(self, name: &str, mark: u64) -> Value {
        let annotations = json!({MARK: mark.to_string()});
        match self {
            // Without a cluster IP: a real cloud would allocate one.
            Self::Service => json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": name, "annotations": annotations},
                "spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 80}]},
            }),
            Self::Slice => json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": name, "annotations": annotations,
                    "labels": {"kubernetes.io/service-name": SWITCHED_SERVICE}},
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                "endpoints": endpoints(if name == HUGE { HUGE_ENDPOINTS } else { 1 }),
            }),
            Self::Pool => json!({
                "apiVersion": "apps.openyurt.io/v1beta2", "kind": "NodePool",
                "metadata": {"name": name, "annotations": annotations},
                "spec": {"type": "Edge"},
            }),
        }
    }
}

fn endpoints(count: u32) -> Vec<Value> {
    let endpoint = |index: u32| {
        let address = std::net::Ipv4Addr::from_bits(u32::from(std::net::Ipv4Addr::new(10, 200, 0, 0)) + index);
        json!({
            "addresses": [address],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "inland-1",
            "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": format!("chaos-{index:04}"),
                "uid": "00000000-0000-4000-8000-000000000000"},
            "zone": "inland",
        })
    };
    (1..=count).map(endpoint).collect()
}
