//! Starts the election, and the comparison of replicas that makes a hub a worse candidate.

use tokio::sync::watch;
use yurt_pool_protocol::names::{ELECTION_LEASE, ELECTION_NAMESPACE};
use yurt_runtime::TaskGroup;

use super::Wiring;
use crate::StartError;
use crate::failpoints;
use crate::pool::election::driver::{Driver, Signals};
use crate::pool::leader::Leader;
use crate::pool::lease_client::LeaseClient;
use crate::replicas::lag;

// === impl Wiring ===

impl Wiring {
    /// Starts the election in its own task group, whose shutdown releases the lease.
    ///
    /// # Errors
    /// Invalid settings of the election.
    pub(crate) fn start_election(&self, tasks: &TaskGroup) -> Result<(), StartError> {
        let (Some(settings), Some(coordinator)) = (&self.config.coordinator, &self.upstreams.coordinator) else {
            return Ok(());
        };
        if !settings.candidate {
            return Ok(());
        }
        let identity = format!("{}_{}", self.config.node, uuid::Uuid::new_v4());
        let mut election = settings.election(&identity);
        election.ignore_own_clock = failpoints::is_leader_clock_check_off();
        let leader = Leader {
            identity,
            upstreams: self.upstreams.clone(),
            coordinator: coordinator.clone(),
            data: self.data.clone(),
            metrics: self.metrics.clone(),
            progress: self.progress.clone(),
            clock: self.clock.clone(),
            wake: self.coordinator.1.clone(),
            hub_config: self.hub_config.1.subscribe(),
            relays: self.config.relay.is_some(),
        };
        let lease = LeaseClient::new(coordinator.shared.clone(), ELECTION_NAMESPACE, ELECTION_LEASE);
        let start_leading = Box::new(move |group: &TaskGroup, leadership| leader.start(group, &leadership));
        let driver = Driver::new(
            election,
            self.clock.clone(),
            lease,
            self.election.clone(),
            start_leading,
            self.data.failures().clone(),
            tasks.clone(),
        )
        .map_err(|error| StartError::Internal(error.to_string()))?;
        let signals = Signals {
            cloud: self.cloud.0.subscribe(),
            coordinator: self.coordinator.0.subscribe(),
            rank: self.rank.subscribe(),
            behind: self.start_comparing(),
            other_pool: self.other_pool.subscribe(),
            wake: self.coordinator.1.clone(),
        };
        tasks.spawn_critical("election", driver.run(signals, tasks.token().cancelled_owned()));
        Ok(())
    }

    /// Starts comparing this node's replicas with the coordinator's.
    fn start_comparing(&self) -> watch::Receiver<bool> {
        let (behind, is_behind) = watch::channel(false);
        let comparing = lag::compare(
            self.data.clone(),
            self.coordinator.0.subscribe(),
            behind,
            self.tasks.token(),
        );
        self.tasks.spawn_critical("compare-replicas", comparing);
        is_behind
    }
}
