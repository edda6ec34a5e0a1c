//! Parses bodies into objects of their kind, and warns their writer about unknown fields.

use std::collections::HashSet;

use bytes::Bytes;
use serde_json::Value;
use yurt_apimachinery::gvr::GroupKind;
use yurt_apimachinery::object::TypeMeta;
use yurt_apimachinery::options::FieldValidation;
use yurt_apimachinery::status::FieldError;
use yurt_apimachinery::{Status, json_text, meta};
use yurt_codec::negotiation::{body_format, body_json};
use yurt_codec::typed::{self, Typed, TypedError};
use yurt_codec::{decoded, protobuf, schema, type_meta};

use crate::registry::Resource;
use crate::registry::own::Current;
use crate::request::Call;
use crate::request::warnings::Warnings;

/// Most bytes of faults that one refusal names; further ones add no information.
const FAULTS_BYTES_MAX: usize = 32 << 10;

/// Accepted kind of an endpoint, in any of these versions. A body without a version means the first one.
pub(crate) struct Expected<'a> {
    pub(crate) kind: &'a str,
    pub(crate) api_versions: &'a [&'a str],
}

/// Parses the body of a create or update.
///
/// # Errors
/// 400, 413 and 415 as [`read`], for the resource's own kind.
pub(super) fn body(call: &Call, validation: FieldValidation) -> Result<Value, Status> {
    let kind = call.resource.kind;
    let expected = Expected {
        kind: &kind.kind,
        api_versions: &[&kind.api_version()],
    };
    let content_type = call.header(http::header::CONTENT_TYPE);
    let object = read(&expected, content_type, &call.body, validation, &call.warnings)?;
    if message(&call.resource).is_some() || expected.check(&object).is_err() {
        return Ok(object);
    }
    let repeated = match validation {
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn | FieldValidation::Strict => typed::repeated_fields(&call.body),
    };
    custom(&call.resource, object, repeated, validation, &call.warnings).map_err(|why| {
        let (name, version) = (&kind.kind, &kind.version);
        Status::bad_request(format!(
            "{name} in version \"{version}\" cannot be handled as a {name}: {why}"
        ))
    })
}

/// Reads an object of a kind without a built-in type: metadata by its type, and the rest by the kind's schema, which
/// prunes and defaults. `faults` are those of the text, which are handled together with unknown fields.
fn custom(
    resource: &Resource,
    mut object: Value,
    mut faults: Vec<String>,
    validation: FieldValidation,
    warnings: &Warnings,
) -> Result<Value, String> {
    faults.extend(read_metadata(&mut object)?);
    if let Some(schema) = &resource.structural {
        faults.extend(schema.read(&mut object).map_err(|error| error.to_string())?);
    }
    json_text::settle_numbers(&mut object);
    settle(warnings, Typed { object, faults }, validation)
}

/// Drops unknown fields of metadata, and returns the faults. The error is the reason why it is no metadata.
fn read_metadata(object: &mut Value) -> Result<Vec<String>, String> {
    let Some(metadata) = object.get_mut("metadata").filter(|metadata| !metadata.is_null()) else {
        return Ok(Vec::new());
    };
    let read = typed::read_metadata(metadata).map_err(|error| error.to_string())?;
    *metadata = read.object;
    Ok(read.faults)
}

/// Parses a body of the expected kind, in any format. A body of another kind, or of a kind without a known type, is
/// parsed without one.
///
/// # Errors
/// 415 for an unsupported format. 413 for too many values. 400 with kube-apiserver's message for an empty body and for
/// one that is no object of the kind, or with the parser's.
pub(crate) fn read(
    expected: &Expected<'_>,
    content_type: Option<&str>,
    body: &Bytes,
    validation: FieldValidation,
    warnings: &Warnings,
) -> Result<Value, Status> {
    let kind = expected.kind;
    let body = &body_json(body_format(content_type)?, expected.api_versions[0], kind, body)?;
    let syntax = |error: &dyn std::fmt::Display| {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse error: {error}"
        ))
    };
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(syntax(&"unexpected end of JSON input (<empty>)"));
    }
    if body.trim_ascii() == b"null" {
        // Go parses it into an empty object.
        return Ok(Value::Object(serde_json::Map::new()));
    }
    let cannot = |version: &str, why: String| {
        let version = version.rsplit('/').next().unwrap_or_default();
        Status::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"
        ))
    };
    // Nearly every body is of the expected kind, in the first version. Assuming that, it is parsed once.
    let first = expected.api_versions[0];
    let likely = protobuf::message(first, kind).and_then(|message| typed::read(body, message).ok());
    if let Some(read) = likely.filter(|read| expected.is_first(&read.object)) {
        return settle(warnings, read, validation).map_err(|why| cannot(first, why));
    }
    let claimed = TypeMeta::peek(body).ok().and_then(|claimed| expected.version(&claimed));
    let message = claimed.and_then(|version| Some((version, protobuf::message(version, kind)?)));
    let Some((version, message)) = message else {
        // It is of another kind, which is reported later, or of one without a known type.
        let object = json_text::parse(body).map_err(|error| syntax(&error))?;
        return match meta::check_list_lengths(&object) {
            Ok(()) => Ok(object),
            Err(fault) => Err(cannot(first, fault.to_string())),
        };
    };
    let read = typed::read(body, message).map_err(|error| match error {
        TypedError::Syntax(error) => syntax(&error),
        TypedError::Type(why) => cannot(version, why),
    })?;
    settle(warnings, read, validation).map_err(|why| cannot(version, why))
}

// === impl Expected ===

impl<'a> Expected<'a> {
    /// Refuses a body that names another kind or version.
    ///
    /// # Errors
    /// 400, also for a body that is no JSON object.
    pub(crate) fn check(&self, body: &Value) -> Result<(), Status> {
        let claimed = |field: &str| body.get(field).and_then(Value::as_str).unwrap_or_default();
        if !body.is_object() {
            return Err(Status::bad_request(format!("the body is not a {}", self.kind)));
        }
        let (version, kind) = (claimed("apiVersion"), claimed("kind"));
        if (kind.is_empty() || kind == self.kind) && (version.is_empty() || self.api_versions.contains(&version)) {
            return Ok(());
        }
        let wanted = self.api_versions[0];
        let version = if version.is_empty() { wanted } else { version };
        let kind = if kind.is_empty() { self.kind } else { kind };
        Err(type_meta::of_another_kind(version, kind, wanted, self.kind))
    }

    /// True if a body is in the first of the versions, or names none.
    fn is_first(&self, body: &Value) -> bool {
        let is = |field: &str, wanted: &str| match body.get(field) {
            None | Some(Value::Null) => true,
            Some(Value::String(claimed)) => claimed.is_empty() || claimed == wanted,
            Some(_) => false,
        };
        is("kind", self.kind) && is("apiVersion", self.api_versions[0])
    }

    /// The version of a body; `None` when it names another kind or version.
    fn version(&self, claimed: &TypeMeta) -> Option<&'a str> {
        if !(claimed.kind.is_empty() || claimed.kind == self.kind) {
            return None;
        }
        if claimed.api_version.is_empty() {
            return self.api_versions.first().copied();
        }
        self.api_versions
            .iter()
            .find(|version| **version == claimed.api_version)
            .copied()
    }
}

/// The state that a patch changes, in the version of the resource. What its schema does not know is no part of it, and
/// no fault of the patch.
pub(super) fn stored(resource: &Resource, current: &Current) -> Value {
    let mut object = current.stored().clone();
    meta::set_resource_version(&mut object, current.resource_version());
    if let Some(view) = resource.view {
        view.show(&mut object, resource.kind);
        if let Some(schema) = &resource.structural {
            schema.shape(&mut object);
        }
    }
    object
}

/// Parses the result of a patch. `faults` are those of the patch's own text; `shown` is the text that a refusal
/// includes.
///
/// # Errors
/// 413 when it takes too much memory, 422 when it is no object of the kind any more.
pub(super) fn patched(
    call: &Call,
    object: Value,
    faults: &[String],
    validation: FieldValidation,
    shown: &dyn Fn(&Value) -> String,
) -> Result<Value, Status> {
    let resource = &call.resource;
    check_extent(resource, &object)?;
    let invalid = |shown: String, why: String| {
        let error = FieldError::invalid("patch", shown, &why);
        Status::invalid(&GroupKind::default(), "", &error.into())
    };
    let Some(message) = message(resource) else {
        let before = shown(&object);
        let read = custom(resource, object, faults.to_vec(), validation, &call.warnings);
        return read.map_err(|why| invalid(before, why));
    };
    if faults.is_empty() && claims(resource, &object) && typed::conforms(&object, message) {
        call.warnings.extend(owners_named_twice(&object));
        return Ok(object);
    }
    let text = object.to_string();
    let refused = |why: String| invalid(shown(&object), why);
    if !is_about(resource, text.as_bytes()) {
        let claimed = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
        let (kind, version) = (claimed("kind"), claimed("apiVersion"));
        return Err(refused(format!(
            "no kind \"{kind}\" is registered for version \"{version}\""
        )));
    }
    let mut read = typed::read(text.as_bytes(), message).map_err(|error| refused(error.to_string()))?;
    read.faults.splice(..0, faults.iter().cloned());
    settle(&call.warnings, read, validation).map_err(refused)
}

/// Parses the result of an apply: nulls are unset, and values have their types.
///
/// # Errors
/// 413 when it takes too much memory; 500, as kube-apiserver answers, when it is no object of the kind; 422 for a list
/// of metadata with too many entries.
pub(super) fn applied(resource: &Resource, object: Value) -> Result<Value, Status> {
    check_extent(resource, &object)?;
    let Some(message) = message(resource) else {
        let mut object = object;
        if let Err(why) = read_metadata(&mut object) {
            return Err(not_converted(resource, &object, &why));
        }
        if let Some(schema) = &resource.structural
            && let Err(why) = schema.read(&mut object)
        {
            return Err(not_converted(resource, &object, &why));
        }
        json_text::settle_numbers(&mut object);
        return Ok(object);
    };
    let read = typed::read(object.to_string().as_bytes(), message);
    read.map(|read| read.object)
        .map_err(|error| not_converted(resource, &object, &error))
}

fn not_converted(resource: &Resource, object: &Value, why: &dyn std::fmt::Display) -> Status {
    let (namespace, name) = (meta::text(object, "namespace"), meta::text(object, "name"));
    let kind = resource.kind.gvk();
    let kind = format!("{}/{}, Kind={}", kind.group, kind.version, kind.kind);
    let why = format!("failed to convert new object ({namespace}/{name}; {kind}) to proper version: {why}");
    Status::failure(500, "", why)
}

fn message(resource: &Resource) -> Option<schema::Message> {
    let kind = resource.kind;
    schema::find(&kind.group, &kind.version, &kind.kind)
}

/// True if a body names the resource's kind, or none.
fn is_about(resource: &Resource, body: &[u8]) -> bool {
    let fits = |claimed: &str, kind: &str| claimed.is_empty() || claimed == kind;
    TypeMeta::peek(body).is_ok_and(|claimed| {
        fits(&claimed.api_version, &resource.kind.api_version()) && fits(&claimed.kind, &resource.kind.kind)
    })
}

/// True if a value names exactly the resource's version and kind; others are checked again.
fn claims(resource: &Resource, object: &Value) -> bool {
    object["apiVersion"] == *resource.kind.api_version() && object["kind"] == *resource.kind.kind
}

/// Checks the memory of the object and the lengths of metadata's lists, which a patch or an apply may have extended.
fn check_extent(resource: &Resource, object: &Value) -> Result<(), Status> {
    decoded::check_value(object)?;
    let kind = resource.kind.group_kind();
    meta::check_list_lengths(object).map_err(|fault| Status::invalid(&kind, meta::text(object, "name"), &fault.into()))
}

/// Handles the faults of a body by its field validation; an error is the reason of a refusal.
fn settle(warnings: &Warnings, read: Typed, validation: FieldValidation) -> Result<Value, String> {
    meta::check_list_lengths(&read.object).map_err(|fault| fault.to_string())?;
    match validation {
        FieldValidation::Strict if !read.faults.is_empty() => {
            return Err(format!("strict decoding error: {}", joined(&read.faults)));
        }
        FieldValidation::Warn => warnings.extend(read.faults),
        FieldValidation::Ignore | FieldValidation::Strict => {}
    }
    warnings.extend(owners_named_twice(&read.object));
    Ok(read.object)
}

/// The first faults of a body as one text.
fn joined(faults: &[String]) -> String {
    let mut room = FAULTS_BYTES_MAX;
    let mut fits = |fault: &&String| room.checked_sub(fault.len()).inspect(|left| room = *left).is_some();
    let shown = faults.iter().take_while(|fault| fits(fault)).count();
    faults[..shown].join(", ")
}

/// Warning about an owner that is named twice: it is stored once.
fn owners_named_twice(object: &Value) -> Option<String> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    let (mut seen, mut named) = (HashSet::new(), HashSet::new());
    let twice = owners.iter().filter(|owner| !seen.insert(*owner));
    let twice = twice.map(|owner| owner["uid"].as_str().unwrap_or_default());
    let twice: Vec<&str> = twice.filter(|uid| named.insert(*uid)).collect();
    (!twice.is_empty()).then(|| {
        format!(
            ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may \
             reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            twice.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use yurt_test_support::{LINEAR, growth};

    use super::*;

    #[test]
    fn refusal_names_a_bounded_part_of_the_faults() {
        let settled = |faults: Vec<String>| {
            let object = json!({});
            settle(&Warnings::default(), Typed { object, faults }, FieldValidation::Strict)
        };
        let two = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(settled(two), Err("strict decoding error: a, b".to_owned()));
        let refused = settled(vec!["x".repeat(2 << 10); 100]).unwrap_err();
        assert!(refused.len() < 33 << 10, "{} bytes", refused.len());
    }

    #[test]
    fn repeated_owners_are_found_by_going_once_over_all() {
        let owners = |n: usize| -> Value {
            let owners: Value = (0..n).map(|at| json!({ "uid": (at / 2).to_string() })).collect();
            json!({"metadata": {"ownerReferences": owners}})
        };
        let warning = owners_named_twice(&owners(5)).unwrap();
        assert!(warning.ends_with("duplicate UID(s) observed: 0, 1"), "{warning}");
        assert_eq!(
            owners_named_twice(&json!({"metadata": {"ownerReferences": [{"uid": "a"}, {"uid": "b"}]}})),
            None
        );
        let grown = growth(2_000, owners, |object| assert!(owners_named_twice(&object).is_some()));
        assert!(grown < LINEAR, "{grown}");
    }
}
