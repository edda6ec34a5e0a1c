//! A replica: objects, tombstones, `C`, floor, completeness, generation; the changes it applies and the answers it
//! gives to readers.

use super::cloud::{Cloud, KEYS, Object, Objects};

/// A deletion without a watch event, somewhere in `(after, to]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// `C` before the list that lacked the object.
    pub after: u8,
    /// RV of that list, or of the object that is there now.
    pub to: u8,
    /// Key of the object.
    pub key: usize,
    /// uid of the deleted object.
    pub uid: (u8, u8),
}

/// A deletion with its RV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tombstone {
    /// RV of the deletion.
    pub rv: u8,
    /// Key of the object.
    pub key: usize,
    /// uid of the deleted object.
    pub uid: (u8, u8),
}

/// A copy of the cloud's objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Copy {
    /// Live objects.
    pub live: Objects,
    /// Deletions by RV.
    pub tombstones: Vec<Tombstone>,
    /// Deletions known as a range only.
    pub ranges: Vec<Range>,
    /// `(after, to)`: objects created and deleted between the two are unknown.
    pub gaps: Vec<(u8, u8)>,
    /// `C`.
    pub position: u8,
    /// Readers below this may have missed a deletion.
    pub floor: u8,
    /// Everything up to `C` is here.
    pub complete: bool,
    /// Number of the generation, as announced.
    pub generation: u8,
    /// Highest RV that may have been served in an older generation.
    pub high: u8,
    /// RV up to which it may serve until its next commit; the commit contains it.
    pub mark: u8,
    /// After a recovery: the mark of that commit, up to which more may have been served.
    pub served_to: u8,
    /// Observer's knowledge: the timeline the data comes from.
    pub timeline: u8,
}

/// Change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key has this state.
    Is(Object),
    /// The object with this uid is deleted.
    Gone((u8, u8)),
}

/// Rules of copies that a mutant leaves out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Changes that `C` covers are applied again.
    pub apply_covered: bool,
    /// Deletions of objects that were never here are not kept.
    pub forget_unknown: bool,
    /// A deletion without a watch event is delivered with the RV of the list.
    pub range_with_list_rv: bool,
    /// Followers do not learn that a list was involved.
    pub gaps_not_announced: bool,
}

/// A delivery to a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The state of a key.
    Current(usize, Object),
    /// The key is gone; with the RV the event carries.
    Gone(usize, u8, (u8, u8)),
    /// No other change up to this RV.
    Position(u8),
}

/// Answer to a request for everything after an RV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadAnswer {
    /// The last state of each key since then. For a replica all of it is one step.
    Told {
        /// The deliveries in order.
        deliveries: Vec<Delivery>,
        /// True if it crosses a list: objects may have been created and deleted unseen.
        jumped: bool,
    },
    /// Nothing until `C` reaches the RV.
    Held,
    /// 410.
    Expired,
    /// 429.
    NotReady,
}

// === impl Copy ===

impl Copy {
    /// Applies one change unless `C` covers it.
    pub fn apply(&mut self, rv: u8, key: usize, change: Change, rules: Rules) {
        if rv <= self.position && !rules.apply_covered {
            return;
        }
        match change {
            Change::Is(object) => self.put(key, object),
            Change::Gone(uid) => self.remove(rv, key, uid, rules),
        }
        self.position = rv;
    }

    /// Kept even if the object was never here: a reader from another source may know it.
    fn remove(&mut self, rv: u8, key: usize, uid: (u8, u8), rules: Rules) {
        let held = self.live[key].take();
        if held.is_some() || !rules.forget_unknown {
            self.tombstones.push(Tombstone { rv, key, uid });
        }
    }

    fn put(&mut self, key: usize, object: Object) {
        if self.live[key].is_some_and(|held| held.uid != object.uid) {
            self.remove_unwatched(key, object.rv);
        }
        self.live[key] = Some(object);
    }

    fn remove_unwatched(&mut self, key: usize, to: u8) {
        if let Some(held) = self.live[key].take() {
            let (after, uid) = (self.position, held.uid);
            self.ranges.push(Range { after, to, key, uid });
        }
    }

    /// Applies a full list of the same timeline: publishes the difference as one step.
    pub fn replace(&mut self, list: &Objects, at: u8) {
        for (key, listed) in list.iter().copied().enumerate() {
            match (self.live[key], listed) {
                (Some(held), Some(listed)) if held.uid != listed.uid => self.remove_unwatched(key, listed.rv),
                (Some(_), None) => self.remove_unwatched(key, at),
                _ => {}
            }
            if listed.is_some() {
                self.live[key] = listed;
            }
        }
        self.leap(at);
    }

    fn leap(&mut self, to: u8) {
        if self.position + 1 < to {
            self.gaps.push((self.position, to));
        }
        self.position = to;
    }

    /// Starts over with a list, under another generation or for the first time.
    pub fn restart(&mut self, generation: u8, list: &Objects, at: u8) {
        let high = match generation == self.generation {
            true => self.high,
            false => self.high.max(self.position).max(self.served_to),
        };
        *self = Self {
            live: *list,
            position: at,
            floor: at,
            complete: true,
            generation,
            high,
            ..Self::default()
        };
    }

    /// Drops all tombstones.
    pub fn forget(&mut self, raise_floor: bool) {
        let exact = self.tombstones.iter().map(|tombstone| tombstone.rv);
        let ranges = self.ranges.iter().map(|range| range.to);
        if let Some(newest) = exact.chain(ranges).max().filter(|_| raise_floor) {
            self.floor = self.floor.max(newest);
        }
        self.tombstones.clear();
        self.ranges.clear();
        // A reader that may resume at all is above the floor, hence above every gap.
        if raise_floor {
            let floor = self.floor;
            self.gaps.retain(|(_, to)| *to > floor);
        }
    }

    /// True if an object known to a reader at `x` may have been created and deleted unseen. False for a reader that was
    /// fed up to `x` from this copy, in the middle of a difference.
    pub fn is_in_gap(&self, x: u8) -> bool {
        self.gaps.iter().any(|(after, to)| *after < x && x < *to)
    }

    /// Deliveries for a reader that has seen everything up to `x` of this generation.
    pub fn since(&self, x: u8, rules: Rules) -> ReadAnswer {
        if !self.complete {
            return ReadAnswer::NotReady;
        }
        if x < self.floor {
            return ReadAnswer::Expired;
        }
        if x > self.position {
            return ReadAnswer::Held;
        }
        let live = self.live.iter().enumerate();
        let live = live.filter_map(|(key, object)| object.map(|object| (object.rv, Delivery::Current(key, object))));
        let gone = self.tombstones.iter();
        let gone = gone.map(|tombstone| (tombstone.rv, Delivery::Gone(tombstone.key, tombstone.rv, tombstone.uid)));
        let mut exact: Vec<_> = live.chain(gone).filter(|(rv, _)| *rv > x).collect();
        exact.sort_by_key(|(rv, _)| *rv);
        let crosses_gap = !rules.gaps_not_announced && self.gaps.iter().any(|(_, to)| *to > x);
        let jumped = crosses_gap || self.ranges.iter().any(|range| range.to > x);
        // A deletion without a watch event comes after deliveries with the same RV: then the reader is at the position
        // of this copy.
        for range in self.ranges.iter().filter(|range| range.to > x) {
            let at = if rules.range_with_list_rv {
                range.to
            } else {
                x.max(range.after)
            };
            let before = exact.iter().filter(|(rv, _)| *rv <= at).count();
            exact.insert(before, (at, Delivery::Gone(range.key, at, range.uid)));
        }
        let mut deliveries: Vec<_> = exact.into_iter().map(|(_, delivery)| delivery).collect();
        if x < self.position {
            deliveries.push(Delivery::Position(self.position));
        }
        ReadAnswer::Told { deliveries, jumped }
    }

    /// Applies the deliveries of another replica, up to a cut.
    pub fn follow(&mut self, deliveries: &[Delivery], jumped: bool, rules: Rules) {
        // Cut before its end: no part of the step counts.
        if let Some(Delivery::Position(to)) = deliveries.last() {
            self.follow_step(deliveries, *to, jumped, rules);
        }
    }

    /// Applies them event by event: only mutants have this rule.
    pub fn follow_events(&mut self, deliveries: &[Delivery], rules: Rules) {
        for delivery in deliveries {
            match *delivery {
                Delivery::Current(key, object) => self.apply(object.rv, key, Change::Is(object), rules),
                Delivery::Gone(key, rv, uid) => self.apply(rv, key, Change::Gone(uid), rules),
                Delivery::Position(rv) => self.position = self.position.max(rv),
            }
        }
    }

    fn follow_step(&mut self, deliveries: &[Delivery], to: u8, jumped: bool, rules: Rules) {
        if to <= self.position {
            return;
        }
        let from = self.position;
        for delivery in deliveries.iter().filter(|_| jumped) {
            if let Delivery::Current(key, object) = *delivery
                && self.live[key].is_some_and(|held| held.uid != object.uid)
            {
                self.remove_unwatched(key, object.rv);
            }
        }
        for delivery in deliveries {
            match *delivery {
                Delivery::Current(key, object) if object.rv > from => self.put(key, object),
                Delivery::Gone(key, rv, uid) if rv > from => self.remove(rv, key, uid, rules),
                // Any object there is gone, also one that the source never saw.
                Delivery::Gone(key, ..) => self.remove_unwatched(key, to),
                _ => {}
            }
        }
        if jumped {
            self.leap(to);
        }
        self.position = to;
    }

    /// True if every key has the cloud's state at `C`, or changes later: missing changes are still to come.
    pub fn is_true(&self, cloud: &Cloud) -> bool {
        !self.complete || is_true(cloud, self.timeline, self.position, &self.live)
    }
}

/// True if each of `objects` has the cloud's state at `rv` or changes after it.
pub fn is_true(cloud: &Cloud, timeline: u8, rv: u8, objects: &Objects) -> bool {
    let truth = cloud.at(timeline, rv);
    (0..KEYS).all(|key| objects[key] == truth[key] || cloud.changes_after(timeline, rv, key))
}
