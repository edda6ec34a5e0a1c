//! Reviews: questions about identities and rights. They are answered, never stored.
//!
//! In reading order: `registry/reviews.rs` (the kinds), this file, [`access`] (rights), [`identity`] (identities).

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use serde_json::{Value, json};
use yurt_apimachinery::{Status, Verb, WriteOptions};
use yurt_codec::negotiation::{Shape, negotiate};
use yurt_codec::representation::document;
use yurt_runtime::http::{self as web, Body};

use crate::app::App;
use crate::authn::User;
use crate::handlers::reading::{self, Expected};
use crate::registry::reviews::{Review, ReviewKind, VERSION};
use crate::request::warnings::Warnings;

mod access;
mod identity;

/// One question.
struct ReviewRequest<'a> {
    app: &'a App,
    user: &'a User,
    kind: &'static ReviewKind,
    /// Namespace of the path.
    namespace: Option<&'a str>,
    review: Value,
}

/// A body and the format of its answer.
pub(crate) struct Exchange<'a> {
    pub(crate) query: Option<&'a str>,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a Bytes,
    /// Warnings that are sent with every answer.
    pub(crate) warnings: &'a Warnings,
}

/// Answers a review.
///
/// # Errors
/// The error to return.
pub(crate) fn handle(
    app: &App,
    user: &User,
    kind: &'static ReviewKind,
    namespace: Option<&str>,
    exchange: &Exchange<'_>,
) -> Result<Response<Body>, Status> {
    if kind.namespaced != namespace.is_some() {
        return Err(Status::unknown_resource());
    }
    let api_version = format!("{}/{VERSION}", kind.group);
    exchange.run(&api_version, kind.kind, |review| {
        let named = review["metadata"]["namespace"].as_str().unwrap_or_default();
        if namespace.is_some_and(|namespace| !named.is_empty() && named != namespace) {
            let why = "the namespace of the provided object does not match the namespace sent on the request";
            return Err(Status::bad_request(why));
        }
        let question = ReviewRequest {
            app,
            user,
            kind,
            namespace,
            review,
        };
        match kind.review {
            Review::SelfSubject => identity::who_am_i(&question),
            Review::Token => identity::whose_token(&question),
            Review::SelfSubjectAccess => access::may_i(&question),
            Review::SelfSubjectRules => access::my_rules(&question),
            Review::SubjectAccess | Review::LocalSubjectAccess => access::may_they(&question),
        }
    })
}
// === impl Exchange ===

impl Exchange<'_> {
    /// Parses the body as a `kind`, and sends the result of `answer`, each in the format that the client chose.
    ///
    /// # Errors
    /// The error to return.
    pub(crate) fn run(
        &self,
        api_version: &str,
        kind: &str,
        answer: impl FnOnce(Value) -> Result<Value, Status>,
    ) -> Result<Response<Body>, Status> {
        let header = |name: HeaderName| self.headers.get(name)?.to_str().ok();
        let negotiated = negotiate(header(ACCEPT), Shape::Object, true, self.query, header(USER_AGENT))?;
        let options = WriteOptions::parse(self.query, Verb::Create)?;
        let expected = Expected {
            kind,
            api_versions: &[api_version],
        };
        let content_type = header(CONTENT_TYPE);
        let asked = reading::read(
            &expected,
            content_type,
            self.body,
            options.field_validation,
            self.warnings,
        )?;
        expected.check(&asked)?;
        let mut answer = answer(asked)?;
        answer["kind"] = json!(kind);
        answer["apiVersion"] = json!(api_version);
        let body = document(negotiated.format, negotiated.pretty, &answer.to_string().into());
        let content_type = HeaderValue::from_static(negotiated.content_type(Shape::Object));
        Ok(web::respond(StatusCode::CREATED, content_type, web::full(body)))
    }
}

// === impl ReviewRequest ===

impl ReviewRequest<'_> {
    /// Metadata that the client sent.
    fn metadata(&self) -> Value {
        let metadata = self.review.get("metadata").filter(|metadata| metadata.is_object());
        metadata.cloned().unwrap_or_else(|| json!({}))
    }
}
