//! Inputs, outputs and configuration of the election [`Machine`](super::Machine).

use std::time::Duration;

use yurt_apimachinery::ResourceVersion;

/// Reading of the boot-time clock, which also counts suspend, as time since boot.
pub type BootTime = Duration;

/// Delay that each rank among the members adds to a candidate's attempt.
pub const RANK_STEP: Duration = Duration::from_millis(20);

/// Maximum delay by rank, so that the last node of a large pool still takes over quickly.
pub const RANK_DELAY_MAX: Duration = Duration::from_secs(1);

/// Time after a failure of the cloud link during which a candidate defers to others: with a flapping link it would soon
/// release the lease again.
pub const LINK_SETTLES: Duration = Duration::from_secs(60);

/// Delay per disadvantage of a candidate: more than any rank.
pub const RESERVE_DELAY: Duration = RANK_DELAY_MAX;

/// Maximum lease duration: the coordinator protects a silent holder for this long at most, regardless of its record.
pub const LEASE_DURATION_MAX: Duration = Duration::from_secs(60);

/// Time without candidacy after the coordinator does not count this hub as a member: a member gets the chance to lead.
/// The labels may be right again after it.
pub const NOT_A_MEMBER: Duration = Duration::from_secs(60);

/// Number of candidates, by rank, that read the lease every retry period even while the watch is open.
pub const POLLING_CANDIDATES: u32 = 3;

/// Maximum time that a release waits for requests of the old leader still in flight.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// Consecutive failed cloud probes that end leadership: one lost packet must not move the leader.
pub const CLOUD_FAILURES_MAX: u32 = 2;

/// Timings and identity of one candidate.
#[derive(Clone, Debug)]
pub struct Config {
    /// Value of `holderIdentity`: `<node>_<process uuid>`, so that a restarted process is another holder.
    pub identity: String,
    /// Time that the others wait after our last renewal. Whole seconds, because the record holds integers; at most
    /// [`LEASE_DURATION_MAX`]. Default 15 s.
    pub lease_duration: Duration,
    /// Leadership ends this long after the last successful renewal was *sent*. Default 10 s.
    pub renew_deadline: Duration,
    /// Time between two renewals, and the base of a candidate's retries. Default 2 s.
    pub retry_period: Duration,
    /// Rank among the members of the pool; see [`preference_delay`].
    pub rank: u32,
    /// Time that a link to the cloud counts as unsteady after a failure; default [`LINK_SETTLES`].
    pub link_settles: Duration,
    /// Test only (failpoint `leader-clock-check=off`): a leader acts until it *sees* another holder. This permits two
    /// leaders; it exists to prove that the checkers detect them.
    pub ignore_own_clock: bool,
}

/// Configuration that cannot guarantee "at most one leader", or does not fit into a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The record holds whole seconds; the coordinator protects a holder for [`LEASE_DURATION_MAX`] at most.
    #[error("lease duration must be a whole number of seconds, from 1 s to 60 s")]
    LeaseDuration,
    /// A leader must give up before another hub may take over.
    #[error("renew deadline must be shorter than the lease duration")]
    RenewDeadline,
    /// A leader needs more than one try before its deadline; like client-go, the jittered period must fit in.
    #[error("retry period must be positive; 1.2 times the retry period must be shorter than the renew deadline")]
    RetryPeriod,
    /// An empty holder means "no holder".
    #[error("identity must not be empty")]
    Identity,
}

/// State of this hub in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubState {
    /// The coordinator is unreachable; ends as soon as it is reachable.
    PendingHub,
    /// The coordinator is reachable, and another hub or none leads. Needs no cloud.
    FollowerHub,
    /// This hub holds the lease and may act until its deadline; ends with [`Action::StopLeading`].
    LeaderHub,
}

/// Election Lease as read from the coordinator; fields absent there are empty or zero here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// `metadata.resourceVersion`.
    pub resource_version: ResourceVersion,
    /// `spec.holderIdentity`; empty if there is no holder.
    pub holder_identity: String,
    /// `spec.leaseDurationSeconds`; negative counts as zero.
    pub lease_duration_seconds: i64,
    /// `spec.renewTime` as written. Only compared for change, never with a clock.
    pub renew_time: String,
    /// `spec.leaseTransitions`.
    pub lease_transitions: i64,
    /// Headers `Yurt-Epoch` and `Yurt-Store` of an answer to the holder; `None` in watch events.
    pub fence: Option<Fence>,
}

/// Proof to the coordinator that a write comes from the present leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Epoch of leadership; changes with every change of holder.
    pub epoch: u64,
    /// Random id of the coordinator's store.
    pub store: String,
}

/// Id that matches an answer to its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt(pub u64);

/// Input of the machine. Inputs are idempotent.
#[derive(Clone, Debug)]
pub enum Input {
    /// No input; only time has passed.
    Tick,
    /// Result of the coordinator's prober.
    Coordinator {
        /// True if the coordinator answers.
        reachable: bool,
    },
    /// Result of the cloud's prober.
    Cloud {
        /// Consecutive failed probes; zero if reachable.
        failed_probes: u32,
    },
    /// Our rank among the members changed.
    Rank(u32),
    /// True if our replicas have lacked data of the coordinator for a while.
    Behind(bool),
    /// ADDED or MODIFIED of the lease watch.
    Watched(Lease),
    /// DELETED of the lease watch, with the version of the deletion.
    WatchedDeletion(ResourceVersion),
    /// The answer to [`Action::ReadLease`].
    ReadDone(Attempt, ReadOutcome),
    /// The answer to [`Action::Acquire`], [`Action::Renew`] or [`Action::Release`].
    WriteDone(Attempt, WriteOutcome),
    /// The coordinator refused a membership sent by this hub, because it lacks this hub's node.
    NotMember,
    /// True if this hub's Node belongs to another pool than the hub, or that is not known yet.
    OtherPool(bool),
    /// The coordinator returned its store id in another answer (`GET /yurt/v1/feed`).
    Store(String),
    /// All leader tasks have ended: no new request follows.
    WorkStopped,
    /// The last request of the leader tasks has been answered or aborted; implies [`Input::WorkStopped`].
    Drained,
    /// The process is about to end; final.
    Shutdown,
}

/// Result of a read of the lease.
#[derive(Clone, Debug)]
pub enum ReadOutcome {
    /// 200.
    Found(Lease),
    /// 404.
    Absent,
    /// Any other result, including the timeout.
    Failed,
}

/// Result of a write of the lease.
#[derive(Clone, Debug)]
pub enum WriteOutcome {
    /// 200 or 201, with the lease as stored.
    Stored(Lease),
    /// 409: another hub was faster, or the coordinator protects the present holder.
    Conflict,
    /// 404: the lease, or its store, is gone.
    Absent,
    /// Certainly not stored (400, 403, 422, 429, connection refused).
    Refused,
    /// Possibly stored (timeout, broken connection, 5xx).
    Unknown,
}

/// Action of the driver. Actions are performed in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Try to become the holder.
    Acquire(LeaseWrite),
    /// Extend our hold.
    Renew(LeaseWrite),
    /// Release the lease, so that a successor need not wait for its expiry.
    Release(LeaseWrite),
    /// GET the lease (resourceVersion unset).
    ReadLease(Attempt),
    /// Start the leader tasks. Each fenced request carries the fence and first checks
    /// [`Machine::may_act`](super::Machine::may_act).
    StartLeading(Fence),
    /// Stop the leader tasks, then report [`Input::WorkStopped`] and [`Input::Drained`].
    StopLeading(StopReason),
}

/// One write of the Lease. The driver adds `renewTime`: its wall clock, but always later than the one last seen,
/// because an unchanged record looks expired. It gives up after [`Config::request_timeout`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseWrite {
    /// Id to return in [`Input::WriteDone`].
    pub attempt: Attempt,
    /// PUT with this precondition; `None` = POST.
    pub resource_version: Option<ResourceVersion>,
    /// `spec.holderIdentity`.
    pub holder_identity: String,
    /// `spec.leaseDurationSeconds`.
    pub lease_duration_seconds: i64,
    /// `spec.leaseTransitions`.
    pub lease_transitions: i64,
    /// True if the holder changes: `acquireTime` is set to now, and nothing else of the lease last read is kept.
    pub changes_holder: bool,
}

/// Reason why a leader stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The process ends.
    Shutdown,
    /// A leader without the cloud has nothing to feed.
    CloudLost,
    /// The membership that this hub has to send does not contain its node, or the node is of another pool.
    NotMember,
    /// The lease was deleted.
    LeaseGone,
    /// Another hub holds the lease.
    LeaseTaken,
    /// The coordinator lost its store, or assigned our hold another epoch.
    FenceChanged,
    /// No renewal succeeded in time; others may take over soon.
    RenewDeadline,
}

// === impl Config ===

impl Config {
    /// Returns upstream's defaults for this identity, at the first rank.
    pub fn new(identity: impl Into<String>) -> Self {
        Config {
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            rank: 0,
            link_settles: LINK_SETTLES,
            ignore_own_clock: false,
        }
    }

    /// Rejects timings under which two hubs could lead, or that a Lease cannot hold.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.identity.is_empty() {
            return Err(ConfigError::Identity);
        }
        let whole = self.lease_duration.subsec_nanos() == 0;
        if self.lease_duration.is_zero() || self.lease_duration > LEASE_DURATION_MAX || !whole {
            return Err(ConfigError::LeaseDuration);
        }
        if self.renew_deadline >= self.lease_duration {
            return Err(ConfigError::RenewDeadline);
        }
        if self.retry_period.is_zero() || self.retry_period.mul_f64(JITTER_FACTOR) >= self.renew_deadline {
            return Err(ConfigError::RetryPeriod);
        }
        Ok(())
    }

    /// Returns the timeout of one lease request: two must fit in before the deadline even if both hang.
    pub fn request_timeout(&self) -> Duration {
        self.retry_period.min(self.renew_deadline / 3)
    }
}

/// Spread of a candidate's retries over `retry_period * [1, 1 + JITTER_FACTOR)`, as in client-go.
pub const JITTER_FACTOR: f64 = 1.2;

/// Returns the time that a candidate defers to better ones. Candidates with a complete replica and a steady link come
/// first, ordered by rank. No candidate is excluded: if all have the same disadvantage, all wait equally.
pub fn preference_delay(is_behind: bool, is_unsteady: bool, rank: u32) -> Duration {
    RESERVE_DELAY * (u32::from(is_behind) + u32::from(is_unsteady)) + rank_delay(rank)
}

/// Returns the delay of a candidate of this rank.
pub fn rank_delay(rank: u32) -> Duration {
    RANK_STEP.saturating_mul(rank).min(RANK_DELAY_MAX)
}
