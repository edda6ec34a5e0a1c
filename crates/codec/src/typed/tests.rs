//! Results of decoding: unknown, duplicate and mistyped fields, with the texts of kube-apiserver.

use serde_json::json;

use super::*;
use crate::schema;

fn config_map() -> Message {
    schema::find("", "v1", "ConfigMap").unwrap()
}

fn mistake(text: &str, kind: &str) -> String {
    let group = if kind == "Lease" { "coordination.k8s.io" } else { "" };
    let message = schema::find(group, "v1", kind).unwrap();
    read(text.as_bytes(), message).unwrap_err().to_string()
}

/// Conformance: 2.40
#[test]
fn unknown_and_duplicate_fields_are_named_once_and_dropped() {
    let text = br#"{"kind":"ConfigMap","metadata":{"name":"a","labels":{"a":"1","a":"2"},"x":1},"data":{"x":"1","x":"2"},"more":{"a":1},"more":2}"#;
    let read = read(text, config_map()).unwrap();
    assert_eq!(
        read.faults,
        [
            r#"duplicate field "metadata.labels.a""#,
            r#"unknown field "metadata.x""#,
            r#"duplicate field "data.x""#,
            r#"unknown field "more""#,
        ]
    );
    assert_eq!(
        read.object,
        json!({"kind": "ConfigMap", "metadata": {"name": "a", "labels": {"a": "2"}}, "data": {"x": "2"}})
    );
}

#[test]
fn metadata_alone_is_read_as_that_of_a_whole_object() {
    let read = read_metadata(&json!({"name": "a", "kind": "x", "labels": {"a": null}, "finalizers": null})).unwrap();
    assert_eq!(read.faults, [r#"unknown field "metadata.kind""#]);
    assert_eq!(
        read.object,
        json!({"name": "a", "labels": {"a": ""}, "finalizers": null})
    );
    let refused = read_metadata(&json!({"ownerReferences": [{"uid": 1}]})).unwrap_err();
    let want = "json: cannot unmarshal number into Go struct field OwnerReference.ownerReferences.uid of type string";
    assert_eq!(refused.to_string(), want);
}

#[test]
fn stored_metadata_keeps_its_valid_fields() {
    let repaired = |metadata: Value| repaired_metadata(&metadata);
    let valid = json!({"name": "a", "labels": {"a": "b"}, "finalizers": null});
    assert_eq!(repaired(valid.clone()), None);
    let mut odd = valid.clone();
    odd["odd"] = json!(1);
    assert_eq!(repaired(odd.clone()), Some(valid.clone()));
    odd["annotations"] = json!({"a": "b", "c": 1});
    odd["ownerReferences"] = json!("x");
    assert_eq!(repaired(odd), Some(valid));
    assert_eq!(repaired(json!(null)), None);
    assert_eq!(repaired(json!(["a"])), None);
}

#[test]
fn lists_of_texts_in_a_map_hold_texts() {
    let review = schema::find("authorization.k8s.io", "v1", "SubjectAccessReview").unwrap();
    let of = |extra: Value| json!({ "spec": { "extra": { "a": extra } } });
    let refused = read(of(json!(["x", 1])).to_string().as_bytes(), review).unwrap_err();
    let want = "json: cannot unmarshal number into Go struct field SubjectAccessReviewSpec.spec.extra of type string";
    assert_eq!(refused.to_string(), want);
    let read = read(of(json!(["x", null])).to_string().as_bytes(), review).unwrap();
    assert_eq!(read.object, of(json!(["x", ""])));
    assert!(conforms(&of(json!(["x"])), review));
    assert!(!conforms(&of(json!(["x", 1])), review) && !conforms(&of(json!(["x", null])), review));
}

#[test]
fn paths_into_lists_have_indices() {
    let pod = schema::find("", "v1", "Pod").unwrap();
    let read = read(
        br#"{"spec":{"containers":[{"name":"a"},{"name":"b","imaeg":"x"}]}}"#,
        pod,
    )
    .unwrap();
    assert_eq!(read.faults, [r#"unknown field "spec.containers[1].imaeg""#]);
}

#[test]
fn values_of_another_type_are_refused_in_gos_words() {
    let cases = [
        (
            "ConfigMap",
            r#"{"data":{"a":1}}"#,
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
        ),
        (
            "ConfigMap",
            r#"{"data":["a"]}"#,
            "json: cannot unmarshal array into Go struct field ConfigMap.data of type map[string]string",
        ),
        (
            "ConfigMap",
            r#"{"metadata":{"labels":{"a":1}}}"#,
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            "ConfigMap",
            r#"{"metadata":"x"}"#,
            "json: cannot unmarshal string into Go struct field ConfigMap.metadata of type v1.ObjectMeta",
        ),
        (
            "ConfigMap",
            r#"{"binaryData":{"a":"%%%"}}"#,
            "illegal base64 data at input byte 0",
        ),
        (
            "Lease",
            r#"{"spec":{"leaseDurationSeconds":"15"}}"#,
            "json: cannot unmarshal string into Go struct field LeaseSpec.spec.leaseDurationSeconds of type int32",
        ),
        (
            "Lease",
            r#"{"spec":{"leaseDurationSeconds":1.5}}"#,
            "json: cannot unmarshal number 1.5 into Go struct field LeaseSpec.spec.leaseDurationSeconds of type int32",
        ),
        (
            "Lease",
            r#"{"spec":{"leaseDurationSeconds":3000000000}}"#,
            "json: cannot unmarshal number 3000000000 into Go struct field LeaseSpec.spec.leaseDurationSeconds of type int32",
        ),
        (
            "Node",
            r#"{"spec":{"unschedulable":"yes"}}"#,
            "json: cannot unmarshal string into Go struct field NodeSpec.spec.unschedulable of type bool",
        ),
        (
            "Node",
            r#"{"status":{"capacity":{"cpu":"two"}}}"#,
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
    ];
    for (kind, text, want) in cases {
        assert_eq!(mistake(text, kind), want);
    }
}

#[test]
fn the_first_mistake_counts() {
    let text = r#"{"metadata":{"labels":{"a":1}},"data":[]}"#;
    assert!(mistake(text, "ConfigMap").contains("metadata.labels"));
}

#[test]
fn nulls_are_zero_values_in_maps_and_lists_only() {
    let read = read(
        br#"{"data":{"a":null},"binaryData":null,"metadata":{"finalizers":[null]}}"#,
        config_map(),
    )
    .unwrap();
    assert_eq!(
        read.object,
        json!({"data": {"a": ""}, "binaryData": null, "metadata": {"finalizers": [""]}})
    );
    assert!(read.faults.is_empty());
}

#[test]
fn what_is_free_stays_as_it_is() {
    let fields = json!({"f:metadata": {"f:labels": {".": {}}}});
    let text = json!({"metadata": {"managedFields": [{"manager": "m", "fieldsV1": fields}]}}).to_string();
    let read = read(text.as_bytes(), config_map()).unwrap();
    assert_eq!(read.object["metadata"]["managedFields"][0]["fieldsV1"], fields);
    assert!(read.faults.is_empty());
}

#[test]
fn quantities_and_ports_take_numbers_and_text() {
    let service = schema::find("", "v1", "Service").unwrap();
    let text = br#"{"spec":{"ports":[{"port":80,"targetPort":8080},{"port":81,"targetPort":"dns"}]}}"#;
    assert!(read(text, service).unwrap().faults.is_empty());
    let node = schema::find("", "v1", "Node").unwrap();
    for cpu in [
        json!(2),
        json!(0.5),
        json!("2000m"),
        json!("1e3"),
        json!("4Ki"),
        json!("-1.5E"),
    ] {
        let text = json!({"status": {"capacity": {"cpu": cpu}}}).to_string();
        assert!(read(text.as_bytes(), node).is_ok(), "{text}");
    }
}

#[test]
fn faults_are_bounded() {
    let unknown: Map<String, Value> = (0..300).map(|i| (format!("u{i}"), json!(1))).collect();
    let read = read(Value::Object(unknown).to_string().as_bytes(), config_map()).unwrap();
    assert_eq!(read.faults.len(), ERRORS_MAX);
    assert_eq!(read.object, json!({}));
}

#[test]
fn field_that_occurs_often_is_looked_at_a_bounded_number_of_times() {
    let faults = |times: usize| {
        let text = format!(r#"{{{} "b":0}}"#, r#""a":0,"#.repeat(times));
        read(text.as_bytes(), config_map()).unwrap().faults
    };
    assert_eq!(faults(2), [r#"unknown field "a""#, r#"unknown field "b""#]);
    assert_eq!(faults(SEEN_MAX), [r#"unknown field "a""#]);
}

proptest::proptest! {
    #[test]
    fn any_text_is_survived(text in proptest::prelude::any::<Vec<u8>>()) {
        let _ = read(&text, config_map());
    }
}

/// A mistake without the name of the Go type, where that is a text or may be one.
fn without_named_text(mistake: &str) -> String {
    match mistake.rsplit_once(" of type ") {
        Some((head, ty)) if ty == "string" || NAMED_TEXTS.contains(&ty) => head.to_owned(),
        _ => mistake.to_owned(),
    }
}

const NAMED_TEXTS: [&str; 1] = ["v1.AddressType"];

/// Every case was answered by the real decoder (`interop/cmd/patchcases`).
///
/// Conformance: 2.40
#[test]
fn random_bodies_are_read_as_upstream() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../../testdata/decode.json")).unwrap();
    assert!(cases.len() > 200);
    let mut wrong = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let text = |name: &str| case[name].as_str().unwrap_or_default();
        let message = schema::find(text("group"), text("version"), text("kind")).unwrap();
        let found = read(text("body").as_bytes(), message);
        let place = format!("case {number}: {}", text("body"));
        match (found, case.get("error")) {
            (Err(error), Some(wanted)) => {
                // Texts with a name of their own are texts here; and of two mistakes Go may name the second.
                let wanted = without_named_text(wanted.as_str().unwrap());
                let is_of_two = wanted.starts_with("quantities must match");
                if !is_of_two && without_named_text(&error.to_string()) != wanted {
                    wrong.push(format!("{place}\n  {error}\n  {wanted}"));
                }
            }
            (Ok(mut found), None) => {
                let faults: Vec<String> = serde_json::from_value(case["strict"].clone()).unwrap_or_default();
                if found.faults != faults {
                    wrong.push(format!("{place}\n  {:?}\n  {faults:?}", found.faults));
                }
                // An empty list that was stored is absent.
                let mut decoded = case["decoded"].clone();
                crate::canonical::canonicalize(&mut decoded, message);
                crate::canonical::canonicalize(&mut found.object, message);
                if found.object != decoded {
                    wrong.push(format!("{place}\n  {}\n  {decoded}", found.object));
                }
            }
            (found, wanted) => wrong.push(format!("{place}\n  {found:?}\n  {wanted:?}")),
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}
