//! Current state of this hub as Kubernetes conditions with the time of their last change.
//!
//! Pure except for the injected clock. `True` is not always the healthy state: see each condition.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use yurt_apimachinery::time::Time;
use yurt_pool_protocol::heartbeat::own::RenewalOutcome;
use yurt_runtime::UnixTime;

/// Inputs of the conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// True if the cloud answers; `None` before the first answer.
    pub(crate) cloud: Option<bool>,
    /// True if the coordinator answers; `None` if none is configured.
    pub(crate) coordinator: Option<bool>,
    /// Reason why the cloud does not answer.
    pub(crate) why_no_cloud: String,
    /// Reason why the coordinator does not answer.
    pub(crate) why_no_coordinator: String,
    /// Incomplete pool-scope collections, each with the reason if known.
    pub(crate) incomplete: Vec<String>,
    /// Pool-scope collections whose source is away or silent.
    pub(crate) stale: Vec<String>,
    /// Another holder of the election lease; empty if there is none.
    pub(crate) leader: String,
    /// Time since which that holder is silent, if its lease has expired.
    pub(crate) leader_silent_since: Option<String>,
    /// True if this hub leads.
    pub(crate) leads: bool,
    /// Way of this node's last heartbeat to the cloud; `None` before the first one.
    pub(crate) heartbeat: Option<RenewalOutcome>,
}

/// One condition.
struct Condition {
    kind: &'static str,
    status: &'static str,
    reason: &'static str,
    message: String,
}

/// Transition times of the conditions.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    since: BTreeMap<&'static str, (&'static str, i64)>,
}

// === impl Conditions ===

impl Conditions {
    /// Returns the current conditions in a fixed order. Call it often: a change is dated by the call that detects
    /// it.
    pub(crate) fn observe(&mut self, facts: &Facts, now: UnixTime) -> Vec<Value> {
        facts
            .conditions()
            .into_iter()
            .map(|one| {
                let known = self.since.get(one.kind).filter(|(status, _)| *status == one.status);
                let since = known.map_or(now.secs, |(_, since)| *since);
                self.since.insert(one.kind, (one.status, since));
                json!({
                    "type": one.kind,
                    "status": one.status,
                    "reason": one.reason,
                    "message": one.message,
                    "lastTransitionTime": Time::from_unix(since).to_string(),
                })
            })
            .collect()
    }
}

// === impl Facts ===

impl Facts {
    fn conditions(&self) -> Vec<Condition> {
        let cloud = match self.cloud {
            None => Condition::new("CloudReachable", None, "NotAskedYet", String::new()),
            Some(true) => Condition::new("CloudReachable", Some(true), "ProbeAnswered", String::new()),
            Some(false) => Condition::new("CloudReachable", Some(false), "ProbeFailed", self.why_no_cloud.clone()),
        };
        let coordinator = match self.coordinator {
            None => Condition::new("CoordinatorReachable", None, "NotConfigured", String::new()),
            Some(true) => Condition::new("CoordinatorReachable", Some(true), "ProbeAnswered", String::new()),
            Some(false) => {
                let why = self.why_no_coordinator.clone();
                Condition::new("CoordinatorReachable", Some(false), "ProbesFailed", why)
            }
        };
        let data = |kind, missing: &[String], good, bad| {
            let reason = if missing.is_empty() { good } else { bad };
            Condition::new(kind, Some(missing.is_empty()), reason, missing.join(", "))
        };
        vec![
            cloud,
            coordinator,
            data("PoolDataComplete", &self.incomplete, "EverythingListed", "NotListedYet"),
            data("PoolDataFresh", &self.stale, "SourceAlive", "SourceAway"),
            self.leading(),
            self.heartbeat_delegated(),
        ]
    }

    fn leading(&self) -> Condition {
        match (self.leads, self.coordinator, self.leader.is_empty()) {
            (true, ..) => Condition::new("Leading", Some(true), "HoldsLease", String::new()),
            (false, None, _) => Condition::new("Leading", Some(false), "NoCoordinator", String::new()),
            (false, Some(false), _) => Condition::new("Leading", None, "CoordinatorUnreachable", String::new()),
            (false, _, true) => Condition::new("Leading", Some(false), "NobodyLeads", String::new()),
            (false, _, false) => match &self.leader_silent_since {
                Some(since) => {
                    let why = format!(
                        "the lease of {} has expired: it has been silent since {since}",
                        self.leader
                    );
                    Condition::new("Leading", Some(false), "NobodyLeads", why)
                }
                None => Condition::new("Leading", Some(false), "AnotherLeads", self.leader.clone()),
            },
        }
    }

    fn heartbeat_delegated(&self) -> Condition {
        let (status, reason, message) = match (self.heartbeat, self.coordinator) {
            (None, _) => (Some(false), "NoHeartbeatYet", ""),
            (Some(RenewalOutcome::Heard), _) => (Some(false), "CloudTakesIt", ""),
            (Some(RenewalOutcome::Relayed), _) => (
                Some(true),
                "Relayed",
                "the cloud got the last heartbeat through another node's relay",
            ),
            (Some(RenewalOutcome::Lost), Some(true)) => (
                Some(true),
                "CloudDidNotTakeIt",
                "the lease at the coordinator asks the pool's leader to forward the heartbeats",
            ),
            (Some(RenewalOutcome::Lost), Some(false)) => (
                None,
                "CoordinatorUnreachable",
                "the cloud did not take the last heartbeat, and the pool's leader may not learn of it",
            ),
            (Some(RenewalOutcome::Lost), None) => (
                Some(false),
                "NoCoordinator",
                "the cloud did not take the last heartbeat, and no other node forwards it",
            ),
        };
        Condition::new("HeartbeatDelegated", status, reason, message.to_owned())
    }
}

// === impl Condition ===

impl Condition {
    fn new(kind: &'static str, status: Option<bool>, reason: &'static str, message: String) -> Self {
        let status = match status {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        Self {
            kind,
            status,
            reason,
            message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            cloud: Some(true),
            coordinator: Some(true),
            why_no_cloud: String::new(),
            why_no_coordinator: String::new(),
            incomplete: Vec::new(),
            stale: Vec::new(),
            leader: "n2_1".into(),
            leads: false,
            heartbeat: None,
            leader_silent_since: None,
        }
    }

    fn at(secs: i64) -> UnixTime {
        UnixTime { secs, nanos: 0 }
    }

    fn told(conditions: &[Value], kind: &str) -> (String, String, String) {
        let found = conditions.iter().find(|one| one["type"] == kind).expect("a condition");
        let text = |field: &str| found[field].as_str().unwrap().to_owned();
        (text("status"), text("message"), text("lastTransitionTime"))
    }

    #[test]
    fn a_condition_keeps_the_time_of_its_last_change() {
        let mut conditions = Conditions::default();
        conditions.observe(&facts(), at(0));
        let stale = Facts {
            stale: vec!["endpoints".into(), "services".into()],
            ..facts()
        };
        conditions.observe(&stale, at(60));
        let now = conditions.observe(&stale, at(120));
        let own = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(
            told(&now, "PoolDataFresh"),
            own("False", "endpoints, services", "1970-01-01T00:01:00Z")
        );
        assert_eq!(told(&now, "CloudReachable"), own("True", "", "1970-01-01T00:00:00Z"));
        assert_eq!(told(&now, "Leading"), own("False", "n2_1", "1970-01-01T00:00:00Z"));
    }

    #[test]
    fn what_is_not_known_is_not_told_as_false() {
        let mut conditions = Conditions::default();
        let unknown = Facts {
            cloud: None,
            coordinator: None,
            ..facts()
        };
        let now = conditions.observe(&unknown, at(0));
        for kind in ["CloudReachable", "CoordinatorReachable"] {
            assert_eq!(told(&now, kind).0, "Unknown");
        }
    }

    #[test]
    fn holder_of_an_expired_lease_does_not_lead() {
        let silent = Facts {
            leader_silent_since: Some("2026-11-30T00:00:00Z".into()),
            ..facts()
        };
        let now = Conditions::default().observe(&silent, at(0));
        let leading = now.iter().find(|one| one["type"] == "Leading").unwrap();
        assert_eq!(
            (&leading["status"], &leading["reason"], &leading["message"]),
            (
                &json!("False"),
                &json!("NobodyLeads"),
                &json!("the lease of n2_1 has expired: it has been silent since 2026-11-30T00:00:00Z")
            )
        );
    }

    fn reason(facts: &Facts, kind: &str) -> (String, String) {
        let now = Conditions::default().observe(facts, at(0));
        let found = now.iter().find(|one| one["type"] == kind).unwrap();
        let text = |field: &str| found[field].as_str().unwrap().to_owned();
        (text("status"), text("reason"))
    }

    #[test]
    fn hub_without_a_coordinator_takes_part_in_no_election() {
        let alone = Facts {
            coordinator: None,
            leader: String::new(),
            ..facts()
        };
        assert_eq!(
            reason(&alone, "Leading"),
            ("False".to_owned(), "NoCoordinator".to_owned())
        );
    }

    #[test]
    fn heartbeat_counts_as_delegated_only_if_another_node_can_carry_it() {
        use RenewalOutcome::{Heard, Lost, Relayed};
        for (heartbeat, coordinator, status, expected) in [
            (None, Some(true), "False", "NoHeartbeatYet"),
            (Some(Heard), Some(true), "False", "CloudTakesIt"),
            (Some(Relayed), Some(false), "True", "Relayed"),
            (Some(Lost), Some(true), "True", "CloudDidNotTakeIt"),
            (Some(Lost), Some(false), "Unknown", "CoordinatorUnreachable"),
            (Some(Lost), None, "False", "NoCoordinator"),
        ] {
            let facts = Facts {
                heartbeat,
                coordinator,
                ..facts()
            };
            let expected = (status.to_owned(), expected.to_owned());
            assert_eq!(
                reason(&facts, "HeartbeatDelegated"),
                expected,
                "{heartbeat:?} {coordinator:?}"
            );
        }
    }

    #[test]
    fn holder_is_unknown_without_the_coordinator_unless_this_hub_leads() {
        let mut conditions = Conditions::default();
        let away = Facts {
            coordinator: Some(false),
            ..facts()
        };
        let now = conditions.observe(&away, at(0));
        assert_eq!(told(&now, "Leading").0, "Unknown");
        let leads = Facts { leads: true, ..away };
        let now = conditions.observe(&leads, at(0));
        assert_eq!(told(&now, "Leading").0, "True", "its lease has not expired yet");
    }
}
