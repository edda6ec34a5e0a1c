//! What is remembered of deletions, and what the floor becomes when some of it must be forgotten.

use serde::{Deserialize, Serialize};
use yurt_apimachinery::{Object, ResourceVersion};

use super::{Collection, GAPS_MAX, TOMBSTONES_MAX};

/// A deletion nobody watched: it happened somewhere in `(after, to]`.
#[derive(Clone, Debug)]
pub struct RangeTombstone {
    /// `C` before the list that did not show the object any more.
    pub after: ResourceVersion,
    /// RV of that list.
    pub to: ResourceVersion,
    /// Last state known.
    pub object: Object,
}

/// A stretch that a list jumped over: what came and went inside `(from, to)` is known to nobody but readers who stand
/// there, so they have to start over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// `C` before the list.
    pub from: ResourceVersion,
    /// RV of the list.
    pub to: ResourceVersion,
}

// === impl Gap ===

impl Gap {
    fn holds(&self, position: ResourceVersion) -> bool {
        self.from < position && position < self.to
    }
}

impl Collection {
    /// Stretches that lists jumped over, oldest first.
    #[must_use]
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// A list led from `from` to `to`. One that is known already is not added again.
    pub fn add_gap(&mut self, gap: Gap) {
        if gap.from >= gap.to || gap.to <= self.floor || self.gaps.contains(&gap) {
            return;
        }
        self.gaps.push(gap);
        self.gaps.sort_by_key(|gap| gap.to);
        if self.gaps.len() > GAPS_MAX {
            self.floor = self.floor.max(self.gaps[0].to);
        }
        self.gaps.retain(|gap| gap.to > self.floor);
    }

    pub(super) fn is_in_gap(&self, position: ResourceVersion) -> bool {
        self.gaps.iter().any(|gap| gap.holds(position))
    }

    /// Deletions remembered with their RV, oldest first.
    pub fn tombstones(&self) -> impl Iterator<Item = &Object> {
        self.tombstones.values()
    }

    /// Deletions remembered only as a range; those of older generations begin at zero.
    #[must_use]
    pub fn range_tombstones(&self) -> Vec<RangeTombstone> {
        self.ranges.iter().cloned().chain(self.former_ranges()).collect()
    }

    pub(super) fn bury(&mut self, object: Object) {
        self.count_burial(&object);
        self.tombstones
            .insert((object.resource_version(), object.key().clone()), object);
        self.forget_old();
    }

    pub(super) fn bury_range(&mut self, tombstone: RangeTombstone) {
        self.count_burial(&tombstone.object);
        self.ranges.push(tombstone);
        self.forget_old();
    }

    /// Well before a deletion is forgotten every reader is woken, those of other keys too: their position has to get past
    /// it.
    fn count_burial(&mut self, object: &Object) {
        self.tombstone_bytes += object.size();
        let (bytes, count) = (self.history_budget() / 4, TOMBSTONES_MAX / 4);
        self.touched.add_burial(object.size(), bytes, count);
    }

    /// Drops the oldest tombstones above the budget and raises the floor past them.
    fn forget_old(&mut self) {
        let budget = self.history_budget();
        while self.tombstone_bytes > budget || self.tombstones.len() + self.ranges.len() > TOMBSTONES_MAX {
            let exact = self.tombstones.first_key_value().map(|((rv, _), _)| *rv);
            let range = self.ranges.first().map(|range| range.to);
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
        let range = self.ranges.remove(0);
        self.tombstone_bytes -= range.object.size();
        range.to
    }

    fn drop_oldest_tombstone(&mut self) -> ResourceVersion {
        match self.tombstones.pop_first() {
            Some(((rv, _), object)) => {
                self.tombstone_bytes -= object.size();
                rv
            }
            None => ResourceVersion::ZERO,
        }
    }
}
