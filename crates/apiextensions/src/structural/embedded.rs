//! Objects within objects (`x-kubernetes-embedded-resource`): their type and metadata.

use serde_json::{Map, Value};

use super::Node;
use super::path::Path;
use super::shape::UNKNOWN_MAX;
use super::visit::{visit, visit_mut};
use yurt_apimachinery::meta;
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_codec::canonical::canonicalize_metadata;
use yurt_codec::typed::{self, TypedError};

/// Members that hold the type of an object.
const TYPE: [&str; 2] = ["apiVersion", "kind"];
const NO_STRING: &str = "must be a string";

/// Reads the type and the metadata of the objects within an object. Unknown fields of metadata are removed. Returns
/// them as `unknown field "…"`, sorted, 100 at most.
///
/// # Errors
/// The first value of another type.
pub(super) fn read(root: &Node, object: &mut Value) -> Result<Vec<String>, FieldError> {
    let (mut faults, mut error) = (Vec::new(), None);
    visit_mut(root, &mut Path::default(), object, &mut |node, path, value| {
        if node.embedded && !std::ptr::eq(node, root) && error.is_none() {
            error = read_one(path, value, &mut faults).err();
        }
    });
    faults.sort();
    error.map_or(Ok(faults), Err)
}

fn read_one(path: &mut Path, value: &mut Value, faults: &mut Vec<String>) -> Result<(), FieldError> {
    let Value::Object(members) = value else {
        return Ok(());
    };
    for name in TYPE {
        if let Some(other) = members.get(name).filter(|value| !value.is_string()) {
            return Err(FieldError::invalid(path.shown_below(name), other.clone(), NO_STRING));
        }
    }
    let Some(metadata) = members.get_mut("metadata") else {
        return Ok(());
    };
    let read = typed::read_metadata(metadata).map_err(|why| no_metadata(path, metadata, &why))?;
    let room = UNKNOWN_MAX.saturating_sub(faults.len());
    if !read.faults.is_empty() && room > 0 {
        // The path is made for the few faults that are named.
        let named = typed::read_metadata_at(&path.shown_below("metadata"), metadata);
        faults.extend(named.into_iter().flat_map(|read| read.faults).take(room));
    }
    *metadata = read.object;
    canonicalize_metadata(metadata);
    Ok(())
}

/// As [`read`], for a stored object: type and fields of metadata with a value of another type are removed, too.
/// Metadata that is no object stays.
pub(super) fn repair(root: &Node, object: &mut Value) {
    visit_mut(root, &mut Path::default(), object, &mut |node, _, value| {
        let Value::Object(members) = value else { return };
        if !node.embedded || std::ptr::eq(node, root) {
            return;
        }
        members.retain(|name, value| value.is_string() || !TYPE.contains(&name.as_str()));
        if let Some(metadata) = members.get_mut("metadata") {
            if let Some(repaired) = typed::repaired_metadata(metadata) {
                *metadata = repaired;
            }
            canonicalize_metadata(metadata);
        }
    });
}

/// Faults of the objects within an object.
pub(super) fn faults(root: &Node, object: &Value) -> ErrorList {
    let mut errors = ErrorList::default();
    visit(root, &mut Path::default(), object, &mut |node, path, value| {
        if node.embedded && !std::ptr::eq(node, root) {
            check(path, value, &mut errors);
        }
    });
    errors
}

fn check(path: &mut Path, value: &Value, errors: &mut ErrorList) {
    let Value::Object(members) = value else {
        return;
    };
    check_type(path, members, errors);
    let Some(metadata) = members.get("metadata") else {
        return;
    };
    match typed::read_metadata(metadata) {
        Ok(_) => errors.append(meta::validate_embedded(value).below(&path.shown())),
        Err(why) => errors.push(no_metadata(path, metadata, &why)),
    }
}

fn no_metadata(path: &mut Path, metadata: &Value, why: &TypedError) -> FieldError {
    FieldError::invalid(path.shown_below("metadata"), metadata.clone(), &why.to_string())
}

/// Requires a well-formed `apiVersion` and `kind`.
fn check_type(path: &mut Path, members: &Map<String, Value>, errors: &mut ErrorList) {
    for name in TYPE {
        let field = path.shown_below(name);
        match members.get(name) {
            None => errors.push(FieldError::required(field, "")),
            Some(Value::String(text)) if text.is_empty() => {
                errors.push(FieldError::invalid(field, "", "must not be empty"));
            }
            Some(Value::String(text)) => {
                let why = if name == "kind" {
                    kind_fault(text)
                } else {
                    version_fault(text)
                };
                errors.extend(why.map(|why| FieldError::invalid(field, text.as_str(), &why)));
            }
            Some(other) => errors.push(FieldError::invalid(field, other.clone(), NO_STRING)),
        }
    }
}

fn version_fault(text: &str) -> Option<String> {
    (text.matches('/').count() > 1).then(|| format!("unexpected GroupVersion string: {text}"))
}

fn kind_fault(text: &str) -> Option<String> {
    let faults = meta::dns_1035_label_errors(&text.to_lowercase());
    (!faults.is_empty()).then(|| {
        let faults = faults.join(",");
        format!("may have mixed case, but should otherwise match: {faults}")
    })
}
