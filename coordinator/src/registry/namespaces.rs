//! Namespaces: initial and protected ones, the form of a new one, and the parts that may change.

use serde_json::{Map, Value, json};
use yurt_apimachinery::Status;
use yurt_apimachinery::meta::{self, label_key_errors};
use yurt_apimachinery::status::{ErrorList, FieldError};

use super::fields::{carry, invalid, items, members, text};
use super::strategy::{MetaPass, Strategy, Subresource};

/// Rules of `namespaces`.
pub(crate) struct Namespaces;

/// Name of the collection.
pub(crate) const COLLECTION: &str = "namespaces";
/// Namespaces that exist from the first start on.
pub(crate) const INITIAL: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// Namespaces that may not be deleted.
pub(crate) const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];
/// Label that kube-apiserver keeps equal to the name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Finalizer of the component that empties namespaces.
pub(crate) const FINALIZER: &str = "kubernetes";

impl Strategy for Namespaces {
    fn default(&self, object: &mut Value) {
        let name = meta::text(object, "name").to_owned();
        if let Some(labels) = members(object, &["metadata", "labels"]).filter(|_| !name.is_empty()) {
            labels.insert(NAME_LABEL.to_owned(), name.into());
        }
        if text(object, &["status", "phase"]).is_empty()
            && let Some(status) = members(object, &["status"])
        {
            status.insert("phase".to_owned(), "Active".into());
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        if let Some(members) = object.as_object_mut() {
            members.insert("status".to_owned(), json!({ "phase": "Active" }));
        }
        if items(object, &["spec", "finalizers"])
            .iter()
            .any(|held| held == FINALIZER)
        {
            return;
        }
        if let Some(spec) = members(object, &["spec"]) {
            add_finalizer(spec);
        }
    }

    /// `spec` holds finalizers only, which have a subresource of their own.
    fn prepare_update(&self, old: &Value, new: &mut Value) {
        carry(old, new, "spec");
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Result<ErrorList, Status> {
        if old.is_some() {
            return Ok(ErrorList::default());
        }
        Ok(finalizer_errors(object, false))
    }

    fn validate_status(&self, object: &Value, _old: &Value) -> Result<ErrorList, Status> {
        let phase = text(object, &["status", "phase"]);
        let (wanted, state) = if meta::text(object, "deletionTimestamp").is_empty() {
            ("Active", "is empty")
        } else {
            ("Terminating", "is not empty")
        };
        if phase == wanted {
            return Ok(ErrorList::default());
        }
        let why = format!("may only be '{wanted}' if `deletionTimestamp` {state}");
        Ok(FieldError::invalid("status.Phase", phase, &why).into())
    }

    fn validate_finalize(&self, object: &Value) -> ErrorList {
        finalizer_errors(object, true)
    }

    /// True if the deletion has nothing left to wait for: neither finalizers of the object, nor content.
    fn may_go(&self, object: &Value) -> bool {
        meta::finalizers(object).is_empty() && items(object, &["spec", "finalizers"]).is_empty()
    }

    fn meta_passes(&self) -> &'static [MetaPass] {
        &[MetaPass::Whole, MetaPass::Change]
    }

    fn deletes_collections(&self) -> bool {
        false
    }

    fn subresources(&self) -> &'static [Subresource] {
        &[Subresource {
            name: "finalize",
            kind: "Namespace",
            group_version: None,
            verbs: &["update"],
        }]
    }
}

fn add_finalizer(spec: &mut Map<String, Value>) {
    let list = spec.entry("finalizers").or_insert(Value::Null);
    if let Some(list) = list.as_array_mut() {
        list.push(FINALIZER.into());
    } else {
        *list = json!([FINALIZER]);
    }
}

/// A namespace whose deletion has begun.
pub(crate) fn terminating(mut namespace: Value, now: yurt_apimachinery::time::Time) -> Value {
    if let Some(metadata) = members(&mut namespace, &["metadata"]) {
        metadata.insert("deletionTimestamp".to_owned(), now.to_string().into());
    }
    if let Some(status) = members(&mut namespace, &["status"]) {
        status.insert("phase".to_owned(), "Terminating".into());
    }
    namespace
}

fn finalizer_errors(namespace: &Value, with_index: bool) -> ErrorList {
    const STANDARD: [&str; 3] = [FINALIZER, "orphan", "foregroundDeletion"];
    let mut errors = ErrorList::default();
    for (index, value) in items(namespace, &["spec", "finalizers"]).iter().enumerate() {
        let name = value.as_str().unwrap_or_default();
        let field = if with_index {
            format!("spec.finalizers[{index}]")
        } else {
            "spec.finalizers".to_owned()
        };
        invalid(&mut errors, &field, value, label_key_errors(name));
        if !name.contains('/') && !STANDARD.contains(&name) {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(field, name, why));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_namespace_is_active_labelled_and_held() {
        let mut namespace = json!({"metadata": {"name": "a", "labels": {NAME_LABEL: "b"}}, "status": {"phase": "Odd"},
            "spec": {"finalizers": ["x/y"]}});
        Namespaces.default(&mut namespace);
        Namespaces.prepare_create(&mut namespace);
        assert_eq!(
            namespace,
            json!({"metadata": {"name": "a", "labels": {NAME_LABEL: "a"}}, "status": {"phase": "Active"},
                "spec": {"finalizers": ["x/y", "kubernetes"]}})
        );
        assert!(!Namespaces.may_go(&namespace) && Namespaces.may_go(&json!({"metadata": {}})));
        for mut odd in [
            json!(1),
            json!({"spec": 3, "metadata": 2}),
            json!({"spec": {"finalizers": 3}, "status": []}),
        ] {
            Namespaces.default(&mut odd);
            Namespaces.prepare_create(&mut odd);
        }
    }
}
