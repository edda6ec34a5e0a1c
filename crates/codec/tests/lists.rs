//! Lists, written and parsed again.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::Value;
use yurt_apimachinery::kind::{ResourceKind, find_kind};
use yurt_apimachinery::list::{ListError, ListMeta, ParsedList};
use yurt_apimachinery::time::Time;
use yurt_apimachinery::{Object, ResourceVersion};
use yurt_codec::negotiation::{MetaVersion, Negotiated, Transform};

fn leases() -> &'static ResourceKind {
    find_kind("coordination.k8s.io", "leases").expect("a built-in kind")
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
    String::from_utf8(chunks.concat()).expect("UTF-8")
}

fn lease(name: &str) -> Object {
    let text = format!(r#"{{"metadata":{{"name":"{name}","namespace":"n","z":1.0}},"spec":{{}}}}"#);
    Object::parse(text.into(), leases()).expect("a lease")
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
}
