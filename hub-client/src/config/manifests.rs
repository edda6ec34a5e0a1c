//! The files in `manifests/` start a hub: their flags exist and fit together.

use clap::Parser as _;
use serde_json::Value;

use super::{Config, Flags};

const UNIT: &str = include_str!("../../../manifests/systemd/yurthub.service");
const SOCKET: &str = include_str!("../../../manifests/systemd/yurthub.socket");
const STATIC_POD: &str = include_str!("../../../manifests/static-pod/yurthub.yaml");
const RBAC: &str = include_str!("../../../manifests/pool-rbac.yaml");
const POD_KUBECONFIG: &str = include_str!("../../../manifests/static-pod/kubelet-to-hub.conf");

/// Memory of the static pod's hub beside its two copies, bytes.
const BASE_BYTES: usize = 32 << 20;

/// Roles and bindings of OpenYurt's charts that concern nodes and hubs.
const OF_OPENYURT: [&str; 6] = [
    "bootstrap-static-pod",
    "yurt-hub",
    "yurt-hub-bootstrap",
    "yurt-hub-yurt-static-set-role",
    "yurt-manager-role",
    "yurt-manager-rolebinding",
];

fn check(args: &[String]) -> Config {
    let program = std::iter::once("yurthub".to_owned());
    let flags = Flags::try_parse_from(program.chain(args.iter().cloned())).unwrap_or_else(|error| panic!("{error}"));
    flags.check().unwrap_or_else(|error| panic!("{error}"))
}

/// The values of `key` in a unit file; every other line must be a section, a comment or a setting.
fn settings<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    for line in unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once('=') {
            Some((name, value)) if name == key => found.push(value),
            Some((name, _)) => assert!(name.chars().all(char::is_alphanumeric), "{line}"),
            None => assert!(line.starts_with('[') && line.ends_with(']'), "{line}"),
        }
    }
    found
}

#[test]
fn systemd_unit_starts_a_hub_that_reports_to_systemd() {
    let commands = settings(UNIT, "ExecStart");
    let [command] = commands[..] else {
        panic!("{commands:?}")
    };
    // systemd writes the name of the host for %H.
    let command = command.replace("%H", "edge-1");
    let mut words = command.split_whitespace().map(str::to_owned);
    assert!(words.next().unwrap().ends_with("/yurthub"));
    let config = check(&words.collect::<Vec<_>>());
    assert_eq!(settings(UNIT, "Type"), ["notify"]);
    assert!(!settings(UNIT, "WatchdogSec").is_empty());
    let held = settings(SOCKET, "ListenStream");
    let wanted = [config.proxy_addr, config.secure_addr].map(|addr| addr.to_string());
    assert_eq!(held, wanted, "the sockets are the unit's ports");
}

#[test]
fn static_pod_joins_and_is_probed_at_the_hubs_port() {
    let pod: Value = serde_saphyr::from_str(STATIC_POD).unwrap();
    let container = &pod["spec"]["containers"][0];
    let args: Vec<String> = serde_json::from_value(container["args"].clone()).unwrap();
    let config = check(&args);
    assert!(config.join.is_some());
    assert_eq!(pod["spec"]["hostNetwork"], true);
    let limit = container["resources"]["limits"]["memory"].as_str().unwrap();
    let limit = limit.strip_suffix("Mi").unwrap().parse::<usize>().unwrap() << 20;
    let wanted = 2 * config.max_pool_bytes + config.max_cache_bytes + BASE_BYTES;
    assert!(
        limit >= wanted,
        "a list holds its collection twice: {limit} of {wanted}"
    );
    let probe = &container["livenessProbe"]["httpGet"];
    assert_eq!(probe["port"], config.admin_addr.port());
    assert_eq!(probe["host"], config.admin_addr.ip().to_string());
    let mounts: Vec<&str> = container["volumeMounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| mount["mountPath"].as_str().unwrap())
        .collect();
    for folder in [&config.root_dir, &config.cache_dir] {
        assert!(
            mounts.iter().any(|mount| folder.starts_with(mount)),
            "{}",
            folder.display()
        );
    }
}

/// The kubelet starts before the hub, so its kubeconfig needs no file that the hub creates.
#[test]
fn kubelet_of_the_static_pod_needs_no_file_of_the_hub() {
    let pod: Value = serde_saphyr::from_str(STATIC_POD).unwrap();
    let args: Vec<String> = serde_json::from_value(pod["spec"]["containers"][0]["args"].clone()).unwrap();
    let config = check(&args);
    let kubeconfig: Value = serde_saphyr::from_str(POD_KUBECONFIG).unwrap();
    let server = format!("http://{}", config.proxy_addr);
    assert_eq!(
        kubeconfig["clusters"][0]["cluster"],
        serde_json::json!({ "server": server })
    );
    assert_eq!(kubeconfig["users"], Value::Null);
    assert_eq!(config.identity.proof, super::Proof::Socket);
    assert_eq!(kubeconfig["current-context"], kubeconfig["contexts"][0]["name"]);
    let cluster = &kubeconfig["contexts"][0]["context"]["cluster"];
    assert_eq!(cluster, &kubeconfig["clusters"][0]["name"]);
    assert!(
        STATIC_POD.contains("static-pod/kubelet-to-hub.conf"),
        "the pod's header names it"
    );
}

/// Both run in a cluster while its nodes are upgraded one after another, and each is removed without the other.
#[test]
fn roles_and_bindings_have_other_names_than_those_of_openyurt() {
    let objects = RBAC.split("\n---\n").skip(1).map(|object| {
        let object: Value = serde_saphyr::from_str(object).unwrap();
        object
    });
    let is_rbac = |object: &Value| object["apiVersion"] == "rbac.authorization.k8s.io/v1";
    let names: Vec<String> = objects
        .filter(is_rbac)
        .map(|object| object["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(names.len() >= 8, "{names:?}");
    assert!(
        names.iter().all(|name| !OF_OPENYURT.contains(&name.as_str())),
        "{names:?}"
    );
}
