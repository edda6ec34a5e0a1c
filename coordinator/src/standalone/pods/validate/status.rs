//! Errors of a pod's new status.

use serde_json::{Value, json};
use yurt_apimachinery::meta::{dns_subdomain_errors, label_key_errors};
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::values::{is_ipv4, is_ipv6};

use super::check_ip;
use crate::registry::fields::{at, invalid, items, text};

/// Conditions whose names are not checked.
const SYSTEM: [&str; 3] = ["PodScheduled", "Ready", "Initialized"];

/// Errors of a change from one status to another.
pub(in super::super) fn check(new: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::default();
    let negative = "must be a non-negative integer";
    for (index, condition) in items(new, &["status", "conditions"]).iter().enumerate() {
        let path = format!("status.conditions[{index}]");
        let generation = at(condition, &["observedGeneration"]).as_i64().unwrap_or_default();
        if generation < 0 {
            let field = format!("{path}.observedGeneration");
            errors.push(FieldError::invalid(field, generation, negative));
        }
        let kind = text(condition, &["type"]);
        if !SYSTEM.contains(&kind) {
            // The name of the field is kube-apiserver's own.
            invalid(
                &mut errors,
                format!("{path}.Type"),
                &kind.into(),
                label_key_errors(kind),
            );
        }
    }
    check_nominated(new, old, &mut errors);
    let generation = at(new, &["status", "observedGeneration"]).as_i64().unwrap_or_default();
    if generation < 0 {
        errors.push(FieldError::invalid("status.observedGeneration", generation, negative));
    }
    let class = text(new, &["status", "qosClass"]);
    if class != text(old, &["status", "qosClass"]) {
        errors.push(FieldError::invalid("status.qosClass", class, "field is immutable"));
    }
    check_addresses(new, old, &mut errors);
    errors
}

fn check_nominated(new: &Value, old: &Value, errors: &mut ErrorList) {
    const FIELD: &str = "status.nominatedNodeName";
    let path = ["status", "nominatedNodeName"];
    let name = text(new, &path);
    if name.is_empty() || name == text(old, &path) {
        return;
    }
    invalid(errors, FIELD, &name.into(), dns_subdomain_errors(name));
    if !text(old, &["spec", "nodeName"]).is_empty() {
        let why = "may not be set on pods that are already bound to a node";
        errors.push(FieldError::forbidden(FIELD, why));
    }
}

/// New addresses have to be valid, at most one of each family.
fn check_addresses(new: &Value, old: &Value, errors: &mut ErrorList) {
    const FIELD: &str = "status.podIPs";
    let path = ["status", "podIPs"];
    let (given, held) = (items(new, &path), items(old, &path));
    for (index, address) in given.iter().enumerate() {
        if !held.iter().any(|held| at(held, &["ip"]) == at(address, &["ip"])) {
            check_ip(&format!("{FIELD}[{index}]"), at(address, &["ip"]), errors);
        }
    }
    let of_family = |is_one: fn(&str) -> bool| given.iter().filter(|one| is_one(text(one, &["ip"]))).count();
    if given.len() > 1 && (of_family(is_ipv4), of_family(is_ipv6)) != (1, 1) {
        // As in the Go type of the API.
        let shown: Value = given.iter().map(|one| json!({ "IP": at(one, &["ip"]) })).collect();
        let why = "may specify no more than one IP for each IP family";
        errors.push(FieldError::invalid(FIELD, shown, why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_named_and_what_was_stays() {
        let old = json!({"status": {"qosClass": "BestEffort", "podIPs": [{"ip": "old"}]}});
        let faults = |status: Value| -> Vec<String> {
            let errors = check(&json!({ "status": status }), &old);
            errors.iter().map(|error| error.field.clone()).collect()
        };
        let good = json!({"qosClass": "BestEffort", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "conditions": [{"type": "Ready"}, {"type": "a/b"}]});
        assert!(faults(good).is_empty());
        assert!(faults(json!({"qosClass": "BestEffort", "podIPs": [{"ip": "old"}]})).is_empty());
        let bad = json!({"qosClass": "Guaranteed", "observedGeneration": -1, "nominatedNodeName": "A_", "conditions": [{"type": "a b"}],
            "podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}, {"ip": "x"}]});
        let want = [
            "status.conditions[0].Type",
            "status.nominatedNodeName",
            "status.observedGeneration",
            "status.qosClass",
            "status.podIPs[2]",
            "status.podIPs",
        ];
        assert_eq!(faults(bad), want);
    }
}
