//! Namespaces: which exist from the start, which may never go, and what a new one looks like.

use serde_json::{Value, json};

use super::strategy::Strategy;

/// Rules of `namespaces`.
pub(crate) struct Namespaces;

/// Namespaces that exist from the first start on.
pub(crate) const INITIAL: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// Namespaces that may not be deleted.
pub(crate) const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];
/// Label that kube-apiserver keeps equal to the name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

impl Strategy for Namespaces {
    fn prepare_create(&self, object: &mut Value) {
        label(object);
        object["status"] = json!({ "phase": "Active" });
        if object["spec"]["finalizers"].is_null() {
            object["spec"]["finalizers"] = json!(["kubernetes"]);
        }
    }

    fn prepare_update(&self, _old: &Value, new: &mut Value) {
        label(new);
    }
}

fn label(object: &mut Value) {
    let name = object["metadata"]["name"].clone();
    let labels = &mut object["metadata"]["labels"];
    if !labels.is_object() {
        *labels = json!({});
    }
    labels[NAME_LABEL] = name;
}
