//! What becomes of readers when the source came back with another history: the generation, and H, the highest RV that may
//! have been served before.
//!
//! A client's RV does not say in which generation it was learned. At or below H it may be either, and stays so after `C` has
//! passed H:
//!
//! ```text
//!   floor ───────── C ───────── H            below floor 410 · up to C told everything · above C 410
//!   floor ───────── H ───────── C            below floor 410 · up to H told everything · above H resumed by its number
//! ```
//! Above `C` and not above H it is of an older one, and may know what was never here. Nobody loops: whoever starts over
//! holds `C`. Copies of this collection know their generation and are resumed by number.

use std::collections::BTreeMap;

use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion};

use super::{Collection, Expired, RangeTombstone, Reader};

/// A copy that comes from a commit may have served more before it ended: at most so many RVs above its `C`. A commit is a
/// minute old at the most, and no etcd writes that much in a minute.
pub const UNCOMMITTED_MAX: u64 = 1 << 20;

/// What a source told that cannot follow from what is held: it has another history.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Contradiction {
    /// Another object of that name was created, and no deletion was told.
    #[error("object {key} is told with uid {told}, and with uid {held} it was never deleted")]
    Replaced {
        /// Key of the object.
        key: String,
        /// uid held.
        held: String,
        /// uid told.
        told: String,
    },
    /// An object changed or went that never came.
    #[error("object {key} at {version} is told as {event:?}, and it was never created")]
    NeverCame {
        /// Key of the object.
        key: String,
        /// What is told of it.
        event: EventType,
        /// Its RV.
        version: ResourceVersion,
    },
}

/// How a client that was cut may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumption {
    /// From its RV.
    ByNumber,
    /// What it holds is not known: it is told everything that is here, and what is gone.
    Everything,
}

// === impl Collection ===

impl Collection {
    /// H: the highest RV that may have been served in an older generation; zero when there was none.
    #[must_use]
    pub fn high(&self) -> ResourceVersion {
        self.high
    }

    /// Whether a reader may know more than is held: what is held comes from a commit, and more may have been served before.
    #[must_use]
    pub fn may_be_behind(&self) -> bool {
        self.served_to > self.position
    }

    /// Objects of older generations that a client may still hold: their last states.
    #[must_use]
    pub fn former(&self) -> &[Object] {
        &self.former
    }

    /// How a client at `position`, which cannot say of which generation it is, may go on.
    ///
    /// # Errors
    /// [`Expired`] when it has to start over.
    pub fn resumption(&self, position: ResourceVersion) -> Result<Resumption, Expired> {
        let floor = self.floor;
        let is_ahead = position > self.position && self.position <= self.high;
        if self.high.is_zero() || (position > self.high && !is_ahead) {
            Ok(Resumption::ByNumber)
        } else if position < floor || is_ahead {
            Err(Expired { position, floor })
        } else {
            Ok(Resumption::Everything)
        }
    }

    /// For a client that is told everything: a reader at or below H, and what is gone up to there. The objects up to the
    /// reader's position are told in between, in any order: whoever is cut there is told everything again. A name that is in use
    /// again, by whatever object, is not among what is gone.
    ///
    /// # Errors
    /// [`Expired`] when a deletion may have been forgotten that the client has to be told.
    pub fn correction(&self) -> Result<(Reader, Vec<Object>), Expired> {
        let to = self.high.min(self.position);
        let reader = match to == self.position {
            true => self.follow(),
            false => self.open(to)?,
        };
        let ranges = self.ranges.iter().filter(|range| range.after < to);
        let buried = self
            .tombstones
            .values()
            .filter(|object| object.resource_version() <= to);
        let gone = ranges.map(|range| &range.object).chain(buried).chain(&self.former);
        // What is there again under that name is told as its change, as after a list: the client may well hold it.
        let is_there = |key| self.objects.get(key).is_some_and(|live| live.created <= to);
        let gone = gone.filter(|object| !is_there(object.key()));
        Ok((reader, gone.cloned().collect()))
    }

    /// Whether the event that comes next in the log of a source that tells all of it, every change of every object, can
    /// follow from what is held. One that `C` covers says nothing, and neither do objects without uid, which kube-apiserver
    /// does not have.
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

    /// Gives what is held another number. Ignored when it is the own one, or nothing is held. Readers start over.
    pub fn adopt(&mut self, generation: u64) {
        if generation != self.generation && self.complete {
            let (list, at) = (self.objects().cloned().collect(), self.position);
            self.restart(generation, list, at);
        }
    }

    /// What comes first has to be of `generation`, or of a later one. Only for a collection that holds nothing; it is not stored.
    pub fn require(&mut self, generation: u64) {
        if !self.complete && self.position.is_zero() {
            self.generation = generation;
        }
    }

    /// What a new generation that begins with `list` at `at` keeps of this one.
    pub(super) fn leave_behind(&self, list: &[Object], at: ResourceVersion) -> (ResourceVersion, Vec<Object>) {
        if self.position.is_zero() {
            return (ResourceVersion::ZERO, Vec::new());
        }
        let high = self.high.max(self.position).max(self.served_to);
        if at > high {
            // Clients of old are below the floor.
            return (high, Vec::new());
        }
        let ranges = self.ranges.iter().map(|range| &range.object);
        let buried = self.former.iter().chain(self.tombstones.values()).chain(ranges);
        let known: BTreeMap<&ObjectKey, &Object> = buried.chain(self.objects()).map(|o| (o.key(), o)).collect();
        let listed: BTreeMap<&ObjectKey, &str> = list.iter().map(|o| (o.key(), o.uid())).collect();
        let is_gone = |(key, object): &(&ObjectKey, &Object)| listed.get(key) != Some(&object.uid());
        let gone = known.into_iter().filter(is_gone);
        (high, gone.map(|(_, object)| object.clone()).collect())
    }

    /// The former objects as a store keeps them: ranges that begin at zero, which no list leaves.
    pub(super) fn former_ranges(&self) -> impl Iterator<Item = RangeTombstone> {
        let to = ResourceVersion(self.high.0.saturating_add(1));
        self.former.iter().map(move |object| RangeTombstone {
            after: ResourceVersion::ZERO,
            to,
            object: object.clone(),
        })
    }

    /// Once the floor has passed H, clients of old start over and need not be told what is gone.
    pub(super) fn forget_former(&mut self) {
        if !self.former.is_empty() && self.floor > self.high {
            self.former = Vec::new();
        }
    }
}
