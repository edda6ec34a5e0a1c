//! Checks that a body describes the object and kind that the URL names.

use serde_json::Value;

use super::access;
use crate::gvr;
use crate::kind::{ResourceKind, builtin_kinds};
use crate::protobuf;
use crate::status::{FieldError, Status};
use crate::text::go_quote;

/// Fills in apiVersion and kind of a body, and rejects one that claims another type.
///
/// # Errors
///
/// 400 for another apiVersion or kind, or a body that is no JSON object.
pub fn complete_type_meta(object: &mut Value, kind: &ResourceKind) -> Result<(), Status> {
    let (want_version, want_kind) = (kind.api_version(), &*kind.kind);
    let claim = |field: &str| match object.get(field) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(Status::bad_request(format!(
            "couldn't get version/kind; {field} is not a string"
        ))),
    };
    if !object.is_object() {
        return Err(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {want_kind}): the body is not a JSON object"
        )));
    }
    let (found_version, found_kind) = (claim("apiVersion")?, claim("kind")?);
    let found_version = if found_version.is_empty() {
        want_version.clone()
    } else {
        found_version
    };
    let found_kind = if found_kind.is_empty() {
        want_kind.to_owned()
    } else {
        found_kind
    };
    if found_version != want_version || found_kind != want_kind {
        if kind.is_custom() {
            return Err(of_another_type(object, kind, &found_version, &found_kind));
        }
        let is_other_view = |known: &ResourceKind| known.kind == want_kind && known.api_version() == found_version;
        if found_kind == want_kind && builtin_kinds().iter().any(is_other_view) {
            return Err(Status::bad_request(format!(
                "the API version in the data ({found_version}) does not match the expected API version ({want_version})"
            )));
        }
        return Err(of_another_kind(&found_version, &found_kind, &want_version, want_kind));
    }
    object["apiVersion"] = want_version.into();
    object["kind"] = want_kind.into();
    Ok(())
}

/// The answer to a body of another type than its endpoint takes, with kube-apiserver's text.
pub fn of_another_kind(found_version: &str, found_kind: &str, want_version: &str, want_kind: &str) -> Status {
    let version = found_version.rsplit('/').next().unwrap_or_default();
    let why = if protobuf::message(found_version, found_kind).is_some() {
        format!(
            "converting ({version}.{found_kind}) to ({}.{want_kind}): unknown conversion",
            go_package(gvr::split_api_version(want_version).0)
        )
    } else {
        format!(
            "no kind {} is registered for version {}",
            go_quote(found_kind),
            go_quote(found_version)
        )
    };
    Status::bad_request(format!(
        "{found_kind} in version {} cannot be handled as a {want_kind}: {why}",
        go_quote(version)
    ))
}

/// Go package in which kube-apiserver keeps the types of a group.
fn go_package(group: &str) -> &str {
    match group {
        "" | "events.k8s.io" => "core",
        group => group.split('.').next().unwrap_or_default(),
    }
}

/// Custom resources are decoded as any type, and validated afterwards.
fn of_another_type(object: &Value, kind: &ResourceKind, found_version: &str, found_kind: &str) -> Status {
    let want_version = kind.api_version();
    if found_version != want_version {
        return Status::bad_request(format!(
            "the API version in the data ({found_version}) does not match the expected API version ({want_version})"
        ));
    }
    let why = format!("must be {}", kind.kind);
    let fault = FieldError::invalid("kind", found_kind, &why);
    Status::invalid(&kind.group_kind(), access::text(object, "name"), &fault.into())
}

/// Gives a body the namespace of the URL, and rejects one that claims another.
///
/// # Errors
///
/// 400 if they differ.
pub fn settle_namespace(object: &mut Value, kind: &ResourceKind, requested: Option<&str>) -> Result<(), Status> {
    if !kind.namespaced {
        access::set_namespace(object, None);
        return Ok(());
    }
    let requested = requested.unwrap_or_default();
    let found = access::text(object, "namespace");
    if !found.is_empty() && found != requested {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    access::set_namespace(object, Some(requested));
    Ok(())
}

/// Rejects a body that does not have the name of the URL.
///
/// # Errors
///
/// 400 if they differ, or the body has none.
pub fn check_name(object: &Value, requested: &str) -> Result<(), Status> {
    let found = access::text(object, "name");
    if found.is_empty() {
        return Err(Status::bad_request(format!(
            "the name of the object ({requested} based on URL) was undeterminable: name must be provided"
        )));
    } else if found != requested {
        return Err(Status::bad_request(format!(
            "the name of the object ({found}) does not match the name on the URL ({requested})"
        )));
    }
    Ok(())
}

/// Rejects a new object with a resource version.
///
/// # Errors
///
/// 400 for any but "" and "0".
pub fn check_no_resource_version(object: &Value) -> Result<(), Status> {
    if matches!(access::text(object, "resourceVersion"), "" | "0") {
        return Ok(());
    }
    Err(Status::bad_request(
        "resourceVersion should not be set on objects to be created",
    ))
}
