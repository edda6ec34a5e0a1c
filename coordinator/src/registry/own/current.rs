//! An object that is about to change, and its value, which is decoded once for all readers.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use yurt_apiextensions::structural::Structural;
use yurt_apimachinery::Object;

use super::{Resource, without_version};

/// The present state of an object.
pub(crate) struct Current {
    object: Object,
    /// Schema of a custom resource, for a writer of its stored version, or of one with the same schema: another version
    /// may know fewer fields.
    schema: Option<Arc<Structural>>,
    stored: OnceLock<Value>,
}

// === impl Current ===

impl Current {
    pub(crate) fn new(object: Object, resource: &Resource) -> Self {
        let schema = resource.structural.clone();
        Self {
            object,
            schema: schema.filter(|_| resource.view.is_none() || resource.has_one_schema),
            stored: OnceLock::new(),
        }
    }

    /// The object as a value, as it would be stored now: without resourceVersion, and in the shape of the present
    /// schema. So a change of the schema alone is no change of the object.
    pub(crate) fn stored(&self) -> &Value {
        self.stored.get_or_init(|| {
            let mut value = without_version(&self.object);
            if let Some(schema) = &self.schema {
                schema.shape(&mut value);
            }
            value
        })
    }
}

impl Deref for Current {
    type Target = Object;

    fn deref(&self) -> &Object {
        &self.object
    }
}
