//! Checks that a body describes the object that the URL names.

use serde_json::Value;

use super::access;
use crate::kind::ResourceKind;
use crate::status::Status;

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
