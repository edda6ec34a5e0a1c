//! Lists, written and parsed.

use proptest::prelude::*;
use serde_json::Value;

use bytes::Bytes;

use super::*;
use crate::kind::{ResourceKind, find_kind};
use crate::negotiation::{MetaVersion, Negotiated, Transform};
use crate::object::Object;
use crate::time::Time;

fn leases() -> &'static ResourceKind {
    find_kind("coordination.k8s.io", "leases").unwrap()
}

fn lease(name: &str) -> Object {
    let text = format!(r#"{{"metadata":{{"name":"{name}","namespace":"n","z":1.0}},"spec":{{}}}}"#);
    Object::parse(text.into(), leases()).unwrap()
}

fn encode(transform: Transform, meta: &ListMeta, items: &[Object]) -> Vec<Bytes> {
    let how = Negotiated {
        transform,
        ..Negotiated::default()
    };
    how.list(leases(), meta, items.to_vec(), Time::from_unix(0)).collect()
}

fn encode_list(meta: &ListMeta, items: &[Object]) -> Vec<Bytes> {
    encode(Transform::None, meta, items)
}

fn encode_partial_list(meta: &ListMeta, items: &[Object]) -> Vec<Bytes> {
    encode(Transform::PartialObjectMetadata(MetaVersion::V1), meta, items)
}

fn text(chunks: &[Bytes]) -> String {
    String::from_utf8(chunks.concat()).unwrap()
}

fn parse(body: &str) -> Result<ParsedList, ListError> {
    ParsedList::parse(Bytes::copy_from_slice(body.as_bytes()), leases())
}

/// Conformance: 3.E04
#[test]
fn empty_list_has_an_empty_array() {
    let chunks = encode_list(&ListMeta::at(ResourceVersion(7)), &[]);
    assert_eq!(
        text(&chunks),
        "{\"kind\":\"LeaseList\",\"apiVersion\":\"coordination.k8s.io/v1\",\"metadata\":{\"resourceVersion\":\"7\"},\
         \"items\":[]}\n"
    );
    let chunks = encode_partial_list(&ListMeta::at(ResourceVersion(7)), &[]);
    assert!(text(&chunks).ends_with("\"items\":[]}\n"));
}

/// Conformance: 8.21
#[test]
fn items_are_the_stored_bytes() {
    let items = [lease("a"), lease("b")];
    let meta = ListMeta {
        resource_version: ResourceVersion(9),
        continue_token: Some("x\"".into()),
        remaining_item_count: Some(3),
    };
    let chunks = encode_list(&meta, &items);
    assert_eq!(chunks[1].as_ptr(), items[0].bytes().as_ptr());
    let body = text(&chunks);
    assert!(body.contains(r#""metadata":{"resourceVersion":"9","continue":"x\"","remainingItemCount":3}"#));
    let list = parse(&body).unwrap();
    assert_eq!((list.meta, list.items.as_slice()), (meta, &items[..]));
}

#[test]
fn items_without_a_type_get_one() {
    let body = r#"{"kind":"LeaseList","apiVersion":"coordination.k8s.io/v1","metadata":{"resourceVersion":"5"},
        "items":[{"metadata":{"name":"a","namespace":"n"},"x":1.10}]}"#;
    let list = parse(body).unwrap();
    assert_eq!(
        list.items[0].bytes(),
        r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"a","namespace":"n"},"x":1.10}"#
    );
    assert_eq!(list.meta.resource_version, ResourceVersion(5));
}

#[test]
fn typed_items_are_slices_of_the_body() {
    let body = Bytes::from(
        r#"{"kind":"LeaseList","items":[{"apiVersion":"a/v1","kind":"Lease","metadata":{"name":"a","namespace":"n"}}]}"#,
    );
    let list = ParsedList::parse(body.clone(), leases()).unwrap();
    assert!(body.as_ptr_range().contains(&list.items[0].bytes().as_ptr()));
}

#[test]
fn nothing_else_is_taken_for_an_empty_list() {
    for body in [
        r#"{"kind":"LeaseList","metadata":{}}"#,
        r#"{"kind":"LeaseList","metadata":{},"items":null}"#,
        r#"{"kind":"PartialObjectMetadataList","metadata":{}}"#,
        r#"{"kind":"PodList","items":[]}"#,
        r#"{"kind":"Status","status":"Failure"}"#,
        r#"{"items":[]}"#,
        r#"{"kind":"LeaseList","items":[null]}"#,
        r#"{"kind":"LeaseList","items":{}}"#,
        r#"{"kind":"LeaseList","items":[],"metadata":{"resourceVersion":"x"}}"#,
        "[]",
        "",
    ] {
        assert!(parse(body).is_err(), "{body}");
    }
    assert!(
        parse(r#"{"kind":"PartialObjectMetadataList","items":null}"#)
            .unwrap()
            .items
            .is_empty()
    );
    assert!(parse(r#"{"kind":"LeaseList","items":[]}"#).unwrap().items.is_empty());
}

#[test]
fn partial_list_keeps_metadata_only() {
    let items = [lease("a")];
    let body = text(&encode_partial_list(&ListMeta::at(ResourceVersion(7)), &items));
    assert_eq!(
        body,
        "{\"kind\":\"PartialObjectMetadataList\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{\"resourceVersion\":\"7\"},\
         \"items\":[{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\
         \"metadata\":{\"name\":\"a\",\"namespace\":\"n\",\"z\":1.0}}]}\n"
    );
    assert_eq!(parse(&body).unwrap().items[0].name(), "a");
}

#[test]
fn deep_nesting_is_survived() {
    let deep = "[".repeat(1_000_000);
    assert!(parse(&format!(r#"{{"kind":"LeaseList","items":[],"x":{deep}"#)).is_err());
    let closed = format!("{deep}{}", "]".repeat(1_000_000));
    assert!(parse(&format!(r#"{{"kind":"LeaseList","items":[{closed}]}}"#)).is_err());
    assert!(parse(&format!(r#"{{"kind":"LeaseList","items":[],"x":{closed}}}"#)).is_ok());
}

proptest! {
    #[test]
    fn lists_round_trip(names in proptest::collection::vec("[a-z]{1,5}", 0..6), version in any::<u64>()) {
        let items: Vec<Object> = names.iter().map(|name| lease(name)).collect();
        let body = text(&encode_list(&ListMeta::at(ResourceVersion(version)), &items));
        let value: Value = serde_json::from_str(&body).unwrap();
        prop_assert_eq!(value["items"].as_array().map(Vec::len), Some(items.len()));
        let list = parse(&body).unwrap();
        prop_assert_eq!(list.items, items);
        prop_assert_eq!(list.meta.resource_version, ResourceVersion(version));
    }

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..64), tail in "\\PC{0,30}") {
        let _ = ParsedList::parse(bytes.into(), leases());
        let _ = parse(&format!(r#"{{"kind":"LeaseList","items":[{tail}"#));
    }
}
