//! Runs the tasks of a leader: feeds the coordinator, renews the sync Lease, forwards heartbeats.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::{Notify, watch};
use yurt_runtime::{Clock, TaskGroup};
use yurt_storage::Replica;

use super::election::driver::Leadership;
use super::feed::Feeder;
use super::feed::progress::FeedProgress;
use super::heartbeat::forward::Forward;
use super::informer_sync::{self, InformerSync};
use super::lease_client::LeaseClient;
use super::scope::{ScopeReceiver, ScopeSender};
use crate::hub_config::HubConfig;
use crate::metrics::Metrics;
use crate::replicas::PoolData;
use crate::upstream::{CoordinatorClient, Upstreams};

/// Dependencies of the leader's tasks.
#[derive(Clone)]
pub struct Leader {
    /// Value of `holderIdentity`.
    pub identity: String,
    /// Clients of the upstream servers.
    pub upstreams: Upstreams,
    /// Client of the coordinator.
    pub coordinator: CoordinatorClient,
    /// The data to feed.
    pub data: Arc<PoolData>,
    /// Metrics of the hub.
    pub metrics: Arc<Metrics>,
    /// Progress of the feed.
    pub progress: Arc<FeedProgress>,
    /// Clock.
    pub clock: Clock,
    /// Wakes the coordinator's prober.
    pub wake: Arc<Notify>,
    /// ConfigMap `yurt-hub-cfg`, which lists the resources to share.
    pub hub_config: watch::Receiver<Arc<HubConfig>>,
    /// True if the hubs of the pool relay for each other.
    pub relays: bool,
}

// === impl Leader ===

impl Leader {
    /// Starts the tasks in `group`; they end with it.
    pub fn start(&self, group: &TaskGroup, leadership: &Arc<Leadership>) {
        self.progress.begin();
        let (leader, owner, right) = (self.clone(), group.clone(), leadership.clone());
        let feed = move |replica| leader.feed(&owner, &right, replica);
        group.spawn("feeds", self.data.clone().each_replica(group.token(), feed));
        let teller = ScopeSender {
            cloud: self.upstreams.cloud.clone(),
            config: self.hub_config.clone(),
            data: self.data.clone(),
            coordinator: Some(ScopeReceiver {
                client: self.coordinator.feed.clone(),
                leadership: leadership.clone(),
                wake: self.wake.clone(),
            }),
        };
        group.spawn("tell-scope", teller.run(group.token()));
        let (namespace, name) = informer_sync::LEASE;
        let lease = LeaseClient::new(self.coordinator.shared.clone(), namespace, name);
        let sync = InformerSync {
            lease,
            identity: self.identity.clone(),
            data: self.data.clone(),
            progress: self.progress.clone(),
            leadership: leadership.clone(),
            clock: self.clock.clone(),
        };
        group.spawn("informer-sync", sync.run(group.token()));
        if self.upstreams.cloud.server().delegate.is_none() {
            self.log_no_forwarding();
            return;
        }
        let forward = Forward {
            pool: self.coordinator.shared.clone(),
            members: self.data.membership().clone(),
            sources: self.data.sources().clone(),
            failures: self.data.failures().clone(),
            cloud: self.upstreams.cloud.clone(),
            leadership: leadership.clone(),
            clock: self.clock.clone(),
            metrics: self.metrics.clone(),
            tasks: group.clone(),
        };
        group.spawn("forward-heartbeats", forward.run(group.token()));
    }

    fn log_no_forwarding(&self) {
        if self.relays {
            tracing::info!(
                "Heartbeat forwarding is disabled: heartbeats of cut-off nodes need the relay, or --delegate-kubeconfig"
            );
        } else {
            tracing::warn!("Heartbeat forwarding for cut-off nodes is disabled: set --delegate-kubeconfig");
        }
    }

    fn feed(&self, group: &TaskGroup, leadership: &Arc<Leadership>, replica: Arc<Replica>) {
        let gone = replica.gone().clone();
        let feeder = Feeder {
            replica,
            data: self.data.clone(),
            client: self.coordinator.feed.clone(),
            cloud: self.upstreams.cloud.clone(),
            leadership: leadership.clone(),
            metrics: self.metrics.clone(),
            progress: self.progress.clone(),
            token: group.token(),
            gzip: AtomicBool::default(),
            is_no_member: AtomicBool::default(),
        };
        group.spawn("feed", async move {
            gone.run_until_cancelled(feeder.run()).await;
        });
    }
}
