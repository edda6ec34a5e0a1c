//! Pods: their initial state, validation, mutable fields, and deletion.

use serde_json::{Value, json};
use yurt_apimachinery::Status;
use yurt_apimachinery::status::ErrorList;

use crate::registry::fields::{at, carry, items, members, text};
use crate::registry::strategy::{Generation, MetaPass, Strategy, Subresource};

mod change;
mod defaults;
mod qos;
pub(crate) mod subresources;
mod validate;
mod warnings;

/// Rules of `pods`.
pub(crate) struct Pods;

impl Strategy for Pods {
    fn default(&self, object: &mut Value) {
        defaults::pod(object);
        defaults::addresses(object);
    }

    /// A new pod is pending, regardless of the status that its creator sends.
    fn prepare_create(&self, object: &mut Value) {
        let mut status = json!({ "phase": "Pending", "qosClass": qos::class(object) });
        if !items(object, &["spec", "schedulingGates"]).is_empty() {
            status["conditions"] = defaults::gated(object);
        }
        if let Some(pod) = object.as_object_mut() {
            pod.insert("status".to_owned(), status);
        }
        let seconds = ["spec", "terminationGracePeriodSeconds"];
        if at(object, &seconds).as_i64().is_some_and(|seconds| seconds < 0)
            && let Some(spec) = members(object, &["spec"])
        {
            // A negative value means immediately, which kube-apiserver stores as one second.
            spec.insert(seconds[1].to_owned(), 1.into());
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Result<ErrorList, Status> {
        let mut errors = validate::pod(object);
        match old {
            None => errors.append(validate::created(object)),
            Some(old) => errors.append(change::check(object, old)),
        }
        Ok(errors)
    }

    fn validate_status(&self, object: &Value, old: &Value) -> Result<ErrorList, Status> {
        Ok(validate::status(object, old))
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        warnings::of(object, old.is_none())
    }

    fn meta_passes(&self) -> &'static [MetaPass] {
        &[MetaPass::Change, MetaPass::Whole]
    }

    /// Keeps fields that kubelets may leave out: owners, the quality of service class and observed values. A status
    /// never deletes a pod.
    fn prepare_status(&self, old: &Value, new: &mut Value) {
        if let Some(metadata) = new.get_mut("metadata") {
            for name in ["ownerReferences", "deletionTimestamp"] {
                carry(at(old, &["metadata"]), metadata, name);
            }
        }
        let is_unset = |object: &Value, name: &str| {
            let held = at(object, &["status", name]);
            held.is_null() || held == "" || held == 0
        };
        for name in ["qosClass", "observedGeneration"] {
            if !is_unset(new, name) || is_unset(old, name) {
                continue;
            }
            if let Some(status) = members(new, &["status"]) {
                status.insert(name.to_owned(), at(old, &["status", name]).clone());
            }
        }
    }

    fn generation(&self) -> Generation {
        Generation::OfSpec
    }

    fn subresources(&self) -> &'static [Subresource] {
        const CREATE: &[&str] = &["create"];
        &[
            Subresource {
                name: "binding",
                kind: "Binding",
                group_version: None,
                verbs: CREATE,
            },
            Subresource {
                name: "eviction",
                kind: "Eviction",
                group_version: Some(("policy", "v1")),
                verbs: CREATE,
            },
        ]
    }

    /// The kubelet gets time to stop the containers; a pod without a node, or a finished one, needs none.
    fn grace_seconds(&self, object: &Value, wanted: Option<i64>) -> Option<i64> {
        let is_nobodys = text(object, &["spec", "nodeName"]).is_empty();
        let has_finished = matches!(text(object, &["status", "phase"]), "Succeeded" | "Failed");
        if is_nobodys || has_finished {
            return Some(0);
        }
        let own = at(object, &["spec", "terminationGracePeriodSeconds"]).as_i64();
        // A negative value means immediately, as one second.
        Some(wanted.or(own).unwrap_or_default()).map(|grace| if grace < 0 { 1 } else { grace })
    }
}

#[cfg(test)]
mod tests;
