//! Errors of a pod, with kube-apiserver's messages: the pod as a whole. Its containers are validated by [`containers`],
//! its volumes by [`volumes`].
//!
//! Validated are common mistakes and fields that kubelets rely on. Not validated: the insides of most volume sources,
//! affinity, topology spread, resource claims, rules of restarts and resizing, and everything about Windows.

use std::collections::BTreeSet;

use serde_json::Value;
use yurt_apimachinery::meta::{dns_label_errors, dns_subdomain_errors, label_key_errors, label_value_errors};
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::values::{is_ipv4, is_ipv6, range_errors};

use crate::registry::fields::{at, invalid, is_set, items, one_of, text};

mod containers;
mod environment;
mod probes;
mod security;
mod status;
mod volumes;

pub(super) use containers::check_blanks;
pub(super) use status::check as status;

/// Maximum number of name servers of a pod.
const NAMESERVERS_MAX: usize = 3;
/// Maximum number of search domains of a pod.
const SEARCHES_MAX: usize = 32;
/// Longest deadline, in seconds.
const DEADLINE_MAX: i64 = i32::MAX as i64;

/// The faults of a pod with its defaults.
pub(super) fn pod(pod: &Value) -> ErrorList {
    let errors = &mut ErrorList::default();
    let spec = at(pod, &["spec"]);
    let volumes = volumes::check(spec, errors);
    containers::check_all(spec, &volumes, errors);
    let restarts = ["Always", "OnFailure", "Never"];
    one_of(errors, "spec.restartPolicy", text(spec, &["restartPolicy"]), &restarts);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    one_of(errors, "spec.dnsPolicy", text(spec, &["dnsPolicy"]), &policies);
    check_selector(spec, errors);
    security::check_pod(spec, errors);
    check_dns(spec, errors);
    check_gates(spec, errors);
    security::check_host_users(spec, errors);
    for (name, faults) in [
        ("serviceAccountName", dns_subdomain_errors as fn(&str) -> Vec<String>),
        ("nodeName", dns_subdomain_errors),
    ] {
        named(spec, name, faults, errors);
    }
    if let Some(seconds) = at(spec, &["activeDeadlineSeconds"]).as_i64() {
        let faults = range_errors(seconds, 1, DEADLINE_MAX);
        invalid(errors, "spec.activeDeadlineSeconds", &seconds.into(), faults);
    }
    named(spec, "hostname", dns_label_errors, errors);
    named(spec, "subdomain", dns_label_errors, errors);
    check_tolerations(spec, errors);
    check_aliases(spec, errors);
    named(spec, "priorityClassName", dns_subdomain_errors, errors);
    named(spec, "runtimeClassName", dns_subdomain_errors, errors);
    if is_set(spec, &["preemptionPolicy"]) {
        let known = ["PreemptLowerPriority", "Never"];
        one_of(
            errors,
            "spec.preemptionPolicy",
            text(spec, &["preemptionPolicy"]),
            &known,
        );
    }
    check_system(spec, errors);
    volumes::check_tokens(spec, errors);
    containers::check_images(spec, errors);
    std::mem::take(errors)
}

/// A new pod has no ephemeral containers: those come through a subresource. A gated pod has no node.
pub(super) fn created(pod: &Value) -> ErrorList {
    let has_some = |name: &str| !items(pod, &["spec", name]).is_empty();
    let mut errors = ErrorList::default();
    if has_some("ephemeralContainers") {
        let why = "cannot be set on create";
        errors.push(FieldError::forbidden("spec.ephemeralContainers", why));
    }
    if has_some("schedulingGates") && !text(pod, &["spec", "nodeName"]).is_empty() {
        let why = "cannot be set until all schedulingGates have been cleared";
        errors.push(FieldError::forbidden("spec.nodeName", why));
    }
    errors
}

/// Checks the operating system, if named.
fn check_system(spec: &Value, errors: &mut ErrorList) {
    if !is_set(spec, &["os"]) {
        return;
    }
    match text(spec, &["os", "name"]) {
        "" => errors.push(FieldError::required("spec.os.name", "")),
        "linux" | "windows" => {}
        other => errors.push(FieldError::not_supported("spec.os", other, &["linux", "windows"])),
    }
}

/// Checks numbers of users and groups.
fn check_ids(context: &Value, path: &str, names: &[&str], errors: &mut ErrorList) {
    for name in names {
        let id = at(context, &[name]).as_i64().unwrap_or_default();
        let faults = range_errors(id, 0, i64::from(i32::MAX));
        invalid(errors, format!("{path}.{name}"), &id.into(), faults);
    }
}

/// Checks that a path stays below its start.
fn check_descending(path: &str, field: &str, errors: &mut ErrorList) {
    if path.starts_with('/') {
        errors.push(FieldError::invalid(field, path, "must be a relative path"));
    }
    check_no_steps_back(path, field, errors);
}

fn check_no_steps_back(path: &str, field: &str, errors: &mut ErrorList) {
    if path.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(field, path, "must not contain '..'"));
    }
}

/// Checks an optional name.
fn named(spec: &Value, field: &str, faults: fn(&str) -> Vec<String>, errors: &mut ErrorList) {
    let name = text(spec, &[field]);
    if !name.is_empty() {
        invalid(errors, format!("spec.{field}"), &name.into(), faults(name));
    }
}

fn check_selector(spec: &Value, errors: &mut ErrorList) {
    let selector = at(spec, &["nodeSelector"]).as_object().into_iter().flatten();
    for (key, value) in selector {
        let value = value.as_str().unwrap_or_default();
        invalid(errors, "spec.nodeSelector", &key.as_str().into(), label_key_errors(key));
        invalid(errors, "spec.nodeSelector", &value.into(), label_value_errors(value));
    }
}

fn check_dns(spec: &Value, errors: &mut ErrorList) {
    let config = at(spec, &["dnsConfig"]);
    let servers = items(config, &["nameservers"]);
    if text(spec, &["dnsPolicy"]) == "None" {
        if !config.is_object() {
            let why = "must provide `dnsConfig` when `dnsPolicy` is None";
            return errors.push(FieldError::required("spec.dnsConfig", why));
        }
        if servers.is_empty() {
            let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            return errors.push(FieldError::required("spec.dnsConfig.nameservers", why));
        }
    }
    for (name, given, most, what) in [
        ("nameservers", servers, NAMESERVERS_MAX, "nameservers"),
        ("searches", items(config, &["searches"]), SEARCHES_MAX, "search paths"),
    ] {
        if given.len() > most {
            let why = format!("must not have more than {most} {what}");
            errors.push(FieldError::invalid(
                format!("spec.dnsConfig.{name}"),
                given.to_vec(),
                &why,
            ));
        }
    }
    for (index, server) in servers.iter().enumerate() {
        check_ip(&format!("spec.dnsConfig.nameservers[{index}]"), server, errors);
    }
    for (index, option) in items(config, &["options"]).iter().enumerate() {
        if text(option, &["name"]).is_empty() {
            let field = format!("spec.dnsConfig.options[{index}]");
            errors.push(FieldError::required(field, "must not be empty"));
        }
    }
}

fn check_ip(field: &str, value: &Value, errors: &mut ErrorList) {
    let address = value.as_str().unwrap_or_default();
    if !is_ipv4(address) && !is_ipv6(address) {
        let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        errors.push(FieldError::invalid(field, address, why));
    }
}

fn check_gates(spec: &Value, errors: &mut ErrorList) {
    for (index, gate) in items(spec, &["readinessGates"]).iter().enumerate() {
        let condition = text(gate, &["conditionType"]);
        let field = format!("spec.readinessGates[{index}].conditionType");
        invalid(errors, &field, &condition.into(), label_key_errors(condition));
    }
    let mut seen = BTreeSet::new();
    for (index, gate) in items(spec, &["schedulingGates"]).iter().enumerate() {
        let (name, field) = (text(gate, &["name"]), format!("spec.schedulingGates[{index}]"));
        invalid(errors, &field, &name.into(), label_key_errors(name));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(field, name));
        }
    }
}

/// The faults of tolerations, which are checked again when they change.
pub(super) fn check_tolerations(spec: &Value, errors: &mut ErrorList) {
    const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    for (index, toleration) in items(spec, &["tolerations"]).iter().enumerate() {
        let of = |name: &str| format!("spec.tolerations[{index}].{name}");
        let [key, operator, value, effect] =
            ["key", "operator", "value", "effect"].map(|name| text(toleration, &[name]));
        if !key.is_empty() {
            invalid(errors, of("key"), &key.into(), label_key_errors(key));
        } else if operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(of("operator"), operator, why));
        }
        if is_set(toleration, &["tolerationSeconds"]) && effect != "NoExecute" {
            let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(of("effect"), effect, why));
        }
        match operator {
            "" | "Equal" => {
                let faults = label_value_errors(value).join(";");
                if !faults.is_empty() {
                    errors.push(FieldError::invalid(of("operator"), value, &faults));
                }
            }
            "Exists" if value.is_empty() => {}
            "Exists" => {
                let why = "value must be empty when `operator` is 'Exists'";
                errors.push(FieldError::invalid(of("operator"), value, why));
            }
            "Lt" | "Gt" => {
                let known = ["Equal", "Exists", "Lt", "Gt"];
                errors.push(FieldError::not_supported(of("operator"), operator, &known));
            }
            _ => errors.push(FieldError::not_supported(
                of("operator"),
                operator,
                &["Equal", "Exists"],
            )),
        }
        if !effect.is_empty() && !EFFECTS.contains(&effect) {
            errors.push(FieldError::not_supported(of("effect"), effect, &EFFECTS));
        }
    }
}

fn check_aliases(spec: &Value, errors: &mut ErrorList) {
    for (index, alias) in items(spec, &["hostAliases"]).iter().enumerate() {
        check_ip(&format!("spec.hostAliases[{index}].ip"), at(alias, &["ip"]), errors);
        for (at_name, name) in items(alias, &["hostnames"]).iter().enumerate() {
            let field = format!("spec.hostAliases[{index}].hostnames[{at_name}]");
            let faults = dns_subdomain_errors(name.as_str().unwrap_or_default());
            invalid(errors, field, name, faults);
        }
    }
}
