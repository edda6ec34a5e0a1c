//! Rules of a kind for writes of its objects. The defaults suit most kinds.

use serde_json::Value;
use yurt_apimachinery::status::ErrorList;
use yurt_apimachinery::{Status, meta};
use yurt_storage::Durability;

/// The rules of one kind. A body passes them in this order: `default`, `prepare_…`, `validate…`.
pub(crate) trait Strategy: Send + Sync {
    /// Sets the defaults, in new objects and in new states alike. `metadata` is complete already.
    fn default(&self, _object: &mut Value) {}

    /// Sets and clears the server's fields of a new object.
    fn prepare_create(&self, _object: &mut Value) {}

    /// Keeps the immutable fields of the stored object in an update.
    fn prepare_update(&self, _old: &Value, _new: &mut Value) {}

    /// Keeps the immutable fields in an update of the status; everything but metadata and status is the old state's
    /// already.
    fn prepare_status(&self, _old: &Value, _new: &mut Value) {}

    /// Errors of an object about to be stored; `old` is the state it replaces.
    ///
    /// # Errors
    /// 400 when a field cannot be parsed at all; single faults become one 422.
    fn validate(&self, _object: &Value, _old: Option<&Value>) -> Result<ErrorList, Status> {
        Ok(ErrorList::default())
    }

    /// Errors of a new status.
    ///
    /// # Errors
    /// As for `validate`.
    fn validate_status(&self, _object: &Value, _old: &Value) -> Result<ErrorList, Status> {
        Ok(ErrorList::default())
    }

    /// Errors of new finalizers in `spec`, which namespaces have.
    fn validate_finalize(&self, _object: &Value) -> ErrorList {
        ErrorList::default()
    }

    /// Warnings about values that are stored, but invalid or without effect; `old` is the state they replace.
    fn warnings(&self, _object: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }

    /// Further checks of an update's metadata, after the two that every kind gets. Clients see each fault once per
    /// check.
    fn meta_passes(&self) -> &'static [MetaPass] {
        &[MetaPass::Change]
    }

    /// Rule by which `metadata.generation` counts changes.
    fn generation(&self) -> Generation {
        Generation::None
    }

    /// Required durability of an update before it is answered.
    fn durability(&self, _old: &Value, _new: &Value) -> Durability {
        Durability::Durable
    }

    /// True if a create requires a Namespace object.
    fn needs_namespace(&self) -> bool {
        true
    }

    /// Seconds between a delete and the end, of which the client requested `wanted`; `None` for kinds without a grace
    /// period.
    fn grace_seconds(&self, _object: &Value, _wanted: Option<i64>) -> Option<i64> {
        None
    }

    /// True if a deleting object has nothing left to wait for once this state is stored.
    fn may_go(&self, object: &Value) -> bool {
        let grace = meta::metadata(object).and_then(|metadata| metadata.get("deletionGracePeriodSeconds"));
        meta::finalizers(object).is_empty() && grace.and_then(Value::as_i64).unwrap_or_default() == 0
    }

    /// True if all objects can be deleted with one request.
    fn deletes_collections(&self) -> bool {
        true
    }

    /// Subresources of an object, apart from `/status`.
    fn subresources(&self) -> &'static [Subresource] {
        &[]
    }
}

/// A subresource as discovery shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subresource {
    /// Last segment of its path.
    pub(crate) name: &'static str,
    /// Kind of the written body.
    pub(crate) kind: &'static str,
    /// Group and version of that kind, where they are not the resource's own.
    pub(crate) group_version: Option<(&'static str, &'static str)>,
    /// Supported verbs.
    pub(crate) verbs: &'static [&'static str],
}

/// Supported verbs of `/status`.
pub(crate) const STATUS_VERBS: &[&str] = &["get", "patch", "update"];

/// One check of an update's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetaPass {
    /// The new metadata on its own.
    Whole,
    /// The new metadata against the old.
    Change,
}

/// Changes with which `metadata.generation` grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    /// None: the server does not set it.
    None,
    /// With every change outside metadata.
    OfContent,
    /// With every change outside metadata and status.
    OfSpec,
    /// The same, and with changes of labels.
    OfSpecAndLabels,
}

/// A kind without rules of its own.
pub(crate) struct DefaultStrategy;

impl Strategy for DefaultStrategy {}

// === impl Generation ===

impl Generation {
    /// True if the change from `old` to `new` raises the generation.
    pub(crate) fn is_raised(self, old: &Value, new: &Value) -> bool {
        let differs_outside = |left_out: &[&str]| !relevant(old, left_out).eq(relevant(new, left_out));
        let labels = || old["metadata"]["labels"] != new["metadata"]["labels"];
        match self {
            Self::None => false,
            Self::OfContent => differs_outside(&["metadata"]),
            Self::OfSpec => differs_outside(&["metadata", "status"]),
            Self::OfSpecAndLabels => differs_outside(&["metadata", "status"]) || labels(),
        }
    }
}

/// The members that count for the generation.
fn relevant<'a>(object: &'a Value, left_out: &[&str]) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let members = object.as_object().into_iter().flatten();
    members.filter(|(key, _)| !left_out.contains(&key.as_str()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Conformance: 3.B08
    #[test]
    fn generation_follows_the_spec_only() {
        let old = json!({"metadata": {"labels": {"a": "1"}}, "spec": {"x": 1}, "status": {"y": 1}});
        let mut status = old.clone();
        status["status"]["y"] = json!(2);
        status["metadata"]["labels"]["a"] = json!("2");
        assert!(!Generation::OfSpec.is_raised(&old, &status));
        assert!(Generation::OfSpecAndLabels.is_raised(&old, &status));
        assert!(Generation::OfContent.is_raised(&old, &status));
        let mut spec = old.clone();
        spec["spec"]["x"] = json!(2);
        assert!(Generation::OfSpec.is_raised(&old, &spec) && !Generation::None.is_raised(&old, &spec));
    }
}
