//! Identity of the items of a list: unique in sets and maps, and related to the list before an update.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::Node;
use super::path::Path;
use super::visit::visit;
use yurt_apimachinery::collecting::inserted;
use yurt_apimachinery::status::{ErrorList, FieldError};

/// The type of a list.
#[derive(Debug, Default)]
pub(super) enum ListType {
    /// Items have no identity: the default.
    #[default]
    Atomic,
    /// Items are their own identity.
    Set,
    /// These members are the identity of an item.
    Map(Vec<String>),
}

/// The items of a list before an update.
pub(super) enum Before<'a> {
    /// No item is related to one before.
    Unrelated,
    /// An item is related to that with its keys.
    ByKeys(HashMap<String, &'a Value>),
}

/// Faults of items that occur twice in a set or map.
pub(super) fn repeated(root: &Node, object: &Value) -> ErrorList {
    let mut errors = ErrorList::default();
    visit(root, &mut Path::default(), object, &mut |node, path, value| {
        let mut seen = HashSet::new();
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            let id = node.limits.list_type().identity(item);
            if let Some(id) = id.filter(|id| !seen.insert(id.to_string())) {
                path.item(index, |path| errors.push(FieldError::duplicate(path.shown(), id)));
            }
        }
    });
    errors
}

// === impl ListType ===

impl ListType {
    pub(super) fn of(schema: &Value) -> Self {
        match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => Self::Set,
            Some("map") => Self::Map(super::words(&schema["x-kubernetes-list-map-keys"])),
            _ => Self::Atomic,
        }
    }

    /// The items of `old`, as far as those of a new list are related to them.
    pub(super) fn before<'a>(&self, old: Option<&'a Value>) -> Before<'a> {
        let Some(Value::Array(old)) = old else {
            return Before::Unrelated;
        };
        match self {
            Self::Atomic | Self::Set => Before::Unrelated,
            Self::Map(_) => {
                let keyed = old
                    .iter()
                    .filter_map(|item| Some((self.identity(item)?.to_string(), item)));
                Before::ByKeys(inserted(keyed))
            }
        }
    }

    /// Identity of an item; `None` if items have none.
    fn identity(&self, item: &Value) -> Option<Value> {
        match self {
            Self::Atomic => None,
            Self::Set => Some(item.clone()),
            Self::Map(keys) => {
                let members = keys
                    .iter()
                    .filter_map(|key| Some((key.clone(), item.get(key)?.clone())));
                Some(Value::Object(inserted(members)))
            }
        }
    }
}

// === impl Before ===

impl<'a> Before<'a> {
    /// The item before the update that a new one is related to.
    pub(super) fn item(&self, list_type: &ListType, item: &Value) -> Option<&'a Value> {
        match self {
            Self::Unrelated => None,
            Self::ByKeys(old) => old.get(&list_type.identity(item)?.to_string()).copied(),
        }
    }
}
