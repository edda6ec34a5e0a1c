//! Handshakes, the identity that the server then sees, and the errors of broken files.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use rustls_pki_types::CertificateDer;

use super::*;
use crate::clock::Clock;
use crate::http::BoxError;
use crate::http::client::{ClientError, HttpClient, Protocol};
use crate::http::server::{Limits, Server, Serving, handler};
use crate::http::text;
use crate::pki::CertificateAuthority;
use crate::tasks::TaskGroup;
use crate::tls::PemPair;

mod connections;
mod floods;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Answers with the user and groups that it sees.
async fn whoami(tls: ReloadingServerTls, tasks: &TaskGroup) -> Serving {
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), "--test")
        .await
        .unwrap()
        .with_tls(tls);
    let who = handler(|_, peer| async move {
        let nobody = if peer.is_refused { "refused" } else { "nobody" };
        let seen = peer.identity.map_or(nobody.to_owned(), |id| {
            format!("{}/{}", id.common_name, id.organizations.join("+"))
        });
        text(StatusCode::OK, seen)
    });
    server.serve(tasks, who)
}

fn server_tls(ca: &CertificateAuthority, client_ca: String) -> ServerTls {
    let pair = ca.issue_server("server", &["127.0.0.1", "localhost"]).unwrap();
    ServerTls {
        identity: PemIdentity::inline("server pair", &pair),
        client_ca: Some(PemSource::inline("client CA", client_ca)),
    }
}

fn client_config(ca_pem: &str, pair: Option<&PemPair>) -> rustls::ClientConfig {
    let identity = pair.map(|pair| PemIdentity::inline("client pair", pair));
    ClientTls {
        ca: PemSource::inline("CA", ca_pem),
        identity,
    }
    .config()
    .unwrap()
}

async fn ask(serving: &Serving, config: rustls::ClientConfig, protocol: Protocol) -> Result<String, ClientError> {
    let base = format!("https://{}", serving.local_addr()).parse().unwrap();
    let client = HttpClient::new(base, Some(config), protocol, TIMEOUT).unwrap();
    said(&client).await
}

async fn said(client: &HttpClient) -> Result<String, ClientError> {
    let (_, _, body) = client.request_json(Method::GET, "/", None, TIMEOUT).await?;
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn server_sees_the_subject_of_a_trusted_certificate_of_any_listed_ca() {
    let tasks = TaskGroup::new();
    let (ca, second) = (
        CertificateAuthority::generate("a").unwrap(),
        CertificateAuthority::generate("b").unwrap(),
    );
    let tls = ReloadingServerTls::new(server_tls(&ca, format!("{}{}", ca.cert_pem(), second.cert_pem()))).unwrap();
    let serving = whoami(tls, &tasks).await;
    for issuer in [&ca, &second] {
        let pair = issuer
            .issue_client("system:node:n1", &["system:nodes", "pool"])
            .unwrap();
        for protocol in [Protocol::Http1, Protocol::Http2, Protocol::Auto] {
            let seen = ask(&serving, client_config(ca.cert_pem(), Some(&pair)), protocol)
                .await
                .unwrap();
            assert_eq!(seen, "system:node:n1/system:nodes+pool");
        }
    }
    assert_eq!(
        ask(&serving, client_config(ca.cert_pem(), None), Protocol::Auto)
            .await
            .unwrap(),
        "nobody"
    );
}

/// Frames of many streams share records and turns. None is lost, cut or out of order, and none waits for another
/// client.
#[tokio::test]
async fn many_streams_of_one_connection_get_all_their_pieces() {
    const STREAMS: usize = 60;
    const LENS: [usize; 7] = [1, 900, 1023, 1024, 1033, 20_000, 3];
    let piece = |turn: usize| Bytes::from(vec![turn as u8 + 1; LENS[turn]]);
    let tasks = TaskGroup::new();
    let ca = CertificateAuthority::generate("a").unwrap();
    let (said, turns) = tokio::sync::watch::channel(0);
    let watch = handler(move |_, _| {
        let pieces = stream::unfold((turns.clone(), 0), move |(mut turns, seen)| async move {
            turns.wait_for(|turn| *turn > seen).await.ok()?;
            Some((Ok::<_, BoxError>(piece(seen)), (turns, seen + 1)))
        });
        std::future::ready(http::Response::new(crate::http::stream(pieces)))
    });
    let serving = Server::bind("127.0.0.1:0".parse().unwrap(), "--test")
        .await
        .unwrap()
        .with_tls(ReloadingServerTls::new(server_tls(&ca, ca.cert_pem().to_owned())).unwrap())
        .serve(&tasks, watch);
    let base = format!("https://{}", serving.local_addr()).parse().unwrap();
    let config = client_config(ca.cert_pem(), None);
    let client = HttpClient::new(base, Some(config), Protocol::Http2, TIMEOUT).unwrap();
    let mut bodies = Vec::new();
    for _ in 0..STREAMS {
        let request = http::Request::get("/").body(crate::http::empty()).unwrap();
        bodies.push(client.send(request).await.unwrap().into_body());
    }
    for (turn, len) in LENS.into_iter().enumerate() {
        said.send_replace(turn + 1);
        for body in &mut bodies {
            let mut left = len;
            while left > 0 {
                let frame = tokio::time::timeout(TIMEOUT, body.frame())
                    .await
                    .unwrap()
                    .unwrap()
                    .unwrap();
                let data = frame.into_data().unwrap();
                assert!(data.iter().all(|byte| usize::from(*byte) == turn + 1), "turn {turn}");
                left = left.checked_sub(data.len()).unwrap();
            }
        }
    }
}

/// A client with such a certificate may have another credential, which the handshake cannot see.
///
/// Conformance: 6.01
#[tokio::test]
async fn certificate_that_is_not_good_is_an_answer_and_no_broken_connection() {
    let tasks = TaskGroup::new();
    let [ca, strange] = ["a", "a"].map(|name| CertificateAuthority::generate(name).unwrap());
    let tls = ReloadingServerTls::new(server_tls(&ca, ca.cert_pem().to_owned())).unwrap();
    let serving = whoami(tls, &tasks).await;
    let (clock, time) = Clock::fake();
    time.set_unix(Clock::system().unix() - Duration::from_secs(7 * 24 * 3600));
    let past = CertificateAuthority::load(ca.cert_pem(), &ca.pair().key_pem)
        .unwrap()
        .with_clock(clock)
        .with_leaf_validity(Duration::from_secs(24 * 3600));
    for (why, pair) in [
        (
            "of a strange authority",
            strange.issue_client("admin", &["system:masters"]),
        ),
        ("past its time", past.issue_client("admin", &["system:masters"])),
        ("a server's", ca.issue_server("admin", &["admin"])),
        ("the authority's own", Ok(strange.pair().clone())),
    ] {
        for protocol in [Protocol::Http1, Protocol::Http2] {
            let config = client_config(ca.cert_pem(), Some(pair.as_ref().unwrap()));
            let seen = ask(&serving, config, protocol).await;
            assert_eq!(seen.unwrap(), "refused", "{why}, {protocol:?}");
        }
    }
}

/// A connection lives for days, and its identity must not outlive the certificate.
#[tokio::test]
async fn identity_ends_with_the_certificate_and_with_its_authority() {
    const HOUR: Duration = Duration::from_secs(3600);
    let tasks = TaskGroup::new();
    let [ca, other] = ["a", "b"].map(|name| CertificateAuthority::generate(name).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let trusted = folder.path().join("clients.crt");
    std::fs::write(&trusted, ca.cert_pem()).unwrap();
    let source = ServerTls {
        client_ca: Some(PemSource::File(trusted.clone())),
        ..server_tls(&ca, String::new())
    };
    let (clock, time) = Clock::fake();
    time.set_unix(Clock::system().unix());
    let tls = ReloadingServerTls::with_clients(source, server::Clients::Any, clock).unwrap();
    let serving = whoami(tls.clone(), &tasks).await;
    let issuer = CertificateAuthority::load(ca.cert_pem(), &ca.pair().key_pem)
        .unwrap()
        .with_leaf_validity(HOUR);
    let pair = issuer.issue_client("jane", &["dev"]).unwrap();
    let base = format!("https://{}", serving.local_addr()).parse().unwrap();
    let config = client_config(ca.cert_pem(), Some(&pair));
    let client = HttpClient::new(base, Some(config), Protocol::Http2, TIMEOUT).unwrap();
    let seen = async || said(&client).await.unwrap();
    assert_eq!(seen().await, "jane/dev");
    let trust = |ca: &CertificateAuthority| {
        std::fs::write(&trusted, ca.cert_pem()).unwrap();
        assert!(tls.poll_files().unwrap());
    };
    trust(&other);
    assert_eq!(seen().await, "refused", "its authority is gone");
    trust(&ca);
    assert_eq!(seen().await, "jane/dev", "and is back");
    time.advance(HOUR - Duration::from_secs(60));
    assert_eq!(seen().await, "jane/dev");
    time.advance(Duration::from_secs(120));
    assert_eq!(seen().await, "refused", "its time is over");
    time.set_unix(Clock::system().unix());
    assert_eq!(seen().await, "jane/dev", "the clock was wrong");
    assert!(
        client.connections() >= 3,
        "each end closes the connection: {}",
        client.connections()
    );
}

/// A client configuration with any certificate, whether its key matches or not.
fn presenting(
    ca: &CertificateAuthority,
    chain: Vec<CertificateDer<'static>>,
    key: &PemPair,
    version: &'static rustls::SupportedProtocolVersion,
) -> rustls::ClientConfig {
    let key = PemIdentity::inline("key", key).load().unwrap().key.clone();
    let certified = rustls::sign::CertifiedKey::new(chain, key);
    rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(PemSource::inline("CA", ca.cert_pem()).roots().unwrap())
        .with_client_cert_resolver(Arc::new(client::Present(Arc::new(certified))))
}

#[tokio::test]
async fn handshake_needs_a_certificate_that_can_be_read_and_its_key() {
    let tasks = TaskGroup::new();
    let ca = CertificateAuthority::generate("a").unwrap();
    let tls = ReloadingServerTls::new(server_tls(&ca, ca.cert_pem().to_owned())).unwrap();
    let serving = whoami(tls, &tasks).await;
    let [jane, john] = ["jane", "john"].map(|name| ca.issue_client(name, &["dev"]).unwrap());
    let chain = PemIdentity::inline("jane", &jane).load().unwrap().cert.clone();
    let leaf = chain[0].clone();
    let many = |count: usize| vec![leaf.clone(); count];
    let garbage = |len: usize| CertificateDer::from(vec![0x30; len]);
    for (why, chain, key, is_taken) in [
        ("as it is", many(1), &jane, true),
        ("another client's key", many(1), &john, false),
        ("as long as a chain may be", many(9), &jane, true),
        ("longer", many(10), &jane, false),
        ("nothing that can be read", vec![garbage(100)], &jane, false),
        ("large", vec![garbage(60_000)], &jane, false),
        (
            "with something that cannot be read",
            vec![leaf.clone(), garbage(20_000)],
            &jane,
            true,
        ),
    ] {
        for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
            let config = presenting(&ca, chain.clone(), key, version);
            let seen = ask(&serving, config, Protocol::Http1).await;
            assert_eq!(seen.is_ok(), is_taken, "{why}, {version:?}: {seen:?}");
        }
    }
    let nobody = ask(&serving, client_config(ca.cert_pem(), None), Protocol::Http1).await;
    assert_eq!(nobody.unwrap(), "nobody", "the server goes on");
}

#[tokio::test]
async fn server_of_a_strange_ca_is_refused() {
    let tasks = TaskGroup::new();
    let [ca, strange] = ["a", "a"].map(|name| CertificateAuthority::generate(name).unwrap());
    let tls = ReloadingServerTls::new(server_tls(&ca, ca.cert_pem().to_owned())).unwrap();
    let serving = whoami(tls, &tasks).await;
    let error = ask(&serving, client_config(strange.cert_pem(), None), Protocol::Http1)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ClientError::Tls { handshake: true, .. }) && error.never_sent(),
        "{error:?}"
    );
    assert!(error.to_string().contains(&serving.local_addr().to_string()), "{error}");
    // Those that wait for another request's connection get the same cause.
    let base = format!("https://{}", serving.local_addr()).parse().unwrap();
    let tls = Some(client_config(strange.cert_pem(), None));
    let client = HttpClient::new(base, tls, Protocol::Http2, TIMEOUT).unwrap();
    let request = || client.request_json(Method::GET, "/", None, TIMEOUT);
    for answer in futures_util::future::join_all([request(), request(), request()]).await {
        let error = answer.unwrap_err();
        assert!(error.to_string().contains("invalid peer certificate"), "{error}");
    }
}

#[tokio::test]
async fn handshake_that_breaks_says_nothing_of_certificates() {
    let tasks = TaskGroup::new();
    let ca = CertificateAuthority::generate("a").unwrap();
    let config = || client_config(ca.cert_pem(), None);
    let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base: http::Uri = format!("https://{}", plain.local_addr().unwrap()).parse().unwrap();
    tasks.spawn("peer", async move {
        for answer in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0x16, 3, 3, 0, 1, 9]] {
            let (mut stream, _) = plain.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            stream.write_all(answer).await.unwrap();
        }
    });
    for ended in ["closed", "answered in plain", "damaged"] {
        let client = HttpClient::new(base.clone(), Some(config()), Protocol::Http1, TIMEOUT).unwrap();
        let error = said(&client).await.unwrap_err();
        assert!(
            matches!(&error, ClientError::Connect { .. }) && error.never_sent(),
            "{ended}: {error:?}"
        );
    }
}

#[tokio::test]
async fn changed_files_are_taken_over_and_broken_ones_are_not() {
    let tasks = TaskGroup::new();
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    let write = |pair: &PemPair| {
        std::fs::write(&cert, &pair.cert_pem).unwrap();
        std::fs::write(&key, &pair.key_pem).unwrap();
    };
    let (old, new) = (
        CertificateAuthority::generate("old").unwrap(),
        CertificateAuthority::generate("new").unwrap(),
    );
    write(&old.issue_server("s", &["127.0.0.1"]).unwrap());
    let tls = ReloadingServerTls::new(ServerTls {
        identity: PemIdentity::files(&cert, &key),
        client_ca: None,
    })
    .unwrap();
    let serving = whoami(tls.clone(), &tasks).await;
    let trusts = async |ca: &CertificateAuthority| {
        ask(&serving, client_config(ca.cert_pem(), None), Protocol::Http2)
            .await
            .is_ok()
    };
    assert!(trusts(&old).await && !tls.poll_files().unwrap());

    std::fs::write(&cert, "half a file").unwrap();
    let error = tls.poll_files().unwrap_err().to_string();
    assert!(error.contains("tls.crt: no CERTIFICATE block"), "{error}");
    assert!(trusts(&old).await, "the previous certificate stays");

    write(&new.issue_server("s", &["127.0.0.1"]).unwrap());
    assert!(tls.poll_files().unwrap());
    assert!(trusts(&new).await && !trusts(&old).await);
}

#[tokio::test]
async fn rotated_client_certificate_is_presented_from_the_next_request_on() {
    let tasks = TaskGroup::new();
    let ca = CertificateAuthority::generate("ca").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let current = folder.path().join("kubelet-client-current.pem");
    let write = |name: &str| {
        let pair = ca.issue_client(name, &["system:nodes"]).unwrap();
        std::fs::write(&current, pair.cert_pem + &pair.key_pem).unwrap();
    };
    write("before");
    let source = ClientTls {
        ca: PemSource::inline("CA", ca.cert_pem()),
        identity: Some(PemIdentity::one_file(&current)),
    };
    let (reload, config) = ReloadingClientTls::new(source).unwrap();
    let serving = whoami(
        ReloadingServerTls::new(server_tls(&ca, ca.cert_pem().to_owned())).unwrap(),
        &tasks,
    )
    .await;
    let base = format!("https://{}", serving.local_addr()).parse().unwrap();
    let client = HttpClient::new(base, Some(config), Protocol::Http2, TIMEOUT).unwrap();
    assert_eq!(client.connections(), 0);
    for _ in 0..2 {
        assert_eq!(said(&client).await.unwrap(), "before/system:nodes");
    }
    assert_eq!(client.connections(), 1, "it is used again");
    assert!(reload.poll_files().unwrap().is_none());
    write("after");
    client.set_tls(reload.poll_files().unwrap().unwrap());
    assert_eq!(said(&client).await.unwrap(), "after/system:nodes");
    assert_eq!(client.connections(), 2);
}

#[tokio::test]
async fn running_response_survives_a_new_client_certificate() {
    let (tasks, ca) = (TaskGroup::new(), CertificateAuthority::generate("ca").unwrap());
    let tls = ReloadingServerTls::new(server_tls(&ca, ca.cert_pem().to_owned())).unwrap();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let (send, receiver) = mpsc::channel::<Bytes>(1);
        let receiver = parking_lot::Mutex::new(Some(receiver));
        let watch = handler(move |_, _| {
            let pieces = stream::unfold(receiver.lock().take().unwrap(), |mut receiver| async {
                receiver.recv().await.map(|piece| (Ok::<_, BoxError>(piece), receiver))
            });
            std::future::ready(http::Response::new(crate::http::stream(pieces)))
        });
        let server = Server::bind("127.0.0.1:0".parse().unwrap(), "--test")
            .await
            .unwrap()
            .with_tls(tls.clone());
        let serving = server.serve(&tasks, watch);
        let base = format!("https://{}", serving.local_addr()).parse().unwrap();
        let config = client_config(ca.cert_pem(), None);
        let client = HttpClient::new(base, Some(config.clone()), protocol, TIMEOUT).unwrap();
        let response = client
            .send(http::Request::get("/").body(crate::http::empty()).unwrap())
            .await
            .unwrap();
        client.set_tls(config);
        drop(client);
        send.send(Bytes::from("late")).await.unwrap();
        drop(send);
        assert_eq!(
            response.into_body().collect().await.unwrap().to_bytes(),
            "late",
            "{protocol:?}"
        );
    }
}

#[tokio::test]
async fn client_that_never_shakes_hands_is_cut_off() {
    let (tasks, ca) = (TaskGroup::new(), CertificateAuthority::generate("ca").unwrap());
    let tls = ReloadingServerTls::new(server_tls(&ca, ca.cert_pem().to_owned())).unwrap();
    let limits = Limits {
        max_strangers: 1,
        handshake_timeout: Duration::from_millis(50),
        ..Limits::default()
    };
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), "--test").await.unwrap();
    let serving = server
        .with_tls(tls)
        .with_limits(limits)
        .serve(&tasks, handler(|_, _| async { text(StatusCode::OK, "") }));
    let mut silent = tokio::net::TcpStream::connect(serving.local_addr()).await.unwrap();
    // Ends because the server closes.
    assert_eq!(silent.read(&mut [0; 1]).await.unwrap_or(0), 0);
    ask(&serving, client_config(ca.cert_pem(), None), Protocol::Http1)
        .await
        .unwrap();
}

#[test]
fn errors_name_the_file_and_the_fault() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let ca = CertificateAuthority::generate("ca").unwrap();
    let (one, two) = (
        ca.issue_client("one", &["o"]).unwrap(),
        ca.issue_client("two", &["o"]).unwrap(),
    );
    std::fs::write(at("one.crt"), &one.cert_pem).unwrap();
    std::fs::write(at("two.key"), &two.key_pem).unwrap();
    let why = |cert: &Path, key: &Path| PemIdentity::files(cert, key).load().unwrap_err().to_string();
    let missing = why(&at("none.crt"), &at("two.key"));
    assert!(
        missing.starts_with("cannot read ") && missing.contains("none.crt: No such file"),
        "{missing}"
    );
    assert!(why(&at("two.key"), &at("two.key")).ends_with("two.key: no CERTIFICATE block in it"));
    assert!(why(&at("one.crt"), &at("one.crt")).ends_with("one.crt: no PRIVATE KEY block in it"));
    let mismatch = why(&at("one.crt"), &at("two.key"));
    assert!(
        mismatch.contains("two.key does not belong to the certificate in"),
        "{mismatch}"
    );
}
