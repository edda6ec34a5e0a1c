//! Checks that a body is of the kind that its endpoint takes.

use serde_json::Value;
use yurt_apimachinery::kind::{ResourceKind, builtin_kinds};
use yurt_apimachinery::status::{FieldError, Status};
use yurt_apimachinery::text::go_quote;
use yurt_apimachinery::{gvr, meta};

use crate::protobuf;

/// Fills in apiVersion and kind of a body, and rejects one that claims another type.
///
/// # Errors
///
/// 400 for another apiVersion or kind, or a body that is no JSON object.
pub fn complete(object: &mut Value, kind: &ResourceKind) -> Result<(), Status> {
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
    Status::invalid(&kind.group_kind(), meta::text(object, "name"), &fault.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use yurt_apimachinery::kind::find_kind;

    use super::*;

    /// Conformance: 3.A06
    #[test]
    fn bodies_of_another_kind_are_rejected() {
        let pods = find_kind("", "pods").expect("a built-in kind");
        let mut object = json!({"metadata": {"name": "a"}});
        complete(&mut object, pods).unwrap();
        assert_eq!(
            (object["apiVersion"].as_str(), object["kind"].as_str()),
            (Some("v1"), Some("Pod"))
        );
        let mut other = json!({"apiVersion": "coordination.k8s.io/v99", "kind": "Lease"});
        let status = complete(&mut other, find_kind("coordination.k8s.io", "leases").unwrap()).unwrap_err();
        assert_eq!(
            status.message(),
            "Lease in version \"v99\" cannot be handled as a Lease: no kind \"Lease\" is registered for version \
             \"coordination.k8s.io/v99\""
        );
        let mut other = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        let status = complete(&mut other, pods).unwrap_err();
        assert_eq!(
            status.message(),
            "ConfigMap in version \"v1\" cannot be handled as a Pod: converting (v1.ConfigMap) to (core.Pod): unknown conversion"
        );
        assert!(complete(&mut json!({"kind": 1}), pods).is_err());
        assert!(complete(&mut json!([]), pods).is_err());
    }
}
