//! Reading and setting single fields of `metadata` in a body.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::resource_version::ResourceVersion;
use crate::time::Time;

/// `metadata`, if the body has one.
pub fn metadata(object: &Value) -> Option<&Map<String, Value>> {
    object.get("metadata")?.as_object()
}

/// `metadata`, made if missing. A body or metadata that is no JSON object is replaced by one.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    as_object(as_object(object).entry("metadata").or_insert(Value::Null))
}

fn as_object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value
        .as_object_mut()
        .expect("the value must be an object, as it was just made one")
}

/// A text field of `metadata`, such as `name`; the empty string if it is unset.
pub fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    metadata(object)
        .and_then(|metadata| metadata.get(field))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// `metadata.generation`, 0 if unset.
pub fn generation(object: &Value) -> i64 {
    metadata(object)
        .and_then(|metadata| metadata.get("generation"))
        .and_then(Value::as_i64)
        .unwrap_or_default()
}

/// `metadata.finalizers`.
pub fn finalizers(object: &Value) -> Vec<&str> {
    let list = metadata(object)
        .and_then(|metadata| metadata.get("finalizers"))
        .and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Sets `metadata.name`.
pub fn set_name(object: &mut Value, name: &str) {
    set(object, "name", name);
}

/// Sets `metadata.namespace`; `None` removes it.
pub fn set_namespace(object: &mut Value, namespace: Option<&str>) {
    match namespace {
        Some(namespace) => set(object, "namespace", namespace),
        None => drop(metadata_mut(object).remove("namespace")),
    }
}

/// Sets `metadata.uid`.
pub fn set_uid(object: &mut Value, uid: &str) {
    set(object, "uid", uid);
}

/// Sets `metadata.resourceVersion`.
pub fn set_resource_version(object: &mut Value, resource_version: ResourceVersion) {
    set(object, "resourceVersion", resource_version.to_string());
}

/// Removes `metadata.resourceVersion`.
pub fn clear_resource_version(object: &mut Value) {
    metadata_mut(object).remove("resourceVersion");
}

/// Sets `metadata.creationTimestamp`.
pub fn set_creation_timestamp(object: &mut Value, time: Time) {
    set(object, "creationTimestamp", time.to_string());
}

/// Sets `metadata.deletionTimestamp` and `metadata.deletionGracePeriodSeconds`.
pub fn set_deletion(object: &mut Value, time: Time, grace_seconds: i64) {
    set(object, "deletionTimestamp", time.to_string());
    set(object, "deletionGracePeriodSeconds", grace_seconds);
}

/// Sets `metadata.generation`.
pub fn set_generation(object: &mut Value, generation: i64) {
    set(object, "generation", generation);
}

/// Removes repeated owners, as kube-apiserver does; the first mention stays. True if there were any.
pub fn drop_repeated_owners(object: &mut Value) -> bool {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    let Some(Value::Array(owners)) = metadata.and_then(|metadata| metadata.get_mut("ownerReferences")) else {
        return false;
    };
    let before = owners.len();
    let mut seen = HashSet::with_capacity(before);
    owners.retain(|owner| seen.insert(owner.clone()));
    owners.len() < before
}

/// Removes the fields of a new object that only the server may set.
pub fn wipe_system_fields(object: &mut Value) {
    let metadata = metadata_mut(object);
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
    ] {
        metadata.remove(field);
    }
}

fn set(object: &mut Value, field: &str, value: impl Into<Value>) {
    metadata_mut(object).insert(field.to_owned(), value.into());
}
