//! Mutable fields of a pod: images, the deadline, more tolerations, fewer gates. All others are immutable.

use std::collections::HashSet;

use serde_json::Value;
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::values::range_errors;

use super::validate;
use crate::registry::fields::{at, carry, each, items, text};

/// Mutable fields, as kube-apiserver names them.
const CHANGEABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
    `spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set \
    to 1 if it was previously negative)";
const DEADLINE: &str = "spec.activeDeadlineSeconds";

/// Errors of a change from one pod to another.
pub(super) fn check(new: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::default();
    for list in ["containers", "initContainers"] {
        if !check_images(new, old, list, &mut errors) {
            return errors;
        }
    }
    if !check_deadline(new, old, &mut errors) {
        return errors;
    }
    check_tolerations(new, old, &mut errors);
    check_gates(new, old, &mut errors);
    if !is_same_otherwise(new, old) {
        let why = format!("pod updates may not change fields other than {CHANGEABLE}");
        errors.push(FieldError::forbidden("spec", &why));
    }
    errors
}

/// Returns true if the containers can be compared one by one.
fn check_images(new: &Value, old: &Value, list: &str, errors: &mut ErrorList) -> bool {
    let (given, held) = (items(new, &["spec", list]), items(old, &["spec", list]));
    if given.len() != held.len() {
        let why = "pod updates may not add or remove containers";
        errors.push(FieldError::forbidden(format!("spec.{list}"), why));
        return false;
    }
    for (index, container) in given.iter().enumerate() {
        let path = format!("spec.{list}[{index}]");
        if text(container, &["image"]).is_empty() {
            errors.push(FieldError::required(format!("{path}.image"), ""));
        }
        validate::check_blanks(container, &path, errors);
    }
    true
}

/// Checks that the deadline is only set or shortened. Returns false to end the checks.
fn check_deadline(new: &Value, old: &Value, errors: &mut ErrorList) -> bool {
    let seconds = |pod: &Value| at(pod, &["spec", "activeDeadlineSeconds"]).as_i64();
    match (seconds(new), seconds(old)) {
        (Some(given), held) => {
            let faults = range_errors(given, 0, i64::from(i32::MAX));
            if !faults.is_empty() {
                errors.push(FieldError::invalid(DEADLINE, given, &faults.join(", ")));
                return false;
            }
            if held.is_some_and(|held| held < given) {
                let why = "must be less than or equal to previous value";
                errors.push(FieldError::invalid(DEADLINE, given, why));
                return false;
            }
        }
        (None, Some(_)) => {
            let why = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid(DEADLINE, Value::Null, why));
        }
        (None, None) => {}
    }
    true
}

fn check_tolerations(new: &Value, old: &Value, errors: &mut ErrorList) {
    let without_seconds = |toleration: &Value| {
        let mut toleration = toleration.clone();
        toleration
            .as_object_mut()
            .map(|members| members.remove("tolerationSeconds"));
        toleration
    };
    let given: HashSet<Value> = items(new, &["spec", "tolerations"])
        .iter()
        .map(without_seconds)
        .collect();
    let held = items(old, &["spec", "tolerations"]);
    if held
        .iter()
        .any(|toleration| !given.contains(&without_seconds(toleration)))
    {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        return errors.push(FieldError::forbidden("spec.tolerations", why));
    }
    validate::check_tolerations(at(new, &["spec"]), errors);
}

fn check_gates(new: &Value, old: &Value, errors: &mut ErrorList) {
    let held: HashSet<&str> = items(old, &["spec", "schedulingGates"])
        .iter()
        .map(|gate| text(gate, &["name"]))
        .collect();
    for (index, gate) in items(new, &["spec", "schedulingGates"]).iter().enumerate() {
        let name = text(gate, &["name"]);
        if !held.contains(name) {
            let why = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            errors.push(FieldError::forbidden(
                format!("spec.schedulingGates[{index}].name"),
                &why,
            ));
        }
    }
}

/// True if only mutable fields differ.
fn is_same_otherwise(new: &Value, old: &Value) -> bool {
    if at(new, &["spec"]) == at(old, &["spec"]) {
        return true;
    }
    let mut alike = new.clone();
    for list in ["containers", "initContainers"] {
        let held = items(old, &["spec", list]);
        for (container, held) in each(&mut alike, &["spec", list]).zip(held) {
            container.insert("image".to_owned(), at(held, &["image"]).clone());
        }
    }
    let was_gated = !items(old, &["spec", "schedulingGates"]).is_empty();
    let was_negative = at(old, &["spec", "terminationGracePeriodSeconds"])
        .as_i64()
        .is_some_and(|seconds| seconds < 0);
    let becomes_one = at(new, &["spec", "terminationGracePeriodSeconds"]) == 1;
    if let Some(spec) = alike.get_mut("spec") {
        for name in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
            carry(at(old, &["spec"]), spec, name);
        }
        if was_negative && becomes_one {
            carry(at(old, &["spec"]), spec, "terminationGracePeriodSeconds");
        }
        if was_gated {
            keep_placement(spec, at(old, &["spec"]));
        }
    }
    at(&alike, &["spec"]) == at(old, &["spec"])
}

/// A gated pod may get further placement constraints.
fn keep_placement(spec: &mut Value, old: &Value) {
    let held = at(old, &["nodeSelector"]).as_object();
    let only_adds = held.is_none_or(|held| {
        held.iter()
            .all(|(key, value)| at(spec, &["nodeSelector", key]) == value)
    });
    if only_adds {
        carry(old, spec, "nodeSelector");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: Value) -> Value {
        let mut pod = json!({"spec": {"containers": [{"name": "c", "image": "i:1"}], "tolerations": [{"key": "k", "operator": "Exists"}]}});
        pod["spec"]
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        pod
    }

    #[test]
    fn only_a_few_fields_change() {
        let old = pod(json!({"activeDeadlineSeconds": 10}));
        let fault_of = |spec: Value| {
            let errors = check(&pod(spec), &old);
            errors.first().map(|error| error.field.clone()).unwrap_or_default()
        };
        for (spec, field) in [
            (json!({"activeDeadlineSeconds": 10}), ""),
            (json!({"activeDeadlineSeconds": 9}), ""),
            (json!({"activeDeadlineSeconds": 11}), "spec.activeDeadlineSeconds"),
            (json!({}), "spec.activeDeadlineSeconds"),
            (
                json!({"activeDeadlineSeconds": 10, "containers": [{"name": "c", "image": "i:2"}]}),
                "",
            ),
            (
                json!({"activeDeadlineSeconds": 10, "containers": [{"name": "d", "image": "i:1"}]}),
                "spec",
            ),
            (
                json!({"activeDeadlineSeconds": 10, "containers": []}),
                "spec.containers",
            ),
            (json!({"activeDeadlineSeconds": 10, "nodeName": "n"}), "spec"),
            (
                json!({"activeDeadlineSeconds": 10, "tolerations": []}),
                "spec.tolerations",
            ),
            (
                json!({"activeDeadlineSeconds": 10, "tolerations": [{"key": "a", "operator": "Exists"}, {"key": "k", "operator": "Exists"}]}),
                "",
            ),
            (
                json!({"activeDeadlineSeconds": 10, "schedulingGates": [{"name": "g"}]}),
                "spec.schedulingGates[0].name",
            ),
        ] {
            assert_eq!(fault_of(spec.clone()), field, "{spec}");
        }
        let gated = pod(json!({"schedulingGates": [{"name": "g"}], "nodeSelector": {"a": "b"}}));
        let more = pod(json!({"nodeSelector": {"a": "b", "c": "d"}}));
        assert!(check(&more, &gated).is_empty());
        assert!(!check(&pod(json!({})), &gated).is_empty(), "nothing may be taken away");
        let endless = pod(json!({"terminationGracePeriodSeconds": -1}));
        assert!(check(&pod(json!({"terminationGracePeriodSeconds": 1})), &endless).is_empty());
        for odd in [
            json!({"spec": 3}),
            json!({"spec": {"containers": [1], "tolerations": 5}}),
        ] {
            check(&odd, &odd);
            check(&odd, &old);
            check(&old, &odd);
        }
    }
}
