//! State that the hub publishes: `/debug/state.json`, `/debug/filters`, `/metrics`, health, and Events in the pool.
//!
//! [`conditions`] (conditions with transition times), [`observer`] (detects changes), [`events`] (writes Events
//! to the pool).

mod collections;
pub(crate) mod conditions;
pub(crate) mod events;
pub(crate) mod filters;
mod observer;

use std::sync::Arc;

use conditions::{Conditions, Facts};
use events::Recorder;
use observer::Look;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use yurt_pool_protocol::election::HubState;
use yurt_pool_protocol::feed::PoolStatus;
use yurt_pool_protocol::names::ELECTION_LEASE;
use yurt_pool_protocol::source::{CoordinatorState, Source};
use yurt_runtime::admin::AdminRoutes;
use yurt_runtime::http::client::HttpClient;
use yurt_runtime::{Clock, Readiness, TaskGroup};

use crate::cache::store::Cache;
use crate::filter::PodTrust;
use crate::health::{CLOUD, COORDINATOR, CloudReach, CoordinatorReach};
use crate::hub_config::HubConfig;
use crate::identity::CertificateKeeper;
use crate::metrics::Metrics;
use crate::pool::election::driver::ElectionView;
use crate::pool::feed::progress::FeedProgress;
use crate::pool::heartbeat::node_lease::OwnHeartbeat;
use crate::proxy::approver::Approval;
use crate::proxy::offline::Offline;
use crate::replicas::{POOL_SCOPE, PoolData};
use crate::upstream::Cloud;

/// Inputs of the report.
pub(crate) struct Report {
    pub(crate) node: String,
    pub(crate) pool: watch::Receiver<Option<String>>,
    pub(crate) data: Arc<PoolData>,
    /// The node's cache.
    pub(crate) cache: Cache,
    pub(crate) cloud: watch::Receiver<CloudReach>,
    /// The cloud's servers.
    pub(crate) servers: Arc<Cloud>,
    pub(crate) coordinator: Option<watch::Receiver<CoordinatorReach>>,
    pub(crate) election: watch::Receiver<ElectionView>,
    pub(crate) hub_config: watch::Receiver<Arc<HubConfig>>,
    pub(crate) approval: watch::Receiver<Arc<Approval>>,
    pub(crate) trust: watch::Receiver<PodTrust>,
    pub(crate) heartbeat: Arc<OwnHeartbeat>,
    pub(crate) offline: Arc<Offline>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) forwards: bool,
    pub(crate) progress: Arc<FeedProgress>,
    pub(crate) clock: Clock,
    pub(crate) conditions: Mutex<Conditions>,
    pub(crate) certificate: Arc<CertificateKeeper>,
}

// === impl Report ===

impl Report {
    /// Starts detecting changes, and writes them to the coordinator if there is one.
    pub(crate) fn start(self: &Arc<Self>, node: &str, coordinator: Option<HttpClient>, tasks: &TaskGroup) {
        let recorder = Recorder::new(node, self.clock.clone());
        let observing = observer::run(self.clone(), recorder.clone(), tasks.token());
        tasks.spawn_critical("observe-hub", observing);
        if let Some(coordinator) = coordinator {
            tasks.spawn_critical("record-events", recorder.run(coordinator, tasks.token()));
        }
    }

    /// Routes of the operator's port.
    pub(crate) fn routes(self: &Arc<Self>, readiness: Readiness) -> AdminRoutes {
        let (state, metrics, approval) = (self.clone(), self.clone(), self.approval.clone());
        let (data, trust) = (self.data.clone(), self.trust.clone());
        AdminRoutes::new(readiness, self.metrics.registry.clone())
            .with_state(move || state.state())
            .with_page("/debug/filters", move || {
                let is_trusted = *trust.borrow() == PodTrust::Given;
                filters::describe(&approval.borrow(), data.host_network().known(), is_trusted)
            })
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

    /// Returns the current conditions. Called every second, so that changes get accurate times.
    fn conditions(&self) -> Vec<Value> {
        let facts = self.facts();
        self.conditions.lock().observe(&facts, self.clock.unix())
    }

    fn facts(&self) -> Facts {
        let not = |is_so: &dyn Fn(&str) -> bool| -> Vec<String> {
            let failing = POOL_SCOPE.iter().filter(|name| !is_so(name));
            failing.map(|name| self.with_reason(name)).collect()
        };
        let complete = |name: &str| {
            let replica = self.data.replicas().named(name);
            replica.is_some_and(|replica| replica.is_served())
        };
        let election = self.election.borrow();
        let reach = self.coordinator.as_ref();
        let status = reach.and_then(|reach| reach.borrow().status.clone());
        let leader = other_holder(&election, status.as_deref());
        Facts {
            cloud: self.cloud.borrow().failed_probes.map(|failed| failed == 0),
            coordinator: self.coordinator.as_ref().map(|_| self.coordinator_reachable()),
            why_no_cloud: self.data.failures().why(CLOUD).unwrap_or_default(),
            why_no_coordinator: self.data.failures().why(COORDINATOR).unwrap_or_default(),
            incomplete: not(&complete),
            stale: not(&|name| self.data.is_fresh(name)),
            leader_silent_since: self.silent_since(&leader),
            leader,
            leads: election.leadership.is_some(),
            heartbeat: self.heartbeat.outcome(),
        }
    }

    /// Returns the time since which `leader` is silent, if the coordinator reports that its lease has expired.
    fn silent_since(&self, leader: &str) -> Option<String> {
        let reach = self.coordinator.as_ref()?.borrow();
        silent_since(leader, reach.status.as_deref()?)
    }

    /// Returns the name of a collection, and the reason for its absence if known.
    fn with_reason(&self, name: &str) -> String {
        match self.data.failures().why(name) {
            Some(why) => format!("{name} ({why})"),
            None => name.to_owned(),
        }
    }

    fn look(&self) -> Look {
        let election = self.election.borrow();
        let sources: Vec<Source> = POOL_SCOPE
            .iter()
            .map(|name| self.data.sources().of(name).source)
            .collect();
        let first = sources.first().copied();
        Look {
            leads_as: election.leadership.as_ref().map(|_| election.leader.clone()),
            elections_won: election.elections_won,
            source: first.filter(|first| sources.iter().all(|source| source == first)),
            generation: self.generation(),
            forged: self.data.distrust().told(),
            config_faults: filters::faults_in_words(&self.approval.borrow()),
        }
    }

    /// Returns the highest generation of the pool-scope collections; `None` while one is incomplete.
    fn generation(&self) -> Option<u64> {
        let each = POOL_SCOPE.iter().map(|name| {
            let replica = self.data.replicas().named(name)?;
            replica.collection().read(|c| c.is_complete().then(|| c.generation()))
        });
        each.collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// Returns the coordinator's lag by collection; known to the leader only.
    fn feed_lag(&self) -> Value {
        if self.election.borrow().leadership.is_none() {
            return Value::Null;
        }
        let lags = self.data.pool_replicas().map(|replica| {
            let position = replica.collection().read(|c| c.position());
            let lag = self.progress.lag(replica.name(), position);
            let lag = lag.map(|lag| json!({"resourceVersions": lag.versions, "milliseconds": lag.time.as_millis()}));
            (replica.name().to_owned(), lag.unwrap_or(Value::Null))
        });
        Value::Object(lags.collect())
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
        let is_current = election.leadership.is_some() || self.coordinator_reachable();
        let leader = if !is_current {
            // The lease may have another holder since.
            String::new()
        } else if election.leader.is_empty() {
            status.map(|s| s.holder.clone()).unwrap_or_default()
        } else {
            election.leader
        };
        let leads = election.leadership.is_some();
        let silent_since = self.silent_since(&leader).filter(|_| !leads);
        let generation = self
            .data
            .pool_replicas()
            .map(|r| r.collection().read(|c| c.generation()))
            .max();
        json!({
            "node": self.node,
            "nodePool": *self.pool.borrow(),
            "hubState": format!("{:?}", self.hub_state()),
            "leader": leader,
            "leaderSilentSince": silent_since,
            "epoch": epoch.unwrap_or(0),
            "generation": generation.unwrap_or(0),
            "cloudReachable": self.cloud.borrow().is_up(),
            "coordinatorReachable": self.coordinator_reachable(),
            "cutOff": self.heartbeat.is_cut_off(),
            "forwardsHeartbeats": self.forwards,
            "relay": self.relay(),
            "electionsWon": election.elections_won,
            "certificate": self.certificate.standing().describe(),
            "conditions": self.conditions(),
            "troubles": self.data.failures().describe(),
            "feedLag": self.feed_lag(),
            "collections": collections::describe(&self.data),
            "cache": self.cache.describe(),
            "scope": self.data.describe_scope(),
            "hubConfig": self.hub_config.borrow().describe(),
            "offline": self.offline.describe(),
        })
    }

    /// Returns the relay's offer, the number of its tunnels, and the relay that this node uses; null if relaying
    /// is off.
    fn relay(&self) -> Value {
        let Some(relaying) = self.heartbeat.relaying() else {
            return Value::Null;
        };
        let offer = relaying.offer.borrow().clone();
        json!({
            "address": offer.map(|offer| offer.address),
            "tunnels": self.metrics.relay_tunnels.get(),
            "through": relaying.client.through(),
        })
    }

    fn render(&self) -> String {
        self.metrics.registry.scrape(|| self.export())
    }

    fn export(&self) {
        let role = match self.hub_state() {
            HubState::LeaderHub => 1,
            HubState::FollowerHub => 2,
            HubState::PendingHub => 3,
        };
        self.metrics.role.set(role);
        for server in (0..self.servers.len()).map(|place| self.servers.at(place)) {
            let up = i64::from(server.availability.is_up() == Some(true));
            self.metrics
                .reachable
                .with_label_values(&[server.beats.authority()])
                .set(up);
        }
        if self.coordinator.is_some() {
            let up = i64::from(self.coordinator_reachable());
            self.metrics.reachable.with_label_values(&["coordinator"]).set(up);
        }
        let election = self.election.borrow().clone();
        let leads = election.leadership.is_some();
        let feed = leads.then_some(&*self.progress);
        self.metrics.collections.set(&self.data, feed);
        let lease = &[ELECTION_LEASE];
        self.metrics.leads.with_label_values(lease).set(i64::from(leads));
        let won = &self.metrics.elections_won;
        won.inc_by(election.elections_won.saturating_sub(won.get()));
        self.metrics
            .certificate_end
            .set(self.certificate.standing().not_after());
        self.metrics.cut_off.set(i64::from(self.heartbeat.is_cut_off()));
        self.offline.set_metrics(&self.metrics.offline);
        self.metrics.failures.set(self.data.failures().count());
        let approval = self.approval.borrow().clone();
        self.metrics.filters.set(&approval.table, approval.waits_for.is_none());
    }
}

/// Returns the holder of the election lease, unless that is this hub. A hub that is no candidate knows it from the
/// coordinator's state only.
fn other_holder(election: &ElectionView, status: Option<&PoolStatus>) -> String {
    match (election.state, status) {
        (Some(_), _) if election.is_own_lease => String::new(),
        (Some(_), _) => election.leader.clone(),
        (None, status) => status.map(|status| status.holder.clone()).unwrap_or_default(),
    }
}

/// Returns the time since which `leader` is silent by `status`, which may still be about an earlier holder.
fn silent_since(leader: &str, status: &PoolStatus) -> Option<String> {
    let is_about_it = !leader.is_empty() && status.holder == leader;
    status.holder_silent_since.clone().filter(|_| is_about_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_that_is_no_candidate_knows_the_leader_from_the_coordinator() {
        let status = PoolStatus {
            holder: "n2_1".to_owned(),
            ..PoolStatus::default()
        };
        let mut election = ElectionView::default();
        assert_eq!(other_holder(&election, Some(&status)), "n2_1");
        assert_eq!(other_holder(&election, None), "");
        election.state = Some(HubState::FollowerHub);
        assert_eq!(other_holder(&election, Some(&status)), "", "the lease was released");
    }

    #[test]
    fn silence_of_an_earlier_holder_is_not_that_of_the_leader() {
        let status = PoolStatus {
            holder: "n2_1".to_owned(),
            holder_silent_since: Some("2026-11-30T00:00:00Z".to_owned()),
            ..PoolStatus::default()
        };
        assert_eq!(silent_since("n2_1", &status), status.holder_silent_since);
        assert_eq!(silent_since("n3_1", &status), None);
        assert_eq!(
            silent_since(
                "",
                &PoolStatus {
                    holder: String::new(),
                    ..status
                }
            ),
            None
        );
    }
}
