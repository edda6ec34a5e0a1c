//! Endpoints: addresses that receive traffic, and named ports.

use serde_json::Value;
use yurt_apimachinery::Status;
use yurt_apimachinery::meta::{dns_label_errors, dns_subdomain_errors};
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::values::{endpoint_ip_errors, ip_warnings, legacy_ip_errors};

use super::ports;
use crate::registry::fields::{each, fill, invalid, items, text};
use crate::registry::strategy::{MetaPass, Strategy};

/// Rules of `endpoints`.
pub(crate) struct Endpoints;

impl Strategy for Endpoints {
    fn default(&self, object: &mut Value) {
        let subsets = object
            .get_mut("subsets")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten();
        for subset in subsets {
            each(subset, &["ports"]).for_each(|port| fill(port, "protocol", "TCP"));
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Result<ErrorList, Status> {
        let mut errors = ErrorList::default();
        // A stored value may stay.
        if old.is_some_and(|old| old["subsets"] == object["subsets"]) {
            return Ok(errors);
        }
        for (index, subset) in items(object, &["subsets"]).iter().enumerate() {
            check_subset(&format!("subsets[{index}]"), subset, &mut errors);
        }
        Ok(errors)
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut warnings = Vec::new();
        for (at_subset, subset) in items(object, &["subsets"]).iter().enumerate() {
            for list in ["addresses", "notReadyAddresses"] {
                for (index, address) in items(subset, &[list]).iter().enumerate() {
                    let field = format!("subsets[{at_subset}].{list}[{index}].ip");
                    warnings.extend(ip_warnings(field, text(address, &["ip"])));
                }
            }
        }
        warnings
    }

    fn meta_passes(&self) -> &'static [MetaPass] {
        &[MetaPass::Change, MetaPass::Whole]
    }
}

fn check_subset(field: &str, subset: &Value, errors: &mut ErrorList) {
    let lists = ["addresses", "notReadyAddresses"];
    if lists.iter().all(|list| items(subset, &[list]).is_empty()) {
        let why = "must specify `addresses` or `notReadyAddresses`";
        errors.push(FieldError::required(field, why));
    }
    for list in lists {
        for (index, address) in items(subset, &[list]).iter().enumerate() {
            check_address(&format!("{field}.{list}[{index}]"), address, errors);
        }
    }
    let ports = items(subset, &["ports"]);
    for (index, port) in ports.iter().enumerate() {
        check_port(&format!("{field}.ports[{index}]"), port, ports.len() > 1, errors);
    }
}

fn check_address(field: &str, address: &Value, errors: &mut ErrorList) {
    let ip = text(address, &["ip"]);
    invalid(errors, format_args!("{field}.ip"), &ip.into(), legacy_ip_errors(ip));
    let hostname = text(address, &["hostname"]);
    if !hostname.is_empty() {
        invalid(
            errors,
            format_args!("{field}.hostname"),
            &hostname.into(),
            dns_label_errors(hostname),
        );
    }
    if let Some(node) = address["nodeName"].as_str() {
        invalid(
            errors,
            format_args!("{field}.nodeName"),
            &node.into(),
            dns_subdomain_errors(node),
        );
    }
    invalid(errors, format_args!("{field}.ip"), &ip.into(), endpoint_ip_errors(ip));
}

fn check_port(field: &str, port: &Value, needs_name: bool, errors: &mut ErrorList) {
    if needs_name && text(port, &["name"]).is_empty() {
        errors.push(FieldError::required(format!("{field}.name"), ""));
    }
    ports::check_name(field, port, errors);
    ports::check_number(field, port, errors);
    ports::check_protocol(field, port, errors);
    ports::check_app_protocol(field, port, errors);
}
