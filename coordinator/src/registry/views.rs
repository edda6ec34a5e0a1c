//! Views: a resource may present the objects of an own collection in another form.
//!
//! A view is a kind and a pure conversion both ways: events of another group, another version of a custom resource.
//! Writes are converted to the stored form before validation, objects to the view's before an answer. Collection, keys,
//! RVs and positions are the same.
//!
//! Custom resources are shown in the shape of their present schema, as kube-apiserver prunes and defaults them when it
//! reads its store.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

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

/// Objects of a custom resource that may be stored in another shape than that of its present schema: all, until they
/// are known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Misfits(Arc<OnceLock<HashSet<ObjectKey>>>);

/// Shows stored objects in the shape of the present schema.
pub(crate) struct Reshaped {
    pub(crate) kind: &'static ResourceKind,
    pub(crate) schema: Arc<Structural>,
    pub(crate) misfits: Misfits,
}

// === impl Misfits ===

impl Misfits {
    /// Makes those of these objects known that the schema changes.
    pub(crate) fn find(&self, objects: &[Object], schema: &Structural) {
        let is_changed = |object: &&Object| {
            let stored = object.to_value();
            let mut shaped = stored.clone();
            schema.shape(&mut shaped);
            shaped != stored
        };
        let changed = objects.iter().filter(is_changed);
        self.0
            .get_or_init(|| changed.map(|object| object.key().clone()).collect());
    }

    pub(crate) fn are_known(&self) -> bool {
        self.0.get().is_some()
    }

    fn may_be(&self, key: &ObjectKey) -> bool {
        self.0.get().is_none_or(|keys| keys.contains(key))
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
        self.misfits.0.get().is_some_and(HashSet::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use yurt_test_support::TestDir;

    use super::*;
    use crate::registry::own::{self, Intent};

    fn manifest(properties: &Value) -> String {
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "widgets.example.com"},
            "spec": {"group": "example.com", "scope": "Cluster", "names": {"plural": "widgets", "kind": "Widget"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}}}]}})
        .to_string()
    }

    /// A write that began before a reload may end after it.
    #[tokio::test]
    async fn object_that_is_written_under_the_previous_schema_is_shown_in_the_present_one() {
        let folder = TestDir::new();
        let (color, both) = (json!({"color": {"type": "string"}}), json!({"color": {}, "size": {}}));
        let path = folder.write("widgets.yaml", manifest(&both));
        let args = [
            "yurt-coordinator",
            "--profile=standalone",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            &format!("--data-dir={}", folder.path().display()),
            &format!("--custom-resources-path={}", path.display()),
        ];
        let config = crate::config::Config::parse(args).expect("valid flags");
        let app = crate::build(config).await.expect("a coordinator").app;
        let widgets = || {
            let served = app.served();
            served
                .registry
                .find("example.com", "widgets")
                .expect("declared")
                .clone()
        };
        let red = || json!({"color": "red"});
        let create = async |name: &str, resource, spec: Value| {
            let value = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name, "uid": "u"},
                "spec": spec});
            let new = own::object(value, resource).expect("an object");
            let no_namespace = || std::future::ready(Ok(None));
            let created = app
                .own
                .create(resource, &new, &Intent::of_coordinator(), no_namespace)
                .await;
            created.expect("a write").expect("a new object")
        };
        let previous = widgets();
        assert!(previous.look().is_identity());
        folder.write("widgets.yaml", manifest(&color));
        app.reload_custom();
        let created = [
            create("w", &previous, json!({"color": "red", "size": 1})).await,
            create("x", &previous, red()).await,
        ];
        let shown = || created.each_ref().map(|object| widgets().shown(object));
        let assert_shown = || {
            shown()
                .iter()
                .for_each(|shown| assert_eq!(shown.to_value()["spec"], red()))
        };
        assert_shown();
        // By the next look at the files, the writes have ended.
        app.reload_custom();
        assert_shown();
        assert!(created[1].identity().is(&shown()[1]), "what fits is not converted");
        assert!(!widgets().look().is_identity());
    }
}
