//! EndpointSlices: their generation counts changes, labels included, and their address type never
//! changes.

use std::fmt::Arguments;

use serde_json::Value;
use yurt_apimachinery::Status;
use yurt_apimachinery::meta::{dns_label_errors, dns_subdomain_errors, label_value_errors};
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::values;

use super::ports;
use crate::registry::fields::{each, fill, invalid, items, one_of, text};
use crate::registry::strategy::{Generation, MetaPass, Strategy};

/// Rules of `endpointslices.discovery.k8s.io`.
pub(crate) struct EndpointSlices;

/// Maximum number of endpoints of one slice.
const ENDPOINTS_MAX: usize = 1000;
/// Maximum number of addresses of one endpoint.
const ADDRESSES_MAX: usize = 100;
/// Maximum number of ports of one slice.
const PORTS_MAX: usize = 20_000;
/// Maximum number of zones, and of nodes, in the hints of an endpoint.
const HINTS_MAX: usize = 8;
/// Kinds of addresses, in the order messages list them.
const ADDRESS_TYPES: [&str; 3] = ["FQDN", "IPv4", "IPv6"];

impl Strategy for EndpointSlices {
    fn default(&self, object: &mut Value) {
        for port in each(object, &["ports"]) {
            // The empty name is a name here.
            if port.get("name").is_none_or(Value::is_null) {
                port.insert("name".to_owned(), "".into());
            }
            fill(port, "protocol", "TCP");
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        drop_topology(object);
    }

    fn prepare_update(&self, old: &Value, new: &mut Value) {
        if old["endpoints"] != new["endpoints"] {
            drop_topology(new);
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Result<ErrorList, Status> {
        let mut errors = ErrorList::default();
        let address_type = text(object, &["addressType"]);
        one_of(&mut errors, "addressType", address_type, &ADDRESS_TYPES);
        check_ports(object, &mut errors);
        // A stored value may stay.
        if old.is_none_or(|old| old["endpoints"] != object["endpoints"]) {
            check_endpoints(object, address_type, &mut errors);
        }
        if old.is_some_and(|old| old["addressType"] != object["addressType"]) {
            errors.push(FieldError::invalid("addressType", address_type, "field is immutable"));
        }
        Ok(errors)
    }

    fn generation(&self) -> Generation {
        Generation::OfSpecAndLabels
    }

    fn meta_passes(&self) -> &'static [MetaPass] {
        &[MetaPass::Whole]
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let mut warnings = Vec::new();
        if old.is_none() && text(object, &["addressType"]) == "FQDN" {
            warnings.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
        }
        if text(object, &["addressType"]) != "FQDN" {
            for (at, endpoint) in items(object, &["endpoints"]).iter().enumerate() {
                for (index, address) in items(endpoint, &["addresses"]).iter().enumerate() {
                    let field = format_args!("endpoints[{at}].addresses[{index}]");
                    warnings.extend(values::ip_warnings(field, address.as_str().unwrap_or_default()));
                }
            }
        }
        warnings
    }
}

/// Removes a field of the previous version, which clients may not write.
fn drop_topology(object: &mut Value) {
    each(object, &["endpoints"]).for_each(|endpoint| drop(endpoint.remove("deprecatedTopology")));
}

fn check_ports(object: &Value, errors: &mut ErrorList) {
    let listed = items(object, &["ports"]);
    if listed.len() > PORTS_MAX {
        return errors.push(FieldError::too_many("ports", listed.len(), PORTS_MAX));
    }
    let mut names = std::collections::BTreeSet::new();
    for (index, port) in listed.iter().enumerate() {
        let field = format!("ports[{index}]");
        let name = text(port, &["name"]);
        ports::check_name(&field, port, errors);
        if !names.insert(name) {
            errors.push(FieldError::duplicate(format!("{field}.name"), name));
        }
        ports::check_protocol(&field, port, errors);
        ports::check_app_protocol(&field, port, errors);
    }
}

fn check_endpoints(object: &Value, address_type: &str, errors: &mut ErrorList) {
    let endpoints = items(object, &["endpoints"]);
    if endpoints.len() > ENDPOINTS_MAX {
        return errors.push(FieldError::too_many("endpoints", endpoints.len(), ENDPOINTS_MAX));
    }
    for (index, endpoint) in endpoints.iter().enumerate() {
        // Paths are formatted only for faults: a slice may have a thousand endpoints without one.
        let field = format_args!("endpoints[{index}]");
        check_addresses(format_args!("{field}.addresses"), endpoint, address_type, errors);
        if let Value::String(node) = &endpoint["nodeName"] {
            let faults = dns_subdomain_errors(node);
            invalid(errors, format_args!("{field}.nodeName"), &endpoint["nodeName"], faults);
        }
        if let Value::String(name) = &endpoint["hostname"] {
            let faults = dns_label_errors(name);
            invalid(errors, format_args!("{field}.hostname"), &endpoint["hostname"], faults);
        }
        check_hints(field, endpoint, "forZones", label_value_errors, errors);
        check_hints(field, endpoint, "forNodes", dns_subdomain_errors, errors);
    }
}

fn check_addresses(field: Arguments<'_>, endpoint: &Value, address_type: &str, errors: &mut ErrorList) {
    let addresses = items(endpoint, &["addresses"]);
    if addresses.is_empty() {
        errors.push(FieldError::required(
            field.to_string(),
            "must contain at least 1 address",
        ));
    } else if addresses.len() > ADDRESSES_MAX {
        errors.push(FieldError::too_many(field.to_string(), addresses.len(), ADDRESSES_MAX));
    }
    for (index, value) in addresses.iter().enumerate() {
        let (address, at) = (value.as_str().unwrap_or_default(), format_args!("{field}[{index}]"));
        let (faults, is_right_family) = match address_type {
            "IPv4" => (values::legacy_ip_errors(address), values::is_ipv4(address)),
            "IPv6" => (values::strict_ip_errors(address), values::is_ipv6(address)),
            "FQDN" => {
                invalid(errors, at, value, values::domain_name_errors(address));
                continue;
            }
            _ => continue,
        };
        if faults.is_empty() {
            if !is_right_family {
                let why = format!("must be an {address_type} address");
                errors.push(FieldError::invalid(field.to_string(), address, &why));
            }
            invalid(errors, at, value, values::endpoint_ip_errors(address));
        }
        invalid(errors, at, value, faults);
    }
}

fn check_hints(
    field: Arguments<'_>,
    endpoint: &Value,
    list: &str,
    faults: fn(&str) -> Vec<String>,
    errors: &mut ErrorList,
) {
    let hints = items(endpoint, &["hints", list]);
    if hints.is_empty() {
        return;
    }
    let field = format!("{field}.hints.{list}");
    if hints.len() > HINTS_MAX {
        return errors.push(FieldError::too_many(field, hints.len(), HINTS_MAX));
    }
    let mut names = std::collections::BTreeSet::new();
    for (index, hint) in hints.iter().enumerate() {
        let (name, field) = (text(hint, &["name"]), format!("{field}[{index}].name"));
        if !names.insert(name) {
            errors.push(FieldError::duplicate(field.as_str(), name));
        }
        invalid(errors, &field, &name.into(), faults(name));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Conformance: 5.25
    #[test]
    fn a_slice_holds_a_thousand_endpoints_of_one_type() {
        let of =
            |count: usize| json!({"addressType": "IPv4", "endpoints": vec![json!({"addresses": ["10.0.0.1"]}); count]});
        for (count, faults) in [(999, 0), (1000, 0), (1001, 1)] {
            assert_eq!(
                EndpointSlices.validate(&of(count), None).unwrap().len(),
                faults,
                "{count}"
            );
        }
        let many = EndpointSlices.validate(&of(1001), None).unwrap();
        assert_eq!(
            many[0].to_string(),
            "endpoints: Too many: 1001: must have at most 1000 items"
        );
        let changed = json!({"addressType": "IPv6"});
        let errors = EndpointSlices
            .validate(&changed, Some(&json!({"addressType": "IPv4"})))
            .unwrap();
        assert_eq!(
            errors[0].to_string(),
            "addressType: Invalid value: \"IPv6\": field is immutable"
        );
    }

    #[test]
    fn ports_get_a_name_and_a_protocol() {
        let mut slice = json!({"ports": [{"port": 80}, {"name": "b", "protocol": "UDP"}, 5]});
        EndpointSlices.default(&mut slice);
        let want = json!([{"port": 80, "name": "", "protocol": "TCP"}, {"name": "b", "protocol": "UDP"}, 5]);
        assert_eq!(slice["ports"], want);
    }
}
