//! Nodes: addresses once, and a range for pods and a provider that stay once they are set.

use serde_json::Value;
use yurt_apimachinery::Status;
use yurt_apimachinery::meta::{label_key_faults, label_value_faults};
use yurt_apimachinery::status::FieldError;
use yurt_apimachinery::values::cidr_faults;

use super::fields::{at, invalid, is_set, items, members, text};
use super::strategy::{MetaPass, Strategy};

/// Rules of `nodes`.
pub(crate) struct Nodes;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

impl Strategy for Nodes {
    fn default(&self, object: &mut Value) {
        let Some(spec) = members(object, &["spec"]) else { return };
        let single = spec
            .get("podCIDR")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let first = spec
            .get("podCIDRs")
            .and_then(Value::as_array)
            .and_then(|list| list.first()?.as_str());
        if !single.is_empty() && first != Some(single.as_str()) {
            // The older field decides, for clients that know no other.
            spec.insert("podCIDRs".to_owned(), Value::from(vec![single]));
        }
        // What can be allocated is what there is, unless the kubelet says otherwise.
        if is_set(object, &["status", "capacity"]) {
            let capacity = at(object, &["status", "capacity"]).clone();
            let allocatable = members(object, &["status", "allocatable"]);
            if let (Some(allocatable), Value::Object(capacity)) = (allocatable, capacity)
                && allocatable.is_empty()
            {
                *allocatable = capacity;
            }
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        for path in [["spec", "configSource"], ["status", "config"]] {
            if let Some(Value::Object(part)) = object.get_mut(path[0]) {
                part.remove(path[1]);
            }
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Result<Vec<FieldError>, Status> {
        let mut errors = Vec::new();
        check_taints(object, &mut errors);
        check_ranges(object, &mut errors);
        if let Some(old) = old {
            check_change(object, old, &mut errors);
            check_addresses(object, &mut errors);
            // Told twice by kube-apiserver, too.
            check_taints(object, &mut errors);
        }
        Ok(errors)
    }

    fn validate_status(&self, object: &Value, _old: &Value) -> Result<Vec<FieldError>, Status> {
        let mut errors = Vec::new();
        check_addresses(object, &mut errors);
        Ok(errors)
    }

    fn meta_passes(&self) -> &'static [MetaPass] {
        &[MetaPass::Whole, MetaPass::Change]
    }
}

fn check_change(object: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let only_once = |what: &str| format!("node updates may not change {what} except from \"\" to valid");
    let (held, given) = (items(old, &["spec", "podCIDRs"]), items(object, &["spec", "podCIDRs"]));
    if !held.is_empty() && held != given {
        errors.push(FieldError::forbidden("spec.podCIDRs", &only_once("podCIDR")));
    }
    let (held, given) = (
        text(old, &["spec", "providerID"]),
        text(object, &["spec", "providerID"]),
    );
    if !held.is_empty() && held != given {
        errors.push(FieldError::forbidden("spec.providerID", &only_once("providerID")));
    }
    if text(old, &["spec", "externalID"]) != text(object, &["spec", "externalID"]) {
        errors.push(FieldError::forbidden("spec.externalID", "may not be updated"));
    }
}

fn check_ranges(object: &Value, errors: &mut Vec<FieldError>) {
    for (index, range) in items(object, &["spec", "podCIDRs"]).iter().enumerate() {
        let faults = cidr_faults(range.as_str().unwrap_or_default());
        invalid(errors, format!("spec.podCIDRs[{index}]"), range, faults);
    }
}

fn check_addresses(object: &Value, errors: &mut Vec<FieldError>) {
    let addresses = items(object, &["status", "addresses"]);
    for (index, address) in addresses.iter().enumerate() {
        if addresses[..index].contains(address) {
            let field = format!("status.addresses[{index}]");
            errors.push(FieldError::duplicate(field, address.clone()));
        }
    }
}

fn check_taints(object: &Value, errors: &mut Vec<FieldError>) {
    let mut seen = std::collections::BTreeSet::new();
    for (index, taint) in items(object, &["spec", "taints"]).iter().enumerate() {
        // The path is kube-apiserver's own.
        let field = format!("metadata.taints[{index}]");
        let (key, effect) = (text(taint, &["key"]), text(taint, &["effect"]));
        invalid(errors, format_args!("{field}.key"), &key.into(), label_key_faults(key));
        let value = text(taint, &["value"]);
        let faults = label_value_faults(value).join(";");
        if !faults.is_empty() {
            errors.push(FieldError::invalid(format!("{field}.value"), value, &faults));
        }
        if effect.is_empty() {
            errors.push(FieldError::required(format!("{field}.effect"), ""));
        } else if !EFFECTS.contains(&effect) {
            errors.push(FieldError::not_supported(format!("{field}.effect"), effect, &EFFECTS));
        }
        if !seen.insert((key, effect)) {
            let shown = format!(
                "{{\"Key\":{},\"Value\":{},\"Effect\":{},\"TimeAdded\":{}}}",
                Value::from(key),
                Value::from(value),
                Value::from(effect),
                at(taint, &["timeAdded"])
            );
            let why = "taints must be unique by key and effect pair";
            errors.push(FieldError::duplicate_shown(field.as_str(), &shown, why));
        }
    }
}
