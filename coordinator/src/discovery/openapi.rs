//! The least OpenAPI that lets kubectl create and apply: which kinds there are, and that writes take `fieldValidation`.

use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};
use yurt_runtime::http::{self as web, Body};

use super::model::{Entry, Group};
use super::version;

/// Content type of a gnostic OpenAPI v2 document.
const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// Answers `/openapi/…`; `parts` is what follows.
pub(super) fn answer(groups: &[Group], parts: &[&str], accept: Option<&str>) -> Option<Response<Body>> {
    let document = match parts {
        ["v2"] if accept.is_some_and(|accept| accept.contains("proto-openapi.spec.v2")) => {
            return Some(web::respond(
                StatusCode::OK,
                HeaderValue::from_static(V2_PROTOBUF),
                web::full(v2_protobuf()),
            ));
        }
        ["v2"] => json!({ "swagger": "2.0", "info": info(), "paths": {} }),
        ["v3"] => index(groups),
        ["v3", "api", version] => of_group(find(groups, "", version)?),
        ["v3", "apis", group, version] => of_group(find(groups, group, version)?),
        _ => return None,
    };
    Some(web::json(StatusCode::OK, document.to_string()))
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

fn index(groups: &[Group]) -> Value {
    let paths = groups.iter().map(|group| {
        let path = path_of(group);
        let url = format!(
            "/openapi/v3/{path}?hash={}",
            super::digest(&of_group(group).to_string())
        );
        (path, json!({ "serverRelativeURL": url }))
    });
    json!({ "paths": paths.collect::<serde_json::Map<_, _>>() })
}

fn of_group(group: &Group) -> Value {
    let paths = group
        .resources
        .iter()
        .filter(|entry| entry.is_stored)
        .map(|entry| path(group, entry));
    json!({ "openapi": "3.0.0", "info": info(), "paths": paths.collect::<serde_json::Map<_, _>>() })
}

/// kubectl looks for a patch operation of the kind that takes `fieldValidation`.
fn path(group: &Group, entry: &Entry) -> (String, Value) {
    let namespace = if entry.namespaced {
        "/namespaces/{namespace}"
    } else {
        ""
    };
    let path = format!("/{}{namespace}/{}/{{name}}", path_of(group), entry.plural);
    let parameters: Vec<Value> = ["dryRun", "fieldManager", "fieldValidation"]
        .into_iter()
        .map(|name| json!({ "name": name, "in": "query", "schema": { "type": "string" } }))
        .collect();
    let operation = json!({
        "operationId": format!("patch{}", entry.kind),
        "parameters": parameters,
        "responses": { "200": { "description": "OK" } },
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": {
            "group": group.name, "version": group.version, "kind": entry.kind,
        },
    });
    (path, json!({ "patch": operation }))
}

/// An empty OpenAPI v2 document: swagger (1), info (2) with title (1) and version (2), paths (8).
fn v2_protobuf() -> Vec<u8> {
    let mut info = Vec::new();
    put(&mut info, 1, b"Kubernetes");
    put(&mut info, 2, version::GIT_VERSION.as_bytes());
    let mut document = Vec::new();
    put(&mut document, 1, b"2.0");
    put(&mut document, 2, &info);
    put(&mut document, 8, b"");
    document
}

/// A length-delimited field; everything here is shorter than 128 bytes.
fn put(out: &mut Vec<u8>, field: u8, content: &[u8]) {
    out.push(field << 3 | 2);
    out.push(u8::try_from(content.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(content);
}
