//! Chooses the source of a replica (table "Who follows what" in docs/ARCHITECTURE.md).
//!
//! Pure. One rule: a pool reads the cloud once, through its leader. Another hub reads the cloud only if no coordinator
//! shares the data.

use std::time::Duration;

use yurt_apimachinery::time::BootTime;

/// Source of a replica's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// None: the replica serves its existing data, and nothing newer is known.
    #[default]
    None,
    /// From a cloud apiserver.
    Cloud,
    /// From the pool's coordinator.
    Coordinator,
}

/// Reachability of the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordinatorState {
    /// The hub was started without one.
    NotConfigured,
    /// It answers.
    Reachable,
    /// It has not answered since then.
    Unreachable {
        /// Time of the first failed probe.
        since: BootTime,
    },
}

/// Everything the decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// True if this hub holds the election lease.
    pub leading: bool,
    /// Reachability of the coordinator.
    pub coordinator: CoordinatorState,
    /// True if the cloud answers.
    pub cloud_reachable: bool,
    /// This hub's delay, which prevents all hubs of a pool from going to the cloud at the same time.
    pub jitter: Duration,
    /// Now.
    pub now: BootTime,
}

/// Time that a hub waits for an unreachable coordinator before it leaves it.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Minimum and maximum jitter per member of the pool: three nodes hardly wait, a thousand spread over 30 to 90 s.
const JITTER_PER_MEMBER: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(90));

/// Maximum number of members that count for the jitter: the number of nodes that Kubernetes supports in a cluster. A
/// leader that feeds more must not keep the hubs from the cloud.
const JITTER_MEMBERS_MAX: u32 = 5_000;

/// Returns the jitter of a hub in a pool of `members`. Its `draw`, made once per process, is between 0 and 1.
#[must_use]
pub fn jitter(members: u32, draw: f64) -> Duration {
    let members = members.min(JITTER_MEMBERS_MAX);
    let (least, most) = (JITTER_PER_MEMBER.0 * members, JITTER_PER_MEMBER.1 * members);
    least + (most - least).mul_f64(draw)
}

// === impl Source ===

impl Source {
    /// Name in logs and in `/debug/state.json`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cloud => "cloud",
            Self::Coordinator => "coordinator",
        }
    }
}

/// Returns the source to follow, and the time of the next decision if nothing changes before.
#[must_use]
pub fn choose(situation: Situation) -> (Source, Option<BootTime>) {
    if situation.leading {
        return (Source::Cloud, None);
    }
    match situation.coordinator {
        CoordinatorState::NotConfigured => (Source::Cloud, None),
        CoordinatorState::Reachable => (Source::Coordinator, None),
        CoordinatorState::Unreachable { since } => {
            let patience_ends = since + PATIENCE + situation.jitter;
            if situation.now < patience_ends {
                (Source::Coordinator, Some(patience_ends))
            } else if situation.cloud_reachable {
                (Source::Cloud, None)
            } else {
                (Source::None, None)
            }
        }
    }
}

/// Returns the pause before a replica that the coordinator cannot resume resumes at the cloud; `None` if
/// `failed_probes` shows that the cloud does not answer. A hub without a probe yet (`None`) tries the cloud.
#[must_use]
pub fn fallback_pause(failed_probes: Option<u32>, jitter: Duration) -> Option<Duration> {
    (failed_probes.unwrap_or(0) == 0).then_some(jitter)
}

#[cfg(test)]
mod stampede;

#[cfg(test)]
mod tests {
    use super::*;

    fn situation() -> Situation {
        Situation {
            leading: false,
            coordinator: CoordinatorState::Reachable,
            cloud_reachable: true,
            jitter: Duration::from_secs(3),
            now: BootTime::from_boot(Duration::from_secs(100)),
        }
    }

    #[test]
    fn follower_uses_the_coordinator_even_while_the_cloud_answers() {
        assert_eq!(choose(situation()).0, Source::Coordinator);
        assert_eq!(
            choose(Situation {
                cloud_reachable: false,
                ..situation()
            })
            .0,
            Source::Coordinator
        );
    }

    #[test]
    fn fallback_is_taken_unless_the_cloud_is_known_to_be_away() {
        let jitter = Duration::from_secs(3);
        assert_eq!(fallback_pause(None, jitter), Some(jitter), "just started");
        assert_eq!(fallback_pause(Some(0), jitter), Some(jitter));
        assert_eq!(fallback_pause(Some(1), jitter), None);
    }

    #[test]
    fn leader_follows_the_cloud() {
        assert_eq!(
            choose(Situation {
                leading: true,
                ..situation()
            })
            .0,
            Source::Cloud
        );
    }

    #[test]
    fn without_a_coordinator_the_cloud_is_followed_at_once() {
        let alone = Situation {
            coordinator: CoordinatorState::NotConfigured,
            ..situation()
        };
        assert_eq!(choose(alone).0, Source::Cloud);
    }

    /// A leader may feed members that do not exist.
    #[test]
    fn no_number_of_members_keeps_a_hub_from_the_cloud_for_long() {
        let secs = Duration::from_secs;
        assert_eq!((jitter(1_000, 0.0), jitter(1_000, 1.0)), (secs(30), secs(90)));
        assert_eq!(jitter(u32::MAX, 1.0), secs(450));
    }

    /// Conformance: 7.75
    #[test]
    fn coordinator_gone_for_long_sends_the_hub_to_the_cloud_after_its_jitter() {
        let start = situation();
        let gone = Situation {
            coordinator: CoordinatorState::Unreachable { since: start.now },
            ..start
        };
        let due = start.now + PATIENCE + start.jitter;
        assert_eq!(choose(gone), (Source::Coordinator, Some(due)));
        let just_before = Situation {
            now: start.now + PATIENCE,
            ..gone
        };
        assert_eq!(choose(just_before).0, Source::Coordinator);
        let later = Situation { now: due, ..gone };
        assert_eq!(choose(later).0, Source::Cloud);
        assert_eq!(
            choose(Situation {
                cloud_reachable: false,
                ..later
            })
            .0,
            Source::None
        );
    }
}
