//! The operations of each resource with the attributes that clients read: kind, action, parameters.

use serde_json::{Map, Value, json};

use super::path_of;
use crate::discovery::model::{Entry, Group};

/// Verbs of discovery: HTTP method, true if they name an object, and parameters in addition to the
/// path's.
const OPERATIONS: [(&str, &str, bool, &[&str]); 8] = [
    (
        "list",
        "get",
        false,
        &[
            "allowWatchBookmarks",
            "continue",
            "fieldSelector",
            "labelSelector",
            "limit",
            "resourceVersion",
            "resourceVersionMatch",
            "sendInitialEvents",
            "timeoutSeconds",
            "watch",
        ],
    ),
    ("create", "post", false, WRITE),
    ("deletecollection", "delete", false, DELETE),
    ("get", "get", true, &[]),
    ("update", "put", true, WRITE),
    (
        "patch",
        "patch",
        true,
        &["dryRun", "fieldManager", "fieldValidation", "force"],
    ),
    ("delete", "delete", true, DELETE),
    ("watch", "", true, &[]),
];
const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
const DELETE: &[&str] = &["dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy"];

/// Every path of a group version.
pub(super) fn of(group: &Group) -> Map<String, Value> {
    let mut paths = Map::new();
    for entry in &group.resources {
        let namespace = if entry.namespaced {
            "/namespaces/{namespace}"
        } else {
            ""
        };
        let collection = format!("/{}{namespace}/{}", path_of(group), entry.plural);
        for (names_object, path) in [(false, collection.clone()), (true, format!("{collection}/{{name}}"))] {
            let operations = operations(group, entry, names_object);
            if !operations.is_empty() {
                paths.insert(path, Value::Object(operations));
            }
        }
    }
    paths
}

fn operations(group: &Group, entry: &Entry, names_object: bool) -> Map<String, Value> {
    let mut operations = Map::new();
    for (verb, method, _, parameters) in OPERATIONS.iter().filter(|operation| operation.2 == names_object) {
        if method.is_empty() || !entry.verbs.contains(verb) {
            continue;
        }
        let action = match *verb {
            "create" => "post",
            "update" => "put",
            other => other,
        };
        let parameters: Vec<Value> = parameters.iter().map(|name| parameter(name)).collect();
        let operation = json!({
            "operationId": format!("{verb}{}{}", group.version, entry.kind),
            "parameters": parameters,
            "responses": { "200": { "description": "OK" } },
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": { "group": group.name, "version": group.version, "kind": entry.kind },
        });
        operations.insert((*method).to_owned(), operation);
    }
    operations
}

fn parameter(name: &str) -> Value {
    let ty = match name {
        "allowWatchBookmarks" | "force" | "orphanDependents" | "sendInitialEvents" | "watch" => "boolean",
        "gracePeriodSeconds" | "limit" | "timeoutSeconds" => "integer",
        _ => "string",
    };
    json!({ "name": name, "in": "query", "schema": { "type": ty, "uniqueItems": true } })
}
