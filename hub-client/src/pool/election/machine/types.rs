//! What goes into the election [`Machine`](super::Machine) and what comes out of it.

use std::time::Duration;

pub use yurt_apimachinery::ResourceVersion;

/// A reading of the boot-time clock (it goes on through suspend), as time since boot.
pub type BootTime = Duration;

/// The waiting time one place in the member ranking costs a candidate.
pub const RANK_STEP: Duration = Duration::from_millis(20);

/// The longest wait a rank can cost, so that the last node of a large pool still takes over quickly.
pub const RANK_DELAY_MAX: Duration = Duration::from_secs(1);

/// A candidate whose link to the cloud failed less than this ago lets others go first: one that flaps would soon give the
/// lease back.
pub const LINK_SETTLES: Duration = Duration::from_secs(60);

/// What a reason against a candidate costs it: more than any place among the members.
pub const RESERVE_DELAY: Duration = RANK_DELAY_MAX;

/// The longest lease: the coordinator protects a silent holder for this long at the most, whatever its record says.
pub const LEASE_DURATION_MAX: Duration = Duration::from_secs(60);

/// A hub that the coordinator does not take for a member is no candidate for this long: somebody who is one shall lead, and
/// the labels may be right again after it.
pub const NOT_A_MEMBER: Duration = Duration::from_secs(60);

/// Candidates of a lower rank than this read the lease every retry period even while the watch is open.
pub const POLLING_CANDIDATES: u32 = 3;

/// How long a released lease may wait for requests of the old leader that are still on the wire.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// Failed cloud probes in a row that end leadership: one lost packet must not move the leader.
pub const CLOUD_FAILURES_MAX: u32 = 2;

/// Timings and identity of one candidate.
#[derive(Clone, Debug)]
pub struct Config {
    /// What stands in `holderIdentity`: `<node>_<process uuid>`, so that a restarted process is somebody else.
    pub identity: String,
    /// How long the others wait after our last renewal; whole seconds, the record holds integers, at most
    /// [`LEASE_DURATION_MAX`]. Default 15 s.
    pub lease_duration: Duration,
    /// Leadership ends this long after the last successful renewal was *sent*. Default 10 s.
    pub renew_deadline: Duration,
    /// Time between two renewals, and the base of a candidate's retries. Default 2 s.
    pub retry_period: Duration,
    /// Place among the members of the pool; see [`preference_delay`].
    pub rank: u32,
    /// How long a link to the cloud is not trusted after it failed; default [`LINK_SETTLES`].
    pub link_settles: Duration,
    /// Test only (failpoint `leader-clock-check=off`): a leader trusts itself until it *sees* another holder. With
    /// it two leaders are possible; it exists to prove that the checkers notice.
    pub ignore_own_clock: bool,
}

/// A configuration that cannot keep "at most one leader", or cannot be written into a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The record holds whole seconds; the coordinator protects a holder for [`LEASE_DURATION_MAX`] at the most.
    #[error("lease duration must be a whole number of seconds, from 1 s to 60 s")]
    LeaseDuration,
    /// A leader must give up before anybody else may take over.
    #[error("renew deadline must be shorter than the lease duration")]
    RenewDeadline,
    /// A leader needs more than one try before its deadline; client-go asks for the jittered period to fit in.
    #[error("retry period must be positive and 1.2 times it shorter than the renew deadline")]
    RetryPeriod,
    /// An empty holder means "nobody".
    #[error("identity must not be empty")]
    Identity,
}

/// What this hub is to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubState {
    /// The coordinator is not reachable; left as soon as it is.
    PendingHub,
    /// The coordinator is reachable and another hub leads, or nobody does. Needs no cloud.
    FollowerHub,
    /// This hub holds the lease and may act until its deadline; left with [`Action::StopLeading`].
    LeaderHub,
}

/// The election Lease as read from the coordinator; fields that are absent there are empty or zero here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// `metadata.resourceVersion`.
    pub resource_version: ResourceVersion,
    /// `spec.holderIdentity`; empty = nobody.
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

/// What proves to the coordinator that a write comes from the present leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Changes with every change of holder.
    pub epoch: u64,
    /// Random id of the coordinator's store.
    pub store: String,
}

/// Ties an answer to the request it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt(pub u64);

/// Something that happened; facts may be repeated at will.
#[derive(Clone, Debug)]
pub enum Input {
    /// Nothing but time has passed.
    Tick,
    /// The coordinator's prober has an opinion.
    Coordinator {
        /// Whether it answers.
        reachable: bool,
    },
    /// The cloud's prober has an opinion.
    Cloud {
        /// Failed probes in a row; zero = reachable.
        failed_probes: u32,
    },
    /// Our place among the members changed.
    Rank(u32),
    /// Whether our copy of the pool's data lacks what the coordinator has had for a while.
    Behind(bool),
    /// ADDED or MODIFIED of the lease watch.
    Watched(Lease),
    /// DELETED of the lease watch, with the version of the deletion.
    WatchedDeletion(ResourceVersion),
    /// The answer to [`Action::ReadLease`].
    ReadDone(Attempt, ReadOutcome),
    /// The answer to [`Action::Acquire`], [`Action::Renew`] or [`Action::Release`].
    WriteDone(Attempt, WriteOutcome),
    /// The coordinator refused a membership that this hub told: it is no member by it.
    NotMember,
    /// The coordinator named its store in some other answer (`GET /yurt/v1/feed`).
    Store(String),
    /// All leader tasks have ended: nothing new will be sent.
    WorkStopped,
    /// The last request of the leader tasks has been answered or aborted; implies [`Input::WorkStopped`].
    Drained,
    /// The process is about to end; never taken back.
    Shutdown,
}

/// How a read of the lease ended.
#[derive(Clone, Debug)]
pub enum ReadOutcome {
    /// 200.
    Found(Lease),
    /// 404.
    Absent,
    /// Anything else, the timeout included.
    Failed,
}

/// How a write of the lease ended.
#[derive(Clone, Debug)]
pub enum WriteOutcome {
    /// 200 or 201, with the lease as stored.
    Stored(Lease),
    /// 409: somebody else was faster, or the coordinator protects the present holder.
    Conflict,
    /// 404: the lease, or its store, is gone.
    Absent,
    /// Certainly not stored (400, 403, 422, 429, connection refused).
    Refused,
    /// Perhaps stored (timeout, broken connection, 5xx).
    Unknown,
}

/// What the driver has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Try to become the holder.
    Acquire(LeaseWrite),
    /// Extend our hold.
    Renew(LeaseWrite),
    /// Give the lease back, so that a successor need not wait for it to expire.
    Release(LeaseWrite),
    /// GET the lease (resourceVersion unset).
    ReadLease(Attempt),
    /// Start the leader tasks; each fenced request carries the fence and asks
    /// [`Machine::may_act`](super::Machine::may_act) first.
    StartLeading(Fence),
    /// Stop the leader tasks, then report [`Input::WorkStopped`] and [`Input::Drained`].
    StopLeading(StopReason),
}

/// One write of the Lease. The driver adds `renewTime` = its wall clock, but always later than the one last seen
/// (an unchanged record would look dead), keeps every other field of the object it last read, and gives up after
/// [`Config::request_timeout`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseWrite {
    /// To be repeated in [`Input::WriteDone`].
    pub attempt: Attempt,
    /// PUT with this precondition; `None` = POST.
    pub resource_version: Option<ResourceVersion>,
    /// `spec.holderIdentity`.
    pub holder_identity: String,
    /// `spec.leaseDurationSeconds`.
    pub lease_duration_seconds: i64,
    /// `spec.leaseTransitions`.
    pub lease_transitions: i64,
    /// Whether `acquireTime` becomes now too (the holder changes).
    pub sets_acquire_time: bool,
}

/// Why a leader stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The process ends.
    Shutdown,
    /// A leader without the cloud has nothing to feed.
    CloudLost,
    /// By the membership it has to tell, this hub is no member.
    NotMember,
    /// The lease was deleted.
    LeaseGone,
    /// Somebody else holds the lease.
    LeaseTaken,
    /// The coordinator lost its store, or counts our hold as another one.
    FenceChanged,
    /// No renewal succeeded in time; others may take over soon.
    RenewDeadline,
}

// === impl Config ===

impl Config {
    /// Upstream's defaults for this identity, at the first rank.
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

    /// Refuses timings under which two hubs could lead, or that a Lease cannot hold.
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

    /// How long one lease request may take: two must fit in before the deadline even if both hang.
    pub fn request_timeout(&self) -> Duration {
        self.retry_period.min(self.renew_deadline / 3)
    }
}

/// Retries of a candidate are spread over `retry_period * [1, 1 + JITTER_FACTOR)`, as in client-go.
pub const JITTER_FACTOR: f64 = 1.2;

/// How long a candidate lets better ones go first: those with a whole copy and a steady link before all others, then by
/// their place among the members. Nobody is shut out by it: where all have the same fault, all wait the same.
pub fn preference_delay(is_behind: bool, is_unsteady: bool, rank: u32) -> Duration {
    RESERVE_DELAY * (u32::from(is_behind) + u32::from(is_unsteady)) + rank_delay(rank)
}

/// How long a candidate of this rank lets the better ones go first.
pub fn rank_delay(rank: u32) -> Duration {
    RANK_STEP.saturating_mul(rank).min(RANK_DELAY_MAX)
}
