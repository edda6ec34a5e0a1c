//! Floods of HTTP/2 frames: each ends its connection, without effect on other clients.

use http::Version;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::http::Body;
use crate::http::server::{ConnectionMetrics, Peer};
use crate::metrics::Metrics;

/// More than any client may send in a burst, and far fewer than it may send in an hour.
const FRAMES: u32 = 40_000;

/// Types of frames (RFC 9113, 11.2).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
/// Code of a GOAWAY (RFC 9113, 7).
const ENHANCE_YOUR_CALM: u8 = 11;

/// `:method POST`, `:scheme https`, `:path /` of HPACK's static table, and an authority.
const POST: &[u8] = &[0x83, 0x87, 0x84, 0x41, 1, b'a'];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Answers GET, and waits with all other requests.
async fn get_only(request: http::Request<Incoming>, _: Peer) -> http::Response<Body> {
    if request.method() != Method::GET {
        std::future::pending::<()>().await;
    }
    text(StatusCode::OK, "here")
}

/// A server that does not serve yet.
async fn patient(ca: &CertificateAuthority) -> Server {
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), "--test").await.unwrap();
    server.with_tls(ReloadingServerTls::new(server_tls(ca, ca.cert_pem().to_owned())).unwrap())
}

/// Connects from 127.0.0.`host`; `alpn` are the protocols that the client announces.
async fn connect(
    serving: &Serving,
    ca: &CertificateAuthority,
    host: u8,
    alpn: &[&[u8]],
) -> Option<TlsStream<TcpStream>> {
    let pair = ca.issue_client("jane", &["dev"]).unwrap();
    let mut config = client_config(ca.cert_pem(), Some(&pair));
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let stream = connections::silent(serving.local_addr(), host).await;
    let connector = TlsConnector::from(std::sync::Arc::new(config));
    connector.connect("127.0.0.1".try_into().unwrap(), stream).await.ok()
}

/// Sends `first`, then [`FRAMES`] frames made by `next`, and keeps the connection open. Returns what it received once
/// the server ends it; `None` if the server does not.
async fn until_cut(
    stream: impl AsyncRead + AsyncWrite,
    first: &[u8],
    next: impl Fn(u32) -> Vec<u8>,
) -> Option<Vec<u8>> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sending = async {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        writer.write_all(preface).await?;
        writer.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
        writer.write_all(first).await?;
        for batch in 0..FRAMES / 100 {
            let frames: Vec<u8> = (0..100).flat_map(|turn| next(batch * 100 + turn)).collect();
            writer.write_all(&frames).await?;
        }
        writer.flush().await
    };
    let mut received = Vec::new();
    let reading = async {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = reader.read(&mut piece).await {
            received.extend(&piece[..count]);
        }
    };
    let both = async {
        // A failed write means that the connection ended, which the reader detects, too.
        let sent = async {
            let _: std::io::Result<()> = sending.await;
        };
        tokio::join!(sent, reading);
    };
    let ended = tokio::time::timeout(TIMEOUT, both).await;
    ended.is_ok().then_some(received)
}

/// The code of the first GOAWAY among frames.
fn goaway(mut frames: &[u8]) -> Option<u8> {
    while let [_, high, low, kind, ..] = *frames {
        let (whole, rest) = frames.split_at_checked(9 + usize::from(high) * 256 + usize::from(low))?;
        if kind == GOAWAY {
            return whole.get(9 + 7).copied();
        }
        frames = rest;
    }
    None
}

/// A flood: its first frame, and those that follow.
type Flood = (&'static str, Vec<u8>, fn(u32) -> Vec<u8>);

fn floods() -> Vec<Flood> {
    let post = frame(HEADERS, END_HEADERS, 1, POST);
    vec![
        ("rapid reset", Vec::new(), |turn| {
            let stream = 2 * turn + 1;
            [
                frame(HEADERS, END_HEADERS, stream, POST),
                frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]),
            ]
            .concat()
        }),
        ("CONTINUATION", frame(HEADERS, 0, 1, POST), |_| {
            let header = [&[0x00, 4][..], b"name", &[100], &[b'x'; 100]].concat();
            frame(CONTINUATION, 0, 1, &header)
        }),
        ("empty DATA", post, |_| frame(DATA, 0, 1, &[])),
        ("PING", Vec::new(), |_| frame(PING, 0, 0, &[7; 8])),
        ("SETTINGS", Vec::new(), |_| frame(SETTINGS, 0, 0, &[])),
        ("WINDOW_UPDATE", Vec::new(), |_| {
            frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])
        }),
    ]
}

/// Also where the client announced another protocol than the one it speaks.
#[tokio::test]
async fn floods_of_frames_end_their_connection_and_no_other() {
    let (tasks, ca) = (TaskGroup::new(), CertificateAuthority::generate("a").unwrap());
    let serving = patient(&ca).await.serve(&tasks, handler(get_only));
    let pair = ca.issue_client("system:node:n1", &["system:nodes"]).unwrap();
    let base = format!("https://{}", serving.local_addr()).parse().unwrap();
    let config = client_config(ca.cert_pem(), Some(&pair));
    let healthy = HttpClient::new(base, Some(config), Protocol::Http2, TIMEOUT).unwrap();
    assert_eq!(said(&healthy).await.unwrap(), "here");
    for (name, first, next) in floods() {
        for alpn in [&[&b"h2"[..]][..], &[b"http/1.1"], &[]] {
            let stream = connect(&serving, &ca, 1, alpn).await.unwrap();
            let received = until_cut(stream, &first, next).await;
            let received = received.unwrap_or_else(|| panic!("{name}, {alpn:?}: must be cut"));
            assert_eq!(goaway(&received), Some(ENHANCE_YOUR_CALM), "{name}, {alpn:?}");
        }
    }
    assert_eq!(said(&healthy).await.unwrap(), "here");
    assert_eq!(healthy.connections(), 1);
}

#[tokio::test]
async fn floods_over_plain_http2_are_cut_as_well() {
    let tasks = TaskGroup::new();
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), "--test").await.unwrap();
    let serving = server.serve(&tasks, handler(get_only));
    for (name, first, next) in floods() {
        let stream = TcpStream::connect(serving.local_addr()).await.unwrap();
        let received = until_cut(stream, &first, next).await;
        let received = received.unwrap_or_else(|| panic!("{name}: must be cut"));
        assert_eq!(goaway(&received), Some(ENHANCE_YOUR_CALM), "{name}");
    }
}

/// A server whose addresses are all of other machines, and its metrics. A connection that is held stays so.
async fn slowing(tasks: &TaskGroup, ca: &CertificateAuthority) -> (Serving, Metrics) {
    let metrics = Metrics::new();
    let limits = Limits {
        max_hold: Duration::from_secs(24 * 3600),
        ..Limits::default()
    };
    let server = patient(ca).await.with_limits(limits).with_local(|_, _| false);
    let server = server.with_metrics(ConnectionMetrics::new("test", &metrics).unwrap());
    (server.serve(tasks, handler(get_only)), metrics)
}

/// Waits until a metric has a value.
async fn until_metric(metrics: &Metrics, line: &str) {
    let reached = async {
        while !metrics.render().contains(line) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let reached = tokio::time::timeout(TIMEOUT, reached).await;
    reached.unwrap_or_else(|_| panic!("{line}:\n{}", metrics.render()));
}

/// Connections of 127.0.0.3 take turns, and another address needs none. `begun` is the number of handshakes so far.
async fn is_slowed(serving: &Serving, metrics: &Metrics, ca: &CertificateAuthority, begun: u32) {
    let attempts = futures_util::future::join_all((0..5).map(|_| connect(serving, ca, 3, &[b"h2"])));
    let held = async {
        until_metric(metrics, "test_connections_held 4\n").await;
        assert!(connect(serving, ca, 2, &[b"h2"]).await.is_some());
        until_metric(metrics, &format!("test_tls_handshakes_total {}\n", begun + 2)).await;
    };
    tokio::select! {
        _ = attempts => panic!("all five handshakes began"),
        () = held => {}
    }
}

#[tokio::test]
async fn address_of_a_flood_gets_handshakes_in_turn_and_others_at_once() {
    let (tasks, ca) = (TaskGroup::new(), CertificateAuthority::generate("a").unwrap());
    for (name, first, next) in floods() {
        let (serving, metrics) = slowing(&tasks, &ca).await;
        let stream = connect(&serving, &ca, 3, &[b"h2"]).await.unwrap();
        until_cut(stream, &first, next)
            .await
            .unwrap_or_else(|| panic!("{name}"));
        is_slowed(&serving, &metrics, &ca, 1).await;
        assert!(
            metrics.render().contains("test_connections_flooding_total 1\n"),
            "{name}"
        );
    }
}

#[tokio::test]
async fn address_of_abandoned_connections_gets_handshakes_in_turn_and_others_at_once() {
    let (tasks, ca) = (TaskGroup::new(), CertificateAuthority::generate("a").unwrap());
    let (serving, metrics) = slowing(&tasks, &ca).await;
    for _ in 0..8 {
        let mut stream = connections::silent(serving.local_addr(), 3).await;
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        while let Ok(1..) = stream.read(&mut [0; 100]).await {}
    }
    is_slowed(&serving, &metrics, &ca, 8).await;
    let (serving, metrics) = slowing(&tasks, &ca).await;
    for _ in 0..8 {
        let mut stream = connect(&serving, &ca, 3, &[b"h2"]).await.unwrap();
        stream.shutdown().await.unwrap();
        while let Ok(1..) = stream.read(&mut [0; 100]).await {}
    }
    is_slowed(&serving, &metrics, &ca, 8).await;
}

/// A client may use all of its streams and reset them in one burst.
#[tokio::test]
async fn giving_up_all_streams_is_no_flood() {
    const POSTS: u32 = crate::http::server::MAX_STREAMS - 1;
    let (tasks, ca) = (TaskGroup::new(), CertificateAuthority::generate("a").unwrap());
    let arrived = tokio::sync::watch::Sender::new(0);
    let posts = arrived.clone();
    let answer = handler(move |request, peer| {
        if request.method() == Method::POST {
            posts.send_modify(|count| *count += 1);
        }
        get_only(request, peer)
    });
    let serving = patient(&ca).await.serve(&tasks, answer);
    let base = format!("https://{}", serving.local_addr()).parse().unwrap();
    let pair = ca.issue_client("jane", &["dev"]).unwrap();
    let config = client_config(ca.cert_pem(), Some(&pair));
    let client = HttpClient::new(base, Some(config), Protocol::Http2, TIMEOUT).unwrap();
    for turn in 1..=3 {
        let posts = futures_util::future::join_all((0..POSTS).map(|_| {
            let request = http::Request::post("/").body(crate::http::empty()).unwrap();
            Box::pin(client.send(request))
        }));
        let mut arrived = arrived.subscribe();
        tokio::select! {
            _ = posts => panic!("no POST is answered"),
            all = arrived.wait_for(|count| *count == turn * POSTS) => drop(all.unwrap()),
        }
        assert_eq!(said(&client).await.unwrap(), "here");
    }
    let request = http::Request::get("/").body(crate::http::empty()).unwrap();
    assert_eq!(client.send(request).await.unwrap().version(), Version::HTTP_2);
    assert_eq!(client.connections(), 1);
}
