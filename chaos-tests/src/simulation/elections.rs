//! Simulated elections: several instances of the hub's real election machine against the coordinator's real guard and
//! fence.
//!
//! Real time is counted in microseconds; every hub and the coordinator see it through a clock of their own offset and
//! rate. Messages are lost, repeated and late (also by more than a lease duration). Hubs pause, die and lose the cloud.
//! The coordinator dies, forgets renewals, and loses its store. An elector that never sends a resourceVersion takes
//! part, and a stranger deletes the lease. Leaders feed all the while, and a referee checks every call that is applied.

mod coordinator;
mod hub;

use std::collections::BTreeMap;
use std::time::Duration;

use yurt_chaos_validate::leadership::{Hold, Referee};
use yurt_pool_protocol::election::{Attempt, Config, Input, Lease, LeaseWrite, WriteOutcome};

use super::Ran;
use crate::faults::{Fault, Struck};
use crate::random::Random;
use coordinator::{Caller, Coordinator};
use hub::Hub;

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

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Largest deviation of the clocks' rates, in percent.
    pub drift_percent: u64,
    /// The lease, the renew deadline and the retry period, in seconds.
    pub timings: (u64, u64, u64),
    /// True if the timings guarantee, with the clocks of the setting, that two hubs never act at the same time. The
    /// guarantees of the fence need no clock.
    pub exclusive: bool,
}

/// The settings, by name.
pub const SETTINGS: [(&str, Setting); 3] = [
    (
        "elections/default",
        Setting {
            drift_percent: 18,
            timings: (15, 10, 2),
            exclusive: true,
        },
    ),
    (
        "elections/drift-50",
        Setting {
            drift_percent: 50,
            timings: (15, 4, 1),
            exclusive: true,
        },
    ),
    (
        "elections/drift-beyond",
        Setting {
            drift_percent: 50,
            timings: (15, 10, 2),
            exclusive: false,
        },
    ),
];

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

/// A clock that began at `offset` and runs at `rate_percent` of real time, both in microseconds.
#[derive(Clone, Copy, Debug)]
struct Drift {
    offset: u64,
    rate_percent: u64,
}

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

// === impl Drift ===

impl Drift {
    fn local(self, real: u64) -> u64 {
        self.offset + real * self.rate_percent / 100
    }

    /// The real time at which it shows `local`, rounded up.
    fn real(self, local: u64) -> u64 {
        ((local - self.offset.min(local)) * 100).div_ceil(self.rate_percent) + 1
    }
}

// === impl Setting ===

impl Setting {
    fn drift(&self, random: &mut Random, offset: u64) -> Drift {
        let rate_percent = 100 - self.drift_percent + random.below(2 * self.drift_percent + 1);
        Drift { offset, rate_percent }
    }

    fn config(&self, identity: String, rank: u32, mutation: Option<Mutation>) -> Config {
        let (duration, deadline, retry) = self.timings;
        Config {
            lease_duration: Duration::from_secs(duration),
            renew_deadline: Duration::from_secs(deadline),
            retry_period: Duration::from_secs(retry),
            rank,
            ignore_own_clock: mutation == Some(Mutation::IgnoreOwnClock),
            ..Config::new(identity)
        }
    }

    fn slowest_percent(&self) -> u64 {
        100 - self.drift_percent
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

    fn some_time(&mut self) -> u64 {
        self.random.below(ROUGH - FAULT_MAX)
    }

    /// Plans pauses, deaths, losses of the cloud, and wrong probe results about the coordinator.
    fn plan_faults_of(&mut self, hub: usize) {
        for _ in 0..10 {
            let (at, length) = (self.some_time(), self.random.below(25 * SECOND));
            self.schedule(at, Event::Pause(hub, at + length));
        }
        for _ in 0..5 {
            let at = self.some_time();
            self.schedule(at, Event::Kill(hub));
        }
        for _ in 0..8 {
            let (at, length) = (self.some_time(), self.random.below(10 * SECOND));
            let failed_probes = 1 + u32::try_from(self.random.below(3)).unwrap_or_default();
            self.struck.count(Fault::CloudUnreachable);
            self.tell(hub, Input::Cloud { failed_probes }, at);
            self.tell(hub, Input::Cloud { failed_probes: 0 }, at + length);
            let at = self.some_time();
            self.tell(hub, Input::Coordinator { reachable: false }, at);
            self.tell(hub, Input::Coordinator { reachable: true }, at + length);
        }
    }

    fn plan_other_faults(&mut self) {
        for _ in 0..6 {
            let (at, length) = (self.some_time(), self.random.below(20 * SECOND));
            let loses_store = self.random.once_in(8);
            self.schedule(at, Event::KillCoordinator(at + length, loses_store));
            let at = self.some_time();
            self.schedule(at, Event::StrangerDeletes);
        }
        if self.foreign.is_some() {
            self.schedule(0, Event::ForeignTries);
        }
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

    fn kill(&mut self, hub: usize) {
        self.struck.count(Fault::HubKilled);
        let drift = self.hubs[hub].drift;
        self.hubs[hub] = Hub::new(hub, drift, self.processes, &self.setting, self.mutation);
        self.processes += 1;
        self.greet(hub);
    }

    fn start_coordinator(&mut self, lost: bool) {
        let renewals_lost = self.coordinator.start(self.now, lost, &mut self.referee);
        if lost {
            self.struck.count(Fault::StoreLost);
        } else if renewals_lost {
            self.struck.count(Fault::RenewalsLost);
        }
        self.tell_reach(true);
        let id = self.coordinator.id().to_owned();
        for hub in 0..HUBS {
            let at = self.now + self.random.below(8 * SECOND);
            self.tell(hub, Input::Store(id.clone()), at);
        }
        self.tell_watchers();
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

    /// Implements kube-leader-election's algorithm: expiry by the record's renewTime and the own wall clock, and no
    /// resourceVersion.
    fn foreign_tries(&mut self) {
        let Some(skew) = self.foreign.filter(|_| self.is_rough) else {
            return;
        };
        self.schedule(self.now + FOREIGN_PERIOD, Event::ForeignTries);
        if !self.coordinator.runs {
            return;
        }
        let wall = self.now + skew;
        let (node, identity) = ("foreign", "foreign_0");
        let stored = self.coordinator.lease();
        let holds = stored.is_some_and(|stored| stored.lease.holder_identity == identity);
        if !stored.is_none_or(|stored| holds || coordinator::looks_expired(stored, wall)) {
            return;
        }
        // It releases the lease now and then; otherwise the hubs would not get it again.
        let gives_back = holds && self.random.once_in(2);
        let lease = Lease {
            holder_identity: if gives_back { String::new() } else { identity.to_owned() },
            lease_duration_seconds: 15,
            ..Lease::default()
        };
        let caller = Caller {
            node,
            process: u32::MAX,
            wall,
        };
        let written = self
            .coordinator
            .write_blindly(self.now, caller, Some(lease), &mut self.referee);
        if written.is_err() {
            return;
        }
        self.struck.count(Fault::ForeignElector);
        self.blind_write_passed("an elector without resourceVersion took the lease");
        self.tell_watchers();
    }

    fn stranger_deletes(&mut self) {
        if !self.coordinator.runs || self.coordinator.lease().is_none() {
            return;
        }
        let caller = Caller {
            node: "stranger",
            process: u32::MAX,
            wall: self.now,
        };
        if self
            .coordinator
            .write_blindly(self.now, caller, None, &mut self.referee)
            .is_ok()
        {
            self.struck.count(Fault::LeaseDeleted);
            self.blind_write_passed("a stranger deleted the lease");
        }
    }

    /// Reports a violation if a previous holder may act.
    fn blind_write_passed(&mut self, what: &str) {
        let store = self.coordinator.id().to_owned();
        let acts = |hub: &&Hub| hub.acts(self.now).is_some() && hub.acts_for(&store);
        let acting = self.hubs.iter().filter(|_| self.setting.exclusive).find(acts);
        if let Some(process) = acting.map(|hub| hub.process) {
            self.referee.violated(format!("{what} while process {process} acted"));
        }
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
