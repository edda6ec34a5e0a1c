//! The containers of a pod: names, images, ports, variables, mounts and resources.

use std::collections::BTreeSet;

use serde_json::Value;
use yurt_apimachinery::meta::{dns_label_faults, label_key_faults};
use yurt_apimachinery::quantity::Quantity;
use yurt_apimachinery::status::FieldError;
use yurt_apimachinery::values::{PROTOCOLS, env_name_faults, port_name_faults, port_number_faults};

use super::probes;
use crate::registry::fields::{at, invalid, is_set, items, one_of, text};

/// What a container may ask for under a name without a domain.
const STANDARD: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

/// The faults of all containers; `volumes` are those they may mount.
pub(super) fn check_all(spec: &Value, volumes: &BTreeSet<&str>, errors: &mut Vec<FieldError>) {
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
}

/// Pods, other than their templates, want images without blanks around them.
pub(super) fn check_images(spec: &Value, errors: &mut Vec<FieldError>) {
    for list in ["containers", "initContainers"] {
        for (index, container) in items(spec, &[list]).iter().enumerate() {
            check_blanks(container, &format!("spec.{list}[{index}]"), errors);
        }
    }
}

/// The fault of one image with blanks around it.
pub(in super::super) fn check_blanks(container: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let image = text(container, &["image"]);
    if image.trim() != image {
        let why = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid(format!("{path}.image"), image, why));
    }
}

/// What holds for containers of all kinds.
fn check(container: &Value, path: &str, volumes: &BTreeSet<&str>, errors: &mut Vec<FieldError>) {
    let name = text(container, &["name"]);
    if name.is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    } else {
        invalid(errors, format!("{path}.name"), &name.into(), dns_label_faults(name));
    }
    if text(container, &["image"]).is_empty() {
        errors.push(FieldError::required(format!("{path}.image"), ""));
    }
    let policy = text(container, &["terminationMessagePolicy"]);
    let known = ["File", "FallbackToLogsOnError"];
    one_of(errors, &format!("{path}.terminationMessagePolicy"), policy, &known);
    check_ports(container, path, errors);
    check_variables(container, path, errors);
    check_mounts(container, path, volumes, errors);
    let policy = text(container, &["imagePullPolicy"]);
    one_of(errors, &format!("{path}.imagePullPolicy"), policy, &PULL_POLICIES);
    check_resources(at(container, &["resources"]), &format!("{path}.resources"), errors);
    for name in ["runAsUser", "runAsGroup"] {
        let id = at(container, &["securityContext", name]).as_i64().unwrap_or_default();
        if !(0..=i64::from(i32::MAX)).contains(&id) {
            let why = format!("must be between 0 and {}, inclusive", i32::MAX);
            errors.push(FieldError::invalid(format!("{path}.securityContext.{name}"), id, &why));
        }
    }
}

fn check_name<'a>(container: &'a Value, path: &str, names: &mut BTreeSet<&'a str>, errors: &mut Vec<FieldError>) {
    let name = text(container, &["name"]);
    if !names.insert(name) {
        errors.push(FieldError::duplicate(format!("{path}.name"), name));
    }
}

fn check_init_policy(container: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let policy = text(container, &["restartPolicy"]);
    if !policy.is_empty() {
        let known = ["Always", "Never", "OnFailure"];
        one_of(errors, &format!("{path}.restartPolicy"), policy, &known);
    }
}

fn check_ports(container: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut names = BTreeSet::new();
    for (index, port) in items(container, &["ports"]).iter().enumerate() {
        let of = |name: &str| format!("{path}.ports[{index}].{name}");
        let name = text(port, &["name"]);
        let faults = port_name_faults(name);
        if !name.is_empty() && !faults.is_empty() {
            invalid(errors, of("name"), &name.into(), faults);
        } else if !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::duplicate(of("name"), name));
        }
        match at(port, &["containerPort"]).as_i64().unwrap_or_default() {
            0 => errors.push(FieldError::required(of("containerPort"), "")),
            number => invalid(errors, of("containerPort"), &number.into(), port_number_faults(number)),
        }
        let number = at(port, &["hostPort"]).as_i64().unwrap_or_default();
        if number != 0 {
            invalid(errors, of("hostPort"), &number.into(), port_number_faults(number));
        }
        one_of(errors, &of("protocol"), text(port, &["protocol"]), &PROTOCOLS);
    }
}

fn check_host_ports(containers: &[Value], list: &str, errors: &mut Vec<FieldError>) {
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

fn check_variables(container: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (index, variable) in items(container, &["env"]).iter().enumerate() {
        let (path, name) = (format!("{path}.env[{index}]"), text(variable, &["name"]));
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else {
            invalid(errors, format!("{path}.name"), &name.into(), env_name_faults(name));
        }
        let Some(source) = at(variable, &["valueFrom"]).as_object() else {
            continue;
        };
        let path = format!("{path}.valueFrom");
        let sources = source.values().filter(|source| !source.is_null()).count();
        let has_value = !text(variable, &["value"]).is_empty();
        if sources == 0 {
            let why = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
            errors.push(FieldError::invalid(path, "", why));
        } else if has_value {
            let why = "may not be specified when `value` is not empty";
            errors.push(FieldError::invalid(path, "", why));
        } else if sources > 1 {
            let why = "may not have more than one field specified at a time";
            errors.push(FieldError::invalid(path, "", why));
        } else {
            for source in ["configMapKeyRef", "secretKeyRef"] {
                let reference = at(variable, &["valueFrom", source]);
                if reference.is_object() && text(reference, &["key"]).is_empty() {
                    errors.push(FieldError::required(format!("{path}.{source}.key"), ""));
                }
            }
        }
    }
}

fn check_mounts(container: &Value, path: &str, volumes: &BTreeSet<&str>, errors: &mut Vec<FieldError>) {
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
    }
}

/// A path that stays below where it begins.
fn check_descending(path: &str, field: &str, errors: &mut Vec<FieldError>) {
    if path.starts_with('/') {
        errors.push(FieldError::invalid(field, path, "must be a relative path"));
    }
    if path.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(field, path, "must not contain '..'"));
    }
}

/// Names and amounts, and that nothing is requested beyond its limit.
fn check_resources(resources: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let limits = amounts(resources, "limits");
    for (name, shown, amount) in &limits {
        check_amount(name, shown, *amount, &format!("{path}.limits[{name}]"), errors);
    }
    for (name, shown, amount) in &amounts(resources, "requests") {
        check_amount(name, shown, *amount, &format!("{path}.requests[{name}]"), errors);
        let limit = limits.iter().find(|(limited, ..)| limited == name);
        let may_differ = !name.contains('/') && !name.starts_with("hugepages-");
        match limit {
            Some((_, limit, most)) if amount != most && !may_differ => {
                let why = format!("must be equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(format!("{path}.requests"), shown.as_str(), &why));
            }
            Some((_, limit, most)) if amount > most => {
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

fn check_amount(name: &str, shown: &str, amount: i128, field: &str, errors: &mut Vec<FieldError>) {
    invalid(errors, field, &name.into(), label_key_faults(name));
    if !name.contains('/') && !STANDARD.contains(&name) && !name.starts_with("hugepages-") {
        let why = "must be a standard resource for containers";
        errors.push(FieldError::invalid(field, name, why));
    }
    if amount < 0 {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(field, shown, why));
    }
}
