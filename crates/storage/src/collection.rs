//! One collection of objects in one resourceVersion space: what is stored, what was deleted, and how a reader catches up.
//!
//! Pure: no I/O, no clock, no tasks. The cacher (own objects) and the replica (cloud objects) hold the same structure,
//! so leader change, failover, resume and a slow reader are all the same read path.
//!
//! ```text
//!   objects by key ──┐
//!   index by RV ─────┼─ catch-up of a reader at X: everything with RV in (X, C], in RV order  (conflated)
//!   tombstones ──────┘
//!   log (byte-bounded tail of recent steps) ─ exact history for readers that keep up
//!   floor ≤ X and X in no gap that a list jumped over, else the reader must start over (410 Expired)
//! ```
//!
//! Invariants: `C` never decreases within a generation; every stored RV ≤ `C`; what a conflating source tells leads from
//! one `C` to the next as a whole, so at `C` nothing of a key is left out because a later state was going to be told; a
//! reader that may start at X sees the last state of every key changed after X and every deletion after X, also of
//! objects that only it knew.

mod dirty;
mod history;
mod log;
mod past;
mod reader;
mod timeline;
mod touched;
mod write;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use yurt_apimachinery::{Object, ObjectKey, ResourceVersion};

pub use dirty::Dirty;
pub use history::{Gap, History, Limits, RangeTombstone};
pub use log::{Change, ChangeKind, Step};
pub use past::{KeyRange, Past};
pub use reader::{Delivery, Expired, Reader, Snapshot};
pub use timeline::{Contradiction, Resumption, UNCOMMITTED_MAX};
pub use touched::{TOUCH_BITS, Touched};
pub use write::{Recovered, WriteError};

/// Least size in bytes of the log and of the tombstones, however small the collection is.
pub const HISTORY_BYTES_MIN: usize = 1 << 20;
/// Share of the collection's own size (1/n) the log, and the tombstones, may grow to beyond [`HISTORY_BYTES_MIN`].
pub const HISTORY_SHARE: usize = 10;
/// Most tombstones kept; the oldest goes first and raises the floor.
pub const TOMBSTONES_MAX: usize = 20_000;
/// Most gaps kept; the oldest goes first and raises the floor.
pub const GAPS_MAX: usize = 32;

/// A live object and when this collection first saw it.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) object: Object,
    /// Readers below this RV do not know it: that of its creation, or the least it can have. Zero when it was already there
    /// at the first list.
    pub(crate) created: ResourceVersion,
}

/// Objects, index, tombstones and tail of one collection; see the module header.
#[derive(Debug)]
pub struct Collection {
    objects: BTreeMap<ObjectKey, Live>,
    by_rv: BTreeSet<(ResourceVersion, ObjectKey)>,
    tombstones: BTreeMap<(ResourceVersion, ObjectKey), Object>,
    ranges: Vec<RangeTombstone>,
    /// Of tombstones and ranges, as far as it is known: readers below this RV do not know the object.
    unknown_below: BTreeMap<(ResourceVersion, ObjectKey), ResourceVersion>,
    /// Oldest first.
    gaps: Vec<Gap>,
    log: VecDeque<Step>,
    /// Sequence number of `log[0]`; positions in the log are local to this process and never leave it.
    first_seq: u64,
    /// Every change after this RV is in the log: readers from here on can be given exact history.
    log_from: ResourceVersion,
    /// RV of the last list or other jump of `C`: what came and went before it, and when, is not known.
    gap_to: ResourceVersion,
    log_bytes: usize,
    object_bytes: usize,
    tombstone_bytes: usize,
    /// Everything up to here has been applied.
    position: ResourceVersion,
    /// Readers below this may have missed a deletion nobody remembers.
    floor: ResourceVersion,
    complete: bool,
    generation: u64,
    /// Highest RV that may have been served in an older generation; zero when there was none.
    high: ResourceVersion,
    /// What clients of older generations may hold and is not here.
    former: Vec<Object>,
    /// Above `C` after a recovery: up to here may have been served before it.
    served_to: ResourceVersion,
    limits: Limits,
    dirty: Option<Dirty>,
    /// Which keys changed since somebody asked.
    touched: Touched,
}

impl Collection {
    /// An empty, incomplete collection. `durable` keeps a [`Dirty`] record of changes for a store to take.
    #[must_use]
    pub fn new(durable: bool) -> Self {
        Self::with_limits(durable, Limits::default())
    }

    /// As [`Self::new`], with other limits than those of the programs.
    #[must_use]
    pub fn with_limits(durable: bool, limits: Limits) -> Self {
        Self {
            objects: BTreeMap::new(),
            by_rv: BTreeSet::new(),
            tombstones: BTreeMap::new(),
            ranges: Vec::new(),
            unknown_below: BTreeMap::new(),
            gaps: Vec::new(),
            log: VecDeque::new(),
            first_seq: 0,
            log_from: ResourceVersion::ZERO,
            gap_to: ResourceVersion::ZERO,
            log_bytes: 0,
            object_bytes: 0,
            tombstone_bytes: 0,
            position: ResourceVersion::ZERO,
            floor: ResourceVersion::ZERO,
            complete: false,
            generation: 0,
            high: ResourceVersion::ZERO,
            former: Vec::new(),
            served_to: ResourceVersion::ZERO,
            limits,
            dirty: durable.then(Dirty::default),
            touched: Touched::default(),
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

    /// Whether every object of the source up to `C` is here.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The timeline these RVs belong to; a reader of another generation must start over.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Number of live objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether no live object is held.
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

    /// The `count` objects with the highest RVs, and these.
    pub fn newest(&self, count: usize) -> impl Iterator<Item = (&ObjectKey, ResourceVersion)> {
        self.by_rv.iter().rev().take(count).map(|(rv, key)| (key, *rv))
    }

    /// Deletions that were watched, the latest first: last states, without those of what has come again.
    pub fn deletions(&self) -> impl Iterator<Item = &Object> {
        let buried = self.tombstones.values().rev();
        buried.filter(|object| !self.objects.contains_key(object.key()))
    }

    /// Which keys changed since the last call.
    pub fn take_touched(&mut self) -> Touched {
        self.touched.take()
    }

    fn history_budget(&self) -> usize {
        self.limits.bytes_min.max(self.object_bytes / HISTORY_SHARE)
    }

    fn push(&mut self, step: Step) {
        if let Step::Change(change) | Step::Unwatched(change) = &step {
            self.touched.add(change.object.key().as_str());
        }
        self.log_bytes += step.size();
        self.log.push_back(step);
        let budget = self.history_budget();
        while self.log_bytes > budget {
            let Some(step) = self.log.pop_front() else { break };
            self.log_bytes -= step.size();
            self.first_seq += 1;
            self.log_from = match &step {
                Step::Change(change) => change.resource_version(),
                Step::DiffEnd { to, .. } => *to,
                Step::DiffBegin { .. } | Step::Unwatched(_) => self.log_from,
            };
        }
    }

    fn next_seq(&self) -> u64 {
        self.first_seq + self.log.len() as u64
    }

    /// Where in the log a reader at `position` goes on; `None` when the log does not reach back to it, or it stands
    /// inside a diff, whose first part it would miss.
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
