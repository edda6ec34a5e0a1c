//! A real etcd for tests, on loopback ports of its own, with or without TLS, that can be killed and started again.
//!
//! The environment variable [`BINARY_VARIABLE`] names the program; the interop step of `cargo xtask test` sets it.
//! Tests that need etcd are marked `#[ignore]`, so that a run without it shows them as ignored.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use yurt_runtime::pki::CertificateAuthority;
use yurt_runtime::tls::{ClientTls, PemIdentity, PemPair, PemSource};

use crate::free_port;

/// Path of the etcd program.
pub const BINARY_VARIABLE: &str = "YURT_ETCD";
/// Set when tests that work with any store are to use an etcd.
pub const OVER_ETCD_VARIABLE: &str = "YURT_OVER_ETCD";

/// Certificates of an etcd and of its clients, made for one test.
pub struct EtcdTls {
    authority: CertificateAuthority,
    server: PemPair,
}

/// One member. Killed when dropped.
pub struct EtcdMember {
    folder: tempfile::TempDir,
    arguments: Vec<String>,
    scheme: &'static str,
    /// Port of its clients.
    port: u16,
    process: Option<Child>,
}

// === impl EtcdTls ===

impl EtcdTls {
    /// A new authority and a serving certificate for 127.0.0.1.
    #[must_use]
    pub fn new() -> Self {
        let authority = CertificateAuthority::generate("etcd-ca").expect("a CA");
        let server = authority.issue_server("etcd", &["127.0.0.1"]).expect("a certificate");
        Self { authority, server }
    }

    /// Certificates that a client presents and trusts.
    #[must_use]
    pub fn client(&self) -> ClientTls {
        let pair = self
            .authority
            .issue_client("coordinator", &[] as &[&str])
            .expect("a certificate");
        ClientTls {
            ca: PemSource::inline("test CA", self.authority.cert_pem()),
            identity: Some(PemIdentity::inline("test client", &pair)),
        }
    }

    /// Writes everything a client needs as files: CA, certificate, key.
    #[must_use]
    pub fn client_files(&self, folder: &Path) -> [PathBuf; 3] {
        let pair = self
            .authority
            .issue_client("coordinator", &[] as &[&str])
            .expect("a certificate");
        let write = |name: &str, pem: &str| {
            let path = folder.join(name);
            std::fs::write(&path, pem).expect("a file");
            path
        };
        [
            write("etcd-ca.crt", self.authority.cert_pem()),
            write("etcd-client.crt", &pair.cert_pem),
            write("etcd-client.key", &pair.key_pem),
        ]
    }
}

impl Default for EtcdTls {
    fn default() -> Self {
        Self::new()
    }
}

// === impl EtcdMember ===

impl EtcdMember {
    /// One member that is a cluster of its own, started.
    #[must_use]
    pub fn single(tls: Option<&EtcdTls>, extra: &[&str]) -> Self {
        let mut member = Self::new("single", tls, extra);
        let peer = format!("http://127.0.0.1:{}", free_port());
        member.join(&peer, &format!("single={peer}"));
        member.start();
        member
    }

    /// A cluster of `count` members without TLS, started.
    #[must_use]
    pub fn cluster(count: usize) -> Vec<Self> {
        let peers: Vec<String> = (0..count)
            .map(|_| format!("http://127.0.0.1:{}", free_port()))
            .collect();
        let names = peers.iter().enumerate().map(|(at, peer)| format!("m{at}={peer}"));
        let everybody = names.collect::<Vec<_>>().join(",");
        let mut members = Vec::new();
        for (at, peer) in peers.iter().enumerate() {
            let mut member = Self::new(
                &format!("m{at}"),
                None,
                &["--heartbeat-interval=50", "--election-timeout=500"],
            );
            member.join(peer, &everybody);
            member.start();
            members.push(member);
        }
        members
    }

    fn new(name: &str, tls: Option<&EtcdTls>, extra: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // The data lives no longer than the test: kill -9 loses no data that the kernel has.
        let mut arguments = vec![
            format!("--name={name}"),
            "--unsafe-no-fsync".into(),
            "--log-level=panic".into(),
            "--enable-grpc-gateway=false".into(),
        ];
        if let Some(tls) = tls {
            let write = |name: &str, pem: &str| {
                let path = folder.path().join(name);
                std::fs::write(&path, pem).expect("a file");
                path.display().to_string()
            };
            arguments.push(format!("--cert-file={}", write("server.crt", &tls.server.cert_pem)));
            arguments.push(format!("--key-file={}", write("server.key", &tls.server.key_pem)));
            arguments.push(format!(
                "--trusted-ca-file={}",
                write("ca.crt", tls.authority.cert_pem())
            ));
            arguments.push("--client-cert-auth".into());
        }
        arguments.extend(extra.iter().map(|&argument| argument.to_owned()));
        Self {
            folder,
            arguments,
            scheme: if tls.is_some() { "https" } else { "http" },
            port: free_port(),
            process: None,
        }
    }

    fn join(&mut self, peer: &str, everybody: &str) {
        self.arguments.extend([
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster={everybody}"),
        ]);
    }

    /// URL of the member for clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// The folder with its data; copy or replace it only while it is not running.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Starts the member with its data. Does not wait until it answers.
    pub fn start(&mut self) {
        let program = std::env::var_os(BINARY_VARIABLE).unwrap_or_else(|| {
            panic!("{BINARY_VARIABLE} must name an etcd 3.6; `cargo xtask test --only interop` does")
        });
        let url = self.url();
        let process = Command::new(program)
            .args(&self.arguments)
            .arg(format!("--data-dir={}", self.data().display()))
            .args([
                format!("--listen-client-urls={url}"),
                format!("--advertise-client-urls={url}"),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        self.process = Some(process.expect("etcd must start"));
    }

    /// Moves the member to another port at its next start: at the old port, clients find no listener.
    pub fn move_away(&mut self) -> u16 {
        std::mem::replace(&mut self.port, free_port())
    }

    /// Moves the member to `port` at its next start.
    pub fn move_to(&mut self, port: u16) {
        self.port = port;
    }

    /// Kills the member with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("etcd must be ours to kill");
            process.wait().expect("etcd must end");
        }
    }
}

impl Drop for EtcdMember {
    fn drop(&mut self) {
        self.kill();
    }
}
