//! Decides whether this hub may act as leader of its pool.
//!
//! Pure and level-triggered: [`Machine::step`] takes the clock reading, a random number and one input. It returns the
//! state, the actions and the time of the next step. The algorithm is client-go's: resourceVersion-guarded writes,
//! expiry by locally observed time, a hard renew deadline. Two rules are added. Leadership counts from the *sending* of
//! the last successful write. It is bound to the coordinator's store and epoch.
//!
//! ```text
//!             acquired, cloud reachable               shutdown, cloud lost, lease gone or
//!           ┌──────────────────────────► Leading ───┐ taken, other store, renew deadline
//!        Standby                                    ▼ StopLeading
//!           └◄─────────────────────────── Stopping ─┘
//!             released, or nothing to release
//! ```
//!
//! Invariant: of all machines on one store, [`Machine::may_act`] is true for at most one at any instant. It holds while
//! clocks drift by less than d with `renew_deadline * (1 + d) < lease_duration * (1 - d)`.

mod observed;
pub mod rank;
mod reconcile;
#[cfg(test)]
mod tests;
mod types;

use std::time::Duration;

use observed::{LeaseView, Observed};
pub use types::*;

/// Maximum number of reads and writes spent on a release; then the lease is left to expire.
const RELEASE_TRIES: u32 = 3;

/// `leaseDurationSeconds` of a released lease: the minimum that the API accepts.
const RELEASED_DURATION_SECONDS: i64 = 1;

/// Maximum `leaseTransitions`: the API's number has 32 bits. The count starts over after it.
const TRANSITIONS_MAX: i64 = i32::MAX as i64;

/// State machine of one candidate; see the module.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    /// The latest clock reading; never goes back.
    now: BootTime,
    /// The random number of the current step, in `[0, 1)`.
    jitter: f64,
    coordinator_reachable: bool,
    /// Consecutive failed probes; `None` before the first answer.
    cloud_failures: Option<u32>,
    /// Time at which a working link to the cloud last failed.
    link_failed_at: Option<BootTime>,
    /// True if our replicas lack data; see [`Input::Behind`].
    is_behind: bool,
    /// End of the bar on candidacy; see [`Input::NotMember`].
    barred_until: BootTime,
    /// True if this hub may be in the wrong pool; see [`Input::OtherPool`].
    is_of_other_pool: bool,
    shutdown: bool,
    phase: Phase,
    observed: Observed,
    /// Time of the last change of `observed`. The answer to a read sent later cannot be older than `observed`.
    observed_changed: BootTime,
    /// Id of the coordinator's store, once known.
    store: Option<String>,
    /// The fence received with the lease while we held it.
    fence: Option<Fence>,
    /// Time until which the last successful write permits acting; zero if it does not.
    held_until: BootTime,
    next_renew: BootTime,
    /// Earliest time of the next acquisition: back-off after a failed one or after our own release.
    not_before: BootTime,
    /// True if `observed` may be outdated: read before the next write.
    needs_read: bool,
    /// Earliest time of the next read.
    read_at: BootTime,
    /// True if an acquisition ended without an answer, so that the lease may be ours.
    uncertain: bool,
    releases_left: u32,
    reading: Option<Flight>,
    writing: Option<Flight>,
    next_attempt: u64,
}

/// Phase of the machine, as in the diagram above.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Standby,
    Leading {
        fence: Fence,
    },
    /// The work is ending or the lease is being released.
    Stopping {
        since: BootTime,
        work_stopped: bool,
        drained: bool,
    },
}

/// Request in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    attempt: Attempt,
    purpose: Purpose,
    /// Time at which the action was returned, never later than its sending.
    sent: BootTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Read,
    Acquire,
    Renew,
    Release,
}

/// Result of one step.
#[derive(Clone, Debug)]
pub struct Output {
    /// State of the hub now.
    pub state: HubState,
    /// Actions to perform now, in order.
    pub actions: Vec<Action>,
    /// Time to call [`Machine::step`] with [`Input::Tick`] if no input comes before; later than now.
    pub wake_at: Option<BootTime>,
}

// === impl Machine ===

impl Machine {
    /// Creates a candidate without any state. Rejects an unsafe configuration.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Machine {
            config,
            now: BootTime::ZERO,
            jitter: 0.0,
            coordinator_reachable: false,
            cloud_failures: None,
            link_failed_at: None,
            is_behind: false,
            barred_until: BootTime::ZERO,
            is_of_other_pool: false,
            shutdown: false,
            phase: Phase::Standby,
            observed: Observed::unknown(),
            observed_changed: BootTime::ZERO,
            store: None,
            fence: None,
            held_until: BootTime::ZERO,
            next_renew: BootTime::ZERO,
            not_before: BootTime::ZERO,
            needs_read: true,
            read_at: BootTime::ZERO,
            uncertain: false,
            releases_left: 0,
            reading: None,
            writing: None,
            next_attempt: 0,
        })
    }

    /// Processes one input at boot time `now`; `jitter` is a random number in `[0, 1)`.
    #[must_use]
    pub fn step(&mut self, now: BootTime, jitter: f64, input: Input) -> Output {
        self.now = self.now.max(now);
        self.jitter = jitter.clamp(0.0, 1.0);
        self.absorb(input);
        self.expire_flights();
        let mut actions = Vec::new();
        while self.reconcile(&mut actions) {}
        Output {
            state: self.state(),
            actions,
            wake_at: self.wake_at(),
        }
    }

    /// Returns the state of this hub in its pool.
    pub fn state(&self) -> HubState {
        match self.phase {
            Phase::Leading { .. } => HubState::LeaderHub,
            _ if self.coordinator_reachable => HubState::FollowerHub,
            _ => HubState::PendingHub,
        }
    }

    /// True if a fenced action may begin at `now`. Check it before each one, with a fresh clock reading.
    pub fn may_act(&self, now: BootTime) -> bool {
        matches!(self.phase, Phase::Leading { .. }) && (self.config.ignore_own_clock || now < self.held_until)
    }

    /// True if, after [`Input::Shutdown`], no work is pending.
    pub fn is_finished(&self) -> bool {
        self.shutdown && self.phase == Phase::Standby && self.writing.is_none() && !self.owes_release()
    }

    /// Returns the lease as last seen, for status pages.
    pub fn lease(&self) -> Option<&Lease> {
        self.observed.lease()
    }

    fn absorb(&mut self, input: Input) {
        match input {
            Input::Tick => {}
            Input::Coordinator { reachable } => {
                // A leader gets the same state from its next renewal.
                if reachable && !self.coordinator_reachable && !matches!(self.phase, Phase::Leading { .. }) {
                    self.read_soon();
                }
                self.coordinator_reachable = reachable;
            }
            Input::Cloud { failed_probes } => self.note_cloud(failed_probes),
            Input::Behind(is_behind) => self.is_behind = is_behind,
            Input::Rank(rank) => self.config.rank = rank,
            Input::NotMember => self.barred_until = self.now + NOT_A_MEMBER,
            Input::OtherPool(is_other) => self.is_of_other_pool = is_other,
            Input::Watched(lease) => self.watched(lease),
            Input::WatchedDeletion(version) => {
                if self.observed.is_not_newer_than(version) {
                    self.set_observed(LeaseView::Absent);
                }
            }
            Input::ReadDone(attempt, outcome) => self.read_done(attempt, outcome),
            Input::WriteDone(attempt, outcome) => self.write_done(attempt, outcome),
            Input::Store(store) => self.note_store(&store),
            Input::WorkStopped => self.note_stopped(false),
            Input::Drained => self.note_stopped(true),
            Input::Shutdown => self.shutdown = true,
        }
    }

    fn note_cloud(&mut self, failed_probes: u32) {
        let did_work = self.cloud_failures == Some(0) || self.link_failed_at.is_some();
        if failed_probes > 0 && did_work {
            self.link_failed_at = Some(self.now);
        }
        self.cloud_failures = Some(failed_probes);
    }

    fn note_stopped(&mut self, everything: bool) {
        if let Phase::Stopping {
            work_stopped, drained, ..
        } = &mut self.phase
        {
            *work_stopped = true;
            *drained |= everything;
        }
    }

    fn note_store(&mut self, store: &str) {
        if self.store.as_deref() == Some(store) {
            return;
        }
        if self.store.replace(store.to_owned()).is_some() {
            // Versions of two stores cannot be compared, so all state of the old store is void.
            self.fence = None;
            self.set_observed(LeaseView::Unknown);
            self.read_soon();
        }
    }

    /// Handles a state that may have been delayed: accepts it only if it is not older than ours.
    fn watched(&mut self, lease: Lease) {
        if self.observed.is_not_newer_than(lease.resource_version) {
            self.accept(lease);
        }
    }

    fn accept(&mut self, mut lease: Lease) {
        if let Some(fence) = lease.fence.take() {
            self.note_store(&fence.store);
            if lease.holder_identity == self.config.identity {
                self.fence = Some(fence);
            }
        }
        self.set_observed(LeaseView::Present(lease));
    }

    fn set_observed(&mut self, known: LeaseView) {
        if self.observed.set(known, self.now) {
            self.observed_changed = self.now;
            self.not_before = BootTime::ZERO;
        }
    }

    fn read_done(&mut self, attempt: Attempt, outcome: ReadOutcome) {
        let Some(flight) = self.reading.take_if(|flight| flight.attempt == attempt) else {
            if let ReadOutcome::Found(lease) = outcome {
                self.watched(lease);
            }
            return;
        };
        let is_last_word = flight.sent >= self.observed_changed;
        let before = self.observed.resource_version();
        match outcome {
            ReadOutcome::Found(lease) if is_last_word || self.observed.is_not_newer_than(lease.resource_version) => {
                self.accept(lease);
            }
            ReadOutcome::Absent if is_last_word => self.set_observed(LeaseView::Absent),
            ReadOutcome::Found(_) | ReadOutcome::Absent => return self.read_soon(),
            ReadOutcome::Failed => return self.give_up_release_if_cut_off(),
        }
        self.needs_read = false;
        self.uncertain = false;
        if self.observed.resource_version() == before {
            // The conflict that caused this read has no visible cause: wait before the next renewal, to avoid a loop.
            self.next_renew = self.now + self.config.retry_period;
        }
    }

    fn write_done(&mut self, attempt: Attempt, outcome: WriteOutcome) {
        let Some(flight) = self.writing.take_if(|flight| flight.attempt == attempt) else {
            // Too late to count from its sending, but still a state of the lease.
            if let WriteOutcome::Stored(lease) = outcome {
                self.watched(lease);
            }
            return;
        };
        match outcome {
            WriteOutcome::Stored(lease) => return self.stored(flight, lease),
            WriteOutcome::Conflict => self.read_soon(),
            WriteOutcome::Absent => self.set_observed(LeaseView::Absent),
            WriteOutcome::Refused => self.give_up_release_if_cut_off(),
            WriteOutcome::Unknown => {
                self.give_up_release_if_cut_off();
                self.uncertain |= flight.purpose == Purpose::Acquire;
            }
        }
        match flight.purpose {
            Purpose::Acquire => self.back_off(),
            Purpose::Renew if self.needs_read => self.next_renew = self.now,
            Purpose::Renew => self.next_renew = self.now.max(flight.sent + self.config.retry_period),
            Purpose::Release | Purpose::Read => {}
        }
        if self.uncertain {
            self.needs_read = true;
            self.read_at = self.not_before;
        }
    }

    fn stored(&mut self, flight: Flight, lease: Lease) {
        if flight.purpose == Purpose::Acquire {
            // Another hold has another epoch; only this answer contains it.
            self.fence = None;
        }
        if flight.sent >= self.observed_changed || self.observed.is_not_newer_than(lease.resource_version) {
            self.accept(lease);
        }
        match flight.purpose {
            Purpose::Acquire | Purpose::Renew if !matches!(self.phase, Phase::Stopping { .. }) => {
                self.held_until = flight.sent + self.config.renew_deadline;
                self.next_renew = flight.sent + self.config.retry_period;
            }
            // Another candidate gets the first chance.
            Purpose::Release => self.back_off(),
            _ => {}
        }
    }

    /// Counts an unanswered request as failed after the timeout, so that a hung driver cannot block the machine.
    fn expire_flights(&mut self) {
        let timeout = self.config.request_timeout();
        let now = self.now;
        let is_over = |flight: &Flight| now >= flight.sent + timeout;
        if let Some(flight) = self.reading.filter(is_over) {
            self.read_done(flight.attempt, ReadOutcome::Failed);
        }
        if let Some(flight) = self.writing.filter(is_over) {
            self.write_done(flight.attempt, WriteOutcome::Unknown);
        }
    }

    fn read_soon(&mut self) {
        self.needs_read = true;
        self.read_at = self.now;
    }

    fn back_off(&mut self) {
        self.not_before = self.now + self.jittered_period();
    }

    fn jittered_period(&self) -> Duration {
        self.config.retry_period.mul_f64(1.0 + JITTER_FACTOR * self.jitter)
    }

    fn give_up_release_if_cut_off(&mut self) {
        if !self.coordinator_reachable {
            self.releases_left = 0;
        }
    }
}
