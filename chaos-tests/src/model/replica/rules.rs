//! Rules of coordinator, hub and client: feed, follow, switch, commit, recover, serve.

use super::cloud::{KEYS, Objects};
use super::copy::{Change, Copy, Delivery, ReadAnswer, Rules};
use super::state::{Broken, Link, Reader, State, Which};
use super::{MARK_AHEAD, Mutation, Replica};

/// A cloud server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Server {
    /// Has all changes.
    Leading,
    /// Lags behind.
    Lagging,
}

// === impl Replica ===

impl Replica {
    pub(super) fn server_at(state: &State, server: Server) -> u8 {
        match server {
            Server::Leading => state.cloud.head(),
            Server::Lagging => state.cloud.lagging,
        }
    }

    /// A batch arrives: the log of `timeline` after the coordinator's `C`, up to `up_to`. Its sender and age are
    /// arbitrary: the fence is not part of this model.
    pub(super) fn feed_events(&self, state: &mut State, timeline: u8, up_to: u8) {
        let rules = self.rules();
        let held = &state.coordinator.memory;
        let same = held.generation == timeline || self.is(Mutation::IgnoreGeneration);
        if !held.complete || !same {
            return;
        }
        self.cover(state, Which::Coordinator, up_to);
        let held = &mut state.coordinator.memory;
        for rv in held.position + 1..=up_to {
            if let Some(entry) = state.cloud.entry(timeline, rv) {
                held.apply(rv, entry.key, entry.change(), rules);
            }
        }
        held.timeline = timeline;
    }

    /// A snapshot arrives: the state of `timeline` at `at`.
    pub(super) fn feed_snapshot(&self, state: &mut State, timeline: u8, at: u8) {
        let list = state.cloud.at(timeline, at);
        let (generation, position) = (state.coordinator.memory.generation, state.coordinator.memory.position);
        if timeline < generation && !self.is(Mutation::IgnoreGeneration) {
            return;
        }
        let is_new = timeline > generation || !state.coordinator.memory.complete;
        if !is_new && at < position && !self.is(Mutation::SnapshotBehind) {
            return;
        }
        if !is_new && at < position {
            state.breaks(Broken::PositionWentBack);
        }
        if !is_new && self.is(Mutation::DiffAsEvents) {
            return self.feed_diff_as_events(state, &list, at);
        }
        if self.is(Mutation::GenerationReadApart) && timeline > generation && state.coordinator.memory.complete {
            // The answer to a hub was read before the change, and its header is written after it.
            let old = state.coordinator.memory.clone();
            self.take_list(state, Which::Hub, timeline, &old.live, old.position, old.timeline);
        }
        self.take_list(state, Which::Coordinator, timeline, &list, at, timeline);
        // Durable before it is served.
        self.commit(state, Which::Coordinator);
    }

    /// The differences of a list one by one; a deletion without a watch event has no RV of its own.
    fn feed_diff_as_events(&self, state: &mut State, list: &Objects, at: u8) {
        let rules = self.rules();
        let held = &mut state.coordinator.memory;
        let after = held.position;
        let mut changes: Vec<_> = list
            .iter()
            .enumerate()
            .filter_map(|(key, object)| Some((key, (*object)?)))
            .collect();
        changes.sort_by_key(|(_, object)| object.rv);
        for (key, listed) in list.iter().enumerate() {
            if let (None, Some(object)) = (listed, held.live[key]) {
                held.apply(after, key, Change::Gone(object.uid), rules);
            }
        }
        for (key, object) in changes {
            held.apply(object.rv, key, Change::Is(object), rules);
        }
        held.position = held.position.max(at);
    }

    fn take_list(&self, state: &mut State, which: Which, generation: u8, list: &Objects, at: u8, timeline: u8) {
        let held = &state.node(which).memory;
        let starts_over = !held.complete || generation != held.generation;
        if !starts_over {
            self.cover(state, which, at);
        }
        let held = &mut state.node(which).memory;
        if starts_over {
            held.restart(generation, list, at);
        } else {
            held.replace(list, at);
        }
        held.timeline = timeline;
        if starts_over && self.bounds.rollbacks > 0 && !(generation > 0 && self.is(Mutation::GenerationNotDurable)) {
            // Commits the generation, and the highest RV ever served, before the first byte of it is served. One case
            // is left out, because it is undetectable: a copy without any commit that dies in the moment of the
            // rollback.
            self.commit(state, which);
        }
    }

    /// One event of a cloud watch at the hub's `C`.
    pub(super) fn hub_watches_cloud(&self, state: &mut State, server: Server) {
        let (timeline, position) = (state.cloud.timeline(), state.hub.memory.position);
        if !self.knows_timeline(state) || position < state.cloud.forgotten {
            return;
        }
        if position >= Self::server_at(state, server) {
            return;
        }
        let Some(entry) = state.cloud.entry(timeline, position + 1).copied() else {
            return;
        };
        let rules = self.rules();
        self.cover(state, Which::Hub, position + 1);
        let held = &mut state.hub.memory;
        held.apply(position + 1, entry.key, entry.change(), rules);
        held.timeline = timeline;
    }

    /// True if the hub's timeline is the cloud's: the check at every reopening.
    fn knows_timeline(&self, state: &State) -> bool {
        state.hub.memory.complete
            && (state.hub.memory.timeline == state.cloud.timeline() || self.is(Mutation::NoTimelineProof))
    }

    /// A full list from the cloud to the hub: the first one, after 410, or in a new generation.
    pub(super) fn hub_lists_cloud(&self, state: &mut State, server: Server) {
        let (timeline, at) = (state.cloud.timeline(), Self::server_at(state, server));
        let mut list = state.cloud.at(timeline, at);
        let held = &state.hub.memory;
        let rolled_back = held.timeline != timeline && held.complete && !self.is(Mutation::NoTimelineProof);
        // A hub without any data learns the generation's number from the coordinator.
        let first = if self.is(Mutation::NoTimelineProof) {
            0
        } else {
            timeline
        };
        let generation = match held.complete {
            true => held.generation + u8::from(rolled_back),
            false => first,
        };
        if held.complete && !rolled_back && at < held.position {
            // A server that lags: the hub tries another one.
            if !self.is(Mutation::SnapshotBehind) {
                return;
            }
            state.breaks(Broken::PositionWentBack);
        }
        if self.is(Mutation::PartialList) {
            list[KEYS - 1] = None;
        }
        self.take_list(state, Which::Hub, generation, &list, at, timeline);
    }

    /// A first page: nothing is served before the last one.
    pub(super) fn hub_lists_first_page(&self, state: &mut State) {
        let (timeline, at) = (state.cloud.timeline(), state.cloud.head());
        let mut list = state.cloud.at(timeline, at);
        list[KEYS - 1] = None;
        self.take_list(state, Which::Hub, timeline, &list, at, timeline);
    }

    /// The hub follows the coordinator's watch, cut after `count` deliveries.
    pub(super) fn hub_follows(&self, state: &mut State, count: usize) {
        let (source, held) = (&state.coordinator.memory, &state.hub.memory);
        let outlived = self.is(Mutation::StreamOfAnyGeneration) && source.generation < held.generation;
        let same = source.generation == held.generation || self.is(Mutation::IgnoreGeneration);
        // The held data still counts as the cloud's.
        let timeline = if outlived { held.timeline } else { source.timeline };
        if !held.complete || !(same || outlived) {
            return;
        }
        let (mut deliveries, jumped) = match self.since(source, held.position) {
            ReadAnswer::Told { deliveries, jumped } => (deliveries, jumped),
            ReadAnswer::Held if self.is(Mutation::BreakBeforeMake) => {
                // The new source lags, the old one is gone: its data is applied as it is.
                let (list, at, generation) = (source.live, source.position, source.generation);
                state.breaks(Broken::PositionWentBack);
                return self.take_list(state, Which::Hub, generation, &list, at, timeline);
            }
            _ => return,
        };
        if self.is(Mutation::Renumber) {
            deliveries.iter_mut().for_each(renumber);
        }
        let told = deliveries.len().min(count);
        let cut = told < deliveries.len();
        let rules = self.rules();
        self.cover(state, Which::Hub, state.coordinator.memory.position);
        let held = &mut state.hub.memory;
        if self.is(Mutation::ApplyCovered) && !deliveries.is_empty() {
            // An old stream repeats known changes, late.
            if let Some((key, object)) = source_entry(&state.cloud, timeline, held.position) {
                held.apply(held.position.saturating_sub(1), key, object, rules);
            }
        }
        let splits = self.is(if jumped {
            Mutation::StepNotAtomic
        } else {
            Mutation::CatchUpNotAtomic
        });
        match splits {
            true => held.follow_events(&deliveries[..told], rules),
            false => held.follow(&deliveries[..told], jumped, rules),
        }
        if cut && self.is(Mutation::BookmarkPastEvents) {
            held.position = state.coordinator.memory.position;
        }
        held.timeline = timeline;
    }

    /// The hub lists the coordinator: it has no data, got 410, or the generation changed.
    pub(super) fn hub_lists_coordinator(&self, state: &mut State) {
        let (source, held) = (&state.coordinator.memory, &state.hub.memory);
        let serves = source.complete || self.is(Mutation::ServeIncomplete);
        if !serves || (held.complete && source.generation < held.generation) {
            return;
        }
        let expired = self.since(source, held.position) == ReadAnswer::Expired;
        let wants = !held.complete || source.generation != held.generation || expired;
        let is_behind = held.complete && source.generation == held.generation && source.position < held.position;
        if !wants || is_behind {
            return;
        }
        let (list, at, generation, timeline) = (source.live, source.position, source.generation, source.timeline);
        self.take_list(state, Which::Hub, generation, &list, at, timeline);
    }

    fn since(&self, source: &Copy, position: u8) -> ReadAnswer {
        if position > source.position && self.is(Mutation::NoHold) && source.complete {
            let deliveries = vec![Delivery::Position(source.position)];
            return ReadAnswer::Told {
                deliveries,
                jumped: false,
            };
        }
        if source.is_in_gap(position) && !self.is(Mutation::NoGaps) {
            return ReadAnswer::Expired;
        }
        source.since(position, self.rules())
    }

    fn rules(&self) -> Rules {
        Rules {
            apply_covered: self.is(Mutation::ApplyCovered),
            forget_unknown: self.is(Mutation::ForgetUnknown),
            gaps_not_announced: self.is(Mutation::GapsNotAnnounced),
            range_with_list_rv: self.is(Mutation::RangeWithListVersion),
        }
    }

    /// True if a mark of this copy may ever be needed: it may crash, and the cloud may be rolled back afterwards.
    pub(super) fn needs_mark(&self, state: &State, which: Which) -> bool {
        let (spent, bounds) = (state.spent, self.bounds);
        let may_crash = match which {
            Which::Coordinator => spent.coordinator_crashes < bounds.coordinator_crashes,
            Which::Hub => spent.hub_crashes < bounds.hub_crashes,
        };
        may_crash && spent.rollbacks < bounds.rollbacks
    }

    /// Commits a mark that covers `to`. A disk that fails is the action that does not happen: changes above the mark
    /// wait.
    fn cover(&self, state: &mut State, which: Which, to: u8) {
        if !self.needs_mark(state, which) || self.is(Mutation::ServeBeyondMark) || to <= state.node(which).memory.mark {
            return;
        }
        state.node(which).memory.mark = to + MARK_AHEAD;
        self.commit(state, which);
    }

    /// Data, `C` and the mark in one transaction.
    pub(super) fn commit(&self, state: &mut State, which: Which) {
        let without_data = self.is(Mutation::PositionBeforeData);
        let without_tombstones = self.is(Mutation::TombstonesNotStored);
        let needs_mark = self.needs_mark(state, which);
        let node = state.node(which);
        if needs_mark {
            node.memory.mark = node.memory.mark.max(node.memory.position + MARK_AHEAD);
        }
        let before = std::mem::take(&mut node.disk);
        node.disk = node.memory.clone();
        if without_data && before.complete {
            node.disk.live = before.live;
        }
        if without_tombstones {
            node.disk.forget(false);
        }
    }

    /// kill -9: returns to the last commit.
    pub(super) fn crash(&self, state: &mut State, which: Which) {
        let rollbacks = self.bounds.rollbacks > 0;
        excuse_cut_difference(state, which);
        let node = state.node(which);
        node.memory = node.disk.clone();
        if rollbacks && !self.is(Mutation::HighFromCommit) {
            node.memory.served_to = node.memory.mark;
        }
        let (committed, position) = (node.disk.complete, node.disk.position);
        if which == Which::Hub {
            // Uncommitted deliveries are lost: the client may know objects that were created and deleted in them.
            state.reader.excused |= !committed || state.reader.position > position;
            if state.reader.link != Link::Fresh {
                state.reader.link = Link::Away;
            }
        }
    }

    /// The client lists: it starts, or it got 410.
    pub(super) fn reader_lists(&self, state: &mut State) {
        let held = &state.hub.memory;
        if !held.complete && !self.is(Mutation::ServeIncomplete) {
            return;
        }
        let reader = &mut state.reader;
        reader.known = held.live;
        (reader.position, reader.resumed_at) = (held.position, held.position);
        reader.timeline = held.timeline;
        reader.link = Link::Streaming(held.generation);
        (reader.excused, reader.listed) = (false, true);
    }

    /// The client reopens its watch at its RV. It does not send a generation.
    pub(super) fn reader_resumes(&self, state: &mut State) {
        let held = &state.hub.memory;
        let at = state.reader.position;
        if !held.complete {
            return;
        }
        let knows_no_better = self.is(Mutation::NoResync);
        if held.high > 0 && !knows_no_better && self.bounds.resync {
            // A client ahead of a copy that has not passed the highest served RV is of the old history.
            let is_ahead = at > held.position && held.position <= held.high;
            if is_ahead || (at <= held.high && at < held.floor) {
                return self.expire(state);
            }
            if at <= held.high && !(self.is(Mutation::ResyncOnlyWhileBehind) && held.position > held.high) {
                // The client's knowledge is unknown: it gets all objects, and all deletions.
                let (known, position, timeline) = (held.live, held.position, held.timeline);
                let generation = held.generation;
                let reader = &mut state.reader;
                (reader.known, reader.position, reader.timeline) = (known, position, timeline);
                (reader.link, reader.resumed_at) = (Link::Streaming(generation), position);
                return;
            }
        }
        match self.since(held, at) {
            ReadAnswer::Told { .. } | ReadAnswer::Held => {
                (state.reader.link, state.reader.resumed_at) = (Link::Streaming(held.generation), at);
            }
            ReadAnswer::Expired => self.expire(state),
            ReadAnswer::NotReady => {}
        }
    }

    fn expire(&self, state: &mut State) {
        if !state.reader.excused && state.reader.timeline == state.hub.memory.timeline {
            state.breaks(Broken::Relist);
        }
        state.reader.link = Link::Fresh;
    }

    /// The client reads `count` deliveries of its stream.
    pub(super) fn reader_reads(&self, state: &mut State, count: usize) {
        let Link::Streaming(generation) = state.reader.link else {
            return;
        };
        let held = &state.hub.memory;
        if held.generation != generation {
            return self.expire(state);
        }
        let (deliveries, timeline) = match self.goes_on(held, &state.reader) {
            ReadAnswer::Told { deliveries, .. } => (deliveries, held.timeline),
            ReadAnswer::Expired => return self.expire(state),
            ReadAnswer::Held | ReadAnswer::NotReady => return,
        };
        // A stream continues after any number of events; a client that is cut between two events of one RV resumes by
        // that RV.
        let told = deliveries.len().min(count);
        let splits = deliveries
            .get(told)
            .is_some_and(|next| rv_of(next) == rv_of(&deliveries[told - 1]));
        for delivery in deliveries.into_iter().take(told) {
            self.reader_hears(state, delivery, timeline);
        }
        if splits {
            excuse_cut_difference(state, Which::Hub);
            state.reader.link = Link::Away;
        }
        if state.reader.position == state.hub.memory.position {
            state.reader.resumed_at = state.reader.position;
        }
    }

    /// Next deliveries in the client's stream.
    fn goes_on(&self, held: &Copy, reader: &Reader) -> ReadAnswer {
        if reader.position > held.position {
            return self.since(held, reader.position);
        }
        match held.is_in_gap(reader.resumed_at) && !self.is(Mutation::NoGaps) {
            true => ReadAnswer::Expired,
            false => held.since(reader.position, self.rules()),
        }
    }

    fn reader_hears(&self, state: &mut State, delivery: Delivery, timeline: u8) {
        let reader = &mut state.reader;
        let before = reader.position;
        reader.timeline = timeline;
        match delivery {
            Delivery::Current(key, object) => {
                let truth = state.cloud.entry(timeline, object.rv);
                let forged = truth.is_none_or(|entry| (entry.key, entry.object) != (key, Some(object)));
                (reader.known[key], reader.position) = (Some(object), object.rv);
                if forged {
                    state.breaks(Broken::Forged);
                }
            }
            Delivery::Gone(key, rv, uid) => {
                let lives =
                    |entry: &super::cloud::Entry| entry.key == key && entry.object.is_none_or(|now| now.uid != uid);
                let known = reader.known[key].take().filter(|known| known.uid == uid);
                reader.position = rv;
                let born = usize::from(uid.0);
                let log = state.cloud.log(timeline);
                if known.is_some() && !log[born.min(log.len())..].iter().any(lives) {
                    state.breaks(Broken::FalseDeletion);
                }
            }
            Delivery::Position(rv) => reader.position = rv,
        }
        if state.reader.position < before {
            state.breaks(Broken::ReaderWentBack);
        }
    }
}

/// Excuses a client that is cut within a difference. Its position is one where others may have missed changes, and it
/// cannot be distinguished from them.
pub(super) fn excuse_cut_difference(state: &mut State, which: Which) {
    let in_gap = state.hub.memory.is_in_gap(state.reader.position);
    state.reader.excused |= which == Which::Hub && in_gap;
}

fn rv_of(delivery: &Delivery) -> u8 {
    match *delivery {
        Delivery::Current(_, object) => object.rv,
        Delivery::Gone(_, rv, _) | Delivery::Position(rv) => rv,
    }
}

/// Renumbers as a server with RVs of its own would.
fn renumber(delivery: &mut Delivery) {
    match delivery {
        Delivery::Current(_, object) => object.rv += 1,
        Delivery::Gone(_, rv, _) | Delivery::Position(rv) => *rv += 1,
    }
}

/// The last change of the same key before the one at `rv`.
fn source_entry(cloud: &super::cloud::Cloud, timeline: u8, rv: u8) -> Option<(usize, Change)> {
    let entry = cloud.entry(timeline, rv)?;
    let before = cloud.at(timeline, rv - 1)[entry.key];
    Some((entry.key, before.map_or(Change::Gone(entry.uid), Change::Is)))
}
