//! Pods: how they end. What they are is [`super::pods::defaults`]' and [`super::pods::validate`]'s.

use serde_json::{Value, json};

use super::fields::{at, text};
use super::strategy::Strategy;

/// Rules of `pods`.
pub(crate) struct Pods;

impl Strategy for Pods {
    /// A new pod waits, whatever its creator says of its status.
    fn prepare_create(&self, object: &mut Value) {
        if let Some(members) = object.as_object_mut() {
            members.insert("status".to_owned(), json!({ "phase": "Pending" }));
        }
    }

    /// The kubelet gets time to stop the containers; a pod that no kubelet has, or that has finished, needs none.
    fn grace_seconds(&self, object: &Value, wanted: Option<i64>) -> Option<i64> {
        let is_nobodys = text(object, &["spec", "nodeName"]).is_empty();
        let has_finished = matches!(text(object, &["status", "phase"]), "Succeeded" | "Failed");
        if is_nobodys || has_finished {
            return Some(0);
        }
        let own = at(object, &["spec", "terminationGracePeriodSeconds"]).as_i64();
        // Negative means at once, as one second.
        Some(wanted.or(own).unwrap_or_default()).map(|grace| if grace < 0 { 1 } else { grace })
    }
}
