//! What a kind may decide about writes of its objects. Everything has a default that suits most kinds.

use serde_json::Value;
use yurt_apimachinery::Status;
use yurt_apimachinery::status::FieldError;
use yurt_storage::Durability;

/// The rules of one kind.
pub(crate) trait Strategy: Send + Sync {
    /// Fills in what the server sets on a new object. `metadata` is complete already.
    fn prepare_create(&self, _object: &mut Value) {}

    /// Carries over from the stored object what an update may not change.
    fn prepare_update(&self, _old: &Value, _new: &mut Value) {}

    /// Faults of an object about to be stored; `old` is what it replaces.
    ///
    /// # Errors
    /// 400 when a field cannot be read at all; single faults become one 422.
    fn validate(&self, _object: &Value, _old: Option<&Value>) -> Result<Vec<FieldError>, Status> {
        Ok(Vec::new())
    }

    /// Whether the object counts its own changes in `metadata.generation`.
    fn generation(&self) -> Generation {
        Generation::None
    }

    /// How safe an update has to be before it is answered.
    fn durability(&self, _old: &Value, _new: &Value) -> Durability {
        Durability::Durable
    }

    /// Whether a Namespace object must exist for a create.
    fn needs_namespace(&self) -> bool {
        true
    }
}

/// When `metadata.generation` grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    /// It is not set by the server.
    None,
    /// With every change outside metadata and status.
    OfSpec,
    /// The same, and with changes of labels.
    OfSpecAndLabels,
}

/// A kind without rules of its own.
pub(crate) struct Plain;

impl Strategy for Plain {}

// === impl Generation ===

impl Generation {
    /// Whether going from `old` to `new` raises the generation.
    pub(crate) fn is_raised(self, old: &Value, new: &Value) -> bool {
        let differs_outside_metadata = || {
            let relevant = |value: &Value| {
                let members = value.as_object().into_iter().flatten();
                members
                    .filter(|(key, _)| !matches!(key.as_str(), "metadata" | "status"))
                    .map(owned)
                    .collect::<Vec<_>>()
            };
            relevant(old) != relevant(new)
        };
        let labels = |value: &Value| value["metadata"]["labels"].clone();
        match self {
            Self::None => false,
            Self::OfSpec => differs_outside_metadata(),
            Self::OfSpecAndLabels => differs_outside_metadata() || labels(old) != labels(new),
        }
    }
}

fn owned((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn generation_follows_the_spec_only() {
        let old = json!({"metadata": {"labels": {"a": "1"}}, "spec": {"x": 1}, "status": {"y": 1}});
        let mut status = old.clone();
        status["status"]["y"] = json!(2);
        status["metadata"]["labels"]["a"] = json!("2");
        assert!(!Generation::OfSpec.is_raised(&old, &status));
        assert!(Generation::OfSpecAndLabels.is_raised(&old, &status));
        let mut spec = old.clone();
        spec["spec"]["x"] = json!(2);
        assert!(Generation::OfSpec.is_raised(&old, &spec) && !Generation::None.is_raised(&old, &spec));
    }
}
