//! What the hub says of itself: `/debug/state.json`, `/metrics`, health.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::watch;
use yurt_runtime::Readiness;
use yurt_runtime::admin::AdminRoutes;

use crate::metrics::Metrics;
use crate::pool::election::driver::ElectionView;
use crate::pool::election::machine::HubState;
use crate::pool::heartbeat::own::OwnHeartbeat;
use crate::pool::probe::{CloudReach, CoordinatorReach};
use crate::replicas::PoolData;
use crate::replicas::source::CoordinatorState;

/// Everything the report is made of.
pub(crate) struct Report {
    pub(crate) node: String,
    pub(crate) pool: String,
    pub(crate) data: Arc<PoolData>,
    pub(crate) cloud: watch::Receiver<CloudReach>,
    pub(crate) coordinator: Option<watch::Receiver<CoordinatorReach>>,
    pub(crate) election: watch::Receiver<ElectionView>,
    pub(crate) heartbeat: Arc<OwnHeartbeat>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) forwards: bool,
}

// === impl Report ===

impl Report {
    /// The operator's port.
    pub(crate) fn routes(self, readiness: Readiness) -> AdminRoutes {
        let this = Arc::new(self);
        let (state, metrics) = (this.clone(), this.clone());
        AdminRoutes::new(readiness, this.metrics.registry.clone())
            .with_state(move || state.state())
            .with_metrics(move || metrics.render())
    }

    fn hub_state(&self) -> HubState {
        let reachable = self.coordinator_reachable();
        let elected = self.election.borrow().state;
        elected.unwrap_or(if reachable {
            HubState::FollowerHub
        } else {
            HubState::PendingHub
        })
    }

    fn coordinator_reachable(&self) -> bool {
        self.coordinator
            .as_ref()
            .is_some_and(|reach| reach.borrow().state == CoordinatorState::Reachable)
    }

    fn state(&self) -> Value {
        let election = self.election.borrow().clone();
        let status = self
            .coordinator
            .as_ref()
            .and_then(|reach| reach.borrow().status.clone());
        let fence = election.leadership.as_ref().map(|leadership| leadership.fence.clone());
        let epoch = fence
            .map(|fence| fence.epoch)
            .or_else(|| status.as_ref().map(|status| status.epoch));
        let leader = if election.leader.is_empty() {
            status.map(|s| s.holder.clone()).unwrap_or_default()
        } else {
            election.leader
        };
        let generation = self
            .data
            .replicas()
            .iter()
            .map(|r| r.collection().read(|c| c.generation()))
            .max();
        json!({
            "node": self.node,
            "nodePool": self.pool,
            "hubState": format!("{:?}", self.hub_state()),
            "leader": leader,
            "epoch": epoch.unwrap_or(0),
            "generation": generation.unwrap_or(0),
            "cloudReachable": self.cloud.borrow().is_up(),
            "coordinatorReachable": self.coordinator_reachable(),
            "cutOff": self.heartbeat.is_cut_off(),
            "forwardsHeartbeats": self.forwards,
            "electionsWon": election.elections_won,
            "collections": self.data.describe(),
        })
    }

    fn render(&self) -> String {
        let role = match self.hub_state() {
            HubState::LeaderHub => 1,
            HubState::FollowerHub => 2,
            HubState::PendingHub => 3,
        };
        self.metrics.role.set(role);
        let up = i64::from(self.cloud.borrow().is_up());
        self.metrics.reachable.with_label_values(&["cloud"]).set(up);
        if self.coordinator.is_some() {
            let up = i64::from(self.coordinator_reachable());
            self.metrics.reachable.with_label_values(&["coordinator"]).set(up);
        }
        for replica in self.data.replicas().iter() {
            let fresh = i64::from(self.data.is_fresh(replica.name()));
            self.metrics.fresh.with_label_values(&[replica.name()]).set(fresh);
        }
        self.metrics.registry.render()
    }
}
