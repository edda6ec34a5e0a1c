//! Reduction of states: what has no effect any more is removed, so that states that differ only in it are one.

use std::collections::BTreeSet;

use super::{EXPIRY, HOLD, LeaseView, LogPosition, Message, Purpose, Request, State};

// === impl State ===

impl State {
    /// Removes state that has no effect any more, so that states that only differ in it are one.
    pub fn tidy(&mut self, watches_writes: bool, watches_restarts: bool) {
        if !watches_writes {
            (self.server.written, self.server.owner) = (0, None);
        }
        if !watches_restarts {
            (self.server.opened, self.server.durable, self.server.durable_epoch) = (EXPIRY, None, 0);
        }
        // Later renewals may not be lost any more.
        self.server.renewed &= self.server.opened < EXPIRY;
        for (id, hub) in self.hubs.iter_mut().enumerate() {
            let waits = matches!(hub.seen, LeaseView::Lease(lease) if lease.holder.is_some_and(|holder| usize::from(holder) != id));
            if !waits || hub.hold.is_some() {
                hub.since = 0;
            }
            if let Some(request) = &mut hub.request {
                request.age = request.age.min(HOLD);
                if request.purpose == Purpose::Release {
                    request.age = 0;
                }
            }
        }
    }

    /// Drops messages without any effect, and requests that can get no answer, as if the message was lost and the hub
    /// gave up. Returns the number of feed calls of former holds among them.
    pub fn drop_dead(&mut self) -> usize {
        let (hubs, rv) = (&self.hubs, self.server.lease.map(|lease| lease.rv));
        let present = (self.server.store, self.server.epoch);
        let feed_calls = |wire: &BTreeSet<Message>| wire.iter().filter(|message| message.attempt().is_none()).count();
        let calls = feed_calls(&self.wire);
        self.wire.retain(|message| match *message {
            Message::Write { expect, blind, .. } => blind || expect == rv,
            Message::Stored { hub, attempt, .. } => hubs[usize::from(hub)]
                .request
                .is_some_and(|request| request.attempt == attempt),
            Message::Events { claim, .. } | Message::Index { claim, .. } | Message::Body { claim, .. } => {
                (claim.store, claim.epoch) >= present
            }
        });
        for (id, hub) in self.hubs.iter_mut().enumerate() {
            let may_be_answered = |request: &Request| {
                let mut theirs = self.wire.iter().filter(|message| usize::from(message.hub()) == id);
                theirs.any(|message| message.attempt() == Some(request.attempt))
            };
            hub.request = hub.request.filter(may_be_answered);
        }
        calls - feed_calls(&self.wire)
    }

    /// Forgets ages, and a hub's knowledge beyond its leadership: it reads again before it writes.
    pub fn drop_time(&mut self) {
        (self.server.opened, self.server.written) = (EXPIRY, EXPIRY);
        for hub in &mut self.hubs {
            (hub.seen, hub.since, hub.request) = (LeaseView::Unknown, 0, None);
            match &mut hub.hold {
                Some(hold) => hold.age = 0,
                None => hub.replica = LogPosition::default(),
            }
        }
    }
}
