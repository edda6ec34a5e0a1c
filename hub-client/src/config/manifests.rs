//! The files in `manifests/` start a hub: their flags exist and fit together.

use clap::Parser as _;
use serde_json::Value;

use super::{Config, Flags};

const UNIT: &str = include_str!("../../../manifests/systemd/yurthub.service");
const SOCKET: &str = include_str!("../../../manifests/systemd/yurthub.socket");
const STATIC_POD: &str = include_str!("../../../manifests/static-pod/yurthub.yaml");

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
    let mut words = command.split_whitespace().map(str::to_owned);
    assert!(words.next().unwrap().ends_with("/yurthub"));
    let config = check(&words.collect::<Vec<_>>());
    assert_eq!(settings(UNIT, "Type"), ["notify"]);
    // systemd writes the name of the host for %H.
    let command = command.replace("%H", "edge-1");
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
