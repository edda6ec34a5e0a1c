//! Pruning and defaulting.

use serde_json::{Map, Value};

use super::{Additional, Node};

/// What every object has whatever its schema says.
const TYPE_AND_META: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Takes away what is not known, and names it.
pub(super) fn prune(object: &mut Value, node: &Node) -> Vec<String> {
    let mut unknown = Vec::new();
    walk(object, Some(node), "", &mut unknown);
    unknown.sort();
    unknown
}

/// `None`: nothing is known of the value.
fn walk(value: &mut Value, node: Option<&Node>, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(members) => walk_members(members, node, path, unknown),
        Value::Array(items) => {
            let (inner, keeps) = match node {
                Some(node) if node.preserves => (node.items.as_deref(), true),
                Some(node) => (node.items.as_deref(), false),
                None => (None, false),
            };
            if keeps && inner.is_none() {
                return;
            }
            for (index, item) in items.iter_mut().enumerate() {
                walk(item, inner, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

fn walk_members(members: &mut Map<String, Value>, node: Option<&Node>, path: &str, unknown: &mut Vec<String>) {
    members.retain(|name, value| {
        let is_meta = TYPE_AND_META.contains(&name.as_str());
        let here = join(path, name);
        let Some(node) = node else {
            unknown.push(here);
            return false;
        };
        if node.embedded && is_meta {
            return true;
        }
        let inner = match (node.properties.get(name), &node.additional) {
            (Some(property), _) => Some(property),
            (None, Additional::Each(each)) => Some(&**each),
            (None, Additional::Any) => None,
            (None, Additional::None) if node.preserves => return true,
            (None, Additional::None) => {
                unknown.push(here);
                return false;
            }
        };
        walk(value, inner, &here, unknown);
        true
    });
}

pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// A null where none may be is a member that is left out, unless a default takes its place.
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

/// Fills in what is left out.
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

fn member<'a>(node: &'a Node, name: &str) -> Option<&'a Node> {
    match &node.additional {
        Additional::Each(each) => node.properties.get(name).or(Some(each)),
        Additional::Any | Additional::None => node.properties.get(name),
    }
}
