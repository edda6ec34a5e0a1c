//! Connections whose peer ends them.

use http::Method;
use rustix::net::sockopt;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

use super::*;
use crate::http::client::{ClientError, HttpClient, Protocol};
use crate::pki::CertificateAuthority;
use crate::tls::{ClientTls, PemIdentity, PemSource, install_crypto_provider};

/// TLS of a server that accepts only client certificates of its own CA, and of a client with one of another CA.
fn mismatched() -> (ServerConfig, ClientConfig) {
    install_crypto_provider();
    let [ours, other] = ["ours", "other"].map(|name| CertificateAuthority::generate(name).unwrap());
    let ca = PemSource::inline("ca", ours.cert_pem());
    let serving = ours.issue_server("cloud", &["127.0.0.1"]).unwrap();
    let chain = PemSource::inline("serving", serving.cert_pem.as_str())
        .certificates()
        .unwrap();
    let key = PrivateKeyDer::from_pem_slice(serving.key_pem.as_bytes()).unwrap();
    let verifier = WebPkiClientVerifier::builder(Arc::new(ca.roots().unwrap()))
        .build()
        .unwrap();
    let server = ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .unwrap();
    let foreign = PemIdentity::inline("foreign", &other.issue_client("node", &["system:nodes"]).unwrap());
    let client = ClientTls {
        ca,
        identity: Some(foreign),
    };
    (server, client.config().unwrap())
}

/// Accepts one connection, and returns once its TLS has failed and it is closed.
async fn reject(listener: TcpListener, server: ServerConfig) {
    let (stream, _) = listener.accept().await.unwrap();
    TlsAcceptor::from(Arc::new(server))
        .accept(stream)
        .await
        .map(drop)
        .unwrap_err();
}

/// The rejection may arrive while the request waits for its connection, while it is written, or later. Each has a way
/// of its own through the HTTP library, so the request is repeated until chance has shown them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_certificate_is_the_error_of_the_request_whenever_the_rejection_arrives() {
    let (server, client) = mismatched();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        for _ in 0..300 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let base = format!("https://{}/", listener.local_addr().unwrap()).parse().unwrap();
            let client = HttpClient::new(base, Some(client.clone()), protocol, Duration::from_secs(5)).unwrap();
            let asking = client.request_json(Method::GET, "/livez", None, Duration::from_secs(5));
            let ((), answer) = tokio::join!(reject(listener, server.clone()), asking);
            let error = answer.unwrap_err();
            assert!(matches!(error, ClientError::Tls { handshake: false, .. }), "{error:?}");
            assert!(error.rejects_client());
            assert!(error.to_string().contains("UnknownCA"), "{error}");
        }
    }
}

#[tokio::test]
async fn certificate_rejected_before_the_first_write_is_the_error_of_that_write() {
    let (server, client) = mismatched();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri: Uri = format!("https://{}/", listener.local_addr().unwrap()).parse().unwrap();
    let mut connector = Connector::new(
        Some(Arc::new(client)),
        Protocol::Http1,
        Duration::from_secs(5),
        None,
        Arc::default(),
        None,
    );
    let rejecting = reject(listener, server);
    let ((), stream) = tokio::join!(rejecting, connector.call(uri));
    let mut stream = stream.unwrap().into_inner();
    // The first write may succeed: its answer is the reset that fails the next one.
    let error = loop {
        if let Err(error) = stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await {
            break error;
        }
    };
    let error = ClientError::of_request("cloud".to_owned(), &error);
    assert!(matches!(error, ClientError::Tls { handshake: false, .. }), "{error}");
    assert!(error.to_string().contains("UnknownCA"), "{error}");
}

#[tokio::test]
async fn only_a_connection_that_carries_no_upgrades_ends_while_its_peer_reads_nothing() {
    for (protocol, millis) in [(Protocol::Http1, 0), (Protocol::Auto, 0), (Protocol::Http2, 15_000)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri: Uri = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let mut connector = Connector::new(None, protocol, Duration::from_secs(5), None, Arc::default(), None);
        let stream = connector.call(uri).await.unwrap().into_inner();
        let Either::Left(Noting {
            inner: Either::Left(tcp),
            ..
        }) = &stream.io
        else {
            panic!("plain TCP");
        };
        assert_eq!(sockopt::tcp_user_timeout(tcp).unwrap(), millis, "{protocol:?}");
        assert!(sockopt::socket_keepalive(tcp).unwrap(), "{protocol:?}");
    }
}
