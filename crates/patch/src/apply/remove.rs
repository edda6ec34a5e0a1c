//! Removes fields from a value.

use serde_json::{Map, Value};
use yurt_apimachinery::collecting::inserted;

use super::path::PathElement;
use super::set::FieldSet;
use super::types::{Shape, Type};

/// The value without the fields of `gone`; null when nothing is left. An atomic value is removed as a whole with any
/// field in it.
pub(super) fn without(ty: Type<'_>, value: &Value, gone: &FieldSet) -> Value {
    match (ty.shape(Some(value)), value) {
        (Shape::Scalar(_), value) => value.clone(),
        (Shape::List { is_atomic: false }, Value::Array(items)) => {
            let kept: Vec<Value> = items.iter().filter_map(|item| kept_item(ty, item, gone)).collect();
            if kept.is_empty() {
                Value::Null
            } else {
                Value::Array(kept)
            }
        }
        (Shape::Map { is_atomic: false }, Value::Object(members)) => {
            let kept = members
                .iter()
                .filter_map(|(name, member)| kept_member(ty, name, member, gone));
            let kept: Map<String, Value> = inserted(kept);
            if kept.is_empty() {
                Value::Null
            } else {
                Value::Object(kept)
            }
        }
        _ => Value::Null,
    }
}

fn kept_item(ty: Type<'_>, item: &Value, gone: &FieldSet) -> Option<Value> {
    let Ok(element) = ty.item(item) else {
        return Some(item.clone());
    };
    kept(ty.element(), &element, item, gone)
}

fn kept_member(ty: Type<'_>, name: &str, member: &Value, gone: &FieldSet) -> Option<(String, Value)> {
    let element = PathElement::Field(name.to_owned());
    let kept = match ty.member(name) {
        Some(inner) => kept(inner, &element, member, gone),
        None => Some(member.clone()),
    };
    Some((name.to_owned(), kept?))
}

fn kept(ty: Type<'_>, element: &PathElement, value: &Value, gone: &FieldSet) -> Option<Value> {
    if gone.has(element) {
        return None;
    }
    Some(match gone.below(element) {
        Some(below) => without(ty, value, below),
        None => value.clone(),
    })
}
