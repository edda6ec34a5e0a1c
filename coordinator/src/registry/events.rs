//! Core events: they live in the namespace of what they are about.

use serde_json::Value;
use yurt_apimachinery::Status;
use yurt_apimachinery::status::FieldError;

use super::strategy::Strategy;

/// Rules of `events`.
pub(crate) struct Events;

impl Strategy for Events {
    fn validate(&self, object: &Value, _old: Option<&Value>) -> Result<Vec<FieldError>, Status> {
        let about = object["involvedObject"]["namespace"].as_str().unwrap_or_default();
        // Events of cluster-scoped objects are kept in default.
        let expected = if about.is_empty() { "default" } else { about };
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let is_legacy = object["eventTime"].is_null();
        if is_legacy && namespace != expected && !(about.is_empty() && namespace == "kube-system") {
            let why = "does not match event.namespace";
            return Ok(vec![FieldError::invalid("involvedObject.namespace", about, why)]);
        }
        Ok(Vec::new())
    }

    /// In a pool an event may be about an object of a namespace that only the cloud has.
    fn needs_namespace(&self) -> bool {
        false
    }
}
