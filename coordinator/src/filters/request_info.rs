//! Parses a request: its path and query, the resource it names, and the format of its failures.

use std::sync::Arc;

use http::Request;
use http::header::{ACCEPT, USER_AGENT};
use hyper::body::Incoming;
use yurt_apimachinery::{RequestInfo, Status, Verb};
use yurt_codec::negotiation::Negotiated;
use yurt_codec::protobuf;

use crate::app::App;
use crate::metrics::RequestLabels;
use crate::registry::Resource;
use crate::request::ParsedRequest;

/// A request before its caller is authenticated.
pub(super) struct RequestHead {
    /// The request, or 400 for a path that cannot be parsed.
    pub(super) parsed: Result<ParsedRequest, Status>,
    /// `None` if the path cannot be parsed.
    pub(super) verb: Option<Verb>,
    /// Labels of its metrics.
    pub(super) labels: RequestLabels,
    /// The format of a failure.
    pub(super) format: Negotiated,
}

// === impl RequestHead ===

impl RequestHead {
    pub(super) fn of(app: &App, request: &Request<Incoming>) -> Self {
        let query = request.uri().query();
        let info = RequestInfo::parse(request.method().as_str(), request.uri().path(), query);
        let resource = info.as_ref().ok().and_then(|info| find_resource(app, info));
        let labels = RequestLabels::of(
            info.as_ref().ok(),
            query,
            request.headers(),
            resource.as_ref().map(|resource| resource.kind),
        );
        let format = error_format(request, resource.as_deref());
        Self {
            verb: info.as_ref().map(|info| info.verb).ok(),
            labels,
            format,
            parsed: info.map(|info| ParsedRequest {
                info,
                query: query.map(str::to_owned),
                resource,
                format,
            }),
        }
    }
}

/// Failures come in the format that the request accepts.
pub(super) fn error_format(request: &Request<Incoming>, resource: Option<&Resource>) -> Negotiated {
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let agent = request.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    Negotiated::of_status(
        accept,
        resource.is_none_or(|resource| protobuf::supports(resource.kind)),
    )
    .for_people(request.uri().query(), agent)
}

fn find_resource(app: &App, info: &RequestInfo) -> Option<Arc<Resource>> {
    if !info.is_resource {
        return None;
    }
    let served = app.served();
    served
        .registry
        .find_version(&info.group, &info.version, &info.resource)
        .cloned()
}
