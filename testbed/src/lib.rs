//! A pool of real programs on this machine, for the demo, the chaos runs and the benchmarks: ours, and the real
//! Kubernetes programs.
//!
//! A whole pool: [`pool`] (all of its programs), [`cloud`], [`etcd`], [`hub`], [`client`], [`kubelet`], [`link`],
//! [`disk`], [`sample`] (the objects); on the loopback interface, or in network namespaces with virtual links between
//! them ([`net`]). The tools: [`identities`] (one CA for all), [`program`] (a child process that is restarted),
//! [`real`] (kube-apiserver on etcd), [`api`] (a small client), [`ports`], [`mod@wait_for`] (bounded waiting). Program
//! `demo` is the walkthrough.
#![allow(clippy::print_stdout, reason = "a run prints where its files are")]

pub mod api;
pub mod client;
pub mod cloud;
pub mod disk;
pub mod etcd;
pub mod hub;
pub mod identities;
pub mod kubelet;
pub mod link;
pub mod manifests;
pub mod net;
pub mod pool;
pub mod ports;
pub mod program;
mod read_only_proxy;
pub mod real;
pub mod sample;
mod supervisor;
pub mod wait_for;

pub use yurt_test_support::fault_fs;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use yurt_runtime::TaskGroup;

use api::Api;
use identities::Identities;
use net::{Net, ProgramNamespace};
use program::{Launch, Program};
use wait_for::wait_for;

/// Common parameters for starting a program.
pub struct Setup {
    /// Certificates, data and logs; removed at the end.
    pub dir: PathBuf,
    /// Folder of `yurt-coordinator` and `yurthub`.
    pub bin_dir: PathBuf,
    /// Certificates and kubeconfigs of everything in the pool.
    pub identities: Identities,
    /// Owner of links and clients.
    pub tasks: TaskGroup,
    /// Network of servers and hubs; `None` for our loopback interface.
    pub net: Option<Arc<Net>>,
}

/// Time one of our programs has from exec to /readyz, on a busy machine.
pub const START_LIMIT: Duration = Duration::from_secs(30);

/// Makes a folder for all files of one run; with `keep` it stays, and its path is printed.
pub fn folder(what: &str, keep: bool) -> Result<TempDir> {
    let mut dir = tempfile::Builder::new()
        .prefix(&format!("yurt-{what}-"))
        .tempdir()
        .context("cannot make a temporary folder")?;
    dir.disable_cleanup(keep);
    if keep {
        println!("certificates, data and logs: {}", dir.path().display());
    }
    Ok(dir)
}

/// Makes the runtime for the tasks of a run.
pub fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("cannot start the runtime")
}

// === impl Setup ===

impl Setup {
    /// Puts a server that listens on `port` into its namespace, with its flag `--bind-address`, and makes it reachable
    /// here.
    pub fn serve(&self, place: ProgramNamespace, port: u16, launch: Launch) -> Result<Launch> {
        let Some(net) = &self.net else {
            return Ok(launch.flag("bind-address", Ipv4Addr::LOCALHOST));
        };
        net::port_forward::open(&self.tasks, net.namespace(place), port)?;
        let launch = launch.within(net.namespace(place));
        Ok(launch.flag("bind-address", Ipv4Addr::UNSPECIFIED))
    }
}

/// Launch of a coordinator with these certificates; the caller adds the profile.
pub fn coordinator_launch(setup: &Setup, place: ProgramNamespace, name: &str) -> Result<(u16, Launch)> {
    let port = ports::free()?;
    let (cert, key) = setup.identities.server(name)?;
    let launch = Launch::new(&setup.dir, name, setup.bin_dir.join("yurt-coordinator"))
        .flag("data-dir", setup.dir.join(format!("{name}.data")).display())
        .flag("secure-port", port)
        .flag("client-ca-file", setup.identities.ca_file().display())
        .flag("tls-cert-file", cert.display())
        .flag("tls-private-key-file", key.display());
    Ok((port, setup.serve(place, port, launch)?))
}

/// Waits until `/readyz` succeeds; an error immediately if the program ends.
pub async fn ready(program: &mut Program, api: &Api, what: &str) -> Result<Duration> {
    let readyz = async || {
        program.must_run()?;
        api.ping("/readyz").await
    };
    Ok(wait_for(START_LIMIT, &format!("{what} is ready"), readyz).await?.1)
}
