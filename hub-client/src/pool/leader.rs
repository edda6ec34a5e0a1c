//! What a leader does while it leads: feeds the coordinator, vouches for the data, carries heartbeats.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use yurt_runtime::{Clock, TaskGroup};

use super::election::driver::Leadership;
use super::feed::Feeder;
use super::feed::progress::FeedProgress;
use super::heartbeat::forward::Forward;
use super::informer_sync::{self, InformerSync};
use super::lease_client::LeaseClient;
use crate::metrics::Metrics;
use crate::replicas::PoolData;
use crate::upstream::{CoordinatorClient, Upstreams};

/// Everything the leader's tasks need.
#[derive(Clone)]
pub struct Leader {
    /// What stands in `holderIdentity`.
    pub identity: String,
    /// Connections.
    pub upstreams: Upstreams,
    /// The coordinator.
    pub coordinator: CoordinatorClient,
    /// The data to feed.
    pub data: Arc<PoolData>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// How far the feed is.
    pub progress: Arc<FeedProgress>,
    /// Clock.
    pub clock: Clock,
}

// === impl Leader ===

impl Leader {
    /// Starts the tasks in `group`; they end with it.
    pub fn start(&self, group: &TaskGroup, leadership: &Arc<Leadership>) {
        self.progress.begin();
        for replica in self.data.replicas().iter() {
            let feeder = Feeder {
                replica: replica.clone(),
                data: self.data.clone(),
                client: self.coordinator.feed.clone(),
                leadership: leadership.clone(),
                metrics: self.metrics.clone(),
                progress: self.progress.clone(),
                token: group.token(),
                gzip: AtomicBool::default(),
            };
            group.spawn("feed", feeder.run());
        }
        let (namespace, name) = informer_sync::LEASE;
        let lease = LeaseClient::new(self.coordinator.leases.clone(), namespace, name);
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
            tracing::warn!("No --delegate-kubeconfig: this leader does not forward heartbeats of cut-off nodes");
            return;
        }
        let forward = Forward {
            pool: self.coordinator.leases.clone(),
            cloud: self.upstreams.cloud.clone(),
            leadership: leadership.clone(),
            clock: self.clock.clone(),
            metrics: self.metrics.clone(),
            tasks: group.clone(),
        };
        group.spawn("forward-heartbeats", forward.run(group.token()));
    }
}
