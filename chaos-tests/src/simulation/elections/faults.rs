//! Faults of the simulated elections: hubs and the coordinator pause, die and lose data, and outsiders write the lease.

use yurt_pool_protocol::election::{Input, Lease};

use super::coordinator::{self, Caller};
use super::hub::Hub;
use super::{Event, FAULT_MAX, FOREIGN_PERIOD, HUBS, ROUGH, SECOND, Simulation};
use crate::faults::Fault;

// === impl Simulation ===

impl Simulation {
    fn some_time(&mut self) -> u64 {
        self.random.below(ROUGH - FAULT_MAX)
    }

    /// Plans pauses, deaths, losses of the cloud, and wrong probe results about the coordinator.
    pub(super) fn plan_faults_of(&mut self, hub: usize) {
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

    pub(super) fn plan_other_faults(&mut self) {
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

    pub(super) fn kill(&mut self, hub: usize) {
        self.struck.count(Fault::HubKilled);
        let drift = self.hubs[hub].drift;
        self.hubs[hub] = Hub::new(hub, drift, self.processes, &self.setting, self.mutation);
        self.processes += 1;
        self.greet(hub);
    }

    pub(super) fn start_coordinator(&mut self, lost: bool) {
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

    /// Implements kube-leader-election's algorithm: expiry by the record's renewTime and the own wall clock, and no
    /// resourceVersion.
    pub(super) fn foreign_tries(&mut self) {
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

    pub(super) fn stranger_deletes(&mut self) {
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
}
