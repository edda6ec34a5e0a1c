//! Differences between two values of a type, as sets of fields.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::path::{self, PathElement};
use super::set::{FieldSet, Node};
use super::types::{Shape, Type};

/// The differences. A field is in one of the sets at most.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) removed: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) added: FieldSet,
}

/// Compares two valid values.
pub(super) fn compare(ty: Type<'_>, old: &Value, new: &Value) -> Comparison {
    let mut walk = Walk::default();
    walk.value(ty, Some(old), Some(new));
    let Found {
        removed,
        modified,
        added,
    } = walk.found;
    Comparison {
        removed: removed.into_below(),
        modified: modified.into_below(),
        added: added.into_below(),
    }
}

/// True if two values are equal in meaning.
pub(super) fn is_same(a: &Value, b: &Value) -> bool {
    path::compare(a, b).is_eq()
}

#[derive(Default)]
struct Walk {
    found: Found,
}

/// The differences at a place and below it. The path to the place is not stored here: a long name with many fields
/// below costs no more than its length.
#[derive(Default)]
struct Found {
    removed: Node,
    modified: Node,
    added: Node,
}

/// The values under one key of a list, before and after.
type Doubles<'a> = BTreeMap<PathElement, (Vec<&'a Value>, Vec<&'a Value>)>;

// === impl Comparison ===

impl Comparison {
    /// Removes fields that this write does not store, and everything below them.
    pub(super) fn without(self, ignored: &FieldSet) -> Self {
        if ignored.is_empty() {
            return self;
        }
        Self {
            removed: self.removed.without_trees(ignored),
            modified: self.modified.without_trees(ignored),
            added: self.added.without_trees(ignored),
        }
    }
}

// === impl Walk ===

impl Walk {
    fn below(&mut self, element: PathElement, walk: impl FnOnce(&mut Self)) {
        let outer = std::mem::take(&mut self.found);
        walk(self);
        let inner = std::mem::replace(&mut self.found, outer);
        self.found.removed.attach(&element, inner.removed);
        self.found.modified.attach(&element, inner.modified);
        self.found.added.attach(&element, inner.added);
    }

    fn value(&mut self, ty: Type<'_>, old: Option<&Value>, new: Option<&Value>) {
        let (before, after) = (ty.shape(old), ty.shape(new));
        let is_leaf = if new.is_none() {
            self.shaped(ty, before, old, new)
        } else {
            if old.is_some() && before != after {
                self.shaped(ty, before, old, new);
            }
            self.shaped(ty, after, old, new)
        };
        match (old, new) {
            _ if is_leaf => {}
            (None, _) => self.found.added.is_member = true,
            (_, None) => self.found.removed.is_member = true,
            _ => {}
        }
    }

    /// Compares as values of one form; returns true if they were compared as a whole.
    fn shaped(&mut self, ty: Type<'_>, shape: Shape, old: Option<&Value>, new: Option<&Value>) -> bool {
        match shape {
            Shape::Scalar(_) => self.leaf(old, new),
            Shape::List { is_atomic } => {
                let (before, after) = (array(old), array(new));
                if is_atomic || (before.is_empty() && after.is_empty()) {
                    return self.leaf(old, new);
                }
                self.items(ty, before, after);
                false
            }
            Shape::Map { is_atomic } => {
                let (before, after) = (members(old), members(new));
                let is_empty = |members: Option<&Map<String, Value>>| members.is_none_or(Map::is_empty);
                if is_atomic || (is_empty(before) && is_empty(after)) {
                    return self.leaf(old, new);
                }
                self.members(ty, before, after);
                false
            }
        }
    }

    fn leaf(&mut self, old: Option<&Value>, new: Option<&Value>) -> bool {
        match (old, new) {
            (None, _) => self.found.added.is_member = true,
            (_, None) => self.found.removed.is_member = true,
            (Some(old), Some(new)) if is_same(old, new) => {}
            _ => self.found.modified.is_member = true,
        }
        true
    }

    fn members(&mut self, ty: Type<'_>, old: Option<&Map<String, Value>>, new: Option<&Map<String, Value>>) {
        let is_old = |name: &str| old.is_some_and(|members| members.contains_key(name));
        for (name, before) in old.into_iter().flatten() {
            if let Some(inner) = ty.member(name) {
                let after = new.and_then(|members| members.get(name));
                self.below(PathElement::Field(name.clone()), |walk| {
                    walk.value(inner, Some(before), after)
                });
            }
        }
        for (name, after) in new.into_iter().flatten().filter(|(name, _)| !is_old(name)) {
            if let Some(inner) = ty.member(name) {
                self.below(PathElement::Field(name.clone()), |walk| {
                    walk.value(inner, None, Some(after))
                });
            }
        }
    }

    fn items(&mut self, ty: Type<'_>, old: &[Value], new: &[Value]) {
        let mut doubles = Doubles::new();
        for item in old {
            if let Ok(element) = ty.item(item) {
                doubles.entry(element).or_default().0.push(item);
            }
        }
        for item in new {
            if let Ok(element) = ty.item(item) {
                doubles.entry(element).or_default().1.push(item);
            }
        }
        for (element, (before, after)) in doubles {
            self.below(element, |walk| walk.element(ty.element(), &before, &after));
        }
    }

    /// Compares one element. Duplicates of an element count as one value, which is not compared further.
    fn element(&mut self, ty: Type<'_>, before: &[&Value], after: &[&Value]) {
        match (before, after) {
            ([] | [_], [] | [_]) => self.value(ty, before.first().copied(), after.first().copied()),
            ([_, _, ..], [_, _, ..]) => {
                let is_unchanged = before.len() == after.len() && before.iter().zip(after).all(|(a, b)| is_same(a, b));
                if !is_unchanged {
                    self.found.modified.is_member = true;
                }
            }
            ([_, _, ..], _) => {
                if let Some(one) = after.first() {
                    self.value(ty, None, Some(one));
                }
                self.found.removed.is_member = true;
            }
            (_, _) => {
                if let Some(one) = before.first() {
                    self.value(ty, Some(one), None);
                }
                self.found.added.is_member = true;
            }
        }
    }
}

/// The elements; empty if there is no list.
fn array(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn members(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}
