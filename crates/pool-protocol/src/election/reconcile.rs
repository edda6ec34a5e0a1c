//! Derives actions from the state: the second half of a step, and the time of the next one.

use super::observed::LeaseView;
use super::{
    Action, Attempt, BootTime, CLOUD_FAILURES_MAX, DRAIN_LIMIT, Flight, LeaseWrite, Machine, POLLING_CANDIDATES, Phase,
    Purpose, RELEASE_TRIES, RELEASED_DURATION_SECONDS, StopReason, TRANSITIONS_MAX, preference_delay,
};

// === impl Machine ===

impl Machine {
    /// Performs what is due in the present phase. Returns true if the phase changed and more may be due.
    pub(super) fn reconcile(&mut self, actions: &mut Vec<Action>) -> bool {
        match self.phase.clone() {
            Phase::Standby => self.reconcile_standby(actions),
            Phase::Leading { .. } => self.reconcile_leading(actions),
            Phase::Stopping {
                since,
                work_stopped,
                drained,
            } => {
                let is_quiet = work_stopped && (drained || self.now >= since + DRAIN_LIMIT);
                is_quiet && self.reconcile_stopping(actions)
            }
        }
    }

    fn reconcile_standby(&mut self, actions: &mut Vec<Action>) -> bool {
        if !self.is_candidate() {
            if self.owes_release() {
                // The acquisition came too late to be used: there is no work to stop.
                self.enter_stopping(true);
                return true;
            }
            return false;
        }
        if self.now < self.held_until && self.observed.is_held_by(&self.config.identity) {
            if let Some(fence) = self.fence.clone() {
                self.releases_left = RELEASE_TRIES;
                self.phase = Phase::Leading { fence: fence.clone() };
                actions.push(Action::StartLeading(fence));
                return true;
            }
            // A holder without a known epoch cannot feed; the next write may return it.
            self.held_until = BootTime::ZERO;
            self.back_off();
        }
        if self.reads_in_standby() {
            let next = self.jittered_period();
            self.read_if_due(next, actions);
        }
        if self.acquire_at().is_some_and(|at| at <= self.now) {
            let write = self.acquisition();
            self.releases_left = RELEASE_TRIES;
            actions.push(Action::Acquire(write));
        }
        false
    }

    fn reconcile_leading(&mut self, actions: &mut Vec<Action>) -> bool {
        if let Some(reason) = self.stop_reason() {
            self.enter_stopping(false);
            actions.push(Action::StopLeading(reason));
            return true;
        }
        if self.needs_read {
            self.read_if_due(self.config.retry_period, actions);
        } else if self.writing.is_none() && self.now >= self.next_renew {
            let mut write = self.write_as_holder(Purpose::Renew);
            write.changes_holder = false;
            actions.push(Action::Renew(write));
        }
        false
    }

    /// Handles the end of the work: releases the lease if it is ours.
    fn reconcile_stopping(&mut self, actions: &mut Vec<Action>) -> bool {
        if self.writing.is_some() {
            return false;
        }
        let may_be_ours = self.uncertain || self.needs_read || self.observed.is_held_by(&self.config.identity);
        if !may_be_ours || (self.releases_left == 0 && self.reading.is_none()) {
            if may_be_ours {
                self.uncertain = false;
                self.back_off();
            }
            self.phase = Phase::Standby;
            return true;
        }
        if self.releases_left == 0 {
            return false;
        }
        if self.uncertain || self.needs_read {
            self.needs_read = true;
            if self.read_if_due(self.config.retry_period, actions) {
                self.releases_left -= 1;
            }
            return false;
        }
        self.releases_left -= 1;
        let mut write = self.write_as_holder(Purpose::Release);
        write.holder_identity = String::new();
        write.lease_duration_seconds = RELEASED_DURATION_SECONDS;
        actions.push(Action::Release(write));
        false
    }

    fn enter_stopping(&mut self, work_stopped: bool) {
        self.held_until = BootTime::ZERO;
        self.read_at = self.now;
        self.phase = Phase::Stopping {
            since: self.now,
            work_stopped,
            drained: work_stopped,
        };
    }

    /// Returns the reason why a leader must stop; `None` if it may continue.
    fn stop_reason(&self) -> Option<StopReason> {
        let Phase::Leading { fence } = &self.phase else {
            return None;
        };
        if self.shutdown {
            return Some(StopReason::Shutdown);
        }
        if self
            .cloud_failures
            .is_none_or(|failures| failures >= CLOUD_FAILURES_MAX)
        {
            return Some(StopReason::CloudLost);
        }
        if self.is_barred() || self.is_of_other_pool {
            return Some(StopReason::NotMember);
        }
        if self.fence.as_ref() != Some(fence) {
            return Some(StopReason::FenceChanged);
        }
        match &self.observed.known {
            LeaseView::Absent => return Some(StopReason::LeaseGone),
            LeaseView::Present(lease) if lease.holder_identity != self.config.identity => {
                return Some(StopReason::LeaseTaken);
            }
            LeaseView::Present(_) | LeaseView::Unknown => {}
        }
        (self.deadline()? <= self.now).then_some(StopReason::RenewDeadline)
    }

    /// Returns the time at which leadership ends by itself; `None` under the failpoint.
    fn deadline(&self) -> Option<BootTime> {
        (!self.config.ignore_own_clock).then_some(self.held_until)
    }

    /// True if this hub may become leader. Leading needs the coordinator, the cloud, no bar, and a Node of this pool;
    /// following needs only the coordinator.
    fn is_candidate(&self) -> bool {
        let may_lead = !self.is_barred() && !self.is_of_other_pool && !self.shutdown;
        may_lead && self.coordinator_reachable && self.cloud_failures == Some(0)
    }

    fn is_barred(&self) -> bool {
        self.now < self.barred_until
    }

    /// True if the lease may be ours although we must not lead, and releases are left to try.
    pub(super) fn owes_release(&self) -> bool {
        let may_be_ours = self.uncertain || self.observed.is_held_by(&self.config.identity);
        may_be_ours && self.releases_left > 0 && self.writing.is_none()
    }

    fn reads_in_standby(&self) -> bool {
        self.needs_read || self.config.rank < POLLING_CANDIDATES
    }

    /// Returns the time of the next attempt to take the lease; `None` while a read or another write must come first.
    fn acquire_at(&self) -> Option<BootTime> {
        if self.needs_read || self.writing.is_some() {
            return None;
        }
        let at = self.observed.acquirable_at(&self.config.identity)?;
        let is_ours = self.observed.is_held_by(&self.config.identity);
        let at = if is_ours { at } else { at + self.lets_others_go() };
        Some(at.max(self.not_before))
    }

    /// Returns the delay in favour of better candidates.
    fn lets_others_go(&self) -> BootTime {
        let is_unsteady = self
            .link_failed_at
            .is_some_and(|failed| self.now < failed + self.config.link_settles);
        preference_delay(self.is_behind, is_unsteady, self.config.rank)
    }

    fn acquisition(&mut self) -> LeaseWrite {
        let is_ours = self.observed.is_held_by(&self.config.identity);
        let mut write = self.write_as_holder(Purpose::Acquire);
        if write.resource_version.is_some() && !is_ours {
            let next = write.lease_transitions.saturating_add(1);
            write.lease_transitions = if next > TRANSITIONS_MAX { 0 } else { next };
        }
        write.changes_holder = !is_ours;
        write
    }

    /// Creates a write over the record last seen, with ourselves as the holder.
    fn write_as_holder(&mut self, purpose: Purpose) -> LeaseWrite {
        let flight = self.take_off(purpose);
        self.writing = Some(flight);
        LeaseWrite {
            attempt: flight.attempt,
            resource_version: self.observed.resource_version(),
            holder_identity: self.config.identity.clone(),
            lease_duration_seconds: i64::try_from(self.config.lease_duration.as_secs()).unwrap_or(i64::MAX),
            lease_transitions: self.observed.lease().map_or(0, |lease| lease.lease_transitions),
            changes_holder: true,
        }
    }

    fn read_if_due(&mut self, next: BootTime, actions: &mut Vec<Action>) -> bool {
        if self.reading.is_some() || self.now < self.read_at {
            return false;
        }
        let flight = self.take_off(Purpose::Read);
        self.reading = Some(flight);
        self.read_at = self.now + next;
        actions.push(Action::ReadLease(flight.attempt));
        true
    }

    fn take_off(&mut self, purpose: Purpose) -> Flight {
        self.next_attempt += 1;
        Flight {
            attempt: Attempt(self.next_attempt),
            purpose,
            sent: self.now,
        }
    }

    /// Returns the earliest time at which a step is due without another input.
    pub(super) fn wake_at(&self) -> Option<BootTime> {
        let timeout = self.config.request_timeout();
        let flights = [self.reading, self.writing]
            .into_iter()
            .flatten()
            .map(|flight| flight.sent + timeout)
            .min();
        let next_read = self.reading.is_none().then_some(self.read_at);
        let due = match &self.phase {
            Phase::Standby if !self.is_candidate() => self.is_barred().then_some(self.barred_until),
            Phase::Standby => earliest(self.acquire_at(), next_read.filter(|_| self.reads_in_standby())),
            Phase::Leading { .. } if self.needs_read => earliest(self.deadline(), next_read),
            Phase::Leading { .. } if self.writing.is_some() => self.deadline(),
            Phase::Leading { .. } => earliest(self.deadline(), Some(self.next_renew)),
            Phase::Stopping {
                work_stopped: false, ..
            } => None,
            Phase::Stopping {
                since, drained: false, ..
            } if self.now < *since + DRAIN_LIMIT => Some(*since + DRAIN_LIMIT),
            Phase::Stopping { .. } if self.writing.is_some() => None,
            Phase::Stopping { .. } => next_read,
        };
        earliest(flights, due)
    }
}

fn earliest(a: Option<BootTime>, b: Option<BootTime>) -> Option<BootTime> {
    a.into_iter().chain(b).min()
}
