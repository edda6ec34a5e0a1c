//! Canonical form of an object of a built-in kind: as kube-apiserver writes it after decoding it into its types.
//!
//! Unset and zero fields disappear, except those it always writes; times lose what their format cannot hold. Fields the
//! table does not know, and values of another type than the table says, stay as they are: this module does not validate
//! them.

use serde_json::{Map, Value};

use crate::base64_text;
use crate::schema::{self, Field, FieldType, Message};
use yurt_apimachinery::quantity::Quantity;
use yurt_apimachinery::time::{MicroTime, Time};

/// Structures nested deeper are left alone; no built-in type gets near it.
const DEPTH_MAX: usize = 64;

/// Rewrites `object`, which is a `message`.
pub fn canonicalize(object: &mut Value, message: Message) {
    if let Value::Object(members) = object {
        walk(members, message, 0);
    }
}

/// Rewrites the metadata of an object within another one. A null becomes empty metadata.
pub fn canonicalize_metadata(metadata: &mut Value) {
    if metadata.is_null() {
        *metadata = Value::Object(Map::new());
    }
    if let (Value::Object(members), Some(message)) = (metadata, schema::metadata().message()) {
        walk(members, message, 0);
        if members.get("creationTimestamp").is_some_and(Value::is_null) {
            members.remove("creationTimestamp");
        }
    }
}

fn walk(members: &mut Map<String, Value>, message: Message, depth: usize) {
    if depth > DEPTH_MAX {
        return;
    }
    members.retain(|name, value| match message.field(name) {
        Some(field) => {
            element_wise(value, field, depth);
            !is_dropped(value, field)
        }
        None => true,
    });
    add_zeros(members, message, depth);
}

/// Adds what Go always writes, where there is nothing.
fn add_zeros(members: &mut Map<String, Value>, message: Message, depth: usize) {
    for field in message.fields() {
        match field.message() {
            Some(inner) if field.is_inline() => add_zeros(members, inner, depth),
            _ if field.emits_zero() && members.get(field.name()).is_none_or(Value::is_null) => {
                members.insert(field.name().to_owned(), zero(field, depth));
            }
            _ => {}
        }
    }
}

fn element_wise(value: &mut Value, field: Field, depth: usize) {
    match value {
        Value::Array(items) if field.is_list() => items.iter_mut().for_each(|item| single(item, field, depth)),
        Value::Object(entries) if field.is_map() => entries.values_mut().for_each(|item| single(item, field, depth)),
        _ if field.is_list() || field.is_map() => {}
        value => single(value, field, depth),
    }
}

fn single(value: &mut Value, field: Field, depth: usize) {
    match (field.ty(), value) {
        (FieldType::Message, Value::Object(members)) => {
            if let Some(message) = field.message() {
                walk(members, message, depth + 1);
            }
        }
        (FieldType::Bytes, Value::String(text)) => {
            if let Ok(bytes) = base64_text::decode(text) {
                *text = base64_text::encode(&bytes);
            }
        }
        (FieldType::Time, Value::String(text)) => {
            if let Ok(time) = Time::parse(text) {
                *text = time.to_string();
            }
        }
        (FieldType::MicroTime, Value::String(text)) => {
            if let Ok(time) = MicroTime::parse(text) {
                *text = time.to_string();
            }
        }
        (FieldType::Quantity, value) => {
            let text = match &*value {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                _ => return,
            };
            if let Some(quantity) = Quantity::canonical(text.trim()) {
                *value = quantity.to_string().into();
            }
        }
        _ => {}
    }
}

/// True if Go would omit the value: null, or the zero value of a field without a pointer to distinguish zero from
/// unset.
fn is_dropped(value: &Value, field: Field) -> bool {
    let is_zero = match value {
        Value::Null => return true,
        Value::Array(items) => items.is_empty() && field.is_list(),
        Value::Object(entries) => entries.is_empty() && field.is_map(),
        Value::String(text) => text.is_empty() && matches!(field.ty(), FieldType::String | FieldType::Bytes),
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_i64() == Some(0) && field.ty() != FieldType::IntOrString,
    };
    let is_collection = field.is_list() || field.is_map();
    is_zero && (is_collection || !field.is_pointer()) && (!field.emits_zero() || is_collection)
}

fn zero(field: Field, depth: usize) -> Value {
    if field.is_list() || field.is_map() || field.is_pointer() {
        return Value::Null;
    }
    match field.ty() {
        FieldType::Bool => Value::Bool(false),
        FieldType::Int32 | FieldType::Int64 | FieldType::IntOrString => Value::from(0),
        FieldType::String => Value::from(""),
        FieldType::Quantity | FieldType::Duration => Value::from("0"),
        FieldType::Message => {
            let mut members = Map::new();
            if let Some(message) = field.message() {
                walk(&mut members, message, depth + 1);
            }
            Value::Object(members)
        }
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::find;

    fn canonical(group: &str, version: &str, kind: &str, mut object: Value) -> Value {
        canonicalize(&mut object, find(group, version, kind).unwrap());
        object
    }

    #[test]
    fn bytes_have_one_text() {
        let map = json!({"metadata": {"name": "a"}, "binaryData": {"a": "YW\nI=", "b": "YWJ=", "c": "no"}});
        let stored = json!({"metadata": {"name": "a"}, "binaryData": {"a": "YWI=", "b": "YWI=", "c": "no"}});
        assert_eq!(
            canonical("", "v1", "ConfigMap", map)["binaryData"],
            stored["binaryData"]
        );
    }

    #[test]
    fn what_go_would_not_write_disappears() {
        let map = json!({"metadata": {"name": "a", "labels": {}, "annotations": null, "finalizers": [], "generation": 0},
            "data": {}, "immutable": false, "unknown": null});
        let want = json!({"metadata": {"name": "a"}, "immutable": false, "unknown": null});
        assert_eq!(
            canonical("", "v1", "ConfigMap", map),
            want,
            "immutable is a pointer, unknown fields stay"
        );
    }

    #[test]
    fn what_go_always_writes_appears() {
        let service = canonical(
            "",
            "v1",
            "Service",
            json!({"metadata": {"name": "a"}, "spec": {"ports": []}}),
        );
        let want = json!({"metadata": {"name": "a"}, "spec": {}, "status": {"loadBalancer": {}}});
        assert_eq!(service, want);
        let slice = json!({"addressType": "IPv4", "metadata": {}, "endpoints": [{"addresses": ["10.0.0.1"]}]});
        let want = json!({"addressType": "IPv4", "metadata": {}, "endpoints": [{"addresses": ["10.0.0.1"],
            "conditions": {}}], "ports": null});
        assert_eq!(canonical("discovery.k8s.io", "v1", "EndpointSlice", slice), want);
    }

    #[test]
    fn times_are_written_in_their_own_format() {
        let lease = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00.9+01:00"},
            "spec": {"renewTime": "2026-01-01T00:00:00.100000+02:00"}});
        let lease = canonical("coordination.k8s.io", "v1", "Lease", lease);
        assert_eq!(lease["metadata"]["creationTimestamp"], "2025-12-31T23:00:00Z");
        assert_eq!(lease["spec"]["renewTime"], "2025-12-31T22:00:00.100000Z");
    }

    #[test]
    fn quantities_are_written_in_their_shortest_form() {
        let node = canonical(
            "",
            "v1",
            "Node",
            json!({"metadata": {}, "status": {"capacity": {"cpu": "2000m", "memory": "4096Mi", "pods": 110, "odd": "x"}}}),
        );
        let want = json!({"cpu": "2", "memory": "4Gi", "pods": "110", "odd": "x"});
        assert_eq!(node["status"]["capacity"], want);
    }

    #[test]
    fn values_of_another_type_stay() {
        let odd = json!({"metadata": "text", "data": [1], "binaryData": 7});
        assert_eq!(canonical("", "v1", "ConfigMap", odd.clone()), odd);
    }
}
