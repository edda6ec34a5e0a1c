//! Model of election, fence, feed and completeness of data, over a network that loses, reorders and repeats messages.
//!
//! Time is counted in ticks. A holder acts for at most [`HOLD`] ticks after it *sent* its last successful write. A
//! candidate waits for [`EXPIRY`] ticks without a change of the record it sees. This is the renew deadline on the
//! slowest clock against the lease duration on the fastest. Clocks in between are covered, because a hub may give up,
//! wait or pause at any time.
//!
//! Left out: the contents of the data (see the model of replicas), and durations.

mod hub;
pub mod scenarios;
mod server;
pub mod state;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use stateright::{Model, Property};

use crate::faults::{Fault, Struck};
use server::Write;
use state::{ALL_BODIES, Broken, EXPIRY, HOLD, HubId, LogPosition, Message, Observer, Purpose, Server, Spent, State};

/// Bounds of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Hubs.
    pub hubs: u8,
    /// True if the last hub is a foreign elector: no resourceVersion, the clock of another host.
    pub foreign: bool,
    /// True if the lease is that of a pool, whose rules the coordinator's code decides, and the last hub is a member
    /// with a stolen key: it writes at any time, with the present resourceVersion. Otherwise the guard is that of other
    /// leases, which is weaker; properties that hold with it hold in a pool.
    pub hostile: bool,
    /// RVs the coordinator issues in one store.
    pub writes: u8,
    /// No clock at all: the lease may be taken at any time, and a hub leads until it learns otherwise. The guarantees
    /// of the fence must hold even so. The lease is read, written and answered in one step; only feed calls are on the
    /// wire.
    pub timeless: bool,
    /// Messages on the wire at a time.
    pub wire: usize,
    /// Restarts of the coordinator.
    pub restarts: u8,
    /// Losses of its store.
    pub stores: u8,
    /// Deletions of the lease.
    pub deletions: u8,
    /// Messages that are duplicated.
    pub duplicates: u8,
    /// Feed calls.
    pub feeds: u8,
    /// End of the cloud's log.
    pub cloud: u8,
    /// Rollbacks of the cloud.
    pub rollbacks: u8,
}

/// A rule left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The fence does not compare the epoch.
    NoEpochCompare,
    /// The fence does not compare the store.
    NoStoreCompare,
    /// The feed does not compare the generation.
    NoGenerationCompare,
    /// The epoch is `leaseTransitions`, which the writers count.
    EpochFromTransitions,
    /// The epoch record is not written with the lease.
    EpochNotDurable,
    /// The fence is checked first and data applied later.
    FenceNotAtomic,
    /// A lease is written with any resourceVersion.
    NoVersionCompare,
    /// A holder may be replaced right after a restart.
    NoGuardAfterRestart,
    /// Writes without resourceVersion pass unchecked.
    NoGuard,
    /// A member may take a pool's lease while its holder renews.
    TakeWhileAlive,
    /// A member may release for another.
    ReleaseForAnother,
    /// A member may renew for another.
    RenewForAnother,
    /// A candidate compares renewTime with its own wall clock.
    RemoteClock,
    /// A holder counts from the answer instead of from sending.
    CountFromAnswer,
    /// An answer counts for any request in flight.
    AnyAnswer,
    /// A leader releases the lease before it has stopped.
    ReleaseBeforeStop,
    /// The clocks differ by more than the timings allow.
    DriftBeyondBound,
    /// A write is answered before it is durable.
    AnswerBeforeDurable,
    /// RVs issued before a crash are issued again.
    ReuseOwnVersion,
    /// A snapshot counts as complete when its index is there.
    PublishBeforeComplete,
    /// `C` is committed before the data.
    PositionBeforeData,
    /// A new leader starts with an empty coordinator.
    WipeOnLeaderChange,
    /// A snapshot older than the held data is applied.
    SnapshotBehind,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// Bounds of the exploration.
    pub bounds: Bounds,
    /// The rule that is left out.
    pub mutation: Option<Mutation>,
    /// Counts the faults.
    pub struck: Arc<Struck>,
    /// Counts the states that must be reachable.
    pub reached: Arc<Reached>,
}

/// States that an exploration must reach to be conclusive.
#[derive(Debug, Default)]
pub struct Reached {
    /// A feed call of a second hold was applied.
    pub fed_twice: AtomicU64,
    /// Complete data was served by a restarted coordinator.
    pub served_after_restart: AtomicU64,
}

/// Possible actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// One tick of time passes for all components.
    Tick,
    /// A hub reads the current lease.
    Observe(HubId),
    /// A hub sends a write of the lease.
    Send(HubId, Purpose),
    /// A hub gives up waiting for its answer.
    GiveUp(HubId),
    /// A leader stops: its clock is fast, the cloud is lost, or it exits.
    StepDown(HubId),
    /// A message arrives.
    Deliver(Message),
    /// A message arrives and will arrive again.
    Duplicate(Message),
    /// A message is lost.
    Lose(Message),
    /// The lease is deleted.
    Delete,
    /// The coordinator is killed and started.
    Restart,
    /// The coordinator is started with an empty disk.
    ReplaceStore,
    /// The cloud changes.
    CloudMoves,
    /// The cloud is restored from a backup.
    CloudRollsBack,
    /// A leader's replica catches up.
    CatchUp(HubId),
    /// A leader sends a feed call.
    Feed(Message),
    /// The coordinator applies the call it admitted before; only a mutant does.
    ApplyAdmitted,
    /// Pool data is committed.
    Persist,
}

// === impl Leadership ===

impl Leadership {
    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn is_foreign(&self, hub: HubId) -> bool {
        self.bounds.foreign && hub + 1 == self.bounds.hubs
    }

    fn is_hostile(&self, hub: HubId) -> bool {
        self.bounds.hostile && hub + 1 == self.bounds.hubs
    }

    fn hub_actions(&self, state: &State, id: HubId, actions: &mut Vec<Action>) {
        let hub = &state.hubs[usize::from(id)];
        let has_room = state.wire.len() < self.bounds.wire;
        if !self.bounds.timeless && !self.is_hostile(id) {
            actions.push(Action::Observe(id));
        }
        if has_room || self.bounds.timeless {
            let purposes = self.lease_purposes(state, id);
            actions.extend(purposes.into_iter().map(|purpose| Action::Send(id, purpose)));
        }
        if hub.request.is_some() {
            actions.push(Action::GiveUp(id));
        }
        if hub.hold.is_none() {
            return;
        }
        actions.push(Action::StepDown(id));
        if hub.may_act() && hub.replica != state.cloud {
            actions.push(Action::CatchUp(id));
        }
        if has_room && state.spent.feeds < self.bounds.feeds {
            actions.extend(self.feed_calls(state, id).into_iter().map(Action::Feed));
        }
    }

    fn fault_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let (spent, bounds) = (state.spent, self.bounds);
        if spent.deletions < bounds.deletions && self.may_delete(&state.server) {
            actions.push(Action::Delete);
        }
        if spent.restarts < bounds.restarts && !state.server.is_used_up(bounds.writes) {
            actions.push(Action::Restart);
        }
        if spent.stores < bounds.stores {
            actions.push(Action::ReplaceStore);
        }
        if state.cloud.position < bounds.cloud {
            actions.push(Action::CloudMoves);
        }
        if spent.rollbacks < bounds.rollbacks && state.cloud.position > 1 {
            actions.push(Action::CloudRollsBack);
        }
    }

    fn deliver(&self, state: &mut State, message: Message) {
        match message {
            Message::Write {
                hub,
                attempt,
                purpose,
                expect,
                blind,
                transitions,
            } => self.write(
                state,
                Write {
                    hub,
                    attempt,
                    purpose,
                    expect,
                    blind,
                    transitions,
                },
            ),
            Message::Stored {
                hub,
                attempt,
                lease,
                claim,
            } => self.stored(state, hub, attempt, lease, claim),
            Message::Events { .. } | Message::Index { .. } | Message::Body { .. } => self.feed(state, message),
        }
    }

    fn tick(&self, state: &mut State) {
        let grow = |age: &mut u8| *age = (*age + 1).min(EXPIRY);
        grow(&mut state.server.opened);
        grow(&mut state.server.written);
        for (index, hub) in state.hubs.iter_mut().enumerate() {
            grow(&mut hub.since);
            // Beyond the bound: the clock of the first hub stops.
            if self.is(Mutation::DriftBeyondBound) && index == 0 {
                continue;
            }
            if let Some(request) = &mut hub.request {
                grow(&mut request.age);
            }
            if let Some(hold) = &mut hub.hold {
                grow(&mut hold.age);
            }
            hub.hold = hub.hold.filter(|hold| hold.age < HOLD);
        }
    }

    fn environment(&self, state: &mut State, action: Action) {
        match action {
            Action::Delete => {
                state.spent.deletions += 1;
                self.store_lease(state, None, None);
            }
            Action::Restart => {
                state.spent.restarts += 1;
                self.restart(state);
            }
            Action::ReplaceStore => {
                state.spent.stores += 1;
                state.server = Server::new(state.server.store + 1);
            }
            Action::CloudMoves => state.cloud.position += 1,
            Action::CloudRollsBack => {
                state.spent.rollbacks += 1;
                state.cloud = LogPosition {
                    generation: state.cloud.generation + 1,
                    position: 1,
                };
            }
            _ => {}
        }
    }
}

impl Model for Leadership {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let alike = self.bounds.hubs - u8::from(self.bounds.foreign || self.bounds.hostile);
        vec![State {
            alike,
            server: Server::new(0),
            hubs: vec![state::Hub::new(); usize::from(self.bounds.hubs)],
            wire: BTreeSet::new(),
            cloud: LogPosition {
                generation: 0,
                position: 1,
            },
            spent: Spent::default(),
            observer: Observer::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.observer.broken.is_some() {
            return;
        }
        if !self.bounds.timeless {
            actions.push(Action::Tick);
        }
        for id in 0..self.bounds.hubs {
            self.hub_actions(state, id, actions);
        }
        for message in &state.wire {
            actions.push(Action::Deliver(*message));
            // A lost message is one that is never delivered; it is dropped only to make room.
            if state.wire.len() >= self.bounds.wire {
                actions.push(Action::Lose(*message));
            }
            if state.spent.duplicates < self.bounds.duplicates && state.wire.len() < self.bounds.wire {
                actions.push(Action::Duplicate(*message));
            }
        }
        self.fault_actions(state, actions);
        if state.server.admitted.is_some() {
            actions.push(Action::ApplyAdmitted);
        }
        if state.server.data != state.server.saved {
            actions.push(Action::Persist);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        if let Some(fault) = fault_of(action) {
            self.struck.count(fault);
        }
        match action {
            Action::Tick => self.tick(&mut state),
            Action::Observe(id) => self.observe(&mut state, id),
            Action::Send(id, purpose) => self.send_write(&mut state, id, purpose),
            Action::GiveUp(id) => state.hubs[usize::from(id)].request = None,
            Action::StepDown(id) => state.hubs[usize::from(id)].hold = None,
            Action::CatchUp(id) => state.hubs[usize::from(id)].replica = state.cloud,
            Action::Deliver(message) => {
                state.wire.remove(&message);
                self.deliver(&mut state, message);
            }
            Action::Duplicate(message) => {
                state.spent.duplicates += 1;
                self.deliver(&mut state, message);
            }
            Action::Lose(message) => drop(state.wire.remove(&message)),
            Action::Feed(message) => {
                state.spent.feeds += 1;
                state.wire.insert(message);
            }
            Action::ApplyAdmitted => {
                let message = state.server.admitted.take()?;
                self.apply(&mut state, message);
            }
            Action::Persist => state.server.saved = state.server.data,
            fault => self.environment(&mut state, fault),
        }
        let watches_writes = self.bounds.foreign || self.bounds.hostile || self.bounds.deletions > 0;
        let takes_what_is_old = [
            Mutation::AnyAnswer,
            Mutation::NoVersionCompare,
            Mutation::ReuseOwnVersion,
            Mutation::NoEpochCompare,
            Mutation::NoStoreCompare,
            Mutation::EpochFromTransitions,
            Mutation::EpochNotDurable,
        ];
        if !takes_what_is_old.iter().any(|mutation| self.is(*mutation)) {
            let refused = state.drop_dead();
            (0..refused).for_each(|_| self.struck.count(Fault::StaleFeed));
        }
        if self.bounds.timeless {
            state.drop_time();
        }
        state.tidy(watches_writes, self.bounds.restarts > 0);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("I4 at most one hub acts for a store", |model: &Self, state: &State| {
                let stores = state.hubs.iter().filter(|hub| hub.may_act());
                let mut stores = stores.filter_map(|hub| hub.hold.map(|hold| hold.claim.store));
                let mut seen = BTreeSet::new();
                model.bounds.timeless || stores.all(|store| seen.insert(store))
            }),
            Property::always("I3 nothing of an old epoch is applied", |_, state: &State| {
                state.observer.broken != Some(Broken::StaleEpoch)
            }),
            Property::always("I3 C never decreases within a generation", |_, state: &State| {
                state.observer.broken != Some(Broken::WentBack)
            }),
            Property::always("I4 no elector robs a leader", |_, state: &State| {
                state.observer.broken != Some(Broken::Robbed)
            }),
            Property::always("I4 no member renews for another", |_, state: &State| {
                state.observer.broken != Some(Broken::KeptAlive)
            }),
            Property::always("I5 what is served is complete", |_, state: &State| {
                !state.server.is_served() || state.server.data.bodies == ALL_BODIES
            }),
        ];
        properties.push(Property::sometimes("a second hold begins", |_, state: &State| {
            state.observer.tenures > 1
        }));
        if self.bounds.feeds > 2 {
            properties.push(Property::sometimes("complete data is served", |_, state: &State| {
                state.server.is_served()
            }));
        }
        properties
    }
}

/// The fault that an action represents.
fn fault_of(action: Action) -> Option<Fault> {
    match action {
        Action::Lose(Message::Stored { .. }) => Some(Fault::AnswerLost),
        Action::Lose(_) => Some(Fault::MessageLost),
        Action::Duplicate(_) => Some(Fault::MessageDuplicated),
        Action::GiveUp(_) => Some(Fault::RequestTimedOut),
        Action::StepDown(_) => Some(Fault::LeaderStepsDown),
        Action::Delete => Some(Fault::LeaseDeleted),
        Action::Restart => Some(Fault::RenewalsLost),
        Action::ReplaceStore => Some(Fault::StoreLost),
        Action::CloudRollsBack => Some(Fault::CloudRolledBack),
        _ => None,
    }
}
