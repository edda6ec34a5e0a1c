//! Decides which reads are answered from the node's cache ([`crate::cache`]), and makes a selection cached on its first
//! use.
//!
//! | read | the cloud answers | it is away |
//! |---|---|---|
//! | list, watch of a cacheable component | the selection's replica; the cloud until it is complete | the replica, else 503 |
//! | list, watch of another component | the cloud | the replica if there is one |
//! | get of one object | the cloud | the complete replica that knows most about it |
//! | any read of an excluded component | the cloud | 503 |
//!
//! `offline.rs` answers a get without the cloud before, if a later answer of the cloud is kept.
//!
//! While the cloud answers, it decides in every doubt: about rights, forms, and positions that the replica does not
//! have. Reads with filters are answered by `filtered.rs`.

use std::sync::Arc;
use std::time::Duration;

use http::header::ACCEPT;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::query::Query;
use yurt_apimachinery::{GroupVersionResource, ListOptions, RequestInfo, ResourceKind, ResourceVersion, Status, Verb};
use yurt_runtime::http::{Body, until};
use yurt_storage::Replica;

use super::answered_by::AnsweredBy;
use super::caller::{Caller, Credential};
use super::local::{COMMIT_MAX, Local, may_read};
use super::screen::is_impersonating;
use super::serving::Source;
use crate::cache::agents::Agents;
use crate::cache::components::EDGE_CACHE;
use crate::cache::entry::{Entry, Reader};
use crate::cache::key::{Cover, Key};
use crate::cache::store::Cache;
use crate::config::WorkingMode;

/// Maximum time that a request waits for the first list of its selection. A longer list is passed on.
pub(super) const FIRST_LIST_MAX: Duration = Duration::from_secs(2);
/// `Retry-After` in seconds without the cloud and without the data.
const RETRY_AFTER: u32 = 5;

/// Answers reads from the cache.
pub struct Cached {
    /// The selections.
    pub cache: Cache,
    /// Rights, serving and writes, as for pool data.
    pub local: Arc<Local>,
    /// Components whose selections are cached.
    pub agents: Arc<Agents>,
}

/// Head of a read, for an answer from the cache after the cloud has failed.
pub struct Head {
    request: Request<()>,
    info: RequestInfo,
}

// === impl Cached ===

impl Cached {
    /// Returns the response while the cloud answers; `None` if the cloud has to answer.
    ///
    /// # Errors
    /// Status to return to the client instead of data.
    pub async fn answer<B>(
        &self,
        request: &Request<B>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Option<Response<Body>>, Status> {
        if !self.serves(info) || is_impersonating(request.headers()) {
            // Only the cloud knows the rights of the user that this caller impersonates.
            return Ok(None);
        }
        let head = Head::of(request, info);
        let Some(key) = Key::of(info, request.uri().query()) else {
            return Ok(None);
        };
        if !self.agents.caches(&caller.cached_as(&self.agents), request.headers()) {
            return Ok(None);
        }
        let Some(entry) = self.entry(&key, &head, caller).await else {
            return Ok(None);
        };
        entry.settled(FIRST_LIST_MAX).await;
        // Before the look at its state: a refusal after it ends the watch.
        let refusal = entry.refusal();
        if !self.is_current(&entry, &head) {
            return Ok(None);
        }
        // The cloud answers what the replica cannot, with a status of its own.
        let answered = self.serve(&head, entry.replica(), refusal).await;
        Ok(answered.unwrap_or_default())
    }

    /// True for a read of a hub that has a cache; in cloud mode it has none.
    fn serves(&self, info: &RequestInfo) -> bool {
        self.local.mode == WorkingMode::Edge && is_read(info)
    }

    /// The head of a read that the cache may answer if the cloud fails to.
    #[must_use]
    pub fn head<B>(&self, request: &Request<B>, info: &RequestInfo) -> Option<Head> {
        let may_answer = self.serves(info) && !is_impersonating(request.headers());
        may_answer.then(|| Head::of(request, info))
    }

    /// The complete selection that knows the object that this get names.
    #[must_use]
    pub fn covering(&self, head: &Head, caller: &Caller) -> Option<Arc<Entry>> {
        let name = head.info.name.as_ref().filter(|_| head.info.verb == Verb::Get)?;
        self.cache.covering(&head.info, name, is_node(caller))
    }

    /// Checks the caller's right to the data of a selection.
    ///
    /// # Errors
    /// As [`Authorizer::check`](super::authorize::Authorizer::check).
    pub(super) async fn check_right(&self, entry: &Entry, caller: &Caller, info: &RequestInfo) -> Result<(), Status> {
        match entry.is_of_node() {
            true => self.local.authorizer.check(caller, info).await,
            false => self.local.authorizer.review(caller, info).await,
        }
    }

    /// Answers without the cloud; `None` if nothing is cached for this read.
    ///
    /// # Errors
    /// 403 for a caller without the right, 429 for one whose rights are not known, 503 while the data is not complete.
    pub async fn without_cloud(&self, head: &Head, caller: &Caller) -> Result<Option<Response<Body>>, Status> {
        if self.agents.excludes(&caller.cached_as(&self.agents)) {
            return Ok(None);
        }
        let Head { request, info } = head;
        let entry = match (info.verb, &info.name) {
            (Verb::Get, Some(name)) => self.cache.covering(info, name, is_node(caller)),
            _ => Key::of(info, request.uri().query()).and_then(|key| self.cache.get(&key)),
        };
        let Some(entry) = entry else { return Ok(None) };
        self.check_right(&entry, caller, info).await?;
        // The right to get one object is not the right to list them all.
        if let Some(reader) = reader_of(caller).filter(|_| info.verb != Verb::Get) {
            // Its stream goes on, or ends its watches, when the cloud returns, without another request.
            entry.retry(&reader);
        }
        let (replica, refusal) = (entry.replica(), entry.refusal());
        if !replica.is_served_within(COMMIT_MAX).await {
            let why = format!(
                "{} is not complete on this node, and the cloud does not answer",
                replica.name()
            );
            return Err(Status::service_unavailable(&why, RETRY_AFTER));
        }
        self.serve(head, replica, refusal).await
    }

    /// Records that the cloud answered a read of this caller: its credential works for this selection, and it has the
    /// right to read it without the cloud. A 403 ends the remembered right, and a later success the 403.
    pub fn note_answer(&self, head: &Head, caller: &Caller, response: &Response<Body>) {
        // A kept answer proves nothing.
        if response.extensions().get() != Some(&AnsweredBy::Cloud) {
            return;
        }
        match response.status() {
            StatusCode::FORBIDDEN => self.local.authorizer.learn_denied(caller, &head.info),
            StatusCode::UNAUTHORIZED => self.local.authorizer.learn_unknown(caller),
            _ => {}
        }
        if !response.status().is_success() {
            return;
        }
        let key = Key::of(&head.info, head.request.uri().query());
        let entry = key.as_ref().and_then(|key| self.cache.get(key));
        let is_proof = self.is_proof(head, caller, key.as_ref(), entry.is_some());
        self.local.authorizer.learn_success(caller, &head.info, is_proof);
        if let (Some(entry), Some(reader)) = (entry, reader_of(caller)) {
            entry.accept(&reader, true);
        }
    }

    /// True if a success of this read proves a right to data of this node: pool data, or what is cached. A review names
    /// no selector, so a list or watch with one proves no right, except that it names one object.
    fn is_proof(&self, head: &Head, caller: &Caller, key: Option<&Key>, is_cached: bool) -> bool {
        let info = &head.info;
        let is_whole = |key: &Key| {
            let name = info.name.as_deref().unwrap_or_default();
            key.cover(&info.gvr(), info.namespace.as_deref(), name) == Cover::Whole
        };
        if info.verb != Verb::Get && !key.is_some_and(is_whole) {
            return false;
        }
        let shared = self.local.data.serving(&info.group, &info.resource);
        shared.is_some_and(|replica| may_read(caller, &replica)) || is_cached || self.covering(head, caller).is_some()
    }

    /// Notes the RV of a write in the response, so that this node's reads reflect it.
    pub fn note_write(&self, info: &RequestInfo, response: Response<Body>) -> Response<Body> {
        if !matches!(info.verb, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete) {
            return response;
        }
        let touched = self.cache.touched_by(info).into_iter();
        let name = |entry: &Entry| entry.key().object_name().map(str::to_owned);
        let replicas = touched.map(|entry| (entry.replica().clone(), name(&entry))).collect();
        self.local.written.noting(replicas, info, response)
    }

    /// Returns the selection, made if it is not cached yet; `None` if the cloud has to answer.
    async fn entry(&self, key: &Key, head: &Head, caller: &Caller) -> Option<Arc<Entry>> {
        let reader = reader_of(caller);
        let known = self.cache.get_for(key, reader.as_ref());
        let GroupVersionResource { group, resource, .. } = key.gvr();
        let shared = self.local.data.serving(group, resource);
        // A replica of the pool will answer once it is complete.
        let is_shared = shared.is_some_and(|replica| may_read(caller, &replica));
        if known.is_none() && (reader.is_none() || is_shared || head.wants_another_form()) {
            return None;
        }
        // A refused caller gets the cloud's own refusal, and makes nothing.
        if known.is_none() {
            self.local.authorizer.check(caller, &head.info).await.ok()?;
        }
        let entry = match (known, &reader) {
            (Some(entry), _) => entry,
            (None, Some(reader)) => {
                let made = tokio::time::timeout(FIRST_LIST_MAX, self.cache.get_or_create(key, reader)).await;
                let made = made.unwrap_or_else(|_| Err("discovery takes too long".to_owned()));
                made.inspect_err(|why| tracing::debug!(selection = key.text(), why, "Not cached"))
                    .ok()?
            }
            (None, None) => return None,
        };
        self.check_right(&entry, caller, &head.info).await.ok()?;
        if let Some(reader) = reader {
            entry.accept(&reader, false);
        }
        Some(entry)
    }

    /// True if the replica has what this read asks for, as far as is known while the cloud answers.
    fn is_current(&self, entry: &Entry, head: &Head) -> bool {
        let replica = entry.replica();
        if !entry.is_followed() || !replica.is_served() {
            return false;
        }
        let is_watch = head.info.verb == Verb::Watch;
        let held = replica.collection();
        let query = without_selectors(head.request.uri());
        let Ok(options) = ListOptions::parse(query.as_deref(), is_watch, held.kind()) else {
            return false;
        };
        held.read(|held| match options.resource_version {
            None => self.local.written.least(replica.name(), held.generation()) <= held.position(),
            Some(from) if is_watch && from > ResourceVersion::ZERO && from < held.position() => held.open(from).is_ok(),
            Some(_) => true,
        })
    }

    /// Answers from the replica of a selection, until its stream is refused if it is a watch.
    async fn serve(
        &self,
        head: &Head,
        replica: &Arc<Replica>,
        refusal: CancellationToken,
    ) -> Result<Option<Response<Body>>, Status> {
        let (selected, info) = head.of_selection(replica.collection().kind())?;
        let source = Source {
            collection: replica.collection(),
            is_clouds: true,
            gone: replica.gone(),
            least: ResourceVersion::ZERO,
            is_fresh: self.local.data.is_fresh(replica.name()),
        };
        let answered = self.local.serving.answer(&selected, &info, source).await?;
        Ok(answered.map(|response| watched_until(refusal, &info, response)))
    }
}

// === impl Head ===

impl Head {
    pub(super) fn of<B>(request: &Request<B>, info: &RequestInfo) -> Self {
        let mut head = Request::new(());
        *head.method_mut() = request.method().clone();
        *head.uri_mut() = request.uri().clone();
        for name in [ACCEPT, HeaderName::from_static(EDGE_CACHE)] {
            let value = request.headers().get(&name).cloned();
            head.headers_mut().extend(value.map(|value| (name, value)));
        }
        Self {
            request: head,
            info: info.clone(),
        }
    }

    /// Method, URI, accepted form, and the wish to have the answer cached.
    pub(super) fn request(&self) -> &Request<()> {
        &self.request
    }

    /// As [`Self::request`].
    pub(super) fn into_request(self) -> Request<()> {
        self.request
    }

    /// The same read of its own selection, of `kind`.
    ///
    /// # Errors
    /// 400 for a query without a usable rest.
    pub(super) fn of_selection(&self, kind: &ResourceKind) -> Result<(Request<()>, RequestInfo), Status> {
        let (mut selected, mut info) = (self.request.clone(), self.info.clone());
        if info.verb != Verb::Get {
            // The replica is the selection: nothing is left to select, also by fields that this hub does not know.
            let uri = self.request.uri();
            let path = match without_selectors(uri) {
                Some(query) => format!("{}?{query}", uri.path()),
                None => uri.path().to_owned(),
            };
            *selected.uri_mut() = path.parse().map_err(|_| Status::bad_request("unusable query"))?;
            info.name = None;
        }
        if !kind.namespaced {
            info.namespace = None;
        }
        Ok((selected, info))
    }

    /// True if the client reads metadata or tables: the objects behind them may be many times as large.
    fn wants_another_form(&self) -> bool {
        let accept = self.request.headers().get(ACCEPT);
        accept.is_some_and(|accept| accept.to_str().is_ok_and(|accept| accept.contains("as=")))
    }
}

/// Ends the response with `refusal` if it is a watch.
pub(super) fn watched_until(
    refusal: CancellationToken,
    info: &RequestInfo,
    response: Response<Body>,
) -> Response<Body> {
    match info.verb {
        Verb::Watch => response.map(|body| until(body, refusal)),
        _ => response,
    }
}

fn is_read(info: &RequestInfo) -> bool {
    let is_read = matches!(info.verb, Verb::Get | Verb::List | Verb::Watch);
    info.is_resource && is_read && info.subresource.is_none()
}

/// True for a caller with the node's identity.
pub(super) fn is_node(caller: &Caller) -> bool {
    caller.credential == Credential::Node
}

/// Returns the credential with which the cloud can be read for this caller; `None` for a client certificate, which
/// cannot be passed on.
pub(super) fn reader_of(caller: &Caller) -> Option<Reader> {
    match &caller.credential {
        Credential::Node => Some(Reader::Node),
        Credential::Token(token) => {
            let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
            value.set_sensitive(true);
            Some(Reader::Token(value))
        }
        Credential::Certificate { .. } => None,
    }
}

/// Returns the query without its selectors; `None` if nothing is left.
fn without_selectors(uri: &Uri) -> Option<String> {
    let is_selector = |pair: &&str| {
        let query = Query::parse(Some(pair));
        query.get("labelSelector").is_some() || query.get("fieldSelector").is_some()
    };
    let kept: Vec<_> = uri.query()?.split('&').filter(|pair| !is_selector(pair)).collect();
    (!kept.is_empty()).then(|| kept.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_leave_a_query_in_every_spelling() {
        for (query, left) in [
            (
                "watch=1&fieldSelector=a%3Db&resourceVersion=7",
                Some("watch=1&resourceVersion=7"),
            ),
            ("field%53elector=x&labelSelector", None),
            ("limit=5", Some("limit=5")),
        ] {
            let uri: Uri = format!("/api/v1/pods?{query}").parse().unwrap();
            assert_eq!(without_selectors(&uri).as_deref(), left, "{query}");
        }
        assert_eq!(without_selectors(&"/api/v1/pods".parse().unwrap()), None);
    }

    #[test]
    fn token_of_a_caller_is_not_shown() {
        let caller = Caller {
            component: "coredns".to_owned(),
            credential: Credential::Token("hidden".to_owned()),
            origin: super::super::caller::Origin {
                address: std::net::IpAddr::from([127, 0, 0, 1]),
                uid: None,
            },
        };
        match reader_of(&caller) {
            Some(Reader::Token(value)) => assert!(!format!("{value:?}").contains("hidden")),
            _ => panic!("a token reads for itself"),
        }
    }
}
