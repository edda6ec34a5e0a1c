//! The relay's port refuses every client except members of the pool on the way to the cloud.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use yurt_runtime::http::client::tunnel::Tunnel;
use yurt_runtime::http::client::{HttpClient, Protocol};
use yurt_runtime::tls::{ClientTls, PemPair};
use yurt_test_support::{LOOPBACK, PATIENCE, TestDir, TestPki, eventually};

use super::client::Client;
use super::harness::TestHub;
use super::relay_pool::RelayPool;

/// One hub, n1, whose relay is attacked.
struct Attacked {
    pool: RelayPool,
    hub: TestHub,
    relay: SocketAddr,
}

// === impl Attacked ===

impl Attacked {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    async fn start_with(flags: &[&str]) -> Self {
        let pool = RelayPool::start().await;
        let url = pool.cloud.url();
        let (hub, relay) = pool.hub("n1", &url, flags).await;
        Self { pool, hub, relay }
    }

    fn target(&self) -> String {
        self.pool.cloud.addr().to_string()
    }

    /// As the node `name`.
    fn as_node(&self, name: &str) -> ClientConfig {
        let pki = self.pool.cloud.pki();
        pki.peer_tls(&pki.node(name)).client().unwrap()
    }

    async fn connect(&self, tls: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(self.relay).await?;
        let name = ServerName::try_from("n1").unwrap();
        TlsConnector::from(Arc::new(tls)).connect(name, tcp).await
    }

    /// Sends `words` over a connection with `tls` and reads until the relay closes, or, with a tunnel open, its head.
    async fn say(&self, tls: ClientConfig, words: &str) -> String {
        let mut connection = self.connect(tls).await.expect("a connection");
        connection
            .write_all(words.as_bytes())
            .await
            .expect("words must be taken");
        read_all(&mut connection).await
    }

    async fn refused(&self, reason: &str, count: u32) {
        let line = format!("node_yurthub_relay_tunnels_refused_total{{reason=\"{reason}\"}} {count}");
        eventually(&line, async || {
            let page = self.hub.admin().get("/metrics").await;
            String::from_utf8(page.expect(200).to_vec())
                .unwrap()
                .lines()
                .any(|found| found == line)
                .then_some(())
        })
        .await;
    }

    async fn until_tunnels(&self, count: u64) {
        self.hub
            .until("the tunnels must be counted", |state| {
                state["relay"]["tunnels"] == count
            })
            .await;
    }
}

/// Reads everything until the end of the connection, which must come.
async fn read_all(connection: &mut TlsStream<TcpStream>) -> String {
    let mut text = Vec::new();
    let reading = async {
        let mut piece = [0; 1024];
        while let Ok(count @ 1..) = connection.read(&mut piece).await {
            text.extend_from_slice(&piece[..count]);
        }
    };
    tokio::time::timeout(PATIENCE, reading)
        .await
        .expect("the relay must close");
    String::from_utf8_lossy(&text).into_owned()
}

fn connect_to(target: &str) -> String {
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")
}

#[tokio::test]
async fn member_is_who_the_client_ca_says() {
    let (clients, folder) = (TestPki::new(), TestDir::new());
    folder.write("clients.crt", clients.ca_pem());
    let flag = format!("--client-ca-file={}", folder.path().join("clients.crt").display());
    let attacked = Attacked::start_with(&[&flag]).await;
    let words = connect_to(&attacked.target());
    // The client still verifies the relay against the cluster's CA here.
    let pki = attacked.pool.cloud.pki();
    let of = |identity: &PemPair| pki.peer_tls(identity).client().unwrap();
    let mut tunnel = attacked.connect(of(&clients.node("n2"))).await.unwrap();
    tunnel.write_all(words.as_bytes()).await.unwrap();
    attacked.until_tunnels(1).await;
    drop(tunnel);
    attacked.until_tunnels(0).await;
    if let Ok(mut refused) = attacked.connect(of(&pki.node("n2"))).await {
        let _ = refused.write_all(words.as_bytes()).await;
        let answer = read_all(&mut refused).await;
        assert!(!answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

#[tokio::test]
async fn member_reaches_the_cloud_as_itself() {
    let attacked = Attacked::start().await;
    let pki = attacked.pool.cloud.pki();
    let tunnel = Tunnel {
        address: attacked.relay,
        peer: "n1".to_owned(),
        tls: Arc::new(attacked.as_node("n2")),
        target: attacked.target(),
    };
    let (url, timeout) = (attacked.pool.cloud.url().parse().unwrap(), Duration::from_secs(20));
    let own = pki.client_config(Some(&pki.node("n2")));
    let client = HttpClient::over(url, Some(own), Protocol::Http2, timeout, Some(tunnel.dial())).unwrap();
    let (status, ..) = client
        .request_json(http::Method::GET, "/livez", None, timeout)
        .await
        .unwrap();
    assert_eq!(status, 200);
    let seen = attacked.pool.cloud.seen("/livez");
    assert!(
        seen.iter().any(|seen| seen.user.as_deref() == Some("system:node:n2")),
        "encrypted from end to end: the cloud sees the node and not the relay's"
    );
    attacked.until_tunnels(1).await;
    drop(client);
    attacked.until_tunnels(0).await;
}

#[tokio::test]
async fn strangers_get_no_tunnel() {
    let attacked = Attacked::start().await;
    let pki = attacked.pool.cloud.pki();
    for (count, pair) in [
        pki.node("n9"),
        pki.client("admin", &["system:masters"]),
        pki.client("system:node:n2", &["system:masters"]),
        pki.client("n2", &["system:nodes"]),
    ]
    .iter()
    .enumerate()
    {
        let tls = pki.peer_tls(pair).client().unwrap();
        let said = attacked.say(tls, &connect_to(&attacked.target())).await;
        assert!(said.starts_with("HTTP/1.1 403 "), "{said}");
        attacked.refused("not_member", u32::try_from(count).unwrap() + 1).await;
    }
    // Without a valid certificate of the cluster the relay reads no request. A TLS 1.3 client learns of that with its
    // first read.
    let foreign = TestPki::new();
    let strange = foreign.peer_tls(&foreign.node("n2")).identity;
    let mut trusting = pki.peer_tls(&pki.node("n2"));
    trusting.identity = strange;
    let expired = pki.peer_tls(&pki.expired_node("n2"));
    let mut nobody = attacked.as_node("n2");
    let none = ClientTls {
        ca: trusting.ca.clone(),
        identity: None,
    };
    nobody.client_auth_cert_resolver = none.config().unwrap().client_auth_cert_resolver;
    for tls in [trusting.client().unwrap(), expired.client().unwrap(), nobody] {
        if let Ok(mut connection) = attacked.connect(tls).await {
            let _ = connection.write_all(connect_to(&attacked.target()).as_bytes()).await;
            assert_eq!(read_all(&mut connection).await, "");
        }
    }
    let mut plain = TcpStream::connect(attacked.relay).await.unwrap();
    let request = connect_to(&attacked.target());
    plain.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, plain.read_to_end(&mut answer)).await;
    assert!(!answer.starts_with(b"HTTP"), "plain text is not served");
    attacked.until_tunnels(0).await;
}

#[tokio::test]
async fn tunnels_lead_nowhere_but_to_the_cloud() {
    let attacked = Attacked::start().await;
    let trap = TcpListener::bind(LOOPBACK).await.unwrap();
    let trapped = trap.local_addr().unwrap();
    let port = attacked.pool.cloud.addr().port();
    let others = [
        trapped.to_string(),
        format!("localhost:{port}"),
        format!("127.0.0.2:{port}"),
        format!("[::1]:{port}"),
        "169.254.169.254:80".to_owned(),
        attacked.relay.to_string(),
        attacked.pool.coordinator.addr().to_string(),
        format!("x@127.0.0.1:{port}"),
    ];
    for target in &others {
        let said = attacked.say(attacked.as_node("n2"), &connect_to(target)).await;
        assert!(
            said.starts_with("HTTP/1.1 403 ") || said.starts_with("HTTP/1.1 400 "),
            "{target}: {said}"
        );
    }
    // The Host header does not change the target.
    let lie = format!("CONNECT {trapped} HTTP/1.1\r\nHost: {}\r\n\r\n", attacked.target());
    let said = attacked.say(attacked.as_node("n2"), &lie).await;
    assert!(said.starts_with("HTTP/1.1 403 "), "{said}");
    let none = tokio::time::timeout(Duration::from_millis(100), trap.accept()).await;
    assert!(none.is_err(), "the trap got a connection");
}

#[tokio::test]
async fn refused_requests_leave_no_way_through() {
    let attacked = Attacked::start().await;
    let target = attacked.target();
    let asked = |path: &str| attacked.pool.cloud.seen(path).len();
    let before = asked("/smuggled");
    let smuggled = format!("GET https://{target}/smuggled HTTP/1.1\r\nHost: {target}\r\n\r\n");
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n";
    for (words, status) in [
        (format!("{}{smuggled}", connect_to("10.0.0.1:443")), "403"),
        (smuggled.clone(), "405"),
        (
            format!("GET / HTTP/1.1\r\nHost: {target}\r\n{upgrade}{smuggled}"),
            "405",
        ),
        (
            format!(
                "POST / HTTP/1.1\r\nHost: {target}\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}"
            ),
            "40",
        ),
        (format!("CONNECT {target} HTTP/1.0\r\n\r\n{smuggled}"), "405"),
        (
            format!("CONNECT {target}/x HTTP/1.1\r\nHost: {target}\r\n\r\n{smuggled}"),
            "40",
        ),
    ] {
        let said = attacked.say(attacked.as_node("n2"), &words).await;
        assert!(
            said.starts_with(&format!("HTTP/1.1 {status}")) || said.starts_with(&format!("HTTP/1.0 {status}")),
            "{words:?}: {said}"
        );
        assert_eq!(
            said.matches("content-length: ").count(),
            1,
            "nothing after it is answered: {said}"
        );
    }
    // HTTP/2 by prior knowledge: many streams on one connection would bypass the count.
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let said = attacked.say(attacked.as_node("n2"), preface).await;
    assert!(!said.contains("200"), "{said}");
    assert_eq!(asked("/smuggled"), before);
    attacked.until_tunnels(0).await;
}

#[tokio::test]
async fn half_open_and_oversize_requests_are_cut_off() {
    let attacked = Attacked::start().await;
    let (silent, half, large) = tokio::join!(
        async { attacked.say(attacked.as_node("n2"), "").await },
        async { attacked.say(attacked.as_node("n2"), "CONNECT 127.0").await },
        async {
            let padding = "x".repeat(32 * 1024);
            let words = format!(
                "CONNECT {} HTTP/1.1\r\nHost: x\r\nPadding: {padding}\r\n\r\n",
                attacked.target()
            );
            let mut connection = attacked.connect(attacked.as_node("n2")).await.unwrap();
            let _ = connection.write_all(words.as_bytes()).await;
            read_all(&mut connection).await
        },
    );
    assert!(!silent.contains("200") && !half.contains("200"), "{silent:?} {half:?}");
    assert!(large.is_empty() || large.starts_with("HTTP/1.1 431 "), "{large}");
    // Connections without a handshake do not block others.
    let mut idle = Vec::new();
    for _ in 0..70 {
        idle.push(TcpStream::connect(attacked.relay).await.unwrap());
    }
    let mut connection = attacked
        .connect(attacked.as_node("n2"))
        .await
        .expect("a turn must come");
    connection
        .write_all(connect_to(&attacked.target()).as_bytes())
        .await
        .unwrap();
    let mut head = [0; 12];
    connection.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
}

#[tokio::test]
async fn each_peer_has_its_share_and_no_more() {
    let attacked = Attacked::start().await;
    let open = async |node: &str| {
        let mut connection = attacked.connect(attacked.as_node(node)).await.unwrap();
        let words = connect_to(&attacked.target());
        connection.write_all(words.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        connection.read_exact(&mut head).await.unwrap();
        (connection, String::from_utf8_lossy(&head[9..]).into_owned())
    };
    let (first, said) = open("n2").await;
    assert_eq!(said, "200");
    let (_second, said) = open("n2").await;
    assert_eq!(said, "200");
    assert_eq!(open("n2").await.1, "429");
    attacked.refused("too_many", 1).await;
    let (_other, said) = open("n3").await;
    assert_eq!(said, "200", "others are not kept out");
    attacked.until_tunnels(3).await;
    drop(first);
    attacked.until_tunnels(2).await;
    assert_eq!(open("n2").await.1, "200");
}

#[tokio::test]
async fn relay_that_is_cut_off_itself_says_so() {
    let mut attacked = Attacked::start().await;
    attacked.pool.cloud.go_away().await;
    attacked
        .hub
        .until("the loss must be noticed", |state| state["cloudReachable"] == false)
        .await;
    let said = attacked
        .say(attacked.as_node("n2"), &connect_to(&attacked.target()))
        .await;
    assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
    attacked.refused("cut_off", 1).await;
}

/// The proxy ports do not support CONNECT.
#[tokio::test]
async fn other_ports_open_no_tunnels() {
    let attacked = Attacked::start().await;
    let mut plain = attacked.hub.connect().await;
    let target = attacked.target();
    let words = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nUser-Agent: kubelet/v1\r\n\r\n");
    plain.write_all(words.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    plain.read_exact(&mut head).await.unwrap();
    assert_ne!(&head, b"HTTP/1.1 200");
    let tls = attacked.pool.cloud.pki().client_config(None);
    let url = format!("https://{}", attacked.relay);
    let http = Client::new(&url, Some(tls), "curl/8", None);
    let got = http.try_send(http::Request::new(yurt_runtime::http::empty())).await;
    assert!(got.is_none(), "and the relay's port serves nothing else");
}
