//! TLS between two nodes of a cluster: both present the client certificate of their node, and both require one.
//!
//! A node has no serving certificate that others could verify: kubelets get theirs by request, often never approved,
//! and a hub's own is self-signed. But every node holds a client certificate of the cluster's CA with the user
//! `system:node:<name>`. So the dialling side verifies the other's certificate as a *client* certificate, and checks
//! that it names exactly the wanted node. rustls' verifier of servers would reject its key usage, and expects DNS names
//! that it does not have.
//!
//! This weakens nothing. The chain, the validity and the proof of the private key are verified as usual, and only that
//! one node holds this name.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::client::Present;
use super::server::Clients;
use super::{PeerIdentity, PemIdentity, PemSource, ReloadingServerTls, ServerTls, TlsError, provider};
use crate::clock::Clock;

/// Configuration for TLS between nodes.
#[derive(Clone, Debug)]
pub struct PeerTls {
    /// The cluster's CA, to which the certificates of nodes chain.
    pub ca: PemSource,
    /// Client certificate and key of this node.
    pub identity: PemIdentity,
}

/// Accepts the client certificate of exactly the wanted node; the server name is the node's name.
#[derive(Debug)]
struct NodeVerifier(Arc<dyn ClientCertVerifier>);

// === impl PeerTls ===

impl PeerTls {
    /// The accepting side: TLS 1.3, HTTP/1.1, and only clients with a certificate of the CA. The server itself checks
    /// the identity, and whether it is a node.
    ///
    /// # Errors
    /// Names the file, and its fault.
    pub fn server(&self) -> Result<ReloadingServerTls, TlsError> {
        let source = ServerTls {
            identity: self.identity.clone(),
            client_ca: Some(self.ca.clone()),
        };
        ReloadingServerTls::with_clients(source, Clients::Required, Clock::system())
    }

    /// The dialling side, from the present content of the files. The server name of a connection is the name of the
    /// node; it is not sent.
    ///
    /// # Errors
    /// Names the file, and its fault.
    pub fn client(&self) -> Result<ClientConfig, TlsError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(self.ca.roots()?), provider())
            .build()
            .map_err(|error| self.ca.refused(Error::General(error.to_string())))?;
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| self.ca.refused(error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(NodeVerifier(verifier)))
            .with_client_cert_resolver(Arc::new(Present(self.identity.load()?)));
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

// === impl NodeVerifier ===

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.0.verify_client_cert(end_entity, intermediates, now)?;
        let identity = PeerIdentity::from_chain(std::slice::from_ref(end_entity));
        if identity.as_ref().and_then(PeerIdentity::node_name) == Some(&*server_name.to_str()) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::NotValidForName.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;
    use crate::clock::Clock;
    use crate::pki::CertificateAuthority;
    use crate::tls::{ClientTls, PemPair};

    fn node(ca: &CertificateAuthority, name: &str) -> PemPair {
        ca.issue_client(&format!("system:node:{name}"), &["system:nodes"])
            .unwrap()
    }

    fn peer(ca: &CertificateAuthority, pair: &PemPair) -> PeerTls {
        PeerTls {
            ca: PemSource::inline("CA", ca.cert_pem()),
            identity: PemIdentity::inline("pair", pair),
        }
    }

    /// Performs a handshake and sends one byte; returns the identity seen by the accepting side.
    async fn meet(server: &PeerTls, client: ClientConfig, wanted: &str) -> Result<String, String> {
        let (near, far) = duplex(64 * 1024);
        let config = server.server().unwrap().current();
        let accept = async {
            let mut stream = TlsAcceptor::from(config).accept(far).await.map_err(|e| e.to_string())?;
            stream.write_all(b"!").await.map_err(|e| e.to_string())?;
            stream.flush().await.map_err(|e| e.to_string())?;
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let identity = PeerIdentity::from_chain(chain).ok_or("nobody")?;
            Ok::<_, String>(identity.node_name().unwrap_or("no node").to_owned())
        };
        let name = ServerName::try_from(wanted.to_owned()).unwrap();
        let connect = async {
            let mut stream = TlsConnector::from(Arc::new(client))
                .connect(name, near)
                .await
                .map_err(|e| e.to_string())?;
            stream.read_u8().await.map_err(|e| e.to_string())
        };
        let (seen, heard) = tokio::join!(accept, connect);
        heard.and(seen)
    }

    #[tokio::test]
    async fn nodes_meet_with_their_client_certificates() {
        let ca = CertificateAuthority::generate("ca").unwrap();
        let (one, two) = (peer(&ca, &node(&ca, "n1")), peer(&ca, &node(&ca, "10.0.0.2")));
        assert_eq!(meet(&two, one.client().unwrap(), "10.0.0.2").await.unwrap(), "n1");
        assert_eq!(meet(&one, two.client().unwrap(), "n1").await.unwrap(), "10.0.0.2");
    }

    #[tokio::test]
    async fn only_the_wanted_node_is_taken_for_it() {
        let ca = CertificateAuthority::generate("ca").unwrap();
        let me = peer(&ca, &node(&ca, "n1"));
        let impostors = [
            node(&ca, "n3"),
            ca.issue_client("n2", &["system:nodes"]).unwrap(),
            ca.issue_client("system:node:n2", &["system:masters"]).unwrap(),
        ];
        for impostor in impostors {
            let error = meet(&peer(&ca, &impostor), me.client().unwrap(), "n2")
                .await
                .unwrap_err();
            assert!(error.contains("NotValidForName"), "{error}");
        }
        // A serving certificate proves no node, even with the node's name.
        let serving = ca.issue_server("system:node:n2", &["n2"]).unwrap();
        let error = meet(&peer(&ca, &serving), me.client().unwrap(), "n2")
            .await
            .unwrap_err();
        assert!(error.contains("invalid peer certificate"), "{error}");
    }

    #[tokio::test]
    async fn foreign_expired_and_missing_certificates_are_refused_on_both_sides() {
        let ca = CertificateAuthority::generate("ca").unwrap();
        let strange = CertificateAuthority::generate("ca").unwrap();
        let (clock, time) = Clock::fake();
        time.set_unix(Clock::system().unix() - Duration::from_secs(7 * 24 * 3600));
        let past = CertificateAuthority::load(ca.cert_pem(), &ca.pair().key_pem)
            .unwrap()
            .with_clock(clock)
            .with_leaf_validity(Duration::from_secs(24 * 3600));
        let good = peer(&ca, &node(&ca, "n1"));
        for bad in [node(&strange, "n2"), node(&past, "n2")] {
            let bad = peer(&ca, &bad);
            assert!(meet(&bad, good.client().unwrap(), "n2").await.is_err(), "as server");
            assert!(meet(&good, bad.client().unwrap(), "n1").await.is_err(), "as client");
        }
        let nobody = ClientTls {
            ca: PemSource::inline("CA", ca.cert_pem()),
            identity: None,
        };
        let mut config = good.client().unwrap();
        config.client_auth_cert_resolver = nobody.config().unwrap().client_auth_cert_resolver;
        assert!(meet(&good, config, "n1").await.is_err(), "no certificate at all");
    }
}
