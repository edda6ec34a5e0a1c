//! Decides where a replica's data comes from (`design` table in docs/ARCHITECTURE.md, "who follows what").
//!
//! Pure. The one rule behind it: a pool reads the cloud once, through its leader; a hub goes to the cloud itself only
//! when there is no coordinator to share through.

use std::time::Duration;

use yurt_runtime::BootTime;

/// Where a replica's data comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// From what is held; nothing newer is known.
    #[default]
    None,
    /// From a cloud apiserver.
    Cloud,
    /// From the pool's coordinator.
    Coordinator,
}

/// What is known of the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordinatorState {
    /// The hub was started without one.
    NotConfigured,
    /// It answers.
    Reachable,
    /// It does not answer, since then.
    Unreachable {
        /// Time of the first failed probe.
        since: BootTime,
    },
}

/// Everything the decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// This hub holds the election lease.
    pub leading: bool,
    /// The coordinator.
    pub coordinator: CoordinatorState,
    /// Whether the cloud answers.
    pub cloud_reachable: bool,
    /// This hub's share of the delay that keeps a pool from going to the cloud as one herd.
    pub jitter: Duration,
    /// Now.
    pub now: BootTime,
}

/// A coordinator that is away for less than this is worth waiting for.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Least and most jitter per member of the pool: three nodes hardly wait, a thousand spread over 30 to 90 s.
const JITTER_PER_MEMBER: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(90));

/// The jitter of a hub in a pool of `members` whose draw, once for its life, is between 0 and 1.
#[must_use]
pub fn jitter(members: u32, draw: f64) -> Duration {
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

/// The source to follow, and when to decide again even if nothing happens.
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

/// The pause before a copy that the coordinator cannot lead to the present goes on at the cloud, which failed so many probes in a
/// row; `None` while it does not answer. A hub that has just started has not asked yet: trying shows.
#[must_use]
pub fn detour(failed_probes: Option<u32>, jitter: Duration) -> Option<Duration> {
    (failed_probes.unwrap_or(0) == 0).then_some(jitter)
}

#[cfg(test)]
mod herd;

#[cfg(test)]
mod tests {
    use yurt_runtime::Clock;

    use super::*;

    fn situation() -> Situation {
        let (clock, _) = Clock::fake();
        Situation {
            leading: false,
            coordinator: CoordinatorState::Reachable,
            cloud_reachable: true,
            jitter: Duration::from_secs(3),
            now: clock.boot(),
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
    fn detour_is_taken_unless_the_cloud_is_known_to_be_away() {
        let jitter = Duration::from_secs(3);
        assert_eq!(detour(None, jitter), Some(jitter), "just started");
        assert_eq!(detour(Some(0), jitter), Some(jitter));
        assert_eq!(detour(Some(1), jitter), None);
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
