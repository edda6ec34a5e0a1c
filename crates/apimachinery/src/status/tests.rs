//! The bodies kube-apiserver sends, byte for byte.

use super::*;
use crate::gvr::{GroupKind, GroupResource};
use crate::resource_version::ResourceVersion;

fn json(status: &Status) -> String {
    String::from_utf8(status.to_json().to_vec()).unwrap()
}

fn leases() -> GroupResource {
    GroupResource::new("coordination.k8s.io", "leases")
}

fn pods() -> GroupResource {
    GroupResource::new("", "pods")
}

/// Conformance: 4.01
#[test]
fn bad_request_has_no_details() {
    assert_eq!(
        json(&Status::bad_request("no")),
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no","reason":"BadRequest","code":400}"#
    );
}

/// Conformance: 4.04
#[test]
fn not_found_names_the_resource() {
    assert_eq!(
        json(&Status::not_found(&leases(), "n")),
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"leases.coordination.k8s.io \"n\" not found","reason":"NotFound","details":{"name":"n","group":"coordination.k8s.io","kind":"leases"},"code":404}"#
    );
    assert!(json(&Status::not_found(&pods(), "n")).contains(r#""details":{"name":"n","kind":"pods"}"#));
}

/// Conformance: 3.D01
#[test]
fn success_of_a_delete_has_no_code() {
    assert_eq!(
        json(&Status::success_deleted(&leases(), "n", "u-1")),
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","details":{"name":"n","group":"coordination.k8s.io","kind":"leases","uid":"u-1"}}"#
    );
}

#[test]
fn empty_details_are_an_empty_object() {
    assert!(json(&Status::method_not_allowed()).ends_with(r#""reason":"MethodNotAllowed","details":{},"code":405}"#));
}

/// Conformance: 4.12
#[test]
fn invalid_joins_errors_and_lists_causes() {
    let kind = GroupKind::new("coordination.k8s.io", "Lease");
    let first = FieldError::invalid("spec.leaseDurationSeconds", 0, "must be greater than 0");
    let status = Status::invalid(&kind, "n", &first.clone().into());
    assert_eq!(
        status.message(),
        "Lease.coordination.k8s.io \"n\" is invalid: spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"
    );
    assert_eq!(
        status.causes()[0],
        StatusCause {
            reason: "FieldValueInvalid".into(),
            message: "Invalid value: 0: must be greater than 0".into(),
            field: "spec.leaseDurationSeconds".into()
        }
    );
    let second = FieldError::required("metadata.name", "name or generateName is required");
    let status = Status::invalid(&kind, "", &ErrorList::from_iter([first.clone(), first, second]));
    assert!(status.message().ends_with(
        "is invalid: [spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0, metadata.name: Required \
         value: name or generateName is required]"
    ));
    assert_eq!(status.causes().len(), 3, "causes are not deduplicated");
}

#[test]
fn too_large_resource_version_asks_to_retry() {
    let status = Status::too_large_resource_version(ResourceVersion(9), ResourceVersion(5));
    assert_eq!(status.message(), "Timeout: Too large resource version: 9, current: 5");
    assert_eq!(status.retry_after(), Some(1));
    assert!(status.is_too_large_resource_version());
    assert!(!Status::timeout().is_too_large_resource_version());
}

#[test]
fn update_without_version_names_the_resource_instead_of_the_kind() {
    let status = Status::resource_version_required(&leases(), "z1");
    assert_eq!(
        status.message(),
        "leases.coordination.k8s.io \"z1\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified \
         for an update"
    );
    assert_eq!(status.details().unwrap().kind, "leases");
}

/// Conformance: 4.07, 4.08
#[test]
fn conflicts_and_existence_are_told_apart_by_reason() {
    let conflict = Status::conflict_modified(&pods(), "n");
    assert!(conflict.is_conflict() && !conflict.is_already_exists());
    let exists = Status::already_exists_deleting(&pods(), "n");
    assert!(exists.is_already_exists() && !exists.is_conflict());
    assert_eq!(exists.message(), "object is being deleted: pods \"n\" already exists");
    let taken = Status::generate_name_conflict(&pods(), "n");
    assert_eq!((taken.code(), taken.retry_after()), (409, Some(1)));
}

#[test]
fn expired_token_may_carry_a_fresh_one() {
    let status = Status::continue_expired(Some("abc"));
    assert!(json(&status).contains(r#""metadata":{"continue":"abc"}"#));
    assert_eq!(Status::continue_expired(None).continue_token(), None);
}

#[test]
fn body_escapes_html_as_go_does() {
    let status = Status::bad_request("a<b>&c");
    assert!(json(&status).contains(r"a\u003cb\u003e\u0026c"));
    assert_eq!(Status::from_json(&status.to_json()), Some(status));
}

#[test]
fn bodies_round_trip_and_other_bodies_are_refused() {
    let status = Status::internal("boom");
    assert_eq!(Status::from_json(&status.to_json()), Some(status));
    let deleted = Status::success_deleted(&pods(), "n", "u");
    assert_eq!(Status::from_json(&deleted.to_json()).unwrap().code(), 200);
    assert_eq!(Status::from_json(br#"{"kind":"Pod","apiVersion":"v1"}"#), None);
    assert_eq!(Status::from_json(b"404 page not found"), None);
}
