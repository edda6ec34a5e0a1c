//! Served groups, versions, resources and subresources, as both forms of discovery need them.

use std::sync::Arc;

use serde_json::Value;
use yurt_apiextensions::definition::compare_versions;

use crate::registry::reviews::{self, ReviewKind};
use crate::registry::strategy::STATUS_VERBS;
use crate::registry::{Authority, Registry, Resource};

/// One version of an API group.
pub(super) struct Group {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) resources: Vec<Entry>,
}

/// One resource.
pub(super) struct Entry {
    pub(super) plural: String,
    pub(super) singular: String,
    pub(super) kind: String,
    pub(super) namespaced: bool,
    pub(super) verbs: &'static [&'static str],
    pub(super) short_names: &'static [&'static str],
    pub(super) categories: &'static [&'static str],
    /// Subresources, by name.
    pub(super) subresources: Vec<Subresource>,
    /// True if it is stored; false for reviews.
    pub(super) is_stored: bool,
    /// Schema of a custom resource.
    pub(super) schema: Option<Arc<Value>>,
}

const READ_ONLY: &[&str] = &["get", "list", "watch"];
const ALL: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
const REVIEW: &[&str] = &["create"];
/// All verbs but deletecollection.
const SINGLY: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];

/// A path below an object.
pub(super) struct Subresource {
    pub(super) name: &'static str,
    pub(super) kind: String,
    /// Group and version of the kind, where they are not the resource's own.
    pub(super) group_version: Option<(&'static str, &'static str)>,
    pub(super) verbs: &'static [&'static str],
}

fn subresources(resource: &Resource) -> Vec<Subresource> {
    let mut all: Vec<Subresource> = Vec::new();
    if resource.kind.has_status {
        all.push(Subresource {
            name: "status",
            kind: resource.kind.kind.to_string(),
            group_version: None,
            verbs: STATUS_VERBS,
        });
    }
    all.extend(resource.strategy.subresources().iter().map(|known| Subresource {
        name: known.name,
        kind: known.kind.to_owned(),
        group_version: known.group_version,
        verbs: known.verbs,
    }));
    all.sort_unstable_by_key(|subresource| subresource.name);
    all
}

/// Versions of groups in order of preference: core first, then by name, the preferred version first; resources by name.
pub(super) fn groups(registry: &Registry) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut add = |name: &str, version: &str, entry: Entry| match groups
        .iter_mut()
        .find(|group| group.name == name && group.version == version)
    {
        Some(group) => group.resources.push(entry),
        None => groups.push(Group {
            name: name.to_owned(),
            version: version.to_owned(),
            resources: vec![entry],
        }),
    };
    for resource in registry.iter() {
        add(&resource.kind.group, &resource.kind.version, Entry::of(resource));
    }
    for kind in &reviews::KINDS {
        add(kind.group, reviews::VERSION, Entry::of_review(kind));
    }
    groups.sort_unstable_by(|a, b| {
        let by_version = || compare_versions(&a.version, &b.version);
        a.name.cmp(&b.name).then_with(by_version)
    });
    groups
        .iter_mut()
        .for_each(|group| group.resources.sort_unstable_by(|a, b| a.plural.cmp(&b.plural)));
    groups
}

// === impl Group ===

impl Group {
    /// `v1` or `coordination.k8s.io/v1`.
    pub(super) fn api_version(&self) -> String {
        if self.name.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.name, self.version)
        }
    }
}

// === impl Entry ===

impl Entry {
    fn of(resource: &Resource) -> Self {
        let kind = resource.kind;
        let is_own = matches!(resource.authority, Authority::Own(_));
        Self {
            plural: kind.plural.to_string(),
            singular: kind.singular.to_string(),
            kind: kind.kind.to_string(),
            namespaced: kind.namespaced,
            verbs: match (is_own, resource.strategy.deletes_collections()) {
                (true, true) => ALL,
                (true, false) => SINGLY,
                (false, _) => READ_ONLY,
            },
            short_names: kind.short_names,
            categories: kind.categories,
            subresources: if is_own { subresources(resource) } else { Vec::new() },
            is_stored: true,
            schema: resource.schema.clone(),
        }
    }

    fn of_review(kind: &ReviewKind) -> Self {
        Self {
            plural: kind.plural.to_owned(),
            singular: kind.singular.to_owned(),
            kind: kind.kind.to_owned(),
            namespaced: kind.namespaced,
            verbs: REVIEW,
            short_names: &[],
            categories: &[],
            subresources: Vec::new(),
            is_stored: false,
            schema: None,
        }
    }
}
