//! Header of every answer: the audit id.

use http::{HeaderMap, HeaderName, HeaderValue, Response};
use yurt_runtime::http::Body;

/// Header that correlates a request with logs; the client's own value is kept.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// The client's own id, else a new one.
pub(super) fn audit_id(headers: &HeaderMap) -> String {
    let given = headers.get(AUDIT_ID).and_then(|id| id.to_str().ok());
    given.map_or_else(new_audit_id, str::to_owned)
}

/// Need not be unpredictable, so no system call per request.
fn new_audit_id() -> String {
    let random = fastrand::u128(..).to_ne_bytes();
    uuid::Builder::from_random_bytes(random).into_uuid().to_string()
}

/// Adds the headers that every answer has.
pub(super) fn with_common_headers(mut response: Response<Body>, audit_id: &str) -> Response<Body> {
    let headers = response.headers_mut();
    headers.extend(HeaderValue::from_str(audit_id).ok().map(|id| (AUDIT_ID, id)));
    response
}
