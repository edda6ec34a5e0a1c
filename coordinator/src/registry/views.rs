//! One store, two views: a resource may be another look at the objects of an own collection.
//!
//! A view is a kind and a pure conversion both ways. Writes are turned into the stored form before anything judges them,
//! objects into the view's before they are shown; collection, keys, RVs and positions are the same.

use serde_json::Value;
use yurt_apimachinery::canonical::canonicalize;
use yurt_apimachinery::{FieldSelector, GroupResource, Object, ResourceKind, event, schema};
use yurt_storage::serve;

/// A look at objects that are stored as another kind.
pub(crate) struct View {
    /// What it is a look at.
    pub(crate) of: (&'static str, &'static str),
    /// From the view's form to the stored one.
    pub(crate) to_stored: fn(&mut Value),
    /// From the stored form to the view's.
    pub(crate) to_view: fn(&mut Value),
    /// The stored name of a field that selectors of the view use.
    pub(crate) stored_field: fn(&str) -> String,
}

/// `events.k8s.io` shows core events.
static EVENTS: View = View {
    of: ("", "events"),
    to_stored: event::to_core,
    to_view: event::to_events_v1,
    stored_field: event::core_field,
};

/// The view that a kind is, if it is one.
pub(crate) fn of(kind: &ResourceKind) -> Option<&'static View> {
    match (&*kind.group, &*kind.plural) {
        ("events.k8s.io", "events") => Some(&EVENTS),
        _ => None,
    }
}

// === impl View ===

impl View {
    /// Name of the collection it shows.
    pub(crate) fn collection(&self) -> String {
        GroupResource::new(self.of.0, self.of.1).to_string()
    }

    /// A selector of the view, for stored objects.
    pub(crate) fn stored_selector(&self, selector: &FieldSelector) -> FieldSelector {
        selector.renamed(self.stored_field)
    }
}

/// Shows stored objects as `kind`.
pub(crate) struct Shown {
    pub(crate) view: &'static View,
    pub(crate) kind: &'static ResourceKind,
}

impl serve::View for Shown {
    fn show(&self, object: &Object) -> Option<Object> {
        let mut value = object.to_value();
        (self.view.to_view)(&mut value);
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
