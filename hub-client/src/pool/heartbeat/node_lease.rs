//! This node's heartbeat: answers the kubelet's lease requests with and without the cloud.
//!
//! A renewal goes to the cloud as the kubelet sent it (JSON or protobuf, never decoded) and, as the hub's own JSON, to
//! the coordinator. The kubelet always sees the cloud's resourceVersion: in the cloud's answer or, while the cloud is
//! away, in an echo of its own request. In the second case the beat also goes to the cloud through a relay, if there is
//! one. A create gets 409 then, if a lease is cached: the kubelet reads that one next.
//!
//! The delegate annotation is removed at the cloud before the kubelet reads its lease there. So the kubelet never
//! copies it into its own renewals.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use yurt_apimachinery::{GroupResource, Status};
use yurt_pool_protocol::heartbeat::own::{OwnAction, OwnInput, OwnLease, PoolRenewal, RenewalOutcome};
use yurt_pool_protocol::heartbeat::{
    DELEGATE_HEARTBEAT_ANNOTATION, DELEGATE_HEARTBEAT_VALUE, RELAYED_ANNOTATION, UnixMicros,
};
use yurt_pool_protocol::names::{LEASE_BYTES_MAX, NODE_LEASES};
use yurt_runtime::http::{Body, full, status_response};
use yurt_runtime::{Clock, TaskGroup};

use super::LEASE;
use super::lease_cache::{CachedLease, LeaseFile};
use super::relaying::{Beat, Relaying};
use crate::failures::Failures;
use crate::pool::lease_client::{LeaseClient, from_micros, set_annotation};
use crate::pool::relay;
use crate::replicas::history_check::{AcknowledgedLease, HistoryState};
use crate::upstream::Cloud;
use crate::upstream::hop_by_hop::answered;

/// Maximum time for a renewal at the cloud. After it the pool lease asks the leader to forward this node's beats. The
/// kubelet's own limit is 10 s.
const CLOUD_DEADLINE: Duration = Duration::from_secs(4);
/// First pause before the delegate annotation is removed again after a failure; each further one is twice as long.
const CLEAN_AGAIN: Duration = Duration::from_millis(500);
/// Maximum of that pause: the interval of the kubelet's beats, which also remove it.
const CLEAN_AGAIN_MAX: Duration = Duration::from_secs(10);
/// Maximum time for a renewal at the coordinator.
const POOL_DEADLINE: Duration = Duration::from_secs(3);
/// Failure key: the coordinator refuses this node's lease, so the leader cannot forward its beats.
const POOL_LEASE: &str = "node lease in the pool";

/// Heartbeat of this node.
pub struct OwnHeartbeat {
    settings: HeartbeatSettings,
    plan: Mutex<OwnLease>,
    /// The pool lease as last seen.
    pool_lease: tokio::sync::Mutex<Option<Value>>,
    /// The cloud's last answer about the lease.
    last: Mutex<Option<CachedLease>>,
    /// The file of that answer.
    file: Arc<LeaseFile>,
    /// True if the leader may have put the delegate annotation on the cloud's lease.
    annotated: AtomicBool,
    /// Outcome of the last renewal at the cloud; `None` before the first one.
    outcome: Mutex<Option<RenewalOutcome>>,
    /// Serialises removals of the delegate annotation.
    cleaning: tokio::sync::Mutex<()>,
}

/// Dependencies of an [`OwnHeartbeat`].
pub struct HeartbeatSettings {
    /// Name of this node.
    pub node: String,
    /// The cloud's servers.
    pub cloud: Arc<Cloud>,
    /// Client of this node's lease at the coordinator, if there is one.
    pub pool: Option<LeaseClient>,
    /// Use and offer of relays, if relaying is enabled.
    pub relaying: Option<Relaying>,
    /// State of the proof that the cloud's history is unchanged. Renewals wait for that proof, for a few seconds at
    /// most.
    pub history: HistoryState,
    /// RV of the lease that the cloud acknowledged last.
    pub acknowledged: AcknowledgedLease,
    /// Current failures of the hub; refusals of the coordinator are reported there.
    pub failures: Failures,
    /// Wakes the cloud's prober.
    pub wake: Arc<Notify>,
    /// File that caches the cloud's last answer across restarts.
    pub cache: PathBuf,
    /// Owner of the background writes.
    pub tasks: TaskGroup,
    /// Clock.
    pub clock: Clock,
}

// === impl OwnHeartbeat ===

impl OwnHeartbeat {
    /// Creates the heartbeat, with the answer that an earlier process cached.
    #[must_use]
    pub fn new(settings: HeartbeatSettings) -> Self {
        let last = CachedLease::load(&settings.cache);
        if let Some(version) = last.as_ref().and_then(CachedLease::version) {
            settings.acknowledged.record(version);
        }
        let file = LeaseFile::new(settings.cache.clone(), settings.tasks.clone());
        Self {
            settings,
            plan: Mutex::default(),
            pool_lease: tokio::sync::Mutex::default(),
            last: Mutex::new(last),
            file,
            annotated: AtomicBool::new(true),
            outcome: Mutex::default(),
            cleaning: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the relay, if relaying is enabled.
    #[must_use]
    pub fn relaying(&self) -> Option<&Relaying> {
        self.settings.relaying.as_ref()
    }

    /// True if the last beat did not reach the cloud directly from this node.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.plan.lock().is_cut_off()
    }

    /// Way of the last beat to the cloud; `None` before the first one.
    pub(crate) fn outcome(&self) -> Option<RenewalOutcome> {
        *self.outcome.lock()
    }

    /// Answers a GET, PUT or POST of this node's own lease.
    pub async fn handle(self: &Arc<Self>, request: Request<Bytes>) -> Response<Body> {
        match *request.method() {
            Method::GET => self.read(request).await,
            _ => self.beat(request).await,
        }
    }

    /// Removes the delegate annotation as soon as the cloud is back, without waiting for the next beat. Tries until the
    /// cloud answers; the caller drops the future when the cloud is lost again.
    pub async fn cloud_is_back(&self) {
        if let Some(relaying) = &self.settings.relaying {
            relaying.client.close();
        }
        let mut pause = CLEAN_AGAIN;
        while self.annotated.load(Ordering::Relaxed) && !self.clean().await {
            tokio::time::sleep(pause).await;
            pause = CLEAN_AGAIN_MAX.min(pause * 2);
        }
    }

    async fn read(&self, request: Request<Bytes>) -> Response<Body> {
        // Always: the leader may have forwarded a last beat after the link came back. A kubelet reads its lease only at
        // its start and after a conflict.
        if self.settings.pool.is_some() {
            self.clean().await;
        }
        match self.ask_cloud(request).await {
            Some(response) => response,
            None => match &*self.last.lock() {
                Some(kept) => kept.answer(StatusCode::OK),
                None => unreachable_cloud(),
            },
        }
    }

    async fn beat(self: &Arc<Self>, request: Request<Bytes>) -> Response<Body> {
        let now = self.settings.clock.unix();
        let at = UnixMicros(now.secs * 1_000_000 + i64::from(now.nanos / 1000));
        let arrived = self.settings.clock.boot();
        let echo = CachedLease::of(request.headers(), request.body().clone());
        let is_put = request.method() == Method::PUT;
        if self.carry_out(OwnInput::Beat(at)) {
            // An earlier renewal would overwrite the evidence that the cloud was restored from a backup.
            self.settings.history.renewal_may_go().await;
            let (outcome, answer) = self.renew_cloud(request, Beat { at, arrived }).await;
            self.note_first_relayed(outcome);
            if outcome != RenewalOutcome::Heard {
                self.annotated.store(true, Ordering::Relaxed);
            }
            self.carry_out(OwnInput::CloudDone(outcome));
            if let Some(answer) = answer {
                self.clean_later();
                return answer;
            }
        }
        let leases = GroupResource::new("coordination.k8s.io", "leases");
        match (echo, &*self.last.lock()) {
            (Some(sent), _) if is_put => sent.answer(StatusCode::OK),
            (_, Some(kept)) if is_put => kept.answer(StatusCode::OK),
            (_, Some(_)) => status_response(&Status::already_exists(&leases, &self.settings.node)),
            _ => unreachable_cloud(),
        }
    }

    /// Sends the kubelet's renewal to the cloud, then, on failure, the same beat through a relay. Tries the relay first
    /// while the cloud is known to be away.
    async fn renew_cloud(&self, request: Request<Bytes>, beat: Beat) -> (RenewalOutcome, Option<Response<Body>>) {
        let relay_first = self.settings.relaying.as_ref().is_some_and(Relaying::comes_first);
        if relay_first && self.relay(beat).await {
            return (RenewalOutcome::Relayed, None);
        }
        // Any answer but an overload proves that this node reaches the cloud. The kubelet itself retries after a
        // conflict.
        if let Some(answer) = self.ask_cloud(request).await {
            return (RenewalOutcome::Heard, Some(answer));
        }
        self.settings.wake.notify_one();
        let relayed = !relay_first && self.relay(beat).await;
        (
            if relayed {
                RenewalOutcome::Relayed
            } else {
                RenewalOutcome::Lost
            },
            None,
        )
    }

    /// Signals the first relayed beat of several: before it, the cloud may have marked the node as lost.
    fn note_first_relayed(&self, outcome: RenewalOutcome) {
        let before = self.outcome.lock().replace(outcome);
        if let Some(relaying) = &self.settings.relaying
            && outcome == RenewalOutcome::Relayed
            && before != Some(outcome)
        {
            relaying.written.notify_one();
        }
    }

    async fn relay(&self, beat: Beat) -> bool {
        match &self.settings.relaying {
            Some(relaying) => relaying.beat(&self.settings.node, beat).await,
            None => false,
        }
    }

    /// Passes `input` to the plan and starts the pool writes that follow. Returns true if the cloud is to be renewed
    /// now. Only a beat can do that: the renewal is the kubelet's own request.
    fn carry_out(self: &Arc<Self>, input: OwnInput) -> bool {
        let is_beat = matches!(input, OwnInput::Beat(_));
        let mut to_cloud = false;
        let actions = self.plan.lock().handle(input);
        for action in actions {
            match action {
                OwnAction::RenewCloud(_) if is_beat => to_cloud = true,
                OwnAction::RenewCloud(_) => {
                    // The newest beat came during a slow renewal and was answered without the cloud. The next one
                    // goes there.
                    self.carry_out(OwnInput::CloudSkipped);
                }
                OwnAction::RenewPool(renewal) => {
                    let (this, stop) = (self.clone(), self.settings.tasks.token());
                    self.settings.tasks.spawn("pool-heartbeat", async move {
                        if stop.run_until_cancelled(this.renew_pool(renewal)).await.is_some() {
                            // Writes a change that occurred during this write immediately. Only beats renew at the
                            // cloud.
                            this.carry_out(OwnInput::PoolDone);
                        }
                    });
                }
            }
        }
        to_cloud
    }

    /// Returns the cloud's answer and caches it if it is a lease; `None` if the cloud is away or overloaded.
    async fn ask_cloud(&self, request: Request<Bytes>) -> Option<Response<Body>> {
        let client = &self.settings.cloud.server().beats;
        let request = request.map(full);
        let (status, headers, body) = client
            .request_bytes(request, CLOUD_DEADLINE, LEASE_BYTES_MAX)
            .await
            .ok()?;
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return None;
        }
        if status.is_success()
            && let Some(kept) = CachedLease::of(&headers, body.clone())
        {
            let version = kept.version();
            let is_first = version.is_some_and(|version| self.settings.acknowledged.record(version));
            self.file.store(&kept, self.settings.clock.boot(), is_first);
            if kept.is_annotated() {
                self.annotated.store(true, Ordering::Relaxed);
            }
            *self.last.lock() = Some(kept);
        }
        Some(answered((status, headers, body)))
    }

    /// Starts the removal of the delegate annotation in the background; the kubelet does not wait for it.
    fn clean_later(self: &Arc<Self>) {
        if self.annotated.load(Ordering::Relaxed) {
            let (this, stop) = (self.clone(), self.settings.tasks.token());
            self.settings.tasks.spawn("clean-heartbeat", async move {
                stop.run_until_cancelled(this.clean()).await;
            });
        }
    }

    /// Removes the delegate annotation from the cloud's lease. Without the annotation the patch changes nothing, so the
    /// cloud writes nothing. Returns false if the cloud did not answer, or with an overload or a failure of its own.
    async fn clean(&self) -> bool {
        let _turn = self.cleaning.lock().await;
        let path = path_of(&self.settings.node);
        let patch = json!({"metadata": {"annotations": {DELEGATE_HEARTBEAT_ANNOTATION: null}}});
        let mut request = Request::new(full(patch.to_string()));
        *request.method_mut() = Method::PATCH;
        let Ok(uri) = path.parse() else { return true };
        *request.uri_mut() = uri;
        let merge = HeaderValue::from_static("application/merge-patch+json");
        request.headers_mut().insert(CONTENT_TYPE, merge);
        let answer = self
            .settings
            .cloud
            .server()
            .beats
            .request_bytes(request, CLOUD_DEADLINE, LEASE_BYTES_MAX)
            .await;
        let Ok((status, ..)) = answer else { return false };
        if (status.is_success() || status == StatusCode::NOT_FOUND) && !self.is_cut_off() {
            self.annotated.store(false, Ordering::Relaxed);
        }
        !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS
    }

    async fn renew_pool(&self, renewal: PoolRenewal) {
        let Some(pool) = &self.settings.pool else { return };
        let mut seen = self.pool_lease.lock().await;
        // Twice: after a conflict or a missing lease the second attempt reads the present state.
        for _ in 0..2 {
            let exists = seen.is_some();
            let mut lease = seen.clone().unwrap_or_else(|| pool.blank());
            self.fill(&mut lease, renewal);
            let written = if exists {
                pool.replace(&lease, POOL_DEADLINE).await
            } else {
                pool.create(&lease, POOL_DEADLINE).await
            };
            let Ok(answer) = written else { return };
            let refusal = answer.refusal();
            let is_settled = answer.lease.is_some() || refusal.is_some();
            self.settings.failures.tell(POOL_LEASE, refusal);
            if answer.lease.is_some() {
                *seen = answer.lease;
            }
            if is_settled {
                return;
            }
            let Ok(read) = pool.read(POOL_DEADLINE).await else {
                return;
            };
            *seen = read.lease;
        }
    }

    fn fill(&self, lease: &mut Value, renewal: PoolRenewal) {
        lease["spec"]["holderIdentity"] = self.settings.node.as_str().into();
        lease["spec"]["leaseDurationSeconds"] = LEASE.as_secs().into();
        lease["spec"]["renewTime"] = from_micros(renewal.renew_time.0).to_string().into();
        let delegated = renewal.is_delegated.then_some(DELEGATE_HEARTBEAT_VALUE);
        set_annotation(lease, DELEGATE_HEARTBEAT_ANNOTATION, delegated);
        let relayed = renewal.relayed.map(|beat| from_micros(beat.0).to_string());
        set_annotation(lease, RELAYED_ANNOTATION, relayed.as_deref());
        // A cut-off node cannot relay for others.
        let offer = self.settings.relaying.as_ref().filter(|_| !renewal.is_delegated);
        let offer = offer.and_then(|relaying| relaying.offer.borrow().clone());
        set_annotation(
            lease,
            relay::ADDRESS_ANNOTATION,
            offer.as_ref().map(|o| o.address.as_str()),
        );
        set_annotation(
            lease,
            relay::SERVERS_ANNOTATION,
            offer.as_ref().map(|o| o.servers.as_str()),
        );
    }
}

/// Path of the lease of `node`.
#[must_use]
pub fn path_of(node: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{NODE_LEASES}/leases/{node}")
}

fn unreachable_cloud() -> Response<Body> {
    let mut response = status_response(&Status::service_unavailable(
        "the cloud is unreachable and no node lease is cached",
        5,
    ));
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from_static("5"));
    response
}
