//! Budgets of connections: no client can exhaust another's.
//!
//! A connection begins as a stranger's ([`strangers`]): few places, and few of them for one address. A connection with
//! a valid certificate, or whose caller presented another credential, moves to the large budget ([`known`]). Strangers
//! on this machine have places of their own: so the kubelet's probes succeed even during a flood from the network.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::holds::LOCAL_HOLD;
use super::offenders::Origin;
use super::{Limits, MAX_HOLD, Rank};

mod known;
mod strangers;

use known::KnownPlaces;
use strangers::{Entry, Strangers};

/// The places of one server.
#[derive(Debug)]
pub(super) struct Places {
    // HeldPlaces for a scan of at most a few hundred entries.
    held: Mutex<HeldPlaces>,
    /// A stranger's place became free.
    freed: Notify,
}

#[derive(Debug)]
struct HeldPlaces {
    remote: Strangers,
    local: Strangers,
    known: KnownPlaces,
    /// Time of the last log line about refusals.
    told: Option<Instant>,
}

/// The place of one connection, free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    kind: Mutex<Kind>,
    evicted: CancellationToken,
}

#[derive(Clone, Debug)]
enum Kind {
    Stranger { is_local: bool, number: u64 },
    Known { name: Arc<str>, rank: Rank },
}

/// Minimum time between two log lines about refusals.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// Guaranteed time of a stranger's connection when places are short: some round trips of a slow link.
const GRACE: Duration = Duration::from_secs(3);
/// The same on this machine, without a link in between: all come from one address, and wait for each other.
const LOCAL_GRACE: Duration = Duration::from_millis(500);
/// A held connection is not evicted before its turn.
const _: () = assert!(MAX_HOLD.as_millis() < GRACE.as_millis());
const _: () = assert!(MAX_HOLD.as_millis() / (LOCAL_HOLD as u128) < LOCAL_GRACE.as_millis());

// === impl Places ===

impl Places {
    pub(super) fn new(limits: &Limits) -> Arc<Self> {
        let held = HeldPlaces {
            remote: Strangers::new(limits.max_strangers, limits.max_strangers_per_address, GRACE),
            local: Strangers::new(limits.max_strangers, usize::MAX, LOCAL_GRACE),
            known: KnownPlaces::new(limits.max_connections),
            told: None,
        };
        Arc::new(Self {
            held: Mutex::new(held),
            freed: Notify::new(),
        })
    }

    /// Takes a stranger's place, perhaps after a wait for one that is about to become free; `None` if `origin` has its
    /// share.
    pub(super) async fn enter(self: &Arc<Self>, origin: Origin, is_local: bool) -> Option<Place> {
        let evicted = CancellationToken::new();
        loop {
            let freed = self.freed.notified();
            let entry = {
                let mut held = self.held.lock();
                let strangers = if is_local { &mut held.local } else { &mut held.remote };
                let entry = strangers.enter(origin, Instant::now(), &evicted);
                if !matches!(entry, Entry::Taken(_)) {
                    held.tell(&origin, "strangers");
                }
                entry
            };
            match entry {
                Entry::Taken(number) => {
                    let kind = Kind::Stranger { is_local, number };
                    return Some(self.place(kind, evicted));
                }
                Entry::Refused => return None,
                Entry::Wait(until) => {
                    let _ = tokio::time::timeout_at(until, freed).await;
                }
            }
        }
    }

    /// Notes in the log that a connection of `origin` gets no place, because too many wait.
    pub(super) fn tell_refused(&self, origin: Origin) {
        self.held.lock().tell(&origin, "strangers");
    }

    /// Takes a place of the large budget for a connection of this machine's root, which has no limit of its own.
    pub(super) fn enter_known(self: &Arc<Self>, name: &str) -> Option<Place> {
        let name = Arc::from(name);
        let rank = Rank::Administrator;
        let is_in = self.held.lock().known.enter(&name, rank);
        is_in.then(|| self.place(Kind::Known { name, rank }, CancellationToken::new()))
    }

    fn place(self: &Arc<Self>, kind: Kind, evicted: CancellationToken) -> Place {
        Place {
            places: self.clone(),
            kind: Mutex::new(kind),
            evicted,
        }
    }
}

// === impl HeldPlaces ===

impl HeldPlaces {
    fn leave(&mut self, kind: &Kind) {
        match kind {
            Kind::Stranger { is_local: true, number } => self.local.leave(*number),
            Kind::Stranger { number, .. } => self.remote.leave(*number),
            Kind::Known { name, rank } => self.known.leave(name, *rank),
        }
    }

    fn tell(&mut self, client: &dyn std::fmt::Display, budget: &str) {
        let now = Instant::now();
        if self.told.is_none_or(|told| now >= told + TELL_EVERY) {
            self.told = Some(now);
            warn!(%client, budget, "Connections wait or are rejected: all places of their kind are taken");
        }
    }
}

// === impl Place ===

impl Place {
    /// Cancelled when the place went to another stranger: the connection has to end.
    pub(super) fn evicted(&self) -> &CancellationToken {
        &self.evicted
    }

    /// Moves a stranger's connection to the large budget; false if there is no place for `name`.
    pub(super) fn promote(&self, name: &str, rank: Rank) -> bool {
        let mut kind = self.kind.lock();
        if matches!(*kind, Kind::Known { .. }) {
            return true;
        }
        let name = Arc::from(name);
        let mut held = self.places.held.lock();
        if !held.known.enter(&name, rank) {
            held.tell(&name, "known clients");
            return false;
        }
        held.leave(&kind);
        *kind = Kind::Known { name, rank };
        self.places.freed.notify_waiters();
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.held.lock().leave(self.kind.get_mut());
        self.places.freed.notify_waiters();
    }
}
