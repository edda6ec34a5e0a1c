//! Bodies, lists and frames in every format.

use serde_json::{Value, json};

use super::*;
use crate::negotiation::{MetaVersion, TableOptions};
use crate::protobuf::Envelope;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::watch::INITIAL_EVENTS_END;

const NOW: i64 = 1_795_168_800;

fn objects(kind: &ResourceKind) -> Vec<Object> {
    let texts = [
        r#"{"metadata":{"name":"a","namespace":"x","resourceVersion":"4","labels":{"l":"1"}},"data":{"k":"one\ntwo\n\nthree"}}"#,
        r#"{"metadata":{"name":"b","namespace":"x","resourceVersion":"5"},"data":{}}"#,
    ];
    texts.map(|text| Object::parse(text.into(), kind).unwrap()).to_vec()
}

fn how(format: Format, transform: Transform, pretty: bool) -> Negotiated {
    Negotiated {
        format,
        transform,
        pretty,
        ..Negotiated::default()
    }
}

fn list(how: Negotiated, kind: &ResourceKind, objects: Vec<Object>) -> Vec<u8> {
    let meta = ListMeta::at(ResourceVersion(7));
    how.list(kind, &meta, objects, Time::from_unix(NOW))
        .collect::<Vec<_>>()
        .concat()
}

/// The last text of an item ends with line breaks or spaces.
fn widgets() -> (&'static ResourceKind, Vec<Object>) {
    let kind = crate::testing::widget();
    let widget = |script: &str| {
        let json = json!({"metadata": {"name": "a", "namespace": "x"}, "spec": {"script": script}});
        Object::parse(json.to_string().into(), kind).unwrap()
    };
    let scripts = [
        "a\n\n",
        "a\n",
        "a ",
        "a\nb  ",
        "a\n ",
        "\n",
        " ",
        "a\r\n",
        "a\r\nb\n\r\n",
    ];
    (kind, scripts.map(widget).to_vec())
}

#[test]
fn text_lists_say_the_same_in_every_layout() {
    let configmaps = find_kind("", "configmaps").unwrap();
    let table = Transform::Table(TableOptions::default());
    for transform in [
        Transform::None,
        Transform::PartialObjectMetadata(MetaVersion::V1),
        table,
    ] {
        let lists = [(configmaps, objects(configmaps)), (configmaps, Vec::new()), widgets()];
        for (kind, objects) in lists {
            let compact = list(how(Format::Json, transform, false), kind, objects.clone());
            let value: Value = serde_json::from_slice(&compact).unwrap();
            assert_eq!(value["metadata"], json!({"resourceVersion": "7"}));
            let items = if transform == table { "rows" } else { "items" };
            assert_eq!(value[items].as_array().unwrap().len(), objects.len());
            let pretty = list(how(Format::Json, transform, true), kind, objects.clone());
            assert_eq!(serde_json::from_slice::<Value>(&pretty).unwrap(), value);
            let yaml = list(how(Format::Yaml, transform, false), kind, objects);
            assert_eq!(yaml::parse(&yaml).unwrap(), value, "{}", String::from_utf8_lossy(&yaml));
        }
    }
}

/// Conformance: 2.56
#[test]
fn tables_of_a_stream_name_their_columns_once() {
    let kind = find_kind("", "configmaps").unwrap();
    let how = how(Format::Json, Transform::Table(TableOptions::default()), false);
    let event = |is_first| -> Value {
        let object = objects(kind)[0].bytes();
        let frame = how.frame(EventType::Added, kind, &object, Time::from_unix(NOW), is_first);
        serde_json::from_slice(&frame).unwrap()
    };
    let (first, second) = (event(true), event(false));
    assert_eq!(first["object"]["columnDefinitions"][1]["name"], "Data");
    assert_eq!(second["object"]["columnDefinitions"], json!(null));
    assert_eq!(second["object"]["rows"], first["object"]["rows"]);
    let bookmark = how.bookmark(
        kind,
        ResourceVersion(9),
        &[(watch::INITIAL_EVENTS_END, "true")],
        Time::from_unix(NOW),
        false,
    );
    let bookmark: Value = serde_json::from_slice(&bookmark).unwrap();
    assert_eq!(bookmark["object"]["metadata"], json!({"resourceVersion": "9"}));
    let annotations = &bookmark["object"]["rows"][0]["object"]["metadata"]["annotations"];
    assert_eq!(annotations[watch::INITIAL_EVENTS_END], "true");
}

#[test]
fn pretty_lists_are_those_of_one_piece() {
    let kind = find_kind("", "configmaps").unwrap();
    let body = list(how(Format::Json, Transform::None, true), kind, objects(kind));
    let text = String::from_utf8(body).unwrap();
    assert!(text.starts_with("{\n  \"kind\": \"ConfigMapList\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {\n    \"resourceVersion\": \"7\"\n  },\n  \"items\": [\n    {\n"));
    assert!(text.ends_with("\n    }\n  ]\n}"), "{text}");
}

/// Conformance: 3.G03, 3.G07
#[test]
fn protobuf_lists_are_one_envelope_with_bare_items() {
    let kind = find_kind("", "configmaps").unwrap();
    let body = list(how(Format::Protobuf, Transform::None, false), kind, objects(kind));
    let envelope = Envelope::parse(&body).unwrap();
    assert_eq!((envelope.api_version, envelope.kind), ("v1", "ConfigMapList"));
    let message = protobuf::message("v1", "ConfigMap").unwrap();
    let mut want = b"\x0a\x03\x12\x017".to_vec();
    for object in objects(kind) {
        protobuf::put_field(&mut want, 2, &protobuf::encode(message, &object.bytes()).unwrap().bytes);
    }
    assert_eq!(envelope.raw, want);
    let empty = list(how(Format::Protobuf, Transform::None, false), kind, Vec::new());
    assert_eq!(Envelope::parse(&empty).unwrap().raw, b"\x0a\x03\x12\x017");
}

/// Conformance: 2.55
#[test]
fn metadata_of_custom_resources_is_there_in_protobuf() {
    let kind = crate::testing::widget();
    let object = Object::parse(
        r#"{"metadata":{"name":"a","namespace":"n"},"spec":{"color":"red"}}"#.into(),
        kind,
    )
    .unwrap();
    for (version, api_version) in [
        (MetaVersion::V1, "meta.k8s.io/v1"),
        (MetaVersion::V1Beta1, "meta.k8s.io/v1beta1"),
    ] {
        let how = how(Format::Protobuf, Transform::PartialObjectMetadata(version), false);
        let envelope = |kind, raw| Envelope { api_version, kind, raw };
        let one = envelope("PartialObjectMetadata", b"\x0a\x06\x0a\x01a\x1a\x01n".as_slice());
        let body = how.object(kind, &object, Time::from_unix(NOW));
        assert_eq!(Envelope::parse(&body), Ok(one));
        let frame = how.frame(EventType::Added, kind, &object.bytes(), Time::from_unix(NOW), true);
        assert!(frame.ends_with(&body), "the event carries the object in its envelope");
        let body = list(how, kind, vec![object.clone()]);
        let items = b"\x0a\x03\x12\x017\x12\x08\x0a\x06\x0a\x01a\x1a\x01n".as_slice();
        assert_eq!(Envelope::parse(&body), Ok(envelope("PartialObjectMetadataList", items)));
    }
}

/// Conformance: 3.G02, 3.G05
#[test]
fn events_of_protobuf_streams_carry_envelopes() {
    let kind = find_kind("", "configmaps").unwrap();
    let how = how(Format::Protobuf, Transform::None, false);
    let body = |frame: &Bytes, head: &[u8]| {
        let length = u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize;
        assert_eq!(length, frame.len() - 4);
        let at = frame.windows(4).position(|four| four == protobuf::PREFIX).unwrap();
        assert!(frame[4..].starts_with(head));
        frame.slice(at..)
    };
    let object = &objects(kind)[0];
    let added = how.frame(EventType::Added, kind, &object.bytes(), Time::from_unix(NOW), true);
    assert_eq!(
        body(&added, b"\x0a\x05ADDED\x12"),
        how.object(kind, object, Time::from_unix(NOW))
    );
    let bookmark = how.bookmark(kind, ResourceVersion(9), &[("k", "v")], Time::from_unix(NOW), false);
    let bookmark = body(&bookmark, b"\x0a\x08BOOKMARK\x12");
    let envelope = Envelope::parse(&bookmark).unwrap();
    assert_eq!(envelope.kind, "ConfigMap");
    let status = how.error_frame(&Status::expired("old"));
    let status = body(&status, b"\x0a\x05ERROR\x12");
    let envelope = Envelope::parse(&status).unwrap();
    assert_eq!((envelope.api_version, envelope.kind), ("v1", "Status"));
    let json = protobuf::decode(envelope.message().unwrap(), envelope.raw).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&json).unwrap()["reason"], "Expired");
}

#[test]
fn compressed_lists_are_the_plain_ones() {
    use std::io::Read as _;
    let kind = find_kind("", "configmaps").unwrap();
    let meta = ListMeta::at(ResourceVersion(7));
    let body = |format, objects| how(format, Transform::None, false).list(kind, &meta, objects, Time::from_unix(NOW));
    for format in [Format::Json, Format::Protobuf] {
        for objects in [objects(kind), objects(kind)[..1].to_vec(), Vec::new()] {
            let plain = body(format, objects.clone()).collect::<Vec<_>>().concat();
            // The second call uses the cached form.
            for _ in 0..2 {
                let list = body(format, objects.clone());
                let form = list.plain().unwrap();
                let compressed = list.gzipped(form).collect::<Vec<_>>().concat();
                let mut text = Vec::new();
                flate2::read::GzDecoder::new(&compressed[..])
                    .read_to_end(&mut text)
                    .unwrap();
                assert_eq!(text, plain);
            }
        }
    }
    let pretty = how(Format::Json, Transform::None, true).list(kind, &meta, objects(kind), Time::from_unix(NOW));
    assert!(pretty.plain().is_none());
    let list = body(Format::Json, objects(kind));
    let len: u64 = objects(kind).iter().map(|object| object.bytes().len() as u64).sum();
    assert!(list.is_longer(len - 1) && !list.is_longer(len) && !list.is_longer(len + 1));
}

fn bookmark_frame(transform: Transform, annotations: &[(&str, &str)]) -> Bytes {
    let pods = find_kind("", "pods").unwrap();
    let how = Negotiated {
        transform,
        ..Negotiated::default()
    };
    how.bookmark(pods, ResourceVersion(5), annotations, Time::from_unix(0), true)
}

#[test]
fn bookmarks_carry_kind_version_and_annotations() {
    assert_eq!(
        bookmark_frame(Transform::None, &[(INITIAL_EVENTS_END, "true")]),
        "{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"5\",\
         \"annotations\":{\"k8s.io/initial-events-end\":\"true\"}},\"spec\":{\"containers\":null},\"status\":{}}}\n"
    );
    assert_eq!(
        bookmark_frame(Transform::PartialObjectMetadata(MetaVersion::V1), &[]),
        "{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\
         \"metadata\":{\"resourceVersion\":\"5\"}}}\n"
    );
}
