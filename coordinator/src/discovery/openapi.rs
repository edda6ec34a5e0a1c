//! OpenAPI: the kinds, their fields, and the parameters of their writes.
//!
//! kubectl reads it before every create (is `fieldValidation` supported?) and for `explain`. Documents are made on
//! request, which is rare: cached, they would be the largest data of an idle server.

use std::time::{Duration, SystemTime};

use http::header::{ACCEPT, CACHE_CONTROL, ETAG, EXPIRES, IF_NONE_MATCH, LAST_MODIFIED, LOCATION, VARY};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::{Value, json};
use yurt_apimachinery::Status;
use yurt_apimachinery::query::Query;
use yurt_runtime::http::{self as web, APPLICATION_JSON, Body};

use super::model::Group;
use super::version;

mod paths;
mod schemas;
mod v2;

/// A request for a document, apart from its path.
pub(crate) struct DocumentRequest<'a> {
    pub(crate) headers: &'a HeaderMap,
    pub(crate) query: Option<&'a str>,
    /// Wall clock, for dates in headers.
    pub(crate) now: SystemTime,
}

/// Cache lifetime of a document that is named by its hash: it never changes.
const IMMUTABLE_FOR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Answers `/openapi/…`; `parts` is the rest of the path. `None` when there is no such document.
pub(super) fn answer(
    groups: &[Group],
    parts: &[&str],
    asked: &DocumentRequest<'_>,
) -> Option<Result<Response<Body>, Status>> {
    let answer = match parts {
        ["v2"] => v2::answer(asked),
        ["v3"] => Ok(index(groups, asked)),
        ["v3", "api", version] if find(groups, "", version).is_some() => of_group(find(groups, "", version)?, asked),
        ["v3", "apis", group, version] if find(groups, group, version).is_some() => {
            of_group(find(groups, group, version)?, asked)
        }
        ["v3", ..] => {
            let mut response = Response::new(web::empty());
            *response.status_mut() = StatusCode::NOT_FOUND;
            Ok(response)
        }
        _ => return None,
    };
    Some(answer)
}

fn find<'a>(groups: &'a [Group], name: &str, version: &str) -> Option<&'a Group> {
    groups
        .iter()
        .find(|group| group.name == name && group.version == version)
}

fn info() -> Value {
    json!({ "title": "Kubernetes", "version": version::GIT_VERSION })
}

fn path_of(group: &Group) -> String {
    if group.name.is_empty() {
        format!("api/{}", group.version)
    } else {
        format!("apis/{}", group.api_version())
    }
}

/// Index of the documents of all group versions. kube-apiserver serves it as text.
fn index(groups: &[Group], asked: &DocumentRequest<'_>) -> Response<Body> {
    let paths = groups.iter().map(|group| {
        let path = path_of(group);
        let url = url(&path, &super::digest(&document(group).to_string()));
        (path, json!({ "serverRelativeURL": url }))
    });
    let index = json!({ "paths": paths.collect::<serde_json::Map<_, _>>() });
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    let mut response = web::respond(StatusCode::OK, text, web::full(index.to_string()));
    response.headers_mut().insert(LAST_MODIFIED, http_date(asked.now));
    response
}

fn url(path: &str, hash: &str) -> String {
    format!("/openapi/v3/{path}?hash={hash}")
}

fn of_group(group: &Group, asked: &DocumentRequest<'_>) -> Result<Response<Body>, Status> {
    if !accepts(asked.headers, "application/json") {
        return Err(not_acceptable());
    }
    let text = document(group).to_string();
    let hash = super::digest(&text);
    let query = Query::parse(asked.query);
    let wanted = query.get("hash").filter(|wanted| !wanted.is_empty());
    if wanted.is_some_and(|wanted| wanted != hash) {
        let mut response = Response::new(web::empty());
        *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
        let location = HeaderValue::from_str(&url(&path_of(group), &hash));
        response.headers_mut().extend(location.ok().map(|url| (LOCATION, url)));
        return Ok(response);
    }
    let mut response = with_etag(asked.headers, &hash, APPLICATION_JSON, text.into_bytes());
    if wanted.is_some() {
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        headers.insert(EXPIRES, http_date(asked.now + IMMUTABLE_FOR));
    }
    Ok(response)
}

fn document(group: &Group) -> Value {
    json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": paths::of(group),
        "components": { "schemas": schemas::of(group) },
    })
}

/// The body, or 304 when the client has it already.
fn with_etag(headers: &HeaderMap, hash: &str, content_type: HeaderValue, body: Vec<u8>) -> Response<Body> {
    let etag = HeaderValue::from_str(&format!("\"{hash}\"")).expect("a hexadecimal digest must be a header");
    let mut response = if headers.get(IF_NONE_MATCH) == Some(&etag) {
        let mut response = Response::new(web::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        web::respond(StatusCode::OK, content_type, web::full(body))
    };
    response.headers_mut().insert(ETAG, etag);
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response
}

/// True if a media type is among those accepted. Parameters of the served types are part of their names.
fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    let Some(accept) = headers.get(ACCEPT).and_then(|value| value.to_str().ok()) else {
        return true;
    };
    let mut clauses = accept
        .split(',')
        .map(|clause| clause.split(';').next().unwrap_or_default().trim());
    clauses.any(|clause| clause.is_empty() || clause == "*/*" || clause == "application/*" || clause == media_type)
}

fn not_acceptable() -> Status {
    Status::not_acceptable(&["application/json"])
}

fn http_date(time: SystemTime) -> HeaderValue {
    HeaderValue::from_str(&httpdate::fmt_http_date(time)).expect("a date must be a header")
}
