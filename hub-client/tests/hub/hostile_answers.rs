//! Answers of a server of the cloud over HTTP/1.1 that can be read in two ways: no other request receives any of them.

use std::net::SocketAddr;
use std::sync::Arc;

use http::Method;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use yurt_runtime::TaskGroup;
use yurt_runtime::http::empty;
use yurt_test_support::LOOPBACK;

use super::client::request;
use super::cloud::Cloud;
use super::harness::TestHub;

/// Path of the hostile answer; everything else gets [`CLEAN`].
const EVIL: &str = "/apis/coordination.k8s.io/v1/namespaces/evil/leases";
const OTHER: &str = "/apis/coordination.k8s.io/v1/namespaces/shop/leases";
const CLEAN: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nclean";
const SMUGGLED: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 8\r\n\r\nsmuggled";

/// A server with the cluster's certificate that speaks HTTP/1.1 and answers [`EVIL`] with these bytes.
async fn server(cloud: &Cloud, tasks: &TaskGroup, answer: Vec<u8>) -> SocketAddr {
    let mut tls = rustls::ServerConfig::clone(&cloud.pki().server_tls().current());
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let (tls, answer) = (TlsAcceptor::from(Arc::new(tls)), Arc::new(answer));
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let connections = tasks.clone();
    tasks.spawn("hostile server", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (tls, answer) = (tls.clone(), answer.clone());
            connections.spawn("hostile connection", async move {
                let Ok(stream) = tls.accept(stream).await else { return };
                let mut stream = BufReader::new(stream);
                while let Some((path, length)) = head(&mut stream).await {
                    let mut body = vec![0; length];
                    if stream.read_exact(&mut body).await.is_err() {
                        return;
                    }
                    let bytes = if path == EVIL { &answer[..] } else { CLEAN.as_bytes() };
                    for piece in bytes.chunks(64 << 10) {
                        if stream.write_all(piece).await.is_err() || stream.flush().await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    addr
}

/// Reads the head of a request: its path and the length of its body.
async fn head(stream: &mut (impl tokio::io::AsyncBufRead + Unpin)) -> Option<(String, usize)> {
    let (mut path, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            return Some((path?, length));
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        path.get_or_insert_with(|| line.split(' ').nth(1).unwrap_or_default().to_owned());
    }
}

#[tokio::test]
async fn answer_that_can_be_read_in_two_ways_reaches_no_other_request() {
    let (cloud, tasks) = (Cloud::start().await, TaskGroup::new());
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n";
    let answers = [
        format!("{head}Content-Length: 2\r\n\r\nab{SMUGGLED}"),
        format!("{head}Content-Length: 2\r\nContent-Length: 5\r\n\r\nab{SMUGGLED}"),
        format!("{head}Content-Length: 100\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n{SMUGGLED}"),
        format!("{head}Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n{SMUGGLED}"),
        format!("HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\nab{SMUGGLED}"),
        format!("HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nab{SMUGGLED}"),
        format!("{head}Content-Length: +2\r\n\r\nab{SMUGGLED}"),
        format!("{head}X: a\0b\r\nContent-Length: 2\r\n\r\nab{SMUGGLED}"),
    ];
    for answer in answers {
        let addr = server(&cloud, &tasks, answer.clone().into_bytes()).await;
        let hub = TestHub::start_node(&cloud, "n1", &format!("https://{addr}"), &[]).await;
        // Upgrades have connections of their own.
        let upgrade = [("connection", "Upgrade"), ("upgrade", "websocket")];
        for headers in [&[][..], &upgrade].into_iter().cycle().take(6) {
            let get = |path: &'static str| {
                let kubelet = hub.kubelet();
                async move { kubelet.try_send(request(Method::GET, path, headers, empty())).await }
            };
            let evil = get(EVIL).await;
            let text = evil.map(|answer| String::from_utf8_lossy(&answer.body).into_owned());
            let text = text.unwrap_or_default();
            assert!(!text.contains("smuggled"), "{answer:?}: {text}");
            for _ in 0..3 {
                let other = get(OTHER).await.expect("an answer");
                let text = String::from_utf8_lossy(&other.body).into_owned();
                assert!(text == "clean" || other.code >= 500, "{answer:?}: {text}");
            }
        }
    }
}
