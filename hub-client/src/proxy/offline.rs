//! Answers requests while the cloud is away with the parts of [`crate::offline`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::{RequestInfo, ResourceVersion, Status};
use yurt_collection::Collection;
use yurt_runtime::http::{Body, full, read_body};
use yurt_storage::SharedCollection;

use super::authorize::Authorizer;
use super::caller::{Caller, Credential};
use super::pass_through::{self, PassThrough};
use super::screen::is_impersonating;
use super::serving::version_of_get;
use crate::health::{ANSWERED_WITHIN, CloudReach, answer_within};
use crate::metrics::offline::OfflineMetrics;
use crate::offline::answers::{self, Answers};
use crate::offline::events::{EventWrite, Events};
use crate::offline::kept_read::KeptRead;
use crate::offline::own::OwnWrites;
use crate::offline::own::registration;
use crate::offline::own::write::OwnKey;
use crate::offline::record::Record;
use crate::offline::tokens::{TokenKey, Tokens};
use crate::offline::{is_away, is_of_gateway};

/// Maximum time of a small request at a cloud that is not up before it is answered here; the kubelet waits for 10 s.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Returns the name under which the answer to a request with these headers is kept; `None` if it is not kept.
pub type KeptAs = Arc<dyn Fn(&Caller, &HeaderMap) -> Option<String> + Send + Sync>;

/// Answers without the cloud.
pub struct Offline {
    /// Kept answers.
    pub answers: Answers,
    /// Writes of this node's kubelet.
    pub own: OwnWrites,
    /// Tokens of service accounts.
    pub tokens: Tokens,
    /// Events of the node.
    pub events: Events,
    /// True if writes are accepted without the cloud.
    pub accepts: bool,
    /// Authorizer of reads.
    pub authorizer: Authorizer,
    /// Reachability of the cloud.
    pub reach: watch::Receiver<CloudReach>,
    /// Names of the callers whose answers are kept.
    pub kept_as: KeptAs,
}

// === impl Offline ===

impl Offline {
    /// Returns the object whose status this request of the node writes.
    #[must_use]
    pub fn own_write(&self, info: &RequestInfo, caller: &Caller) -> Option<OwnKey> {
        OwnKey::of_write(info).filter(|_| caller.credential == Credential::Node)
    }

    /// Answers a read of an object with a local status, which neither the cloud nor a replica has. While the cloud is
    /// lost, also the kubelet's read of an object whose replica is older than the cloud's last answer.
    ///
    /// # Errors
    /// As [`OwnWrites::read`].
    pub async fn own_read<B>(
        &self,
        request: &Request<B>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Option<Response<Body>>, Status> {
        let is_of_node = caller.credential == Credential::Node && request.method() == Method::GET;
        let Some(key) = OwnKey::of_read(info).filter(|_| is_of_node) else {
            return Ok(None);
        };
        if self.own.pending.contains(&key)
            && let Some(local) = self.own.read(&key, request).await?
        {
            return Ok(Some(local));
        }
        match self.own.is_lost() {
            true => self.later_than_listed(request, info, caller).await,
            false => Ok(None),
        }
    }

    /// Answers the kubelet's read of its Node or a pod that the cloud does not answer, if the replica is older than the
    /// cloud's last answer.
    ///
    /// # Errors
    /// As [`OwnWrites::read`].
    pub async fn later_than_listed<B>(
        &self,
        request: &Request<B>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Option<Response<Body>>, Status> {
        let is_of_kubelet = caller.is_node_component("kubelet") && request.method() == Method::GET;
        match OwnKey::of_read(info).filter(|_| is_of_kubelet) {
            Some(key) => self.own.read_later_than_listed(&key, request).await,
            None => Ok(None),
        }
    }

    /// Answers a get without the cloud from the cloud's last answer, if that is later than everything in `held`, which
    /// covers the object, and not older than the RV that the get names: its stream was refused, and the gets went on.
    ///
    /// # Errors
    /// As [`Authorizer::check`]; 400 for text that is no RV.
    pub async fn later_than<B>(
        &self,
        held: &SharedCollection,
        request: &Request<B>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Option<Response<Body>>, Status> {
        let Some(read) = self.kept_read(request, info, caller) else {
            return Ok(None);
        };
        let named = version_of_get(request.uri().query())?.unwrap_or_default();
        let versioned = |record| Some((answers::version(&record, Some(held.kind()))?, record));
        let records = self.answers.find_all(&read).await.into_iter().filter_map(versioned);
        let least = held.read(known_to);
        let later = records
            .filter(|(version, _)| *version > least && *version >= named)
            .max_by_key(|(version, _)| *version);
        let Some((_, record)) = later else {
            return Ok(None);
        };
        self.authorizer.check(caller, info).await?;
        Ok(Some(answers::answer(&record, request.headers())))
    }

    /// Passes a request on to the cloud. While the cloud is away it answers what can be answered without it.
    ///
    /// # Errors
    /// As [`PassThrough::send`]; those of the authorizer for a kept object; those of [`Events::accept`].
    pub async fn pass(
        &self,
        cloud: &PassThrough,
        request: Request<Body>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Response<Body>, Status> {
        if caller.credential != Credential::Node || !self.accepts {
            return self.read(cloud, request, info, caller).await;
        }
        if crate::offline::tokens::is_token_request(info) {
            return self.pass_token_request(cloud, request, info, caller).await;
        }
        if registration::is_registration(info) {
            return self.pass_registration(cloud, request, info, caller).await;
        }
        match EventWrite::of(info) {
            Some(write) => self.pass_event(&write, cloud, request, info, caller).await,
            None => self.read(cloud, request, info, caller).await,
        }
    }

    async fn pass_token_request(
        &self,
        cloud: &PassThrough,
        request: Request<Body>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Response<Body>, Status> {
        let (head, body) = request.into_parts();
        let body = read_body(body, crate::offline::tokens::BYTES_MAX).await?;
        let key = TokenKey::of(info, &head.headers, &body);
        let sent = self.send(cloud, Request::from_parts(head, body), info, caller).await;
        match (sent, key) {
            (Ok(response), Some(key)) => Ok(self.tokens.keeping(&key, response)),
            (Err(away), Some(key)) if is_away(&away) => self.tokens.answer(&key).await.ok_or(away),
            (sent, _) => sent,
        }
    }

    /// Passes the creation of a Node on. While the cloud is away, that of the own Node is refused if it exists.
    async fn pass_registration(
        &self,
        cloud: &PassThrough,
        request: Request<Body>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Response<Body>, Status> {
        let (head, body) = request.into_parts();
        let body = read_body(body, registration::NODE_MAX).await?;
        let headers = head.headers.clone();
        let request = Request::from_parts(head, body.clone());
        match self.send(cloud, request, info, caller).await {
            Err(away) if is_away(&away) => Err(self.own.registered(&headers, &body).await.unwrap_or(away)),
            sent => sent,
        }
    }

    async fn pass_event(
        &self,
        write: &EventWrite,
        cloud: &PassThrough,
        request: Request<Body>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Response<Body>, Status> {
        let (head, body) = request.into_parts();
        let body = read_body(body, crate::offline::events::EVENT_MAX).await?;
        let request = Request::from_parts(pass_through::forwardable(head), body);
        if self.events.holds(write) {
            return self.events.accept(write, &request);
        }
        match self.send(cloud, request.clone(), info, caller).await {
            Err(away) if is_away(&away) => self.events.accept(write, &request),
            sent => sent,
        }
    }

    /// Sends a small request to the cloud, which may be repeated: a second Event or Node of that name gets 409. A cloud
    /// that does not answer in time counts as away, unless it is up.
    async fn send(
        &self,
        cloud: &PassThrough,
        request: Request<Bytes>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Response<Body>, Status> {
        let away = || Status::service_unavailable("the cloud is unreachable", crate::offline::reply::RETRY_AFTER);
        if self.reach.borrow().is_lost() {
            return Err(away());
        }
        let sending = cloud.send_repeatable(request.map(full), info, caller);
        match answer_within((TIMEOUT, ANSWERED_WITHIN), self.reach.clone(), sending).await {
            Some(Ok(response)) if is_of_gateway(response.status()) && !self.reach.borrow().is_up() => Err(away()),
            Some(sent) => sent,
            None => Err(away()),
        }
    }

    /// Passes a read on to the cloud. Keeps its answer, and returns the kept one while the cloud is away.
    async fn read(
        &self,
        cloud: &PassThrough,
        request: Request<Body>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Response<Body>, Status> {
        let Some(read) = self.kept_read(&request, info, caller) else {
            return cloud.send(request, info, caller).await;
        };
        let mut asked = Request::new(());
        *asked.uri_mut() = request.uri().clone();
        *asked.headers_mut() = request.headers().clone();
        let reach = *self.reach.borrow();
        if reach.is_lost()
            && let Some(answer) = self.kept(&read, &asked, info, caller).await?
        {
            return Ok(answer);
        }
        match cloud.send(request, info, caller).await {
            Ok(response) if is_of_gateway(response.status()) && !self.reach.borrow().is_up() => {
                Ok(self.kept(&read, &asked, info, caller).await?.unwrap_or(response))
            }
            Ok(response) => Ok(self.keeping(&read, response, info, caller)),
            Err(status) if is_away(&status) => self.kept(&read, &asked, info, caller).await?.ok_or(status),
            Err(status) => Err(status),
        }
    }

    /// Passes a read on to the cloud, and keeps its answer. Returns no kept one: a replica answers while the cloud is
    /// away.
    ///
    /// # Errors
    /// As [`PassThrough::send`].
    pub async fn pass_keeping(
        &self,
        cloud: &PassThrough,
        request: Request<Body>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Response<Body>, Status> {
        let read = self.kept_read(&request, info, caller);
        let response = cloud.send(request, info, caller).await?;
        Ok(match read {
            Some(read) => self.keeping(&read, response, info, caller),
            None => response,
        })
    }

    /// Returns the cloud's answer to a read, extended to be kept once it has passed.
    fn keeping(
        &self,
        read: &KeptRead,
        response: Response<Body>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Response<Body> {
        let is_refused = response.status() == StatusCode::FORBIDDEN;
        if is_refused && caller.credential != Credential::Node {
            // It is about this caller alone: others of the component may read it.
            return response;
        }
        if response.status() == StatusCode::OK {
            self.authorizer.learn_success(caller, info, true);
        }
        self.answers.keeping(read, response)
    }

    /// State for the operator.
    pub(crate) fn describe(&self) -> Value {
        let (answers, tokens) = (self.answers.totals(), self.tokens.totals());
        let (events, event_bytes, dropped) = self.events.totals();
        json!({
            "answers": {"records": answers.records, "bytes": answers.bytes},
            "tokens": {"records": tokens.records, "bytes": tokens.bytes},
            "localWrites": self.own.pending.keys(),
            "events": {"records": events, "bytes": event_bytes, "dropped": dropped},
        })
    }

    /// Sets the gauges.
    pub(crate) fn set_metrics(&self, metrics: &OfflineMetrics) {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let answers = self.answers.totals();
        metrics.answers.set(gauge(answers.records as u64));
        metrics.answer_bytes.set(gauge(answers.bytes));
        let (events, _, dropped) = self.events.totals();
        metrics.events.set(gauge(events as u64));
        metrics
            .events_dropped
            .inc_by(dropped.saturating_sub(metrics.events_dropped.get()));
        metrics.pending_writes.set(gauge(self.own.pending.len() as u64));
    }

    /// Returns the key of a read that is kept. Another user's answers are not: only the cloud knows that user's rights.
    fn kept_read<B>(&self, request: &Request<B>, info: &RequestInfo, caller: &Caller) -> Option<KeptRead> {
        if matches!(caller.credential, Credential::Certificate { .. }) || is_impersonating(request.headers()) {
            return None;
        }
        let component = (self.kept_as)(caller, request.headers()).map(|name| match caller.credential {
            Credential::Node => name,
            _ => KeptRead::component_of_token(&name),
        });
        let component = component.as_deref();
        KeptRead::of(request.method(), request.uri(), request.headers(), info, component)
    }

    /// Returns the kept answer; `None` if there is none. That of an object is not older than the RV that the get names.
    async fn kept(
        &self,
        read: &KeptRead,
        request: &Request<()>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Option<Response<Body>>, Status> {
        // A token counts as authenticated if the cloud once answered it.
        if read.is_discovery() && !self.authorizer.remembers(caller, info) {
            return Ok(None);
        }
        let named = match read.is_discovery() {
            true => None,
            false => version_of_get(request.uri().query())?,
        };
        let least = named.unwrap_or_default();
        let kind = find_kind(&info.group, &info.resource);
        let is_new_enough = |record: &Record| least.is_zero() || answers::version(record, kind) >= Some(least);
        let Some(record) = self.answers.find_all(read).await.into_iter().find(is_new_enough) else {
            return Ok(None);
        };
        if !read.is_discovery() {
            self.authorizer.check(caller, info).await?;
        }
        Ok(Some(answers::answer(&record, request.headers())))
    }
}

/// The highest RV that is not certainly later than what is held: up to H, it may be of a history that the cloud has
/// lost.
fn known_to(held: &Collection) -> ResourceVersion {
    held.position().max(held.high())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_a_lost_history_is_not_later_than_what_is_held() {
        let mut held = Collection::new(true);
        held.restart(0, Vec::new(), ResourceVersion(100));
        assert_eq!(known_to(&held), ResourceVersion(100));
        held.restart(7_000_000, Vec::new(), ResourceVersion(90));
        assert!(
            known_to(&held) >= ResourceVersion(100),
            "the cloud was restored from a backup"
        );
    }
}
