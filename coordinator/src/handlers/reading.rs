//! How a body becomes an object of its kind, and what its writer is told about fields nobody knows.

use serde_json::Value;
use yurt_apimachinery::gvr::GroupKind;
use yurt_apimachinery::object::TypeMeta;
use yurt_apimachinery::options::FieldValidation;
use yurt_apimachinery::status::FieldError;
use yurt_apimachinery::typed::{self, Typed, TypedError};
use yurt_apimachinery::{Status, meta, schema};

use super::Call;
use crate::registry::Resource;

/// Reads the JSON of a create or update.
///
/// # Errors
/// 400 with kube-apiserver's words for an empty body and for one that is no object of the kind, or with the parser's.
pub(super) fn read(call: &Call, body: &[u8], validation: FieldValidation) -> Result<Value, Status> {
    let resource = &call.resource;
    let kind = &resource.kind.kind;
    if body.iter().all(u8::is_ascii_whitespace) {
        let message = format!(
            "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse error: \
             unexpected end of JSON input (<empty>)"
        );
        return Err(Status::bad_request(message));
    }
    let syntax = |error| Status::bad_request(format!("couldn't get version/kind; json parse error: {error}"));
    if body.trim_ascii() == b"null" {
        // Go reads it into an object without anything in it.
        return Ok(Value::Object(serde_json::Map::new()));
    }
    let Some(message) = message(resource).filter(|_| is_about(resource, body)) else {
        // Of another kind, which is said later, or of one without a known type.
        return serde_json::from_slice(body).map_err(syntax);
    };
    let cannot = |why: String| {
        let version = &resource.kind.version;
        Status::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"
        ))
    };
    let read = typed::read(body, message).map_err(|error| match error {
        TypedError::Syntax(error) => syntax(error),
        TypedError::Type(why) => cannot(why),
    })?;
    settle(call, read, validation).map_err(cannot)
}

/// Reads what a patch has made of an object; `shown` is what a refusal shows of it.
///
/// # Errors
/// 422 when it is no object of the kind any more.
pub(super) fn patched(
    call: &Call,
    object: Value,
    validation: FieldValidation,
    shown: &dyn Fn(&Value) -> String,
) -> Result<Value, Status> {
    let resource = &call.resource;
    let Some(message) = message(resource) else {
        return Ok(object);
    };
    if claims(resource, &object) && typed::conforms(&object, message) {
        call.warnings.extend(owners_named_twice(&object));
        return Ok(object);
    }
    let text = object.to_string();
    let refused = |why: String| {
        let error = FieldError::invalid("patch", shown(&object), &why);
        Status::invalid(&GroupKind::default(), "", &[error])
    };
    if !is_about(resource, text.as_bytes()) {
        let claimed = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
        let (kind, version) = (claimed("kind"), claimed("apiVersion"));
        return Err(refused(format!(
            "no kind \"{kind}\" is registered for version \"{version}\""
        )));
    }
    let read = typed::read(text.as_bytes(), message).map_err(|error| refused(error.to_string()))?;
    settle(call, read, validation).map_err(refused)
}

/// Reads what an apply has made of an object: nulls are unset, and values have their types.
///
/// # Errors
/// 500, as kube-apiserver answers, when it is no object of the kind.
pub(super) fn applied(resource: &Resource, object: Value) -> Result<Value, Status> {
    let Some(message) = message(resource) else {
        return Ok(object);
    };
    let read = typed::read(object.to_string().as_bytes(), message);
    read.map(|read| read.object).map_err(|error| {
        let (namespace, name) = (meta::text(&object, "namespace"), meta::text(&object, "name"));
        let kind = resource.kind.gvk();
        let kind = format!("{}/{}, Kind={}", kind.group, kind.version, kind.kind);
        let why = format!("failed to convert new object ({namespace}/{name}; {kind}) to proper version: {error}");
        Status::failure(500, "", why)
    })
}

fn message(resource: &Resource) -> Option<schema::Message> {
    let kind = resource.kind;
    schema::find(&kind.group, &kind.version, &kind.kind)
}

/// Whether a body says that it is of the resource's kind, or nothing about it.
fn is_about(resource: &Resource, body: &[u8]) -> bool {
    let fits = |claimed: &str, kind: &str| claimed.is_empty() || claimed == kind;
    TypeMeta::peek(body).is_ok_and(|claimed| {
        fits(&claimed.api_version, &resource.kind.api_version()) && fits(&claimed.kind, &resource.kind.kind)
    })
}

/// The same of a value, where it names its kind in full; others are looked at again.
fn claims(resource: &Resource, object: &Value) -> bool {
    object["apiVersion"] == *resource.kind.api_version() && object["kind"] == *resource.kind.kind
}

/// What is done about the faults; an error is the reason of a refusal.
fn settle(call: &Call, read: Typed, validation: FieldValidation) -> Result<Value, String> {
    match validation {
        FieldValidation::Strict if !read.faults.is_empty() => {
            return Err(format!("strict decoding error: {}", read.faults.join(", ")));
        }
        FieldValidation::Warn => call.warnings.extend(read.faults),
        FieldValidation::Ignore | FieldValidation::Strict => {}
    }
    call.warnings.extend(owners_named_twice(&read.object));
    Ok(read.object)
}

/// The same owner is stored once.
fn owners_named_twice(object: &Value) -> Option<String> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    let mut seen = Vec::new();
    let mut twice: Vec<&str> = Vec::new();
    for owner in owners {
        let uid = owner["uid"].as_str().unwrap_or_default();
        if seen.contains(&owner) && !twice.contains(&uid) {
            twice.push(uid);
        }
        seen.push(owner);
    }
    (!twice.is_empty()).then(|| {
        format!(
            ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may \
             reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            twice.join(", ")
        )
    })
}
