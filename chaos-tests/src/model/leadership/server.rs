//! Rules of the coordinator: guards writes of the lease, fences the feed, restarts from its disk.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::coordinator;

use super::state::{
    ALL_BODIES, Broken, Claim, Data, EXPIRY, HubId, Lease, LogPosition, Message, Pending, Purpose, Server, State,
};
use super::{Leadership, Mutation};
use crate::faults::Fault;

/// A write of the lease as received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) hub: HubId,
    pub(super) attempt: u8,
    pub(super) purpose: Purpose,
    pub(super) expect: Option<u8>,
    pub(super) blind: bool,
    pub(super) transitions: u8,
}

/// Holder of the lease once the write is stored.
fn holder_after(server: &Server, write: Write) -> Option<HubId> {
    match write.purpose {
        Purpose::Acquire | Purpose::Renew => Some(write.hub),
        Purpose::Release => None,
        Purpose::KeepAlive => server.holder(),
    }
}

// === impl Leadership ===

impl Leadership {
    /// Stores a write that passes the guard, and answers it; a rejection needs no answer, the hub reads again anyway.
    pub(super) fn write(&self, state: &mut State, write: Write) {
        let server = &state.server;
        let precondition = write.blind || self.is(Mutation::NoVersionCompare) || {
            server.lease.map(|lease| lease.rv) == write.expect
        };
        if !precondition || !self.guard_passes(server, write) || server.is_used_up(self.bounds.writes) {
            return;
        }
        let holder = holder_after(server, write);
        let is_of_another = write.blind || self.is_hostile(write.hub);
        if is_of_another && server.holder() != holder && state.somebody_acts(write.hub) {
            state.observer.broken.get_or_insert(Broken::Robbed);
        }
        if write.purpose == Purpose::KeepAlive && holder != Some(write.hub) {
            state.observer.broken.get_or_insert(Broken::KeptAlive);
        }
        let changes_holder = server.holder() != holder;
        state.observer.stamps += 1;
        let lease = Lease {
            rv: server.rv + 1,
            stamp: state.observer.stamps,
            holder,
            transitions: write.transitions,
        };
        self.store_lease(state, Some(lease), changes_holder.then_some(write.hub));
        state.wire.insert(Message::Stored {
            hub: write.hub,
            attempt: write.attempt,
            lease,
            claim: self.claim(&state.server),
        });
    }

    /// True if an administrator's delete without resourceVersion passes: the guard allows it once the lease is silent.
    pub(super) fn may_delete(&self, server: &Server) -> bool {
        server.lease.is_some()
            && (server.holder().is_none() || server.written >= EXPIRY)
            && !server.is_used_up(self.bounds.writes)
    }

    /// Stores `lease`; `author` is set when the holder changes.
    pub(super) fn store_lease(&self, state: &mut State, lease: Option<Lease>, author: Option<HubId>) {
        let server = &mut state.server;
        let changes_holder = server.holder() != lease.and_then(|lease| lease.holder);
        server.rv += 1;
        server.lease = lease;
        server.written = 0;
        server.renewed = self.bounds.hostile;
        if !changes_holder {
            return;
        }
        // Durable before the answer, with the epoch in the same transaction.
        server.epoch += 1;
        if !self.is(Mutation::AnswerBeforeDurable) {
            server.durable = lease;
        }
        if !self.is(Mutation::EpochNotDurable) {
            server.durable_epoch = server.epoch;
        }
        server.owner = author;
        server.tenure = 0;
        if server.holder().is_some() {
            state.observer.tenures += 1;
            server.tenure = state.observer.tenures;
        }
        if self.is(Mutation::WipeOnLeaderChange) && server.holder().is_some() {
            self.set_data(state, Data::default());
        }
    }

    /// The rules of a pool's election are the coordinator's own; those of other leases are modelled.
    fn guard_passes(&self, server: &Server, write: Write) -> bool {
        if self.bounds.hostile {
            return self.election_passes(server, write);
        }
        let Some(holder) = server.holder() else { return true };
        let replaces = write.purpose != Purpose::Release && write.hub != holder;
        if replaces && server.opened < EXPIRY && !self.is(Mutation::NoGuardAfterRestart) {
            return false;
        }
        !write.blind || self.is(Mutation::NoGuard) || server.written >= EXPIRY || server.owner == Some(write.hub)
    }

    fn election_passes(&self, server: &Server, write: Write) -> bool {
        let is_exempt = match write.purpose {
            Purpose::Acquire => false,
            Purpose::Renew | Purpose::KeepAlive => self.is(Mutation::RenewForAnother),
            Purpose::Release => self.is(Mutation::ReleaseForAnother),
        };
        let takes_at_once = write.purpose == Purpose::Acquire && self.is(Mutation::TakeWhileAlive);
        let identity = |hub: Option<HubId>| hub.map_or(String::new(), |hub| format!("{hub}_0"));
        let writer = if is_exempt {
            server.holder().unwrap_or(write.hub)
        } else {
            write.hub
        };
        let (before, after) = (identity(server.holder()), identity(holder_after(server, write)));
        let ticks = |count: u8| Duration::from_secs(count.into());
        let write = coordinator::Write {
            node: &writer.to_string(),
            has_resource_version: !write.blind,
            before: (&before, ticks(EXPIRY)),
            after: Some(&after),
        };
        write.is_allowed(coordinator::LeaseAge {
            opened: ticks(server.opened),
            written: ticks(if takes_at_once { EXPIRY } else { server.written }),
            renewed: server.renewed,
        })
    }

    /// The fence as returned to the holder of the lease.
    fn claim(&self, server: &Server) -> Claim {
        let epoch = match server.lease {
            Some(lease) if self.is(Mutation::EpochFromTransitions) => lease.transitions,
            _ => server.epoch,
        };
        Claim {
            store: server.store,
            epoch,
            tenure: server.tenure,
        }
    }

    /// Handles a feed call.
    pub(super) fn feed(&self, state: &mut State, message: Message) {
        if !self.fence_lets_in(&state.server, message) {
            self.struck.count(Fault::StaleFeed);
            return;
        }
        if self.is(Mutation::FenceNotAtomic) {
            state.server.admitted = Some(message);
            return;
        }
        self.apply(state, message);
    }

    fn fence_lets_in(&self, server: &Server, message: Message) -> bool {
        let (Message::Events { hub, claim, .. } | Message::Index { hub, claim, .. } | Message::Body { hub, claim, .. }) =
            message
        else {
            return false;
        };
        let ours = self.claim(server);
        server.holder() == Some(hub)
            && (claim.epoch == ours.epoch || self.is(Mutation::NoEpochCompare))
            && (claim.store == ours.store || self.is(Mutation::NoStoreCompare))
    }

    /// Applies the call after the fence, in the same step.
    pub(super) fn apply(&self, state: &mut State, message: Message) {
        let (Message::Events { claim, .. } | Message::Index { claim, .. } | Message::Body { claim, .. }) = message
        else {
            return;
        };
        if (claim.tenure, claim.store) != (state.server.tenure, state.server.store) {
            state.observer.broken.get_or_insert(Broken::StaleEpoch);
        }
        match message {
            Message::Events {
                claim, after, up_to, ..
            } => self.apply_events(state, claim, after, up_to),
            Message::Index { claim, at, .. } => self.apply_index(state, claim, at),
            Message::Body { claim, at, body, .. } => self.apply_body(state, claim, at, body),
            Message::Write { .. } | Message::Stored { .. } => {}
        }
    }

    fn apply_events(&self, state: &mut State, claim: Claim, after: LogPosition, up_to: u8) {
        let data = state.server.data;
        let same_timeline = data.place.generation == after.generation || self.is(Mutation::NoGenerationCompare);
        if !same_timeline || !data.complete || after.position != data.place.position {
            return;
        }
        let place = LogPosition {
            position: up_to,
            ..data.place
        };
        // Events of another timeline do not follow from the data: they lead to a wrong state.
        let mixed = data.place.generation != after.generation;
        let bodies = if mixed { 0 } else { data.bodies };
        self.applied(state, claim, Data { place, bodies, ..data });
    }

    fn is_behind(&self, data: Data, at: LogPosition) -> bool {
        let held = data.place;
        let old_timeline = at.generation < held.generation && !self.is(Mutation::NoGenerationCompare);
        let older = at.generation <= held.generation && at.position < held.position;
        old_timeline || (older && !self.is(Mutation::SnapshotBehind))
    }

    fn apply_index(&self, state: &mut State, claim: Claim, at: LogPosition) {
        let data = state.server.data;
        if self.is_behind(data, at) {
            return;
        }
        let complete = data.complete && data.place.generation == at.generation;
        let mut bodies = if complete { data.bodies } else { 0 };
        if self.is(Mutation::PublishBeforeComplete) && !complete {
            let early = Data {
                place: at,
                complete: true,
                bodies,
            };
            self.applied(state, claim, early);
        }
        if complete && bodies == ALL_BODIES {
            // The difference is small: no body is missing.
            bodies = ALL_BODIES;
            let data = Data {
                place: at,
                complete: true,
                bodies,
            };
            return self.applied(state, claim, data);
        }
        state.server.pending = Some(Pending { claim, at, bodies });
    }

    fn apply_body(&self, state: &mut State, claim: Claim, at: LogPosition, body: u8) {
        let Some(pending) = state
            .server
            .pending
            .as_mut()
            .filter(|pending| (pending.claim, pending.at) == (claim, at))
        else {
            return;
        };
        pending.bodies |= 1 << body;
        if pending.bodies != ALL_BODIES || self.is_behind(state.server.data, at) {
            return;
        }
        let data = Data {
            place: at,
            complete: true,
            bodies: ALL_BODIES,
        };
        self.applied(state, claim, data);
    }

    fn applied(&self, state: &mut State, claim: Claim, data: Data) {
        if claim.tenure > 1 {
            self.reached.fed_twice.fetch_add(1, Ordering::Relaxed);
        }
        state.server.pending = None;
        self.set_data(state, data);
    }

    fn set_data(&self, state: &mut State, data: Data) {
        let (before, after) = (state.server.data.place, data.place);
        let went_back = after.generation < before.generation
            || (after.generation == before.generation && after.position < before.position);
        if went_back {
            state.observer.broken.get_or_insert(Broken::WentBack);
        }
        state.server.data = data;
        if self.is(Mutation::PositionBeforeData) {
            let saved = &mut state.server.saved;
            (saved.place, saved.complete) = (data.place, data.complete);
        }
    }

    /// kill -9: renewals and uncommitted data are lost; leases are stamped above every RV ever issued.
    pub(super) fn restart(&self, state: &mut State) {
        let server = &mut state.server;
        let durable_rv = server.durable.map_or(0, |lease| lease.rv);
        let rv = match self.is(Mutation::ReuseOwnVersion) {
            true => durable_rv,
            false => server.rv + 1,
        };
        let restored = server.durable.map(|lease| Lease { rv, ..lease });
        *server = Server {
            rv,
            lease: restored,
            durable: restored,
            epoch: server.durable_epoch,
            durable_epoch: server.durable_epoch,
            owner: server.owner.filter(|_| restored.is_some()),
            tenure: if restored.is_some_and(|lease| lease.holder.is_some()) {
                server.tenure
            } else {
                0
            },
            data: server.saved,
            saved: server.saved,
            ..Server::new(server.store)
        };
        if state.server.is_served() {
            self.reached.served_after_restart.fetch_add(1, Ordering::Relaxed);
        }
    }
}
