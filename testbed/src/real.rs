//! A real cloud on this machine: etcd and kube-apiserver as built by interop, with the demo's CA and the pool's RBAC.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::api::Api;
use super::net::{self, ProgramNamespace};
use super::program::{Launch, ManagedProcess, Program};
use super::{Setup, manifests, ports, ready};

/// A running kube-apiserver.
pub struct Real {
    /// Port of kube-apiserver.
    pub port: u16,
    /// Client of the administrator.
    pub api: Api,
    /// Must end before its etcd: it lingers without.
    pub apiserver: ManagedProcess,
    /// Its store.
    pub etcd: Program,
}

/// Starts both and applies `manifests/pool-rbac.yaml`.
pub async fn start(setup: &Setup) -> Result<Real> {
    let (etcd_port, etcd) = etcd_launch(setup, Sync::Unsafe)?;
    let (port, apiserver) = apiserver_launch(setup, etcd_port)?;
    let etcd = etcd.start()?;
    let mut apiserver = ManagedProcess::new(apiserver);
    let api = Api::https(port, setup.identities.ca_pem(), &setup.identities.admin)?;
    ready(apiserver.start()?, &api, "kube-apiserver").await?;
    manifests::apply(&api).await?;
    Ok(Real {
        port,
        api,
        apiserver,
        etcd,
    })
}

/// A program of interop's cache.
///
/// # Errors
/// It is not built.
pub fn binary(name: &str) -> Result<PathBuf> {
    let path = yurt_workspace::root()?.join("interop/.cache/bin").join(name);
    if !path.is_file() {
        bail!("{name} is not built; run `cargo xtask build-interop` (it needs Go)");
    }
    Ok(path)
}

/// Durability of etcd's acknowledged writes across a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// As in production.
    Durable,
    /// Faster, for data that may be lost.
    Unsafe,
}

/// Launch of an etcd, and the port for its clients.
pub fn etcd_launch(setup: &Setup, sync: Sync) -> Result<(u16, Launch)> {
    let (client, peer) = (ports::free()?, ports::free()?);
    let peer_url = format!("http://127.0.0.1:{peer}");
    let client_url = format!("http://127.0.0.1:{client}");
    let launch = Launch::new(&setup.dir, "etcd", binary("etcd")?)
        .flag("data-dir", setup.dir.join("etcd.data").display())
        .flag("listen-client-urls", &client_url)
        .flag("advertise-client-urls", &client_url)
        .flag("listen-peer-urls", &peer_url)
        .flag("initial-advertise-peer-urls", &peer_url)
        .flag("initial-cluster", format!("default={peer_url}"))
        .flag("unsafe-no-fsync", sync == Sync::Unsafe);
    let launch = match &setup.net {
        Some(net) => launch.within(net.namespace(ProgramNamespace::Cloud)),
        None => launch,
    };
    Ok((client, launch))
}

/// Launch of a kube-apiserver on that etcd, and its port.
pub fn apiserver_launch(setup: &Setup, etcd_port: u16) -> Result<(u16, Launch)> {
    let port = ports::free()?;
    let (cert, key) = setup.identities.server("kube-apiserver")?;
    let (token_cert, token_key) = setup.identities.server("service-account-tokens")?;
    let launch = Launch::new(&setup.dir, "kube-apiserver", binary("kube-apiserver")?)
        .flag("etcd-servers", format!("http://127.0.0.1:{etcd_port}"))
        .flag("secure-port", port)
        .flag("tls-cert-file", cert.display())
        .flag("tls-private-key-file", key.display())
        .flag("client-ca-file", setup.identities.ca_file().display())
        .flag("authorization-mode", "Node,RBAC")
        .flag("enable-admission-plugins", "NodeRestriction")
        .flag("service-cluster-ip-range", "10.96.0.0/16")
        .flag("service-account-issuer", "https://kubernetes.default.svc")
        .flag("service-account-key-file", token_cert.display())
        .flag("service-account-signing-key-file", token_key.display())
        // It would publish its loopback address as endpoint of the Service kubernetes, which is refused.
        .flag("endpoint-reconciler-type", "none");
    let launch = match &setup.net {
        // Without a default route it cannot detect its address.
        Some(_) => launch.flag("advertise-address", net::CLOUD),
        None => launch,
    };
    Ok((port, setup.serve(ProgramNamespace::Cloud, port, launch)?))
}
