//! Schemas as operators write them, and the objects they produce.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn spec(schema: &Value) -> Structural {
    Structural::of(&json!({"type": "object", "properties": {"spec": schema}}))
}

#[test]
fn unknown_fields_go_and_are_named() {
    let schema = Structural::of(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "known": {"type": "string"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"b": {"type": "string"}}}},
            "any": {"type": "object", "additionalProperties": true},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"strict": {"type": "object", "properties": {"c": {"type": "string"}}}}},
            "pod": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}}}}}));
    let mut object = json!({"apiVersion": "example.com/v1", "kind": "W", "metadata": {"name": "w", "odd": 1}, "top": 1,
        "spec": {"known": "x", "odd": 1, "list": [{"a": 1, "odd": 2}, {"odd": 3}], "map": {"k": {"b": "1", "odd": 1}},
            "any": {"x": 1, "y": {"z": 2}}, "free": {"odd": {"deep": 1}, "strict": {"c": "1", "odd": 1}},
            "pod": {"apiVersion": "v1", "metadata": {"name": "p"}, "spec": {"odd": 1}, "status": {}}}});
    let gone = [
        "spec.any.y.z",
        "spec.free.strict.odd",
        "spec.list[0].odd",
        "spec.list[1].odd",
        "spec.map.k.odd",
        "spec.odd",
        "spec.pod.spec.odd",
        "spec.pod.status",
        "top",
    ];
    assert_eq!(schema.shape(&mut object), gone);
    assert_eq!(
        object,
        json!({"apiVersion": "example.com/v1", "kind": "W", "metadata": {"name": "w", "odd": 1},
        "spec": {"known": "x", "list": [{"a": 1}, {}], "map": {"k": {"b": "1"}},
            "any": {"x": 1, "y": {}}, "free": {"odd": {"deep": 1}, "strict": {"c": "1"}},
            "pod": {"apiVersion": "v1", "metadata": {"name": "p"}, "spec": {}}}})
    );
}

#[test]
fn items_of_a_list_that_preserves_unknown_fields_keep_them() {
    let schema = spec(
        &json!({"type": "array", "x-kubernetes-preserve-unknown-fields": true, "items": {"type": "object", "properties": {
            "strict": {"type": "object", "properties": {"c": {"type": "string"}}}}}}),
    );
    let mut object = json!({"spec": [{"a": 1, "b": {"c": 2}, "strict": {"c": "1", "odd": 1}}]});
    assert_eq!(schema.shape(&mut object), ["spec[0].strict.odd"]);
    assert_eq!(object, json!({"spec": [{"a": 1, "b": {"c": 2}, "strict": {"c": "1"}}]}));
    let lists = spec(
        &json!({"x-kubernetes-preserve-unknown-fields": true, "items": {"items": {"type": "object"}}, "type": "array"}),
    );
    let mut object = json!({"spec": [[{"a": 1}]]});
    assert!(lists.shape(&mut object).is_empty());
    assert_eq!(object, json!({"spec": [[{"a": 1}]]}));
}

/// Objects come with integers where Go prints them.
#[test]
fn numbers_of_a_schema_are_those_of_objects() {
    let schema = spec(&json!({"type": "number", "enum": [0.5, 1.0], "default": 1.0, "maximum": 2.0}));
    let mut object = json!({});
    schema.shape(&mut object);
    assert_eq!(object, json!({"spec": 1}));
    for (given, faults) in [(json!(1), 0), (json!(0.5), 0), (json!(2), 1)] {
        assert_eq!(schema.validate(&json!({"spec": given}), None).len(), faults, "{given}");
    }
}

#[test]
fn defaults_stand_for_what_is_left_out_and_for_nulls() {
    let schema = spec(&json!({"type": "object", "default": {}, "properties": {
        "a": {"type": "integer", "default": 1},
        "b": {"type": "string", "nullable": true, "default": "x"},
        "c": {"type": "string"},
        "inner": {"type": "object", "default": {"p": 1}, "properties": {"p": {"type": "integer"}, "q": {"type": "integer", "default": 2}}},
        "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "string", "default": "y"}}}}}}));
    for (given, want) in [
        (json!({}), json!({"a": 1, "b": "x", "inner": {"p": 1, "q": 2}})),
        (
            json!({"a": null, "b": null, "c": null, "inner": {"q": 7}, "list": [{}, {"n": "z"}]}),
            json!({"a": 1, "b": null, "inner": {"q": 7}, "list": [{"n": "y"}, {"n": "z"}]}),
        ),
    ] {
        let mut object = json!({ "spec": given });
        assert!(schema.shape(&mut object).is_empty());
        assert_eq!(object["spec"], want);
    }
    let mut object = json!({});
    schema.shape(&mut object);
    assert_eq!(object["spec"]["a"], 1);
}

/// Schema, value, and the faults; empty for an allowed value.
const VERDICTS: &str = r#"
{"type": "integer"} | "1" | spec: Invalid value: "string": spec in body must be of type integer: "string"
{"type": "integer"} | 1.5 | spec: Invalid value: "number": spec in body must be of type integer: "number" | <nil>: Invalid value: "": Checked value must be of type integer (default format) in spec
{"type": "integer", "format": "int32"} | 2147483648 | <nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec
{"type": "string", "format": "date-time"} | 5 | spec: Invalid value: "int64": spec in body must be of type date-time: "int64"
{"type": "string", "format": "ipv4"} | "x" | spec: Invalid value: "x": spec in body must be of type ipv4: "x"
{"anyOf": [{"type": "integer"}, {"type": "string", "minLength": 2}]} | "a" | <nil>: Invalid value: "": "spec" must validate at least one schema (anyOf) | spec: Invalid value: "a": spec in body should be at least 2 chars long
{"oneOf": [{"required": ["a"]}, {"required": ["b"]}]} | {"a": 1, "b": 1} | <nil>: Invalid value: "": "spec" must validate one and only one schema (oneOf). Found 2 valid alternatives
{"allOf": [{"minLength": 2}, {"pattern": "^b"}]} | "a" | spec: Invalid value: "a": spec in body should be at least 2 chars long | spec: Invalid value: "a": spec in body should match '^b' | <nil>: Invalid value: "": "spec" must validate all the schemas (allOf). None validated
{"not": {"required": ["a"]}} | {"a": 1} | <nil>: Invalid value: "": "spec" must not validate the schema (not)
{"type": "string"} | null | spec: Invalid value: "null": spec in body must be of type string: "null"
{"x-kubernetes-int-or-string": true} | true | spec: Invalid value: "boolean": spec in body must be of type integer,string: "boolean"
{"type": "object", "required": ["a"]} | {} | spec.a: Required value
{"type": "string", "enum": ["A", "B"]} | "C" | spec: Unsupported value: "C": supported values: "A", "B"
{"type": "string", "maxLength": 2} | "äöü" | spec: Too long: may not be more than 2 bytes
{"type": "string", "minLength": 2} | "a" | spec: Invalid value: "a": spec in body should be at least 2 chars long
{"type": "string", "pattern": "^[a-z]+$"} | "A" | spec: Invalid value: "A": spec in body should match '^[a-z]+$'
{"type": "integer", "minimum": 1} | 0 | spec: Invalid value: 0: spec in body should be greater than or equal to 1
{"type": "integer", "minimum": 1, "exclusiveMinimum": true} | 1 | spec: Invalid value: 1: spec in body should be greater than 1
{"type": "integer", "maximum": 1} | 2 | spec: Invalid value: 2: spec in body should be less than or equal to 1
{"type": "number", "maximum": 1.5, "exclusiveMaximum": true} | 1.5 | spec: Invalid value: 1.5: spec in body should be less than 1.5
{"type": "integer", "multipleOf": 3} | 4 | spec: Invalid value: 4: spec in body should be a multiple of 3
{"type": "number", "multipleOf": 0.1} | 0.25 | spec: Invalid value: 0.25: spec in body should be a multiple of 0.1
{"type": "integer", "multipleOf": 2} | 9007199254740993 | spec: Invalid value: 9007199254740993: spec in body should be a multiple of 2
{"type": "integer", "maximum": 9007199254740992} | 9007199254740993 | spec: Invalid value: 9007199254740993: spec in body should be less than or equal to 9007199254740992
{"type": "integer", "minimum": -9007199254740992} | -9007199254740993 | spec: Invalid value: -9007199254740993: spec in body should be greater than or equal to -9007199254740992
{"type": "array", "minItems": 1} | [] | spec: Invalid value: 0: spec in body should have at least 1 items
{"type": "array", "maxItems": 1} | [1, 2] | spec: Too many: 2: must have at most 1 item
{"type": "array", "items": {"type": "string"}} | ["a", 1] | spec[1]: Invalid value: "integer": spec[1] in body must be of type string: "integer"
{"type": "array", "x-kubernetes-list-type": "set"} | ["a", "a"] | spec[1]: Duplicate value: "a"
{"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]} | [{"k": 1}, {"k": 1}] | spec[1]: Duplicate value: {"k":1}
{"type": "object", "minProperties": 1} | {} | spec: Invalid value: 0: spec in body should have at least 1 properties
{"type": "object", "maxProperties": 1} | {"a": 1, "b": 2} | spec: Too many: 2: must have at most 1 item
{"type": "object", "additionalProperties": {"type": "boolean"}} | {"a.b": 1} | spec.a.b: Invalid value: "integer": spec.a.b in body must be of type boolean: "integer"
{"type": "object", "additionalProperties": {"type": "array", "x-kubernetes-list-type": "set"}} | {"a": [1, 1]} | spec[a][1]: Duplicate value: 1
{"type": "integer", "maximum": 1, "minimum": 1} | 1 |
{"type": "integer"} | 1.0 |
{"type": "number"} | 1 |
{"type": "number", "multipleOf": 0.1} | 0.3 |
{"type": "number", "multipleOf": 0.01} | 0.29 |
{"type": "number", "multipleOf": 0.5} | 3 |
{"type": "number", "multipleOf": 1.5} | 4.5 |
{"type": "integer", "multipleOf": 3} | 9007199254740993 |
{"type": "number", "minimum": 1.5, "maximum": 2.5} | 2 |
{"type": "integer", "maximum": 9223372036854775807, "minimum": -9223372036854775808} | 9223372036854775807 |
{"type": "integer", "minimum": 9007199254740992, "exclusiveMinimum": true} | 9007199254740993 |
{"type": "string", "nullable": true} | null |
{"x-kubernetes-int-or-string": true} | "80%" |
{"type": "string", "minLength": 2, "maxLength": 2, "pattern": "ö"} | "aö" |
{"type": "string", "format": "date-time"} | [] |
{"anyOf": [{"type": "integer"}, {"type": "string"}]} | "a" |
{} | {"a": [1]} |
"#;

#[test]
fn values_are_refused_in_the_servers_words() {
    for line in VERDICTS.trim().lines() {
        let mut parts = line.split(" | ").map(str::trim);
        let mut json = || serde_json::from_str::<Value>(parts.next().unwrap().trim_end_matches(" |")).unwrap();
        let (schema, object) = (spec(&json()), json!({ "spec": json() }));
        let said: Vec<String> = schema.validate(&object, None).iter().map(ToString::to_string).collect();
        let want: Vec<&str> = parts.collect();
        assert_eq!(said, want, "{line}");
        assert!(
            schema.validate(&object, Some(&object)).is_empty(),
            "it was so before: {line}"
        );
    }
}

#[test]
fn an_update_answers_only_for_what_it_changes() {
    let schema = spec(&json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}));
    let old = json!({"spec": {"a": "wrong", "b": 1}});
    let new = json!({"spec": {"a": "wrong", "b": 2}});
    assert!(schema.validate(&new, Some(&old)).is_empty());
    let worse = json!({"spec": {"a": "other", "b": 1}});
    assert_eq!(schema.validate(&worse, Some(&old)).len(), 1);
}

#[test]
fn objects_within_objects_have_a_type_and_valid_metadata() {
    let pod =
        json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
    let schema = spec(&json!({"type": "array", "items": {"type": "object", "additionalProperties": pod}}));
    let valid =
        json!({"apiVersion": "apps/v1", "kind": "MyPod", "metadata": {"labels": {"a": "b"}, "namespace": null}});
    for (change, faults) in [
        (json!({}), [].as_slice()),
        (json!({"metadata": null}), &[]),
        (json!({"apiVersion": null}), &["apiVersion: Required value"]),
        (json!({"kind": ""}), &["kind: Invalid value: \"\": must not be empty"]),
        (json!({"kind": 5}), &["kind: Invalid value: 5: must be a string"]),
        (
            json!({"apiVersion": "a/b/c"}),
            &["apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c"],
        ),
        (
            json!({"metadata": {"name": 5}}),
            &[
                "metadata: Invalid value: {\"name\":5}: json: cannot unmarshal number into Go struct field ObjectMeta.name \
              of type string",
            ],
        ),
        (
            json!({"metadata": {"name": "a/b"}}),
            &["metadata.name: Invalid value: \"a/b\": may not contain '/'"],
        ),
    ] {
        let mut pod = valid.clone();
        for (name, value) in change.as_object().unwrap() {
            match value {
                Value::Null => drop(pod.as_object_mut().unwrap().remove(name)),
                value => pod[name] = value.clone(),
            }
        }
        let object = json!({ "spec": [{ "pod": pod }] });
        let said: Vec<String> = schema
            .validate_embedded(&object)
            .iter()
            .map(ToString::to_string)
            .collect();
        let want: Vec<String> = faults.iter().map(|fault| format!("spec[0][pod].{fault}")).collect();
        assert_eq!(said, want, "{change}");
    }
    let digit = json!({"spec": [{"pod": {"apiVersion": "v1", "kind": "7Pod"}}]});
    let said = schema.validate_embedded(&digit)[0].to_string();
    assert!(
        said.contains("may have mixed case, but should otherwise match: a DNS-1035 label"),
        "{said}"
    );
}

/// Objects within objects, each with a `metadata` whose labels have a default.
fn pods() -> Structural {
    let labels = json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {
        "labels": {"type": "object", "additionalProperties": {"type": "string"}, "default": {}}}}}});
    let mut pod = json!({"type": "object", "x-kubernetes-embedded-resource": true,
        "x-kubernetes-preserve-unknown-fields": true});
    pod["properties"] = json!({"inner": labels});
    pod["properties"]["inner"]["x-kubernetes-embedded-resource"] = true.into();
    spec(&json!({"type": "array", "items": {"type": "object", "additionalProperties": pod}}))
}

#[test]
fn metadata_of_objects_within_objects_is_read_by_its_type() {
    let mut object = json!({"spec": [{
        "a": {"kind": "P", "metadata": {"name": "p", "odd": 1, "namespace": null, "labels": {}, "generation": 0,
            "creationTimestamp": null, "ownerReferences": [{"uid": "u", "odd": 2}]}},
        "b": {"metadata": null, "free": {"metadata": {"odd": 1}}, "inner": {"metadata": {"odd": 1}}},
    }]});
    let faults = [
        "unknown field \"spec[0][a].metadata.odd\"",
        "unknown field \"spec[0][a].metadata.ownerReferences[0].odd\"",
        "unknown field \"spec[0][b].inner.metadata.odd\"",
    ];
    assert_eq!(pods().read(&mut object).unwrap(), faults);
    let owner = json!({"apiVersion": "", "kind": "", "name": "", "uid": "u"});
    let read = json!({"spec": [{
        "a": {"kind": "P", "metadata": {"name": "p", "ownerReferences": [owner]}},
        "b": {"metadata": {}, "free": {"metadata": {"odd": 1}}, "inner": {"metadata": {"labels": {}}}},
    }]});
    assert_eq!(object, read);
}

#[test]
fn type_and_metadata_of_another_type_are_refused_and_taken_out_of_stored_objects() {
    for (pod, fault, repaired) in [
        (
            json!({"kind": 5}),
            "kind: Invalid value: 5: must be a string",
            json!({}),
        ),
        (
            json!({"metadata": {"name": 5, "labels": {"a": "b"}, "odd": 1}}),
            "metadata: Invalid value: {\"labels\":{\"a\":\"b\"},\"name\":5,\"odd\":1}: json: cannot unmarshal number into \
             Go struct field ObjectMeta.name of type string",
            json!({"metadata": {"labels": {"a": "b"}}}),
        ),
        (
            json!({"metadata": "x"}),
            "metadata: Invalid value: \"x\": json: cannot unmarshal string into Go value of type v1.ObjectMeta",
            json!({"metadata": "x"}),
        ),
    ] {
        let object = json!({"spec": [{"a": pod}]});
        let refused = pods().read(&mut object.clone()).unwrap_err();
        assert_eq!(refused.to_string(), format!("spec[0][a].{fault}"));
        let mut stored = object;
        assert!(pods().shape(&mut stored).is_empty());
        assert_eq!(stored["spec"][0]["a"], repaired);
    }
}

/// Lists with items of type integer, or with a member `v` of that type.
fn lists(list_type: &str) -> Structural {
    spec(&match list_type {
        "" => json!({"type": "array", "items": {"type": "integer"}}),
        "map" => json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}}),
        list_type => json!({"type": "array", "x-kubernetes-list-type": list_type, "items": {"type": "integer"}}),
    })
}

#[test]
fn an_update_of_a_list_answers_only_for_the_items_it_changes() {
    for (list_type, old, new, faults) in [
        ("", json!(["wrong", 1]), json!(["wrong", 2]), 1),
        ("", json!(["wrong", 1]), json!([1, "wrong"]), 1),
        (
            "map",
            json!([{"k": "a", "v": "wrong"}]),
            json!([{"k": "b"}, {"k": "a", "v": "wrong"}]),
            0,
        ),
        (
            "map",
            json!([{"k": "a", "v": "wrong"}]),
            json!([{"k": "b", "v": "wrong"}]),
            1,
        ),
        (
            "map",
            json!([{"k": "a", "v": "wrong"}]),
            json!([{"k": "a", "v": "other"}]),
            1,
        ),
        ("set", json!(["wrong", 1]), json!(["wrong", 2]), 1),
        ("atomic", json!(["wrong", 1]), json!(["wrong", 2]), 1),
    ] {
        let (old, new) = (json!({ "spec": old }), json!({ "spec": new }));
        let found = lists(list_type).validate(&new, Some(&old));
        assert_eq!(found.len(), faults, "{list_type}: {old} -> {new}");
    }
}

#[test]
fn an_object_that_repeats_an_item_may_go_on_to_do_so() {
    let set = lists("set");
    let of = |items: &[u8]| json!({ "spec": items });
    assert!(set.validate(&of(&[1, 1, 2, 2]), Some(&of(&[1, 1]))).is_empty());
    assert_eq!(set.validate(&of(&[1, 2, 2]), Some(&of(&[1, 2]))).len(), 1);
}

#[test]
fn an_update_is_judged_whole_by_composed_schemas() {
    let schema = spec(
        &json!({"type": "object", "properties": {"kind": {"type": "string"}, "size": {"type": "integer"}},
        "oneOf": [{"properties": {"kind": {"enum": ["A"]}}}, {"properties": {"kind": {"enum": ["B"]}}}],
        "not": {"properties": {"kind": {"enum": ["Legacy"]}}}}),
    );
    let of = |kind: &str, size: u8| json!({"spec": {"kind": kind, "size": size}});
    assert!(schema.validate(&of("A", 2), Some(&of("A", 1))).is_empty());
    assert_eq!(schema.validate(&of("C", 2), Some(&of("A", 1))).len(), 2);
    let any = spec(&json!({"type": "object", "anyOf": [{"properties": {"kind": {"enum": ["A"]}}}]}));
    assert!(!any.validate(&of("C", 2), Some(&of("C", 1))).is_empty());
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z]{0,3}".prop_map(Value::from),
    ];
    let names = prop_oneof![
        Just("type"),
        Just("properties"),
        Just("items"),
        Just("additionalProperties"),
        Just("nullable"),
        Just("required"),
        Just("enum"),
        Just("pattern"),
        Just("spec"),
        Just("metadata"),
        Just("name"),
        Just("kind"),
        Just("x-kubernetes-preserve-unknown-fields"),
        Just("x-kubernetes-embedded-resource"),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(names.clone(), inner, 0..5).prop_map(|members| {
                Value::Object(
                    members
                        .into_iter()
                        .map(|(name, value)| (name.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}

proptest! {
    #[test]
    fn any_schema_and_any_object_are_survived_and_shaping_is_done_once(schema in values(), object in values()) {
        let schema = Structural::of(&schema);
        let mut shaped = object.clone();
        schema.shape(&mut shaped);
        let _ = (schema.validate(&shaped, Some(&object)), schema.validate_embedded(&shaped));
        let _ = schema.read(&mut object.clone());
        let mut again = shaped.clone();
        prop_assert!(schema.shape(&mut again).is_empty() && again == shaped);
    }
}
