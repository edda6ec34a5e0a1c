//! Remembered deletions, and the floor that results when some of them are forgotten.

use serde::{Deserialize, Serialize};
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion};

use super::{Collection, GAPS_MAX, HISTORY_BYTES_MIN, SELECTION_HISTORY_TIMES, TOMBSTONES_MAX, ahead_of};

/// Limits of the history that a collection remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Minimum byte budget of the log and of the tombstones, however small the collection is.
    pub bytes_min: usize,
    /// In a small collection the log, and the tombstones, have at most this many times the bytes of its objects, and
    /// [`SELECTION_LOG_MIN`](super::SELECTION_LOG_MIN) or
    /// [`SELECTION_TOMBSTONES_MIN`](super::SELECTION_TOMBSTONES_MIN). `None` leaves them at `bytes_min`.
    pub times: Option<usize>,
    /// Maximum number of tombstones, ranges included.
    pub tombstones: usize,
    /// Maximum number of gaps.
    pub gaps: usize,
}

/// An unwatched deletion: it happened somewhere in `(after, to]`.
#[derive(Clone, Debug)]
pub struct RangeTombstone {
    /// `C` before the list in which the object was missing.
    pub after: ResourceVersion,
    /// RV of that list.
    pub to: ResourceVersion,
    /// Last known state.
    pub object: Object,
}

/// A stretch that a list jumped over. Objects created and deleted inside `(from, to)` are known only to readers
/// positioned there, so those readers have to start over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// `C` before the list.
    pub from: ResourceVersion,
    /// RV of the list.
    pub to: ResourceVersion,
}

/// History of a copy before its present state. Readers of another copy can resume at a copy that takes it over.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Everything after this RV is included.
    pub floor: ResourceVersion,
    /// Stretches that lists jumped over.
    pub gaps: Vec<Gap>,
    /// Deletions with their RV.
    pub tombstones: Vec<Object>,
    /// Deletions known only as a range.
    pub ranges: Vec<RangeTombstone>,
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes_min: HISTORY_BYTES_MIN,
            times: None,
            tombstones: TOMBSTONES_MAX,
            gaps: GAPS_MAX,
        }
    }
}

impl Limits {
    /// The limits of a cached selection: a hub holds hundreds of them, most with few objects. A reader that the log
    /// does not reach receives the last state of each object, which is less than a longer log has. One that the
    /// tombstones do not reach has to list again: they cover a hundred deletions, so that a burst after a cut link
    /// expires no reader.
    #[must_use]
    pub fn of_a_selection() -> Self {
        Self {
            times: Some(SELECTION_HISTORY_TIMES),
            ..Self::default()
        }
    }
}

// === impl History ===

impl History {
    /// Bytes that it holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let tombstones = self.tombstones.iter().map(Object::size);
        let ranges = self.ranges.iter().map(|range| range.object.size());
        tombstones.chain(ranges).sum::<usize>() + self.gaps.len() * size_of::<Gap>()
    }
}

// === impl Gap ===

impl Gap {
    fn holds(&self, position: ResourceVersion) -> bool {
        self.from < position && position < self.to
    }
}

// === impl Collection ===

impl Collection {
    /// Limits of its history.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Changes the limits of its history, from the next change on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Stretches that lists jumped over, oldest first.
    #[must_use]
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// Records that a list moved `C` from `from` to `to`. A known gap is not added again.
    pub fn add_gap(&mut self, gap: Gap) {
        if gap.from >= gap.to || gap.to <= self.floor || self.gaps.contains(&gap) {
            return;
        }
        self.gaps.push(gap);
        self.gaps.sort_by_key(|gap| gap.to);
        if self.gaps.len() > self.limits.gaps {
            self.floor = self.floor.max(self.gaps[0].to);
        }
        self.gaps.retain(|gap| gap.to > self.floor);
    }

    pub(super) fn is_in_gap(&self, position: ResourceVersion) -> bool {
        self.end_of_gap(position).is_some()
    }

    /// End of the last gap that contains `position`.
    pub(super) fn end_of_gap(&self, position: ResourceVersion) -> Option<ResourceVersion> {
        let around = self.gaps.iter().filter(|gap| gap.holds(position));
        around.map(|gap| gap.to).max()
    }

    /// Start of the first gap that contains `position`.
    pub(super) fn start_of_gap(&self, position: ResourceVersion) -> Option<ResourceVersion> {
        let around = self.gaps.iter().filter(|gap| gap.holds(position));
        around.map(|gap| gap.from).min()
    }

    /// Deletions remembered with their RV, oldest first.
    pub fn tombstones(&self) -> impl Iterator<Item = &Object> {
        self.tombstones.values()
    }

    /// Deletions remembered only as a range; ranges of older generations begin at zero.
    #[must_use]
    pub fn range_tombstones(&self) -> Vec<RangeTombstone> {
        self.ranges.iter().cloned().chain(self.previous_ranges()).collect()
    }

    /// The latest `bytes` of the history, for a copy that has none. It excludes older generations: an RV issued in one
    /// does not show what its reader knows.
    #[must_use]
    pub fn history(&self, bytes: usize) -> History {
        let exact = self.tombstones.values().map(|o| (o.resource_version(), o.size()));
        let ranges = self.ranges.iter().map(|range| (range.to, range.object.size()));
        let mut sizes: Vec<_> = exact.chain(ranges).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let mut taken = 0;
        let left_out = sizes.into_iter().find(|(_, size)| {
            taken += size;
            taken > bytes
        });
        let floor = self.above_high(self.floor.max(left_out.map_or(ResourceVersion::ZERO, |(rv, _)| rv)));
        let gaps = self.gaps.iter().filter(|gap| gap.to > floor);
        let tombstones = self.tombstones().filter(|object| object.resource_version() > floor);
        let ranges = self.ranges.iter().filter(|range| range.to > floor);
        History {
            floor,
            gaps: gaps.copied().collect(),
            tombstones: tombstones.cloned().collect(),
            ranges: ranges.cloned().collect(),
        }
    }

    /// Takes over another copy's history of the time before a first list that came from there. Readers at or above its
    /// floor resume here. As after a recovery, they may be ahead.
    pub fn remember(&mut self, mut history: History) {
        history.ranges.sort_by_key(|range| range.after);
        self.floor = self.above_high(history.floor);
        self.served_to = ahead_of(self.position);
        if let Some(dirty) = &mut self.dirty {
            dirty.tombstones.extend(history.tombstones.iter().cloned());
            dirty.ranges.extend(history.ranges.iter().cloned());
        }
        for gap in history.gaps {
            self.add_gap(gap);
        }
        for object in history.tombstones {
            self.add_tombstone(object, ResourceVersion::ZERO);
        }
        for range in history.ranges {
            self.add_range_tombstone(range, ResourceVersion::ZERO);
        }
        self.forget_previous();
    }

    /// `floor`, raised where it would reach into an older generation; never above `C`.
    fn above_high(&self, floor: ResourceVersion) -> ResourceVersion {
        floor.max(self.oldest_sure()).min(self.position)
    }

    /// Remembers a deletion. Readers below `created` do not know the object; zero if that is not known.
    pub(super) fn add_tombstone(&mut self, object: Object, created: ResourceVersion) {
        self.count_burial(&object);
        self.note_created(object.resource_version(), object.key(), created);
        let at = (object.resource_version(), object.key().clone());
        if let Some(same) = self.tombstones.insert(at, object) {
            self.tombstone_bytes -= same.size();
        }
        self.forget_old();
    }

    /// As [`Self::add_tombstone`], for an unwatched deletion.
    pub(super) fn add_range_tombstone(&mut self, tombstone: RangeTombstone, created: ResourceVersion) {
        self.count_burial(&tombstone.object);
        self.note_created(tombstone.to, tombstone.object.key(), created);
        // At the end: a deletion that was just found begins at `C`, and stores and copies give theirs in order.
        let place = self.ranges.partition_point(|known| known.after <= tombstone.after);
        self.ranges.insert(place, tombstone);
        self.forget_old();
    }

    /// Records the RV of creation. A key that is deleted twice within one range keeps the lower number.
    fn note_created(&mut self, rv: ResourceVersion, key: &ObjectKey, created: ResourceVersion) {
        let noted = self.unknown_below.entry((rv, key.clone())).or_insert(created);
        *noted = created.min(*noted);
    }

    /// True if a reader that knows nothing above `position` may know the object deleted at `rv`, or in the range up to
    /// it.
    pub(super) fn may_be_known(&self, rv: ResourceVersion, key: &ObjectKey, position: ResourceVersion) -> bool {
        let created = self.unknown_below.get(&(rv, key.clone()));
        created.is_none_or(|created| *created <= position)
    }

    /// Wakes every reader, also those of other keys, well before a deletion is forgotten: their position has to get
    /// past it.
    fn count_burial(&mut self, object: &Object) {
        self.tombstone_bytes += object.size();
        self.recent_bytes = self
            .object_bytes
            .max(self.recent_bytes.saturating_sub(object.size() / 2));
        let (bytes, count) = (self.tombstone_budget() / 4, self.limits.tombstones / 4);
        self.changed_keys.add_deletion(object.size(), bytes, count);
    }

    /// Drops the oldest tombstones above the budget and raises the floor past them.
    fn forget_old(&mut self) {
        let budget = self.tombstone_budget();
        while self.tombstone_bytes > budget || self.tombstones.len() + self.ranges.len() > self.limits.tombstones {
            let exact = self.tombstones.first_key_value().map(|((rv, _), _)| *rv);
            let range = self.ranges.front().map(|range| range.to);
            let dropped = match (exact, range) {
                (Some(rv), Some(to)) if to <= rv => self.drop_oldest_range(),
                (None, Some(_)) => self.drop_oldest_range(),
                (Some(_), _) => self.drop_oldest_tombstone(),
                (None, None) => return,
            };
            self.floor = self.floor.max(dropped);
        }
    }

    fn drop_oldest_range(&mut self) -> ResourceVersion {
        let Some(range) = self.ranges.pop_front() else {
            return ResourceVersion::ZERO;
        };
        self.unknown_below.remove(&(range.to, range.object.key().clone()));
        self.tombstone_bytes -= range.object.size();
        range.to
    }

    fn drop_oldest_tombstone(&mut self) -> ResourceVersion {
        match self.tombstones.pop_first() {
            Some(((rv, key), object)) => {
                self.unknown_below.remove(&(rv, key));
                self.tombstone_bytes -= object.size();
                rv
            }
            None => ResourceVersion::ZERO,
        }
    }
}
