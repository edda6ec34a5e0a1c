//! Sets of fields that managers own, and FieldsV1, their JSON form.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde_json::{Map, Value};
use yurt_apimachinery::collecting::inserted;

use super::path::{BadElement, Path, PathElement};

/// A set of fields, as a tree. A field may be a member with or without fields below it; owning a structure's field does
/// not imply owning the structure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldSet {
    nodes: BTreeMap<PathElement, Node>,
}

/// A step and the fields below it. In a set it is never empty: a node is a member, or has members below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) is_member: bool,
    below: FieldSet,
}

// === impl Node ===

impl Node {
    /// Attaches a node below this one, where none is yet; an empty one is skipped.
    pub(super) fn attach(&mut self, element: &PathElement, node: Self) {
        if node.is_member || !node.below.is_empty() {
            self.below.nodes.insert(element.clone(), node);
        }
    }

    /// The members below; the root itself is never a member.
    pub(super) fn into_below(self) -> FieldSet {
        self.below
    }
}

// === impl FieldSet ===

impl FieldSet {
    /// The set with these paths of plain names.
    pub(super) fn of_names(paths: &[&[&str]]) -> Self {
        let mut set = Self::default();
        for path in paths {
            let path: Path = path.iter().map(|name| PathElement::Field((*name).to_owned())).collect();
            set.insert(&path);
        }
        set
    }

    /// Adds a field; the root itself is never a member.
    pub(super) fn insert(&mut self, path: &[PathElement]) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        let node = self.nodes.entry(first.clone()).or_default();
        if rest.is_empty() {
            node.is_member = true;
        } else {
            node.below.insert(rest);
        }
    }

    /// True if the set is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// True if a step from the root is a member.
    pub(super) fn has(&self, element: &PathElement) -> bool {
        self.nodes.get(element).is_some_and(|node| node.is_member)
    }

    /// The members below a step; `None` when there are none.
    pub(super) fn below(&self, element: &PathElement) -> Option<&Self> {
        self.nodes
            .get(element)
            .map(|node| &node.below)
            .filter(|below| !below.is_empty())
    }

    /// All members of both.
    pub(super) fn union(mut self, other: &Self) -> Self {
        for (element, theirs) in &other.nodes {
            match self.nodes.entry(element.clone()) {
                Entry::Vacant(place) => drop(place.insert(theirs.clone())),
                Entry::Occupied(mut ours) => {
                    let ours = ours.get_mut();
                    ours.is_member |= theirs.is_member;
                    ours.below = std::mem::take(&mut ours.below).union(&theirs.below);
                }
            }
        }
        self
    }

    /// Members of both sets.
    pub(super) fn intersection(&self, other: &Self) -> Self {
        self.filtered(|element, node| {
            let theirs = other.nodes.get(element)?;
            Some(Node {
                is_member: node.is_member && theirs.is_member,
                below: node.below.intersection(&theirs.below),
            })
        })
    }

    /// Members of this set only.
    pub(super) fn difference(&self, other: &Self) -> Self {
        self.filtered(|element, node| {
            let Some(theirs) = other.nodes.get(element) else {
                return Some(node.clone());
            };
            Some(Node {
                is_member: node.is_member && !theirs.is_member,
                below: node.below.difference(&theirs.below),
            })
        })
    }

    /// The set without the members of the other one and everything below them.
    pub(super) fn without_trees(&self, other: &Self) -> Self {
        self.filtered(|element, node| match other.nodes.get(element) {
            None => Some(node.clone()),
            Some(theirs) if theirs.is_member => None,
            Some(theirs) => Some(Node {
                is_member: node.is_member,
                below: node.below.without_trees(&theirs.below),
            }),
        })
    }

    /// Maps every node through `change`, which gets the element, whether it is a member, and the set below it.
    pub(super) fn mapped(&self, mut change: impl FnMut(&PathElement, bool, &Self) -> (bool, Self)) -> Self {
        self.filtered(|element, node| {
            let (is_member, below) = change(element, node.is_member, &node.below);
            Some(Node { is_member, below })
        })
    }

    fn filtered(&self, mut keep: impl FnMut(&PathElement, &Node) -> Option<Node>) -> Self {
        let kept = self.nodes.iter().filter_map(|(element, node)| {
            let node = keep(element, node)?;
            (node.is_member || !node.below.is_empty()).then(|| (element.clone(), node))
        });
        Self { nodes: inserted(kept) }
    }

    /// The paths of all members: those of one level before those below.
    pub(super) fn paths(&self) -> Vec<Vec<&PathElement>> {
        let mut all = Vec::new();
        self.collect(&mut Vec::new(), &mut all);
        all
    }

    fn collect<'a>(&'a self, prefix: &mut Vec<&'a PathElement>, all: &mut Vec<Vec<&'a PathElement>>) {
        let members = self.nodes.iter().filter(|(_, node)| node.is_member);
        all.extend(members.map(|(element, _)| [prefix.as_slice(), &[element]].concat()));
        for (element, node) in &self.nodes {
            prefix.push(element);
            node.below.collect(prefix, all);
            prefix.pop();
        }
    }

    /// Reads FieldsV1. Anything but an object is an empty set.
    ///
    /// # Errors
    /// A key that is no path element.
    pub(super) fn from_fields_v1(fields: &Value) -> Result<Self, BadElement> {
        let mut set = Self::default();
        for (key, value) in fields.as_object().into_iter().flatten().filter(|(key, _)| *key != ".") {
            let Some(element) = PathElement::parse(key)? else {
                continue;
            };
            let below = Self::from_fields_v1(value)?;
            let is_member = below.is_empty() || value.get(".").is_some();
            set.nodes.insert(element, Node { is_member, below });
        }
        Ok(set)
    }

    /// Writes FieldsV1.
    pub(super) fn to_fields_v1(&self) -> Value {
        Value::Object(self.members_v1())
    }

    fn members_v1(&self) -> Map<String, Value> {
        let members = self.nodes.iter().map(|(element, node)| {
            let mut below = node.below.members_v1();
            if node.is_member && !below.is_empty() {
                below.insert(".".to_owned(), Value::Object(Map::new()));
            }
            (element.to_key(), Value::Object(below))
        });
        inserted(members)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::path::display;
    use super::*;

    fn set(fields: Value) -> FieldSet {
        FieldSet::from_fields_v1(&fields).unwrap()
    }

    #[test]
    fn fields_v1_is_read_and_written() {
        let fields = json!({
            "f:metadata": {"f:finalizers": {".": {}, "v:\"a/b\"": {}}},
            "f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}},
            "i:3": {},
        });
        assert_eq!(set(fields.clone()).to_fields_v1(), fields);
        let paths: Vec<String> = set(fields).paths().iter().map(|path| display(path)).collect();
        let want = [
            "[3]",
            ".metadata.finalizers",
            ".metadata.finalizers[=\"a/b\"]",
            ".spec.ports[port=80,protocol=\"TCP\"]",
            ".spec.ports[port=80,protocol=\"TCP\"].port",
        ];
        assert_eq!(paths, want);
    }

    #[test]
    fn unknown_sorts_are_skipped_and_nonsense_is_refused() {
        assert_eq!(set(json!({"f:a": {"x:new": {}}, ".": {}})), set(json!({"f:a": {}})));
        for key in ["a", "", "k:{", "v:", "i:x", "fa:b"] {
            assert!(FieldSet::from_fields_v1(&json!({"f:x": {key: {}}})).is_err(), "{key}");
        }
    }

    #[test]
    fn numbers_are_equal_however_they_are_written() {
        assert_eq!(set(json!({"v:1": {}})), set(json!({"v:1.0": {}})));
        assert_eq!(
            set(json!({"k:{\"b\":1,\"a\":2}": {}})),
            set(json!({"k:{\"a\":2,\"b\":1}": {}}))
        );
    }

    #[test]
    fn trees_are_removed_with_their_root_and_plain_differences_leave_what_is_below() {
        let all = set(json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}}));
        let a = set(json!({"f:a": {}}));
        assert_eq!(all.difference(&a), set(json!({"f:a": {"f:b": {}}, "f:c": {}})));
        assert_eq!(all.without_trees(&a), set(json!({"f:c": {}})));
    }

    fn some_set() -> impl Strategy<Value = FieldSet> {
        let path = proptest::collection::vec("[a-c]", 1..4);
        proptest::collection::vec(path, 0..6).prop_map(|paths| {
            let mut set = FieldSet::default();
            for path in paths {
                set.insert(&path.into_iter().map(PathElement::Field).collect::<Vec<_>>());
            }
            set
        })
    }

    proptest! {
        #[test]
        fn sets_obey_their_laws(a in some_set(), b in some_set()) {
            let both = a.intersection(&b);
            prop_assert_eq!(&a.difference(&b).union(&both), &a);
            prop_assert_eq!(a.clone().union(&b), b.clone().union(&a));
            prop_assert!(a.difference(&b).intersection(&b).is_empty());
            prop_assert_eq!(FieldSet::from_fields_v1(&a.to_fields_v1()).unwrap(), a);
        }

        #[test]
        fn any_text_is_survived(key in "\\PC{0,12}") {
            let _ = FieldSet::from_fields_v1(&json!({ key: {} }));
        }
    }
}
