//! Both ways against values known from Go, and properties over the whole table.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::schema::{Field, FieldType};
use yurt_apimachinery::watch::EventType;

fn root(api_version: &str, kind: &str) -> Message {
    message(api_version, kind).unwrap()
}

fn there_and_back(api_version: &str, kind: &str, value: &Value) -> Value {
    let message = root(api_version, kind);
    let encoded = encode(message, value.to_string().as_bytes()).unwrap();
    assert!(!encoded.is_partial, "{value}");
    serde_json::from_slice(&decode(message, &encoded.bytes).unwrap()).unwrap()
}

/// Conformance: 3.G03, 3.G06
#[test]
fn lease_reads_as_go_writes_it() {
    let json = br#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"n"},"spec":{"renewTime":"2026-11-20T10:00:00.123456Z"}}"#;
    let encoded = encode(root("coordination.k8s.io/v1", "Lease"), json).unwrap();
    assert!(!encoded.is_partial);
    let body = envelope("coordination.k8s.io/v1", "Lease", &encoded.bytes);
    assert!(body.starts_with(b"k8s\0\x0a\x1f\x0a\x16coordination.k8s.io/v1\x12\x05Lease\x12"));
    let parsed = Envelope::parse(&body).unwrap();
    assert_eq!((parsed.api_version, parsed.kind), ("coordination.k8s.io/v1", "Lease"));
    assert_eq!(parsed.raw, encoded.bytes);
    // {1: metadata {1: name}, 2: spec {4: renewTime {1: seconds, 2: nanos}}}
    let seconds = 1_795_168_800_u64;
    let mut time = Vec::new();
    wire::put_number(&mut time, 1, seconds);
    wire::put_number(&mut time, 2, 123_456_000);
    let mut spec = Vec::new();
    wire::put_field(&mut spec, 4, &time);
    let mut want = b"\x0a\x03\x0a\x01n".to_vec();
    wire::put_field(&mut want, 2, &spec);
    assert_eq!(parsed.raw, want);
}

#[test]
fn every_scalar_goes_both_ways() {
    let pod = json!({
        "metadata": {
            "name": "p", "generation": -1, "creationTimestamp": "1970-01-01T00:00:00Z",
            "labels": {"a": "", "b": "ü\"\\\n"}, "deletionGracePeriodSeconds": 0,
            "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
        },
        "spec": {
            "containers": [{
                "name": "c", "resources": {"limits": {"cpu": "100m", "memory": "1Gi"}}, "stdin": true,
                "livenessProbe": {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 3},
                "readinessProbe": {"tcpSocket": {"port": 80}},
                "env": [{"name": "E", "valueFrom": {"configMapKeyRef": {"name": "n", "key": "k", "optional": false}}}],
            }],
            "volumes": [{"name": "v", "configMap": {"name": "c", "defaultMode": 420}}, {"name": "e", "emptyDir": {}}],
            "enableServiceLinks": false, "terminationGracePeriodSeconds": 0, "priority": -5,
        },
        "status": {},
    });
    assert_eq!(there_and_back("v1", "Pod", &pod), pod);
    let secret = json!({"metadata": {"name": "s"}, "data": {"a": "AAEC", "b": ""}, "type": "Opaque"});
    assert_eq!(there_and_back("v1", "Secret", &secret), secret);
    let review = json!({"metadata": {}, "spec": {"user": "u", "extra": {"k": ["a", ""], "none": []}}, "status": {"allowed": false}});
    assert_eq!(
        there_and_back("authorization.k8s.io/v1", "SubjectAccessReview", &review),
        review
    );
    let resources = json!({"groupVersion": "v1", "resources": [
        {"name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod", "verbs": ["get"]}]});
    assert_eq!(there_and_back("v1", "APIResourceList", &resources), resources);
    let status = json!({"metadata": {}, "status": "Failure", "message": "m", "reason": "NotFound", "details": {"name": "n", "retryAfterSeconds": 1}, "code": 404});
    assert_eq!(there_and_back("v1", "Status", &status), status);
}

#[test]
fn zero_values_are_written_where_go_writes_them() {
    let decoded = |api_version: &str, kind: &str, bytes: &[u8]| {
        String::from_utf8(decode(root(api_version, kind), bytes).unwrap()).unwrap()
    };
    assert_eq!(
        decoded("v1", "Service", b""),
        r#"{"metadata":{},"spec":{},"status":{"loadBalancer":{}}}"#
    );
    assert_eq!(
        decoded("discovery.k8s.io/v1", "EndpointSlice", b""),
        r#"{"metadata":{},"addressType":"","endpoints":null,"ports":null}"#
    );
    // gogo writes every scalar that is no pointer, zero or not, and an empty creationTimestamp.
    assert_eq!(
        decoded("v1", "ConfigMap", b"\x0a\x06\x0a\x00\x12\x00\x42\x00"),
        r#"{"metadata":{}}"#
    );
    assert_eq!(
        decoded("v1", "Event", b""),
        concat!(
            r#"{"metadata":{},"involvedObject":{},"source":{},"firstTimestamp":null,"lastTimestamp":null,"eventTime":null,"#,
            r#""reportingComponent":"","reportingInstance":""}"#
        )
    );
}

#[test]
fn what_protobuf_cannot_say_is_left_out_and_told() {
    let config_map = root("v1", "ConfigMap");
    for json in [
        r#"{"metadata":{"name":"c"},"futureField":1}"#,
        r#"{"metadata":{"name":"c","new":{"x":[1]}}}"#,
        r#"{"metadata":{"name":"c"},"data":[]}"#,
        r#"{"metadata":{"name":"c"},"immutable":"yes"}"#,
        r#"{"metadata":{"name":"c","generation":1.5}}"#,
    ] {
        let encoded = encode(config_map, json.as_bytes()).unwrap();
        assert_eq!(
            encoded,
            Encoded {
                bytes: b"\x0a\x03\x0a\x01c".to_vec(),
                is_partial: true
            },
            "{json}"
        );
    }
    let null = encode(config_map, br#"{"metadata":{"name":"c","labels":null},"data":null}"#).unwrap();
    assert!(!null.is_partial);
}

#[test]
fn doubled_members_count_once() {
    let json = br#"{"metadata":{"name":"a","labels":{"x":"1"}},"metadata":{"name":"b"}}"#;
    assert_eq!(
        encode(root("v1", "ConfigMap"), json).unwrap().bytes,
        b"\x0a\x03\x0a\x01b"
    );
}

#[test]
fn split_messages_are_merged_and_packed_numbers_read() {
    let pod = root("v1", "Pod");
    let decoded: Value = serde_json::from_slice(&decode(pod, b"\x0a\x03\x0a\x01a\x0a\x03\x1a\x01n").unwrap()).unwrap();
    assert_eq!(decoded["metadata"], json!({"name": "a", "namespace": "n"}));
    // spec.securityContext.supplementalGroups, packed
    let decoded: Value = serde_json::from_slice(&decode(pod, b"\x12\x06\x72\x04\x22\x02\x01\x02").unwrap()).unwrap();
    assert_eq!(
        decoded["spec"]["securityContext"],
        json!({"supplementalGroups": [1, 2]})
    );
}

/// Conformance: 3.G04
#[test]
fn bodies_that_are_none() {
    let fails = |bytes: &[u8]| decode(root("v1", "ConfigMap"), bytes).unwrap_err();
    assert_eq!(Envelope::parse(b"{}").unwrap_err(), TranscodeError::NoPrefix);
    assert_eq!(Envelope::parse(b"").unwrap_err(), TranscodeError::Empty("empty data"));
    assert_eq!(
        Envelope::parse(b"k8s\0").unwrap_err(),
        TranscodeError::Empty("empty body")
    );
    assert_eq!(fails(b"\x0a"), TranscodeError::Cut);
    assert_eq!(fails(b"\x0a\x05\x0a"), TranscodeError::Cut);
    assert_eq!(
        fails(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        TranscodeError::Overflow
    );
    assert!(matches!(fails(b"\x00\x00"), TranscodeError::Illegal(_)));
    assert!(matches!(fails(b"\x0b"), TranscodeError::Illegal(_)));
    assert!(
        matches!(fails(b"\x08\x01"), TranscodeError::Illegal(_)),
        "metadata is no number"
    );
    // Unknown fields pass, of any type.
    let unknown = b"\xfa\x3e\x01x\xf8\x3e\x05\xfd\x3e\x00\x00\x00\x00\xf9\x3e\x00\x00\x00\x00\x00\x00\x00\x00";
    assert_eq!(decode(root("v1", "ConfigMap"), unknown).unwrap(), br#"{"metadata":{}}"#);
    let head = Envelope::parse(b"k8s\0\x12\x00").unwrap();
    assert_eq!((head.api_version, head.kind, head.message()), ("", "", None));
}

#[test]
fn a_small_body_does_not_become_a_huge_one() {
    // Endpoints of a slice: two bytes each, a dozen in JSON.
    let bomb = b"\x12\x00".repeat(1 << 20);
    assert_eq!(
        decode(root("discovery.k8s.io/v1", "EndpointSlice"), &bomb),
        Err(TranscodeError::TooLarge)
    );
    let pairs = b"\x12\x00".repeat(1 << 17);
    assert_eq!(decode(root("v1", "ConfigMap"), &pairs), Err(TranscodeError::TooLarge));
}

/// Conformance: 3.G02
#[test]
fn a_frame_is_a_length_and_an_event() {
    assert_eq!(
        frame(EventType::Added, b"k8s\0x"),
        b"\0\0\0\x10\x0a\x05ADDED\x12\x07\x0a\x05k8s\0x"
    );
    let long = frame(EventType::Deleted, &[b'x'; 300]);
    assert_eq!(
        u32::from_be_bytes([long[0], long[1], long[2], long[3]]) as usize,
        long.len() - 4
    );
}

/// JSON as our own decoder would write it, of any message of the table: what Go's encoder could have sent.
fn document(message: Message, depth: usize) -> BoxedStrategy<Value> {
    let fields: Vec<Field> = message.json_fields();
    let chosen = proptest::sample::subsequence(fields.clone(), 0..=fields.len().min(6));
    chosen
        .prop_flat_map(move |fields| {
            let values: Vec<BoxedStrategy<(String, Value)>> = fields
                .into_iter()
                .filter(|field| depth > 0 || field.ty() != FieldType::Message)
                .map(|field| {
                    let name = field.name().to_owned();
                    value(field, depth).prop_map(move |value| (name.clone(), value)).boxed()
                })
                .collect();
            values
        })
        .prop_map(|members| Value::Object(members.into_iter().collect()))
        .boxed()
}

fn value(field: Field, depth: usize) -> BoxedStrategy<Value> {
    let one = move || match field.ty() {
        FieldType::Bool => any::<bool>().prop_map(Value::from).boxed(),
        FieldType::Int32 => any::<i32>().prop_map(Value::from).boxed(),
        FieldType::Int64 => any::<i64>().prop_map(Value::from).boxed(),
        FieldType::String => "\\PC{0,6}|[\"\\\\\\n<]{1,3}".prop_map(Value::from).boxed(),
        FieldType::Bytes => any::<Vec<u8>>()
            .prop_map(|bytes| {
                use base64::Engine as _;
                Value::from(base64::engine::general_purpose::STANDARD.encode(bytes))
            })
            .boxed(),
        FieldType::Time => (0_i64..4_000_000_000)
            .prop_map(|secs| json!(yurt_apimachinery::time::Time::from_unix(secs)))
            .boxed(),
        FieldType::MicroTime => (0_i64..4_000_000_000, 0_u32..1_000_000_000)
            .prop_map(|(secs, nanos)| json!(yurt_apimachinery::time::MicroTime::from_unix(secs, nanos)))
            .boxed(),
        FieldType::Duration => Just(json!("0s")).boxed(),
        FieldType::Quantity => "[1-9][0-9]{0,3}(m|Ki|M)?".prop_map(Value::from).boxed(),
        FieldType::IntOrString => {
            prop_oneof![any::<i32>().prop_map(Value::from), "[a-z%]{0,4}".prop_map(Value::from)].boxed()
        }
        FieldType::FieldsV1 | FieldType::RawExtension => Just(json!({"f:a": {".": {}}})).boxed(),
        FieldType::StringList => proptest::collection::vec("[a-z]{0,3}", 0..3)
            .prop_map(|list| json!(list))
            .boxed(),
        FieldType::Message => field
            .message()
            .map_or(Just(json!({})).boxed(), |inner| document(inner, depth - 1)),
    };
    if field.is_list() {
        proptest::collection::vec(one(), 1..3).prop_map(Value::from).boxed()
    } else if field.is_map() {
        proptest::collection::btree_map("[a-z./]{0,5}", one(), 1..3)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
            .boxed()
    } else {
        one()
    }
}

fn any_document() -> impl Strategy<Value = (Message, Value)> {
    let roots: Vec<Message> = schema::roots().map(|root| root.3).collect();
    proptest::sample::select(roots)
        .prop_flat_map(|message| document(message, 4).prop_map(move |value| (message, value)))
}

proptest! {
    #[test]
    fn nothing_is_lost_on_the_way((message, value) in any_document()) {
        let encoded = encode(message, value.to_string().as_bytes()).unwrap();
        prop_assert!(!encoded.is_partial, "{}", value);
        let first = decode(message, &encoded.bytes).unwrap();
        // Zero values come and go on the first way; after it nothing changes any more.
        let again = encode(message, &first).unwrap();
        prop_assert_eq!(&decode(message, &again.bytes).unwrap(), &first);
        let back: Value = serde_json::from_slice(&first).unwrap();
        prop_assert!(contains(&back, &value), "{} -> {}", value, back);
    }

    #[test]
    fn any_bytes_are_survived(bytes: Vec<u8>, at in any::<proptest::sample::Index>()) {
        let roots: Vec<Message> = schema::roots().map(|root| root.3).collect();
        let message = roots[at.index(roots.len())];
        if let Ok(json) = decode(message, &bytes) {
            prop_assert!(serde_json::from_slice::<Value>(&json).is_ok());
        }
        let _ = Envelope::parse(&bytes);
        let _ = encode(message, &bytes);
    }

    #[test]
    fn damaged_messages_are_survived((message, value) in any_document(), at in any::<proptest::sample::Index>(), byte: u8) {
        let mut bytes = encode(message, value.to_string().as_bytes()).unwrap().bytes;
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(json) = decode(message, &bytes) {
                prop_assert!(serde_json::from_slice::<Value>(&json).is_ok());
                prop_assert!(encode(message, &json).is_ok());
            }
            bytes.truncate(at);
            let _ = decode(message, &bytes);
        }
    }

    #[test]
    fn any_json_is_survived(text in "[\\[\\]{}\",:0-9a-z\\\\ ]{0,40}") {
        let _ = encode(root("v1", "Pod"), text.as_bytes());
        let _ = encode(root("v1", "Pod"), format!("{{\"metadata\":{text}}}").as_bytes());
    }
}

/// True if `big` contains everything in `small`, except zero values.
fn contains(big: &Value, small: &Value) -> bool {
    match (big, small) {
        (Value::Object(big), Value::Object(small)) => small.iter().all(|(name, value)| match big.get(name) {
            Some(found) => contains(found, value),
            None => is_nothing(value),
        }),
        (Value::Array(big), Value::Array(small)) => {
            big.len() == small.len() && big.iter().zip(small).all(|(big, small)| contains(big, small))
        }
        (big, small) => big == small,
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Array(list) => list.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(true) => false,
    }
}

#[test]
fn built_in_kinds_can_be_written_and_custom_ones_cannot() {
    assert!(yurt_apimachinery::kind::builtin_kinds().iter().all(supports));
    assert!(!supports(crate::testing::widget()));
}
