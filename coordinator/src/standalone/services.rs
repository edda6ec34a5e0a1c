//! Services: a union, discriminated by `type`. Defaults, fields that a change of type clears, and combinations of
//! fields.
//!
//! Addresses and node ports are not allocated: a Service keeps the values it is written with.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};
use yurt_apimachinery::Status;
use yurt_apimachinery::status::ErrorList;
use yurt_apimachinery::values::is_ipv6;

use crate::registry::fields::{at, each, fill, is_set, items, members, text};
use crate::registry::strategy::Strategy;

mod validate;
mod warnings;

/// Rules of `services`.
pub(crate) struct Services;

/// Default time of session affinity, in seconds.
const AFFINITY_SECONDS: i64 = 10_800;

impl Strategy for Services {
    fn default(&self, object: &mut Value) {
        let Some(spec) = members(object, &["spec"]) else { return };
        fill(spec, "sessionAffinity", "None");
        fill(spec, "type", "ClusterIP");
        default_affinity(spec);
        let kind = spec["type"].as_str().unwrap_or_default().to_owned();
        let has_external_ips = spec
            .get("externalIPs")
            .and_then(Value::as_array)
            .is_some_and(|ips| !ips.is_empty());
        let is_external =
            matches!(kind.as_str(), "NodePort" | "LoadBalancer") || (kind == "ClusterIP" && has_external_ips);
        if is_external {
            fill(spec, "externalTrafficPolicy", "Cluster");
        }
        if matches!(kind.as_str(), "NodePort" | "LoadBalancer" | "ClusterIP") {
            fill(spec, "internalTrafficPolicy", "Cluster");
        }
        if kind == "LoadBalancer" {
            fill(spec, "allocateLoadBalancerNodePorts", true);
        }
        for port in each(object, &["spec", "ports"]) {
            fill(port, "protocol", "TCP");
            let number = port.get("port").cloned().unwrap_or_else(|| 0.into());
            if port.get("targetPort") == Some(&json!(0)) {
                port.remove("targetPort");
            }
            fill(port, "targetPort", number);
        }
        if kind == "LoadBalancer" {
            let with_ip =
                each(object, &["status", "loadBalancer", "ingress"]).filter(|ingress| ingress.contains_key("ip"));
            with_ip.for_each(|ingress| fill(ingress, "ipMode", "VIP"));
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        object.as_object_mut().map(|members| members.remove("status"));
        settle_addresses(object);
    }

    fn prepare_update(&self, old: &Value, new: &mut Value) {
        patch_addresses(old, new);
        drop_what_the_type_does_not_have(old, new);
        settle_addresses(new);
    }

    fn validate(&self, object: &Value, old: Option<&Value>) -> Result<ErrorList, Status> {
        Ok(validate::service(object, old))
    }

    fn validate_status(&self, object: &Value, _old: &Value) -> Result<ErrorList, Status> {
        Ok(validate::status(object))
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        warnings::of(object)
    }
}

fn default_affinity(spec: &mut Map<String, Value>) {
    match spec["sessionAffinity"].as_str() {
        Some("None") => drop(spec.remove("sessionAffinityConfig")),
        Some("ClientIP") => {
            let config = spec.get("sessionAffinityConfig").unwrap_or(&Value::Null);
            if !is_set(config, &["clientIP", "timeoutSeconds"]) {
                let config = json!({ "clientIP": { "timeoutSeconds": AFFINITY_SECONDS } });
                spec.insert("sessionAffinityConfig".to_owned(), config);
            }
        }
        _ => {}
    }
}

/// True if the type has addresses inside the cluster.
fn needs_cluster_ip(service: &Value) -> bool {
    text(service, &["spec", "type"]) != "ExternalName"
}

/// Keeps `clusterIP` and the first of `clusterIPs` equal, and sets the families of the present addresses.
fn settle_addresses(object: &mut Value) {
    if !needs_cluster_ip(object) {
        return;
    }
    let has_selector = at(object, &["spec", "selector"])
        .as_object()
        .is_some_and(|map| !map.is_empty());
    let Some(spec) = members(object, &["spec"]) else { return };
    let single = spec
        .get("clusterIP")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    if !single.is_empty() {
        let has_list = spec
            .get("clusterIPs")
            .and_then(Value::as_array)
            .is_some_and(|list| !list.is_empty());
        if !has_list {
            spec.insert("clusterIPs".to_owned(), json!([single]));
        }
    }
    let families = if single == "None" && !has_selector {
        // A Service without selector has manual endpoints and may use both families.
        json!(["IPv4", "IPv6"])
    } else {
        let addresses = spec.get("clusterIPs").and_then(Value::as_array).into_iter().flatten();
        let family = |ip: &Value| {
            if ip.as_str().is_some_and(is_ipv6) {
                "IPv6"
            } else {
                "IPv4"
            }
        };
        let families: Vec<&str> = addresses.map(family).collect();
        if families.is_empty() {
            json!(["IPv4"])
        } else {
            json!(families)
        }
    };
    let policy = if families.as_array().is_some_and(|families| families.len() > 1) {
        "RequireDualStack"
    } else {
        "SingleStack"
    };
    if spec
        .get("ipFamilies")
        .and_then(Value::as_array)
        .is_none_or(Vec::is_empty)
    {
        spec.insert("ipFamilies".to_owned(), families);
    }
    fill(spec, "ipFamilyPolicy", policy);
}

/// An update without addresses keeps the present ones; one that changes only one of the two spellings changes both.
fn patch_addresses(old: &Value, new: &mut Value) {
    if !needs_cluster_ip(old) || !needs_cluster_ip(new) {
        return;
    }
    let Some(spec) = members(new, &["spec"]) else { return };
    let held = |field: &str| at(old, &["spec", field]).clone();
    let is_empty = |value: Option<&Value>| {
        value.is_none_or(|value| value.is_null() || value == "" || value.as_array().is_some_and(Vec::is_empty))
    };
    let is_kept = is_empty(spec.get("clusterIPs")) || spec.get("clusterIPs") == Some(&held("clusterIPs"));
    if is_empty(spec.get("clusterIP")) && is_kept {
        for field in ["clusterIP", "clusterIPs"] {
            put(spec, field, held(field));
        }
    } else if spec.get("clusterIP") != Some(&held("clusterIP")) && spec.get("clusterIPs") == Some(&held("clusterIPs")) {
        let single = spec.get("clusterIP").cloned().unwrap_or_default();
        put(spec, "clusterIPs", json!([single]));
    }
    for field in ["ipFamilies", "ipFamilyPolicy"] {
        if is_empty(spec.get(field)) {
            put(spec, field, held(field));
        }
    }
    patch_node_ports(old, spec);
}

/// An update without node ports, or without the health check's, keeps the present ones.
fn patch_node_ports(old: &Value, spec: &mut Map<String, Value>) {
    let has_node_ports = |kind: &str| matches!(kind, "NodePort" | "LoadBalancer");
    let kind = spec.get("type").and_then(Value::as_str).unwrap_or_default();
    if !has_node_ports(kind) || !has_node_ports(text(old, &["spec", "type"])) {
        return;
    }
    if spec.get("healthCheckNodePort").is_none_or(|port| port == 0) {
        put(
            spec,
            "healthCheckNodePort",
            at(old, &["spec", "healthCheckNodePort"]).clone(),
        );
    }
    let mut node_ports: HashMap<(Option<&Value>, Option<&Value>), &Value> = HashMap::new();
    for held in items(old, &["spec", "ports"]) {
        let place = (Some(&held["port"]), Some(&held["protocol"]));
        node_ports.entry(place).or_insert(&held["nodePort"]);
    }
    let ports = spec
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten();
    for port in ports.filter_map(Value::as_object_mut) {
        let held = node_ports
            .get(&(port.get("port"), port.get("protocol")))
            .copied()
            .cloned();
        if let Some(held) = held.filter(|held| !held.is_null() && port.get("nodePort").is_none_or(|port| port == 0)) {
            port.insert("nodePort".to_owned(), held);
        }
    }
}

fn put(members: &mut Map<String, Value>, field: &str, value: Value) {
    if value.is_null() {
        members.remove(field);
    } else {
        members.insert(field.to_owned(), value);
    }
}

/// Clears fields of the previous type only, unless the client changed them as well: validation then reports them.
fn drop_what_the_type_does_not_have(old: &Value, new: &mut Value) {
    let (before, after) = (text(old, &["spec", "type"]), text(new, &["spec", "type"]).to_owned());
    let same = |new: &Value, field: &str| at(old, &["spec", field]) == at(new, &["spec", field]);
    let mut dropped = Vec::new();
    if needs_cluster_ip(old) && after == "ExternalName" {
        let names_one = items(new, &["spec", "clusterIPs"]).is_empty();
        if same(new, "clusterIP") && (names_one || same(new, "clusterIPs")) {
            dropped.extend(["clusterIP", "clusterIPs"]);
        }
        dropped.extend(
            ["ipFamilies", "ipFamilyPolicy"]
                .into_iter()
                .filter(|field| same(new, field)),
        );
    }
    let has_node_ports = |kind: &str| matches!(kind, "NodePort" | "LoadBalancer");
    let is_external = |service: &Value, kind: &str| {
        has_node_ports(kind) || (kind == "ClusterIP" && !items(service, &["spec", "externalIPs"]).is_empty())
    };
    if before == "LoadBalancer" && after != "LoadBalancer" {
        let only_there = [
            "allocateLoadBalancerNodePorts",
            "loadBalancerClass",
            "healthCheckNodePort",
        ];
        dropped.extend(only_there.into_iter().filter(|field| same(new, field)));
    }
    if is_external(old, before) && !is_external(new, &after) && same(new, "externalTrafficPolicy") {
        dropped.push("externalTrafficPolicy");
    }
    if has_node_ports(before) && !has_node_ports(&after) {
        let known: HashSet<&Value> = items(old, &["spec", "ports"])
            .iter()
            .map(|port| &port["nodePort"])
            .collect();
        let is_known = |port: &Value| port["nodePort"].is_null() || known.contains(&port["nodePort"]);
        if items(new, &["spec", "ports"]).iter().all(is_known) {
            each(new, &["spec", "ports"]).for_each(|port| drop(port.remove("nodePort")));
        }
    }
    if let Some(spec) = members(new, &["spec"]) {
        spec.retain(|field, _| !dropped.contains(&field.as_str()));
    }
    if after != "LoadBalancer"
        && let Some(balancer) = members(new, &["status", "loadBalancer"])
    {
        balancer.clear();
    }
}

#[cfg(test)]
mod tests;
