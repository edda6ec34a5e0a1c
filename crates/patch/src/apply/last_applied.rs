//! The annotation of client-side apply. kubectl takes over its fields without a conflict, and the annotation is kept up
//! to date.

use serde_json::Value;

use super::compare::compare;
use super::fields::fields_of;
use super::set::FieldSet;
use super::types::Type;
use super::validate::validate;
use yurt_apimachinery::{json_text, meta};

/// The only manager this applies to.
pub(super) const MANAGER: &str = "kubectl";
pub(super) const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Most bytes of all annotations; the annotation is dropped when it does not fit.
const ANNOTATIONS_MAX: usize = 256 << 10;

/// The fields of the last applied configuration that still have its values.
pub(super) fn unchanged(ty: Type<'_>, version: &str, live: &Value) -> FieldSet {
    let last = annotation(live).and_then(|text| json_text::parse(text.as_bytes()).ok());
    let last = last.filter(|last| last.get("apiVersion").and_then(Value::as_str) == Some(version));
    let Some(last) = last.filter(|last| validate(ty, last, false).is_ok()) else {
        return FieldSet::default();
    };
    let changed = compare(ty, &last, live);
    let fields = fields_of(ty, &last);
    fields
        .difference(&changed.modified)
        .difference(&changed.added)
        .difference(&changed.removed)
}

/// Writes the configuration into the annotation, if there is one.
pub(super) fn refresh(object: &mut Value, config: &Value) {
    if annotation(object).is_none_or(str::is_empty) {
        return;
    }
    let mut config = config.clone();
    if let Some(annotations) = annotations_mut(&mut config) {
        annotations.remove(ANNOTATION);
    }
    let text = format!("{config}\n");
    let Some(annotations) = annotations_mut(object) else {
        return;
    };
    annotations.insert(ANNOTATION.to_owned(), text.into());
    let size = |(name, value): (&String, &Value)| name.len() + value.as_str().map(str::len).unwrap_or_default();
    if annotations.iter().map(size).sum::<usize>() > ANNOTATIONS_MAX {
        annotations.remove(ANNOTATION);
    }
}

fn annotation(object: &Value) -> Option<&str> {
    meta::metadata(object)?.get("annotations")?.get(ANNOTATION)?.as_str()
}

fn annotations_mut(object: &mut Value) -> Option<&mut serde_json::Map<String, Value>> {
    object.get_mut("metadata")?.get_mut("annotations")?.as_object_mut()
}
