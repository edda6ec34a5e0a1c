//! What is remembered of deletions, and what the floor becomes when some of it must be forgotten.

use yurt_apimachinery::{Object, ResourceVersion};

use super::{Collection, TOMBSTONES_MAX};

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

impl Collection {
    /// Deletions remembered with their RV, oldest first.
    pub fn tombstones(&self) -> impl Iterator<Item = &Object> {
        self.tombstones.values()
    }

    /// Deletions remembered only as a range.
    #[must_use]
    pub fn range_tombstones(&self) -> &[RangeTombstone] {
        &self.ranges
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
