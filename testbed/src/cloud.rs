//! The cloud of the testbed: a second coordinator in its role, a real kube-apiserver, or a cluster of the user's.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::Result;

use super::read_only_proxy::ReadOnlyProxy;
use super::sample;
use crate::api::{Api, refusal};
use crate::net::ProgramNamespace;
use crate::program::{ManagedProcess, Program};
use crate::{Setup, coordinator_launch, manifests, ready, real};

/// Kind of cloud.
pub enum Choice {
    /// `yurt-coordinator --profile standalone`.
    Demo,
    /// kube-apiserver and etcd from interop's cache.
    Real,
    /// The cluster of this kubeconfig; it is only read.
    Kubeconfig(PathBuf),
}

/// A running cloud.
pub struct Cloud {
    /// Port of its API.
    pub port: u16,
    /// Client of the administrator, not over any link.
    pub api: Api,
    /// Name of the cloud in the story.
    pub title: String,
    /// True if the story may change objects: never in a cluster of the user's.
    pub writable: bool,
    /// The server; killed when dropped, before the rest.
    pub process: ManagedProcess,
    /// Folder of all its data; `None` unless it is one of our programs.
    pub data: Option<PathBuf>,
    _behind: Vec<Program>,
}

// === impl Cloud ===

impl Cloud {
    /// Starts it and loads the sample data.
    pub async fn start(setup: &Setup, choice: &Choice) -> Result<Self> {
        match choice {
            Choice::Demo => {
                let (port, process) = standalone(setup, "cloud").await?;
                let api = Api::https(port, setup.identities.ca_pem(), &setup.identities.admin)?;
                load_sample(&api, |_| true).await?;
                let title = "yurt-coordinator --profile standalone".to_owned();
                Ok(Self {
                    port,
                    api,
                    title,
                    writable: true,
                    process,
                    data: Some(setup.dir.join("cloud.data")),
                    _behind: Vec::new(),
                })
            }
            Choice::Real => {
                let real = real::start(setup).await?;
                load_sample(&real.api, |_| true).await?;
                let title = "kube-apiserver and etcd from interop/.cache".to_owned();
                Ok(Self {
                    port: real.port,
                    api: real.api,
                    title,
                    writable: true,
                    process: real.apiserver,
                    data: None,
                    _behind: vec![real.etcd],
                })
            }
            Choice::Kubeconfig(path) => {
                let (overlay_port, process) = standalone(setup, "overlay").await?;
                let overlay = Api::https(overlay_port, setup.identities.ca_pem(), &setup.identities.admin)?;
                load_sample(&overlay, |kind| kind == "Node").await?;
                let proxy = ReadOnlyProxy::start(setup, path, overlay_port).await?;
                let api = Api::https(proxy.port, setup.identities.ca_pem(), &setup.identities.admin)?;
                let title = format!("your cluster {}, read only", proxy.server);
                Ok(Self {
                    port: proxy.port,
                    api,
                    title,
                    writable: false,
                    process,
                    data: None,
                    _behind: Vec::new(),
                })
            }
        }
    }

    /// Address of its API on the side of the hubs.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }
}

/// A coordinator that is a small control plane of its own.
async fn standalone(setup: &Setup, name: &str) -> Result<(u16, ManagedProcess)> {
    let (port, launch) = coordinator_launch(setup, ProgramNamespace::Cloud, name)?;
    let roles = manifests::write(&setup.dir)?;
    let launch = launch.flag("profile", "standalone").flag("rbac-path", roles.display());
    let mut process = ManagedProcess::new(launch);
    let api = Api::https(port, setup.identities.ca_pem(), &setup.identities.admin)?;
    ready(process.start()?, &api, "the cloud").await?;
    Ok((port, process))
}

/// Creates the sample objects of the wanted kinds; existing ones stay.
async fn load_sample(api: &Api, wanted: impl Fn(&str) -> bool) -> Result<()> {
    for sample in sample::all() {
        if !wanted(sample.object["kind"].as_str().unwrap_or_default()) {
            continue;
        }
        match api.create(&sample.collection, &sample.object).await {
            Ok(_) => {}
            // kube-apiserver creates the Service default/kubernetes itself, and answers 422 if its address is taken.
            Err(error) if matches!(refusal(&error), Some(409 | 422)) && is_kubernetes_service(&sample) => {}
            Err(error) => return Err(error.context("loading the sample data")),
        }
    }
    Ok(())
}

fn is_kubernetes_service(sample: &sample::Sample) -> bool {
    sample.object["metadata"]["name"] == "kubernetes"
}
