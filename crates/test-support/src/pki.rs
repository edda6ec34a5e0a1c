//! The certificates of a test cluster: one CA, servers on loopback, nodes and other clients.

use std::time::Duration;

use rustls::ClientConfig;
use yurt_runtime::Clock;
use yurt_runtime::pki::CertificateAuthority;
use yurt_runtime::tls::{ClientTls, PeerTls, PemIdentity, PemPair, PemSource, ReloadingServerTls, ServerTls};

use crate::TestDir;

/// A cluster CA and the certificates it issues. Every method that can fail panics, as fixtures do.
#[derive(Debug)]
pub struct TestPki {
    ca: CertificateAuthority,
}

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Names that every test server answers to.
const SERVER_NAMES: [&str; 3] = ["127.0.0.1", "::1", "localhost"];

// === impl TestPki ===

impl TestPki {
    /// A new CA, unlike every other.
    ///
    /// # Panics
    /// When the system has no randomness.
    #[must_use]
    pub fn new() -> Self {
        TestPki {
            ca: CertificateAuthority::generate("test-cluster-ca").expect("a test CA must be generated"),
        }
    }

    /// A serving certificate for 127.0.0.1, ::1 and localhost.
    ///
    /// # Panics
    /// When signing fails.
    #[must_use]
    pub fn server(&self) -> PemPair {
        self.ca
            .issue_server("test-server", &SERVER_NAMES)
            .expect("a test certificate must be issued")
    }

    /// A client certificate of this user and these groups.
    ///
    /// # Panics
    /// When signing fails.
    #[must_use]
    pub fn client(&self, user: &str, groups: &[&str]) -> PemPair {
        self.ca
            .issue_client(user, groups)
            .expect("a test certificate must be issued")
    }

    /// The client certificate of a node: `system:node:<name>` in `system:nodes`.
    #[must_use]
    pub fn node(&self, name: &str) -> PemPair {
        self.client(&format!("system:node:{name}"), &["system:nodes"])
    }

    /// Signs the client certificate of a request, valid for `validity` from an hour ago.
    ///
    /// # Panics
    /// When the request is not one.
    #[must_use]
    pub fn sign(&self, request_pem: &str, user: &str, groups: &[&str], validity: Duration) -> String {
        CertificateAuthority::load(self.ca.cert_pem(), &self.ca.pair().key_pem)
            .expect("the test CA must load")
            .with_leaf_validity(validity)
            .sign_client(request_pem, user, groups)
            .expect("a test certificate must be issued")
    }

    /// The certificate of a node, expired days ago.
    ///
    /// # Panics
    /// When signing fails.
    #[must_use]
    pub fn expired_node(&self, name: &str) -> PemPair {
        let (clock, time) = Clock::fake();
        time.set_unix(Clock::system().unix() - 7 * DAY);
        CertificateAuthority::load(self.ca.cert_pem(), &self.ca.pair().key_pem)
            .expect("the test CA must load")
            .with_clock(clock)
            .with_leaf_validity(DAY)
            .issue_client(&format!("system:node:{name}"), &["system:nodes"])
            .expect("a test certificate must be issued")
    }

    /// TLS configuration of a node with `identity` for connections to other nodes.
    #[must_use]
    pub fn peer_tls(&self, identity: &PemPair) -> PeerTls {
        PeerTls {
            ca: PemSource::inline("test CA", self.ca.cert_pem()),
            identity: PemIdentity::inline("test node", identity),
        }
    }

    /// TLS of a server with [`Self::server`] that trusts clients of this CA.
    ///
    /// # Panics
    /// When the certificates do not match, which cannot happen.
    #[must_use]
    pub fn server_tls(&self) -> ReloadingServerTls {
        let identity = PemIdentity::inline("test server", &self.server());
        let client_ca = Some(PemSource::inline("test CA", self.ca.cert_pem()));
        ReloadingServerTls::new(ServerTls { identity, client_ca }).expect("test certificates must make a configuration")
    }

    /// TLS of a client that trusts this CA and presents `identity`.
    ///
    /// # Panics
    /// When the certificates do not match, which happens only if `identity` is broken.
    #[must_use]
    pub fn client_config(&self, identity: Option<&PemPair>) -> ClientConfig {
        let identity = identity.map(|pair| PemIdentity::inline("test client", pair));
        let tls = ClientTls {
            ca: PemSource::inline("test CA", self.ca.cert_pem()),
            identity,
        };
        tls.config().expect("test certificates must make a configuration")
    }

    /// The authority's certificate.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        self.ca.cert_pem()
    }

    /// Writes a kubeconfig with everything embedded and returns its path.
    ///
    /// # Panics
    /// When the folder is not writable.
    pub fn write_kubeconfig(
        &self,
        folder: &TestDir,
        name: &str,
        server: &str,
        identity: &PemPair,
    ) -> std::path::PathBuf {
        let path = folder.path().join(name);
        yurt_runtime::kubeconfig::write_admin(&path, server, self.ca.cert_pem(), identity)
            .expect("a test folder must be writable");
        path
    }
}

impl Default for TestPki {
    fn default() -> Self {
        Self::new()
    }
}
