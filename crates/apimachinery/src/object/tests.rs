//! Parsing of objects: fields that are kept, fields that are filled in, objects that are rejected.

use std::io::Write as _;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::kind::find_kind;

fn kind(resource: &str) -> &'static ResourceKind {
    find_kind("", resource).unwrap()
}

fn parse(text: &str, resource: &str) -> Result<Object, ObjectError> {
    Object::parse(Bytes::copy_from_slice(text.as_bytes()), kind(resource))
}

/// A pod of more than 2 KiB.
fn long_pod() -> Object {
    let text = POD.replace(
        "\"Running\"",
        &format!("\"Running\",\"message\":\"{}\"", "again ".repeat(1000)),
    );
    parse(&text, "pods").unwrap()
}

#[test]
fn object_that_is_held_deflated_reads_as_before() {
    let plain = long_pod();
    let (object, mut packer) = (long_pod(), Packer::default());
    let clone = long_pod();
    let other = clone.clone();
    let (row, freed) = clone.row(&mut packer);
    assert!(
        row.len() < 2048 && packed::is_deflated(&row) && other.is_packed(),
        "all clones share the body"
    );
    let body = packed::without_head(&row);
    assert!(packed::is_packed(&body) && body.len() < row.len());
    assert_eq!(
        (freed, plain.is_long(), other.is_long()),
        (plain.bytes_len() - body.len(), true, false)
    );
    let parsed = |row: &Bytes| Object::parse_packed(row, kind("pods")).unwrap();
    // From a file of an earlier program, without a head, too.
    for packed in [&other, &parsed(&row), &parsed(&body)] {
        assert!(packed.is_packed());
        assert_eq!(
            (packed.bytes(), packed.bytes_len()),
            (plain.bytes(), plain.bytes().len())
        );
        assert_eq!((packed.size(), packed.to_value()), (plain.size(), plain.to_value()));
        assert_eq!(packed.annotation("k").as_deref(), Some("v é"));
        assert_eq!((packed, packed), (&object, &other));
        let next = |object: &Object| object.with_resource_version(ResourceVersion(13));
        assert_eq!(next(packed).bytes(), next(&plain).bytes());
        assert_ne!(packed, &next(packed));
        assert_eq!(packed.row(&mut packer), (row.clone(), 0));
    }
}

#[test]
fn renumbered_object_shares_the_deflated_body() {
    let (plain, packed) = (long_pod(), long_pod());
    let mut packer = Packer::default();
    let (row, _) = packed.row(&mut packer);
    let of = |object: &Object, version: u64| object.with_resource_version(ResourceVersion(version));
    for (version, is_shared) in [(13, true), (99, true), (12, true), (100, false), (9, false), (0, false)] {
        let (next, want) = (of(&packed, version), of(&plain, version));
        assert_eq!(next.is_packed(), is_shared, "{version}");
        assert_eq!((next.bytes(), next.bytes_len()), (want.bytes(), want.bytes().len()));
        assert_eq!(
            (&next, next.size(), next.to_value()),
            (&want, want.size(), want.to_value())
        );
        assert!(next == of(&next, version) && (next == packed) == (version == 12));
        // A file gets the present number, and the memory keeps the shared body.
        let (own, freed) = next.row(&mut packer);
        assert_eq!(Object::parse_packed(&own, kind("pods")).unwrap(), want);
        assert!(own != row || version == 12);
        assert!(!is_shared || freed == 0);
        for again in [13, 200, 12] {
            assert_eq!(
                of(&next, again).bytes(),
                of(&plain, again).bytes(),
                "{version}, then {again}"
            );
        }
    }
    // Other content under the same number.
    let other = parse(&POD.replace("Running", &"x".repeat(6020)), "pods").unwrap();
    assert_eq!(other.bytes_len(), of(&packed, 13).bytes_len());
    assert_ne!(of(&packed, 13), of(&other, 13));
}

#[test]
fn last_metadata_counts_for_a_resource_version() {
    let two = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"metadata":{"name":"p","namespace":"n"}}"#;
    let escaped =
        r#"{"apiVersion":"v1","kind":"Pod","meta\u0064ata":{"name":"p","namespace":"n"},"x":{"metadata":{}}}"#;
    for text in [two, escaped] {
        let object = parse(text, "pods").unwrap().with_resource_version(ResourceVersion(7));
        assert_eq!(object.to_value()["metadata"]["resourceVersion"], "7", "{text}");
        assert_eq!(
            parse(&String::from_utf8_lossy(&object.bytes()), "pods").unwrap(),
            object
        );
    }
}

#[test]
fn short_object_stays_as_it_is() {
    let text = POD.replace(
        "\"Running\"",
        &format!("\"Running\",\"message\":\"{}\"", "again ".repeat(100)),
    );
    let object = parse(&text, "pods").unwrap();
    let (row, freed) = object.row(&mut Packer::default());
    assert_eq!((&row, freed), (&object.bytes(), 0));
    assert!(!object.is_packed() && !object.is_long());
    // Earlier programs deflated it in the file.
    let mut deflater = flate2::write::DeflateEncoder::new(vec![1], flate2::Compression::fast());
    let length = u32::try_from(row.len()).unwrap();
    deflater.get_mut().extend_from_slice(&length.to_le_bytes());
    deflater.write_all(&row).unwrap();
    let read = Object::parse_packed(&deflater.finish().unwrap().into(), kind("pods")).unwrap();
    assert!(!read.is_packed() && read == object);
}

#[test]
fn damaged_row_is_no_object() {
    let (row, _) = long_pod().row(&mut Packer::default());
    let body = packed::without_head(&row);
    for row in [row, body.clone()] {
        for cut in [1, 5, row.len() - 1] {
            let error = Object::parse_packed(&row.slice(..cut), kind("pods")).unwrap_err();
            assert!(
                matches!(error, ObjectError::Packed(_) | ObjectError::Json(_)),
                "{cut}: {error}"
            );
        }
    }
    for head in [&b""[..], b"{}", br#"{"name":"p"}"#, &b"[".repeat(1000)] {
        let row = packed::with_head(head, &body).unwrap();
        assert!(Object::parse_packed(&row, kind("pods")).is_err());
    }
    // A row without kind and apiVersion, from a file of another program: they are filled in, and the row does not
    // count.
    let text = format!(
        r#"{{"metadata":{{"name":"p","namespace":"n"}},"x":"{}"}}"#,
        "again ".repeat(1000)
    );
    let object = Object::parse_packed(&Packer::default().row(&text.into()), kind("pods")).unwrap();
    assert!(!object.is_packed() && object.to_value()["kind"] == "Pod");
}

#[test]
fn object_of_a_head_is_that_of_its_body() {
    let mut packer = Packer::default();
    let labels: serde_json::Map<_, _> = (0..50).map(|n| (format!("l{n}"), json!(n.to_string()))).collect();
    let cases = [
        json!({"metadata": {"name": "p", "namespace": "n"}}),
        json!({"metadata": {"name": "p", "namespace": "n", "resourceVersion": "18446744073709551615", "uid": "\"ü"}}),
        json!({"metadata": {"name": "p", "namespace": "n", "deletionTimestamp": "x", "labels": labels}}),
        json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "", "hostNetwork": true}}),
        json!({"metadata": {"name": "p", "namespace": "n"}, "status": {"phase": "a \" b"}}),
    ];
    for mut case in cases {
        case["x"] = json!("again ".repeat(1000));
        let object = Object::from_value(case.clone(), kind("pods")).unwrap();
        let (row, _) = object.row(&mut packer);
        assert!(matches!(packed::split_head(&row), Ok(Some(_))), "{case}");
        let read = Object::parse_packed(&row, kind("pods")).unwrap();
        let parsed = Object::parse_packed(&packed::without_head(&row), kind("pods")).unwrap();
        for other in [&object, &parsed] {
            let all = |object: &Object| {
                let fields: Vec<_> = kind("pods")
                    .fields
                    .iter()
                    .map(|field| object.field(field.label).map(str::to_owned))
                    .collect();
                let (version, is_deleting) = (object.resource_version(), object.is_deleting());
                let (uid, labels) = (object.uid().to_owned(), object.labels().clone());
                (
                    object.key().clone(),
                    uid,
                    version,
                    labels,
                    is_deleting,
                    fields,
                    object.bytes(),
                    object.size(),
                )
            };
            assert_eq!(all(&read), all(other), "{case}");
            let next = |object: &Object| object.with_resource_version(ResourceVersion(77)).bytes();
            assert_eq!(next(&read), next(other), "{case}");
        }
    }
}

/// Files of earlier versions have such heads.
#[test]
fn head_is_written_as_recorded() {
    let (row, _) = long_pod().row(&mut Packer::default());
    let (head, body) = packed::split_head(&row).unwrap().unwrap();
    let recorded = r#"{"name":"p","namespace":"ns","uid":"u","resourceVersion":12,"metadataAt":43,"isDeleting":false,"labels":[["a","1"],["b","2"]],"fields":3147859756,"values":["n1","n1",null,null,null,"true","Running",null,null,null]}"#;
    assert_eq!(std::str::from_utf8(head).unwrap(), recorded);
    assert_eq!((row[0], body[0]), (2, 1));
}

/// A later program may select by other fields, or a declaration of a custom resource may.
#[test]
fn head_of_a_kind_with_other_fields_does_not_count() {
    let (row, _) = long_pod().row(&mut Packer::default());
    let fields: &'static [SelectableField] = Box::leak(kind("pods").fields[1..].to_vec().into_boxed_slice());
    let other = ResourceKind {
        fields,
        ..kind("pods").clone()
    };
    let object = Object::parse_packed(&row, &other).unwrap();
    for field in fields {
        assert_eq!(object.field(field.label), long_pod().field(field.label));
    }
    assert_eq!(object.field(kind("pods").fields[0].label), None);
}

const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"ns","uid":"u","resourceVersion":"12","labels":{"b":"2","a":"1"},"annotations":{"k":"v \u00e9"},"x":{"unknown":1.50}},"spec":{"nodeName":"n1","hostNetwork":true,"containers":[{"spec":{"nodeName":"no"}}]},"status":{"phase":"Running","podIPs":[{"ip":"1"}]}}"#;

#[test]
fn metadata_and_fields_are_extracted() {
    let pod = parse(POD, "pods").unwrap();
    assert_eq!((pod.name(), pod.namespace(), pod.uid()), ("p", Some("ns"), "u"));
    assert_eq!(pod.key().as_str(), "ns/p");
    assert_eq!(pod.resource_version(), ResourceVersion(12));
    assert_eq!(pod.labels().iter().collect::<Vec<_>>(), [("a", "1"), ("b", "2")]);
    assert_eq!(pod.annotation("k").as_deref(), Some("v é"));
    assert_eq!(pod.annotation("z"), None);
    assert!(!pod.is_deleting());
    for (label, want) in [
        ("metadata.name", Some("p")),
        ("metadata.namespace", Some("ns")),
        ("spec.nodeName", Some("n1")),
        ("spec.host", Some("n1")),
        ("spec.hostNetwork", Some("true")),
        ("spec.restartPolicy", Some("Always")),
        ("status.phase", Some("Running")),
        ("status.podIPs", Some("")),
        ("spec.containers", None),
    ] {
        assert_eq!(pod.field(label), want, "{label}");
    }
    assert_eq!(pod.bytes(), POD);
}

#[test]
fn type_meta_is_filled_in_only_where_missing() {
    let meta = r#""metadata":{"name":"p","namespace":"ns"}"#;
    for (head, want) in [
        ("", r#""apiVersion":"v1","kind":"Pod","#),
        (r#""kind":"Other","#, r#""apiVersion":"v1","kind":"Other","#),
        (r#""apiVersion":"x/v9","#, r#""kind":"Pod","apiVersion":"x/v9","#),
        (r#""kind":"","apiVersion":null,"#, r#""kind":"Pod","apiVersion":"v1","#),
    ] {
        let object = parse(&format!("{{{head}{meta}}}"), "pods").unwrap();
        assert_eq!(object.bytes(), &format!("{{{want}{meta}}}"));
    }
}

#[test]
fn deletion_is_seen() {
    let object = parse(
        r#"{"metadata":{"name":"p","namespace":"n","deletionTimestamp":"x"}}"#,
        "pods",
    )
    .unwrap();
    assert!(object.is_deleting());
    let object = parse(
        r#"{"metadata":{"name":"p","namespace":"n","deletionTimestamp":null}}"#,
        "pods",
    )
    .unwrap();
    assert!(!object.is_deleting());
}

#[test]
fn cluster_scoped_objects_have_no_namespace() {
    let node = parse(r#"{"metadata":{"name":"n","namespace":"ignored"}}"#, "nodes").unwrap();
    assert_eq!((node.namespace(), node.key().as_str()), (None, "n"));
    assert_eq!(node.field("metadata.namespace"), Some(""));
    assert_eq!(node.field("spec.unschedulable"), Some("false"));
}

#[test]
fn source_of_an_event_falls_back_to_its_reporter() {
    let event = |rest: &str| {
        parse(
            &format!(r#"{{"metadata":{{"name":"e","namespace":"n"}},{rest}}}"#),
            "events",
        )
        .unwrap()
    };
    let both = event(r#""reportingComponent":"r","source":{"component":"s"}"#);
    assert_eq!(both.field("source"), Some("s"));
    let one = event(r#""reportingComponent":"r","source":{"component":""}"#);
    assert_eq!(one.field("source"), Some("r"));
}

#[test]
fn what_cannot_be_stored_is_refused() {
    for text in [
        "",
        "[]",
        "{",
        "{} {}",
        r#"{"metadata":{}}"#,
        r#"{"metadata":{"name":"p"}}"#,
        r#"{"metadata":["p","n"]}"#,
        r#"{"metadata":{"name":"a/b","namespace":"n"}}"#,
        r#"{"metadata":{"name":"p","namespace":"n","resourceVersion":"x"}}"#,
        r#"{"metadata":{"name":"p","namespace":"n","resourceVersion":7}}"#,
        r#"{"metadata":{"name":"p","namespace":"n","labels":{"a":1}}}"#,
        // Values that no reader could decode later.
        r#"{"metadata":{"name":"p","namespace":"n"},"x":"\ud800"}"#,
        r#"{"metadata":{"name":"p","namespace":"n"},"x":1e999}"#,
        r#"{"metadata":{"name":"p","namespace":"n"},"spec":{"x":[{"\ude00":1}]}}"#,
        r#"{"metadata":{"name":"p","namespace":"n","annotations":{"x":"\ud800"}}}"#,
        r#"{"metadata":{"name":"p","namespace":"n","managedFields":[-1e999]}}"#,
        r#"{"metadata":{"name":"p","namespace":"n","deletionTimestamp":"\ud800"}}"#,
        // A member of the metadata that is kept occurs once.
        r#"{"metadata":{"name":"p","namespace":"n","uid":null,"uid":"u"}}"#,
    ] {
        assert!(parse(text, "pods").is_err(), "{text}");
    }
    let bytes = Bytes::from_static(b"{\"metadata\":{\"name\":\"p\",\"namespace\":\"n\"},\"x\":\"\xff\"}");
    assert!(matches!(Object::parse(bytes, kind("pods")), Err(ObjectError::Utf8(_))));
}

#[test]
fn nesting_is_limited() {
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        parse(
            &format!(r#"{{"metadata":{{"name":"p","namespace":"n"}},"x":{open}{close}}}"#),
            "pods",
        )
    };
    assert!(nested(120).is_ok());
    assert!(nested(126).is_ok() && nested(127).is_err());
    assert!(nested(100_000).is_err());
}

#[test]
fn last_of_equal_members_counts() {
    let pod = parse(
        r#"{"metadata":{"name":"a","namespace":"n","uid":"u"},"spec":{"nodeName":"x"},"spec":{},"metadata":{"name":"b","namespace":"n"}}"#,
        "pods",
    )
    .unwrap();
    assert_eq!((pod.name(), pod.uid(), pod.field("spec.nodeName")), ("b", "", Some("")));
    let pod = parse(
        r#"{"metadata":{"name":"a","namespace":"n"},"spec":{"nodeName":"x","nodeName":null}}"#,
        "pods",
    )
    .unwrap();
    assert_eq!(pod.field("spec.nodeName"), Some(""));
}

#[test]
fn version_changes_alone() {
    let pod = parse(POD, "pods").unwrap();
    let next = pod.with_resource_version(ResourceVersion(13));
    assert_eq!(next.resource_version(), ResourceVersion(13));
    assert_eq!(next.bytes(), &POD.replace("\"12\"", "\"13\""));
    assert_eq!(next.field("spec.nodeName"), Some("n1"));
    assert_ne!(next, pod);
    assert_eq!(next.with_resource_version(ResourceVersion(12)), pod);
}

#[test]
fn pretty_objects_become_one_line() {
    let object = parse(
        "{\n \"metadata\": {\n \"name\": \"a b\\n\", \"namespace\":\"n\" } }\n",
        "pods",
    )
    .unwrap();
    assert_eq!(
        object.bytes(),
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a b\n","namespace":"n"}}"#
    );
}

#[test]
fn keys_sort_bytewise() {
    let keys = [ObjectKey::new(Some("a-b"), "x"), ObjectKey::new(Some("a"), "z")];
    assert!(keys[0] < keys[1], "'-' sorts before '/'");
    assert_eq!(ObjectKey::parse("a/z"), keys[1]);
    assert_eq!((keys[1].namespace(), keys[1].name()), (Some("a"), "z"));
}

#[test]
fn values_round_trip() {
    let value = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "x": [1, null]});
    let object = Object::from_value(value.clone(), kind("pods")).unwrap();
    assert_eq!(object.to_value(), value);
    assert!(object.size() > object.bytes().len());
}

#[test]
fn type_meta_can_be_peeked() {
    let peeked = TypeMeta::peek(br#"{"kind":"Pod","metadata":{}}"#).unwrap();
    assert_eq!((peeked.kind.as_str(), peeked.api_version.as_str()), ("Pod", ""));
    assert!(TypeMeta::peek(b"[1]").is_err() && TypeMeta::peek(br#"{"kind":1}"#).is_err());
    for body in [
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"kind":"Node"}}"#,
        r#" {"spec":{"apiVersion":"v2"}, "apiVersion" : "v1", "k\u0069nd":"P\u006fd"}"#,
        r#"{"kind":"APIVersions","versions":["v1"]}"#,
        r#"{"kind":"Pod","apiVersion":1}"#,
    ] {
        assert_eq!(TypeMeta::first(body.as_bytes()), TypeMeta::peek(body.as_bytes()).ok());
    }
}

/// Values of a type other than expected.
fn odd_value() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::json;
    proptest::sample::select(vec![
        json!(null),
        json!(""),
        json!("7"),
        json!("a"),
        json!(7),
        json!(-1.5),
        json!(true),
        json!([1]),
        json!({}),
        json!({"a": "b", "nodeName": "n", "phase": "Running", "component": "c"}),
        json!({"nodeName": 3, "phase": [], "podIP": null, "component": true}),
    ])
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = Object::parse(bytes.into(), kind("pods"));
    }

    #[test]
    fn whatever_parses_can_be_decoded_again(
        name in "\\PC{0,6}",
        rest in proptest::sample::select(vec![
            "1e400", "\"\\udc00\"", "\"\\ud83d\\ude00\"", "-0", "[[],{}]", "1.0e-5", "\"\u{7f}\"", "18446744073709551616",
            "{\"nodeName\":3}", "null", "tru", "\"\\x\"",
        ]),
        member in proptest::sample::select(vec!["spec", "x", "kind", "apiVersion", "status"]),
    ) {
        let name = crate::json_text::quote(&name);
        let text = format!("{{\"metadata\":{{\"namespace\":\"n\",\"name\":{name}}},\"{member}\":{rest}}}");
        if let Ok(object) = parse(&text, "pods") {
            let value = object.to_value();
            prop_assert_eq!(value["metadata"]["name"].as_str(), Some(object.name()));
            prop_assert!(value["kind"].is_string() && value["apiVersion"].is_string());
            let again = object.with_resource_version(ResourceVersion(5));
            let value = again.to_value();
            prop_assert_eq!(value["metadata"]["resourceVersion"].as_str(), Some("5"));
            prop_assert_eq!(Object::parse(object.bytes(), kind("pods")).unwrap(), object);
        }
    }

    #[test]
    fn values_and_their_text_make_the_same_object(
        resource in proptest::sample::select(vec!["pods", "events", "nodes"]),
        metadata in proptest::collection::btree_map(
            proptest::sample::select(vec![
                "name", "namespace", "uid", "labels", "resourceVersion", "deletionTimestamp", "annotations",
            ]),
            odd_value(),
            0..7,
        ),
        members in proptest::collection::btree_map(
            proptest::sample::select(vec!["apiVersion", "kind", "spec", "status", "source", "reportingComponent", "type"]),
            odd_value(),
            0..6,
        ),
    ) {
        let mut value = serde_json::json!(members);
        value["metadata"] = serde_json::json!({"name": "a", "namespace": "b"});
        for (name, member) in metadata {
            value["metadata"][name] = member;
        }
        let text = Object::parse(value.to_string().into(), kind(resource));
        match (Object::from_value(value, kind(resource)), text) {
            (Ok(one), Ok(other)) => {
                prop_assert_eq!(one.bytes(), other.bytes());
                prop_assert_eq!((one.key(), one.uid(), one.is_deleting()), (other.key(), other.uid(), other.is_deleting()));
                prop_assert_eq!(one.resource_version(), other.resource_version());
                prop_assert_eq!(one.labels(), other.labels());
                prop_assert_eq!(&one.0.meta.values, &other.0.meta.values);
            }
            (Err(one), Err(other)) => prop_assert_eq!(one.to_string(), other.to_string()),
            (one, other) => prop_assert!(false, "{:?} {:?}", one, other),
        }
    }
}
