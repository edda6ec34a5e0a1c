//! Writes of components that read through filters.
//!
//! * An RV that the client has from a view is replaced by the one that the source has for the same state. Any other RV
//!   passes, and the cloud judges it.
//! * A PUT would overwrite what a filter removed. It is refused with 422 if the filters change the object; a patch
//!   names the fields that it means. A PUT of one of the [`PARTS`] passes: no filter changes these.
//! * The answer is filtered. An object that the filters hide is answered as it was written.

use std::cell::RefCell;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use yurt_apimachinery::status::reason;
use yurt_apimachinery::{Object, ObjectKey, RequestInfo, Status, Verb};
use yurt_runtime::http::{APPLICATION_JSON, Body, empty, full, holding};

use super::super::bodies::{Bodies, declared_length};
use super::super::cached::Head;
use super::super::caller::Caller;
use super::super::local::Local;
use super::super::pass_through::PassThrough;
use super::super::precondition;
use super::super::shares::Part;
use super::{FilteredGet, RETRY_AFTER, kind_of};
use crate::filter::{Chain, Verdict};

/// Subresources that are a part of the object: the cloud stores this part only, and answers with the whole object.
const PARTS: [&str; 3] = ["ephemeralcontainers", "resize", "status"];

/// A write of an object whose reads are filtered, or were.
pub(in crate::proxy) struct FilteredWrite {
    /// The same object as its writer reads it.
    get: FilteredGet,
    key: ObjectKey,
    /// Filters of the reads; none if they were removed while the hub runs.
    chains: Vec<Chain>,
    edition: u64,
    verb: Verb,
    is_part: bool,
}

// === impl FilteredWrite ===

impl FilteredWrite {
    /// True for a write of an object, or of one of its [`PARTS`]: the answer is the object.
    pub(in crate::proxy) fn is_of_object(info: &RequestInfo) -> bool {
        let is_write = matches!(info.verb, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete);
        let is_object = info.subresource.as_deref().is_none_or(|part| PARTS.contains(&part));
        info.is_resource && is_write && is_object
    }

    /// Describes such a write whose reads go through `chains` in `edition`; `None` if it passes as it is.
    pub(in crate::proxy) fn of<B>(
        request: &Request<B>,
        info: &RequestInfo,
        chains: Vec<Chain>,
        edition: u64,
    ) -> Option<Self> {
        if chains.is_empty() && edition == 0 {
            return None;
        }
        let kind = kind_of(info).ok()?;
        let name = info.name.clone().unwrap_or_default();
        Some(Self {
            key: ObjectKey::new(info.namespace.as_deref(), &name),
            get: FilteredGet {
                asked: Head::of(request, info).into_request(),
                kind,
                name,
                is_plain: super::is_plain(request.headers()),
            },
            chains,
            edition,
            verb: info.verb,
            is_part: info.subresource.is_some(),
        })
    }

    /// Returns the request for the cloud, and the room of its answer.
    ///
    /// # Errors
    /// 415 for an encoded body, 422 for a replacement of an object that the filters change, 404 of one that they hide;
    /// those of [`Bodies::read`] and [`Bodies::answer_room`], and of the read of the object.
    pub(in crate::proxy) async fn prepared<B>(
        &self,
        request: Request<B>,
        (local, cloud, bodies): (&Local, &PassThrough, &Bodies),
        caller: &Caller,
    ) -> Result<(Request<Body>, Part), Status>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<yurt_runtime::http::BoxError>> + Send + 'static,
    {
        let (mut head, body) = request.into_parts();
        self.get.require_form(&mut head.headers);
        if self.verb == Verb::Create {
            let answer = bodies.answer_room(caller, declared_length(&body))?;
            return Ok((Request::from_parts(head, yurt_runtime::http::pass(body)), answer));
        }
        if let Some(encoding) = head
            .headers
            .get(CONTENT_ENCODING)
            .filter(|encoding| *encoding != "identity")
        {
            let why = format!("a write of a component with filters must not be encoded: {encoding:?}");
            return Err(Status::failure(415, reason::UNSUPPORTED_MEDIA_TYPE, why));
        }
        let (body, room) = bodies.read(caller, body).await?;
        let (body, known) = self.mapped(local, &head.headers, body);
        if self.verb == Verb::Update && !self.is_part {
            match known {
                Some(known) => self.check_look(local, &known)?,
                None => self.check_present(local, (cloud, bodies), &head, caller).await?,
            }
        }
        head.headers.remove(CONTENT_LENGTH);
        let answer = match self.verb {
            // It passes unread.
            Verb::Delete => bodies.part(caller),
            _ => bodies.answer_room(caller, body.len().max(self.known_length(local)))?,
        };
        Ok((Request::from_parts(head, holding(full(body), room)), answer))
    }

    /// Bytes of the object in the source of a view; 0 if none has it. The answer of a patch has about as many.
    fn known_length(&self, local: &Local) -> usize {
        let names = |chain: &[&str]| self.is_seen_through(chain);
        local
            .derived
            .source_length(self.get.kind, self.edition, &names, &self.key)
    }

    /// The body with the RV of the source, and the source's object if the client has seen its present state.
    fn mapped(&self, local: &Local, headers: &HeaderMap, body: Bytes) -> (Bytes, Option<Object>) {
        let content_type = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let known = RefCell::new(None);
        let to = |required| {
            let names = |chain: &[&str]| self.is_seen_through(chain);
            let object = local
                .derived
                .source_of(self.get.kind, self.edition, &names, &self.key, required)?;
            let version = object.resource_version();
            known.replace(Some(object));
            (version != required).then_some(version)
        };
        let mapped = precondition::replaced(self.verb, content_type.unwrap_or_default(), &body, &to);
        (mapped.unwrap_or(body), known.into_inner())
    }

    /// As [`Self::check_look`], of the object as the cloud has it.
    async fn check_present(
        &self,
        local: &Local,
        (cloud, bodies): (&PassThrough, &Bodies),
        head: &Parts,
        caller: &Caller,
    ) -> Result<(), Status> {
        let mut request = Request::new(empty());
        *request.uri_mut() = head
            .uri
            .path()
            .parse()
            .map_err(|_| Status::bad_request("unusable path"))?;
        let headers = request.headers_mut();
        *headers = head.headers.clone();
        for name in [CONTENT_TYPE, CONTENT_LENGTH, ACCEPT_ENCODING] {
            headers.remove(name);
        }
        headers.insert(ACCEPT, APPLICATION_JSON);
        let info = RequestInfo::parse(Method::GET.as_str(), head.uri.path(), None)?;
        let response = cloud.send(request, &info, caller).await?;
        let (head, body, _room) = self.get.read(bodies.part(caller), response).await?;
        if head.status == StatusCode::NOT_FOUND {
            return Ok(());
        }
        if !head.status.is_success() {
            let refused = Status::from_json(&body).filter(|status| !status.is_success());
            let why = || Status::service_unavailable("the present object cannot be read", RETRY_AFTER);
            return Err(refused.unwrap_or_else(why));
        }
        self.check_look(local, &self.get.parse(&head, &body)?)
    }

    /// Refuses a replacement of `object` if its writer sees another one.
    fn check_look(&self, local: &Local, object: &Object) -> Result<(), Status> {
        let FilteredGet { kind, name, .. } = &self.get;
        for chain in &self.chains {
            match local.derived.filter(kind, object, chain)? {
                Verdict::Keep => {}
                Verdict::Drop => return Err(Status::not_found(&kind.group_resource(), name)),
                Verdict::Replace(_) => {
                    let why = format!(
                        "{} {name:?} is invalid: its reader sees it through filters {:?}, which change it, so that a PUT \
                         would overwrite what they removed; send a patch of the fields to change",
                        kind.group_resource(),
                        chain.names()
                    );
                    return Err(Status::failure(422, reason::INVALID, why));
                }
            }
        }
        Ok(())
    }

    /// Returns the answer of the cloud as its reader sees the object.
    ///
    /// # Errors
    /// 504 if the answer cannot be read or filtered, also if it is larger than `room`, and there is no more: the write
    /// was accepted.
    pub(in crate::proxy) async fn shown(
        &self,
        local: &Local,
        room: Part,
        response: Response<Body>,
    ) -> Result<Response<Body>, Status> {
        if !response.status().is_success() || self.verb == Verb::Delete {
            return Ok(response);
        }
        let lost = |status: Status| {
            let why = status.message();
            let why = format!("the cloud has accepted the write, and its answer cannot be filtered: {why}");
            Status::failure(504, reason::TIMEOUT, why)
        };
        let (head, body, room) = self.get.read(room, response).await.map_err(lost)?;
        let object = self.get.parse(&head, &body).map_err(lost)?;
        let response = match self.seen(local, object).map_err(lost)? {
            None => Response::from_parts(head, full(body)),
            Some(seen) => self.get.response(local, head, &seen)?,
        };
        Ok(response.map(|body| holding(body, room)))
    }

    /// The object as its reader sees it; `None` if that is the answer of the cloud.
    ///
    /// # Errors
    /// 503 while an input of the filters is unknown.
    fn seen(&self, local: &Local, object: Object) -> Result<Option<Object>, Status> {
        let mut seen = object.clone();
        for chain in &self.chains {
            if let Verdict::Replace(replaced) = local.derived.filter(self.get.kind, &seen, chain)? {
                seen = replaced;
            }
        }
        // A write that changes nothing has the RV of the source, and the client has read a higher one.
        let names = |chain: &[&str]| self.is_seen_through(chain);
        let version = object.resource_version();
        let shown = local
            .derived
            .shown_as(self.get.kind, self.edition, &names, object.key(), version);
        if let Some(shown) = shown.filter(|shown| *shown > version) {
            seen = seen.with_resource_version(shown);
        }
        Ok((!self.get.is_plain || seen != object).then_some(seen))
    }

    fn is_seen_through(&self, names: &[&str]) -> bool {
        // A view of another edition has all its objects under RVs of its own, also without a filter.
        names.is_empty() && self.edition != 0 || self.chains.iter().any(|chain| chain.names() == names)
    }
}
