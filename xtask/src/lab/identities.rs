//! The certificates of the demo: one CA for the cloud and the pool, as in a cluster, and a file for whoever needs one.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use yurt_runtime::kubeconfig;
use yurt_runtime::pki::{self, CertificateAuthority, PemPair};

use super::net;

/// A CA and the folder it writes to.
pub(crate) struct Identities {
    ca: CertificateAuthority,
    dir: PathBuf,
    /// Full rights everywhere: the one who tells the story.
    pub(crate) admin: PemPair,
}

// === impl Identities ===

impl Identities {
    /// A new CA; writes `ca.crt` into `dir`.
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        let ca = CertificateAuthority::generate("yurt-demo-ca")?;
        pki::write_public(&dir.join("ca.crt"), ca.cert_pem())?;
        let admin = ca.issue_client("admin", &["system:masters"])?;
        Ok(Self {
            ca,
            dir: dir.to_path_buf(),
            admin,
        })
    }

    pub(crate) fn ca_pem(&self) -> &str {
        self.ca.cert_pem()
    }

    pub(crate) fn ca_file(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// Writes a serving certificate for the loopback interface and the lab's own network; returns the files of certificate and key.
    pub(crate) fn server(&self, name: &str) -> Result<(PathBuf, PathBuf)> {
        let pair = self.server_pair(name)?;
        let (cert, key) = (
            self.dir.join(format!("{name}.crt")),
            self.dir.join(format!("{name}.key")),
        );
        pki::write_public(&cert, &pair.cert_pem)?;
        pki::write_secret(&key, &pair.key_pem)?;
        Ok((cert, key))
    }

    /// The same without files.
    pub(crate) fn server_pair(&self, name: &str) -> Result<PemPair> {
        let (cloud, pool) = (net::CLOUD.to_string(), net::POOL.to_string());
        let names = ["127.0.0.1", "localhost", "kubernetes.default.svc", &cloud, &pool];
        self.ca.issue_server(name, &names).context("serving certificate")
    }

    /// A kubeconfig of `name` (with its groups) for the server at `address`.
    pub(crate) fn kubeconfig(&self, file: &str, name: &str, groups: &[&str], address: SocketAddr) -> Result<PathBuf> {
        let pair = self.ca.issue_client(name, groups)?;
        self.write_kubeconfig(file, &pair, address)
    }

    /// The administrator's kubeconfig for the server on a loopback port.
    pub(crate) fn admin_kubeconfig(&self, file: &str, port: u16) -> Result<PathBuf> {
        self.write_kubeconfig(file, &self.admin, (Ipv4Addr::LOCALHOST, port).into())
    }

    fn write_kubeconfig(&self, file: &str, pair: &PemPair, address: SocketAddr) -> Result<PathBuf> {
        let path = self.dir.join(file);
        kubeconfig::write_admin(&path, &format!("https://{address}"), self.ca.cert_pem(), pair)?;
        Ok(path)
    }
}
