//! Endpoints: addresses that receive traffic, and named ports.

use serde_json::Value;
use yurt_apimachinery::Status;
use yurt_apimachinery::meta::{dns_label_errors, dns_subdomain_errors, label_key_errors};
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::values::{PROTOCOLS, endpoint_ip_errors, ip_warnings, legacy_ip_errors, port_number_errors};

use crate::registry::fields::{at, each, fill, invalid, items, one_of, text};
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
    let name = text(port, &["name"]);
    if !name.is_empty() {
        invalid(
            errors,
            format_args!("{field}.name"),
            &name.into(),
            dns_label_errors(name),
        );
    } else if needs_name {
        errors.push(FieldError::required(format!("{field}.name"), ""));
    }
    let number = at(port, &["port"]).as_i64().unwrap_or_default();
    invalid(
        errors,
        format_args!("{field}.port"),
        &number.into(),
        port_number_errors(number),
    );
    one_of(
        errors,
        &format!("{field}.protocol"),
        text(port, &["protocol"]),
        &PROTOCOLS,
    );
    check_app_protocol(field, port, errors);
}

/// `appProtocol`, in every kind that has it.
pub(super) fn check_app_protocol(field: &str, port: &Value, errors: &mut ErrorList) {
    if let Some(protocol) = port["appProtocol"].as_str() {
        let field = format!("{field}.appProtocol");
        invalid(errors, &field, &protocol.into(), label_key_errors(protocol));
    }
}
