//! Changes not yet stored, bounded by the size of the collection itself, however long the store fails.

use std::collections::BTreeMap;

use yurt_apimachinery::{Object, ObjectKey, ResourceVersion};

use super::{Collection, RangeTombstone};

/// Maximum number of deleted keys that wait for a store. Above it the whole collection is written again instead.
const DELETED_KEYS_MAX: usize = 10_000;
/// Growth factor after which the waiting deletions are pruned again, to drop those below the floor.
const SLACK: usize = 2;

/// Changes since a store last took them. Taken as a whole, written in one transaction.
#[derive(Debug, Default)]
pub struct Dirty {
    /// New state per key; `None` means deleted.
    pub objects: BTreeMap<ObjectKey, Option<Object>>,
    /// Tombstones added.
    pub tombstones: Vec<Object>,
    /// Range tombstones added.
    pub ranges: Vec<RangeTombstone>,
    /// True if everything stored before is void (new generation or first list).
    pub wiped: bool,
    /// True if `C`, floor, completeness or generation moved.
    pub moved: bool,
    /// True if the record is complete: keys that it does not name are to be deleted.
    whole: bool,
    /// True if a deletion was dropped whose key is still among the objects.
    lacks_deletions: bool,
    /// Size in bytes of the deletions added.
    bytes: usize,
    /// Size in bytes of the deletions after those below the floor were last dropped.
    bytes_kept: usize,
}

// === impl Dirty ===

impl Dirty {
    /// True if there is nothing to store.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.moved && !self.has_content()
    }

    /// True if the stored state has to be deleted first.
    #[must_use]
    pub fn replaces_all(&self) -> bool {
        self.wiped || self.whole
    }

    /// True if some deleted keys have no tombstone any more. A reader of the tombstones alone would keep these objects.
    #[must_use]
    pub fn lacks_deletions(&self) -> bool {
        self.lacks_deletions
    }

    /// True if objects were created, changed or deleted.
    pub(super) fn has_content(&self) -> bool {
        self.replaces_all() || !(self.objects.is_empty() && self.tombstones.is_empty() && self.ranges.is_empty())
    }

    /// A new start with `objects` and the deletions `ranges`.
    pub(super) fn restart(objects: BTreeMap<ObjectKey, Option<Object>>, ranges: Vec<RangeTombstone>) -> Self {
        let bytes = ranges.iter().map(|range| range.object.size()).sum();
        Self {
            objects,
            ranges,
            wiped: true,
            moved: true,
            bytes,
            bytes_kept: bytes,
            ..Self::default()
        }
    }

    pub(super) fn add_tombstone(&mut self, object: Object) {
        self.bytes += object.size();
        self.objects.insert(object.key().clone(), None);
        self.tombstones.push(object);
    }

    pub(super) fn add_range_tombstone(&mut self, range: RangeTombstone) {
        self.bytes += range.object.size();
        self.objects.insert(range.object.key().clone(), None);
        self.ranges.push(range);
    }

    /// Puts back a record whose commit failed; later changes (`self`) are newer and win.
    fn merge_older(&mut self, older: Dirty) {
        if self.replaces_all() {
            self.wiped |= older.wiped;
            return;
        }
        for (key, state) in older.objects {
            self.objects.entry(key).or_insert(state);
        }
        self.tombstones.splice(0..0, older.tombstones);
        self.ranges.splice(0..0, older.ranges);
        (self.wiped, self.whole) = (older.wiped, older.whole);
        self.moved |= older.moved;
        self.lacks_deletions |= older.lacks_deletions;
        self.bytes += older.bytes;
    }

    /// Drops deletions that no reader can receive any more.
    fn forget(&mut self, floor: ResourceVersion) {
        let before = self.tombstones.len() + self.ranges.len();
        self.tombstones.retain(|object| object.resource_version() > floor);
        self.ranges.retain(|range| range.to > floor);
        self.lacks_deletions |= self.tombstones.len() + self.ranges.len() < before;
        let ranges = self.ranges.iter().map(|range| range.object.size());
        self.bytes = self.tombstones.iter().map(Object::size).chain(ranges).sum();
        self.bytes_kept = self.bytes;
    }
}

// === impl Collection ===

impl Collection {
    /// Takes the record of changes since the last call, for a store to commit together with the current meta data.
    pub fn take_dirty(&mut self) -> Option<Dirty> {
        let dirty = self.dirty.as_mut()?;
        (!dirty.is_empty()).then(|| std::mem::take(dirty))
    }

    /// True if more than the position and other meta data changed since the last [`Self::take_dirty`].
    #[must_use]
    pub fn has_unsaved_content(&self) -> bool {
        self.dirty.as_ref().is_some_and(Dirty::has_content)
    }

    /// Puts back a record whose commit failed, so that the next one includes it.
    pub fn restore_dirty(&mut self, older: Dirty) {
        if let Some(dirty) = &mut self.dirty {
            dirty.merge_older(older);
            self.bound_dirty();
        }
    }

    /// Drops entries that need not be stored any more, and writes everything where too many keys would have to be
    /// deleted.
    pub(super) fn bound_dirty(&mut self) {
        let (budget, floor) = (self.tombstone_budget(), self.floor);
        let Some(dirty) = &mut self.dirty else { return };
        if dirty.bytes > SLACK * budget.max(dirty.bytes_kept) {
            dirty.forget(floor);
        }
        if dirty.objects.len() > self.objects.len() + DELETED_KEYS_MAX {
            let wiped = dirty.wiped;
            self.write_whole(wiped);
        }
    }

    /// Makes the next commit write everything, because the stored rows may be gone. No mark covers a change until then.
    pub fn distrust_stored(&mut self) {
        if let Some(dirty) = &self.dirty {
            let wiped = dirty.wiped;
            self.clear_mark();
            self.write_whole(wiped);
        }
    }

    fn write_whole(&mut self, wiped: bool) {
        let live = self.objects.iter();
        let objects = live.map(|(key, live)| (key.clone(), Some(live.object.clone())));
        let mut all = Dirty {
            objects: objects.collect(),
            tombstones: self.tombstones.values().cloned().collect(),
            wiped,
            moved: true,
            whole: true,
            ranges: self.range_tombstones(),
            ..Dirty::default()
        };
        all.forget(self.floor);
        self.dirty = Some(all);
    }
}
