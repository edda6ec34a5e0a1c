//! Bounds of the explorations, and the bounds within which each mutant must be caught.

use super::{Bounds, Mutation};

/// Without faults.
const BASE: Bounds = Bounds {
    changes: 4,
    coordinator: true,
    direct: true,
    lagging: false,
    differences: false,
    resync: true,
    coordinator_crashes: 0,
    hub_crashes: 0,
    disks: 0,
    rollbacks: 0,
    compactions: 0,
    forgotten: 0,
    cuts: 0,
    leaders: 1,
};

/// The hub moves between coordinator and cloud; lists bring differences.
pub const SWITCHING: Bounds = Bounds {
    differences: true,
    cuts: 1,
    ..BASE
};

/// The hub follows a cloud whose servers lag and compact.
pub const CLOUD_ONLY: Bounds = Bounds {
    coordinator: false,
    lagging: true,
    compactions: 1,
    forgotten: 1,
    hub_crashes: 1,
    cuts: 1,
    ..BASE
};

/// Coordinator and hub crash, with and without uncommitted data.
pub const CRASHES: Bounds = Bounds {
    coordinator_crashes: 1,
    hub_crashes: 1,
    differences: true,
    cuts: 1,
    ..BASE
};

/// Disks are lost, tombstones dropped.
pub const FORGETTING: Bounds = Bounds {
    changes: 3,
    disks: 1,
    forgotten: 1,
    compactions: 1,
    differences: true,
    cuts: 1,
    ..BASE
};

/// The cloud is restored from a backup while the hub follows it.
pub const ROLLBACK_DIRECT: Bounds = Bounds {
    changes: 3,
    coordinator: false,
    rollbacks: 1,
    hub_crashes: 1,
    cuts: 1,
    ..BASE
};

/// The same with a coordinator in between.
pub const ROLLBACK: Bounds = Bounds {
    changes: 3,
    rollbacks: 1,
    cuts: 1,
    ..BASE
};

/// Explorations: name, bounds of a quick run, bounds of a long one.
pub const SCENARIOS: [(&str, Bounds, Bounds); 6] = [
    (
        "switching",
        SWITCHING,
        Bounds {
            changes: 5,
            ..SWITCHING
        },
    ),
    (
        "cloud-only",
        CLOUD_ONLY,
        Bounds {
            changes: 5,
            ..CLOUD_ONLY
        },
    ),
    ("crashes", CRASHES, Bounds { changes: 5, ..CRASHES }),
    (
        "forgetting",
        FORGETTING,
        Bounds {
            changes: 4,
            ..FORGETTING
        },
    ),
    (
        "rollback-direct",
        ROLLBACK_DIRECT,
        // One more gives more than a hundred million states.
        Bounds {
            changes: 4,
            ..ROLLBACK_DIRECT
        },
    ),
    ("rollback", ROLLBACK, Bounds { changes: 4, ..ROLLBACK }),
];

/// Every mutant and the bounds within which it must be caught.
pub const MUTANTS: [(Mutation, Bounds); 29] = [
    (Mutation::Renumber, SWITCHING),
    (Mutation::PartialList, CLOUD_ONLY),
    (Mutation::FirstPagePublished, CLOUD_ONLY),
    (Mutation::ServeIncomplete, SWITCHING),
    (Mutation::NoHold, CRASHES),
    (Mutation::WipeOnLeaderChange, SWITCHING),
    (Mutation::SnapshotBehind, SWITCHING),
    (Mutation::RangeWithListVersion, SWITCHING),
    (Mutation::GapsNotAnnounced, CRASHES),
    (Mutation::HighFromCommit, ROLLBACK_DIRECT),
    (
        Mutation::ServeBeyondMark,
        Bounds {
            changes: 4,
            cuts: 0,
            ..ROLLBACK_DIRECT
        },
    ),
    (Mutation::ForgetUnknown, CRASHES),
    (Mutation::NoGaps, SWITCHING),
    (Mutation::ForgetWithoutFloor, FORGETTING),
    (Mutation::TombstonesNotStored, CRASHES),
    (Mutation::BookmarkPastEvents, SWITCHING),
    (Mutation::DiffAsEvents, SWITCHING),
    (Mutation::StepNotAtomic, SWITCHING),
    (Mutation::CatchUpNotAtomic, CRASHES),
    (Mutation::BreakBeforeMake, SWITCHING),
    (Mutation::ApplyCovered, SWITCHING),
    (Mutation::IgnoreGeneration, ROLLBACK),
    (Mutation::StreamOfAnyGeneration, ROLLBACK),
    (Mutation::GenerationReadApart, ROLLBACK),
    (Mutation::NoTimelineProof, ROLLBACK_DIRECT),
    (Mutation::GenerationNotDurable, ROLLBACK_DIRECT),
    (Mutation::NoResync, ROLLBACK_DIRECT),
    (Mutation::ResyncOnlyWhileBehind, ROLLBACK_DIRECT),
    (Mutation::PositionBeforeData, CRASHES),
];

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::Replica;
    use super::*;
    use crate::check::{Explored, Order, explore};

    fn tried(bounds: Bounds, mutation: Option<Mutation>) -> Explored {
        let model = Replica {
            bounds,
            mutation,
            struck: Arc::default(),
        };
        explore(model, Order::Nearest, 1, Duration::from_secs(600))
    }

    #[test]
    fn rules_hold_within_small_bounds() {
        for bounds in [SWITCHING, CRASHES, ROLLBACK_DIRECT] {
            let bounds = Bounds { changes: 2, ..bounds };
            let explored = tried(bounds, None);
            assert!(
                explored.exhausted && explored.failures.is_empty(),
                "{bounds:?}: {explored:?}"
            );
            assert!(explored.states > 200, "{bounds:?}: {explored:?}");
        }
    }

    #[test]
    fn rule_left_out_is_missed() {
        let mutants = [
            (Mutation::NoGaps, SWITCHING),
            (Mutation::TombstonesNotStored, CRASHES),
            (Mutation::NoTimelineProof, ROLLBACK_DIRECT),
            (Mutation::StreamOfAnyGeneration, ROLLBACK),
            (Mutation::GenerationReadApart, ROLLBACK),
        ];
        let mutants = mutants.map(|(mutation, bounds)| (mutation, Bounds { changes: 3, ..bounds }));
        let of_marks = MUTANTS
            .into_iter()
            .filter(|(mutation, _)| *mutation == Mutation::ServeBeyondMark);
        for (mutation, bounds) in mutants.into_iter().chain(of_marks) {
            let explored = tried(bounds, Some(mutation));
            assert_eq!(explored.failures.len(), 1, "{mutation:?}: {explored:?}");
        }
    }
}
