//! Lists and watches over a [`SharedCollection`](crate::SharedCollection), with kube-apiserver's semantics.
//!
//! The coordinator and every hub use it, so a client that changes between them sees no difference. It is independent of
//! HTTP: [`list()`] returns objects, [`watch()`] returns frames.

mod encodings;
mod list;
mod view;
mod watch;

use std::time::Duration;

use yurt_apimachinery::{FieldSelector, LabelSelector, Object, ObjectKey, ResourceKind};
use yurt_collection::KeyRange;

pub use encodings::{encode, release_encodings};
pub use list::{Listed, list, reach};
pub use view::{Unfiltered, View};
pub use watch::{WatchRequest, watch};

/// Annotation of a bookmark: one step up to this RV follows (sent to replicas only).
pub const ANNOTATION_DIFF_TO: &str = "openyurt.io/diff-to";
/// Annotation of a bookmark: the step announced by [`ANNOTATION_DIFF_TO`] is done.
pub const ANNOTATION_DIFF_DONE: &str = "openyurt.io/diff-done";
/// Annotation in addition to [`ANNOTATION_DIFF_DONE`]: no list was involved, so every deletion inside the step was
/// sent.
pub const ANNOTATION_DIFF_WATCHED: &str = "openyurt.io/diff-watched";
/// Annotation of a bookmark: the data is complete but its source is away.
pub const ANNOTATION_STALE: &str = "openyurt.io/stale";

/// Maximum time that a read waits for an RV that has not arrived yet (kube-apiserver's own limit).
pub const WAIT_FOR_RV: Duration = Duration::from_secs(3);

/// Selection of objects by a request; evaluated on the raw object, before any filter.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Namespace of the path, if any.
    pub namespace: Option<String>,
    /// Label selector.
    pub labels: LabelSelector,
    /// Field selector.
    pub fields: FieldSelector,
}

// === impl Selection ===

impl Selection {
    /// True if `object` is selected.
    #[must_use]
    pub fn matches(&self, object: &Object) -> bool {
        self.namespace
            .as_deref()
            .is_none_or(|namespace| object.namespace() == Some(namespace))
            && self.labels.matches(object.labels())
            && self.fields.matches(object)
    }

    /// True if every object is selected.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.namespace.is_none() && self.labels.is_everything() && self.fields.is_everything()
    }

    /// The namespace that confines the selection: that of the path, or of a `metadata.namespace=` field selector.
    #[must_use]
    pub fn confined_to(&self) -> Option<&str> {
        let by_field = || self.fields.requires("metadata.namespace");
        self.namespace
            .as_deref()
            .or_else(by_field)
            .filter(|name| !name.is_empty())
    }

    /// The range of keys of `kind` that can contain selected objects. It is a single namespace if one is named, and a
    /// single key if the name is given, too.
    #[must_use]
    pub fn keys(&self, kind: &ResourceKind) -> KeyRange {
        let namespace = self.confined_to().filter(|_| kind.namespaced);
        match (namespace, self.fields.requires("metadata.name")) {
            (namespace, Some(name)) if namespace.is_some() || !kind.namespaced => {
                KeyRange::one(&ObjectKey::new(namespace, name))
            }
            (Some(namespace), _) => KeyRange::namespace(namespace),
            (None, _) => KeyRange::all(),
        }
    }
}

#[cfg(test)]
mod tests {
    use yurt_apimachinery::kind::find_kind;

    use super::*;

    /// Conformance: 8.24
    #[test]
    fn what_is_named_is_looked_up_and_not_scanned_for() {
        let keys = |resource: &str, namespace: &str, fields: &str| {
            let kind = find_kind("", resource).expect("it must be built in");
            let selection = Selection {
                namespace: Some(namespace.to_owned()).filter(|name| !name.is_empty()),
                fields: FieldSelector::parse(fields).expect("the selector must parse"),
                ..Selection::default()
            };
            selection.keys(kind)
        };
        let one = |namespace: Option<&str>, name| KeyRange::one(&ObjectKey::new(namespace, name));
        assert_eq!(keys("secrets", "a", "metadata.name=x"), one(Some("a"), "x"));
        assert_eq!(
            keys("secrets", "", "metadata.namespace=a,metadata.name=x"),
            one(Some("a"), "x")
        );
        assert_eq!(keys("nodes", "", "metadata.name=x"), one(None, "x"));
        assert_eq!(keys("secrets", "a", "type=Opaque"), KeyRange::namespace("a"));
        assert_eq!(keys("secrets", "a", "metadata.name!=x"), KeyRange::namespace("a"));
        assert_eq!(keys("secrets", "", "metadata.name=x"), KeyRange::all());
    }
}
