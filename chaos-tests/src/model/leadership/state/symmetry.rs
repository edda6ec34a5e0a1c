//! Symmetry of hubs: states that are equal except for the hubs' names are one.

use super::{HubId, Lease, LeaseView, Message, State};

// === impl Message ===

impl Message {
    /// The same with the names of hubs `a` and `b` exchanged.
    fn swapped(mut self, a: HubId, b: HubId) -> Self {
        match &mut self {
            Self::Write { hub, .. } | Self::Events { hub, .. } | Self::Index { hub, .. } | Self::Body { hub, .. } => {
                *hub = swap(*hub, a, b);
            }
            Self::Stored { hub, lease, .. } => {
                *hub = swap(*hub, a, b);
                *lease = lease.swapped(a, b);
            }
        }
        self
    }
}

// === impl Lease ===

impl Lease {
    fn swapped(self, a: HubId, b: HubId) -> Self {
        Self {
            holder: self.holder.map(|hub| swap(hub, a, b)),
            ..self
        }
    }
}

// === impl State ===

impl State {
    /// One of the states that are equal except for the hubs' names.
    #[must_use]
    pub fn representative(&self) -> Self {
        let mut best = self.clone();
        for a in 0..self.alike {
            for b in a + 1..self.alike {
                let other = best.swapped(a, b);
                if other.order() < best.order() {
                    best = other;
                }
            }
        }
        best
    }

    fn order(&self) -> impl Ord + '_ {
        (&self.hubs, self.server.lease, &self.wire)
    }

    fn swapped(&self, a: HubId, b: HubId) -> Self {
        let mut other = self.clone();
        other.hubs.swap(usize::from(a), usize::from(b));
        for hub in &mut other.hubs {
            if let LeaseView::Lease(lease) = &mut hub.seen {
                *lease = lease.swapped(a, b);
            }
        }
        let server = &mut other.server;
        server.lease = server.lease.map(|lease| lease.swapped(a, b));
        server.durable = server.durable.map(|lease| lease.swapped(a, b));
        server.owner = server.owner.map(|hub| swap(hub, a, b));
        server.admitted = server.admitted.map(|message| message.swapped(a, b));
        other.wire = self.wire.iter().map(|message| message.swapped(a, b)).collect();
        other
    }
}

fn swap(hub: HubId, a: HubId, b: HubId) -> HubId {
    match hub {
        hub if hub == a => b,
        hub if hub == b => a,
        hub => hub,
    }
}
