//! The units and the kubeconfig in `manifests/systemd` fit the program: its flags, ports and files.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser as _;
use yurt_runtime::kubeconfig::{Kubeconfig, Token};
use yurt_runtime::tls::PemSource;
use yurt_test_support::TestDir;

use super::{Config, Flags, Proof};
use crate::listeners::OWN_CA;
use crate::proxy::caller::token;

/// Path of the program in the service.
const PROGRAM: &str = "/usr/local/bin/yurthub";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/systemd")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

/// Values of a key in a section of a unit, in their order.
fn values(unit: &str, section: &str, key: &str) -> Vec<String> {
    let mut within = "";
    let mut found = Vec::new();
    for line in unit.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            within = name;
        } else if let Some((name, value)) = line.split_once('=')
            && (within, name) == (section, key)
        {
            found.push(value.to_owned());
        }
    }
    found
}

/// The configuration that the service starts the program with, on the node `n1`.
fn config() -> Config {
    let started = values(&read("yurthub.service"), "Service", "ExecStart");
    let [line] = started.as_slice() else {
        panic!("{started:?}")
    };
    let line = line.replace("%H", "n1");
    assert!(line.starts_with(PROGRAM) && !line.contains('%'), "{line}");
    let flags = Flags::try_parse_from(line.split_whitespace()).unwrap();
    flags.check().unwrap()
}

#[test]
fn service_starts_the_hub_with_flags_that_it_knows() {
    let config = config();
    assert_eq!(config.node, "n1");
    assert_eq!(config.identity.proof, Proof::Token, "the kubeconfig has the token");
    let service = read("yurthub.service");
    assert_eq!(values(&service, "Unit", "Requires"), ["yurthub.socket"]);
    assert_eq!(values(&service, "Install", "Also"), ["yurthub.socket"]);
}

#[test]
fn sockets_are_the_proxys_ports() {
    let config = config();
    let held = values(&read("yurthub.socket"), "Socket", "ListenStream");
    let held: Vec<SocketAddr> = held.iter().map(|held| held.parse().unwrap()).collect();
    assert_eq!(held, [config.proxy_addr, config.secure_addr]);
}

#[test]
fn kubeconfig_leads_to_the_hubs_https_port_and_files() {
    let config = config();
    let loaded = Kubeconfig::load(&folder().join("kubelet-to-hub.conf")).unwrap();
    assert_eq!(loaded.server, format!("https://{}", config.secure_addr));
    let ca = config.root_dir.join(OWN_CA);
    assert!(
        matches!(&loaded.ca, Some(PemSource::File(path)) if *path == ca),
        "{ca:?}"
    );
    assert_eq!(loaded.token, Some(Token::File(config.root_dir.join(token::FILE))));
    assert!(loaded.identity.is_none());
}

/// Checked by systemd itself, if it is installed.
#[test]
fn systemd_knows_every_key() {
    let (copies, program) = (TestDir::new(), std::env::current_exe().unwrap());
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]);
    for name in ["yurthub.service", "yurthub.socket"] {
        let unit = read(name).replace(PROGRAM, &program.display().to_string());
        verify.arg(copies.write(name, unit));
    }
    let Ok(output) = verify.output() else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("yurthub."), "{said}");
}
