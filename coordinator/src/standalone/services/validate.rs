//! Validation of Services, with kube-apiserver's messages in its order.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Value, json};
use yurt_apimachinery::meta::{dns_subdomain_errors, label_key_errors, label_value_errors};
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::values;

use crate::registry::fields::{at, invalid, is_set, items, one_of, text};
use crate::standalone::ports;

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const POLICIES: [&str; 2] = ["Cluster", "Local"];
/// Longest session affinity, in seconds: a day.
const AFFINITY_MAX: i64 = 86_400;
const ONLY_BALANCERS: &str = "may only be used when `type` is 'LoadBalancer'";

type Errors = ErrorList;

/// Errors of a Service; `old` is the state it replaces.
pub(super) fn service(service: &Value, old: Option<&Value>) -> Errors {
    let mut errors = ErrorList::default();
    let (spec, kind) = (&service["spec"], text(service, &["spec", "type"]));
    if kind != "ExternalName" {
        check_addresses(spec, old, &mut errors);
    }
    if !errors.is_empty() {
        // Addresses are settled before any other check.
        return errors;
    }
    if let Some(old) = old {
        check_update(service, old, &mut errors);
    }
    check_type(spec, kind, &mut errors);
    check_ports(spec, &mut errors);
    check_selector(spec, &mut errors);
    check_affinity(spec, &mut errors);
    for (index, ip) in items(spec, &["externalIPs"]).iter().enumerate() {
        let (field, text) = (format!("spec.externalIPs[{index}]"), ip.as_str().unwrap_or_default());
        let faults = Some(values::legacy_ip_errors(text)).filter(|faults| !faults.is_empty());
        invalid(
            &mut errors,
            &field,
            ip,
            faults.unwrap_or_else(|| values::endpoint_ip_errors(text)),
        );
    }
    one_of(&mut errors, "spec.type", kind, &TYPES);
    check_port_numbers(spec, kind, &mut errors);
    check_balancer(spec, kind, &mut errors);
    check_policies(spec, kind, &mut errors);
    errors
}

/// Errors of a Service's status.
pub(super) fn status(service: &Value) -> Errors {
    const FIELD: &str = "status.loadBalancer.ingress";
    let mut errors = ErrorList::default();
    let ingress = items(service, &["status", "loadBalancer", "ingress"]);
    if text(service, &["spec", "type"]) != "LoadBalancer" {
        if !ingress.is_empty() {
            let why = "may only be used when `spec.type` is 'LoadBalancer'";
            errors.push(FieldError::forbidden(FIELD, why));
        }
        return errors;
    }
    for (index, entry) in ingress.iter().enumerate() {
        let field = format!("{FIELD}[{index}]");
        let (ip, mode) = (text(entry, &["ip"]), entry["ipMode"].as_str());
        if !ip.is_empty() {
            invalid(
                &mut errors,
                format_args!("{field}.ip"),
                &ip.into(),
                values::legacy_ip_errors(ip),
            );
        }
        match mode {
            Some(_) if ip.is_empty() => {
                let why = "may not be specified when `ip` is not set";
                errors.push(FieldError::forbidden(format!("{field}.ipMode"), why));
            }
            Some(mode) => one_of(&mut errors, &format!("{field}.ipMode"), mode, &["Proxy", "VIP"]),
            None if !ip.is_empty() => {
                let why = "must be specified when `ip` is set";
                errors.push(FieldError::required(format!("{field}.ipMode"), why));
            }
            None => {}
        }
        let hostname = text(entry, &["hostname"]);
        if !hostname.is_empty() {
            let faults = dns_subdomain_errors(hostname);
            invalid(&mut errors, format_args!("{field}.hostname"), &hostname.into(), faults);
            if values::is_ipv4(hostname) || values::is_ipv6(hostname) {
                let why = "must be a DNS name, not an IP address";
                errors.push(FieldError::invalid(format!("{field}.hostname"), hostname, why));
            }
        }
    }
    errors
}

fn is_headless(spec: &Value) -> bool {
    items(spec, &["clusterIPs"]) == [json!("None")]
}

/// Checks that addresses do not change once they are set.
fn check_update(service: &Value, old: &Value, errors: &mut Errors) {
    let types = [service, old].map(|service| text(service, &["spec", "type"]));
    let (spec, before) = (&service["spec"], &old["spec"]);
    let have_none = types.contains(&"ExternalName") || (is_headless(spec) && is_headless(before));
    if !have_none {
        let (held, given) = (items(before, &["clusterIPs"]), items(spec, &["clusterIPs"]));
        let list = Value::from(given);
        if given.is_empty() && !held.is_empty() {
            let why = "primary clusterIP can not be unset";
            errors.push(FieldError::invalid("spec.clusterIPs[0]", list.clone(), why));
        }
        for (index, _) in held
            .iter()
            .zip(given)
            .enumerate()
            .filter(|(_, (held, given))| held != given)
        {
            let field = format!("spec.clusterIPs[{index}]");
            errors.push(FieldError::invalid(field, list.clone(), "may not change once set"));
        }
    }
    if types == ["LoadBalancer", "LoadBalancer"] {
        let class = at(spec, &["loadBalancerClass"]);
        if class != at(before, &["loadBalancerClass"]) {
            let why = "may not change once set";
            errors.push(FieldError::invalid("spec.loadBalancerClass", class.clone(), why));
        }
        check_class_format(spec, errors);
    } else {
        check_class(spec, types[0], errors);
    }
}

fn check_type(spec: &Value, kind: &str, errors: &mut Errors) {
    if items(spec, &["ports"]).is_empty() && !is_headless(spec) && kind != "ExternalName" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    match kind {
        "LoadBalancer" | "NodePort" if is_headless(spec) => {
            let why = format!("may not be set to 'None' for {kind} services");
            errors.push(FieldError::invalid("spec.clusterIPs[0]", "None", &why));
        }
        "ExternalName" => {
            for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                let has_address = field == "clusterIPs" && !text(spec, &["clusterIP"]).is_empty();
                if has_address || (is_set(spec, &[field]) && spec[field] != json!([])) {
                    let why = "may not be set for ExternalName services";
                    errors.push(FieldError::forbidden(format!("spec.{field}"), why));
                }
            }
            let given = text(spec, &["externalName"]);
            let name = given.strip_suffix('.').unwrap_or(given);
            if name.is_empty() {
                errors.push(FieldError::required("spec.externalName", ""));
            } else {
                invalid(errors, "spec.externalName", &name.into(), dns_subdomain_errors(name));
            }
        }
        _ => {}
    }
}

fn check_ports(spec: &Value, errors: &mut Errors) {
    let listed = items(spec, &["ports"]);
    let mut names = BTreeSet::new();
    for (index, port) in listed.iter().enumerate() {
        let field = format!("spec.ports[{index}]");
        let name = text(port, &["name"]);
        ports::check_name(&field, port, errors);
        if !name.is_empty() {
            if !names.insert(name) {
                errors.push(FieldError::duplicate(format!("{field}.name"), name));
            }
        } else if listed.len() > 1 {
            errors.push(FieldError::required(format!("{field}.name"), ""));
        }
        ports::check_number(&field, port, errors);
        ports::check_protocol(&field, port, errors);
        let target = at(port, &["targetPort"]);
        let faults = match target.as_str() {
            Some(name) => values::port_name_errors(name),
            None => values::port_number_errors(target.as_i64().unwrap_or_default()),
        };
        invalid(errors, format_args!("{field}.targetPort"), target, faults);
        ports::check_app_protocol(&field, port, errors);
    }
}

fn check_selector(spec: &Value, errors: &mut Errors) {
    for (key, value) in at(spec, &["selector"]).as_object().into_iter().flatten() {
        invalid(errors, "spec.selector", &key.as_str().into(), label_key_errors(key));
        invalid(
            errors,
            "spec.selector",
            value,
            label_value_errors(value.as_str().unwrap_or_default()),
        );
    }
}

fn check_affinity(spec: &Value, errors: &mut Errors) {
    let affinity = text(spec, &["sessionAffinity"]);
    one_of(errors, "spec.sessionAffinity", affinity, &["ClientIP", "None"]);
    if affinity == "ClientIP" {
        let seconds = at(spec, &["sessionAffinityConfig", "clientIP", "timeoutSeconds"]);
        if !(1..=AFFINITY_MAX).contains(&seconds.as_i64().unwrap_or_default()) {
            let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
            let why = format!("must be greater than 0 and less than {AFFINITY_MAX}");
            errors.push(FieldError::invalid(field, seconds.clone(), &why));
        }
    }
}

fn check_addresses(spec: &Value, old: Option<&Value>, errors: &mut Errors) {
    const LIST: &str = "spec.clusterIPs";
    let (single, list) = (text(spec, &["clusterIP"]), items(spec, &["clusterIPs"]));
    let whole = || Value::from(list);
    match list.first() {
        Some(first) if !single.is_empty() && first != single => {
            errors.push(FieldError::invalid(LIST, whole(), "first value must match `clusterIP`"));
        }
        Some(_) if single.is_empty() => {
            let why = "must be empty when `clusterIP` is not specified";
            errors.push(FieldError::invalid(LIST, whole(), why));
        }
        _ => {}
    }
    let families = items(spec, &["ipFamilies"]);
    let mut seen = BTreeSet::new();
    for (index, family) in families.iter().enumerate() {
        let field = format!("spec.ipFamilies[{index}]");
        one_of(errors, &field, family.as_str().unwrap_or_default(), &["IPv4", "IPv6"]);
        if !seen.insert(family.as_str()) {
            errors.push(FieldError::duplicate(field, family.clone()));
        }
    }
    if let Some(policy) = spec["ipFamilyPolicy"].as_str() {
        let supported = ["PreferDualStack", "RequireDualStack", "SingleStack"];
        one_of(errors, "spec.ipFamilyPolicy", policy, &supported);
    }
    let held = old.map(|old| items(old, &["spec", "clusterIPs"])).unwrap_or_default();
    let held: HashSet<&Value> = held.iter().collect();
    let mut are_readable = true;
    for (index, ip) in list.iter().enumerate() {
        if index == 0 && ip == "None" {
            if list.len() > 1 {
                are_readable = false;
                errors.push(FieldError::invalid(
                    LIST,
                    whole(),
                    "'None' must be the first and only value",
                ));
            }
            continue;
        }
        let faults = values::legacy_ip_errors(ip.as_str().unwrap_or_default());
        if !faults.is_empty() && !held.contains(ip) {
            are_readable = false;
            invalid(errors, format_args!("{LIST}[{index}]"), ip, faults);
        }
    }
    if list.len() > 2 {
        errors.push(FieldError::invalid(LIST, whole(), "may only hold up to 2 values"));
    }
    if are_readable {
        check_families(list, families, errors);
    }
}

fn check_families(list: &[Value], families: &[Value], errors: &mut Errors) {
    const LIST: &str = "spec.clusterIPs";
    let is_v6 = |ip: &Value| ip.as_str().is_some_and(values::is_ipv6);
    if list.len() > 1 && (list.iter().all(is_v6) || !list.iter().any(is_v6)) {
        let why = "may specify no more than one IP for each IP family";
        errors.push(FieldError::invalid(LIST, Value::from(list), why));
    }
    if list == [json!("None")] {
        return;
    }
    for (index, (ip, family)) in list.iter().zip(families).enumerate() {
        let is_right = match family.as_str() {
            Some("IPv4") => !is_v6(ip),
            Some("IPv6") => is_v6(ip),
            _ => true,
        };
        if !is_right {
            let why = format!(
                "expected an {} value as indicated by `ipFamilies[{index}]`",
                family.as_str().unwrap_or_default()
            );
            errors.push(FieldError::invalid(format!("{LIST}[{index}]"), ip.clone(), &why));
        }
    }
}

fn check_port_numbers(spec: &Value, kind: &str, errors: &mut Errors) {
    let ports = items(spec, &["ports"]);
    let node_port = |port: &Value| at(port, &["nodePort"]).as_i64().unwrap_or_default();
    if kind == "ClusterIP" {
        for (index, _) in ports.iter().enumerate().filter(|(_, port)| node_port(port) != 0) {
            let field = format!("spec.ports[{index}].nodePort");
            errors.push(FieldError::forbidden(
                field,
                "may not be used when `type` is 'ClusterIP'",
            ));
        }
    }
    let mut taken = BTreeSet::new();
    for (index, port) in ports.iter().enumerate().filter(|(_, port)| node_port(port) != 0) {
        if !taken.insert((text(port, &["protocol"]), node_port(port))) {
            let field = format!("spec.ports[{index}].nodePort");
            errors.push(FieldError::duplicate(field, node_port(port)));
        }
    }
    let mut taken = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let (protocol, number) = (
            text(port, &["protocol"]),
            at(port, &["port"]).as_i64().unwrap_or_default(),
        );
        if !taken.insert((protocol, number)) {
            // As Go prints the type, members in its order.
            let shown = format!(
                "Duplicate value: {{\"Name\":\"\",\"Protocol\":\"{protocol}\",\"AppProtocol\":null,\"Port\":{number},\
                 \"TargetPort\":0,\"NodePort\":0}}"
            );
            let duplicate = FieldError::duplicate(format!("spec.ports[{index}]"), "");
            errors.push(FieldError {
                message: shown,
                ..duplicate
            });
        }
    }
}

fn check_balancer(spec: &Value, kind: &str, errors: &mut Errors) {
    let is_balancer = kind == "LoadBalancer";
    if !items(spec, &["loadBalancerSourceRanges"]).is_empty() && !is_balancer {
        errors.push(FieldError::forbidden("spec.LoadBalancerSourceRanges", ONLY_BALANCERS));
    }
    if is_set(spec, &["allocateLoadBalancerNodePorts"]) && !is_balancer {
        errors.push(FieldError::forbidden(
            "spec.allocateLoadBalancerNodePorts",
            ONLY_BALANCERS,
        ));
    }
    check_class(spec, kind, errors);
}

fn check_class(spec: &Value, kind: &str, errors: &mut Errors) {
    if kind == "LoadBalancer" {
        check_class_format(spec, errors);
    } else if is_set(spec, &["loadBalancerClass"]) {
        errors.push(FieldError::forbidden("spec.loadBalancerClass", ONLY_BALANCERS));
    }
}

fn check_class_format(spec: &Value, errors: &mut Errors) {
    if let Some(class) = spec["loadBalancerClass"].as_str() {
        invalid(errors, "spec.loadBalancerClass", &class.into(), label_key_errors(class));
    }
}

fn check_policies(spec: &Value, kind: &str, errors: &mut Errors) {
    let external = text(spec, &["externalTrafficPolicy"]);
    let is_external = matches!(kind, "NodePort" | "LoadBalancer")
        || (kind == "ClusterIP" && !items(spec, &["externalIPs"]).is_empty());
    if is_external {
        one_of(errors, "spec.externalTrafficPolicy", external, &POLICIES);
    } else if !external.is_empty() {
        let why = "may only be set for externally-accessible services";
        errors.push(FieldError::invalid("spec.externalTrafficPolicy", external, why));
    }
    let health_port = at(spec, &["healthCheckNodePort"]).as_i64().unwrap_or_default();
    if health_port != 0 && !(kind == "LoadBalancer" && external == "Local") {
        let why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.push(FieldError::invalid("spec.healthCheckNodePort", health_port, why));
    }
    let internal = text(spec, &["internalTrafficPolicy"]);
    if !internal.is_empty() {
        one_of(errors, "spec.internalTrafficPolicy", internal, &POLICIES);
    }
    if let Some(distribution) = spec["trafficDistribution"].as_str() {
        let supported = ["PreferClose", "PreferSameZone", "PreferSameNode"];
        one_of(errors, "spec.trafficDistribution", distribution, &supported);
    }
}
