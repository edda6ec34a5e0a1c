//! A request: as the filters parse it, and as its handler gets it.

use std::sync::Arc;

use http::{HeaderValue, Response, StatusCode};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::lease::LeaseSpec;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::{Object, ObjectKey, RequestInfo, ResourceVersion, Status, Verb, WriteOptions};
use yurt_codec::negotiation::{Negotiated, Shape, negotiate};
use yurt_codec::protobuf;
use yurt_pool_protocol::guard::{Author, Caller};
use yurt_pool_protocol::names::{ELECTION_KEY, EPOCH_HEADER, GENERATION_HEADER, STALE_HEADER, STORE_HEADER};
use yurt_runtime::http::{self as web, Body};

use crate::app::App;
use crate::authn::{MASTERS, User};
use crate::authz::{Attributes, Decision};
use crate::bodies::Received;
use crate::lease_objects;
use crate::registry::own::Intent;
use crate::registry::{Authority, Resource};

pub(crate) mod warnings;

use warnings::Warnings;

/// A request, parsed from its URL and headers.
pub(crate) struct ParsedRequest {
    pub(crate) info: RequestInfo,
    pub(crate) query: Option<String>,
    /// `None` for a path that names no served resource.
    pub(crate) resource: Option<Arc<Resource>>,
    /// The format of a failure.
    pub(crate) format: Negotiated,
}

/// One authorized request about a resource.
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    pub(crate) resource: Arc<Resource>,
    pub(crate) user: User,
    pub(crate) info: RequestInfo,
    pub(crate) query: Option<String>,
    pub(crate) headers: http::HeaderMap,
    /// Empty for reads.
    pub(crate) body: Received,
    /// Warnings that are sent with every answer.
    pub(crate) warnings: Arc<Warnings>,
    /// Cancelled when the certificate of the connection becomes invalid.
    pub(crate) ends: CancellationToken,
}

// === impl Call ===

impl Call {
    /// Text of a header.
    pub(crate) fn header(&self, name: impl http::header::AsHeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Namespace of the objects; `None` for a Namespace itself.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.info.namespace.as_deref().filter(|_| self.resource.kind.namespaced)
    }

    /// The time of the answer.
    pub(crate) fn now(&self) -> Time {
        Time::from_unix(self.app.clock.unix().secs)
    }

    pub(crate) fn name(&self) -> &str {
        self.info.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace(), self.name())
    }

    pub(crate) fn negotiate(&self, shape: Shape) -> Result<Negotiated, Status> {
        let (accept, agent) = (self.header(http::header::ACCEPT), self.header(http::header::USER_AGENT));
        negotiate(
            accept,
            shape,
            protobuf::supports(self.resource.kind),
            self.query.as_deref(),
            agent,
        )
    }

    /// Refuses reads of an incomplete pool collection: it is never served as an empty one.
    pub(crate) fn require_served(&self) -> Result<(), Status> {
        if self.resource.is_served() {
            return Ok(());
        }
        let name = &self.resource.name;
        Err(Status::too_many_requests(
            format!("{name} are not complete here yet; the pool's leader has not fed them"),
            1,
        ))
    }

    /// Waits until a read reflects every write acknowledged by other coordinators over the same store. It concerns
    /// reads without an RV, and those at an RV that only the others can have issued so far.
    pub(crate) async fn catch_up(&self, version: Option<ResourceVersion>) -> Result<(), Status> {
        let is_ahead = |rv: ResourceVersion| {
            let position = self.resource.objects().read(yurt_collection::Collection::position);
            rv > position && rv.space() == position.space()
        };
        if version.is_none_or(is_ahead) {
            self.app.own.catch_up(&self.resource).await?;
        }
        Ok(())
    }

    /// Authorizes again once the body has supplied the name, or a write turns out to be a create.
    pub(crate) fn authorize(&self, verb: Verb, name: &str) -> Result<(), Status> {
        let attributes = Attributes {
            verb: verb.as_str(),
            name,
            ..Attributes::of(&self.info)
        };
        match self.app.authorize(&self.user, &attributes) {
            Decision::Allowed(_) => Ok(()),
            Decision::Denied(why) => {
                let info = RequestInfo {
                    verb,
                    name: Some(name.to_owned()),
                    ..self.info.clone()
                };
                Err(info.forbidden(&self.user.name, &why))
            }
        }
    }

    /// Field manager of the written fields.
    pub(crate) fn manager(&self, options: &WriteOptions) -> String {
        options.manager(self.header(http::header::USER_AGENT).unwrap_or_default())
    }

    pub(crate) fn intent(&self, field_manager: Option<String>, dry_run: bool) -> Intent {
        let caller = match self.user.node_name() {
            _ if self.user.is_in(MASTERS) => Caller::Administrator,
            Some(node) => Caller::Node(node.to_owned()),
            None => Caller::Other,
        };
        Intent {
            author: Author {
                user: self.user.name.clone(),
                manager: field_manager,
            },
            caller,
            dry_run,
            body_bytes: self.body.len(),
            is_apply: false,
        }
    }

    /// One object as the answer.
    pub(crate) fn object(
        &self,
        code: StatusCode,
        object: &Object,
        negotiated: Negotiated,
    ) -> Result<Response<Body>, Status> {
        negotiated.check(self.resource.kind, Shape::Object)?;
        let object = &self.resource.shown(object);
        let body = negotiated.object(self.resource.kind, object, self.now());
        let content_type = HeaderValue::from_static(negotiated.content_type(Shape::Object));
        let mut response = web::respond(code, content_type, web::full(body));
        self.add_epoch(object, &mut response);
        Ok(response)
    }

    /// Adds the epoch to every answer that shows the holder of the election lease its own lease.
    fn add_epoch(&self, object: &Object, response: &mut Response<Body>) {
        if self.resource.name != lease_objects::COLLECTION || object.key().as_str() != ELECTION_KEY {
            return;
        }
        let spec = LeaseSpec::from_object(object).unwrap_or_default();
        let election = self.app.feed.fence().election();
        let holds = spec
            .holder()
            .is_some_and(|holder| holder == election.holder && self.user.owns_identity(holder));
        if holds {
            let headers = response.headers_mut();
            headers.insert(EPOCH_HEADER, HeaderValue::from(election.epoch));
            if let Ok(store) = HeaderValue::from_str(self.app.feed.fence().store()) {
                headers.insert(STORE_HEADER, store);
            }
        }
    }

    /// Adds the headers that accompany pool data of this generation.
    pub(crate) fn add_pool_headers(&self, generation: u64, response: &mut Response<Body>) {
        if !matches!(self.resource.authority, Authority::Pool(_)) {
            return;
        }
        response
            .headers_mut()
            .insert(GENERATION_HEADER, HeaderValue::from(generation));
        if self.resource.is_stale(self.app.clock.boot()) {
            response
                .headers_mut()
                .insert(STALE_HEADER, HeaderValue::from_static("true"));
        }
    }
}
