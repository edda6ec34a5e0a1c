//! Acts as a node's kubelet for its hub: it renews the node's Lease through the hub's proxy port.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use yurt_apimachinery::time::MicroTime;
use yurt_runtime::{Clock, TaskGroup};

use crate::api::{Api, refusal};

/// A real kubelet renews every 10 s; that would make the story long.
const BEAT: Duration = Duration::from_secs(2);
/// Default of a kubelet, in seconds.
const LEASE_DURATION_SECONDS: u32 = 40;
/// Number of attempts that a kubelet makes for one beat.
const TRIES: usize = 5;

/// A kubelet that sends heartbeats. Cheap to clone; clones are the same kubelet.
#[derive(Clone)]
pub struct Kubelet {
    beats: Arc<Beats>,
}

#[derive(Default)]
struct Beats {
    answered: AtomicU64,
    failed: AtomicU64,
}

// === impl Kubelet ===

impl Kubelet {
    /// Starts to renew `kube-node-lease/<node>` through `hub`.
    pub fn start(tasks: &TaskGroup, hub: Api, node: &'static str) -> Self {
        let beats = Arc::new(Beats::default());
        let (shared, token) = (Arc::clone(&beats), tasks.token());
        let beating = async move {
            let mut held = None;
            let mut ticks = tokio::time::interval(BEAT);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let counter = match renew(&hub, node, &mut held).await {
                    Ok(()) => &shared.answered,
                    Err(_) => &shared.failed,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            }
        };
        tasks.spawn("kubelet", async move {
            tokio::select! {
                () = beating => {}
                () = token.cancelled() => {}
            }
        });
        Self { beats }
    }

    /// Renewals the hub confirmed.
    pub fn answered(&self) -> u64 {
        self.beats.answered.load(Ordering::Relaxed)
    }

    /// Renewals the hub refused or did not answer.
    pub fn failed(&self) -> u64 {
        self.beats.failed.load(Ordering::Relaxed)
    }
}

/// Sends one beat, as client-go's lease controller does: writes the held Lease with a new time, and reads it again
/// after a conflict.
async fn renew(hub: &Api, node: &str, held: &mut Option<Value>) -> Result<()> {
    let collection = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let path = format!("{collection}/{node}");
    for _ in 0..TRIES {
        let mut lease = match held.take() {
            Some(lease) => lease,
            None => match hub.get(&path).await {
                Ok(lease) => lease,
                Err(error) if refusal(&error) == Some(404) => {
                    *held = Some(hub.create(collection, &new_lease(node)).await?);
                    return Ok(());
                }
                Err(error) => return Err(error),
            },
        };
        lease["spec"]["renewTime"] = now();
        match hub.replace(&path, &lease).await {
            Ok(written) => {
                *held = Some(written);
                return Ok(());
            }
            Err(error) if refusal(&error) == Some(409) => {}
            Err(error) => {
                *held = Some(lease);
                return Err(error);
            }
        }
    }
    bail!("{TRIES} conflicts in a row")
}

fn new_lease(node: &str) -> Value {
    let spec = json!({"holderIdentity": node, "leaseDurationSeconds": LEASE_DURATION_SECONDS, "renewTime": now()});
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": node, "namespace": "kube-node-lease"},
        "spec": spec,
    })
}

fn now() -> Value {
    let now = Clock::system().unix();
    Value::from(MicroTime::from_unix(now.secs, now.nanos).to_string())
}
