//! Leases: validation, recognition of mere renewals, and the leases that the guard of elections covers.

use serde_json::Value;
use yurt_apimachinery::lease::LeaseSpec;
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::{Object, ObjectKey, Status};
use yurt_pool_protocol::guard::DURATION_SECONDS_MAX;
use yurt_pool_protocol::names::{ELECTION_KEY, INFORMER_SYNC_KEY, NODE_LEASES};
use yurt_storage::Durability;

use super::Resource;
use super::fields::is_set;
use super::strategy::Strategy;
use crate::lease_objects::COLLECTION;

/// Rules of `leases.coordination.k8s.io`.
pub(crate) struct Leases;

impl Strategy for Leases {
    /// Coordinated election is not supported: its fields are removed.
    fn prepare_create(&self, object: &mut Value) {
        drop_unless_held(&Value::Null, object);
    }

    fn prepare_update(&self, old: &Value, new: &mut Value) {
        drop_unless_held(old, new);
    }

    fn validate(&self, object: &Value, _old: Option<&Value>) -> Result<ErrorList, Status> {
        Ok(LeaseSpec::from_value(object)?.validate())
    }

    fn durability(&self, old: &Value, new: &Value) -> Durability {
        if is_renewal(old, new) {
            Durability::Volatile
        } else {
            Durability::Durable
        }
    }

    fn needs_namespace(&self) -> bool {
        false
    }
}

fn drop_unless_held(old: &Value, new: &mut Value) {
    if let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) {
        spec.retain(|field, _| {
            !matches!(field.as_str(), "strategy" | "preferredHolder") || is_set(old, &["spec", field])
        });
    }
}

/// True if only the fields of a heartbeat differ: renewTime and annotations.
///
/// Such a write may stay in memory: after a crash the guard keeps the holder for one duration, and heartbeats repeat.
fn is_renewal(old: &Value, new: &Value) -> bool {
    let spec = same_but(&old["spec"], &new["spec"], &["renewTime"]);
    let metadata = ["annotations", "resourceVersion", "managedFields"];
    spec && same_but(&old["metadata"], &new["metadata"], &metadata) && same_but(old, new, &["spec", "metadata"])
}

/// True if two structures are equal, some members aside.
fn same_but(old: &Value, new: &Value, aside: &[&str]) -> bool {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let counted = |(name, _): &(&String, &Value)| !aside.contains(&name.as_str());
            old.iter().filter(counted).eq(new.iter().filter(counted))
        }
        (old, new) => old == new,
    }
}

/// True if the guard covers this object. The lease of the pool's data is no election: the leader alone may write it.
pub(super) fn is_guarded(resource: &Resource, key: &ObjectKey) -> bool {
    may_be_guarded(resource, key.namespace()) && key.as_str() != INFORMER_SYNC_KEY
}

/// True if the guard may cover objects of a namespace.
pub(crate) fn may_be_guarded(resource: &Resource, namespace: Option<&str>) -> bool {
    resource.name == COLLECTION && namespace != Some(NODE_LEASES)
}

/// The fault of a duration that the election lease does not accept. A stored one may stay: readers clamp it.
pub(crate) fn duration_fault(old: Option<&Object>, new: &Object) -> Option<FieldError> {
    let seconds = |lease: &Object| LeaseSpec::from_object(lease).ok()?.lease_duration_seconds;
    let wanted =
        seconds(new).filter(|wanted| *wanted > DURATION_SECONDS_MAX && Some(*wanted) != old.and_then(seconds))?;
    let why = format!("must be at most {DURATION_SECONDS_MAX} for the election lease {ELECTION_KEY}");
    Some(FieldError::invalid("spec.leaseDurationSeconds", wanted, &why))
}

/// The fault of a count of transitions that a node raises by more than one. Each holder adds one to it, so a node could
/// leave a count that has no successor.
pub(crate) fn transitions_fault(old: Option<&Object>, new: &Object) -> Option<FieldError> {
    let count = |lease: &Object| LeaseSpec::from_object(lease).ok()?.lease_transitions;
    let highest = old.and_then(count).unwrap_or(0).saturating_add(1);
    let wanted = count(new).filter(|wanted| *wanted > highest)?;
    let why = format!("must be at most {highest}: a node may raise it by one");
    Some(FieldError::invalid("spec.leaseTransitions", wanted, &why))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease() -> Value {
        json!({
            "metadata": {"name": "n", "labels": {"a": "b"}, "annotations": {"x": "1"}, "resourceVersion": "5"},
            "spec": {"holderIdentity": "n", "leaseDurationSeconds": 40, "leaseTransitions": 1, "renewTime": "t1"},
        })
    }

    #[test]
    fn renewals_touch_renew_time_and_annotations_only() {
        let mut renewed = lease();
        renewed["spec"]["renewTime"] = json!("t2");
        renewed["metadata"]["annotations"] = json!({"openyurt.io/delegate-heartbeat": "true"});
        renewed["metadata"]["resourceVersion"] = json!("6");
        assert!(is_renewal(&lease(), &renewed));
        for (pointer, value) in [
            ("/spec/holderIdentity", json!("m")),
            ("/spec/leaseDurationSeconds", json!(41)),
            ("/spec/leaseTransitions", json!(2)),
            ("/metadata/labels/a", json!("c")),
        ] {
            let mut changed = lease();
            *changed.pointer_mut(pointer).unwrap() = value;
            assert!(!is_renewal(&lease(), &changed), "{pointer}");
        }
        let mut owned = lease();
        owned["metadata"]["ownerReferences"] = json!([{"uid": "u"}]);
        assert!(!is_renewal(&lease(), &owned));
    }
}
