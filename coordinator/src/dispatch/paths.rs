//! Paths that name no resource: the pool's paths, metrics, and discovery.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use yurt_apimachinery::{RequestInfo, Status};
use yurt_runtime::http::server::Peer;
use yurt_runtime::http::{self as web, Body};

use crate::app::App;
use crate::authn::User;
use crate::discovery::DocumentRequest;
use crate::pool_api;

/// Answers paths that name no resource.
///
/// # Errors
/// 404 or 405, and the failures of the pool's paths.
pub(super) async fn answer(
    app: &Arc<App>,
    request: Request<Incoming>,
    peer: &Peer,
    info: &RequestInfo,
    user: &User,
) -> Result<Response<Body>, Status> {
    if pool_api::is_meant(&info.path) {
        let answer = pool_api::answer(app, request, info, user).await?;
        return answer.map_or_else(|| no_document(app, info), Ok);
    }
    match (request.method(), info.path.as_str()) {
        (&Method::GET, "/metrics") => {
            let text = app.scrape();
            let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            Ok(web::respond(StatusCode::OK, content_type, web::full(text)))
        }
        // Discovery of all groups has no methods; it is read-only.
        (&Method::GET, path) | (&Method::HEAD, path @ ("/api" | "/apis")) => {
            let asked = DocumentRequest {
                headers: request.headers(),
                query: request.uri().query(),
                now: std::time::UNIX_EPOCH + Duration::from_secs(app.clock.unix().secs.unsigned_abs()),
            };
            let document = app.served().discovery.answer(path, &asked, peer.local_addr);
            document.unwrap_or_else(|| no_document(app, info))
        }
        (_, path) if is_document(app, path) => Err(Status::method_not_allowed()),
        _ => no_document(app, info),
    }
}

/// True for a path that exists for another method.
fn is_document(app: &App, path: &str) -> bool {
    matches!(path, "/" | "/metrics" | "/version") || app.served().discovery.knows(path)
}

/// The 404 below the versions of a known group is the API's, everywhere else the router's.
fn no_document(app: &App, info: &RequestInfo) -> Result<Response<Body>, Status> {
    let parts: Vec<&str> = info.path.trim_matches('/').split('/').collect();
    let is_known = match parts.as_slice() {
        ["api" | "version", _, ..] => true,
        ["apis", group, _, ..] => app
            .served()
            .registry
            .iter()
            .any(|resource| resource.kind.group == *group && !group.is_empty()),
        _ => false,
    };
    if is_known && !info.path.starts_with("//") {
        return Err(Status::unknown_resource());
    }
    Ok(page_not_found())
}

/// The answer of a router for an unknown path.
fn page_not_found() -> Response<Body> {
    web::text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// An unknown resource of a served group gets another 404 than an unknown path.
///
/// # Errors
/// 404 of the API.
pub(super) fn not_found(app: &App, info: &RequestInfo) -> Result<Response<Body>, Status> {
    if app
        .served()
        .registry
        .iter()
        .any(|resource| resource.kind.group == info.group)
    {
        return Err(Status::unknown_resource());
    }
    Ok(page_not_found())
}
