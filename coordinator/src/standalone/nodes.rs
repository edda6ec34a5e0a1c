//! Nodes: each address once, and a pod range and provider that are immutable once set.

use std::collections::{BTreeSet, HashSet};

use serde_json::Value;
use yurt_apimachinery::Status;
use yurt_apimachinery::meta::{label_key_errors, label_value_errors};
use yurt_apimachinery::quantity::Quantity;
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::values::cidr_errors;

use crate::registry::fields::{at, invalid, is_set, items, members, text};
use crate::registry::strategy::{MetaPass, Strategy};

/// Rules of `nodes`.
pub(crate) struct Nodes;

/// One unit of a quantity, in billionths.
const ONE: i128 = 1_000_000_000;
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
            // The older field decides, for clients that use only that one.
            spec.insert("podCIDRs".to_owned(), Value::from(vec![single]));
        }
        // Allocatable equals capacity, unless the kubelet sends another value.
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
        drop_configs(object);
    }

    fn prepare_update(&self, _old: &Value, new: &mut Value) {
        drop_configs(new);
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        let is_told = !text(object, &["spec", "externalID"]).is_empty();
        let told = "spec.externalID: this field is deprecated, and is unused by Kubernetes";
        is_told.then(|| told.to_owned()).into_iter().collect()
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Result<ErrorList, Status> {
        let mut errors = ErrorList::default();
        check_taints(object, &mut errors);
        check_amounts(object, &mut errors);
        check_ranges(object, &mut errors);
        if let Some(old) = old {
            // kube-apiserver reports it twice, as the taints below.
            check_amounts(object, &mut errors);
            check_addresses(object, &mut errors);
            check_change(object, old, &mut errors);
            // kube-apiserver reports it twice, too.
            check_taints(object, &mut errors);
        }
        Ok(errors)
    }

    fn validate_status(&self, object: &Value, _old: &Value) -> Result<ErrorList, Status> {
        let mut errors = ErrorList::default();
        check_amounts(object, &mut errors);
        check_addresses(object, &mut errors);
        Ok(errors)
    }

    fn meta_passes(&self) -> &'static [MetaPass] {
        &[MetaPass::Whole, MetaPass::Change]
    }
}

/// Removes a field of dynamic kubelet configuration, which no longer exists.
fn drop_configs(object: &mut Value) {
    for path in [["spec", "configSource"], ["status", "config"]] {
        if let Some(Value::Object(part)) = object.get_mut(path[0]) {
            part.remove(path[1]);
        }
    }
}

fn check_change(object: &Value, old: &Value, errors: &mut ErrorList) {
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

fn check_ranges(object: &Value, errors: &mut ErrorList) {
    const FIELD: &str = "spec.podCIDRs";
    let ranges = items(object, &["spec", "podCIDRs"]);
    for (index, range) in ranges.iter().enumerate() {
        let faults = cidr_errors(range.as_str().unwrap_or_default());
        invalid(errors, format!("{FIELD}[{index}]"), range, faults);
    }
    let of_v6 = ranges
        .iter()
        .filter(|range| range.as_str().unwrap_or_default().contains(':'))
        .count();
    if ranges.len() > 1 && (ranges.len(), of_v6) != (2, 1) {
        let why = "may specify no more than one CIDR for each IP family";
        errors.push(FieldError::invalid(FIELD, ranges.to_vec(), why));
    }
}

/// Checks that no amount is negative, and that pods are whole numbers.
fn check_amounts(object: &Value, errors: &mut ErrorList) {
    for list in ["capacity", "allocatable"] {
        let amounts = at(object, &["status", list]).as_object().into_iter().flatten();
        for (name, amount) in amounts {
            let shown = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
            let Some(amount) = Quantity::parse(&shown) else {
                continue;
            };
            let field = format!("status.{list}.{name}");
            if amount.nano() < 0 {
                let why = "must be greater than or equal to 0";
                errors.push(FieldError::invalid(field.as_str(), amount.to_string(), why));
            }
            let is_whole = name == "pods" || (name.contains('/') && !name.contains("kubernetes.io/"));
            if is_whole && amount.nano() % ONE != 0 {
                errors.push(FieldError::invalid(field, amount.to_string(), "must be an integer"));
            }
        }
    }
}

fn check_addresses(object: &Value, errors: &mut ErrorList) {
    let addresses = items(object, &["status", "addresses"]);
    let mut seen = HashSet::new();
    for (index, address) in addresses.iter().enumerate() {
        if !seen.insert(address) {
            let field = format!("status.addresses[{index}]");
            // As in the Go type of the API.
            let (kind, address) = (at(address, &["type"]), at(address, &["address"]));
            let shown = format!("{{\"Type\":{kind},\"Address\":{address}}}");
            errors.push(FieldError::duplicate_shown(field, &shown, ""));
        }
    }
}

fn check_taints(object: &Value, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for (index, taint) in items(object, &["spec", "taints"]).iter().enumerate() {
        // The path is kube-apiserver's own.
        let field = format!("metadata.taints[{index}]");
        let (key, effect) = (text(taint, &["key"]), text(taint, &["effect"]));
        invalid(errors, format_args!("{field}.key"), &key.into(), label_key_errors(key));
        let value = text(taint, &["value"]);
        let faults = label_value_errors(value).join(";");
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
