//! Walk over an object and its schema.

use serde_json::Value;

use super::path::Path;
use super::{Additional, Node};

/// Looks at a value and at all values within it that the schema describes.
pub(super) fn visit(node: &Node, path: &mut Path, value: &Value, look: &mut impl FnMut(&Node, &mut Path, &Value)) {
    look(node, path, value);
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                let Some(inner) = member(node, name) else { continue };
                let visit = |path: &mut Path| visit(inner, path, value, look);
                match node.properties.contains_key(name) {
                    true => path.below(name, visit),
                    false => path.key(name, visit),
                }
            }
        }
        Value::Array(items) => {
            if let Some(inner) = &node.items {
                for (index, item) in items.iter().enumerate() {
                    path.item(index, |path| visit(inner, path, item, look));
                }
            }
        }
        _ => {}
    }
}

/// As [`visit`], where `look` may change the value.
pub(super) fn visit_mut(
    node: &Node,
    path: &mut Path,
    value: &mut Value,
    look: &mut impl FnMut(&Node, &mut Path, &mut Value),
) {
    look(node, path, value);
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                let Some(inner) = member(node, name) else { continue };
                let visit = |path: &mut Path| visit_mut(inner, path, value, look);
                match node.properties.contains_key(name) {
                    true => path.below(name, visit),
                    false => path.key(name, visit),
                }
            }
        }
        Value::Array(items) => {
            if let Some(inner) = &node.items {
                for (index, item) in items.iter_mut().enumerate() {
                    path.item(index, |path| visit_mut(inner, path, item, look));
                }
            }
        }
        _ => {}
    }
}

/// The schema of a member; `None` if nothing is known of it.
pub(super) fn member<'a>(node: &'a Node, name: &str) -> Option<&'a Node> {
    match &node.additional {
        Additional::Each(each) => node.properties.get(name).or(Some(each)),
        Additional::Any | Additional::None => node.properties.get(name),
    }
}
