//! Derived collections: the filtered view of another collection, with the RVs and the position of its source.
//!
//! A view also changes when an input of its filters does, and such a change has no RV of its own.
//! [`Collection::revise`] publishes it at the present position `C`: no later event has a lower RV. Readers that are
//! behind receive it in RV order, because the revised objects carry `C`. A reader that resumes at or below the last
//! revision may know other content under its RV. It receives everything, as after a change of the generation
//! (`timeline`).
//!
//! ```text
//!   floor ───── revised up to ───── C        below floor 410 · up to "revised" receives everything · above it by number
//! ```
//!
//! A client ignores a change under the RV that it has (client-go calls no handler). Where a revision uses an RV that
//! the object already had, it is repeated under the next position.

use std::collections::{BTreeMap, BTreeSet};

use yurt_apimachinery::{Object, ObjectKey, ResourceVersion};

use super::{Change, ChangeKind, Collection, RangeTombstone, Recovered, Step};

mod project;

pub use project::{Filtered, outline};

/// Placeholder for the creation of an object that was never shown here.
const NEVER: ResourceVersion = ResourceVersion(u64::MAX);

/// State of a derived collection in addition to its objects.
#[derive(Debug)]
pub(super) struct Derived {
    /// Readers up to here may hold other content than their number says.
    unsettled: ResourceVersion,
    /// Position of the last revision.
    revised_at: ResourceVersion,
    /// Number of revisions.
    revisions: u64,
    /// Keys to send again under the next position.
    again: BTreeSet<ObjectKey>,
    /// Objects of the source that the view hides: the RV at which it hid each, and the RV from which on a reader may
    /// know it. No budget applies: there are at most as many as objects in the source.
    withheld: BTreeMap<ObjectKey, Withheld>,
}

/// An object that the view hides.
#[derive(Debug)]
pub(super) struct Withheld {
    pub(super) object: Object,
    pub(super) created: ResourceVersion,
}

// === impl Collection ===

impl Collection {
    /// A derived collection with the state `recovered`, filtered by the caller. Readers up to `shown_to` may hold
    /// another view of the source; `withheld` are the objects that this view hides, with nothing that it must not show.
    #[must_use]
    pub fn derived(recovered: Recovered, shown_to: ResourceVersion, withheld: Vec<Object>) -> Self {
        let mut collection = Self::new(false);
        collection.recover(recovered);
        let at = collection.position;
        collection.derived = Some(Box::new(Derived {
            unsettled: shown_to,
            revised_at: at,
            revisions: 0,
            again: BTreeSet::new(),
            withheld: BTreeMap::new(),
        }));
        withheld
            .into_iter()
            .for_each(|object| collection.withhold(object.with_resource_version(at)));
        collection
    }

    /// Changes objects because an input of the view changed: `None` hides one. Every object gets the present position
    /// as its RV, a hidden one is DELETED with its last state. Readers up to the position receive everything when they
    /// resume.
    pub fn revise(&mut self, changes: Vec<(ObjectKey, Option<Object>)>) {
        if changes.is_empty() {
            return;
        }
        let at = self.position;
        for (key, state) in changes {
            let is_used = self.last_state(&key).is_some_and(|last| last.resource_version() == at);
            match state {
                Some(object) => {
                    self.put(object.with_resource_version(at), false);
                    if let Some(derived) = self.derived.as_mut().filter(|_| is_used) {
                        derived.again.insert(key);
                    }
                }
                None => self.hide(&key),
            }
        }
        if let Some(derived) = &mut self.derived {
            derived.unsettled = derived.unsettled.max(at);
            derived.revised_at = at;
            derived.revisions += 1;
        }
    }

    /// Gives the objects of `keys` the present position as RV, and the next one again. Readers may have other content
    /// under any RV up to here, served before this collection existed.
    pub fn restamp(&mut self, keys: Vec<ObjectKey>) {
        let state = |key: &ObjectKey| self.object(key).cloned();
        let same = keys.iter().map(|key| (key.clone(), state(key)));
        let same = same.filter(|(_, state)| state.is_some()).collect();
        self.revise(same);
        if let Some(derived) = &mut self.derived {
            derived.again.extend(keys);
        }
    }

    /// Records an object that the view hides and never showed. Only a reader of an earlier view may hold it: one that
    /// receives everything.
    pub fn withhold(&mut self, object: Object) {
        let created = NEVER;
        if let Some(derived) = self
            .derived
            .as_mut()
            .filter(|_| !self.objects.contains_key(object.key()))
        {
            let key = object.key().clone();
            derived.withheld.entry(key).or_insert(Withheld { object, created });
        }
    }

    /// Number of revisions so far.
    #[must_use]
    pub fn revisions(&self) -> u64 {
        self.derived.as_ref().map_or(0, |derived| derived.revisions)
    }

    /// True if the state at `at` is still the one that it was after `revisions` revisions.
    #[must_use]
    pub fn is_state_of(&self, at: ResourceVersion, revisions: u64) -> bool {
        let derived = self.derived.as_ref();
        derived.is_none_or(|derived| at > derived.revised_at || derived.revisions == revisions)
    }

    /// Upper bound of the RVs that readers of this generation may have been given, here or before a recovery. A view
    /// takes those of older generations over with [`Recovered::high`].
    #[must_use]
    pub fn shown_to(&self) -> ResourceVersion {
        self.position.max(self.served_to)
    }

    /// True if an earlier process, or another one, may have served this generation.
    #[must_use]
    pub fn was_served_before(&self) -> bool {
        !self.served_to.is_zero()
    }

    /// Readers up to here may hold other content than their number says; zero if no reader does.
    pub(super) fn unsettled(&self) -> ResourceVersion {
        self.high.max(self.revised_to())
    }

    /// As [`Self::unsettled`], in this generation.
    pub(super) fn revised_to(&self) -> ResourceVersion {
        self.derived
            .as_ref()
            .map_or(ResourceVersion::ZERO, |derived| derived.unsettled)
    }

    /// Hidden objects, in no useful order.
    pub(super) fn withheld(&self) -> impl Iterator<Item = &Withheld> {
        self.derived.iter().flat_map(|derived| derived.withheld.values())
    }

    /// The object, or its state when it was hidden.
    fn last_state(&self, key: &ObjectKey) -> Option<&Object> {
        let hidden = || Some(&self.derived.as_ref()?.withheld.get(key)?.object);
        self.object(key).or_else(hidden)
    }

    pub(super) fn is_withheld(&self, key: &ObjectKey) -> bool {
        let derived = self.derived.as_ref();
        derived.is_some_and(|derived| derived.withheld.contains_key(key))
    }

    /// Forgets that `key` is hidden: it is shown again, or the source deleted it. Returns from which RV on a reader may
    /// know the object, if it was shown before.
    pub(super) fn unhide(&mut self, key: &ObjectKey) -> Option<ResourceVersion> {
        let hidden = self.derived.as_mut()?.withheld.remove(key)?;
        (hidden.created != NEVER).then_some(hidden.created)
    }

    /// Takes an unwatched deletion up to `to`, if the view hides this object. Readers receive it as if the object had
    /// been shown until now, because some may not have received that it was hidden.
    pub(super) fn remove_hidden(&mut self, gone: &Object, to: ResourceVersion) {
        let after = self.position;
        let Some(derived) = &mut self.derived else { return };
        let hidden = derived.withheld.get(gone.key());
        if hidden.is_none_or(|hidden| hidden.object.uid() != gone.uid()) {
            return;
        }
        if let Some(Withheld { object, created }) = derived.withheld.remove(gone.key()) {
            let last = object.with_resource_version(after);
            self.add_range_tombstone(RangeTombstone { after, to, object }, created);
            if created != NEVER {
                let change = Change::new(ChangeKind::Deleted, last, None, true);
                self.push(Step::Unwatched(change));
            }
        }
    }

    /// True if the object of `range` was hidden and never shown. Only a client that receives everything may hold it.
    pub(super) fn was_never_shown(&self, range: &RangeTombstone) -> bool {
        !self.may_be_known(range.to, range.object.key(), self.position)
    }

    /// Sends the objects again whose last revision had no RV of its own.
    pub(super) fn repeat_revisions(&mut self) {
        let Some(derived) = self.derived.as_mut().filter(|derived| !derived.again.is_empty()) else {
            return;
        };
        let again = std::mem::take(&mut derived.again);
        let at = self.position;
        let state = |key: &ObjectKey| {
            self.object(key)
                .filter(|object| object.resource_version() < at)
                .cloned()
        };
        let due = again.into_iter().map(|key| (state(&key), key));
        let due = due
            .filter_map(|(state, key)| state.map(|state| (key, Some(state))))
            .collect();
        self.revise(due);
    }

    fn hide(&mut self, key: &ObjectKey) {
        let at = self.position;
        let Some(live) = self.take_live(key) else { return };
        let (previous, created) = (live.object, live.created);
        let object = previous.with_resource_version(at);
        if let Some(derived) = &mut self.derived {
            let withheld = Withheld {
                object: object.clone(),
                created,
            };
            derived.withheld.insert(key.clone(), withheld);
        }
        self.push_deletion(object, previous);
    }
}
