//! Changes of a collection: events in order, bookmarks, whole lists compared with the held state, recovery from a
//! store.

use std::collections::BTreeSet;

use yurt_apimachinery::collecting::inserted;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion};
use yurt_codec::encoding_cache;

use super::{Change, ChangeKind, Collection, Dirty, Expired, Gap, Live, Previous, RangeTombstone, Step, ahead_of};

/// Reason why a write was rejected; nothing was changed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WriteError {
    /// The list is older than the held state: the source lags behind, so the caller should use another source.
    #[error("list at {at} is behind the collection at {position}")]
    Behind {
        /// RV of the rejected list.
        at: ResourceVersion,
        /// `C` of the collection.
        position: ResourceVersion,
    },
    /// An object went back although the list did not: the source was rolled back, and a new generation is needed.
    #[error("object {key} went back from {held} to {listed}")]
    Backwards {
        /// Key of the object.
        key: String,
        /// RV held.
        held: ResourceVersion,
        /// RV in the list.
        listed: ResourceVersion,
    },
    /// An object exists again although it was gone at its own RV or later: here, too, the source was rolled back.
    #[error("object {key} at {listed} came back although it was gone at {position}")]
    CameBack {
        /// Key of the object.
        key: String,
        /// RV in the list.
        listed: ResourceVersion,
        /// `C` of the collection.
        position: ResourceVersion,
    },
}

/// State of a collection as a store returns it.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Live objects.
    pub objects: Vec<Object>,
    /// Deletions with their RV.
    pub tombstones: Vec<Object>,
    /// Deletions known only as a range.
    pub ranges: Vec<RangeTombstone>,
    /// Stretches that lists jumped over.
    pub gaps: Vec<Gap>,
    /// `C` of the last commit.
    pub position: ResourceVersion,
    /// Oldest RV that readers may resume from.
    pub floor: ResourceVersion,
    /// True if the data was complete at `C`.
    pub complete: bool,
    /// Generation of the RVs.
    pub generation: u64,
    /// See [`Collection::high`].
    pub high: ResourceVersion,
    /// The mark: nothing above it was served before this state was stored, and until the next commit.
    pub mark: ResourceVersion,
}

// === impl Collection ===

impl Collection {
    /// Applies one event of an unbroken watch. Returns false, and changes nothing, if `C` covers the event already.
    ///
    /// `Bookmark` and `Error` only move `C`.
    pub fn apply(&mut self, event: EventType, object: Object) -> bool {
        let rv = object.resource_version();
        self.apply_all(rv, vec![(event, object)])
    }

    /// Applies several events that share one RV, because one transaction at the source caused them. Otherwise as
    /// [`Self::apply`].
    pub fn apply_all(&mut self, rv: ResourceVersion, events: Vec<(EventType, Object)>) -> bool {
        if rv <= self.position {
            return false;
        }
        for (event, object) in events {
            match event {
                EventType::Added | EventType::Modified => self.put(object, false),
                EventType::Deleted => self.remove(object, false),
                EventType::Bookmark | EventType::Error => {}
            }
        }
        self.move_to(rv);
        true
    }

    /// Moves `C` to `rv` (a bookmark: nothing else happened up to there). Returns true if it moved.
    pub fn advance(&mut self, rv: ResourceVersion) -> bool {
        let ahead = rv > self.position;
        if ahead {
            self.move_to(rv);
        }
        ahead
    }

    /// Compares a full list of the source at `at` with the held state and publishes only the differences.
    ///
    /// # Errors
    /// [`WriteError`] when the list is older than the held state; nothing is changed then.
    pub fn replace(&mut self, list: Vec<Object>, at: ResourceVersion) -> Result<(), WriteError> {
        if !self.complete {
            self.restart(self.generation, list, at);
            return Ok(());
        }
        if at < self.position {
            return Err(WriteError::Behind {
                at,
                position: self.position,
            });
        }
        let listed: BTreeSet<&ObjectKey> = inserted(list.iter().map(Object::key));
        let held = self.objects.iter().filter(|(key, _)| !listed.contains(key));
        let mut step: Vec<_> = held
            .map(|(_, live)| (EventType::Deleted, live.object.clone()))
            .collect();
        for object in list {
            match self
                .objects
                .get(object.key())
                .map(|live| live.object.resource_version())
            {
                Some(held) if held == object.resource_version() => {}
                Some(held) if held > object.resource_version() => {
                    let (key, listed) = (object.key().to_string(), object.resource_version());
                    return Err(WriteError::Backwards { key, held, listed });
                }
                // Every object that existed at `C` is held.
                None if object.resource_version() <= self.position => {
                    let (key, listed, position) = (object.key().to_string(), object.resource_version(), self.position);
                    return Err(WriteError::CameBack { key, listed, position });
                }
                _ => step.push((EventType::Modified, object)),
            }
        }
        self.apply_step(at, step);
        Ok(())
    }

    /// Applies the difference found by a list, from `C` to `to`, as one step. A DELETED at or below `C` is an unwatched
    /// deletion; everything else carries its own RV in `(C, to]`. Ignored when `to` is not ahead of `C`.
    pub fn apply_step(&mut self, to: ResourceVersion, step: Vec<(EventType, Object)>) {
        if to > self.position {
            let from = self.position;
            self.add_gap(Gap { from, to });
            self.take_step(to, step, true);
        }
    }

    /// Applies the changes in `(C, to]`, from a source that watched all of them, as one step: the last state of each
    /// key, and every deletion. Ignored when `to` is not ahead of `C`.
    ///
    /// Applied one by one they would leave `C` inside the step. There, a key that changed twice would lack its first
    /// change. A list that arrived then could not say from which RV on objects may have come and gone.
    pub fn catch_up_to(&mut self, to: ResourceVersion, step: Vec<(EventType, Object)>) {
        if to > self.position {
            self.take_step(to, step, false);
        }
    }

    /// Applies a step received from another replica, from `from` to `to`. `jumped` is true when it results from
    /// comparing lists there.
    ///
    /// # Errors
    /// [`Expired`] when another source moved `C` inside of a jump. Changes between `from` and `C` are then known here
    /// and not there, so only a list can show which objects remain.
    pub fn follow_step(
        &mut self,
        (from, to): (ResourceVersion, ResourceVersion),
        step: Vec<(EventType, Object)>,
        jumped: bool,
    ) -> Result<(), Expired> {
        let position = self.position;
        match jumped {
            true if from < position && position < to => return Err(Expired { position, floor: to }),
            true => self.apply_step(to, step),
            false => self.catch_up_to(to, step),
        }
        Ok(())
    }

    fn take_step(&mut self, to: ResourceVersion, mut step: Vec<(EventType, Object)>, jumped: bool) {
        self.gap_to = to;
        // Sent also where nothing differs: a follower may have readers of its own inside this range.
        self.push(Step::DiffBegin { to });
        let from = self.position;
        step.sort_by_key(|(_, object)| object.resource_version());
        // Unwatched deletions come first (there are none where everything was watched). They include those of objects
        // that exist again under another uid. They carry the position that readers have now, so nothing after them goes
        // back.
        for (_, object) in step.iter().filter(|_| jumped) {
            let held = self
                .objects
                .get(object.key())
                .map(|live| live.object.uid() == object.uid());
            if held == Some(false) {
                // It happened before the new object was created: a reader that saw the new one must not receive it.
                self.remove_unwatched(object.key(), object.resource_version());
            }
        }
        for (event, object) in step {
            let watched = object.resource_version() > from;
            match event {
                EventType::Added | EventType::Modified if watched => self.put(object, true),
                EventType::Deleted if watched => self.remove(object, true),
                // A later object of this name may have replaced one that `C` covers, and `C` covers it, too. That
                // happens when the step was sent to a replica that continued with its previous source in the meantime.
                EventType::Deleted if self.is_held(&object) => self.remove_unwatched(object.key(), to),
                EventType::Deleted => self.remove_hidden(&object, to),
                _ => {}
            }
        }
        self.push(Step::DiffEnd { to, jumped });
        self.move_to(to);
    }

    /// Starts over under `generation` with a complete list at `at`. Readers of another generation, and readers below
    /// `at`, have to start over too.
    pub fn restart(&mut self, generation: u64, list: Vec<Object>, at: ResourceVersion) {
        let mut previous = std::mem::take(&mut self.previous);
        if generation != self.generation {
            self.previous = previous;
            (self.high, previous) = self.leave_behind(&list, at);
            self.served_to = ResourceVersion::ZERO;
        }
        self.clear();
        self.previous = previous;
        self.generation = generation;
        for object in list {
            self.insert_live(object, ResourceVersion::ZERO);
        }
        self.pack();
        (self.floor, self.began) = (at, at);
        self.complete = true;
        self.position = at;
        self.log_from = at;
        self.gap_to = at;
        let previous = self.previous_ranges().collect();
        if let Some(dirty) = &mut self.dirty {
            let objects = self
                .objects
                .iter()
                .map(|(key, live)| (key.clone(), Some(live.object.clone())))
                .collect();
            *dirty = Dirty::restart(objects, previous);
        }
    }

    /// Fills an empty collection from a store.
    pub fn recover(&mut self, mut recovered: Recovered) {
        self.clear();
        recovered.ranges.sort_by_key(|range| range.after);
        for object in recovered.objects {
            self.insert_live(object, ResourceVersion::ZERO);
        }
        self.pack();
        self.position = recovered.position;
        self.log_from = recovered.position;
        self.gap_to = recovered.position;
        (self.floor, self.began) = (recovered.floor, recovered.floor);
        self.complete = recovered.complete;
        let is_empty = !recovered.complete && recovered.position.is_zero();
        self.generation = match is_empty {
            true => recovered.generation.max(self.required),
            false => recovered.generation,
        };
        self.high = recovered.high;
        if recovered.complete {
            // A program without marks may have made the commit.
            self.mark = recovered.mark.max(ahead_of(recovered.position));
            self.served_to = self.mark;
        }
        for tombstone in recovered.tombstones {
            self.add_tombstone(tombstone, ResourceVersion::ZERO);
        }
        for range in recovered.ranges {
            match range.after.is_zero() {
                true => self.previous.push(range.object),
                false => self.add_range_tombstone(range, ResourceVersion::ZERO),
            }
        }
        self.forget_previous();
        for gap in recovered.gaps {
            self.add_gap(gap);
        }
    }

    /// The state from which [`Self::recover`] restores the same collection, except for the recent history.
    #[must_use]
    pub fn to_recovered(&self) -> Recovered {
        Recovered {
            objects: self.objects().cloned().collect(),
            tombstones: self.tombstones.values().cloned().collect(),
            ranges: self.range_tombstones(),
            gaps: self.gaps.clone(),
            position: self.position,
            floor: self.floor,
            complete: self.complete,
            generation: self.generation,
            high: self.high,
            mark: self.next_mark(),
        }
    }

    /// Marks the collection as incomplete because a part of it could not be read.
    pub fn distrust(&mut self) {
        self.complete = false;
    }

    fn move_to(&mut self, rv: ResourceVersion) {
        self.position = rv;
        self.forget_previous();
        self.repeat_revisions();
        if let Some(dirty) = &mut self.dirty {
            dirty.moved = true;
        }
    }

    fn clear(&mut self) {
        self.changed_keys.add_all();
        self.first_seq = self.next_seq() + 1;
        self.objects.clear();
        self.by_rv.clear();
        self.tombstones.clear();
        self.ranges.clear();
        self.unknown_below.clear();
        self.gaps.clear();
        self.previous = Previous::default();
        self.clear_mark();
        self.log.clear();
        (self.log_bytes, self.tombstone_bytes) = (0, 0);
        (self.object_bytes, self.recent_bytes) = (0, 0);
    }

    fn insert_live(&mut self, object: Object, created: ResourceVersion) -> Option<Live> {
        self.object_bytes += object.size();
        self.by_rv.insert((object.resource_version(), object.key().clone()));
        let previous = self.objects.insert(object.key().clone(), Live { object, created });
        if let Some(live) = &previous {
            self.object_bytes -= live.object.size();
            self.by_rv
                .remove(&(live.object.resource_version(), live.object.key().clone()));
            encoding_cache::release(&live.object);
        }
        self.recent_bytes = self.recent_bytes.max(self.object_bytes);
        previous
    }

    /// Rebuilds the maps: a B-tree that is filled in key order is half empty, and stays so.
    fn pack(&mut self) {
        self.objects = std::mem::take(&mut self.objects).into_iter().collect();
        self.by_rv = std::mem::take(&mut self.by_rv).into_iter().collect();
    }

    /// True if this same object (by uid), in any state, is alive here.
    fn is_held(&self, object: &Object) -> bool {
        let held = self.objects.get(object.key());
        held.is_some_and(|live| live.object.uid() == object.uid())
    }

    pub(super) fn take_live(&mut self, key: &ObjectKey) -> Option<Live> {
        let live = self.objects.remove(key)?;
        self.object_bytes -= live.object.size();
        self.by_rv.remove(&(live.object.resource_version(), key.clone()));
        encoding_cache::release(&live.object);
        Some(live)
    }

    /// Lowest RV at which an object that is created from now on, and is not held, can have been created.
    fn next_creation(&self) -> ResourceVersion {
        match self.complete {
            true => ResourceVersion(self.position.0.saturating_add(1)),
            false => ResourceVersion::ZERO,
        }
    }

    pub(super) fn put(&mut self, object: Object, is_conflated: bool) {
        let key = object.key().clone();
        let known = self.unhide(&key);
        let held = self.objects.get(&key);
        if held.is_some_and(|live| live.object.uid() != object.uid()) {
            // Deleted and created again between two lists: readers must receive the deletion first.
            self.remove_unwatched(&key, object.resource_version());
        }
        let (kind, created) = match (self.objects.get(&key), known) {
            (Some(live), _) => (ChangeKind::Updated, live.created),
            (None, Some(created)) => (ChangeKind::Created, created),
            (None, None) if is_conflated => (ChangeKind::Created, self.next_creation()),
            (None, None) => (ChangeKind::Created, object.resource_version()),
        };
        let previous = self.insert_live(object.clone(), created).map(|live| live.object);
        if let Some(dirty) = &mut self.dirty {
            dirty.objects.insert(key, Some(object.clone()));
        }
        self.push(Step::Change(Change::new(kind, object, previous, is_conflated)));
    }

    /// Also records the deletion of an object that is not held. It came and went while the source had no reader here,
    /// but a reader of this collection that is ahead may know it.
    fn remove(&mut self, last: Object, is_conflated: bool) {
        let known = self.unhide(last.key());
        let held = self.take_live(last.key());
        let created = held.as_ref().map(|live| live.created).or(known);
        let created = created.unwrap_or_else(|| self.next_creation());
        let previous = held.map(|live| live.object);
        if let Some(dirty) = &mut self.dirty {
            dirty.add_tombstone(last.clone());
        }
        self.add_tombstone(last.clone(), created);
        self.bound_dirty();
        let change = Change::new(ChangeKind::Deleted, last, previous, is_conflated);
        self.push(Step::Change(change));
    }

    /// Publishes a deletion that the source did not send.
    pub(super) fn push_deletion(&mut self, last: Object, previous: Object) {
        let change = Change::new(ChangeKind::Deleted, last, Some(previous), false);
        self.push(Step::Change(change));
    }

    fn remove_unwatched(&mut self, key: &ObjectKey, to: ResourceVersion) {
        let Some(live) = self.take_live(key) else { return };
        let previous = live.object;
        let after = self.position;
        let range = RangeTombstone {
            after,
            to,
            object: previous.clone(),
        };
        if let Some(dirty) = &mut self.dirty {
            dirty.add_range_tombstone(range.clone());
        }
        self.add_range_tombstone(range, live.created);
        self.bound_dirty();
        let last = previous.with_resource_version(after);
        let change = Change::new(ChangeKind::Deleted, last, Some(previous), true);
        self.push(Step::Unwatched(change));
    }
}
