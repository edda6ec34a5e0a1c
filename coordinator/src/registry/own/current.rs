//! An object that is about to change, and its value, which is decoded once for all readers.

use std::ops::Deref;
use std::sync::OnceLock;

use serde_json::Value;
use yurt_apimachinery::Object;

use super::without_version;

/// The present state of an object.
pub(crate) struct Current {
    object: Object,
    stored: OnceLock<Value>,
}

// === impl Current ===

impl Current {
    /// The object as a value, as it is stored: without resourceVersion.
    pub(crate) fn stored(&self) -> &Value {
        self.stored.get_or_init(|| without_version(&self.object))
    }
}

impl From<Object> for Current {
    fn from(object: Object) -> Self {
        Self {
            object,
            stored: OnceLock::new(),
        }
    }
}

impl Deref for Current {
    type Target = Object;

    fn deref(&self) -> &Object {
        &self.object
    }
}
