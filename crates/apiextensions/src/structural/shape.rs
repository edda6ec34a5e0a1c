//! Pruning and defaulting.

use serde_json::{Map, Value};

use super::path::Path;
use super::visit::member;
use super::{Additional, Node};

/// Most unknown fields that are named, as for the built-in kinds.
pub(super) const UNKNOWN_MAX: usize = 100;

/// Members of every object, whether or not its schema lists them.
const TYPE_AND_META: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Removes unknown fields, and returns their paths.
pub(super) fn prune(object: &mut Value, node: &Node) -> Vec<String> {
    let mut unknown = Unknown::default();
    walk(object, Some(node), false, &mut unknown);
    unknown.named.sort();
    unknown.named
}

/// Unknown fields found so far, and the position of the walk.
#[derive(Default)]
struct Unknown {
    /// The first [`UNKNOWN_MAX`] paths, cut like the values of faults.
    named: Vec<String>,
    /// One path for the whole walk: a path for each value would cost the length of all names above it.
    path: Path,
}

// === impl Unknown ===

impl Unknown {
    fn name(&mut self, name: &str) {
        if self.named.len() < UNKNOWN_MAX {
            let named = &mut self.named;
            self.path.below(name, |path| named.push(path.shown().into_owned()));
        }
    }

    fn at(&mut self, step: impl FnOnce(&mut Path) -> usize, walk: impl FnOnce(&mut Self)) {
        let outer = step(&mut self.path);
        walk(self);
        self.path.back(outer);
    }
}

/// `None`: nothing is known of the value. A list that preserves unknown fields `keeps` those of its items; the members
/// that a schema lists are pruned by their own.
fn walk(value: &mut Value, node: Option<&Node>, keeps: bool, unknown: &mut Unknown) {
    let keeps = keeps || node.is_some_and(|node| node.preserves);
    match value {
        Value::Object(members) => walk_members(members, node, keeps, unknown),
        Value::Array(items) => {
            let inner = node.and_then(|node| node.items.as_deref());
            if keeps && inner.is_none() {
                return;
            }
            for (index, item) in items.iter_mut().enumerate() {
                unknown.at(
                    |path| path.enter_item(index),
                    |unknown| walk(item, inner, keeps, unknown),
                );
            }
        }
        _ => {}
    }
}

fn walk_members(members: &mut Map<String, Value>, node: Option<&Node>, keeps: bool, unknown: &mut Unknown) {
    members.retain(|name, value| {
        let is_meta = TYPE_AND_META.contains(&name.as_str());
        let Some(node) = node else {
            unknown.name(name);
            return false;
        };
        if node.embedded && is_meta {
            return true;
        }
        let inner = match (node.properties.get(name), &node.additional) {
            (Some(property), _) => Some(property),
            (None, Additional::Each(each)) => Some(&**each),
            (None, Additional::Any) => None,
            (None, Additional::None) if keeps => return true,
            (None, Additional::None) => {
                unknown.name(name);
                return false;
            }
        };
        unknown.at(|path| path.enter(name), |unknown| walk(value, inner, false, unknown));
        true
    });
}

/// Removes members with a forbidden null, which count as absent. A member with a default stays until `fill` replaces
/// its null.
pub(super) fn drop_nulls(value: &mut Value, node: &Node) {
    match value {
        Value::Object(members) => members.retain(|name, value| {
            let Some(inner) = member(node, name) else { return true };
            if inner.takes_null_for_nothing(value) && inner.default.is_none() {
                return false;
            }
            drop_nulls(value, inner);
            true
        }),
        Value::Array(items) => {
            if let Some(node) = &node.items {
                items.iter_mut().for_each(|item| drop_nulls(item, node));
            }
        }
        _ => {}
    }
}

/// Fills in defaults.
pub(super) fn fill(value: &mut Value, node: &Node) {
    let settle = |value: &mut Value, node: &Node| {
        if let Some(default) = node.default.as_ref().filter(|_| node.takes_null_for_nothing(value)) {
            *value = default.clone();
        }
        fill(value, node);
    };
    match value {
        Value::Object(members) => {
            for (name, property) in &node.properties {
                if let Some(default) = property.default.as_ref().filter(|_| !members.contains_key(name)) {
                    members.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in members.iter_mut() {
                if let Some(inner) = member(node, name) {
                    settle(value, inner);
                }
            }
        }
        Value::Array(items) => {
            if let Some(node) = &node.items {
                items.iter_mut().for_each(|item| settle(item, node));
            }
        }
        _ => {}
    }
}
