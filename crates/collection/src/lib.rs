//! One collection of objects in one resourceVersion space: live objects, remembered deletions, and catch-up of readers.
//!
//! Pure: no I/O, no clock, no tasks. The cacher (own objects) and the replica (cloud objects) hold the same structure.
//! So leader change, failover, resume and a slow reader all take the same read path.
//!
//! ```text
//!   objects by key ──┐
//!   index by RV ─────┼─ catch-up of a reader at X: everything with RV in (X, C], in RV order  (conflated)
//!   tombstones ──────┘
//!   log (byte-bounded tail of recent steps) ─ exact history for readers that keep up
//!   floor ≤ X and X in no gap that a list jumped over, else the reader must start over (410 Expired)
//! ```
//!
//! Invariants:
//!
//! * `C` never decreases within a generation.
//! * Every stored RV ≤ `C`.
//! * A step of a conflating source moves `C` from one position to the next as a whole. At `C` no state of a key is
//!   missing because the source meant to send a later one.
//! * A reader that may start at X sees the last state of every key changed after X. It also sees every deletion after
//!   X, including those of objects that only this reader knows.
//!
//! In reading order: `write` (events, lists, recovery), `log` (the tail), `reader` (resume and catch-up), `snapshot_at`
//! (pages of one version), `history` (tombstones, gaps, limits), `timeline` and [`generation`] (a cloud with another
//! history), `derived` (views that also change with other inputs), `mark` (the bound of what is served), `dirty` and
//! `changed_keys` (records for a store and for waiting readers).

mod changed_keys;
mod derived;
mod dirty;
pub mod generation;
mod history;
mod log;
mod mark;
mod reader;
mod snapshot_at;
mod timeline;
mod write;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use yurt_apimachinery::{Object, ObjectKey, ResourceVersion};

pub use changed_keys::{ChangedKeys, KEY_GROUPS};
pub use derived::{Filtered, outline};
pub use dirty::Dirty;
pub use history::{Gap, History, Limits, RangeTombstone};
pub use log::{Change, ChangeKind, Step};
pub use mark::ahead_of;
pub use reader::{Delivery, Expired, Reader, Snapshot};
pub use snapshot_at::{KeyRange, SnapshotAt};
use timeline::Previous;
pub use timeline::{Contradiction, Resumption};
pub use write::{Recovered, WriteError};

/// Minimum byte budget of the log and of the tombstones, however small the collection is.
pub const HISTORY_BYTES_MIN: usize = 1 << 20;
/// The byte budget of the log, and of the tombstones, is 1/n of the collection's own size, but at least
/// [`HISTORY_BYTES_MIN`].
pub const HISTORY_SHARE: usize = 10;
/// The log of a small selection has at most this many times the bytes of its objects and [`SELECTION_LOG_MIN`], and its
/// tombstones as many and [`SELECTION_TOMBSTONES_MIN`] ([`Limits::of_a_selection`]). One would not do for the
/// tombstones of all objects, as a deletion takes from it.
pub const SELECTION_HISTORY_TIMES: usize = 2;
/// Minimum byte budget of a selection's log. A reader behind the log receives last states.
pub const SELECTION_LOG_MIN: usize = 4 << 10;
/// Minimum byte budget of a selection's tombstones. A reader behind them has to list again, so it is larger.
pub const SELECTION_TOMBSTONES_MIN: usize = 64 << 10;
/// Maximum number of tombstones; the oldest is dropped first and raises the floor.
pub const TOMBSTONES_MAX: usize = 20_000;
/// Bytes of the objects of older generations above which no further ones are kept: clients of older generations then
/// start over.
pub const PREVIOUS_BYTES_MAX: usize = 4 << 20;
/// Maximum number of gaps; the oldest is dropped first and raises the floor.
pub const GAPS_MAX: usize = 32;

/// A live object with the RV at which this collection first saw it.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) object: Object,
    /// Readers below this RV do not know the object: its creation's RV, or the lowest possible one. Zero if the first
    /// list contained it.
    pub(crate) created: ResourceVersion,
}

/// Objects, index, tombstones and tail of one collection; see the module header.
#[derive(Debug)]
pub struct Collection {
    objects: BTreeMap<ObjectKey, Live>,
    by_rv: BTreeSet<(ResourceVersion, ObjectKey)>,
    tombstones: BTreeMap<(ResourceVersion, ObjectKey), Object>,
    /// In the order of their begins.
    ranges: VecDeque<RangeTombstone>,
    /// For tombstones and ranges, where available: readers below this RV do not know the object.
    unknown_below: BTreeMap<(ResourceVersion, ObjectKey), ResourceVersion>,
    /// Oldest first.
    gaps: Vec<Gap>,
    log: VecDeque<Step>,
    /// Sequence number of `log[0]`; positions in the log are local to this process and never leave it.
    first_seq: u64,
    /// Every change after this RV is in the log, so readers from here on receive exact history.
    log_from: ResourceVersion,
    /// RV of the last list or other jump of `C`. Creations and deletions before it are not known individually.
    gap_to: ResourceVersion,
    log_bytes: usize,
    object_bytes: usize,
    /// At least `object_bytes`. A deletion takes half of its object's bytes from it: where all objects are deleted,
    /// their history still fits into the budget.
    recent_bytes: usize,
    tombstone_bytes: usize,
    /// Everything up to here has been applied.
    position: ResourceVersion,
    /// Readers below this may have missed a deletion that is no longer remembered.
    floor: ResourceVersion,
    complete: bool,
    generation: u64,
    /// Generation while nothing is held, see [`Self::require`].
    required: u64,
    /// Highest RV that may have been served in an older generation; zero when there was none.
    high: ResourceVersion,
    /// RV at which the generation began here: the floor then, or at the recovery.
    began: ResourceVersion,
    /// Objects that clients of older generations may hold and that are absent here.
    previous: Previous,
    /// Upper bound of the RVs that may have been served elsewhere: before a recovery, or by other processes.
    served_to: ResourceVersion,
    /// The stored mark; zero when no commit contains this generation.
    mark: ResourceVersion,
    /// RV that the next stored mark has to cover.
    mark_wanted: ResourceVersion,
    limits: Limits,
    dirty: Option<Dirty>,
    /// Keys changed since the last [`Self::take_changed_keys`].
    changed_keys: ChangedKeys,
    /// Only in the view of another collection.
    derived: Option<Box<derived::Derived>>,
}

impl Collection {
    /// An empty, incomplete collection. `durable` keeps a [`Dirty`] record of changes for a store to take.
    #[must_use]
    pub fn new(durable: bool) -> Self {
        Self::with_limits(durable, Limits::default())
    }

    /// As [`Self::new`], with other limits than the default ones.
    #[must_use]
    pub fn with_limits(durable: bool, limits: Limits) -> Self {
        Self {
            objects: BTreeMap::new(),
            by_rv: BTreeSet::new(),
            tombstones: BTreeMap::new(),
            ranges: VecDeque::new(),
            unknown_below: BTreeMap::new(),
            gaps: Vec::new(),
            log: VecDeque::new(),
            first_seq: 0,
            log_from: ResourceVersion::ZERO,
            gap_to: ResourceVersion::ZERO,
            log_bytes: 0,
            object_bytes: 0,
            recent_bytes: 0,
            tombstone_bytes: 0,
            position: ResourceVersion::ZERO,
            floor: ResourceVersion::ZERO,
            complete: false,
            generation: 0,
            required: 0,
            high: ResourceVersion::ZERO,
            began: ResourceVersion::ZERO,
            previous: Previous::default(),
            served_to: ResourceVersion::ZERO,
            mark: ResourceVersion::ZERO,
            mark_wanted: ResourceVersion::ZERO,
            limits,
            dirty: durable.then(Dirty::default),
            changed_keys: ChangedKeys::default(),
            derived: None,
        }
    }

    /// `C`: everything up to this RV has been applied.
    #[must_use]
    pub fn position(&self) -> ResourceVersion {
        self.position
    }

    /// The oldest RV a reader may resume from.
    #[must_use]
    pub fn floor(&self) -> ResourceVersion {
        self.floor
    }

    /// True if every object of the source up to `C` is here.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Generation these RVs belong to; a reader of another generation must start over.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Number of live objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// True if the collection holds no live object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Bytes held: live objects, tombstones and log (objects shared between them are counted once per holder).
    #[must_use]
    pub fn size(&self) -> usize {
        self.object_bytes + self.tombstone_bytes + self.log_bytes
    }

    /// Bytes of the live objects alone.
    #[must_use]
    pub fn object_bytes(&self) -> usize {
        self.object_bytes
    }

    /// The live object at `key`.
    #[must_use]
    pub fn object(&self, key: &ObjectKey) -> Option<&Object> {
        self.objects.get(key).map(|live| &live.object)
    }

    /// Live objects in key order (bytewise, as kube-apiserver's storage keys).
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.values().map(|live| &live.object)
    }

    /// The `count` objects with the highest RVs, with those RVs.
    pub fn newest(&self, count: usize) -> impl Iterator<Item = (&ObjectKey, ResourceVersion)> {
        self.by_rv.iter().rev().take(count).map(|(rv, key)| (key, *rv))
    }

    /// Deletions that were watched, the latest first, as last states. Names that exist again are left out.
    pub fn deletions(&self) -> impl Iterator<Item = &Object> {
        let buried = self.tombstones.values().rev();
        buried.filter(|object| !self.objects.contains_key(object.key()))
    }

    /// Returns the keys changed since the last call, and clears the record.
    pub fn take_changed_keys(&mut self) -> ChangedKeys {
        self.changed_keys.take()
    }

    fn log_budget(&self) -> usize {
        self.history_budget(SELECTION_LOG_MIN)
    }

    fn tombstone_budget(&self) -> usize {
        self.history_budget(SELECTION_TOMBSTONES_MIN)
    }

    /// `selection_min` are bytes in addition to the multiple of a small selection's objects.
    fn history_budget(&self, selection_min: usize) -> usize {
        let budget = self.limits.bytes_min.max(self.object_bytes / HISTORY_SHARE);
        let times = |times: usize| times.saturating_mul(self.recent_bytes);
        let most = self.limits.times.map(|n| times(n).saturating_add(selection_min));
        budget.min(most.unwrap_or(usize::MAX))
    }

    fn push(&mut self, step: Step) {
        if let Step::Change(change) | Step::Unwatched(change) = &step {
            self.changed_keys.add(change.object.key().as_str());
        }
        self.log_bytes += step.size();
        self.log.push_back(step);
        let budget = self.log_budget();
        while self.log_bytes > budget && !self.holds_one_unwatched() {
            let is_unwatched = matches!(self.log.front(), Some(Step::Unwatched(_)));
            self.forget_step();
            // Readers before the change that follows an unwatched deletion need both.
            if is_unwatched && matches!(self.log.front(), Some(Step::Change(_))) {
                self.forget_step();
            }
        }
    }

    /// True if the log holds nothing but an unwatched deletion, whose change comes next.
    fn holds_one_unwatched(&self) -> bool {
        self.log.len() == 1 && matches!(self.log.front(), Some(Step::Unwatched(_)))
    }

    fn forget_step(&mut self) {
        let Some(step) = self.log.pop_front() else { return };
        self.log_bytes -= step.size();
        self.first_seq += 1;
        self.log_from = match &step {
            Step::Change(change) => change.resource_version(),
            Step::DiffEnd { to, .. } => *to,
            Step::DiffBegin { .. } | Step::Unwatched(_) => self.log_from,
        };
    }

    fn next_seq(&self) -> u64 {
        self.first_seq + self.log.len() as u64
    }

    /// Sequence number at which a reader at `position` continues in the log. `None` if the log does not reach back that
    /// far, or if `position` lies inside a diff: the reader would miss the diff's first part.
    fn seq_after(&self, position: ResourceVersion) -> Option<u64> {
        if position == self.position {
            return Some(self.next_seq());
        }
        if position > self.position || position < self.log_from {
            return None;
        }
        let (mut seq, mut in_diff) = (self.next_seq(), false);
        for step in self.log.iter().rev() {
            match step {
                Step::Change(change) if change.resource_version() <= position => break,
                Step::DiffEnd { to, .. } if *to <= position => break,
                Step::DiffEnd { .. } => in_diff = true,
                Step::DiffBegin { .. } => in_diff = false,
                // An unwatched deletion belongs to the change that follows it.
                Step::Change(_) | Step::Unwatched(_) => {}
            }
            seq -= 1;
        }
        (!in_diff).then_some(seq)
    }

    fn step_at(&self, seq: u64) -> Option<&Step> {
        let index = usize::try_from(seq.checked_sub(self.first_seq)?).ok()?;
        self.log.get(index)
    }
}
