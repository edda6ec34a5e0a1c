//! Simulated elections: several instances of the hub's real election machine against the coordinator's real guard and
//! fence.
//!
//! Real time is counted in microseconds; every hub and the coordinator see it through a clock of their own offset and
//! rate. Messages are lost, repeated and late (also by more than a lease duration). Hubs pause, die and lose the cloud.
//! The coordinator dies, forgets renewals, and loses its store. An elector that never sends a resourceVersion takes
//! part, and a stranger deletes the lease. Leaders feed all the while, and a referee checks every call that is applied.

mod coordinator;
mod faults;
mod hub;
mod setting;

use std::collections::BTreeMap;

use yurt_chaos_validate::leadership::{Hold, Referee};
use yurt_pool_protocol::election::{Attempt, Input, LeaseWrite, WriteOutcome};

use super::Ran;
use crate::faults::{Fault, Struck};
use crate::random::Random;
use coordinator::{Caller, Coordinator};
use hub::Hub;
use setting::Drift;
pub use setting::{SETTINGS, Setting};

const HUBS: usize = 3;
const SECOND: u64 = 1_000_000;
/// Duration of faults in one run.
const ROUGH: u64 = 600 * SECOND;
/// Longest duration of a fault.
const FAULT_MAX: u64 = 45 * SECOND;
/// Longest delay of a message.
const SLOWEST: u64 = 40 * SECOND;
/// Interval at which the elector without resourceVersion tries.
const FOREIGN_PERIOD: u64 = 5 * SECOND;

/// A rule left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A leader trusts itself until it sees another holder.
    IgnoreOwnClock,
    /// A hub's clock stops while it is paused.
    ClockStopsInPause,
    /// The lease is written with any resourceVersion.
    NoVersionCompare,
    /// A feed call is accepted by its sender's node alone.
    NoEpochCompare,
    /// Writes without resourceVersion are not guarded.
    NoGuard,
    /// After a start of the coordinator a holder may be replaced immediately.
    NoQuietTime,
    /// A start with an empty store keeps the store's id.
    StoreIdKept,
    /// The epoch record is stored one change late.
    EpochNotDurable,
}

/// All of them.
pub const MUTATIONS: [Mutation; 8] = [
    Mutation::IgnoreOwnClock,
    Mutation::ClockStopsInPause,
    Mutation::NoVersionCompare,
    Mutation::NoEpochCompare,
    Mutation::NoGuard,
    Mutation::NoQuietTime,
    Mutation::StoreIdKept,
    Mutation::EpochNotDurable,
];

#[derive(Clone, Debug)]
enum Event {
    /// Delivers an input to the machine of a hub's process.
    Input(usize, u32, Input),
    /// Delivers a write to the coordinator.
    Write(usize, u32, LeaseWrite),
    Read(usize, u32, Attempt),
    Feed(usize, String, Hold),
    /// Wakes the machine at its request.
    Wake(usize, u32),
    /// Sends a leader's next feed call.
    FeedDue(usize, u32),
    Pause(usize, u64),
    Kill(usize),
    KillCoordinator(u64, bool),
    StartCoordinator(bool),
    ForeignTries,
    StrangerDeletes,
}

struct Simulation {
    setting: Setting,
    mutation: Option<Mutation>,
    random: Random,
    now: u64,
    /// Next events, by time and a number that keeps the order.
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    processes: u32,
    hubs: Vec<Hub>,
    coordinator: Coordinator,
    /// Skew of the foreign elector's wall clock.
    foreign: Option<u64>,
    is_rough: bool,
    referee: Referee,
    struck: Struck,
}

/// One run from `seed`.
#[must_use]
pub fn simulate(setting: Setting, mutation: Option<Mutation>, seed: u64) -> Ran {
    let mut simulation = Simulation::new(setting, mutation, seed);
    simulation.run_until(ROUGH);
    simulation.calm_down();
    Ran {
        operations: simulation.referee.elections,
        checked: simulation.referee.fed + simulation.referee.fenced,
        struck: simulation.struck,
        violation: simulation.referee.violation,
    }
}

// === impl Simulation ===

impl Simulation {
    fn new(setting: Setting, mutation: Option<Mutation>, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let drift = setting.drift(&mut random, 3 * ROUGH);
        let foreign = random.once_in(2).then(|| random.below(120 * SECOND));
        let mut simulation = Self {
            setting,
            mutation,
            now: 0,
            events: BTreeMap::new(),
            sequence: 0,
            processes: 0,
            hubs: Vec::new(),
            coordinator: Coordinator::new(drift, mutation),
            foreign,
            is_rough: true,
            referee: Referee::default(),
            struck: Struck::default(),
            random,
        };
        for index in 0..HUBS {
            let drift = setting.drift(&mut simulation.random, ROUGH * (index as u64 + 1));
            let hub = Hub::new(index, drift, simulation.processes, &setting, mutation);
            simulation.processes += 1;
            simulation.hubs.push(hub);
            simulation.greet(index);
            simulation.plan_faults_of(index);
        }
        simulation.plan_other_faults();
        simulation
    }

    /// First results of a hub's probes.
    fn greet(&mut self, hub: usize) {
        let reachable = self.coordinator.runs;
        self.tell(hub, Input::Coordinator { reachable }, self.now);
        self.tell(hub, Input::Cloud { failed_probes: 0 }, self.now);
    }

    fn tell(&mut self, hub: usize, input: Input, at: u64) {
        let process = self.hubs[hub].process;
        self.schedule(at, Event::Input(hub, process, input));
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((at.max(self.now), self.sequence), event);
    }

    /// Sends an event over a link that loses, delays and repeats.
    fn send(&mut self, event: Event) {
        let limit = if self.is_rough { 64 } else { 32 };
        let delay = match self.random.below(limit) {
            56.. => return self.struck.count(Fault::MessageLost),
            48..56 => self.random.below(8 * SECOND),
            40..48 => self.random.below(2 * SECOND),
            39 => {
                self.struck.count(Fault::MessageLate);
                self.random.below(SLOWEST)
            }
            35..39 => {
                self.struck.count(Fault::MessageDuplicated);
                let again = self.now + self.random.below(10 * SECOND);
                self.schedule(again, event.clone());
                self.random.below(SECOND / 20)
            }
            _ => self.random.below(SECOND / 20),
        };
        self.schedule(self.now + delay, event);
    }

    fn run_until(&mut self, end: u64) {
        while let Some(entry) = self.events.first_entry() {
            let at = entry.key().0;
            if at > end || self.referee.violation.is_some() {
                break;
            }
            let event = entry.remove();
            self.now = at;
            self.happen(event);
            self.look();
        }
        self.now = end;
    }

    /// Checks that two hubs never act at the same time.
    fn look(&mut self) {
        if !self.setting.exclusive {
            return;
        }
        let (_, deadline, _) = self.setting.timings;
        let grace = deadline * SECOND * 100 / self.setting.slowest_percent();
        let acting: Vec<Hold> = self.hubs.iter().filter_map(|hub| hub.acts(self.now)).collect();
        if !acting.is_empty() {
            self.referee.acting(self.now, &acting, grace);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Input(hub, process, _) | Event::Wake(hub, process) | Event::FeedDue(hub, process)
                if self.hubs[hub].process != process => {}
            Event::Input(hub, ..) | Event::Wake(hub, _) | Event::FeedDue(hub, _)
                if self.hubs[hub].paused_until > self.now =>
            {
                self.schedule(self.hubs[hub].paused_until, event);
            }
            Event::Input(hub, _, input) => self.step(hub, input),
            Event::Wake(hub, _) if self.hubs[hub].wake.is_some_and(|wake| wake > self.now) => {}
            Event::Wake(hub, _) => self.step(hub, Input::Tick),
            Event::FeedDue(hub, _) => self.feed(hub),
            Event::Write(..) | Event::Read(..) | Event::Feed(..) if !self.coordinator.runs => self.refuse(event),
            Event::Write(hub, process, write) => self.write(hub, process, &write),
            Event::Read(hub, process, attempt) => {
                let outcome = self.coordinator.read(&hub::identity(hub, process));
                self.send(Event::Input(hub, process, Input::ReadDone(attempt, outcome)));
            }
            Event::Feed(hub, store, claim) => {
                let taken = self.coordinator.fed(&hub::node(hub), &store, claim);
                if !taken {
                    self.struck.count(Fault::StaleFeed);
                }
                self.referee.feed_call(claim, taken);
            }
            Event::Pause(hub, until) => {
                self.struck.count(Fault::HubPaused);
                self.hubs[hub].pause(self.now, until);
            }
            Event::Kill(hub) => self.kill(hub),
            Event::KillCoordinator(until, loses_store) if self.coordinator.runs => {
                self.struck.count(Fault::CoordinatorKilled);
                self.coordinator.kill();
                self.schedule(until, Event::StartCoordinator(loses_store));
                self.tell_reach(false);
            }
            Event::KillCoordinator(..) => {}
            Event::StartCoordinator(lost) => self.start_coordinator(lost),
            Event::ForeignTries => self.foreign_tries(),
            Event::StrangerDeletes => self.stranger_deletes(),
        }
    }

    fn tell_reach(&mut self, reachable: bool) {
        for hub in 0..HUBS {
            let at = self.now + self.random.below(8 * SECOND);
            self.tell(hub, Input::Coordinator { reachable }, at);
        }
    }

    /// Every watch delivers the current lease.
    fn tell_watchers(&mut self) {
        let Some(lease) = self.coordinator.lease().map(|stored| stored.lease.clone()) else {
            return;
        };
        for hub in 0..HUBS {
            let process = self.hubs[hub].process;
            self.send(Event::Input(hub, process, Input::Watched(lease.clone())));
        }
    }

    /// The receiver is down.
    fn refuse(&mut self, event: Event) {
        let (hub, process, input) = match event {
            Event::Write(hub, process, write) => (hub, process, Input::WriteDone(write.attempt, WriteOutcome::Refused)),
            Event::Read(hub, process, attempt) => {
                let failed = yurt_pool_protocol::election::ReadOutcome::Failed;
                (hub, process, Input::ReadDone(attempt, failed))
            }
            _ => return,
        };
        self.send(Event::Input(hub, process, input));
    }

    fn write(&mut self, hub: usize, process: u32, write: &LeaseWrite) {
        let node = hub::node(hub);
        let caller = Caller {
            node: &node,
            process,
            wall: self.now + 60 * SECOND,
        };
        let outcome = self.coordinator.write(self.now, caller, write, &mut self.referee);
        if matches!(outcome, WriteOutcome::Stored(_)) {
            self.tell_watchers();
        }
        self.send(Event::Input(hub, process, Input::WriteDone(write.attempt, outcome)));
    }

    /// Makes all links good. Once the messages on the wire have arrived, a lease without renewals expires, and a hub
    /// takes it within a few jittered retries.
    fn calm_down(&mut self) {
        self.is_rough = false;
        // Probes report repeatedly; messages on the wire are older.
        for hub in 0..HUBS {
            self.tell(hub, Input::Coordinator { reachable: true }, self.now + SLOWEST);
            self.tell(hub, Input::Cloud { failed_probes: 0 }, self.now + SLOWEST);
        }
        let (duration, _, retry) = self.setting.timings;
        let local = 2 * duration * SECOND + 6 * retry * SECOND * 22 / 10;
        let end = self.now + SLOWEST + local * 100 / self.setting.slowest_percent();
        while self.referee.violation.is_none() && self.now < end {
            self.run_until(self.now + SECOND / 10);
            if self.hubs.iter().any(|hub| hub.acts(self.now).is_some()) {
                return;
            }
        }
        if self.referee.violation.is_none() {
            let states: Vec<_> = self.hubs.iter().map(Hub::state).collect();
            self.referee.violated(format!("no leader at the end: {states:?}"));
        }
    }
}

#[cfg(test)]
mod tests;
