//! Executes the decisions of the election [`Machine`]: requests to the coordinator, the lease watch, the leader's
//! tasks.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, mpsc, watch};
use yurt_apimachinery::ResourceVersion;
use yurt_apimachinery::watch::EventType;
use yurt_pool_protocol::election::{
    Action, Attempt, Config, DRAIN_LIMIT, Fence, HubState, Input, Lease, LeaseWrite, Machine, Output, ReadOutcome,
    StopReason, WriteOutcome,
};
use yurt_pool_protocol::feed::PoolStatus;
use yurt_pool_protocol::names::{EPOCH_HEADER, STORE_HEADER};
use yurt_pool_protocol::source::CoordinatorState;
use yurt_runtime::http::client::ClientError;
use yurt_runtime::{Clock, TaskGroup};

use crate::failures::Failures;
use crate::health::{CloudReach, CoordinatorReach};
use crate::pool::lease_client::{LeaseAnswer, LeaseClient, WATCH_LASTS, is_lease, micro_time, renew_time};
use crate::replicas::follower::Backoff;
use crate::upstream::json_watch::{JsonWatch, NotOpened, WatchBroken};

/// Maximum number of inputs queued for the machine.
const INPUTS_MAX: usize = 64;
/// Pause before a lease watch that ended is reopened.
const REWATCH: Duration = Duration::from_millis(200);
/// Maximum of the growing pause after refusals; see [`refused_max`]. A hub that is no member is refused for as long as
/// it runs.
const REFUSED_MAX: Duration = Duration::from_secs(10);
/// Maximum interval between two steps of the machine, even without a timer.
const IDLE_TICK: Duration = Duration::from_secs(1);
/// Test only: time that the leader's tasks continue after their stop while the failpoint is set.
const FAILPOINT_LINGER: Duration = Duration::from_secs(8);

/// Proof of leadership, held by the leader's tasks.
pub struct Leadership {
    /// Sent with every fenced request.
    pub fence: Fence,
    machine: Arc<Mutex<Machine>>,
    clock: Clock,
    blind: bool,
    inputs: mpsc::Sender<Input>,
}

/// State of the election for other components.
#[derive(Clone, Default)]
pub struct ElectionView {
    /// State of this hub.
    pub state: Option<HubState>,
    /// Identity of the leader as last seen; empty if there is none.
    pub leader: String,
    /// True if that is this hub, which may not lead yet, or no longer.
    pub is_own_lease: bool,
    /// This hub's leadership, if it leads.
    pub leadership: Option<Arc<Leadership>>,
    /// Number of times this hub became leader.
    pub elections_won: u64,
}

/// Callback that starts the leader's tasks in the given group.
pub type StartLeading = Box<dyn Fn(&TaskGroup, Arc<Leadership>) + Send + Sync>;

/// Driver of the election.
pub struct Driver {
    machine: Arc<Mutex<Machine>>,
    identity: String,
    ignore_own_clock: bool,
    request_timeout: Duration,
    refused_max: Duration,
    clock: Clock,
    lease: LeaseClient,
    last: LastSeen,
    inputs: (mpsc::Sender<Input>, mpsc::Receiver<Input>),
    view: watch::Sender<ElectionView>,
    start_leading: StartLeading,
    leading: Option<TaskGroup>,
    failures: Failures,
    tasks: TaskGroup,
}

/// Lease as last seen. A renewal keeps the fields that the hub does not know. The mutex guards only the handle.
type LastSeen = Arc<Mutex<Option<Value>>>;

/// Inputs of the driver from other components.
pub struct Signals {
    /// Receiver of the cloud's prober.
    pub cloud: watch::Receiver<CloudReach>,
    /// Receiver of the coordinator's prober.
    pub coordinator: watch::Receiver<CoordinatorReach>,
    /// Rank of this hub among the members.
    pub rank: watch::Receiver<u32>,
    /// True if this hub's replicas lack data that the coordinator has.
    pub behind: watch::Receiver<bool>,
    /// True if this hub's Node is of another pool, or that is not known yet.
    pub other_pool: watch::Receiver<bool>,
    /// Wakes the coordinator's prober.
    pub wake: Arc<Notify>,
}

/// Failure key: the coordinator refuses this candidate.
pub const ELECTION: &str = "election";

// === impl Leadership ===

impl Leadership {
    /// True if a fenced request may be sent now. Check it before each one.
    #[must_use]
    pub fn may_act(&self) -> bool {
        self.blind || self.machine.lock().may_act(self.clock.boot().since_boot())
    }

    /// Reports that the coordinator does not count this hub as a member, so that another hub leads.
    pub fn not_a_member(&self) {
        // With a full queue the next refusal reports it again.
        let _ = self.inputs.try_send(Input::NotMember);
    }

    /// Test only: true if the failpoint `leader-clock-check=off` is set. Then [`Self::may_act`] is always true.
    #[must_use]
    pub fn is_blind(&self) -> bool {
        self.blind
    }
}

// === impl Driver ===

impl Driver {
    /// Creates the driver of one candidate. `tasks` owns everything it starts. The driver ends only after it has
    /// processed [`Input::Shutdown`].
    ///
    /// # Errors
    /// The configuration's own error.
    pub fn new(
        config: Config,
        clock: Clock,
        lease: LeaseClient,
        view: watch::Sender<ElectionView>,
        start_leading: StartLeading,
        failures: Failures,
        tasks: TaskGroup,
    ) -> Result<Self, yurt_pool_protocol::election::ConfigError> {
        let (ignore_own_clock, request_timeout) = (config.ignore_own_clock, config.request_timeout());
        let (identity, refused_max) = (config.identity.clone(), refused_max(config.lease_duration));
        let machine = Arc::new(Mutex::new(Machine::new(config)?));
        let inputs = mpsc::channel(INPUTS_MAX);
        let (last, leading) = (LastSeen::default(), None);
        Ok(Self {
            machine,
            identity,
            ignore_own_clock,
            request_timeout,
            refused_max,
            clock,
            lease,
            last,
            inputs,
            view,
            start_leading,
            leading,
            failures,
            tasks,
        })
    }

    /// Runs until `stop` resolves and a held lease is released.
    pub async fn run(mut self, mut signals: Signals, stop: impl Future<Output = ()>) {
        let watching = watch_lease(
            self.lease.clone(),
            self.inputs.0.clone(),
            self.last.clone(),
            signals.wake.clone(),
            self.refused_max,
        );
        let token = self.tasks.token();
        self.tasks.spawn("lease-watch", async move {
            token.run_until_cancelled(watching).await;
        });
        let mut stop = std::pin::pin!(stop);
        let mut stopping = false;
        // Before the inputs with which this hub could become leader.
        let mut output = self.step(Input::OtherPool(*signals.other_pool.borrow_and_update()));
        self.first_facts(&mut signals);
        loop {
            let wake_at = output.wake_at;
            self.carry_out(output);
            if stopping && self.machine.lock().is_finished() {
                return;
            }
            let wake = wake_at.map_or(IDLE_TICK, |at| at.saturating_sub(self.clock.boot().since_boot()));
            let input = tokio::select! {
                () = &mut stop, if !stopping => { stopping = true; Input::Shutdown }
                Some(input) = self.inputs.1.recv() => input,
                Ok(()) = signals.cloud.changed() => cloud_input(*signals.cloud.borrow_and_update()),
                Ok(()) = signals.coordinator.changed() => {
                    let reach = signals.coordinator.borrow_and_update().clone();
                    self.coordinator_inputs(&reach)
                }
                Ok(()) = signals.rank.changed() => Input::Rank(*signals.rank.borrow_and_update()),
                Ok(()) = signals.behind.changed() => Input::Behind(*signals.behind.borrow_and_update()),
                Ok(()) = signals.other_pool.changed() => Input::OtherPool(*signals.other_pool.borrow_and_update()),
                () = tokio::time::sleep(wake) => Input::Tick,
            };
            output = self.step(input);
        }
    }

    fn first_facts(&mut self, signals: &mut Signals) {
        signals.cloud.mark_changed();
        signals.coordinator.mark_changed();
        signals.rank.mark_changed();
        signals.behind.mark_changed();
    }

    /// Returns the input for the coordinator's reachability. Queues the store's id separately, because the machine
    /// takes one input at a time.
    fn coordinator_inputs(&self, reach: &CoordinatorReach) -> Input {
        if let Some(status) = &reach.status {
            // A full queue holds newer inputs.
            let _ = self.inputs.0.try_send(Input::Store(status.store.clone()));
        }
        let speaks_ours = |status: &Arc<PoolStatus>| status.other_version().is_none();
        let speaks_ours = reach.status.as_ref().is_none_or(speaks_ours);
        Input::Coordinator {
            // A hub that cannot feed the coordinator must not lead.
            reachable: reach.state == CoordinatorState::Reachable && speaks_ours,
        }
    }

    fn step(&mut self, input: Input) -> Output {
        if let Input::Watched(_) | Input::ReadDone(..) | Input::WriteDone(..) = &input {
            tracing::trace!(?input, "Election input");
        }
        let jitter = (fastrand::u64(..) % 10_000) as f64 / 10_000.0;
        self.machine.lock().step(self.clock.boot().since_boot(), jitter, input)
    }

    fn carry_out(&mut self, output: Output) {
        for action in output.actions {
            match action {
                Action::ReadLease(attempt) => self.read(attempt),
                Action::Acquire(write) | Action::Renew(write) | Action::Release(write) => self.write(write),
                Action::StartLeading(fence) => self.start(fence),
                Action::StopLeading(reason) => self.stop(reason),
            }
        }
        let leader = self
            .machine
            .lock()
            .lease()
            .map(|lease| lease.holder_identity.clone())
            .unwrap_or_default();
        if !leader.is_empty() && leader != self.identity && leader != self.view.borrow().leader {
            // Another hub won: this one need not write, whatever its last write was refused for.
            self.failures.forget(ELECTION);
        }
        self.view.send_if_modified(|view| {
            let changed = view.state != Some(output.state) || view.leader != leader;
            if view.state != Some(output.state) {
                tracing::info!(state = ?output.state, leader, "Election state changed");
            }
            view.is_own_lease = leader == self.identity;
            (view.state, view.leader) = (Some(output.state), leader);
            changed
        });
    }

    fn start(&mut self, fence: Fence) {
        tracing::info!(epoch = fence.epoch, store = fence.store, "Started leading");
        let leadership = Arc::new(Leadership {
            fence,
            machine: self.machine.clone(),
            clock: self.clock.clone(),
            blind: self.ignore_own_clock,
            inputs: self.inputs.0.clone(),
        });
        let group = self.tasks.child();
        (self.start_leading)(&group, leadership.clone());
        self.leading = Some(group);
        self.view.send_modify(|view| {
            view.leadership = Some(leadership);
            view.elections_won += 1;
        });
    }

    fn stop(&mut self, reason: StopReason) {
        tracing::info!(?reason, "Stopped leading");
        let Some(group) = self.leading.take() else { return };
        let linger = self.ignore_own_clock && reason != StopReason::Shutdown;
        self.view.send_modify(|view| view.leadership = None);
        let inputs = self.inputs.0.clone();
        self.tasks.spawn("stop-leading", async move {
            if linger {
                tokio::time::sleep(FAILPOINT_LINGER).await;
            }
            // Tasks that exceed the limit are dropped, together with their requests.
            let _ = group.shutdown(DRAIN_LIMIT).await;
            let _ = inputs.send(Input::Drained).await;
        });
    }

    fn read(&self, attempt: Attempt) {
        let (lease, inputs, timeout) = (self.lease.clone(), self.inputs.0.clone(), self.request_timeout);
        let (last, failures) = (self.last.clone(), self.failures.clone());
        self.tasks.spawn("election-read", async move {
            let outcome = match lease.read(timeout).await {
                Ok(LeaseAnswer {
                    lease: Some(lease),
                    headers,
                    ..
                }) => ReadOutcome::Found(observe(lease, Some(&headers), &last)),
                Ok(LeaseAnswer {
                    status: StatusCode::NOT_FOUND,
                    ..
                }) => ReadOutcome::Absent,
                Ok(answer) => {
                    failures.tell(ELECTION, answer.refusal());
                    ReadOutcome::Failed
                }
                Err(_) => ReadOutcome::Failed,
            };
            // The driver is gone when the hub stops.
            let _ = inputs.send(Input::ReadDone(attempt, outcome)).await;
        });
    }

    fn write(&self, write: LeaseWrite) {
        let body = self.body(&write);
        let (lease, inputs, timeout) = (self.lease.clone(), self.inputs.0.clone(), self.request_timeout);
        let (last, failures) = (self.last.clone(), self.failures.clone());
        self.tasks.spawn("election-write", async move {
            let answer = match write.resource_version {
                Some(_) => lease.replace(&body, timeout).await,
                None => lease.create(&body, timeout).await,
            };
            let outcome = match answer {
                Ok(LeaseAnswer {
                    lease: Some(lease),
                    headers,
                    ..
                }) => {
                    failures.tell(ELECTION, None);
                    WriteOutcome::Stored(observe(lease, Some(&headers), &last))
                }
                Ok(answer) => {
                    failures.tell(ELECTION, answer.refusal());
                    refusal(answer.status)
                }
                Err(error) => unanswered(&error),
            };
            if !matches!(outcome, WriteOutcome::Stored(_)) {
                tracing::debug!(?outcome, "Election write finished");
            }
            let _ = inputs.send(Input::WriteDone(write.attempt, outcome)).await;
        });
    }

    fn body(&self, write: &LeaseWrite) -> Value {
        let seen = self.machine.lock().lease().cloned();
        let last = self.last.lock().clone().filter(|_| write.resource_version.is_some());
        let mut body = match last {
            Some(last) if write.changes_holder => self.lease.blank_over(&last),
            Some(last) => last,
            None => self.lease.blank(),
        };
        if let Some(rv) = write.resource_version {
            body["metadata"]["resourceVersion"] = rv.to_string().into();
        }
        let renewed = renew_time(&self.clock, seen.as_ref().map(|lease| lease.renew_time.as_str()));
        let spec = &mut body["spec"];
        spec["holderIdentity"] = write.holder_identity.as_str().into();
        spec["leaseDurationSeconds"] = write.lease_duration_seconds.into();
        spec["leaseTransitions"] = write.lease_transitions.into();
        spec["renewTime"] = renewed.into();
        if write.changes_holder {
            spec["acquireTime"] = micro_time(self.clock.unix()).into();
        } else if spec["acquireTime"].is_null()
            && let Some(spec) = spec.as_object_mut()
        {
            spec.remove("acquireTime");
        }
        body
    }
}

/// Maximum pause after a refused lease watch: below the duration of the lease, whose renewals the watch shows.
fn refused_max(lease_duration: Duration) -> Duration {
    REFUSED_MAX.min(lease_duration * 2 / 3)
}

fn cloud_input(reach: CloudReach) -> Input {
    reach
        .failed_probes
        .map_or(Input::Tick, |failed_probes| Input::Cloud { failed_probes })
}

/// Outcome of a write without an answer: the lease may be ours, unless the request was never sent.
fn unanswered(error: &ClientError) -> WriteOutcome {
    match error.never_sent() {
        true => WriteOutcome::Refused,
        false => WriteOutcome::Unknown,
    }
}

fn refusal(status: StatusCode) -> WriteOutcome {
    match status {
        StatusCode::CONFLICT => WriteOutcome::Conflict,
        StatusCode::NOT_FOUND => WriteOutcome::Absent,
        status if status.is_client_error() => WriteOutcome::Refused,
        _ => WriteOutcome::Unknown,
    }
}

/// Converts a Lease object and its response headers to the machine's view; keeps the object in `last`.
fn observe(lease: Value, headers: Option<&HeaderMap>, last: &LastSeen) -> Lease {
    let spec = &lease["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let header = |name: &str| headers.and_then(|headers| headers.get(name)?.to_str().ok().map(str::to_owned));
    let epoch = header(EPOCH_HEADER).and_then(|epoch| epoch.parse().ok());
    let seen = Lease {
        resource_version: ResourceVersion::parse(lease["metadata"]["resourceVersion"].as_str().unwrap_or("0"))
            .unwrap_or_default(),
        holder_identity: text(&spec["holderIdentity"]),
        lease_duration_seconds: spec["leaseDurationSeconds"].as_i64().unwrap_or(0),
        renew_time: text(&spec["renewTime"]),
        lease_transitions: spec["leaseTransitions"].as_i64().unwrap_or(0),
        fence: epoch
            .zip(header(STORE_HEADER))
            .map(|(epoch, store)| Fence { epoch, store }),
    };
    *last.lock() = Some(lease);
    seen
}

/// Keeps a watch on the election lease open; every change becomes an input. A broken connection wakes the prober.
async fn watch_lease(
    lease: LeaseClient,
    inputs: mpsc::Sender<Input>,
    last: LastSeen,
    wake: Arc<Notify>,
    refused_max: Duration,
) {
    let mut backoff = Backoff::default();
    while !inputs.is_closed() {
        let pause = match JsonWatch::open(lease.http(), &lease.watch_path(), WATCH_LASTS).await {
            Ok(events) => {
                backoff = Backoff::default();
                if take_changes(events, &inputs, &last).await.is_err() {
                    wake.notify_one();
                }
                REWATCH
            }
            Err(NotOpened::Unanswered) => {
                backoff = Backoff::default();
                wake.notify_one();
                REWATCH
            }
            Err(NotOpened::Refused(after)) => backoff.grow().max(after.unwrap_or_default()).min(refused_max),
        };
        tokio::time::sleep(pause).await;
    }
}

async fn take_changes(mut events: JsonWatch, inputs: &mpsc::Sender<Input>, last: &LastSeen) -> Result<(), WatchBroken> {
    while let Some((event, lease)) = events.next().await? {
        if !is_lease(&lease) {
            return Err(WatchBroken);
        }
        let seen = observe(lease, None, last);
        let input = match event {
            EventType::Deleted => Input::WatchedDeletion(seen.resource_version),
            _ => Input::Watched(seen),
        };
        inputs.send(input).await.map_err(|_| WatchBroken)?;
    }
    Ok(())
}

#[cfg(test)]
impl Leadership {
    /// Leadership of a hub that does not lead; with `blind` it acts all the same.
    pub(crate) fn for_test(blind: bool, clock: Clock) -> (Self, mpsc::Receiver<Input>) {
        let machine = Machine::new(Config::new("me")).unwrap();
        let (inputs, told) = mpsc::channel(1);
        let leadership = Self {
            fence: Fence {
                epoch: 1,
                store: "s1".to_owned(),
            },
            machine: Arc::new(Mutex::new(machine)),
            clock,
            blind,
            inputs,
        };
        (leadership, told)
    }
}

#[cfg(test)]
mod tests;
