//! Discovery in both forms, versions, and OpenAPI.
//!
//! All documents are made from one registry: when another one replaces it, all documents and their ETags change
//! together.

use std::net::SocketAddr;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::Value;
use yurt_apimachinery::Status;
use yurt_codec::negotiation::{Format, wants_aggregated_discovery};
use yurt_codec::representation::document;
use yurt_runtime::http::{self as web, Body};

use crate::registry::Registry;

mod aggregated;
mod legacy;
mod model;
mod openapi;
mod version;

use model::Group;
pub(crate) use openapi::DocumentRequest;

/// Every discovery document, encoded.
pub(crate) struct Discovery {
    groups: Vec<Group>,
    aggregated_core: Document,
    aggregated_named: Document,
}

/// A body with its ETag.
struct Document {
    body: Bytes,
    etag: HeaderValue,
}

/// Content type of aggregated discovery; clients compare it parameter by parameter.
const AGGREGATED: HeaderValue =
    HeaderValue::from_static("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");

/// The answer to `/version`, which needs no other state.
pub(crate) fn version() -> Response<Body> {
    pretty(&version::document())
}

// === impl Discovery ===

impl Discovery {
    /// The documents of everything `registry` serves.
    pub(crate) fn new(registry: &Registry) -> Self {
        let groups = model::groups(registry);
        let (core, named): (Vec<&Group>, Vec<&Group>) = groups.iter().partition(|group| group.name.is_empty());
        let aggregated_core = Document::new(&aggregated::list(&core));
        let aggregated_named = Document::new(&aggregated::list(&named));
        Self {
            groups,
            aggregated_core,
            aggregated_named,
        }
    }

    /// Answers a GET below `/api`, `/apis`, `/openapi` or of `/version`; `None` when there is no such document.
    ///
    /// # Errors
    /// 406 for a document that is available in none of the accepted types.
    pub(crate) fn answer(
        &self,
        path: &str,
        asked: &DocumentRequest<'_>,
        local: SocketAddr,
    ) -> Option<Result<Response<Body>, Status>> {
        let headers = asked.headers;
        let accept = headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok());
        if path.starts_with("//") {
            return None;
        }
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let value = match parts.as_slice() {
            ["version"] => return Some(Ok(version())),
            ["api"] if wants_aggregated_discovery(accept) => return Some(Ok(self.aggregated_core.answer(headers))),
            ["apis"] if wants_aggregated_discovery(accept) && !path.ends_with('/') => {
                return Some(Ok(self.aggregated_named.answer(headers)));
            }
            ["api"] => legacy::versions(local),
            ["apis"] => legacy::group_list(&self.groups),
            ["api", version] => legacy::resources(&self.groups, "", version)?,
            ["apis", name] => legacy::group(&self.groups, name)?,
            ["apis", name, version] => legacy::resources(&self.groups, name, version)?,
            ["openapi", rest @ ..] => return openapi::answer(&self.groups, rest, asked),
            _ => return None,
        };
        let is_routed = !matches!(parts.as_slice(), ["apis"] | ["apis", _]);
        Some(Format::of_document(accept, is_routed).map(|format| {
            let body = document(format, false, &value.to_string().into());
            web::respond(
                StatusCode::OK,
                HeaderValue::from_static(format.content_type()),
                web::full(body),
            )
        }))
    }

    /// True if there is a document of resources, versions or groups at a path, for any method.
    pub(crate) fn knows(&self, path: &str) -> bool {
        let has = |name: &str, version: &str| legacy::resources(&self.groups, name, version).is_some();
        match *path.trim_matches('/').split('/').collect::<Vec<_>>() {
            ["api" | "apis"] => true,
            ["api", version] => has("", version),
            ["apis", name] => legacy::group(&self.groups, name).is_some(),
            ["apis", name, version] => has(name, version),
            _ => false,
        }
    }
}

fn pretty(value: &Value) -> Response<Body> {
    let text = serde_json::to_string_pretty(value);
    web::json(
        StatusCode::OK,
        text.expect("a document has string keys only, so it must serialize"),
    )
}

// === impl Document ===

impl Document {
    fn new(value: &Value) -> Self {
        let text = value.to_string() + "\n";
        let etag =
            HeaderValue::from_str(&format!("\"{}\"", digest(&text))).expect("a hexadecimal digest must be a header");
        Self {
            body: text.into(),
            etag,
        }
    }

    fn answer(&self, headers: &HeaderMap) -> Response<Body> {
        let is_known = headers.get(IF_NONE_MATCH).is_some_and(|known| known == self.etag);
        let mut response = if is_known {
            let mut response = Response::new(web::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            web::respond(StatusCode::OK, AGGREGATED, web::full(self.body.clone()))
        };
        let headers = response.headers_mut();
        headers.insert(ETAG, self.etag.clone());
        headers.insert(VARY, HeaderValue::from_static("Accept"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
        response
    }
}

/// A digest that is the same for the same text in every process of one build.
fn digest(text: &str) -> String {
    use std::hash::Hasher as _;
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(text.as_bytes());
    format!("{:016X}", hasher.finish())
}
