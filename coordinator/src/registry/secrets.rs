//! Secrets: a type that never changes, and data in base64 only.

use serde_json::{Value, json};
use yurt_apimachinery::Status;
use yurt_apimachinery::status::FieldError;

use super::strategy::Strategy;

/// Rules of `secrets`.
pub(crate) struct Secrets;

impl Strategy for Secrets {
    fn prepare_create(&self, object: &mut Value) {
        if object["type"].as_str().unwrap_or_default().is_empty() {
            object["type"] = json!("Opaque");
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Result<Vec<FieldError>, Status> {
        let mut errors = Vec::new();
        if object.get("stringData").is_some_and(|data| !data.is_null()) {
            errors.push(FieldError::forbidden(
                "stringData",
                "is not supported by this server; give data in base64",
            ));
        }
        if old.is_some_and(|old| old["type"] != object["type"]) {
            let value = object["type"].as_str().unwrap_or_default();
            errors.push(FieldError::invalid("type", value, "field is immutable"));
        }
        Ok(errors)
    }
}
