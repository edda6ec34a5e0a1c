//! Lists that are parsed, and bodies that are rejected.

use proptest::prelude::*;

use bytes::Bytes;

use super::*;
use crate::kind::{ResourceKind, find_kind};

fn leases() -> &'static ResourceKind {
    find_kind("coordination.k8s.io", "leases").unwrap()
}

fn parse(body: &str) -> Result<ParsedList, ListError> {
    ParsedList::parse(Bytes::copy_from_slice(body.as_bytes()), leases())
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
fn deep_nesting_is_survived() {
    let deep = "[".repeat(1_000_000);
    assert!(parse(&format!(r#"{{"kind":"LeaseList","items":[],"x":{deep}"#)).is_err());
    let closed = format!("{deep}{}", "]".repeat(1_000_000));
    assert!(parse(&format!(r#"{{"kind":"LeaseList","items":[{closed}]}}"#)).is_err());
    assert!(parse(&format!(r#"{{"kind":"LeaseList","items":[],"x":{closed}}}"#)).is_ok());
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..64), tail in "\\PC{0,30}") {
        let _ = ParsedList::parse(bytes.into(), leases());
        let _ = parse(&format!(r#"{{"kind":"LeaseList","items":[{tail}"#));
    }
}
