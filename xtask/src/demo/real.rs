//! A real cloud on this machine: etcd and kube-apiserver as interop built them, with the demo's CA and the pool's RBAC.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::api::Api;
use super::cloud::{Setup, ready};
use super::program::{Launch, Program};
use super::{manifests, ports};
use crate::workspace;

/// A running kube-apiserver.
pub(super) struct Real {
    pub(super) port: u16,
    pub(super) api: Api,
    /// kube-apiserver before its etcd: that is the order they must end in.
    pub(super) programs: Vec<Program>,
}

/// Starts both and applies `manifests/pool-rbac.yaml`.
pub(super) async fn start(setup: &Setup) -> Result<Real> {
    let (etcd_port, etcd) = etcd_launch(setup)?;
    let (port, apiserver) = apiserver_launch(setup, etcd_port)?;
    let etcd = etcd.start()?;
    let mut apiserver = apiserver.start()?;
    let api = Api::https(port, setup.identities.ca_pem(), &setup.identities.admin)?;
    ready(&mut apiserver, &api, "kube-apiserver").await?;
    manifests::apply(&api).await?;
    Ok(Real {
        port,
        api,
        programs: vec![apiserver, etcd],
    })
}

fn binary(name: &str) -> Result<PathBuf> {
    let path = workspace::root()?.join("interop/.cache/bin").join(name);
    if !path.is_file() {
        bail!("{name} is not built; run `cargo xtask build-interop` (it needs Go)");
    }
    Ok(path)
}

fn etcd_launch(setup: &Setup) -> Result<(u16, Launch)> {
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
        // The demo's data need not outlive a power cut.
        .flag("unsafe-no-fsync", true);
    Ok((client, launch))
}

fn apiserver_launch(setup: &Setup, etcd_port: u16) -> Result<(u16, Launch)> {
    let port = ports::free()?;
    let (cert, key) = setup.identities.server("kube-apiserver")?;
    let (token_cert, token_key) = setup.identities.server("service-account-tokens")?;
    let launch = Launch::new(&setup.dir, "kube-apiserver", binary("kube-apiserver")?)
        .flag("etcd-servers", format!("http://127.0.0.1:{etcd_port}"))
        .flag("bind-address", "127.0.0.1")
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
    Ok((port, launch))
}
