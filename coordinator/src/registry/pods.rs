//! Pods: without a scheduler and kubelets of our own, only what a client cannot do without.

use serde_json::{Value, json};

use super::strategy::Strategy;

/// Rules of `pods`.
pub(crate) struct Pods;

impl Strategy for Pods {
    /// A new pod waits, whatever its creator says of its status.
    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({ "phase": "Pending" });
    }
}
