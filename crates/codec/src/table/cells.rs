//! The cells of every kind but pods.

use serde_json::{Value, json};

use super::human;
use yurt_apimachinery::time::Time;

const NONE: &str = "<none>";
const UNKNOWN: &str = "<unknown>";
/// Addresses and ports that are shown; the rest is only counted.
const SHOWN: usize = 3;

pub(super) fn str(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn or<'a>(text: &'a str, default: &'a str) -> &'a str {
    if text.is_empty() { default } else { text }
}

pub(super) fn name(object: &Value) -> &str {
    str(&object["metadata"]["name"])
}

pub(super) fn age(object: &Value, now: Time) -> String {
    since(&object["metadata"]["creationTimestamp"], now)
}

fn since(time: &Value, now: Time) -> String {
    human::since(time, now).unwrap_or_else(|| UNKNOWN.to_owned())
}

fn count(members: &Value) -> usize {
    members.as_object().map_or(0, serde_json::Map::len)
}

fn row<const N: usize>(cells: [Value; N]) -> Vec<Value> {
    cells.into()
}

/// The first texts, and the number of the others; `empty` if there are none.
fn shortened(texts: &[String], empty: &str) -> String {
    let shown = texts.get(..SHOWN).unwrap_or(texts).join(",");
    if texts.len() > SHOWN {
        return format!("{shown} + {} more...", texts.len() - SHOWN);
    }
    or(&shown, empty).to_owned()
}

pub(super) fn name_and_age(object: &Value, now: Time) -> Vec<Value> {
    row([json!(name(object)), json!(age(object, now))])
}

pub(super) fn namespace(object: &Value, now: Time) -> Vec<Value> {
    let phase = str(&object["status"]["phase"]);
    row([json!(name(object)), json!(phase), json!(age(object, now))])
}

pub(super) fn secret(object: &Value, now: Time) -> Vec<Value> {
    let entries = count(&object["data"]);
    row([
        json!(name(object)),
        json!(str(&object["type"])),
        json!(entries),
        json!(age(object, now)),
    ])
}

pub(super) fn config_map(object: &Value, now: Time) -> Vec<Value> {
    let entries = count(&object["data"]) + count(&object["binaryData"]);
    row([json!(name(object)), json!(entries), json!(age(object, now))])
}

pub(super) fn lease(object: &Value, now: Time) -> Vec<Value> {
    let holder = str(&object["spec"]["holderIdentity"]);
    row([json!(name(object)), json!(holder), json!(age(object, now))])
}

pub(super) fn endpoint_slice(object: &Value, now: Time) -> Vec<Value> {
    let port = |port: &Value| match (&port["port"], &port["name"]) {
        (Value::Number(number), _) => number.to_string(),
        (_, Value::String(name)) => name.clone(),
        _ => "*".to_owned(),
    };
    let ports: Vec<String> = list(&object["ports"]).iter().map(port).collect();
    let endpoints = list(&object["endpoints"]).iter();
    let addresses = endpoints.flat_map(|endpoint| list(&endpoint["addresses"]));
    let addresses: Vec<String> = addresses.map(|address| str(address).to_owned()).collect();
    row([
        json!(name(object)),
        json!(str(&object["addressType"])),
        json!(shortened(&ports, "<unset>")),
        json!(shortened(&addresses, "<unset>")),
        json!(age(object, now)),
    ])
}

pub(super) fn endpoints(object: &Value, now: Time) -> Vec<Value> {
    let mut all = Vec::new();
    for subset in list(&object["subsets"]) {
        let addresses = list(&subset["addresses"]).iter().map(|address| str(&address["ip"]));
        let ports = list(&subset["ports"]);
        if ports.is_empty() {
            all.extend(addresses.clone().map(str::to_owned));
        }
        for port in ports {
            let join = |ip: &str| {
                let (open, close) = if ip.contains(':') { ("[", "]") } else { ("", "") };
                format!("{open}{ip}{close}:{}", port["port"].as_i64().unwrap_or_default())
            };
            all.extend(addresses.clone().map(join));
        }
    }
    let has_subsets = !list(&object["subsets"]).is_empty();
    let shown = shortened(&all, if has_subsets { "" } else { NONE });
    row([json!(name(object)), json!(shown), json!(age(object, now))])
}

pub(super) fn service(object: &Value, now: Time) -> Vec<Value> {
    let spec = &object["spec"];
    let cluster_ip = list(&spec["clusterIPs"]).first().map_or(NONE, str);
    let port = |port: &Value| {
        let (number, protocol) = (port["port"].as_i64().unwrap_or_default(), str(&port["protocol"]));
        match port["nodePort"].as_i64().filter(|node_port| *node_port > 0) {
            Some(node_port) => format!("{number}:{node_port}/{protocol}"),
            None => format!("{number}/{protocol}"),
        }
    };
    let ports: Vec<String> = list(&spec["ports"]).iter().map(port).collect();
    let selector = spec["selector"].as_object().into_iter().flatten();
    let selector: Vec<String> = selector.map(|(key, value)| format!("{key}={}", str(value))).collect();
    row([
        json!(name(object)),
        json!(str(&spec["type"])),
        json!(cluster_ip),
        json!(external_ip(object)),
        json!(or(&ports.join(","), NONE)),
        json!(age(object, now)),
        json!(or(&selector.join(","), NONE)),
    ])
}

fn external_ip(object: &Value) -> String {
    let spec = &object["spec"];
    let external = list(&spec["externalIPs"]).iter().map(str);
    match str(&spec["type"]) {
        "ClusterIP" | "NodePort" => or(&external.collect::<Vec<_>>().join(","), NONE).to_owned(),
        "LoadBalancer" => {
            let ingress = list(&object["status"]["loadBalancer"]["ingress"]).iter();
            let mut all: Vec<&str> = ingress
                .map(|ingress| or(str(&ingress["ip"]), str(&ingress["hostname"])))
                .filter(|address| !address.is_empty())
                .collect();
            all.sort_unstable();
            all.dedup();
            all.extend(external);
            or(&all.join(","), "<pending>").to_owned()
        }
        "ExternalName" => str(&spec["externalName"]).to_owned(),
        _ => UNKNOWN.to_owned(),
    }
}

pub(super) fn node(object: &Value, now: Time) -> Vec<Value> {
    let (status, info) = (&object["status"], &object["status"]["nodeInfo"]);
    let ready = list(&status["conditions"])
        .iter()
        .rfind(|condition| condition["type"] == "Ready");
    let mut state = match ready {
        Some(condition) if condition["status"] == "True" => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if object["spec"]["unschedulable"] == true {
        state.push_str(",SchedulingDisabled");
    }
    let address = |ty: &str| {
        let found = list(&status["addresses"]).iter().find(|address| address["type"] == ty);
        found.map_or(NONE, |address| str(&address["address"])).to_owned()
    };
    let mut kernel = or(str(&info["kernelVersion"]), UNKNOWN).to_owned();
    let architecture = str(&info["architecture"]);
    if !architecture.is_empty() {
        kernel.push_str(&format!(" ({architecture})"));
    }
    row([
        json!(name(object)),
        json!(state),
        json!(or(&roles(object).join(","), NONE)),
        json!(age(object, now)),
        json!(str(&info["kubeletVersion"])),
        json!(address("InternalIP")),
        json!(address("ExternalIP")),
        json!(or(str(&info["osImage"]), UNKNOWN)),
        json!(kernel),
        json!(or(str(&info["containerRuntimeVersion"]), UNKNOWN)),
    ])
}

fn roles(object: &Value) -> Vec<&str> {
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    let mut roles: Vec<&str> = labels
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => Some(str(value)),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    roles
}

/// An event of either group: most fields have other names in events.k8s.io.
pub(super) fn event(object: &Value, now: Time) -> Vec<Value> {
    let either = |core: &str, new: &str| match &object[core] {
        Value::Null => object[new].clone(),
        found => found.clone(),
    };
    let first = human::since(&either("firstTimestamp", "deprecatedFirstTimestamp"), now);
    let first = first.unwrap_or_else(|| since(&object["eventTime"], now));
    let last = human::since(&either("lastTimestamp", "deprecatedLastTimestamp"), now);
    let mut last = last.unwrap_or_else(|| first.clone());
    let mut times = either("count", "deprecatedCount").as_i64().unwrap_or_default();
    if object["series"].is_object() {
        last = since(&object["series"]["lastObservedTime"], now);
        times = object["series"]["count"].as_i64().unwrap_or_default();
    } else if times == 0 {
        times = 1;
    }
    let about = either("involvedObject", "regarding");
    let kind = str(&about["kind"]).to_lowercase();
    let target = match str(&about["name"]) {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let source = either("source", "deprecatedSource");
    let component = or(
        str(&source["component"]),
        str(&either("reportingComponent", "reportingController")),
    )
    .to_owned();
    let instance = or(str(&source["host"]), str(&object["reportingInstance"])).to_owned();
    let source = if instance.is_empty() {
        component
    } else {
        format!("{component}, {instance}")
    };
    let message = either("message", "note");
    row([
        json!(last),
        json!(str(&object["type"])),
        json!(str(&object["reason"])),
        json!(target),
        json!(str(&about["fieldPath"])),
        json!(source),
        json!(str(&message).trim()),
        json!(first),
        json!(times),
        json!(name(object)),
    ])
}
