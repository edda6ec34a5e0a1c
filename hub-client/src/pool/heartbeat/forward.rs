//! Forwards the beats of cut-off nodes to the cloud while this hub leads. Watches the pool's node leases; the
//! forwarding identity is not a node's.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::meta::dns_subdomain_errors;
use yurt_apimachinery::time::MicroTime;
use yurt_apimachinery::watch::EventType;
use yurt_pool_protocol::heartbeat::forward::{Forwarder, PoolLease};
use yurt_pool_protocol::heartbeat::{
    DELEGATE_HEARTBEAT_ANNOTATION, DELEGATE_HEARTBEAT_VALUE, RELAYED_ANNOTATION, UnixMicros,
};
use yurt_pool_protocol::members;
use yurt_pool_protocol::names::NODE_LEASES;
use yurt_pool_protocol::source::Source;
use yurt_runtime::http::client::HttpClient;
use yurt_runtime::{Clock, TaskGroup};

use super::renewal::{self, RenewalResult};
use crate::failures::Failures;
use crate::metrics::Metrics;
use crate::pool::election::driver::Leadership;
use crate::pool::lease_client::WATCH_LASTS;
use crate::replicas::membership::Membership;
use crate::replicas::sources::Sources;
use crate::upstream::Cloud;
use crate::upstream::json_watch::{JsonWatch, WatchBroken};

/// Maximum time for forwarding one beat to the cloud.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Failure key: the cloud refuses the forwarding identity.
const FORWARDING: &str = "heartbeats of cut-off nodes";
/// Pause before a broken lease watch is reopened.
const REWATCH: Duration = Duration::from_millis(500);

/// Forwards beats while this hub leads.
pub struct Forward {
    /// Client of the coordinator.
    pub pool: HttpClient,
    /// The pool's members.
    pub members: Arc<Membership>,
    /// Sources of the pool's data; that of the members has to be the cloud.
    pub sources: Arc<Sources>,
    /// Current failures of the hub.
    pub failures: Failures,
    /// The cloud, reached with the forwarding identity.
    pub cloud: Arc<Cloud>,
    /// Leadership that permits the writes.
    pub leadership: Arc<Leadership>,
    /// Clock.
    pub clock: Clock,
    /// Metrics of the hub.
    pub metrics: Arc<Metrics>,
    /// Owner of the workers.
    pub tasks: TaskGroup,
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.failures.forget(FORWARDING);
    }
}

// === impl Forward ===

impl Forward {
    /// Runs until the leadership's token is cancelled.
    pub async fn run(self, token: CancellationToken) {
        let plan = Arc::new(Mutex::new(Forwarder::new()));
        let this = Arc::new(self);
        token
            .run_until_cancelled(async {
                loop {
                    // The first state of a new watch is a baseline: beats may have been missed in between.
                    plan.lock().handle_restart();
                    if this.clone().watch(&plan).await.is_err() {
                        tracing::debug!("Pool lease watch broke; reopening");
                    }
                    tokio::time::sleep(REWATCH).await;
                }
            })
            .await;
    }

    async fn watch(self: Arc<Self>, plan: &Arc<Mutex<Forwarder>>) -> Result<(), WatchBroken> {
        let seconds = WATCH_LASTS.as_secs();
        let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{NODE_LEASES}/leases");
        let path = format!("{leases}?watch=1&timeoutSeconds={seconds}");
        let mut events = JsonWatch::open(&self.pool, &path, WATCH_LASTS).await?;
        while let Some((event, lease)) = events.next().await? {
            // The name becomes part of a path at the cloud.
            let name = lease["metadata"]["name"].as_str();
            let Some(name) = name.filter(|name| dns_subdomain_errors(name).is_empty()) else {
                continue;
            };
            match event {
                EventType::Deleted => plan.lock().handle_deleted(name),
                _ => plan
                    .lock()
                    .handle_lease(self.clock.boot().since_boot(), name, observe(&lease)),
            }
            self.clone().start_workers(plan);
        }
        Ok(())
    }

    fn start_workers(self: Arc<Self>, plan: &Arc<Mutex<Forwarder>>) {
        loop {
            let Some(node) = plan.lock().poll(self.clock.boot().since_boot()) else {
                return;
            };
            let (this, plan, token) = (self.clone(), plan.clone(), self.tasks.token());
            self.tasks.spawn("forward-heartbeat", async move {
                if token.run_until_cancelled(this.carry(&node, &plan)).await == Some(Ok(())) {
                    this.metrics.heartbeats_forwarded.inc();
                }
                plan.lock().handle_done(&node);
                this.start_workers(&plan);
            });
        }
    }

    /// Forwards one beat. A newer state at the cloud wins.
    async fn carry(&self, node: &str, plan: &Mutex<Forwarder>) -> Result<(), ()> {
        let cloud = self.cloud.server().delegate.as_ref().ok_or(())?;
        let now = self.clock.unix();
        let own = UnixMicros(now.secs * 1_000_000 + i64::from(now.nanos / 1000));
        if !self.is_member(node) {
            return Err(());
        }
        let beat = plan.lock().beat(node, own).ok_or(())?;
        let may_go = || may_carry(&self.leadership, plan, &self.clock, node);
        match renewal::write(cloud, node, beat, TIMEOUT, &may_go).await {
            RenewalResult::Done => {
                self.failures.works(FORWARDING);
                Ok(())
            }
            // Without a lease at the cloud, there is nothing to forward to: no fault of the forwarding identity.
            RenewalResult::Refused(StatusCode::CONFLICT | StatusCode::NOT_FOUND) => Err(()),
            RenewalResult::Refused(status) => {
                if status == StatusCode::UNAUTHORIZED {
                    self.cloud.renew_delegate();
                }
                let why = format!("{}: lease of {node}: {status}", cloud.server());
                self.failures.refused(FORWARDING, &why);
                Err(())
            }
            _ => Err(()),
        }
    }

    /// True if the cloud itself lists `node` as a member of the pool. The coordinator's data is not sufficient: the
    /// forwarding identity may write the lease of every node of the cluster.
    fn is_member(&self, node: &str) -> bool {
        let is_by_cloud = self.sources.of(members::COLLECTION).confirmed == Source::Cloud;
        is_by_cloud && self.members.names().is_some_and(|members| members.contains(node))
    }
}

/// True if the beat of `node` may still be written: this hub leads, and the beat is younger than its lease duration.
fn may_carry(leadership: &Leadership, plan: &Mutex<Forwarder>, clock: &Clock, node: &str) -> bool {
    leadership.may_act() && plan.lock().is_fresh(clock.boot().since_boot(), node)
}

fn observe(lease: &Value) -> PoolLease {
    let spec = &lease["spec"];
    let annotations = &lease["metadata"]["annotations"];
    PoolLease {
        renew_time: time(&spec["renewTime"]),
        lease_duration: Duration::from_secs(spec["leaseDurationSeconds"].as_u64().unwrap_or(0)),
        is_delegated: annotations[DELEGATE_HEARTBEAT_ANNOTATION] == DELEGATE_HEARTBEAT_VALUE,
        relayed: time(&annotations[RELAYED_ANNOTATION]),
    }
}

fn time(value: &Value) -> Option<UnixMicros> {
    let time = MicroTime::parse(value.as_str()?).ok()?;
    Some(UnixMicros::from(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beat_is_carried_by_a_leader_and_while_it_is_young() {
        let (clock, hand) = Clock::fake();
        let plan = Mutex::new(Forwarder::new());
        let now = || clock.boot().since_boot();
        let beat = |number| PoolLease {
            renew_time: Some(UnixMicros(number)),
            lease_duration: Duration::from_secs(40),
            is_delegated: true,
            relayed: None,
        };
        plan.lock().handle_lease(now(), "n2", beat(1));
        plan.lock().handle_lease(now(), "n2", beat(2));
        assert!(plan.lock().poll(now()).is_some());
        let (leads, _) = Leadership::for_test(true, clock.clone());
        let (deposed, _) = Leadership::for_test(false, clock.clone());
        let may = |leadership| may_carry(leadership, &plan, &clock, "n2");
        assert!(may(&leads) && !may(&deposed));
        hand.advance(Duration::from_secs(40));
        assert!(!may(&leads), "the beat is too old");
        plan.lock().handle_lease(now(), "n2", beat(3));
        assert!(may(&leads), "a newer beat came in between");
        plan.lock().handle_deleted("n2");
        assert!(!may(&leads), "the node is gone");
    }
}
