//! The OpenAPI v2 document: valid and empty, for clients that read it when v3 lacks a kind.

use http::HeaderValue;
use serde_json::json;

use super::{Body, DocumentRequest, Response, Status, accepts, info, version, with_etag};
use yurt_runtime::http::APPLICATION_JSON;

/// Media types of gnostic's protobuf form; the second is the older spelling.
const ACCEPTED: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
];

/// Answers `/openapi/v2`.
///
/// # Errors
/// 406 for other types than JSON and protobuf.
pub(super) fn answer(asked: &DocumentRequest<'_>) -> Result<Response<Body>, Status> {
    let names_protobuf = |name: &&str| {
        asked
            .headers
            .get_all(http::header::ACCEPT)
            .iter()
            .any(|value| contains(value, name))
    };
    if ACCEPTED.iter().any(names_protobuf) {
        let body = protobuf();
        let hash = super::super::digest(&String::from_utf8_lossy(&body));
        return Ok(with_etag(
            asked.headers,
            &hash,
            HeaderValue::from_static(ACCEPTED[0]),
            body,
        ));
    }
    if !accepts(asked.headers, "application/json") {
        return Err(super::not_acceptable());
    }
    let text = json!({ "swagger": "2.0", "info": info(), "paths": {}, "definitions": {} }).to_string();
    let hash = super::super::digest(&text);
    Ok(with_etag(asked.headers, &hash, APPLICATION_JSON, text.into_bytes()))
}

fn contains(value: &HeaderValue, name: &str) -> bool {
    value.to_str().is_ok_and(|value| value.contains(name))
}

/// gnostic's Document: swagger (1), info (2) with title (1) and version (2), paths (8).
fn protobuf() -> Vec<u8> {
    let mut info = Vec::new();
    put(&mut info, 1, b"Kubernetes");
    put(&mut info, 2, version::GIT_VERSION.as_bytes());
    let mut document = Vec::new();
    put(&mut document, 1, b"2.0");
    put(&mut document, 2, &info);
    put(&mut document, 8, b"");
    document
}

/// Appends a length-delimited field; every field here is shorter than 128 bytes.
fn put(out: &mut Vec<u8>, field: u8, content: &[u8]) {
    out.push(field << 3 | 2);
    out.push(u8::try_from(content.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(content);
}
