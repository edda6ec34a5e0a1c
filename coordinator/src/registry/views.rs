//! One store, two views: a resource may be another look at the objects of an own collection.
//!
//! A view is a kind and a pure conversion both ways: events of another group, another version of a custom resource. Writes are turned into the stored form before anything judges them,
//! objects into the view's before they are shown; collection, keys, RVs and positions are the same.

use serde_json::Value;
use yurt_apimachinery::canonical::canonicalize;
use yurt_apimachinery::{FieldSelector, GroupResource, Object, ResourceKind, event, schema};
use yurt_storage::serve;

/// A look at objects that are stored as another kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View {
    /// `events.k8s.io` shows core events.
    Events,
    /// A version of a custom resource that is not the stored one: only `apiVersion` differs.
    Version {
        /// What is stored.
        stored: &'static ResourceKind,
        /// What is shown.
        shown: &'static ResourceKind,
    },
}

/// The view that a built-in kind is, if it is one.
pub(crate) fn of(kind: &ResourceKind) -> Option<View> {
    match (&*kind.group, &*kind.plural) {
        ("events.k8s.io", "events") => Some(View::Events),
        _ => None,
    }
}

// === impl View ===

impl View {
    /// Name of the collection it shows.
    pub(crate) fn collection(self) -> String {
        match self {
            Self::Events => GroupResource::new("", "events").to_string(),
            Self::Version { stored, .. } => stored.group_resource().to_string(),
        }
    }

    /// From the view's form to the stored one.
    pub(crate) fn to_stored(self, object: &mut Value) {
        match self {
            Self::Events => event::to_core(object),
            Self::Version { stored, .. } => set_version(object, stored),
        }
    }

    /// From the stored form to the view's.
    pub(crate) fn to_view(self, object: &mut Value) {
        match self {
            Self::Events => event::to_events_v1(object),
            Self::Version { shown, .. } => set_version(object, shown),
        }
    }

    /// A selector of the view, for stored objects.
    pub(crate) fn stored_selector(self, selector: &FieldSelector) -> FieldSelector {
        match self {
            Self::Events => selector.renamed(event::core_field),
            Self::Version { .. } => selector.clone(),
        }
    }
}

fn set_version(object: &mut Value, kind: &ResourceKind) {
    if let Some(members) = object.as_object_mut() {
        members.insert("apiVersion".to_owned(), kind.api_version().into());
    }
}

/// Shows stored objects as `kind`.
pub(crate) struct Shown {
    pub(crate) view: View,
    pub(crate) kind: &'static ResourceKind,
}

impl serve::View for Shown {
    fn show(&self, object: &Object) -> Option<Object> {
        let mut value = object.to_value();
        self.view.to_view(&mut value);
        if let Some(message) = schema::find(&self.kind.group, &self.kind.version, &self.kind.kind) {
            canonicalize(&mut value, message);
        }
        // What was stored can be read, and a change of names keeps it so.
        Object::from_value(value, self.kind).ok()
    }

    fn hides(&self) -> bool {
        false
    }

    fn kind(&self) -> Option<&'static ResourceKind> {
        Some(self.kind)
    }
}
