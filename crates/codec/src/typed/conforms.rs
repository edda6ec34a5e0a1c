//! Check that an object already has the form of its type, without any field to drop, complete or reject.
//!
//! The fast path for the usual case. It only checks; the texts of a rejection come from [`read`](super::read).

use serde_json::Value;

use super::Expected;
use super::scalars::{number_fits, takes_text, text_fault};
use crate::schema::{FieldType, Message};

/// Nesting up to which a value passes without being read again; the parser's own limit is beyond.
const DEPTH_MAX: usize = 64;

/// True if reading the text of `object` as `message` gives `object` itself, without a fault. False may be wrong.
#[must_use]
pub fn conforms(object: &Value, message: Message) -> bool {
    object.is_object() && fits(object, Expected::Root(message), DEPTH_MAX)
}

/// True if a value is valid at a place, with this many levels below it.
fn fits(value: &Value, expected: Expected, levels: usize) -> bool {
    if expected.is_free() {
        return is_shallow(value, levels);
    }
    let Some(below) = levels.checked_sub(1) else {
        return false;
    };
    let scalar = expected.scalar();
    match value {
        // An element that is null becomes the zero of its type.
        Value::Null => matches!(expected, Expected::Field(_)),
        Value::Bool(_) => scalar == Some(FieldType::Bool),
        Value::Number(number) => scalar.is_some_and(|ty| number_fits(ty, number)),
        Value::String(text) => scalar.is_some_and(|ty| takes_text(ty) && text_fault(ty, text).is_none()),
        Value::Array(items) if scalar == Some(FieldType::StringList) => items.iter().all(Value::is_string),
        Value::Array(items) => match expected.list() {
            Some(field) => items.iter().all(|item| fits(item, Expected::Element(field), below)),
            None => false,
        },
        Value::Object(members) => match (expected.message(), expected.map()) {
            (Some(message), _) => members.iter().all(|(name, value)| match message.field(name) {
                Some(field) => fits(value, Expected::Field(field), below),
                None => {
                    let is_root = matches!(expected, Expected::Root(_));
                    is_root && matches!(name.as_str(), "kind" | "apiVersion") && is_shallow(value, below)
                }
            }),
            (None, Some(field)) => members
                .values()
                .all(|value| fits(value, Expected::Element(field), below)),
            (None, None) => false,
        },
    }
}

fn is_shallow(value: &Value, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else {
        return false;
    };
    match value {
        Value::Array(items) => items.iter().all(|item| is_shallow(item, below)),
        Value::Object(members) => members.values().all(|value| is_shallow(value, below)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::read;
    use super::*;
    use crate::schema::find;

    fn pod() -> Message {
        find("", "v1", "Pod").unwrap()
    }

    /// The guarantee of [`conforms`].
    fn keeps_its_promise(object: &Value, message: Message) -> bool {
        let is_untouched = match read(object.to_string().as_bytes(), message) {
            Ok(read) => read.object == *object && read.faults.is_empty(),
            Err(_) => false,
        };
        !conforms(object, message) || is_untouched
    }

    fn usual() -> Value {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": {"a": "b"}, "creationTimestamp": null,
                "managedFields": [{"fieldsV1": {"f:a": {"f:b": {}}}}]},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1", "memory": 5}},
                "ports": [{"containerPort": 80}], "livenessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 3}}],
                "hostNetwork": true}})
    }

    #[test]
    fn the_usual_object_conforms() {
        assert!(conforms(&usual(), pod()));
        assert!(keeps_its_promise(&usual(), pod()));
    }

    #[test]
    fn whatever_is_changed_or_refused_does_not() {
        for (path, odd) in [
            ("/metadata/labels/a", json!(null)),
            ("/metadata/labels/a", json!(1)),
            ("/metadata/creationTimestamp", json!("yesterday")),
            ("/spec/containers/0", json!(null)),
            ("/spec/containers/0/unknown", json!("x")),
            ("/spec/containers/0/ports/0/containerPort", json!(1_u64 << 40)),
            ("/spec/containers/0/ports/0/containerPort", json!("80")),
            ("/spec/containers/0/resources/limits/cpu", json!("many")),
            ("/spec/hostNetwork", json!("yes")),
            ("/spec", json!([])),
            ("/unknown", json!({})),
        ] {
            let mut object = usual();
            let (parent, name) = path.rsplit_once('/').unwrap();
            let parent = object.pointer_mut(parent).unwrap();
            match parent {
                Value::Array(items) => items[0] = odd,
                parent => parent[name] = odd,
            }
            assert!(!conforms(&object, pod()), "{path}");
        }
        assert!(!conforms(&json!(null), pod()) && !conforms(&json!("x"), pod()));
    }

    #[test]
    fn deep_free_values_are_left_to_the_parser() {
        let mut deep = json!(1);
        for _ in 0..100 {
            deep = json!([deep]);
        }
        let mut object = usual();
        object["metadata"]["managedFields"][0]["fieldsV1"] = deep;
        assert!(!conforms(&object, pod()));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-3_i64..70_000).prop_map(Value::from),
            // Short numbers: the parser may differ in the last bit of a long one.
            any::<i32>().prop_map(|eighths| Value::from(f64::from(eighths) / 8.0)),
            proptest::sample::select(vec![
                "",
                "a",
                "1",
                "5Gi",
                "YQ==",
                "2026-01-01T00:00:00Z",
                "2026-01-01T00:00:00.000000Z"
            ])
            .prop_map(Value::from),
        ];
        let names = vec![
            "apiVersion",
            "kind",
            "metadata",
            "spec",
            "name",
            "labels",
            "creationTimestamp",
            "containers",
            "limits",
            "resources",
            "ports",
            "containerPort",
            "env",
            "value",
            "args",
            "holderIdentity",
            "renewTime",
            "data",
            "binaryData",
            "annotations",
            "fieldsV1",
            "managedFields",
            "ownerReferences",
            "uid",
            "other",
        ];
        leaf.prop_recursive(6, 60, 6, move |inner| {
            let members = proptest::collection::btree_map(proptest::sample::select(names.clone()), inner.clone(), 0..6);
            prop_oneof![
                proptest::collection::vec(inner, 0..4).prop_map(Value::from),
                members.prop_map(|members| {
                    members
                        .into_iter()
                        .map(|(name, value)| (name.to_owned(), value))
                        .collect()
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_conforms_is_read_as_it_is(object in value()) {
            for (group, kind) in [("", "Pod"), ("", "ConfigMap"), ("coordination.k8s.io", "Lease")] {
                prop_assert!(keeps_its_promise(&object, find(group, "v1", kind).unwrap()));
            }
        }
    }
}
