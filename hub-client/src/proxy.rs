//! Proxy of the node: sends every request of a local client to a replica or to the cloud, or rejects it.
//!
//! ```text
//!   listener → request info → caller (caller.rs) → router (here) → own lease (pool/heartbeat/own.rs)
//!              checks (screen.rs)                    place (places.rs)
//!                                                    filters (approver.rs)
//!                                                                 → replica (local.rs, authorised by authorize.rs)
//!                                                                 → cache   (cached.rs; filtered reads: filtered.rs)
//!                                                                 → cloud   (pass_through.rs; the Node's status also
//!                                                                            by relay, pool/heartbeat/relaying.rs;
//!                                                                            filtered writes: filtered/write.rs;
//!                                                                            writes of pool data noted by written.rs)
//! ```

mod answered_by;
pub mod approver;
pub mod authorize;
pub mod bodies;
pub mod body;
pub mod cached;
pub mod caller;
mod filtered;
pub mod local;
pub mod offline;
pub mod open_answers;
pub mod pass_through;
pub mod places;
mod precondition;
pub(crate) mod screen;
pub mod serving;
mod shares;
pub mod written;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, UPGRADE};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::{RequestInfo, Status, Verb};
use yurt_codec::negotiation::Negotiated;
use yurt_pool_protocol::names::{LEASE_BYTES_MAX, NODE_LEASES};
use yurt_runtime::TaskGroup;
use yurt_runtime::http::server::{CloseConnection, KnownCaller, Peer, Rank};
use yurt_runtime::http::{Body, BoxError, full, pass, read_body, status_response_as, until};

use crate::config::WorkingMode;
use crate::health::{ANSWERED_WITHIN, answer_within};
use crate::metrics::Metrics;
use crate::offline::is_dry_run;
use crate::offline::own::write::OwnKey;
use crate::pool::heartbeat::node_lease::OwnHeartbeat;
use crate::pool::heartbeat::relaying;
use crate::upstream::hop_by_hop;
use answered_by::{AnsweredBy, REFUSED};
use approver::{Approved, Approver};
use bodies::Bodies;
use body::{Late, Timed};
use cached::{Cached, Head};
use caller::{Caller, Callers, Credential};
use filtered::{FilteredGet, FilteredWrite};
use local::Local;
use offline::Offline;
use open_answers::OpenAnswers;
use pass_through::{PassThrough, is_upgrade};
use places::Places;

/// Maximum size of a NodeStatus, and of the Node that answers it, bytes; above an apiserver's limit for objects.
const STATUS_BYTES_MAX: usize = 3 << 20;
/// Maximum time of a status at a cloud that is not up, before a relay is tried.
const STATUS_TIMEOUT: Duration = Duration::from_secs(4);
/// Time from the begin of the kubelet's NodeStatus to the end of its request to the cloud. The relay takes up to 4 s
/// more, and the kubelet waits for 10 s.
const NODE_STATUS_MAX: Duration = Duration::from_millis(5500);

/// Parts of the proxy.
pub struct Proxy {
    /// Name of this Node.
    pub node: String,
    /// Rules for the use of the node's identity.
    pub callers: Callers,
    /// Decides which filters apply.
    pub approver: Approver,
    /// Serves pool data from this node's replicas.
    pub local: Arc<Local>,
    /// Serves lists and watches of cacheable components from this node's cache.
    pub cached: Cached,
    /// Sends all other requests to the cloud.
    pub cloud: PassThrough,
    /// Answers what it can while the cloud is away.
    pub offline: Arc<Offline>,
    /// Serves the kubelet's lease.
    pub heartbeat: Arc<OwnHeartbeat>,
    /// Owner of work that must continue after a client hangs up.
    pub tasks: TaskGroup,
    /// Metrics of the hub.
    pub metrics: Arc<Metrics>,
    /// Concurrency limit and queues of requests.
    pub places: Places,
    /// Room for bodies that are read whole.
    pub bodies: Bodies,
    /// Answers, other than watches and logs, to callers without the node's identity.
    pub calls: OpenAnswers,
}

// === impl Proxy ===

impl Proxy {
    /// Answers one request.
    pub async fn handle(&self, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        let accept = request
            .headers()
            .get(http::header::ACCEPT)
            .and_then(|accept| accept.to_str().ok());
        let how = Negotiated::of_status(accept, true);
        let mut known = None;
        let late = Late::default();
        let request = request.map(|body| Timed::new(body, late.clone()));
        let routed = self.route(request, peer, &mut known).await;
        late.answered();
        let (by, mut response) = match routed {
            Ok(response) => (AnsweredBy::label(&response), response),
            Err(status) => {
                let status = late.status().unwrap_or(status);
                (REFUSED, status_response_as(how, &status))
            }
        };
        self.metrics.requests.with_label_values(&[by]).inc();
        // Only the cloud can verify the bearer of a token.
        let is_proved = |known: &KnownCaller| known.rank == Rank::Administrator || response.status().is_success();
        if let Some(known) = known.filter(is_proved) {
            response.extensions_mut().insert(known);
        } else if response.status() == StatusCode::UNAUTHORIZED {
            response.extensions_mut().insert(CloseConnection);
        }
        response
    }

    /// Routes a request. For callers without a certificate it stores in `known` the owner of the connection's place.
    async fn route(
        &self,
        mut request: Request<Timed<Incoming>>,
        peer: Peer,
        known: &mut Option<KnownCaller>,
    ) -> Result<Response<Body>, Status> {
        let info = RequestInfo::parse(request.method().as_str(), request.uri().path(), request.uri().query())?;
        screen::check_path(&info, request.uri())?;
        if info.is_proxy() {
            request.body_mut().renew_for_each_part();
        }
        let caller = self.callers.identify(request.headers(), request.uri(), &peer)?;
        screen::check_headers(&info, request.headers(), &caller.credential)?;
        screen::check_method(&info)?;
        *known = caller.known();
        let ends = (info.verb == Verb::Watch && peer.identity.is_some()).then(|| peer.ends.clone());
        if caller.credential == Credential::Node {
            // The kubelet's token is only for this hub.
            request.headers_mut().remove(AUTHORIZATION);
        }
        // Before the limit: a full hub must not make its node look dead.
        if self.is_own_lease(&request, &info, &caller) {
            let (head, body) = request.into_parts();
            let body: Bytes = read_body(body, LEASE_BYTES_MAX).await?;
            let (heartbeat, request) = (
                self.heartbeat.clone(),
                Request::from_parts(pass_through::forwardable(head), body),
            );
            // A beat is processed to its end, even if the kubelet hangs up before. A stop cuts it: the kubelet repeats
            // it.
            let stop = self.tasks.token();
            let answered = self.tasks.detached("kubelet-lease", async move {
                stop.run_until_cancelled(heartbeat.handle(request)).await
            });
            let answered = answered.await.map_err(|lost| Status::internal(&lost.to_string()))?;
            return answered.ok_or_else(|| Status::service_unavailable("the hub stops", 1));
        }
        // Before the limit: a request that waits for its filters must not take the place of one that has none.
        let approved = self.approver.approve(&caller, &info).await?;
        let is_opening = info.verb == Verb::Watch || request.headers().contains_key(UPGRADE);
        // PlaceGuard until the headers are sent; the connection limit bounds the stream that follows.
        let _place = self.places.enter(&caller, is_opening).await?;
        let part = match open_answers::is_stream(&info) {
            true => None,
            false => self.calls.one_more(&caller)?,
        };
        let response = self.answer(request, &info, &caller, &approved).await?;
        Ok(open_answers::counted(ending(approved.ending(response)?, ends), part))
    }

    /// Answers a request whose filters are known.
    async fn answer(
        &self,
        mut request: Request<Timed<Incoming>>,
        info: &RequestInfo,
        caller: &Caller,
        approved: &Approved,
    ) -> Result<Response<Body>, Status> {
        let chain = &approved.chain;
        if let Some(write) = self.filtered_write(&request, info, caller)? {
            let (request, room) = write
                .prepared(request, (&self.local, &self.cloud, &self.bodies), caller)
                .await?;
            let response = self.pass_on(request, info, caller).await?;
            return write.shown(&self.local, room, response).await;
        }
        let is_up = || self.local.serving.cloud.borrow().is_up();
        if info.verb == Verb::Watch && chain.is_empty() && is_upgrade(request.headers()) && is_up() {
            // Only the cloud serves watches over WebSocket.
            return self.pass_on(request, info, caller).await;
        }
        let get = FilteredGet::of(&request, info, chain)?;
        let own = match &get {
            Some(get) => self.offline.own_read(&get.object_request(), info, caller).await?,
            None => self.offline.own_read(&request, info, caller).await?,
        };
        if let Some(response) = own {
            return match &get {
                Some(get) => get.filtered((&self.local, &self.bodies), caller, chain, response).await,
                None => Ok(response),
            };
        }
        if let Some(response) = self.local.answer(&request, info, caller, approved).await? {
            return Ok(AnsweredBy::Replica.mark(response));
        }
        if let Some(get) = get {
            get.require_object(&mut request);
            let response = self.answer_unfiltered(request, info, caller).await?;
            return get.filtered((&self.local, &self.bodies), caller, chain, response).await;
        }
        if approved.is_filterable()
            && let Some(response) = self.cached.view(&request, info, caller, approved).await?
        {
            return Ok(AnsweredBy::Replica.mark(response));
        }
        self.answer_unfiltered(request, info, caller).await
    }

    /// Answers from the cache or the cloud, with the cloud's objects as they are.
    async fn answer_unfiltered(
        &self,
        request: Request<Timed<Incoming>>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Response<Body>, Status> {
        let head = self.cached.head(&request, info);
        let answered = match head.filter(|_| self.offline.own.is_lost()) {
            Some(head) => self.without_cloud(&head, info, caller).await?,
            None => {
                let cached = self.cached.answer(&request, info, caller).await?;
                cached.map(|response| AnsweredBy::Replica.mark(response))
            }
        };
        match answered {
            Some(response) => Ok(response),
            None => self.pass_on(request, info, caller).await,
        }
    }

    /// Answers a read without the cloud: a get from the cloud's last answer if that is later than the selection, else
    /// from the selection.
    async fn without_cloud(
        &self,
        head: &Head,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Option<Response<Body>>, Status> {
        if let Some(entry) = self.cached.covering(head, caller) {
            let held = entry.replica().collection();
            let later = self.offline.later_than(held, head.request(), info, caller).await?;
            if later.is_some() {
                return Ok(later);
            }
        }
        let cached = self.cached.without_cloud(head, caller).await?;
        Ok(cached.map(|response| AnsweredBy::Replica.mark(response)))
    }

    /// Describes a write by a component that reads through filters; `None` for any other request.
    ///
    /// # Errors
    /// 503 while it is unknown whether the component reads through filters.
    fn filtered_write<B>(
        &self,
        request: &Request<B>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Option<FilteredWrite>, Status> {
        if !FilteredWrite::is_of_object(info) {
            return Ok(None);
        }
        let (chains, edition) = self.approver.reads_of(caller, info)?;
        Ok(FilteredWrite::of(request, info, chains, edition))
    }

    /// Answers with the cloud's answer, or with what this node has written.
    async fn pass_on<B>(
        &self,
        request: Request<B>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Response<Body>, Status>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        if is_dry_run(info, request.uri()) {
            return self.cloud.send(request.map(pass), info, caller).await;
        }
        match self.offline.own_write(info, caller) {
            Some(key) => self.write_own(request, info, caller, &key).await,
            None => self.send_to_cloud(request, info, caller).await,
        }
    }

    /// Sends a request to the cloud. A read that it does not answer is answered from the cache, before the probes know
    /// of the loss.
    async fn send_to_cloud<B>(
        &self,
        request: Request<B>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Response<Body>, Status>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let head = self.cached.head(&request, info);
        let request = request.map(pass);
        let covering = head.as_ref().and_then(|head| self.cached.covering(head, caller));
        let sent = match covering {
            // The replica is newer than an answer that was kept.
            Some(entry) if entry.is_followed() => self.cloud.send(request, info, caller).await,
            // It may never be newer again, and is dropped once it is idle.
            Some(_) => self.offline.pass_keeping(&self.cloud, request, info, caller).await,
            None => self.offline.pass(&self.cloud, request, info, caller).await,
        };
        let response = match (sent, &head) {
            (Ok(response), _) => response,
            (Err(status), Some(head)) if status.code() == StatusCode::SERVICE_UNAVAILABLE.as_u16() => {
                if let Some(later) = self.offline.later_than_listed(head.request(), info, caller).await? {
                    return Ok(later);
                }
                return self.without_cloud(head, info, caller).await?.ok_or(status);
            }
            (Err(status), _) => return Err(status),
        };
        if let Some(head) = &head {
            self.cached.note_answer(head, caller, &response);
        }
        let response = self.local.note_write(info, response);
        Ok(self.cached.note_write(info, response))
    }

    /// Sends a status that this node writes to the cloud, or accepts it here while the cloud is away.
    async fn write_own<B>(
        &self,
        request: Request<B>,
        info: &RequestInfo,
        caller: &Caller,
        key: &OwnKey,
    ) -> Result<Response<Body>, Status>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let (head, body) = request.into_parts();
        let body = read_body(body, STATUS_BYTES_MAX).await?;
        let request = Request::from_parts(pass_through::forwardable(head), body);
        let began = Instant::now();
        self.offline.own.settle(key).await;
        let sent = self.send_status(&request, info, caller, began).await;
        let response = self.offline.own.written(key, request, sent).await?;
        let response = self.local.note_write(info, response);
        Ok(self.cached.note_write(info, response))
    }

    /// Sends a status, whose request began at `began`, to the cloud. The kubelet's NodeStatus also takes a relay: after
    /// a failure, or first while the cloud is known to be away.
    async fn send_status(
        &self,
        request: &Request<Bytes>,
        info: &RequestInfo,
        caller: &Caller,
        began: Instant,
    ) -> Result<Response<Body>, Status> {
        let is_relayed = caller.is_node_component("kubelet") && relaying::is_own_status(info, &self.node);
        let relaying = self.heartbeat.relaying().filter(|_| is_relayed);
        let relay = async || {
            let answer = relaying.as_ref()?.pass(request, STATUS_BYTES_MAX).await?;
            Some(AnsweredBy::Cloud.mark(hop_by_hop::answered(answer)))
        };
        let relay_first = relaying.is_some_and(|relaying| relaying.comes_first());
        if relay_first && let Some(answer) = relay().await {
            return Ok(answer);
        }
        let unavailable = || Status::service_unavailable("the cloud does not answer", 1);
        if self.offline.own.is_lost() {
            return Err(unavailable());
        }
        let (direct, reach) = (
            self.cloud.send_repeatable(request.clone().map(full), info, caller),
            self.cloud.reach.clone(),
        );
        let max = match is_relayed {
            true => NODE_STATUS_MAX.saturating_sub(began.elapsed()),
            false => ANSWERED_WITHIN,
        };
        let refused = match answer_within((STATUS_TIMEOUT, max), reach.clone(), direct).await {
            Some(Ok(response)) => return Ok(response),
            Some(Err(refused)) => refused,
            // A relay leads to the same cloud.
            None if reach.borrow().is_up() => return Err(unavailable()),
            None => unavailable(),
        };
        if !relay_first && let Some(answer) = relay().await {
            return Ok(answer);
        }
        Err(refused)
    }

    /// True if the kubelet reads, creates or replaces its own node's lease. A create is a POST to the collection. All
    /// else about the lease is a request as any other.
    fn is_own_lease<B>(&self, request: &Request<B>, info: &RequestInfo, caller: &Caller) -> bool {
        // In cloud mode the lease is a request as any other.
        self.local.mode == WorkingMode::Edge
            && caller.is_node_component("kubelet")
            && info.group == "coordination.k8s.io"
            && info.resource == "leases"
            && info.namespace.as_deref() == Some(NODE_LEASES)
            && info.subresource.is_none()
            && match info.verb {
                // Not HEAD.
                Verb::Get => request.method() == Method::GET && info.name.as_ref() == Some(&self.node),
                Verb::Update => info.name.as_ref() == Some(&self.node),
                Verb::Create => info.name.is_none(),
                _ => false,
            }
            && !is_dry_run(info, request.uri())
    }
}

/// Ends a watch with the client certificate of its request.
fn ending(response: Response<Body>, ends: Option<CancellationToken>) -> Response<Body> {
    match ends {
        Some(ends) => response.map(|body| until(body, ends)),
        None => response,
    }
}
