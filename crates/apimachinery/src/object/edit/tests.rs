//! Splicing compared with the same change of a `serde_json::Value`.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::json_text::{member, single_line};

const RV: ResourceVersion = ResourceVersion(77);

fn spliced(text: &str) -> String {
    let at = metadata_at(text.as_bytes()).unwrap();
    let bytes = set_resource_version(text.as_bytes(), at, RV).unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn only_the_version_changes() {
    for (text, want) in [
        (
            r#"{"metadata":{"resourceVersion":"1","a":1}}"#,
            r#"{"metadata":{"resourceVersion":"77","a":1}}"#,
        ),
        (
            r#"{ "metadata" : { "resourceVersion" : "1" } }"#,
            r#"{ "metadata" : { "resourceVersion" : "77" } }"#,
        ),
        (
            r#"{"metadata":{"a":1}}"#,
            r#"{"metadata":{"resourceVersion":"77","a":1}}"#,
        ),
        (r#"{"metadata":{}}"#, r#"{"metadata":{"resourceVersion":"77"}}"#),
        (r#"{"metadata":{ }}"#, r#"{"metadata":{"resourceVersion":"77" }}"#),
        // Names and values that only look like the ones wanted.
        (
            r#"{"x":"\"metadata\":{","spec":{"metadata":{"resourceVersion":"1"}},"metadata":{"labels":{"resourceVersion":"2"}}}"#,
            r#"{"x":"\"metadata\":{","spec":{"metadata":{"resourceVersion":"1"}},"metadata":{"resourceVersion":"77","labels":{"resourceVersion":"2"}}}"#,
        ),
        // Escapes in the names.
        (
            r#"{"met\u0061data":{"resource\u0056ersion":"1"}}"#,
            r#"{"met\u0061data":{"resource\u0056ersion":"77"}}"#,
        ),
        // The last of equal members counts.
        (
            r#"{"metadata":{"resourceVersion":"1"},"metadata":{"resourceVersion":"2","resourceVersion":"3"}}"#,
            r#"{"metadata":{"resourceVersion":"1"},"metadata":{"resourceVersion":"2","resourceVersion":"77"}}"#,
        ),
    ] {
        assert_eq!(spliced(text), want);
    }
}

#[test]
fn what_has_no_metadata_is_refused() {
    for text in ["", "[]", "1", "null", "\"{}\"", "{}", "{\"metadata\":null,\"b\":{}}"] {
        assert_eq!(metadata_at(text.as_bytes()), None, "{text}");
        assert_eq!(set_resource_version(text.as_bytes(), text.len(), RV), None, "{text}");
    }
}

#[test]
fn metadata_is_cut_out_as_it_is() {
    let bytes = Bytes::from_static(br#"{"a":[{"metadata":1}],"metadata": {"z" : "}" , "b":[1]} ,"c":1}"#);
    assert_eq!(member(&bytes, "metadata").unwrap(), r#"{"z" : "}" , "b":[1]}"#);
    assert_eq!(member(&Bytes::from_static(b"{}"), "metadata"), None);
}

#[test]
fn line_breaks_go_and_strings_stay() {
    let pretty = Bytes::from_static(b"\n{\n  \"a\": \"x \\\" y\",\r\n\t\"b\": [ 1, 2 ]\n}\n");
    assert_eq!(single_line(pretty), &b"{\"a\":\"x \\\" y\",\"b\":[1,2]}"[..]);
    assert_eq!(single_line(Bytes::from_static(b" {\"a\" : 1}\n")), &b"{\"a\" : 1}"[..]);
    assert_eq!(single_line(Bytes::from_static(b" \n ")), &b""[..]);
}

/// Values with names that collide with the ones the scanner looks for.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[\\PC\"\\\\{}\n]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let name = prop_oneof![
            Just("metadata".to_owned()),
            Just("resourceVersion".to_owned()),
            "[\\PC\"\\\\]{0,4}"
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(name, inner, 0..4).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

fn any_object() -> impl Strategy<Value = Value> {
    (any_value(), any_value(), any::<bool>()).prop_map(|(metadata, other, has_metadata)| {
        let mut object = json!({ "other": other });
        if has_metadata {
            object["metadata"] = metadata;
        }
        object
    })
}

/// Expected result of the splice.
fn set_in_value(mut value: Value) -> Value {
    value["metadata"]["resourceVersion"] = json!(RV.to_string());
    value
}

proptest! {
    #[test]
    fn splice_means_what_a_value_would(object in any_object(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&object) } else { serde_json::to_string(&object) }.unwrap();
        let has_metadata = object.get("metadata").is_some_and(Value::is_object);
        prop_assert_eq!(metadata_at(text.as_bytes()).is_some(), has_metadata);
        if has_metadata {
            let spliced: Value = serde_json::from_str(&spliced(&text)).unwrap();
            prop_assert_eq!(spliced, set_in_value(object));
        }
    }

    #[test]
    fn encoding_says_where_the_metadata_are(object in any_object()) {
        let mut bytes = Vec::new();
        let at = encode(&object, &mut bytes).unwrap();
        prop_assert_eq!(at, metadata_at(&bytes));
        prop_assert_eq!(bytes, serde_json::to_vec(&object).unwrap());
    }

    #[test]
    fn compacting_changes_no_meaning(object in any_object()) {
        let pretty = serde_json::to_string_pretty(&object).unwrap();
        let line = single_line(pretty.into());
        prop_assert!(!line.contains(&b'\n'));
        prop_assert_eq!(line, serde_json::to_string(&object).unwrap());
    }

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(proptest::sample::select(b"{}[]\",:\\ metadata1\n".to_vec()), 0..40)) {
        if let Some(at) = metadata_at(&bytes) {
            let _ = set_resource_version(&bytes, at, RV);
        }
        let _ = member(&bytes.clone().into(), "metadata");
        let _ = single_line(bytes.into());
    }
}
