//! Lists and watches over a [`SharedCollection`](crate::SharedCollection), as kube-apiserver answers them.
//!
//! Used by the coordinator and by every hub, so that moving between them changes nothing for a client. HTTP is not
//! known here: [`list`] gives objects, [`watch`] gives frames.

mod list;
mod view;
mod watch;

use std::time::Duration;

use yurt_apimachinery::{FieldSelector, LabelSelector, Object, ObjectKey, ResourceKind};

use crate::collection::KeyRange;

pub use list::{Listed, list, reach};
pub use view::{Unfiltered, View};
pub use watch::{WatchRequest, watch};

/// Annotation of a bookmark: what follows is one step up to this RV (told to replicas only).
pub const ANNOTATION_DIFF_TO: &str = "openyurt.io/diff-to";
/// Annotation of a bookmark: the step announced by [`ANNOTATION_DIFF_TO`] is done.
pub const ANNOTATION_DIFF_DONE: &str = "openyurt.io/diff-done";
/// Annotation beside [`ANNOTATION_DIFF_DONE`]: no list was involved, every deletion inside the step was told.
pub const ANNOTATION_DIFF_WATCHED: &str = "openyurt.io/diff-watched";
/// Annotation of a bookmark: the data is complete but its source is away.
pub const ANNOTATION_STALE: &str = "openyurt.io/stale";

/// How long a read waits for an RV that has not arrived yet (kube-apiserver's own limit).
pub const WAIT_FOR_RV: Duration = Duration::from_secs(3);

/// Which objects a request is about; evaluated on the raw object, before any filter.
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
    /// Whether `object` is selected.
    #[must_use]
    pub fn matches(&self, object: &Object) -> bool {
        self.namespace
            .as_deref()
            .is_none_or(|namespace| object.namespace() == Some(namespace))
            && self.labels.matches(object.labels())
            && self.fields.matches(object)
    }

    /// Whether every object is selected.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.namespace.is_none() && self.labels.is_everything() && self.fields.is_everything()
    }

    /// The namespace the selection is confined to: that of the path, or of a `metadata.namespace=` field selector.
    #[must_use]
    pub fn confined_to(&self) -> Option<&str> {
        let by_field = || self.fields.requires("metadata.namespace");
        self.namespace
            .as_deref()
            .or_else(by_field)
            .filter(|name| !name.is_empty())
    }

    /// The part of the keys of `kind` that can hold selected objects: never more than one namespace when one is named, a
    /// single key when the name is given, too.
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
