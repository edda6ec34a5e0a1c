//! Resumption of readers after the source came back with another history: the generation, and H, the highest RV that
//! may have been served before.
//!
//! A client's RV does not show in which generation the client learned it. An RV at or below H may be of either
//! generation, also after `C` has passed H:
//!
//! ```text
//!   floor ───────── C ───────── H            below floor 410 · up to C receives everything · above C 410
//!   floor ───────── H ───────── C            below floor 410 · up to H receives everything · above H resumed by its number
//! ```
//! An RV above `C` and not above H is of an older generation: its client may know objects that never existed here. No
//! client loops, because one that starts over holds `C`. Copies of this collection know their generation and are
//! resumed by number.
//!
//! Objects of older generations are kept up to [`PREVIOUS_BYTES_MAX`]. If there are more, every RV up to H gets 410,
//! `C` excepted.
//!
//! H may be a number that the source never reaches: a leader fed it, or a backup is very old. The RVs far above the
//! generation's begin and far below H are therefore *settled*: they count as the present generation's. A client of an
//! older one that holds such an RV was away for days, before the generation began or after it.

use std::collections::BTreeMap;

use yurt_apimachinery::collecting::inserted;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion};

use super::mark::{ahead_of, distance_at};
use super::{Collection, Expired, PREVIOUS_BYTES_MAX, RangeTombstone, Reader};

/// Width of the RVs above the begin of a generation, and of those below H, that are never settled: so many distances of
/// a mark. For an etcd with a hundred writes each second that is a week, for RVs that count µs five days.
const UNSETTLED_MARKS: u64 = 64;

/// Objects that clients of older generations may hold and that are absent now: their last states.
#[derive(Clone, Debug, Default)]
pub(super) struct Previous {
    objects: Vec<Object>,
    bytes: usize,
}

/// An event that cannot follow from the held state: the source has another history.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Contradiction {
    /// The source created another object of that name without sending a deletion.
    #[error("object {key} was sent with uid {told}, but the held one with uid {held} was never deleted")]
    Replaced {
        /// Key of the object.
        key: String,
        /// uid held.
        held: String,
        /// uid sent.
        told: String,
    },
    /// A change or deletion of an object that was never created.
    #[error("object {key} at {version} was sent as {event:?}, but it was never created")]
    NeverCame {
        /// Key of the object.
        key: String,
        /// Type of the event.
        event: EventType,
        /// Its RV.
        version: ResourceVersion,
    },
}

/// Resumption of a client whose watch was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumption {
    /// From its RV.
    ByNumber,
    /// The client's state is unknown: it receives every object that is here, and every deletion.
    Everything,
    /// The client is ahead of a derived collection: its state is unknown, and it has to wait until `C` has reached it.
    Later,
}

// === impl Previous ===

impl Previous {
    /// True if objects may be missing. The bytes show it after a restart as well.
    fn is_cut(&self) -> bool {
        self.bytes > PREVIOUS_BYTES_MAX
    }

    /// Adds an object, unless too many bytes are held already.
    pub(super) fn push(&mut self, object: Object) {
        if !self.is_cut() {
            self.bytes += object.size();
            self.objects.push(object);
        }
    }
}

impl FromIterator<Object> for Previous {
    fn from_iter<T: IntoIterator<Item = Object>>(objects: T) -> Self {
        let mut previous = Self::default();
        objects.into_iter().for_each(|object| previous.push(object));
        previous
    }
}

// === impl Collection ===

impl Collection {
    /// H: the highest RV that may have been served in an older generation; zero when there was none.
    #[must_use]
    pub fn high(&self) -> ResourceVersion {
        self.high
    }

    /// True if a reader may know more than is held: the state comes from a commit, and more may have been served
    /// before.
    #[must_use]
    pub fn may_be_behind(&self) -> bool {
        self.served_to > self.position
    }

    /// Objects of older generations that a client may still hold: their last states.
    #[must_use]
    pub fn previous(&self) -> &[Object] {
        &self.previous.objects
    }

    /// Decides how a client at `position`, which cannot name its generation, may resume.
    ///
    /// # Errors
    /// [`Expired`] when it has to start over.
    pub fn resumption(&self, position: ResourceVersion) -> Result<Resumption, Expired> {
        let floor = self.floor;
        let (is_ahead, may_be_older) = (position > self.position, self.may_be_older(position));
        let is_of_another_history =
            is_ahead && self.position <= self.high && !self.high.is_zero() && !self.may_lag_behind(position);
        let is_forgotten = self.previous.is_cut() && may_be_older && position != self.position;
        if is_ahead && self.derived.is_some() && !is_of_another_history {
            Ok(Resumption::Later)
        } else if position > self.revised_to() && !may_be_older && !is_of_another_history {
            Ok(Resumption::ByNumber)
        } else if position < floor || is_of_another_history || is_forgotten || self.is_in_gap(position) {
            Err(Expired { position, floor })
        } else {
            Ok(Resumption::Everything)
        }
    }

    /// True if a client at `position` may be of an older generation.
    fn may_be_older(&self, position: ResourceVersion) -> bool {
        position <= self.high && !self.is_settled(position)
    }

    /// True if `position` is far above the begin of the generation, and far below H.
    fn is_settled(&self, position: ResourceVersion) -> bool {
        let to = self.high.0.saturating_sub(unsettled_width(self.high));
        position > self.unsettled_begin() && position.0 <= to
    }

    /// The last RV above the begin of the generation that is not settled.
    fn unsettled_begin(&self) -> ResourceVersion {
        ResourceVersion(self.began.0.saturating_add(unsettled_width(self.began)))
    }

    /// True if a client above `C` may be of this generation although `C` has not passed H: another copy was ahead.
    fn may_lag_behind(&self, position: ResourceVersion) -> bool {
        self.is_settled(position) && position <= ahead_of(self.position)
    }

    /// The lowest RV from which no client up to `C` may be of an older generation.
    pub(super) fn oldest_sure(&self) -> ResourceVersion {
        let above = |rv: ResourceVersion| ResourceVersion(rv.0.saturating_add(1));
        match (self.high.is_zero(), self.is_settled(self.position)) {
            (true, _) => ResourceVersion::ZERO,
            (false, true) => above(self.unsettled_begin()),
            (false, false) => above(self.high),
        }
    }

    /// Returns a reader for a client at `position` that receives everything, and the deletions up to the reader's
    /// position. The objects up to there are sent in between, in any order: a client that is cut there receives
    /// everything again. A name that any object uses again is not among the deletions.
    ///
    /// # Errors
    /// [`Expired`] when a deletion that the client needs may have been forgotten.
    pub fn correction(&self, position: ResourceVersion) -> Result<(Reader, Vec<Object>), Expired> {
        let mut to = self.unsettled().max(position).min(self.position);
        // No reader begins inside of a gap, and neither does a client. From the start of the gap on the reader sends
        // everything in RV order, so a client that is cut there misses nothing. Gaps of several sources may overlap.
        while let Some(start) = self.start_of_gap(to) {
            to = start;
        }
        let reader = match to == self.position {
            true => self.follow(),
            false => self.open(to)?,
        };
        // The reader delivers the later ones, but never those of objects that were never shown.
        let is_due = |range: &&RangeTombstone| range.after < to || self.was_never_shown(range);
        let ranges = self.ranges.iter().filter(is_due);
        let buried = self
            .tombstones
            .values()
            .filter(|object| object.resource_version() <= to);
        let hidden = self.withheld().map(|withheld| &withheld.object);
        let gone = ranges.map(|range| &range.object).chain(buried).chain(self.previous());
        let gone = gone.chain(hidden);
        // An object that exists again under that name is sent as a change, as after a list: the client may well hold
        // it.
        let is_there = |key| self.objects.get(key).is_some_and(|live| live.created <= to);
        let gone = gone.filter(|object| !is_there(object.key()));
        Ok((reader, gone.cloned().collect()))
    }

    /// Checks that the next event can follow from the held state. The source has to send every change of every object.
    /// An event that `C` covers proves nothing. Neither do objects without uid, which kube-apiserver does not have.
    ///
    /// # Errors
    /// [`Contradiction`] when it cannot.
    pub fn check_follows(&self, event: EventType, object: &Object) -> Result<(), Contradiction> {
        if !self.complete || object.resource_version() <= self.position {
            return Ok(());
        }
        let key = || object.key().to_string();
        let are_two = |held: &Object| ![held.uid(), ""].contains(&object.uid()) && !held.uid().is_empty();
        match self.object(object.key()) {
            Some(held) if are_two(held) => Err(Contradiction::Replaced {
                key: key(),
                held: held.uid().to_owned(),
                told: object.uid().to_owned(),
            }),
            None if matches!(event, EventType::Modified | EventType::Deleted) => Err(Contradiction::NeverCame {
                key: key(),
                event,
                version: object.resource_version(),
            }),
            _ => Ok(()),
        }
    }

    /// Gives the held state another generation. Ignored when it is the present one, or nothing is held. Readers start
    /// over.
    pub fn adopt(&mut self, generation: u64) {
        if generation != self.generation && self.complete {
            let (list, at) = (self.objects().cloned().collect(), self.position);
            self.restart(generation, list, at);
        }
    }

    /// Requires data to be of `generation`, or of a later one, whenever nothing is held. The requirement is not stored.
    pub fn require(&mut self, generation: u64) {
        self.required = generation;
        if !self.complete && self.position.is_zero() {
            self.generation = generation;
        }
    }

    /// State that a new generation, which begins with `list` at `at`, keeps of this one.
    pub(super) fn leave_behind(&self, list: &[Object], at: ResourceVersion) -> (ResourceVersion, Previous) {
        if self.position.is_zero() {
            return (ResourceVersion::ZERO, Previous::default());
        }
        let high = self.high.max(self.position).max(self.served_to);
        if at > high {
            // Clients of older generations are below the floor.
            return (high, Previous::default());
        }
        if self.previous.is_cut() {
            return (high, self.previous.clone());
        }
        let ranges = self.ranges.iter().map(|range| &range.object);
        let buried = self.previous().iter().chain(self.tombstones.values()).chain(ranges);
        let known: BTreeMap<&ObjectKey, &Object> = inserted(buried.chain(self.objects()).map(|o| (o.key(), o)));
        let listed: BTreeMap<&ObjectKey, &str> = inserted(list.iter().map(|o| (o.key(), o.uid())));
        let is_gone = |(key, object): &(&ObjectKey, &Object)| listed.get(key) != Some(&object.uid());
        let gone = known.into_iter().filter(is_gone);
        (high, gone.map(|(_, object)| object.clone()).collect())
    }

    /// The previous objects in the form that a store keeps: ranges that begin at zero, where no list's range begins.
    pub(super) fn previous_ranges(&self) -> impl Iterator<Item = RangeTombstone> {
        let to = ResourceVersion(self.high.0.saturating_add(1));
        self.previous().iter().map(move |object| RangeTombstone {
            after: ResourceVersion::ZERO,
            to,
            object: object.clone(),
        })
    }

    /// Drops the previous objects once the floor has passed H: clients of older generations then start over and need no
    /// deletions.
    pub(super) fn forget_previous(&mut self) {
        if !self.previous().is_empty() && self.floor > self.unsettled() {
            self.previous = Previous::default();
        }
    }
}

fn unsettled_width(at: ResourceVersion) -> u64 {
    distance_at(at).saturating_mul(UNSETTLED_MARKS)
}
