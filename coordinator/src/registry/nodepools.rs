//! NodePools: a custom resource with a status, whose generation follows its spec.

use serde_json::Value;

use super::strategy::{Generation, Strategy};

/// Rules of `nodepools.apps.openyurt.io`.
pub(crate) struct NodePools;

impl Strategy for NodePools {
    /// As every custom resource with a status subresource.
    fn prepare_create(&self, object: &mut Value) {
        if let Some(object) = object.as_object_mut() {
            object.remove("status");
        }
    }

    fn generation(&self) -> Generation {
        Generation::OfSpec
    }
}
