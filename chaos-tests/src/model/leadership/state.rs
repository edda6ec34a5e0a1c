//! One instant of the pool: coordinator, hubs, messages on the wire, and the observer's knowledge.

mod reduction;
mod symmetry;

use std::collections::BTreeSet;

/// Ticks for which a hub trusts its lease, counted from the sending of the last answered write: the renew deadline on
/// the slowest clock.
pub const HOLD: u8 = 2;
/// Ticks without a change after which a lease may be taken: the lease duration on the fastest clock.
pub const EXPIRY: u8 = 3;
/// A snapshot with all its bodies: two of them, a bit each.
pub const ALL_BODIES: u8 = 3;

/// RVs of two stores differ.
const RVS_PER_STORE: u8 = 32;

/// Number of a hub.
pub type HubId = u8;

/// The election lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease {
    /// resourceVersion.
    pub rv: u8,
    /// Represents renewTime: differs after every write. Only compared for change.
    pub stamp: u8,
    /// Holder of the lease.
    pub holder: Option<HubId>,
    /// `leaseTransitions`, as counted by the writers.
    pub transitions: u8,
}

/// A position in the cloud's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogPosition {
    /// Timeline.
    pub generation: u8,
    /// RV.
    pub position: u8,
}

/// The claim on which a hub acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    /// Store it was elected in.
    pub store: u8,
    /// Epoch returned to it.
    pub epoch: u8,
    /// Observer's knowledge: the number of this hold among all holds there ever were.
    pub tenure: u8,
}

/// Purpose of a write of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// Become the holder.
    Acquire,
    /// Remain the holder.
    Renew,
    /// Release the lease.
    Release,
    /// Write it again in the name of its holder; only a hostile member does.
    KeepAlive,
}

/// A message on the wire. Messages are reordered, lost and duplicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// Hub to coordinator: PUT (or POST) of the lease.
    Write {
        /// Sender.
        hub: HubId,
        /// Number of the request.
        attempt: u8,
        /// Purpose of the write.
        purpose: Purpose,
        /// Precondition; `None` = must not exist.
        expect: Option<u8>,
        /// No precondition at all: an elector that does not use resourceVersions.
        blind: bool,
        /// `leaseTransitions` to write.
        transitions: u8,
    },
    /// Coordinator to hub: the write was stored.
    Stored {
        /// Receiver.
        hub: HubId,
        /// Number of the request.
        attempt: u8,
        /// The lease as stored.
        lease: Lease,
        /// The fence, for the holder.
        claim: Claim,
    },
    /// Leader to coordinator: events of the log.
    Events {
        /// Sender.
        hub: HubId,
        /// Claim of the sender.
        claim: Claim,
        /// Timeline and `after`.
        after: LogPosition,
        /// `upTo`.
        up_to: u8,
    },
    /// Leader to coordinator: keys and RVs of everything.
    Index {
        /// Sender.
        hub: HubId,
        /// Claim of the sender.
        claim: Claim,
        /// Timeline and `at`.
        at: LogPosition,
    },
    /// Leader to coordinator: one of the two bodies.
    Body {
        /// Sender.
        hub: HubId,
        /// Claim of the sender.
        claim: Claim,
        /// Timeline and `at`.
        at: LogPosition,
        /// Index of the body.
        body: u8,
    },
}

/// Pool data at the coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Data {
    /// Timeline and `C`.
    pub place: LogPosition,
    /// True if it is published as complete.
    pub complete: bool,
    /// Bodies that are present.
    pub bodies: u8,
}

/// A snapshot whose bodies are still arriving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pending {
    /// Claim of its sender.
    pub claim: Claim,
    /// Place of the snapshot.
    pub at: LogPosition,
    /// Bodies that have arrived.
    pub bodies: u8,
}

/// The coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    /// Id of its store.
    pub store: u8,
    /// Last RV issued.
    pub rv: u8,
    /// The lease, renewals included.
    pub lease: Option<Lease>,
    /// The lease on the disk.
    pub durable: Option<Lease>,
    /// Epoch, in memory.
    pub epoch: u8,
    /// Epoch on the disk.
    pub durable_epoch: u8,
    /// Ticks since the store was opened.
    pub opened: u8,
    /// Ticks since the lease was last written.
    pub written: u8,
    /// True if the lease was written since the store was opened; only the rules of a pool need it.
    pub renewed: bool,
    /// Writer of the last acquisition.
    pub owner: Option<HubId>,
    /// Observer's knowledge: the number of the present hold.
    pub tenure: u8,
    /// Pool data in memory.
    pub data: Data,
    /// Pool data on the disk.
    pub saved: Data,
    /// Snapshot in progress.
    pub pending: Option<Pending>,
    /// A feed call that passed the fence and is not applied yet; only a mutant has one.
    pub admitted: Option<Message>,
}

/// A request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    /// Its number.
    pub attempt: u8,
    /// Purpose of the write.
    pub purpose: Purpose,
    /// Ticks since it was sent.
    pub age: u8,
}

/// Leadership of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hold {
    /// Claim of the hub.
    pub claim: Claim,
    /// Ticks since the last successful write was sent.
    pub age: u8,
}

/// Knowledge of a hub about the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeaseView {
    /// Nothing.
    Unknown,
    /// There is none.
    Absent,
    /// The lease with these contents.
    Lease(Lease),
}

/// A hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hub {
    /// The lease as last seen.
    pub seen: LeaseView,
    /// Ticks since it was first seen like that.
    pub since: u8,
    /// Write in flight.
    pub request: Option<Request>,
    /// Leadership.
    pub hold: Option<Hold>,
    /// Position of its replica.
    pub replica: LogPosition,
}

/// Number of environment actions so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spent {
    /// Restarts of the coordinator.
    pub restarts: u8,
    /// Losses of its store.
    pub stores: u8,
    /// Deletions of the lease.
    pub deletions: u8,
    /// Messages that were duplicated.
    pub duplicates: u8,
    /// Rollbacks of the cloud.
    pub rollbacks: u8,
    /// Feed calls sent.
    pub feeds: u8,
}

/// A rule that was broken on the path to this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    /// A feed call of another hold than the present one was applied.
    StaleEpoch,
    /// `C` or the generation went back.
    WentBack,
    /// An elector without resourceVersion, or a hostile member, took the lease of a hub that may act.
    Robbed,
    /// A member wrote the lease in the name of another one.
    KeptAlive,
}

/// The observer's knowledge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Observer {
    /// Writes of the lease so far; renewTime is never repeated.
    pub stamps: u8,
    /// Holds so far.
    pub tenures: u8,
    /// First rule broken.
    pub broken: Option<Broken>,
}

/// One instant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The first so many hubs are interchangeable.
    pub alike: u8,
    /// Coordinator.
    pub server: Server,
    /// Hubs.
    pub hubs: Vec<Hub>,
    /// Messages on their way.
    pub wire: BTreeSet<Message>,
    /// End of the cloud's log.
    pub cloud: LogPosition,
    /// Faults so far.
    pub spent: Spent,
    /// Observer, for the properties.
    pub observer: Observer,
}

// === impl Message ===

impl Message {
    /// The hub it comes from or goes to.
    pub fn hub(&self) -> HubId {
        match *self {
            Self::Write { hub, .. }
            | Self::Stored { hub, .. }
            | Self::Events { hub, .. }
            | Self::Index { hub, .. }
            | Self::Body { hub, .. } => hub,
        }
    }

    /// Number of the hub's request it belongs to, if it is about the lease.
    pub fn attempt(&self) -> Option<u8> {
        match *self {
            Self::Write { attempt, .. } | Self::Stored { attempt, .. } => Some(attempt),
            _ => None,
        }
    }
}

// === impl Server ===

impl Server {
    /// An empty store.
    pub fn new(store: u8) -> Self {
        Self {
            store,
            rv: store * RVS_PER_STORE,
            lease: None,
            durable: None,
            epoch: 0,
            durable_epoch: 0,
            opened: 0,
            written: 0,
            renewed: false,
            owner: None,
            tenure: 0,
            data: Data::default(),
            saved: Data::default(),
            pending: None,
            admitted: None,
        }
    }

    /// True if `writes` RVs were issued in this store: the bound of the exploration.
    pub fn is_used_up(&self, writes: u8) -> bool {
        self.rv % RVS_PER_STORE >= writes
    }

    /// Holder of the lease.
    pub fn holder(&self) -> Option<HubId> {
        self.lease.and_then(|lease| lease.holder)
    }

    /// True if readers get the data.
    pub fn is_served(&self) -> bool {
        self.data.complete && self.saved.complete && self.data.place.generation == self.saved.place.generation
    }
}

// === impl Hub ===

impl Hub {
    /// A hub in its initial state.
    pub fn new() -> Self {
        Self {
            seen: LeaseView::Unknown,
            since: 0,
            request: None,
            hold: None,
            replica: LogPosition::default(),
        }
    }

    /// True if a fenced request may be sent now.
    pub fn may_act(&self) -> bool {
        self.hold.is_some_and(|hold| hold.age < HOLD)
    }
}

impl Default for Hub {
    fn default() -> Self {
        Self::new()
    }
}

// === impl State ===

impl State {
    /// True if one of our hubs (not the foreign elector) acts for this store, `except` left out.
    pub fn somebody_acts(&self, except: HubId) -> bool {
        let acts = |hub: &Hub| hub.may_act() && hub.hold.is_some_and(|hold| hold.claim.store == self.server.store);
        self.hubs
            .iter()
            .enumerate()
            .any(|(id, hub)| id != usize::from(except) && acts(hub))
    }
}
