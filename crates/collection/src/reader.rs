//! Readers of a collection: exact history while they keep up, conflated catch-up by RV when they do not.
//!
//! A reader is only a position. It holds no queue, so a slow reader delays no other.

use std::sync::Arc;

use yurt_apimachinery::{Object, ObjectKey, ResourceVersion};

use super::derived::Withheld;
use super::{Change, ChangeKind, Collection, KeyRange, RangeTombstone, Step};

/// Placeholder for "no RV". A collection has thousands of readers, and an `Option` would cost each of them another
/// word.
const NO_STEP: ResourceVersion = ResourceVersion(u64::MAX);

/// A reader's position in one collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Everything up to here has been delivered.
    position: ResourceVersion,
    /// Next log entry while the reader keeps up; `None` while it catches up by RV (or waits for `C` to reach it).
    seq: Option<u64>,
    /// Start of the current catch-up, never inside of a step: objects created later are ADDED, older ones MODIFIED.
    resumed_at: ResourceVersion,
    /// Range tombstones up to this list RV were already delivered in this catch-up.
    ranges_to: ResourceVersion,
    /// Set when [`Delivery::DiffBegin`] was delivered and its end was not; [`NO_STEP`] outside of a step.
    step_from: ResourceVersion,
    /// `C` when the current catch-up began: it delivered nothing of objects deleted by then. The start of the step if
    /// the log delivered a part of one. [`NO_STEP`] before the catch-up's first read.
    began_at: ResourceVersion,
    /// Omits deletions of objects that the client cannot know.
    is_client: bool,
    generation: u64,
}

/// One delivery to a reader, in order.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// Exact history: the change with the state before it.
    Exact(Arc<Change>),
    /// Catch-up: the current state of an object that changed since the reader's position.
    Current {
        /// Its current state.
        object: Object,
        /// It did not exist when the catch-up began. An earlier batch may have sent it: ADDED is safe for both cases,
        /// while a change of an unknown object contradicts the history.
        created: bool,
        /// The reader may hold a state of it, from before the catch-up or from within.
        known: bool,
    },
    /// Catch-up: the object was deleted. It carries the deletion's RV, or the reader's own position if the deletion was
    /// not watched.
    Gone(Object),
    /// Begin of a step that ends with [`Delivery::DiffEnd`] (sent to replicas only).
    DiffBegin(ResourceVersion),
    /// End of that step.
    DiffEnd {
        /// Position after it.
        to: ResourceVersion,
        /// True if the step crosses a list: objects may have come and gone inside it without being seen here.
        jumped: bool,
    },
}

/// An object that is gone, in a catch-up.
struct Gone<'a> {
    rv: ResourceVersion,
    object: &'a Object,
    /// Readers below it do not know the object; `None` for a tombstone, which the collection notes.
    created: Option<ResourceVersion>,
}

/// The reader's position is older than the remembered history, or of another generation: it has to start over (410).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too old resource version: {position} ({floor})")]
pub struct Expired {
    /// The reader's position.
    pub position: ResourceVersion,
    /// Oldest position that could resume.
    pub floor: ResourceVersion,
}

/// All objects at one instant, and a reader that continues from there.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Live objects in key order.
    pub objects: Vec<Object>,
    /// `C` at that instant.
    pub position: ResourceVersion,
    /// Continues after the snapshot.
    pub reader: Reader,
}

// === impl Reader ===

impl Reader {
    /// Everything up to this RV has been delivered.
    #[must_use]
    pub fn position(&self) -> ResourceVersion {
        self.position
    }

    /// Omits deletions of objects created after the reader's position and never sent to a reader here. Replicas must
    /// not use it: they serve readers of their own, which may be ahead of them.
    #[must_use]
    pub fn for_client(mut self) -> Self {
        self.is_client = true;
        self
    }

    /// Its position, or the one before the step that it has received a part of.
    fn at_rest(&self) -> ResourceVersion {
        match self.step_from {
            NO_STEP => self.position,
            from => from,
        }
    }
}

#[cfg(test)]
impl Reader {
    /// Drops the position in the log, as after a restart or when the tail does not reach back: only the RV index is
    /// left.
    pub(super) fn without_tail(mut self) -> Self {
        self.seq = None;
        self
    }

    pub(super) fn resumed_at(&self) -> ResourceVersion {
        self.resumed_at
    }
}

// === impl Gone ===

impl<'a> Gone<'a> {
    fn hidden(hidden: &'a Withheld) -> Self {
        Self {
            rv: hidden.object.resource_version(),
            object: &hidden.object,
            created: Some(hidden.created),
        }
    }
}

// === impl Collection ===

impl Collection {
    /// Opens a reader that has seen everything up to `position`. A position above `C` is held silently until `C` passes
    /// it.
    ///
    /// # Errors
    /// [`Expired`] when deletions after `position` may have been forgotten, or `position` is inside a
    /// [`Gap`](super::Gap).
    pub fn open(&self, position: ResourceVersion) -> Result<Reader, Expired> {
        let reader = Reader {
            position,
            seq: self.seq_after(position),
            resumed_at: position,
            ranges_to: ResourceVersion::ZERO,
            step_from: NO_STEP,
            began_at: NO_STEP,
            is_client: false,
            generation: self.generation(),
        };
        self.check(&reader)?;
        if self.is_in_gap(position) {
            return Err(self.expired(&reader));
        }
        Ok(reader)
    }

    /// Objects of `namespace` (all when `None`) and a reader that continues after them.
    #[must_use]
    pub fn snapshot(&self, namespace: Option<&str>) -> Snapshot {
        let keys = namespace.map_or_else(KeyRange::all, KeyRange::namespace);
        let objects = self
            .snapshot_at(self.position(), &keys, "")
            .map(|snapshot| snapshot.cloned().collect());
        Snapshot {
            objects: objects.unwrap_or_default(),
            position: self.position(),
            reader: self.follow(),
        }
    }

    /// A reader that has seen everything up to now.
    #[must_use]
    pub fn follow(&self) -> Reader {
        Reader {
            position: self.position(),
            seq: Some(self.next_seq()),
            resumed_at: self.position(),
            ranges_to: self.position(),
            step_from: NO_STEP,
            began_at: NO_STEP,
            is_client: false,
            generation: self.generation(),
        }
    }

    /// The next deliveries for `reader`, about `max` of them (one RV is never split); empty when it is up to date.
    ///
    /// # Errors
    /// [`Expired`] when the reader fell behind what is remembered, or the generation changed.
    pub fn read(&self, reader: &mut Reader, max: usize) -> Result<Vec<Delivery>, Expired> {
        self.read_within(reader, max, &KeyRange::all())
    }

    /// As [`Self::read`], for a reader of `keys` only.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_within(&self, reader: &mut Reader, max: usize, keys: &KeyRange) -> Result<Vec<Delivery>, Expired> {
        self.check(reader)?;
        if reader.seq.is_some_and(|seq| seq < self.first_seq) {
            reader.seq = None;
            reader.began_at = NO_STEP;
            reader.resumed_at = reader.at_rest();
            reader.ranges_to = ResourceVersion::ZERO;
        }
        match reader.seq {
            Some(seq) => Ok(self.read_log(reader, seq, max, keys)),
            None if reader.position > self.position => Ok(Vec::new()),
            None => Ok(self.catch_up(reader, max, keys)),
        }
    }

    pub(super) fn check(&self, reader: &Reader) -> Result<(), Expired> {
        // `None` for a reader that keeps up: the log contains its history.
        let resumed_at = match reader.seq {
            None => Some(reader.resumed_at),
            Some(seq) => (seq < self.first_seq).then(|| reader.at_rest()),
        };
        let is_lost = |resumed_at| reader.position < self.floor || self.is_in_gap(resumed_at);
        if reader.generation != self.generation || resumed_at.is_some_and(is_lost) {
            return Err(self.expired(reader));
        }
        Ok(())
    }

    fn expired(&self, reader: &Reader) -> Expired {
        let position = reader.position;
        let floor = self.end_of_gap(position).unwrap_or(self.floor);
        Expired { position, floor }
    }

    fn read_log(&self, reader: &mut Reader, mut seq: u64, max: usize, keys: &KeyRange) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        while let Some(step) = self.step_at(seq) {
            // A batch ends at the bounds of a step.
            let ends = matches!(deliveries.last(), Some(Delivery::DiffEnd { .. }))
                || matches!(step, Step::DiffBegin { .. }) && !deliveries.is_empty();
            if deliveries.len() >= max || ends {
                break;
            }
            seq += 1;
            let is_unknown = self.is_unknown(reader, step);
            match step {
                Step::Change(change) => reader.position = change.resource_version(),
                Step::DiffBegin { .. } => reader.step_from = reader.position,
                Step::DiffEnd { to, .. } => (reader.position, reader.step_from) = (*to, NO_STEP),
                Step::Unwatched(_) => {}
            }
            deliveries.push(match step {
                Step::Change(_) if is_unknown => continue,
                Step::Change(change) | Step::Unwatched(change) if !keys.contains(change.object.key().as_str()) => {
                    continue;
                }
                Step::Unwatched(change) if change.resource_version() < reader.position => {
                    Delivery::Gone(change.object.clone().with_resource_version(reader.position))
                }
                Step::Change(change) | Step::Unwatched(change) => Delivery::Exact(change.clone()),
                Step::DiffBegin { to } => Delivery::DiffBegin(*to),
                Step::DiffEnd { to, jumped } => Delivery::DiffEnd {
                    to: *to,
                    jumped: *jumped,
                },
            });
        }
        reader.seq = Some(seq);
        if seq == self.next_seq() {
            reader.position = self.position.max(reader.position);
        }
        deliveries
    }

    /// True if `step` deletes an object that a client with everything before it cannot know.
    fn is_unknown(&self, reader: &Reader, step: &Step) -> bool {
        let Step::Change(change) = step else { return false };
        let came_and_went = change.kind == ChangeKind::Deleted && change.previous.is_none();
        // Within a step it has received nothing of this object, even if it has received other objects.
        let may_know = || self.may_be_known(change.resource_version(), change.object.key(), reader.at_rest());
        reader.is_client && came_and_went && !may_know()
    }

    fn catch_up(&self, reader: &mut Reader, max: usize, keys: &KeyRange) -> Vec<Delivery> {
        self.catch_up_by(reader, max, keys, self.ranges.iter())
    }

    /// As [`Self::catch_up`]. `ranges` are all of them in order; each is looked at once.
    pub(super) fn catch_up_by<'a>(
        &self,
        reader: &mut Reader,
        max: usize,
        keys: &KeyRange,
        ranges: impl Iterator<Item = &'a RangeTombstone>,
    ) -> Vec<Delivery> {
        let (mut deliveries, mut ranges) = (Vec::new(), ranges.peekable());
        if reader.step_from == NO_STEP && reader.position < self.position {
            reader.step_from = reader.position;
            deliveries.push(Delivery::DiffBegin(self.position));
        }
        // It may know objects from before the catch-up, and those that changed since it began: an earlier state may
        // have been sent in this catch-up.
        let knows = (reader.resumed_at, reader.position);
        let from = self.first_due(reader);
        if reader.began_at == NO_STEP {
            let is_within_step = reader.resumed_at < reader.position;
            reader.began_at = if is_within_step {
                reader.resumed_at
            } else {
                self.position
            };
        }
        let mut live = self.by_rv.range((from, ObjectKey::parse(""))..).peekable();
        let mut gone = self.gone_from(from).peekable();
        loop {
            let next_live = live.peek().map(|(rv, _)| *rv);
            let next_gone = gone.peek().map(|gone| gone.rv);
            let next = match (next_live, next_gone) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            let begun = |range: &&RangeTombstone| next.is_none_or(|rv| range.after < rv);
            let due = std::iter::from_fn(|| ranges.next_if(begun));
            self.tell_ranges(reader, due, keys, &mut deliveries);
            let Some(rv) = next else { break };
            if deliveries.len() >= max && rv > reader.position {
                return deliveries;
            }
            reader.position = rv;
            let up_to = if rv <= reader.began_at { knows.0 } else { knows.1 };
            if next_gone == Some(rv) {
                let gone = gone.next().filter(|gone| keys.contains(gone.object.key().as_str()));
                let gone = gone.filter(|gone| !reader.is_client || self.is_known(gone, up_to));
                deliveries.extend(gone.map(|gone| Delivery::Gone(gone.object.clone())));
            } else if let Some(found) = live
                .next()
                .filter(|(_, key)| keys.contains(key.as_str()))
                .and_then(|(_, key)| self.objects.get(key))
            {
                deliveries.push(Delivery::Current {
                    object: found.object.clone(),
                    created: found.created > reader.resumed_at,
                    known: !reader.is_client || found.created <= up_to,
                });
            }
        }
        reader.position = self.position;
        reader.seq = Some(self.next_seq());
        let from = std::mem::replace(&mut reader.step_from, NO_STEP);
        if from != NO_STEP {
            let ranges = self.ranges.iter().map(|range| range.to);
            let jumped = ranges.chain(self.gaps.iter().map(|gap| gap.to)).any(|to| to > from);
            let to = self.position;
            deliveries.push(Delivery::DiffEnd { to, jumped });
        }
        deliveries
    }

    /// The first RV that a reader in catch-up has not received as a whole. A derived collection may have changed at its
    /// position after the reader had reached it.
    fn first_due(&self, reader: &Reader) -> ResourceVersion {
        let repeats = reader.began_at == NO_STEP && reader.position <= self.revised_to();
        ResourceVersion(reader.position.0.saturating_add(u64::from(!repeats)))
    }

    /// Deletions from `rv` on, in RV order: those of the source, and objects that a derived collection hides.
    fn gone_from(&self, rv: ResourceVersion) -> impl Iterator<Item = Gone<'_>> {
        let hidden = self.withheld().filter(|hidden| hidden.object.resource_version() >= rv);
        let mut hidden: Vec<Gone<'_>> = hidden.map(Gone::hidden).collect();
        hidden.sort_by_key(|gone| gone.rv);
        let mut hidden = hidden.into_iter().peekable();
        let mut buried = self.tombstones.range((rv, ObjectKey::parse(""))..).peekable();
        std::iter::from_fn(move || {
            let next_hidden = hidden.peek().map(|gone| gone.rv);
            let is_buried = |((rv, _), _): &(&(ResourceVersion, ObjectKey), &Object)| {
                next_hidden.is_none_or(|hidden| *rv <= hidden)
            };
            let buried = buried.next_if(is_buried).map(|((rv, _), object)| Gone {
                rv: *rv,
                object,
                created: None,
            });
            buried.or_else(|| hidden.next())
        })
    }

    /// True if a reader that knows nothing above `position` may know the object.
    fn is_known(&self, gone: &Gone<'_>, position: ResourceVersion) -> bool {
        match gone.created {
            Some(created) => created <= position,
            None => self.may_be_known(gone.rv, gone.object.key(), position),
        }
    }

    /// Delivers the range tombstones that come before the next exact RV: those that began at or before the position the
    /// reader will still have then. They carry that position, so a cut repeats them and nothing is lost.
    fn tell_ranges<'a>(
        &self,
        reader: &mut Reader,
        begun: impl Iterator<Item = &'a RangeTombstone>,
        keys: &KeyRange,
        deliveries: &mut Vec<Delivery>,
    ) {
        let mut told = reader.ranges_to;
        let (began, mut at) = (reader.position, reader.position);
        for range in begun.filter(|range| range.to > reader.ranges_to && range.to > began) {
            at = at.max(range.after);
            let up_to = if range.to <= reader.began_at {
                reader.resumed_at
            } else {
                began
            };
            let key = range.object.key();
            let is_told = !reader.is_client || self.may_be_known(range.to, key, up_to);
            if is_told && keys.contains(key.as_str()) {
                deliveries.push(Delivery::Gone(range.object.with_resource_version(at)));
            }
            told = told.max(range.to);
        }
        reader.position = at;
        reader.ranges_to = told;
    }
}
