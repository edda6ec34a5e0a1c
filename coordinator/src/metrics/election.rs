//! The pool's leader, the number of leader changes, and the node leases whose heartbeats the leader
//! has to forward.

use prometheus::{IntCounter, IntGauge, IntGaugeVec, Opts, Registry};

/// Gauges, set at every scrape.
pub(super) struct Election {
    leader: IntGaugeVec,
    epochs: IntCounter,
    members: IntGauge,
    delegated: IntGauge,
}

/// Figures of the election and the pool.
pub(crate) struct ElectionFigures<'a> {
    /// Holder of the election lease; empty for none, and once the lease has expired.
    pub(crate) leader: &'a str,
    /// Number of changes of the holder.
    pub(crate) epoch: u64,
    /// Number of members; 0 while membership is on trust.
    pub(crate) members: usize,
    /// Number of node leases whose heartbeats the leader has to forward.
    pub(crate) delegated_leases: usize,
}

// === impl Election ===

impl Election {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let leader = IntGaugeVec::new(
            Opts::new(
                "yurt_coordinator_leader",
                "1 for the node whose hub holds the election lease; no series without a holder, or once the lease has \
                 expired.",
            ),
            &["node"],
        )?;
        registry.register(Box::new(leader.clone()))?;
        let epochs = IntCounter::new(
            "yurt_coordinator_election_epochs_total",
            "Changes of the election's holder since the store was created, releases included.",
        )?;
        registry.register(Box::new(epochs.clone()))?;
        Ok(Self {
            leader,
            epochs,
            members: gauge(
                "yurt_coordinator_members",
                "Nodes of the pool; 0 while membership is on trust.",
            )?,
            delegated: gauge(
                "yurt_coordinator_delegated_leases",
                "Node leases whose heartbeats the leader has to forward to the cloud.",
            )?,
        })
    }

    pub(super) fn set(&self, figures: &ElectionFigures<'_>) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        // At most one series, without those of earlier leaders.
        self.leader.reset();
        if !figures.leader.is_empty() {
            let node = figures.leader.rsplit_once('_').map_or(figures.leader, |(node, _)| node);
            self.leader.with_label_values(&[node]).set(1);
        }
        self.epochs.inc_by(figures.epoch.saturating_sub(self.epochs.get()));
        self.members.set(number(figures.members));
        self.delegated.set(number(figures.delegated_leases));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Alerts find a pool without a leader by the difference, whatever other pools have.
    #[test]
    fn pool_without_a_leader_has_members_and_no_series_of_a_leader() {
        let registry = Registry::new();
        let election = Election::new(&registry).unwrap();
        let names = |leader| -> Vec<String> {
            election.set(&ElectionFigures {
                leader,
                epoch: 1,
                members: 3,
                delegated_leases: 0,
            });
            let with_series = registry.gather().into_iter();
            with_series.map(|family| family.name().to_owned()).collect()
        };
        let has = |names: &[String], name: &str| names.iter().any(|known| known == name);
        for (leader, is_there) in [("n1_x", true), ("", false)] {
            let names = names(leader);
            assert!(has(&names, "yurt_coordinator_members"), "{names:?}");
            assert_eq!(has(&names, "yurt_coordinator_leader"), is_there, "{names:?}");
        }
    }
}
