//! Headers that belong to one connection and must not be passed on (RFC 9110, 7.6.1). Pure.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName};
use http::{HeaderMap, Response, StatusCode};
use yurt_runtime::http::{Body, full};

/// Headers of one connection, in addition to those that its Connection header names.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
];

/// Converts a complete answer of the cloud to the response for the client.
#[must_use]
pub(crate) fn answered((status, mut headers, body): (StatusCode, HeaderMap, Bytes)) -> Response<Body> {
    strip(&mut headers);
    headers.remove(CONTENT_LENGTH);
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Removes the headers of one connection, and those that its Connection header names.
pub(crate) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = named_by_connection(headers).collect();
    named.iter().for_each(|name| drop(headers.remove(name)));
    HOP_BY_HOP.iter().for_each(|name| drop(headers.remove(*name)));
}

/// Names in the Connection headers.
pub(crate) fn named_by_connection(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn answer_loses_the_headers_of_its_connection_and_those_that_it_names() {
        let mut headers = HeaderMap::new();
        headers.insert(CONNECTION, HeaderValue::from_static("close, X-Hop"));
        for name in ["transfer-encoding", "keep-alive", "x-hop", "content-length", "x-kept"] {
            headers.insert(name, HeaderValue::from_static("1"));
        }
        let answer = answered((StatusCode::OK, headers, Bytes::from_static(b"{}")));
        let names: Vec<&str> = answer.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["x-kept"]);
    }
}
