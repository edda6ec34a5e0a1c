//! NodePools, and every other custom resource: the status is a subresource, and the generation follows the rest.

use serde_json::Value;

use super::fields::carry;
use super::strategy::{Generation, Strategy};

/// Rules of custom resources with a status.
pub(crate) struct NodePools;

impl Strategy for NodePools {
    fn prepare_create(&self, object: &mut Value) {
        if let Some(object) = object.as_object_mut() {
            object.remove("status");
        }
    }

    /// Of metadata only the managed fields change with a status.
    fn prepare_status(&self, old: &Value, new: &mut Value) {
        let managed = new["metadata"].get("managedFields").cloned();
        carry(old, new, "metadata");
        if let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) {
            match managed {
                Some(managed) => drop(metadata.insert("managedFields".to_owned(), managed)),
                None => drop(metadata.remove("managedFields")),
            }
        }
    }

    fn generation(&self) -> Generation {
        Generation::OfSpec
    }
}
