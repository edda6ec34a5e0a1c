//! The containers of a pod: names, images, ports, variables, mounts and resources.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use yurt_apimachinery::meta::{dns_label_errors, label_key_errors};
use yurt_apimachinery::quantity::Quantity;
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::values::{PROTOCOLS, port_name_errors, port_number_errors};

use super::{check_descending, environment, probes, security};
use crate::registry::fields::{at, invalid, is_set, items, one_of, text};

/// Resource names without a domain that a container may request.
const STANDARD: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// One unit of a quantity, in billionths.
const ONE: i128 = 1_000_000_000;
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

/// The faults of all containers; `volumes` are those they may mount.
pub(super) fn check_all(spec: &Value, volumes: &BTreeSet<&str>, errors: &mut ErrorList) {
    let regular = items(spec, &["containers"]);
    if regular.is_empty() {
        errors.push(FieldError::required("spec.containers", ""));
    }
    let mut names = BTreeSet::new();
    for (index, container) in regular.iter().enumerate() {
        let path = format!("spec.containers[{index}]");
        check(container, &path, volumes, errors);
        check_name(container, &path, &mut names, errors);
        probes::check(container, &path, errors);
    }
    check_host_ports(regular, "spec.containers", errors);
    let on_host = at(spec, &["hostNetwork"]).as_bool() == Some(true);
    for (index, container) in items(spec, &["initContainers"]).iter().enumerate() {
        let path = format!("spec.initContainers[{index}]");
        check(container, &path, volumes, errors);
        check_init_policy(container, &path, errors);
        check_name(container, &path, &mut names, errors);
        check_host_ports(std::slice::from_ref(container), "spec.initContainers", errors);
        if text(container, &["restartPolicy"]) == "Always" {
            probes::check(container, &path, errors);
        } else {
            let why = "may not be set for init containers without restartPolicy=Always";
            for name in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                if is_set(container, &[name]) {
                    errors.push(FieldError::forbidden(format!("{path}.{name}"), why));
                }
            }
        }
    }
    if on_host {
        for list in ["containers", "initContainers"] {
            check_published(items(spec, &[list]), &format!("spec.{list}"), errors);
        }
    }
}

/// In the host's network a port is the host's.
fn check_published(containers: &[Value], list: &str, errors: &mut ErrorList) {
    for (at_container, container) in containers.iter().enumerate() {
        for (index, port) in items(container, &["ports"]).iter().enumerate() {
            let number = at(port, &["hostPort"]).as_i64().unwrap_or_default();
            if number != at(port, &["containerPort"]).as_i64().unwrap_or_default() {
                let field = format!("{list}[{at_container}].ports[{index}].hostPort");
                let why = "must match `containerPort` when `hostNetwork` is true";
                errors.push(FieldError::invalid(field, number, why));
            }
        }
    }
}

/// Pods, unlike their templates, have to have images without surrounding blanks.
pub(super) fn check_images(spec: &Value, errors: &mut ErrorList) {
    for list in ["containers", "initContainers"] {
        for (index, container) in items(spec, &[list]).iter().enumerate() {
            check_blanks(container, &format!("spec.{list}[{index}]"), errors);
        }
    }
}

/// The fault of one image with surrounding blanks.
pub(in super::super) fn check_blanks(container: &Value, path: &str, errors: &mut ErrorList) {
    let image = text(container, &["image"]);
    if image.trim() != image {
        let why = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid(format!("{path}.image"), image, why));
    }
}

/// Rules for containers of all kinds.
fn check(container: &Value, path: &str, volumes: &BTreeSet<&str>, errors: &mut ErrorList) {
    let name = text(container, &["name"]);
    if name.is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    } else {
        invalid(errors, format!("{path}.name"), &name.into(), dns_label_errors(name));
    }
    if text(container, &["image"]).is_empty() {
        errors.push(FieldError::required(format!("{path}.image"), ""));
    }
    let policy = text(container, &["terminationMessagePolicy"]);
    let known = ["File", "FallbackToLogsOnError"];
    one_of(errors, &format!("{path}.terminationMessagePolicy"), policy, &known);
    check_ports(container, path, errors);
    environment::check(container, path, errors);
    check_mounts(container, path, volumes, errors);
    let policy = text(container, &["imagePullPolicy"]);
    one_of(errors, &format!("{path}.imagePullPolicy"), policy, &PULL_POLICIES);
    check_resources(at(container, &["resources"]), &format!("{path}.resources"), errors);
    security::check_container(container, path, errors);
}

fn check_name<'a>(container: &'a Value, path: &str, names: &mut BTreeSet<&'a str>, errors: &mut ErrorList) {
    let name = text(container, &["name"]);
    if !names.insert(name) {
        errors.push(FieldError::duplicate(format!("{path}.name"), name));
    }
}

fn check_init_policy(container: &Value, path: &str, errors: &mut ErrorList) {
    let policy = text(container, &["restartPolicy"]);
    if !policy.is_empty() {
        let known = ["Always", "Never", "OnFailure"];
        one_of(errors, &format!("{path}.restartPolicy"), policy, &known);
    }
}

fn check_ports(container: &Value, path: &str, errors: &mut ErrorList) {
    let mut names = BTreeSet::new();
    for (index, port) in items(container, &["ports"]).iter().enumerate() {
        let of = |name: &str| format!("{path}.ports[{index}].{name}");
        let name = text(port, &["name"]);
        let faults = port_name_errors(name);
        if !name.is_empty() && !faults.is_empty() {
            invalid(errors, of("name"), &name.into(), faults);
        } else if !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::duplicate(of("name"), name));
        }
        match at(port, &["containerPort"]).as_i64().unwrap_or_default() {
            0 => errors.push(FieldError::required(of("containerPort"), "")),
            number => invalid(errors, of("containerPort"), &number.into(), port_number_errors(number)),
        }
        let number = at(port, &["hostPort"]).as_i64().unwrap_or_default();
        if number != 0 {
            invalid(errors, of("hostPort"), &number.into(), port_number_errors(number));
        }
        one_of(errors, &of("protocol"), text(port, &["protocol"]), &PROTOCOLS);
    }
}

fn check_host_ports(containers: &[Value], list: &str, errors: &mut ErrorList) {
    let mut taken = BTreeSet::new();
    for (at_container, container) in containers.iter().enumerate() {
        for (index, port) in items(container, &["ports"]).iter().enumerate() {
            let number = at(port, &["hostPort"]).as_i64().unwrap_or_default();
            let place = format!("{}/{}/{number}", text(port, &["protocol"]), text(port, &["hostIP"]));
            if number != 0 && !taken.insert(place.clone()) {
                let field = format!("{list}[{at_container}].ports[{index}].hostPort");
                errors.push(FieldError::duplicate(field, place));
            }
        }
    }
}

fn check_mounts(container: &Value, path: &str, volumes: &BTreeSet<&str>, errors: &mut ErrorList) {
    let mut places = BTreeSet::new();
    for (index, mount) in items(container, &["volumeMounts"]).iter().enumerate() {
        let of = |name: &str| format!("{path}.volumeMounts[{index}].{name}");
        let (name, place) = (text(mount, &["name"]), text(mount, &["mountPath"]));
        if name.is_empty() {
            errors.push(FieldError::required(of("name"), ""));
        }
        if !volumes.contains(name) {
            errors.push(FieldError::not_found(of("name"), name));
        }
        if place.is_empty() {
            errors.push(FieldError::required(of("mountPath"), ""));
        }
        if !places.insert(place) {
            errors.push(FieldError::invalid(of("mountPath"), place, "must be unique"));
        }
        let (sub, expression) = (text(mount, &["subPath"]), text(mount, &["subPathExpr"]));
        // The paths of the next two are kube-apiserver's own: without the index.
        check_descending(sub, &format!("{path}.volumeMounts.subPath"), errors);
        if !expression.is_empty() && !sub.is_empty() {
            let why = "subPathExpr and subPath are mutually exclusive";
            errors.push(FieldError::invalid(of("subPathExpr"), expression, why));
        }
        check_descending(expression, &format!("{path}.volumeMounts.subPathExpr"), errors);
        check_sharing(container, mount, &format!("{path}.volumeMounts"), errors);
    }
}

/// Checks the mount propagation, and recursive read-only mounts.
fn check_sharing(container: &Value, mount: &Value, path: &str, errors: &mut ErrorList) {
    const MODES: [&str; 3] = ["Bidirectional", "HostToContainer", "None"];
    const DEPTHS: [&str; 3] = ["Disabled", "Enabled", "IfPossible"];
    let (mode, field) = (text(mount, &["mountPropagation"]), format!("{path}.mountPropagation"));
    if is_set(mount, &["mountPropagation"]) {
        if !MODES.contains(&mode) {
            errors.push(FieldError::not_supported(field.as_str(), mode, &MODES));
        }
        let is_privileged = at(container, &["securityContext", "privileged"]).as_bool() == Some(true);
        if mode == "Bidirectional" && !is_privileged {
            let why = "Bidirectional mount propagation is available only to privileged containers";
            errors.push(FieldError::forbidden(field, why));
        }
    }
    let field = format!("{path}.recursiveReadOnly");
    match at(mount, &["recursiveReadOnly"]).as_str() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if at(mount, &["readOnly"]).as_bool() != Some(true) {
                let why = "may only be specified when readOnly is true";
                errors.push(FieldError::forbidden(field.as_str(), why));
            }
            if !matches!(mode, "" | "None") {
                let why = "may only be specified when mountPropagation is None or not specified";
                errors.push(FieldError::forbidden(field, why));
            }
        }
        Some(other) => errors.push(FieldError::not_supported(field, other, &DEPTHS)),
    }
}

/// Checks names and amounts, and that requests do not exceed limits.
fn check_resources(resources: &Value, path: &str, errors: &mut ErrorList) {
    let limits = amounts(resources, "limits");
    for (name, shown, amount) in &limits {
        check_amount(name, shown, *amount, &format!("{path}.limits[{name}]"), errors);
    }
    let limit_of: BTreeMap<&str, (&str, i128)> = limits
        .iter()
        .map(|(name, shown, amount)| (name.as_str(), (shown.as_str(), *amount)))
        .collect();
    for (name, shown, amount) in &amounts(resources, "requests") {
        check_amount(name, shown, *amount, &format!("{path}.requests[{name}]"), errors);
        let limit = limit_of.get(name.as_str()).copied();
        let may_differ = !name.contains('/') && !name.starts_with("hugepages-");
        match limit {
            Some((limit, most)) if *amount != most && !may_differ => {
                let why = format!("must be equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(format!("{path}.requests"), shown.as_str(), &why));
            }
            Some((limit, most)) if *amount > most => {
                let why = format!("must be less than or equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(format!("{path}.requests"), shown.as_str(), &why));
            }
            None if !may_differ => {
                let why = "Limit must be set for non overcommitable resources";
                errors.push(FieldError::required(format!("{path}.limits"), why));
            }
            Some(_) | None => {}
        }
    }
}

/// The names of a list with their amounts, as written and in billionths.
fn amounts(resources: &Value, list: &str) -> Vec<(String, String, i128)> {
    let members = at(resources, &[list]).as_object().into_iter().flatten();
    let read = |(name, value): (&String, &Value)| {
        let quantity = Quantity::parse(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))?;
        Some((name.clone(), quantity.to_string(), quantity.nano()))
    };
    members.filter_map(read).collect()
}

fn check_amount(name: &str, shown: &str, amount: i128, field: &str, errors: &mut ErrorList) {
    invalid(errors, field, &name.into(), label_key_errors(name));
    if !name.contains('/') && !STANDARD.contains(&name) && !name.starts_with("hugepages-") {
        for why in [
            "must be a standard resource type or fully qualified",
            "must be a standard resource for containers",
        ] {
            errors.push(FieldError::invalid(field, name, why));
        }
    }
    if amount < 0 {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(field, shown, why));
    }
    let is_extended = name.contains('/') && !name.contains("kubernetes.io/");
    if is_extended && amount % ONE != 0 {
        errors.push(FieldError::invalid(field, shown, "must be an integer"));
    }
}
