//! Floods from a pod's address at the hub's own ports, while the kubelet renews its lease and reads.

use std::net::SocketAddr;
use std::os::unix::fs::fchown;
use std::sync::Arc;

use futures_util::future::join_all;
use rustls::pki_types::ServerName;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use yurt_runtime::http::server::{HEADER_TIMEOUT, MAX_STRANGERS};
use yurt_test_support::PATIENCE;

use super::client::Client;
use super::cloud::Cloud;
use super::harness::{TestHub, own_uid};
use super::node_identity::NOBODY;
use super::raw_http2::{DATA, END_HEADERS, GOAWAY, HEADERS, RST_STREAM, SETTINGS, block, frame};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&resourceVersion=0";
/// Types of frames (RFC 9113, 6).
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
/// Code of a GOAWAY (RFC 9113, 7).
const ENHANCE_YOUR_CALM: u8 = 11;
/// More than any client sends in a burst, and far fewer than it may send in an hour.
const FRAMES: u32 = 20_000;
/// Address of the pod.
const POD: &str = "127.0.0.9:0";
/// Sockets of a pod at each port.
const SOCKETS: usize = 300;

/// A flood: its name, its first frame, and those that follow.
type Flood = (&'static str, Vec<u8>, fn(u32) -> Vec<u8>);

fn post() -> Vec<u8> {
    block(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/version"),
        (":authority", "localhost"),
    ])
}

fn floods() -> Vec<Flood> {
    vec![
        ("rapid reset", Vec::new(), |turn| {
            let stream = 2 * turn + 1;
            [
                frame(HEADERS, END_HEADERS, stream, &post()),
                frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]),
            ]
            .concat()
        }),
        ("CONTINUATION", frame(HEADERS, 0, 1, &post()), |_| {
            frame(CONTINUATION, 0, 1, &block(&[("name", "x".repeat(100).as_str())]))
        }),
        ("empty DATA", frame(HEADERS, END_HEADERS, 1, &post()), |_| {
            frame(DATA, 0, 1, &[])
        }),
        ("PING", Vec::new(), |_| frame(PING, 0, 0, &[7; 8])),
        ("SETTINGS", Vec::new(), |_| frame(SETTINGS, 0, 0, &[])),
    ]
}

/// The kernel reports the owner of the socket, and root's sockets have places of their own.
async fn connect_from_the_pod(port: u16) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    if own_uid() == 0 {
        fchown(&socket, Some(NOBODY), None).unwrap();
    }
    socket.bind(POD.parse().unwrap()).unwrap();
    let to = SocketAddr::from(([127, 0, 0, 1], port));
    socket.connect(to).await.unwrap()
}

/// Sends the flood; returns the code of the GOAWAY that ends it.
async fn cut_by(stream: impl AsyncRead + AsyncWrite, (name, first, next): &Flood) -> u8 {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sending = async {
        let start = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            &frame(SETTINGS, 0, 0, &[])[..],
            first,
        ]
        .concat();
        writer.write_all(&start).await?;
        for batch in 0..FRAMES / 100 {
            let frames: Vec<u8> = (0..100).flat_map(|turn| next(batch * 100 + turn)).collect();
            writer.write_all(&frames).await?;
        }
        writer.flush().await
    };
    let reading = async {
        let mut received = Vec::new();
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = reader.read(&mut piece).await {
            received.extend(&piece[..count]);
        }
        received
    };
    let both = async {
        // A failed write means that the connection ended, which the reader detects, too.
        let (_, received): (std::io::Result<()>, _) = tokio::join!(sending, reading);
        received
    };
    let received = tokio::time::timeout(PATIENCE, both).await;
    let received = received.unwrap_or_else(|_| panic!("{name}: the connection must end"));
    goaway(&received).unwrap_or_else(|| panic!("{name}: ended without GOAWAY"))
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

/// One round of the kubelet: its heartbeat and a list.
async fn beat(kubelet: &Client) {
    let path = format!("{LEASES}/n1");
    let mut lease = kubelet.get(&path).await.json();
    lease["spec"] = json!({"holderIdentity": "n1", "renewTime": "2026-01-01T00:00:00.000000Z"});
    kubelet
        .put(&path, "application/json", lease.to_string())
        .await
        .expect(200);
    kubelet.get(PODS).await.expect(200);
}

async fn node() -> (Cloud, TestHub) {
    let cloud = Cloud::start().await;
    cloud.put_lease(json!({"metadata": {"name": "n1", "namespace": "kube-node-lease"}}));
    let hub = TestHub::start(&cloud, &[]).await;
    beat(&hub.kubelet()).await;
    (cloud, hub)
}

#[tokio::test]
async fn floods_of_a_pod_at_the_hubs_ports_end_and_the_kubelet_goes_on() {
    let (cloud, hub) = node().await;
    let tls = TlsConnector::from(Arc::new({
        let mut tls = cloud.pki().client_config(None);
        tls.alpn_protocols = vec![b"h2".to_vec()];
        tls
    }));
    let (kubelet, reviews) = (hub.kubelet(), cloud.all_seen().len());
    for flood in &floods() {
        let stream = connect_from_the_pod(hub.proxy_port()).await;
        let (code, ()) = tokio::join!(cut_by(stream, flood), beat(&kubelet));
        assert_eq!(code, ENHANCE_YOUR_CALM, "{}, HTTP", flood.0);
        let stream = connect_from_the_pod(hub.secure_port()).await;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let flooding = async { cut_by(tls.connect(name, stream).await.unwrap(), flood).await };
        // A new connection, too: the kubelet may start just now.
        let new = hub.kubelet();
        let (code, ()) = tokio::join!(flooding, beat(&new));
        assert_eq!(code, ENHANCE_YOUR_CALM, "{}, HTTPS", flood.0);
    }
    let of_pods = cloud
        .all_seen()
        .into_iter()
        .skip(reviews)
        .filter(|seen| seen.path == "/version");
    assert_eq!(of_pods.count(), 0, "requests without a credential reach nothing");
}

#[tokio::test]
async fn sockets_of_a_pod_that_send_nothing_or_slow_headers_lose_their_places_and_cost_the_kubelet_nothing() {
    let (_cloud, hub) = node().await;
    let mut held = Vec::new();
    for number in 0..2 * SOCKETS {
        let port = [hub.proxy_port(), hub.secure_port()][number % 2];
        let mut socket = connect_from_the_pod(port).await;
        let begin = [
            "",
            "GET /version HTTP/1.1\r\nHost: local",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ][number % 3];
        // The hub may have closed it already.
        let _ = socket.write_all(begin.as_bytes()).await;
        held.push(socket);
    }
    for _ in 0..5 {
        beat(&hub.kubelet()).await;
    }
    // Each port has at most these places for others than root; the oldest sockets give way.
    let oldest = held.iter_mut().take(2 * (SOCKETS - MAX_STRANGERS));
    let closing = oldest.map(|socket| async {
        // A reset is an end, too.
        let _ = socket.read_to_end(&mut Vec::new()).await;
    });
    let closed = tokio::time::timeout(HEADER_TIMEOUT / 2, join_all(closing)).await;
    closed.expect("the oldest must be closed, long before the time of their headers ends");
}
