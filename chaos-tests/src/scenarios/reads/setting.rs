//! What may strike in the simulated reads, and which rules are left out to see whether that is noticed.

use yurt_storage::collection::Limits;

/// Bytes of one message of the feed: few, so that there are several.
const MESSAGE: usize = 900;
/// Bytes of one message that holds whatever there is to say.
pub(super) const MESSAGE_MAX: usize = 1 << 20;

/// Reached within some ten acts.
const FEW: Limits = Limits {
    bytes_min: 6_000,
    tombstones: 6,
    gaps: 4,
};

/// What may strike beside cut, switched and lagging streams, lost feed calls and changes of leader.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Processes go back to their last commit.
    pub crashes: bool,
    /// The cloud forgets, and disks are lost: lists are needed.
    pub lists: bool,
    /// The coordinator loses its disk.
    pub store_lost: bool,
    /// Which clients may have to list again.
    pub relists: Relists,
    /// Followers reach the cloud.
    pub has_cloud: bool,
    /// Times that the cloud comes back from the same backup, before leaders change: two at the most. A node is off between them.
    pub rollbacks: u8,
    /// Bytes of one message of the feed. A step that does not fit into one goes as a snapshot: whoever was inside of it has to
    /// go on at the cloud, or to list.
    pub message: usize,
}

/// Which clients may have to list again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relists {
    /// None.
    Never,
    /// Those of the coordinator, which has nobody to ask, and whoever was cut in the middle of a list's difference.
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
        "reads/detours",
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
    /// What belongs to one step is applied event by event.
    StepNotAtomic,
    /// The difference of a list passes for history that somebody watched.
    JumpNotTold,
    /// A jump is taken by a replica that got inside of it by way of another source.
    JumpFromAnywhere,
    /// A bookmark is sent before the events it covers.
    BookmarkPastEvents,
    /// A list puts what is there and does not take away what is not.
    ListWithoutDeletions,
    /// A list without its last object is taken for complete.
    PartialList,
    /// A hub gives what it passes on numbers of its own.
    Renumber,
    /// A resumed watch begins with what happens next.
    ResumeAtPresent,
    /// The difference of a list is fed as events.
    DifferenceAsEvents,
    /// A commit leaves out deletions.
    TombstonesNotDurable,
    /// A commit leaves out deletions that nobody watched.
    RangesNotDurable,
    /// A commit leaves out which stretches lists jumped over.
    GapsNotDurable,
    /// A coordinator that has lost its disk is told what there is, and not what went before.
    SnapshotWithoutHistory,
    /// A copy that the coordinator cannot lead on is listed there at once.
    NoDetour,
    /// A copy that readers may be ahead of takes a jump of the coordinator although there is another way.
    JumpBeforeDetour,
    /// A stream changes the copy also after that began another history.
    StreamOfAnyHistory,
    /// What the cloud sends is taken without a proof that it has the history of the copy.
    NoProof,
    /// A proof counts for whatever copy there is, also for one that came from the coordinator later.
    ProofOfAnyCopy,
    /// A stream of the coordinator is opened without a look at its generation.
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
    Mutation::NoDetour,
    Mutation::JumpBeforeDetour,
    Mutation::StreamOfAnyHistory,
    Mutation::NoProof,
    Mutation::ProofOfAnyCopy,
    Mutation::GenerationNotCompared,
    Mutation::NumberTakenOver,
];

// === impl Setting ===

impl Setting {
    /// How much of the past hubs remember: little where clients may have to list again, so that the limits are reached.
    pub(super) fn limits(&self) -> Limits {
        match self.lists {
            true => FEW,
            false => Limits::default(),
        }
    }
}

// === impl Mutation ===

impl Mutation {
    /// The setting, by its place, in which the rule makes a difference.
    #[must_use]
    pub fn strikes_in(self) -> usize {
        match self {
            Self::SnapshotWithoutHistory => 3,
            Self::NoDetour | Self::JumpBeforeDetour => 4,
            Self::StreamOfAnyHistory | Self::NoProof | Self::GenerationNotCompared => 5,
            Self::ProofOfAnyCopy | Self::NumberTakenOver => 6,
            _ => 2,
        }
    }
}
