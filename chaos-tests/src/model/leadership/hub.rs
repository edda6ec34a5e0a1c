//! Rules of a hub: client-go's algorithm with a hard deadline counted from sending, and the feed while it leads.

use super::state::{ALL_BODIES, Claim, EXPIRY, HOLD, Hold, HubId, Lease, LeaseView, Message, Purpose, Request, State};
use super::{Leadership, Mutation};

// === impl Leadership ===

impl Leadership {
    /// Writes of the lease that `hub` may start now.
    pub(super) fn lease_purposes(&self, state: &State, id: HubId) -> Vec<Purpose> {
        let hub = &state.hubs[usize::from(id)];
        if hub.request.is_some() || state.server.is_used_up(self.bounds.writes) {
            return Vec::new();
        }
        if self.is_hostile(id) {
            return match state.server.holder() {
                Some(holder) if holder != id => vec![Purpose::Acquire, Purpose::Release, Purpose::KeepAlive],
                Some(_) => vec![Purpose::Release],
                None => vec![Purpose::Acquire],
            };
        }
        if self.bounds.timeless {
            let ours = state.server.holder() == Some(id);
            return match (hub.hold.is_some(), ours) {
                (true, _) => Vec::new(),
                (false, true) => vec![Purpose::Acquire, Purpose::Release],
                (false, false) => vec![Purpose::Acquire],
            };
        }
        if hub.hold.is_some() {
            return match hub.may_act() {
                true if self.is(Mutation::ReleaseBeforeStop) => vec![Purpose::Renew, Purpose::Release],
                true => vec![Purpose::Renew],
                false => Vec::new(),
            };
        }
        let (free, ours) = match hub.seen {
            LeaseView::Unknown => (false, false),
            LeaseView::Absent => (true, false),
            LeaseView::Lease(lease) => {
                let expired = hub.since >= EXPIRY || self.is(Mutation::RemoteClock) || self.is_foreign(id);
                let ours = lease.holder == Some(id);
                (lease.holder.is_none() || ours || expired, ours)
            }
        };
        let mut purposes = Vec::new();
        if free {
            purposes.push(Purpose::Acquire);
        }
        if ours && !self.is_foreign(id) {
            purposes.push(Purpose::Release);
        }
        purposes
    }

    /// Sends the request: its age counts from here.
    pub(super) fn send_write(&self, state: &mut State, id: HubId, purpose: Purpose) {
        let blind = self.is_foreign(id);
        if self.bounds.timeless || self.is_hostile(id) {
            self.observe(state, id);
        }
        // Its number differs from all that are on the wire.
        let is_taken = |attempt: u8| {
            let mut theirs = state.wire.iter().filter(|message| message.hub() == id);
            theirs.any(|message| message.attempt() == Some(attempt))
        };
        let attempt = (0..=u8::MAX).find(|attempt| !is_taken(*attempt)).unwrap_or_default();
        let hub = &mut state.hubs[usize::from(id)];
        let seen = match hub.seen {
            LeaseView::Lease(lease) => Some(lease),
            _ => None,
        };
        let changes_holder = purpose == Purpose::Acquire && seen.is_some_and(|lease| lease.holder != Some(id));
        // Only the mutant reads it.
        let transitions = match self.is(Mutation::EpochFromTransitions) {
            true => seen.map_or(0, |lease| lease.transitions + u8::from(changes_holder)),
            false => 0,
        };
        let message = Message::Write {
            hub: id,
            attempt,
            purpose,
            expect: seen.map(|lease| lease.rv),
            blind,
            transitions,
        };
        if self.is_hostile(id) {
            // It waits for no answer, and remembers nothing.
            hub.seen = LeaseView::Unknown;
            state.wire.insert(message);
            return;
        }
        hub.request = Some(Request {
            attempt,
            purpose,
            age: 0,
        });
        if self.bounds.timeless {
            // Answered before any other action.
            self.deliver(state, message);
            let is_answer = |message: &&Message| matches!(message, Message::Stored { hub, .. } if *hub == id);
            if let Some(answer) = state.wire.iter().find(is_answer).copied() {
                state.wire.remove(&answer);
                self.deliver(state, answer);
            }
            state.hubs[usize::from(id)].request = None;
            return;
        }
        state.wire.insert(message);
    }

    /// Handles the answer.
    pub(super) fn stored(&self, state: &mut State, id: HubId, attempt: u8, lease: Lease, claim: Claim) {
        let ignores = self.is(Mutation::AnyAnswer);
        let hub = &mut state.hubs[usize::from(id)];
        let Some(request) = hub.request.filter(|request| request.attempt == attempt || ignores) else {
            return;
        };
        hub.request = None;
        hub.seen = LeaseView::Lease(lease);
        hub.since = 0;
        if request.purpose == Purpose::Release {
            hub.hold = None;
            return;
        }
        let age = if self.is(Mutation::CountFromAnswer) {
            0
        } else {
            request.age
        };
        if lease.holder == Some(id) && age < HOLD && !self.is_foreign(id) {
            hub.hold = Some(Hold { claim, age });
        }
    }

    /// Reads the lease, or receives it from the watch.
    pub(super) fn observe(&self, state: &mut State, id: HubId) {
        let now = state.server.lease.map_or(LeaseView::Absent, LeaseView::Lease);
        let hub = &mut state.hubs[usize::from(id)];
        // Renewals are detected by the record, as in client-go: a new resourceVersion alone is no renewal.
        let same = match (hub.seen, now) {
            (LeaseView::Lease(a), LeaseView::Lease(b)) => (a.stamp, a.holder) == (b.stamp, b.holder),
            (a, b) => a == b,
        };
        if !same {
            hub.since = 0;
        }
        hub.seen = now;
        let ours = matches!(now, LeaseView::Lease(lease) if lease.holder == Some(id));
        if !ours {
            hub.hold = None;
        }
    }

    /// Messages that a leader may send to the coordinator now. It reads the coordinator's position first.
    pub(super) fn feed_calls(&self, state: &State, id: HubId) -> Vec<Message> {
        let hub = &state.hubs[usize::from(id)];
        let Some(hold) = hub.hold.filter(|_| hub.may_act()) else {
            return Vec::new();
        };
        let (claim, at, data) = (hold.claim, hub.replica, state.server.data);
        let follows = data.complete && data.place.generation == at.generation && data.place.position <= at.position;
        let mut calls = Vec::new();
        if follows && data.place.position < at.position {
            let (after, up_to) = (data.place, at.position);
            calls.push(Message::Events {
                hub: id,
                claim,
                after,
                up_to,
            });
        }
        let pending = state
            .server
            .pending
            .filter(|pending| (pending.claim, pending.at) == (claim, at));
        match pending {
            Some(pending) => {
                let missing = (0..2).filter(|body| pending.bodies >> body & 1 == 0);
                calls.extend(missing.map(|body| Message::Body {
                    hub: id,
                    claim,
                    at,
                    body,
                }));
            }
            None if data.place != at || data.bodies != ALL_BODIES => {
                calls.push(Message::Index { hub: id, claim, at });
            }
            None => {}
        }
        calls.retain(|call| !state.wire.contains(call));
        calls
    }
}
