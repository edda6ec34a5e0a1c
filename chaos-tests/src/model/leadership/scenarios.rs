//! Bounds of the explorations, and the bounds within which each mutant must be caught.

use super::{Bounds, Mutation};

/// Two hubs and time, without faults.
const BASE: Bounds = Bounds {
    hubs: 2,
    foreign: false,
    hostile: false,
    writes: 4,
    timeless: false,
    wire: 2,
    restarts: 0,
    stores: 0,
    deletions: 0,
    duplicates: 0,
    feeds: 0,
    cloud: 1,
    rollbacks: 0,
};

/// Two hubs and their lease on a network that loses and delays, and a coordinator that restarts.
pub const ELECTION: Bounds = Bounds { restarts: 1, ..BASE };

/// As [`ELECTION`], with one more hub.
pub const THREE_HUBS: Bounds = Bounds {
    hubs: 3,
    writes: 3,
    ..ELECTION
};

/// As [`ELECTION`], with an elector that sends no resourceVersion.
pub const FOREIGN: Bounds = Bounds {
    foreign: true,
    ..ELECTION
};

/// As [`ELECTION`], by the rules of a pool, with a member whose key was stolen.
pub const HOSTILE: Bounds = Bounds {
    hostile: true,
    ..ELECTION
};

/// Feed calls under way while leaders and coordinators change.
pub const FEED: Bounds = Bounds {
    timeless: true,
    writes: 3,
    restarts: 1,
    duplicates: 1,
    feeds: 4,
    cloud: 2,
    ..BASE
};

/// As [`FEED`], with a cloud that is restored from a backup.
pub const ROLLBACK: Bounds = Bounds {
    restarts: 0,
    duplicates: 0,
    feeds: 6,
    rollbacks: 1,
    ..FEED
};

/// As [`FEED`], with a coordinator that loses its disk.
pub const STORE_LOST: Bounds = Bounds {
    restarts: 0,
    duplicates: 0,
    stores: 1,
    feeds: 3,
    ..FEED
};

/// As [`FEED`], with more leaders: the lease is deleted and created again.
pub const LEASE_DELETED: Bounds = Bounds {
    writes: 5,
    restarts: 0,
    duplicates: 0,
    deletions: 2,
    feeds: 2,
    ..FEED
};

/// As [`FEED`], with many leaders and restarts.
pub const RESTARTS: Bounds = Bounds {
    writes: 8,
    restarts: 2,
    duplicates: 0,
    feeds: 1,
    cloud: 1,
    ..FEED
};

/// As [`ROLLBACK`], with reordered calls of one leader.
pub const ONE_LEADER: Bounds = Bounds {
    hubs: 1,
    writes: 1,
    feeds: 7,
    ..ROLLBACK
};

/// Explorations: name, bounds of a quick run, bounds of a long one.
pub const SCENARIOS: [(&str, Bounds, Bounds); 8] = [
    ("election", ELECTION, Bounds { writes: 6, ..ELECTION }),
    (
        "three-hubs",
        THREE_HUBS,
        Bounds {
            writes: 4,
            ..THREE_HUBS
        },
    ),
    (
        "foreign-elector",
        FOREIGN,
        Bounds {
            hubs: 3,
            writes: 3,
            ..FOREIGN
        },
    ),
    (
        "hostile-member",
        HOSTILE,
        Bounds {
            hubs: 3,
            writes: 3,
            ..HOSTILE
        },
    ),
    ("feed", FEED, Bounds { writes: 4, ..FEED }),
    ("rollback", ROLLBACK, Bounds { cloud: 3, ..ROLLBACK }),
    ("store-lost", STORE_LOST, Bounds { feeds: 5, ..STORE_LOST }),
    (
        "lease-deleted",
        LEASE_DELETED,
        Bounds {
            feeds: 4,
            ..LEASE_DELETED
        },
    ),
];

/// Every mutant and the bounds within which it must be caught.
pub const MUTANTS: [(Mutation, Bounds); 23] = [
    (Mutation::NoEpochCompare, FEED),
    (Mutation::NoStoreCompare, STORE_LOST),
    (Mutation::NoGenerationCompare, ONE_LEADER),
    (Mutation::EpochFromTransitions, LEASE_DELETED),
    (Mutation::EpochNotDurable, RESTARTS),
    (Mutation::FenceNotAtomic, FEED),
    (Mutation::NoVersionCompare, ELECTION),
    (Mutation::NoGuardAfterRestart, ELECTION),
    (Mutation::NoGuard, FOREIGN),
    (Mutation::TakeWhileAlive, HOSTILE),
    (Mutation::ReleaseForAnother, HOSTILE),
    (Mutation::RenewForAnother, HOSTILE),
    (Mutation::RemoteClock, ELECTION),
    (Mutation::CountFromAnswer, ELECTION),
    (Mutation::AnyAnswer, ELECTION),
    (Mutation::ReleaseBeforeStop, ELECTION),
    (Mutation::DriftBeyondBound, ELECTION),
    (Mutation::AnswerBeforeDurable, ELECTION),
    (
        Mutation::ReuseOwnVersion,
        Bounds {
            writes: 6,
            wire: 1,
            ..ELECTION
        },
    ),
    (Mutation::PublishBeforeComplete, FEED),
    (Mutation::PositionBeforeData, FEED),
    (Mutation::WipeOnLeaderChange, FEED),
    (Mutation::SnapshotBehind, FEED),
];

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::Leadership;
    use super::super::state::State;
    use super::*;
    use crate::check::{Explored, Order, explore};

    fn tried(bounds: Bounds, mutation: Option<Mutation>) -> Explored {
        let model = Leadership {
            bounds,
            mutation,
            struck: Arc::default(),
            reached: Arc::default(),
        };
        explore(
            model,
            Order::Deepest(Some(State::representative)),
            1,
            Duration::from_secs(600),
        )
    }

    #[test]
    fn rules_hold_within_small_bounds() {
        let small = [
            Bounds { writes: 2, ..ELECTION },
            Bounds { writes: 2, ..FOREIGN },
            Bounds { writes: 3, ..HOSTILE },
            Bounds { feeds: 2, ..FEED },
        ];
        for bounds in small {
            let explored = tried(bounds, None);
            assert!(
                explored.exhausted && explored.failures.is_empty(),
                "{bounds:?}: {explored:?}"
            );
            assert!(explored.states > 500, "{bounds:?}: {explored:?}");
        }
    }

    #[test]
    fn rule_left_out_is_missed() {
        let mutants = [
            (Mutation::RemoteClock, Bounds { writes: 2, ..ELECTION }, "I4"),
            (Mutation::TakeWhileAlive, HOSTILE, "I4"),
            (Mutation::ReleaseForAnother, HOSTILE, "I4"),
            (Mutation::RenewForAnother, HOSTILE, "I4"),
            (Mutation::EpochFromTransitions, LEASE_DELETED, "I3"),
            (Mutation::PublishBeforeComplete, FEED, "I5"),
        ];
        for (mutation, bounds, invariant) in mutants {
            let explored = tried(bounds, Some(mutation));
            let failed = explored
                .failures
                .iter()
                .any(|failure| failure.property.starts_with(invariant));
            assert!(failed, "{mutation:?}: {explored:?}");
        }
    }
}
