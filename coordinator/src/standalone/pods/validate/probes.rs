//! Probes of a container, and hooks at its start and end.

use serde_json::Value;
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::values::{port_name_errors, port_number_errors};

use crate::registry::fields::{at, invalid, items, text};

/// Numbers of a probe that cannot be negative.
const NUMBERS: [&str; 5] = [
    "initialDelaySeconds",
    "timeoutSeconds",
    "periodSeconds",
    "successThreshold",
    "failureThreshold",
];
/// Actions of a probe or hook: exactly one of these.
const HANDLERS: [&str; 5] = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];

/// The faults of a container's hooks and probes.
pub(super) fn check(container: &Value, path: &str, errors: &mut ErrorList) {
    for hook in ["postStart", "preStop"] {
        let handler = at(container, &["lifecycle", hook]);
        if handler.is_object() {
            check_handler(handler, &format!("{path}.lifecycle.{hook}"), errors);
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = at(container, &[name]);
        if probe.is_object() {
            check_probe(probe, &format!("{path}.{name}"), name == "readinessProbe", errors);
        }
    }
}

fn check_probe(probe: &Value, path: &str, is_readiness: bool, errors: &mut ErrorList) {
    check_handler(probe, path, errors);
    let number = |name: &str| at(probe, &[name]).as_i64();
    for name in NUMBERS {
        let value = number(name).unwrap_or_default();
        if value < 0 {
            let why = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(format!("{path}.{name}"), value, why));
        }
    }
    let (field, grace) = (
        format!("{path}.terminationGracePeriodSeconds"),
        number("terminationGracePeriodSeconds"),
    );
    if let Some(grace) = grace.filter(|grace| is_readiness || *grace <= 0) {
        errors.push(if is_readiness {
            FieldError::invalid(field, grace, "must not be set for readinessProbes")
        } else {
            FieldError::invalid(field, grace, "must be greater than 0")
        });
    }
    let threshold = number("successThreshold").unwrap_or_default();
    if !is_readiness && threshold != 1 {
        let field = format!("{path}.successThreshold");
        errors.push(FieldError::invalid(field, threshold, "must be 1"));
    }
}

fn check_handler(handler: &Value, path: &str, errors: &mut ErrorList) {
    let given: Vec<&str> = HANDLERS
        .into_iter()
        .filter(|name| at(handler, &[name]).is_object())
        .collect();
    let [first, others @ ..] = given.as_slice() else {
        return errors.push(FieldError::required(path, "must specify a handler type"));
    };
    let action = at(handler, &[first]);
    match *first {
        "exec" if items(action, &["command"]).is_empty() => {
            errors.push(FieldError::required(format!("{path}.exec.command"), ""));
        }
        "httpGet" => check_http(action, &format!("{path}.httpGet"), errors),
        "tcpSocket" => check_port(at(action, &["port"]), &format!("{path}.tcpSocket.port"), errors),
        "grpc" => check_port(at(action, &["port"]), &format!("{path}.grpc.port"), errors),
        _ => {}
    }
    for other in others {
        let why = "may not specify more than 1 handler type";
        errors.push(FieldError::forbidden(format!("{path}.{other}"), why));
    }
}

fn check_http(action: &Value, path: &str, errors: &mut ErrorList) {
    if text(action, &["path"]).is_empty() {
        errors.push(FieldError::required(format!("{path}.path"), ""));
    }
    check_port(at(action, &["port"]), &format!("{path}.port"), errors);
    let scheme = text(action, &["scheme"]);
    if !matches!(scheme, "HTTP" | "HTTPS") {
        let field = format!("{path}.scheme");
        errors.push(FieldError::not_supported(field, scheme, &["HTTP", "HTTPS"]));
    }
    for header in items(action, &["httpHeaders"]) {
        let name = text(header, &["name"]);
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            let why = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used \
                for validation is '[-A-Za-z0-9]+')";
            errors.push(FieldError::invalid(format!("{path}.httpHeaders"), name, why));
        }
    }
}

fn check_port(port: &Value, field: &str, errors: &mut ErrorList) {
    match port.as_str() {
        Some(name) => invalid(errors, field, port, port_name_errors(name)),
        None => {
            let number = port.as_i64().unwrap_or_default();
            invalid(errors, field, &number.into(), port_number_errors(number));
        }
    }
}
