//! A replica: objects, tombstones, `C`, floor, completeness, generation; what it takes in and what it tells a reader.

use super::cloud::{Cloud, KEYS, Object, Objects};

/// A deletion nobody watched, somewhere in `(after, to]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// `C` before the list that did not show the object any more.
    pub after: u8,
    /// RV of that list, or of the object that is there now.
    pub to: u8,
    /// Which key.
    pub key: usize,
    /// uid of what was deleted.
    pub uid: (u8, u8),
}

/// A deletion with its RV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tombstone {
    /// When.
    pub rv: u8,
    /// Which key.
    pub key: usize,
    /// uid of what was deleted.
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
    /// `(after, to)`: what came and went between the two is not known.
    pub gaps: Vec<(u8, u8)>,
    /// `C`.
    pub position: u8,
    /// Readers below this may have missed a deletion.
    pub floor: u8,
    /// Everything up to `C` is here.
    pub complete: bool,
    /// As announced.
    pub generation: u8,
    /// Highest RV that may have been served in an older generation.
    pub high: u8,
    /// It comes from a commit that may be older than what was served.
    pub recovered: bool,
    /// Observer's knowledge: the timeline the data really comes from.
    pub timeline: u8,
}

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its state.
    Is(Object),
    /// The object with this uid is gone.
    Gone((u8, u8)),
}

/// Rules of copies that a mutant leaves out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// What `C` covers is applied again.
    pub apply_covered: bool,
    /// Deletions of objects that were never here are not remembered.
    pub forget_unknown: bool,
    /// A deletion nobody watched is told with the RV of the list.
    pub range_with_list_rv: bool,
    /// Followers are not told that a list was involved.
    pub gaps_not_announced: bool,
}

/// Something a reader is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The state of a key.
    Current(usize, Object),
    /// The key is gone; with the RV the event carries.
    Gone(usize, u8, (u8, u8)),
    /// Nothing else happened up to here.
    Position(u8),
}

/// What comes of asking for everything after an RV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What happened since: of each key the last state only, so for a replica all of it is one step.
    Told {
        /// In order.
        deliveries: Vec<Delivery>,
        /// It crosses a list: something may have come and gone unseen.
        jumped: bool,
    },
    /// Silence until `C` is there.
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

    /// Remembered also when the object was never here: a reader from elsewhere may know it.
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

    /// Takes a full list of the same timeline: publishes the difference as one step.
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
        let high = match (generation == self.generation, self.recovered) {
            (true, _) => self.high,
            (false, true) => u8::MAX,
            (false, false) => self.high.max(self.position),
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

    /// Drops every deletion remembered.
    pub fn forget(&mut self, raise_floor: bool) {
        let exact = self.tombstones.iter().map(|tombstone| tombstone.rv);
        let ranges = self.ranges.iter().map(|range| range.to);
        if let Some(newest) = exact.chain(ranges).max().filter(|_| raise_floor) {
            self.floor = self.floor.max(newest);
        }
        self.tombstones.clear();
        self.ranges.clear();
        // Whoever may resume at all is above the floor, hence above every gap.
        if raise_floor {
            let floor = self.floor;
            self.gaps.retain(|(_, to)| *to > floor);
        }
    }

    /// Whether something a reader at `x` knows may have come and gone unseen. Not so where it was told up to `x` from here,
    /// in the middle of a difference.
    pub fn is_in_gap(&self, x: u8) -> bool {
        self.gaps.iter().any(|(after, to)| *after < x && x < *to)
    }

    /// What a reader that has seen everything up to `x` of this generation has to be told.
    pub fn since(&self, x: u8, rules: Rules) -> Answer {
        if !self.complete {
            return Answer::NotReady;
        }
        if x < self.floor {
            return Answer::Expired;
        }
        if x > self.position {
            return Answer::Held;
        }
        let live = self.live.iter().enumerate();
        let live = live.filter_map(|(key, object)| object.map(|object| (object.rv, Delivery::Current(key, object))));
        let gone = self.tombstones.iter();
        let gone = gone.map(|tombstone| (tombstone.rv, Delivery::Gone(tombstone.key, tombstone.rv, tombstone.uid)));
        let mut exact: Vec<_> = live.chain(gone).filter(|(rv, _)| *rv > x).collect();
        exact.sort_by_key(|(rv, _)| *rv);
        let crosses_gap = !rules.gaps_not_announced && self.gaps.iter().any(|(_, to)| *to > x);
        let jumped = crosses_gap || self.ranges.iter().any(|range| range.to > x);
        // A deletion nobody watched comes after what has the same RV: the reader's position is the teller's then.
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
        Answer::Told { deliveries, jumped }
    }

    /// Takes in what another replica told, up to a cut.
    pub fn follow(&mut self, deliveries: &[Delivery], jumped: bool, rules: Rules) {
        // Cut before its end: nothing of a step counts.
        if let Some(Delivery::Position(to)) = deliveries.last() {
            self.follow_step(deliveries, *to, jumped, rules);
        }
    }

    /// The same event by event: a rule of no copy, but of mutants.
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
                // Whatever was there is gone, also what the teller never saw.
                Delivery::Gone(key, ..) => self.remove_unwatched(key, to),
                _ => {}
            }
        }
        if jumped {
            self.leap(to);
        }
        self.position = to;
    }

    /// Whether every key is what the cloud had at `C`, or changes later: what is missing is still to come.
    pub fn is_true(&self, cloud: &Cloud) -> bool {
        !self.complete || is_true(cloud, self.timeline, self.position, &self.live)
    }
}

/// Whether each of `objects` is the cloud's at `rv` or changes after it.
pub fn is_true(cloud: &Cloud, timeline: u8, rv: u8, objects: &Objects) -> bool {
    let truth = cloud.at(timeline, rv);
    (0..KEYS).all(|key| objects[key] == truth[key] || cloud.changes_after(timeline, rv, key))
}
