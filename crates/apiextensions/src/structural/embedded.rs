//! Objects within objects (`x-kubernetes-embedded-resource`): their type and metadata.

use serde_json::{Map, Value};

use super::Node;
use super::path::Path;
use super::visit::visit;
use yurt_apimachinery::meta;
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_codec::typed;

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
        Err(why) => {
            let field = path.shown_below("metadata");
            errors.push(FieldError::invalid(field, metadata.clone(), &why.to_string()));
        }
    }
}

/// Requires a well-formed `apiVersion` and `kind`.
fn check_type(path: &mut Path, members: &Map<String, Value>, errors: &mut ErrorList) {
    for name in ["apiVersion", "kind"] {
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
            Some(other) => errors.push(FieldError::invalid(field, other.clone(), "must be a string")),
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
