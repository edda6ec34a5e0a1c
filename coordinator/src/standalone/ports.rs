//! Rules of one port, in the kinds that have ports: Services, Endpoints, EndpointSlices.

use serde_json::Value;
use yurt_apimachinery::meta::{dns_label_errors, label_key_errors};
use yurt_apimachinery::status::ErrorList;
use yurt_apimachinery::values::{PROTOCOLS, port_number_errors};

use crate::registry::fields::{at, invalid, one_of, text};

/// `name`, where there is one: a DNS label.
pub(super) fn check_name(field: &str, port: &Value, errors: &mut ErrorList) {
    let name = text(port, &["name"]);
    if !name.is_empty() {
        invalid(
            errors,
            format_args!("{field}.name"),
            &name.into(),
            dns_label_errors(name),
        );
    }
}

/// `port`: 1 to 65535.
pub(super) fn check_number(field: &str, port: &Value, errors: &mut ErrorList) {
    let number = at(port, &["port"]).as_i64().unwrap_or_default();
    invalid(
        errors,
        format_args!("{field}.port"),
        &number.into(),
        port_number_errors(number),
    );
}

/// `protocol`: one of [`PROTOCOLS`].
pub(super) fn check_protocol(field: &str, port: &Value, errors: &mut ErrorList) {
    one_of(
        errors,
        &format!("{field}.protocol"),
        text(port, &["protocol"]),
        &PROTOCOLS,
    );
}

/// `appProtocol`, where there is one: a label key.
pub(super) fn check_app_protocol(field: &str, port: &Value, errors: &mut ErrorList) {
    if let Some(protocol) = port["appProtocol"].as_str() {
        let field = format!("{field}.appProtocol");
        invalid(errors, &field, &protocol.into(), label_key_errors(protocol));
    }
}
