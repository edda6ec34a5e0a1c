//! The certificates of the demo: one CA for the cloud and the pool, as in a cluster, and a file for each program.
//!
//! Files can be replaced while programs use them: by certificates of the same CA, of the next one, or by expired ones.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use yurt_runtime::kubeconfig;
use yurt_runtime::pki::{self, CertificateAuthority};
use yurt_runtime::tls::PemPair;

use super::net;

/// Two CAs and the folder they write to.
pub struct Identities {
    ca: CertificateAuthority,
    /// CA that is trusted only after [`Identities::trust_next`].
    next: CertificateAuthority,
    /// The first CA again; its certificates have expired before they are used.
    expiring: CertificateAuthority,
    dir: PathBuf,
    /// Identity of the story, with full rights everywhere.
    pub admin: PemPair,
}

/// Kind of certificate to issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issue {
    /// By the CA that is always trusted.
    Usual,
    /// By the next CA.
    Next,
    /// Expired.
    Expired,
}

// === impl Identities ===

impl Identities {
    /// A new CA; writes `ca.crt` into `dir`.
    pub fn new(dir: &Path) -> Result<Self> {
        let ca = CertificateAuthority::generate("yurt-demo-ca")?;
        let next = CertificateAuthority::generate("yurt-demo-next-ca")?;
        let PemPair { cert_pem, key_pem } = ca.pair();
        // Valid from an hour ago until now.
        let expiring = CertificateAuthority::load(cert_pem, key_pem)?.with_leaf_validity(Duration::ZERO);
        let admin = ca.issue_client("admin", &["system:masters"])?;
        let identities = Self {
            ca,
            next,
            expiring,
            dir: dir.to_path_buf(),
            admin,
        };
        identities.trust_next(false)?;
        Ok(identities)
    }

    /// Certificate of the CA, as PEM.
    pub fn ca_pem(&self) -> &str {
        self.ca.cert_pem()
    }

    /// File with the certificate of the CA.
    pub fn ca_file(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// Writes `ca.crt` again, with or without the next CA.
    pub fn trust_next(&self, too: bool) -> Result<()> {
        let next = if too { self.next.cert_pem() } else { "" };
        pki::write_public(&self.ca_file(), format!("{}{next}", self.ca.cert_pem()))?;
        Ok(())
    }

    /// Writes a serving certificate for the loopback interface and the testbed's own network; returns the files of
    /// certificate and key.
    pub fn server(&self, name: &str) -> Result<(PathBuf, PathBuf)> {
        self.replace_server(name, Issue::Usual)
    }

    /// The same, for a program that may be using the files.
    pub fn replace_server(&self, name: &str, issue: Issue) -> Result<(PathBuf, PathBuf)> {
        let pair = self.serving(name, issue)?;
        let (cert, key) = (
            self.dir.join(format!("{name}.crt")),
            self.dir.join(format!("{name}.key")),
        );
        pki::write_public(&cert, &pair.cert_pem)?;
        pki::write_secret(&key, &pair.key_pem)?;
        Ok((cert, key))
    }

    /// The same without files.
    pub fn server_pair(&self, name: &str) -> Result<PemPair> {
        self.serving(name, Issue::Usual)
    }

    fn serving(&self, name: &str, issue: Issue) -> Result<PemPair> {
        let (cloud, pool) = (net::CLOUD.to_string(), net::POOL.to_string());
        let names = ["127.0.0.1", "localhost", "kubernetes.default.svc", &cloud, &pool];
        let pair = self.authority(issue).issue_server(name, &names);
        pair.context("serving certificate")
    }

    /// A kubeconfig of `name` (with its groups) for the server at `address`. CA and certificate are files that it
    /// names, as a kubelet's does.
    pub fn kubeconfig(&self, file: &str, name: &str, groups: &[&str], address: SocketAddr) -> Result<PathBuf> {
        let pem = self.replace_client(file, Issue::Usual, name, groups)?;
        let (ca, pem) = (
            Value::from(self.ca_file().to_string_lossy()),
            Value::from(pem.to_string_lossy()),
        );
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters:\n- name: c\n  cluster: {{server: \"https://{address}\", certificate-authority: {ca}}}\n\
             contexts:\n- name: c\n  context: {{cluster: c, user: c}}\n\
             users:\n- name: c\n  user: {{client-certificate: {pem}, client-key: {pem}}}\n"
        );
        let path = self.dir.join(file);
        pki::write_secret(&path, text)?;
        Ok(path)
    }

    /// A client certificate without files.
    pub fn client_pair(&self, name: &str, groups: &[&str]) -> Result<PemPair> {
        self.ca.issue_client(name, groups).context("client certificate")
    }

    /// Writes the file with certificate and key that the kubeconfig `file` names.
    pub fn replace_client(&self, file: &str, issue: Issue, name: &str, groups: &[&str]) -> Result<PathBuf> {
        let pair = self.authority(issue).issue_client(name, groups)?;
        let path = self.dir.join(format!("{file}.pem"));
        pki::write_secret(&path, format!("{}{}", pair.cert_pem, pair.key_pem))?;
        Ok(path)
    }

    /// The administrator's kubeconfig for the server on a loopback port.
    pub fn admin_kubeconfig(&self, file: &str, port: u16) -> Result<PathBuf> {
        let path = self.dir.join(file);
        kubeconfig::write_admin(
            &path,
            &format!("https://127.0.0.1:{port}"),
            self.ca.cert_pem(),
            &self.admin,
        )?;
        Ok(path)
    }

    fn authority(&self, issue: Issue) -> &CertificateAuthority {
        match issue {
            Issue::Usual => &self.ca,
            Issue::Next => &self.next,
            Issue::Expired => &self.expiring,
        }
    }
}
