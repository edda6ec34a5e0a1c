//! Filtered reads of resources that are no pool data. Nothing of them passes unfiltered.
//!
//! * A list or watch is answered from a view ([`crate::replicas::derived`]) of its selection in the node's cache. That
//!   holds for components that are not cacheable, too.
//! * A get returns the object that an unfiltered get would return, filtered.
//!
//! A selection that is not complete in time is 503, as is an object that cannot be read. [`mod@write`] has the writes.

mod write;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::{Object, RequestInfo, ResourceKind, Status, Verb};
use yurt_codec::negotiation::{body_format, body_json};
use yurt_runtime::http::{APPLICATION_JSON, Body, decoded, full, holding};
use yurt_storage::Replica;

use super::approver::Approved;
use super::bodies::{self, Bodies};
use super::cached::{Cached, FIRST_LIST_MAX, Head, is_node, reader_of, watched_until};
use super::caller::{Caller, Credential};
use super::local::{COMMIT_MAX, Local};
use super::screen::is_impersonating;
use super::serving::options;
use super::shares::Part;
use crate::cache::key::Key;
use crate::config::WorkingMode;
use crate::filter::{Chain, Verdict};

pub(super) use write::FilteredWrite;

/// Maximum time until the whole object has arrived.
const OBJECT_TIMEOUT: Duration = Duration::from_secs(30);
/// `Retry-After` in seconds while a read cannot be filtered.
const RETRY_AFTER: u32 = 1;
/// Media types in which an object that no filter changes is passed on as it is.
const PLAIN: [&str; 5] = [
    "",
    "*/*",
    "application/*",
    "application/json",
    "application/vnd.kubernetes.protobuf",
];

/// A get whose object is filtered.
pub(super) struct FilteredGet {
    /// Method, URI and form of the client's request.
    asked: Request<()>,
    kind: &'static ResourceKind,
    name: String,
    /// True if the client accepts the object in the form that is requested for it.
    is_plain: bool,
}

// === impl FilteredGet ===

impl FilteredGet {
    /// Describes a get through `chain`; `None` if no object is to be filtered.
    ///
    /// # Errors
    /// 404 for a version that this hub does not know, so that it cannot be filtered.
    pub(super) fn of<B>(request: &Request<B>, info: &RequestInfo, chain: &Chain) -> Result<Option<Self>, Status> {
        if chain.is_empty() || info.verb != Verb::Get {
            return Ok(None);
        }
        Ok(Some(Self {
            asked: Head::of(request, info).into_request(),
            kind: kind_of(info)?,
            name: info.name.clone().unwrap_or_default(),
            is_plain: is_plain(request.headers()),
        }))
    }

    /// Makes `request` one for the object itself, not compressed.
    pub(super) fn require_object<B>(&self, request: &mut Request<B>) {
        self.require_form(request.headers_mut());
    }

    fn require_form(&self, headers: &mut HeaderMap) {
        headers.remove(ACCEPT_ENCODING);
        if !self.is_plain {
            headers.insert(ACCEPT, APPLICATION_JSON);
        }
    }

    /// The same request without a body; see [`Self::require_object`].
    pub(super) fn object_request(&self) -> Request<()> {
        let mut request = self.asked.clone();
        self.require_object(&mut request);
        request
    }

    /// Returns the client's view of the object in `response`. Refusals pass.
    ///
    /// # Errors
    /// 404 for a hidden object, 406 for a form that is not supported. Those of [`Self::read`].
    pub(super) async fn filtered(
        &self,
        (local, bodies): (&Local, &Bodies),
        caller: &Caller,
        chain: &Chain,
        response: Response<Body>,
    ) -> Result<Response<Body>, Status> {
        if !response.status().is_success() {
            return Ok(response);
        }
        let (head, body, room) = self.read(bodies.part(caller), response).await?;
        let object = self.parse(&head, &body)?;
        let object = match local.derived.filter(self.kind, &object, chain)? {
            Verdict::Keep if self.is_plain => return Ok(Response::from_parts(head, holding(full(body), room))),
            Verdict::Keep => object,
            Verdict::Replace(object) => object,
            Verdict::Drop => return Err(Status::not_found(&self.kind.group_resource(), &self.name)),
        };
        let response = self.response(local, head, &object)?;
        Ok(response.map(|body| holding(body, room)))
    }

    /// The response with `object` in the form that the client accepts.
    fn response(&self, local: &Local, mut head: Parts, object: &Object) -> Result<Response<Body>, Status> {
        let (content_type, body) = local.serving.object(&self.asked, self.kind, object)?;
        head.headers.remove(CONTENT_LENGTH);
        head.headers.remove(CONTENT_ENCODING);
        head.headers.insert(CONTENT_TYPE, content_type);
        Ok(Response::from_parts(head, full(body)))
    }

    /// Reads the object of an answer, in plain text. The returned part is `room`, raised to its bytes.
    ///
    /// # Errors
    /// 429 without room, 503 if the object cannot be read.
    async fn read(&self, room: Part, response: Response<Body>) -> Result<(Parts, Bytes, Part), Status> {
        let response = decoded(response).map_err(|error| self.unreadable(&error.to_string()))?;
        let (head, body) = response.into_parts();
        let read = tokio::time::timeout(OBJECT_TIMEOUT, bodies::read_object(room, body)).await;
        match read.map_err(|_| self.unreadable("it takes too long"))? {
            Ok((body, room)) => Ok((head, body, room)),
            Err(status) if status.code() == StatusCode::TOO_MANY_REQUESTS.as_u16() => Err(status),
            Err(status) => Err(self.unreadable(status.message())),
        }
    }

    /// # Errors
    /// 503 if the object cannot be filtered.
    fn parse(&self, head: &Parts, body: &Bytes) -> Result<Object, Status> {
        self.parsed(head, body).map_err(|why| self.unreadable(&why))
    }

    fn parsed(&self, head: &Parts, body: &Bytes) -> Result<Object, String> {
        let text = |value: &HeaderValue| value.to_str().map(str::to_owned).ok();
        let content_type = head.headers.get(CONTENT_TYPE).and_then(text);
        let describe_answer = |status: Status| status.message().to_owned();
        let unsupported = |_| format!("its media type is {:?}", content_type.as_deref().unwrap_or_default());
        let format = body_format(content_type.as_deref()).map_err(unsupported)?;
        let json = body_json(format, &self.kind.api_version(), &self.kind.kind, body).map_err(describe_answer)?;
        Object::parse(json, self.kind).map_err(|error| error.to_string())
    }

    fn unreadable(&self, why: &str) -> Status {
        let Self { kind, name, .. } = self;
        let why = format!("{} {name:?} cannot be filtered: {why}", kind.group_resource());
        Status::service_unavailable(why, RETRY_AFTER)
    }
}

// === impl Cached ===

impl Cached {
    /// Answers a list or watch from the view of its selection; `None` if the caller has no filter for it and had none.
    ///
    /// # Errors
    /// 400 and 404 for what cannot be filtered; 403 and 429 as the authorizer; 403 if the cloud forbids the selection;
    /// 503 while it is not complete.
    pub(super) async fn view<B>(
        &self,
        request: &Request<B>,
        info: &RequestInfo,
        caller: &Caller,
        approved: &Approved,
    ) -> Result<Option<Response<Body>>, Status> {
        let has_no_view = approved.chain.is_empty() && approved.edition == 0;
        if !matches!(info.verb, Verb::List | Verb::Watch) || has_no_view {
            return Ok(None);
        }
        match self.filtered_view(request, info, caller, approved).await {
            // The client may keep some objects as the former filters showed them until these change.
            Err(_) if approved.chain.is_empty() => Ok(None),
            answered => answered.map(Some),
        }
    }

    async fn filtered_view<B>(
        &self,
        request: &Request<B>,
        info: &RequestInfo,
        caller: &Caller,
        approved: &Approved,
    ) -> Result<Response<Body>, Status> {
        let chain = &approved.chain;
        let kind = kind_of(info)?;
        if info.subresource.is_some() {
            return Err(Status::unknown_resource());
        }
        if is_impersonating(request.headers()) {
            let why = format!("its filters {:?} do not support impersonation", chain.names());
            let resource = kind.group_resource();
            return Err(Status::forbidden_because(
                &resource,
                info.name.as_deref().unwrap_or_default(),
                &why,
            ));
        }
        options(request.uri().query(), info.verb == Verb::Watch, kind, info)?;
        let unavailable = |why: &str| {
            let why = format!(
                "{} cannot be filtered by {:?}: {why}",
                kind.group_resource(),
                chain.names()
            );
            Status::service_unavailable(why, RETRY_AFTER)
        };
        if self.local.mode == WorkingMode::Cloud && !self.local.serving.cloud.borrow().is_up() {
            return Err(unavailable("the cloud does not answer, and --working-mode=cloud"));
        }
        if self.agents.excludes(&caller.cached_as(&self.agents)) && self.local.serving.cloud.borrow().is_lost() {
            return Err(unavailable("the cloud does not answer, and cache_agents excludes it"));
        }
        let key = Key::of(info, request.uri().query());
        let key = key.ok_or_else(|| unavailable("this selection cannot be cached"))?;
        self.local.authorizer.check(caller, info).await?;
        let source = self.selection(&key, info, caller).await?;
        let (replica, refusal) = source.map_err(|why| unavailable(&why))?;
        let head = Head::of(request, info);
        let (selected, info) = head.of_selection(kind)?;
        let answered = self
            .local
            .answer_view(&selected, &info, &replica, approved, !is_node(caller))
            .await?;
        let answered = answered.ok_or_else(|| unavailable("the view has no answer"))?;
        Ok(watched_until(refusal, &info, answered))
    }

    /// The complete replica of a selection and the end of its watches, or the reason why there is none.
    async fn selection(
        &self,
        key: &Key,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Result<(Arc<Replica>, CancellationToken), String>, Status> {
        let cloud = &self.local.serving.cloud;
        let (reader, is_lost) = (reader_of(caller), || cloud.borrow().is_lost());
        let entry = match (self.cache.get_for(key, reader.as_ref()), &reader) {
            (Some(entry), _) => entry,
            (None, None) => return Err(unreadable_for(info, caller)),
            (None, Some(_)) if is_lost() => {
                return Ok(Err("it is not on this node, and the cloud does not answer".to_owned()));
            }
            (None, Some(reader)) => {
                let made = tokio::time::timeout(FIRST_LIST_MAX, self.cache.get_or_create(key, reader)).await;
                match made.unwrap_or_else(|_| Err("discovery takes too long".to_owned())) {
                    Ok(entry) => entry,
                    Err(why) => return Ok(Err(why)),
                }
            }
        };
        // Before the attempt whose refusal it has to show.
        let denials = entry.denials();
        self.check_right(&entry, caller, info).await?;
        if let Some(reader) = &reader {
            entry.retry(reader);
        }
        if !is_lost() {
            entry.settled(FIRST_LIST_MAX).await;
        }
        if !is_lost() && entry.state().is_refused() {
            let decided = entry.live_or_denied(reader.as_ref(), denials);
            let _ = tokio::time::timeout(FIRST_LIST_MAX, decided).await;
        }
        // Before the look at its state: a refusal after it ends the watch.
        let (replica, refusal) = (entry.replica(), entry.refusal());
        Ok(match entry.state() {
            state if state.is_refused() && !is_lost() => match entry.denied(reader.as_ref()) {
                Some(message) => return Err(Status::failure(403, "Forbidden", message)),
                None => Err(format!("{} is refused, see /debug/state.json", key.text())),
            },
            _ if !replica.is_served_within(COMMIT_MAX).await => {
                Err(format!("{} is not complete on this node", key.text()))
            }
            _ => Ok((replica.clone(), refusal)),
        })
    }
}

/// 403 for a caller with a certificate, if no other caller has made the selection.
fn unreadable_for(info: &RequestInfo, caller: &Caller) -> Status {
    let user = match &caller.credential {
        Credential::Certificate { user, .. } => user.as_str(),
        Credential::Node | Credential::Token(_) => "",
    };
    info.forbidden(
        user,
        "a client certificate cannot be passed on to the cloud: use a bearer token",
    )
}

/// The kind that a request reads. All kinds that filters handle are built in.
fn kind_of(info: &RequestInfo) -> Result<&'static ResourceKind, Status> {
    let kind = find_kind(&info.group, &info.resource).filter(|kind| kind.version == info.version);
    kind.ok_or_else(Status::unknown_resource)
}

/// True if every accepted media type is one of [`PLAIN`], for the object itself.
fn is_plain(headers: &HeaderMap) -> bool {
    let is_plain = |clause: &str| {
        let mut parts = clause.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        PLAIN.contains(&media_type) && !parts.any(|part| part.starts_with("as="))
    };
    let accept = headers.get(ACCEPT);
    accept.is_none_or(|accept| accept.to_str().is_ok_and(|accept| accept.split(',').all(is_plain)))
}
