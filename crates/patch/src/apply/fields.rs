//! Fields that a value mentions: those its applier owns.

use std::collections::BTreeMap;

use serde_json::Value;

use super::path::PathElement;
use super::set::{FieldSet, Node};
use super::types::{Shape, Type};

/// Every leaf and every element of a valid value.
pub(super) fn fields_of(ty: Type<'_>, value: &Value) -> FieldSet {
    let mut root = Node::default();
    walk(ty, value, &mut root);
    root.into_below()
}

/// The set plus every declared field that has members below it: the fields that a removal of the set removes.
pub(super) fn with_named_fields(set: &FieldSet, ty: Option<Type<'_>>) -> FieldSet {
    set.mapped(|element, is_member, below| {
        let (inner, is_named) = match (element, ty) {
            (PathElement::Field(name), Some(ty)) => (ty.member(name), ty.declared(name).is_some()),
            (PathElement::Key(_), Some(ty)) => (Some(ty.element()), false),
            _ => (None, false),
        };
        (
            is_member || (is_named && !below.is_empty()),
            with_named_fields(below, inner),
        )
    })
}

/// Adapts a set that was made with older types: below a field that is atomic now, ownership applies to the whole field.
pub(super) fn fitted(set: &FieldSet, ty: Type<'_>) -> FieldSet {
    if ty.is_deduced() {
        return set.clone();
    }
    set.mapped(|element, is_member, below| {
        let inner = match element {
            PathElement::Field(name) => ty.member(name),
            _ => Some(ty.element()),
        };
        let Some(inner) = inner.filter(|_| !below.is_empty()) else {
            return (is_member, below.clone());
        };
        match inner.shape(None) {
            Shape::Map { is_atomic: true } | Shape::List { is_atomic: true } => (true, FieldSet::default()),
            _ => (is_member, fitted(below, inner)),
        }
    })
}

fn walk(ty: Type<'_>, value: &Value, here: &mut Node) {
    match (ty.shape(Some(value)), value) {
        (Shape::Scalar(_) | Shape::List { is_atomic: true } | Shape::Map { is_atomic: true }, _) => {
            here.is_member = true
        }
        (Shape::List { .. }, Value::Array(items)) => walk_items(ty, items, here),
        (Shape::Map { .. }, Value::Object(members)) => {
            for (name, member) in members {
                let Some(inner) = ty.member(name) else { continue };
                let mut below = Node::default();
                walk(inner, member, &mut below);
                let is_bare = member.is_null() || member.as_object().is_some_and(serde_json::Map::is_empty);
                if is_bare || ty.declared(name).is_none() {
                    below.is_member = true;
                }
                here.attach(&PathElement::Field(name.clone()), below);
            }
        }
        _ => {}
    }
}

fn walk_items(ty: Type<'_>, items: &[Value], here: &mut Node) {
    let mut known: BTreeMap<PathElement, Vec<&Value>> = BTreeMap::new();
    for item in items {
        if let Ok(element) = ty.item(item) {
            known.entry(element).or_default().push(item);
        }
    }
    for (element, items) in known {
        let mut below = Node::default();
        // Of duplicate elements only their existence is owned.
        if let [item] = items.as_slice() {
            walk(ty.element(), item, &mut below);
        }
        below.is_member = true;
        here.attach(&element, below);
    }
}
