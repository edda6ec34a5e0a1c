//! Views: a resource may present the objects of an own collection in another form.
//!
//! A view is a kind and a pure conversion both ways: events of another group, another version of a custom resource. Writes are converted to
//! the stored form before validation, objects to the view's before an answer. Collection, keys, RVs and positions are the same.
//!
//! Custom resources are shown in the shape of their present schema, as kube-apiserver prunes and defaults them when it
//! reads its store.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;
use yurt_apiextensions::structural::Structural;
use yurt_apimachinery::{FieldSelector, GroupResource, Object, ObjectKey, ResourceKind, event};
use yurt_codec::canonical::canonicalize;
use yurt_codec::schema;
use yurt_storage::serve;

/// A view of objects that are stored as another kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View {
    /// `events.k8s.io` shows core events.
    Events,
    /// A version of a custom resource that is not the stored one: only `apiVersion` differs.
    Version {
        /// Stored kind.
        stored: &'static ResourceKind,
        /// Kind of the view.
        shown: &'static ResourceKind,
    },
}

/// The view of a built-in kind, if it is one.
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

    /// Converts the view's form to the stored one.
    pub(crate) fn to_stored(self, object: &mut Value) {
        match self {
            Self::Events => event::to_core(object),
            Self::Version { stored, .. } => set_version(object, stored),
        }
    }

    /// Converts the stored form to the view's.
    pub(crate) fn to_view(self, object: &mut Value) {
        match self {
            Self::Events => event::to_events_v1(object),
            Self::Version { shown, .. } => set_version(object, shown),
        }
    }

    /// Converts the stored form to that in which clients of `kind` get it.
    pub(crate) fn show(self, object: &mut Value, kind: &ResourceKind) {
        self.to_view(object);
        if let Some(message) = schema::find(&kind.group, &kind.version, &kind.kind) {
            canonicalize(object, message);
        }
    }

    /// Translates a selector of the view for stored objects.
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
    /// Schema of the view.
    pub(crate) schema: Option<Arc<Structural>>,
}

impl serve::View for Shown {
    fn show(&self, object: &Object) -> Object {
        let mut value = object.to_value();
        self.view.show(&mut value, self.kind);
        if let Some(schema) = &self.schema {
            schema.shape(&mut value);
        }
        // A stored object can be parsed, and a change of names keeps it so.
        Object::from_value(value, self.kind).unwrap_or_else(|_| object.clone())
    }

    fn kind(&self) -> Option<&'static ResourceKind> {
        Some(self.kind)
    }
}

/// Objects of a custom resource that may be stored in another shape than that of its present schema.
#[derive(Clone, Debug)]
pub(crate) enum Misfits {
    /// These alone: they were stored before the schema was this one.
    These(Arc<HashSet<ObjectKey>>),
    /// All: another version with a schema of its own writes the same objects.
    Any,
}

/// Shows stored objects in the shape of the present schema.
pub(crate) struct Reshaped {
    pub(crate) kind: &'static ResourceKind,
    pub(crate) schema: Arc<Structural>,
    pub(crate) misfits: Misfits,
}

// === impl Misfits ===

impl Misfits {
    pub(crate) fn none() -> Self {
        Self::These(Arc::default())
    }

    /// The objects that the schema changes.
    pub(crate) fn among(objects: &[Object], schema: &Structural) -> Self {
        let is_changed = |object: &&Object| {
            let stored = object.to_value();
            let mut shaped = stored.clone();
            schema.shape(&mut shaped);
            shaped != stored
        };
        let changed = objects.iter().filter(is_changed);
        Self::These(Arc::new(changed.map(|object| object.key().clone()).collect()))
    }

    pub(crate) fn is_any(&self) -> bool {
        matches!(self, Self::Any)
    }

    fn may_be(&self, key: &ObjectKey) -> bool {
        match self {
            Self::These(keys) => keys.contains(key),
            Self::Any => true,
        }
    }
}

impl serve::View for Reshaped {
    fn show(&self, object: &Object) -> Object {
        if !self.misfits.may_be(object.key()) {
            return object.clone();
        }
        let mut value = object.to_value();
        self.schema.shape(&mut value);
        Object::from_value(value, self.kind).unwrap_or_else(|_| object.clone())
    }

    fn is_identity(&self) -> bool {
        matches!(&self.misfits, Misfits::These(keys) if keys.is_empty())
    }
}
