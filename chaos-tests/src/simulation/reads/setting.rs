//! Settings of the simulated reads, and the mutations: rules left out that a check must catch.

use yurt_collection::Limits;

/// Bytes of one message of the feed: few, so that there are several messages.
const MESSAGE: usize = 900;
/// Bytes of one message that holds any difference.
pub(super) const MESSAGE_MAX: usize = 1 << 20;

/// Limits that are reached within some ten acts.
const FEW: Limits = Limits {
    bytes_min: 6_000,
    times: None,
    tombstones: 6,
    gaps: 4,
};

/// Faults in addition to cut, switched and lagging streams, lost feed calls and changes of leader.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// True if processes return to their last commit.
    pub crashes: bool,
    /// True if the cloud compacts and disks are lost: lists are needed.
    pub lists: bool,
    /// True if the coordinator loses its disk.
    pub store_lost: bool,
    /// Clients that may have to list again.
    pub relists: Relists,
    /// True if followers reach the cloud.
    pub has_cloud: bool,
    /// Number of restores of the cloud from the same backup, before leaders change: two at most. A node is off between
    /// them.
    pub rollbacks: u8,
    /// Bytes of one message of the feed. A step that does not fit into one is sent as a snapshot: a reader inside the
    /// step must resume at the cloud, or list.
    pub message: usize,
}

/// Clients that may have to list again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relists {
    /// None.
    Never,
    /// Those of the coordinator, which has no other source, and those that were cut in the middle of a list's
    /// difference.
    AtCoordinator,
    /// All.
    Anywhere,
}

/// The settings, by name.
pub const SETTINGS: [(&str, Setting); 7] = [
    (
        "reads/cuts",
        Setting {
            crashes: false,
            lists: false,
            store_lost: false,
            relists: Relists::Never,
            has_cloud: false,
            rollbacks: 0,
            message: MESSAGE,
        },
    ),
    (
        "reads/crashes",
        Setting {
            crashes: true,
            lists: false,
            store_lost: false,
            relists: Relists::Anywhere,
            has_cloud: false,
            rollbacks: 0,
            message: MESSAGE,
        },
    ),
    (
        "reads/lists",
        Setting {
            crashes: true,
            lists: true,
            store_lost: true,
            relists: Relists::Anywhere,
            has_cloud: false,
            rollbacks: 0,
            message: MESSAGE,
        },
    ),
    (
        "reads/store-lost",
        Setting {
            crashes: true,
            lists: false,
            store_lost: true,
            relists: Relists::Never,
            has_cloud: false,
            rollbacks: 0,
            message: MESSAGE_MAX,
        },
    ),
    (
        "reads/fallbacks",
        Setting {
            crashes: true,
            lists: false,
            store_lost: true,
            relists: Relists::AtCoordinator,
            has_cloud: true,
            rollbacks: 0,
            message: MESSAGE,
        },
    ),
    (
        "reads/rollback",
        Setting {
            crashes: true,
            lists: false,
            store_lost: false,
            relists: Relists::Anywhere,
            has_cloud: true,
            rollbacks: 1,
            message: MESSAGE,
        },
    ),
    (
        "reads/rollback-twice",
        Setting {
            crashes: true,
            lists: false,
            store_lost: false,
            relists: Relists::Anywhere,
            has_cloud: true,
            rollbacks: 2,
            message: MESSAGE,
        },
    ),
];

/// A rule left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The events of one step are applied one by one.
    StepNotAtomic,
    /// The difference of a list is marked as watched history.
    JumpNotTold,
    /// A jump is applied by a replica that got inside of it through another source.
    JumpFromAnywhere,
    /// A bookmark is sent before the events it covers.
    BookmarkPastEvents,
    /// A list adds objects and does not remove missing ones.
    ListWithoutDeletions,
    /// A list without its last object counts as complete.
    PartialList,
    /// A hub renumbers the objects that it serves.
    Renumber,
    /// A resumed watch begins with the next change.
    ResumeAtPresent,
    /// The difference of a list is fed as events.
    DifferenceAsEvents,
    /// A commit leaves out deletions.
    TombstonesNotDurable,
    /// A commit leaves out deletions without a watch event.
    RangesNotDurable,
    /// A commit leaves out the gaps of lists.
    GapsNotDurable,
    /// A coordinator that has lost its disk gets the objects, but not their history.
    SnapshotWithoutHistory,
    /// A copy that the coordinator cannot resume is listed there immediately.
    NoFallback,
    /// A copy whose readers may be ahead takes a jump of the coordinator although another source could resume it.
    JumpBeforeFallback,
    /// A stream changes the copy also after the copy began another history.
    StreamOfAnyHistory,
    /// Frames of the cloud are applied without a check that it has the history of the copy.
    NoProof,
    /// A check of the history counts for any copy, also for one that came from the coordinator later.
    ProofOfAnyCopy,
    /// A stream of the coordinator is opened without comparing its generation.
    GenerationNotCompared,
    /// A new leader feeds its copy under the number that the coordinator has for another history.
    NumberTakenOver,
}

/// All of them.
pub const MUTATIONS: [Mutation; 20] = [
    Mutation::StepNotAtomic,
    Mutation::JumpNotTold,
    Mutation::JumpFromAnywhere,
    Mutation::BookmarkPastEvents,
    Mutation::ListWithoutDeletions,
    Mutation::PartialList,
    Mutation::Renumber,
    Mutation::ResumeAtPresent,
    Mutation::DifferenceAsEvents,
    Mutation::TombstonesNotDurable,
    Mutation::RangesNotDurable,
    Mutation::GapsNotDurable,
    Mutation::SnapshotWithoutHistory,
    Mutation::NoFallback,
    Mutation::JumpBeforeFallback,
    Mutation::StreamOfAnyHistory,
    Mutation::NoProof,
    Mutation::ProofOfAnyCopy,
    Mutation::GenerationNotCompared,
    Mutation::NumberTakenOver,
];

// === impl Setting ===

impl Setting {
    /// Bounds on the history that hubs keep: small if clients may have to list again, so that the limits are reached.
    pub(super) fn limits(&self) -> Limits {
        match self.lists {
            true => FEW,
            false => Limits::default(),
        }
    }
}

// === impl Mutation ===

impl Mutation {
    /// Index of the setting in which the rule makes a difference.
    #[must_use]
    pub fn strikes_in(self) -> usize {
        match self {
            Self::SnapshotWithoutHistory => 3,
            Self::NoFallback | Self::JumpBeforeFallback => 4,
            Self::StreamOfAnyHistory | Self::NoProof | Self::GenerationNotCompared => 5,
            Self::ProofOfAnyCopy | Self::NumberTakenOver => 6,
            _ => 2,
        }
    }
}
