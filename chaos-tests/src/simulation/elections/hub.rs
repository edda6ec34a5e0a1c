//! A hub of the simulated elections: the real election machine with a clock of its own, and a feed while it leads.

use std::time::Duration;

use yurt_chaos_validate::leadership::Hold;
use yurt_pool_protocol::election::{Action, Fence, HubState, Input, Machine};

use super::{Drift, Event, Mutation, SECOND, Setting, Simulation};

/// Interval of a leader's feed calls, on its own clock.
const FEED_EVERY: u64 = SECOND;

pub(super) struct Hub {
    /// Number of the process; a restarted hub is another process.
    pub(super) process: u32,
    pub(super) drift: Drift,
    pub(super) paused_until: u64,
    /// Microseconds of real time that the clock missed, if it stops in pauses.
    slept: u64,
    pub(super) wake: Option<u64>,
    machine: Machine,
    mutation: Option<Mutation>,
    /// Fence of its leadership.
    leads: Option<Fence>,
}

pub(super) fn node(hub: usize) -> String {
    format!("hub-{hub}")
}

pub(super) fn identity(hub: usize, process: u32) -> String {
    format!("hub-{hub}_{process}")
}

// === impl Hub ===

impl Hub {
    pub(super) fn new(index: usize, drift: Drift, process: u32, setting: &Setting, mutation: Option<Mutation>) -> Self {
        let rank = u32::try_from(index).unwrap_or_default() * 2;
        let config = setting.config(identity(index, process), rank, mutation);
        Self {
            process,
            drift,
            paused_until: 0,
            slept: 0,
            wake: None,
            machine: Machine::new(config).expect("the settings of a simulation must be safe"),
            mutation,
            leads: None,
        }
    }

    pub(super) fn pause(&mut self, now: u64, until: u64) {
        if self.mutation == Some(Mutation::ClockStopsInPause) {
            self.slept += until.saturating_sub(self.paused_until.max(now));
        }
        self.paused_until = self.paused_until.max(until);
    }

    fn clock(&self, now: u64) -> u64 {
        self.drift.local(now.saturating_sub(self.slept))
    }

    /// The hold under which it believes it may act.
    pub(super) fn acts(&self, now: u64) -> Option<Hold> {
        let may = self.machine.may_act(Duration::from_micros(self.clock(now)));
        self.leads.as_ref().filter(|_| may).map(|fence| self.hold(fence))
    }

    pub(super) fn acts_for(&self, store: &str) -> bool {
        self.leads.as_ref().is_some_and(|fence| fence.store == store)
    }

    pub(super) fn state(&self) -> HubState {
        self.machine.state()
    }

    fn hold(&self, fence: &Fence) -> Hold {
        let number = fence.store.rsplit('-').next().and_then(|number| number.parse().ok());
        Hold {
            store: number.unwrap_or_default(),
            epoch: fence.epoch,
            process: self.process,
        }
    }
}

// === impl Simulation ===

impl Simulation {
    /// Passes one input to the machine, and executes its outputs.
    pub(super) fn step(&mut self, index: usize, input: Input) {
        let jitter = self.random.below(1_000) as f64 / 1_000.0;
        let now = self.now;
        let hub = &mut self.hubs[index];
        let process = hub.process;
        let local = Duration::from_micros(hub.clock(now));
        let output = hub.machine.step(local, jitter, input);
        if output.wake_at.is_some_and(|wake| wake <= local) {
            self.referee.violated(format!("the machine would spin: {output:?}"));
        }
        let hub = &mut self.hubs[index];
        let in_micros = |at: Duration| u64::try_from(at.as_micros()).unwrap_or(u64::MAX);
        hub.wake = output.wake_at.map(|wake| hub.drift.real(in_micros(wake)) + hub.slept);
        if let Some(wake) = hub.wake {
            self.schedule(wake, Event::Wake(index, process));
        }
        for action in output.actions {
            match action {
                Action::Acquire(write) | Action::Renew(write) | Action::Release(write) => {
                    self.send(Event::Write(index, process, write));
                }
                Action::ReadLease(attempt) => self.send(Event::Read(index, process, attempt)),
                Action::StartLeading(fence) => {
                    self.hubs[index].leads = Some(fence);
                    self.schedule(now, Event::FeedDue(index, process));
                }
                Action::StopLeading(_) => {
                    self.hubs[index].leads = None;
                    let drain = self.random.below(2 * SECOND);
                    self.schedule(now + drain / 2, Event::Input(index, process, Input::WorkStopped));
                    self.schedule(now + drain, Event::Input(index, process, Input::Drained));
                }
            }
        }
    }

    /// Sends a feed call, if the leader may act. The call may arrive at any later time.
    pub(super) fn feed(&mut self, index: usize) {
        let hub = &self.hubs[index];
        let Some(fence) = hub.leads.clone() else { return };
        let process = hub.process;
        if let Some(claim) = hub.acts(self.now) {
            self.send(Event::Feed(index, fence.store, claim));
        }
        let next = self.hubs[index]
            .drift
            .real(self.hubs[index].clock(self.now) + FEED_EVERY)
            + self.hubs[index].slept;
        self.schedule(next, Event::FeedDue(index, process));
    }
}
