//! Upgrades (exec, attach, port-forward): a pipe after both sides agreed, otherwise an ordinary answer.

use std::convert::Infallible;

use futures_util::StreamExt as _;
use http::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use yurt_runtime::http::{empty, json, respond, stream};
use yurt_test_support::{PATIENCE, eventually};

use super::cloud::Cloud;
use super::harness::{NODE_USER, TestHub};

const EXEC: &str = "/api/v1/namespaces/shop/pods/web/exec";
const SERVICES: &str = "/api/v1/services";
/// A selection that the kubelet caches.
const MAPS: &str = "/api/v1/namespaces/shop/configmaps";
/// Headers of a client's upgrade request.
const ASK: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n";

/// Sends a request on a bare connection.
async fn ask(connection: &mut TcpStream, method: &str, path: &str, headers: &str) {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: kubelet/v1\r\nContent-Length: 0\r\n{headers}\r\n"
    );
    connection.write_all(head.as_bytes()).await.unwrap();
}

/// Reads until the text ends with `end`; byte by byte, so that nothing after it is lost.
async fn read_until(connection: &mut TcpStream, end: &str) -> String {
    let reading = async {
        let mut read = Vec::new();
        while !read.ends_with(end.as_bytes()) {
            read.push(connection.read_u8().await.expect("the connection must go on"));
        }
        String::from_utf8(read).unwrap()
    };
    tokio::time::timeout(PATIENCE, reading)
        .await
        .expect("an answer must come")
}

/// Accepts upgrades, sends a greeting, and returns everything in capitals.
fn shout_back(cloud: &Cloud) {
    shout_back_at(cloud, EXEC);
}

fn shout_back_at(cloud: &Cloud, path: &str) {
    let tasks = cloud.tasks();
    cloud.on(path, move |mut request| {
        let upgrade = hyper::upgrade::on(&mut request);
        tasks.spawn("shout-back", async move {
            let Ok(upgraded) = upgrade.await else { return };
            let mut pipe = TokioIo::new(upgraded);
            pipe.write_all(b"hello").await.unwrap();
            let mut read = [0; 64];
            while let Ok(count @ 1..) = pipe.read(&mut read).await {
                pipe.write_all(&read[..count].to_ascii_uppercase()).await.unwrap();
            }
        });
        let answer = Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header("connection", "Upgrade")
            .header("upgrade", "SPDY/3.1")
            .header("x-stream-protocol-version", "v4.channel.k8s.io")
            .body(empty())
            .unwrap();
        async move { answer }
    });
}

#[tokio::test]
async fn upgrade_is_a_pipe_in_both_directions() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    shout_back(&cloud);
    let mut connection = hub.connect().await;
    ask(&mut connection, "POST", &format!("{EXEC}?command=sh"), ASK).await;
    let head = read_until(&mut connection, "\r\n\r\n").await.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    for header in [
        "connection: upgrade",
        "upgrade: spdy/3.1",
        "x-stream-protocol-version: v4.channel.k8s.io",
    ] {
        assert!(head.contains(&format!("\r\n{header}\r\n")), "{head}");
    }
    read_until(&mut connection, "hello").await;
    for word in ["abc", "\u{1}\u{2}xyz"] {
        connection.write_all(word.as_bytes()).await.unwrap();
        read_until(&mut connection, &word.to_ascii_uppercase()).await;
    }
    let seen = cloud.seen(EXEC).remove(0);
    assert_eq!(
        (seen.headers["upgrade"].as_bytes(), seen.user.as_deref()),
        (b"SPDY/3.1".as_slice(), Some(NODE_USER))
    );
    assert_eq!(seen.headers["x-stream-protocol-version"], "v4.channel.k8s.io");
}

#[tokio::test]
async fn pipe_ends_when_either_side_does() {
    let mut cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    shout_back(&cloud);
    let mut connection = hub.connect().await;
    ask(&mut connection, "POST", EXEC, ASK).await;
    read_until(&mut connection, "hello").await;
    let running = async || {
        cloud
            .tasks()
            .running()
            .iter()
            .any(|(name, _)| *name == "shout-back")
            .then_some(())
    };
    eventually("the pipe must be open at the cloud", running).await;
    drop(connection);
    let ended = async || (!cloud.tasks().running().iter().any(|(name, _)| *name == "shout-back")).then_some(());
    eventually("the cloud must hear that the client is gone", ended).await;
    let mut connection = hub.connect().await;
    ask(&mut connection, "POST", EXEC, ASK).await;
    read_until(&mut connection, "hello").await;
    cloud.go_away().await;
    let end = tokio::time::timeout(PATIENCE, connection.read(&mut [0; 8]))
        .await
        .expect("the client must hear of it");
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
}

#[tokio::test]
async fn refused_upgrade_is_an_ordinary_answer_and_no_pipe() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let refusal = r#"{"kind":"Status","code":403}"#;
    cloud.on(EXEC, move |_| async move { json(StatusCode::FORBIDDEN, refusal) });
    let mut connection = hub.connect().await;
    ask(&mut connection, "POST", EXEC, ASK).await;
    let head = read_until(&mut connection, "\r\n\r\n").await.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 403 ") && !head.contains("upgrade"), "{head}");
    read_until(&mut connection, refusal).await;
    // The connection still speaks HTTP with the hub, which refuses a stranger's request on it.
    cloud.on("/version", async |_| json(StatusCode::OK, r#"{"major":"1"}"#));
    ask(&mut connection, "GET", "/version", "").await;
    read_until(&mut connection, r#"{"major":"1"}"#).await;
    let stranger = "GET /version HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8\r\n\r\n";
    connection.write_all(stranger.as_bytes()).await.unwrap();
    let head = read_until(&mut connection, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
    assert_eq!(
        cloud.seen("/version").len(),
        1,
        "nothing may reach the cloud past the hub"
    );
}

#[tokio::test]
async fn refused_upgrade_streams_its_answer() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(EXEC, async |_| {
        let pieces = futures_util::stream::iter(["one", "two"]).map(|piece| Ok::<_, Infallible>(piece.into()));
        respond(StatusCode::BAD_REQUEST, "text/plain".parse().unwrap(), stream(pieces))
    });
    let mut connection = hub.connect().await;
    ask(
        &mut connection,
        "GET",
        EXEC,
        "Connection: Upgrade\r\nUpgrade: websocket\r\n",
    )
    .await;
    let head = read_until(&mut connection, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    read_until(&mut connection, "0\r\n\r\n").await;
}

/// Sends a watch over WebSocket, and returns the status of its answer.
async fn watched_over_websocket(hub: &TestHub, agent: &str, path: &str) -> String {
    let mut connection = hub.connect().await;
    let head = format!(
        "GET {path}?watch=1 HTTP/1.1\r\nHost: localhost\r\nUser-Agent: {agent}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    let head = read_until(&mut connection, "\r\n\r\n").await;
    head["HTTP/1.1 ".len()..][..3].to_owned()
}

#[tokio::test]
async fn watch_over_websocket_passes_to_the_cloud_if_it_needs_no_filter() {
    let mut cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    hub.kubelet().get(MAPS).await.expect(200);
    hub.until("the selection", |state| {
        state["cache"]["selections"][MAPS]["complete"] == true
    })
    .await;
    for path in [SERVICES, MAPS] {
        shout_back_at(&cloud, path);
    }
    let each = [
        ("flanneld/v1", SERVICES),
        ("kubelet/v1", MAPS),
        ("kubelet/v1", SERVICES),
    ];
    for ((agent, path), code) in each.iter().zip(["101", "101", "200"]) {
        assert_eq!(watched_over_websocket(&hub, agent, path).await, code, "{agent}: {path}");
    }
    cloud.go_away().await;
    hub.until("the loss", |state| state["cloudReachable"] == false).await;
    for (agent, path) in each {
        assert_eq!(
            watched_over_websocket(&hub, agent, path).await,
            "200",
            "{agent}: {path}"
        );
    }
}

#[tokio::test]
async fn protocol_is_not_switched_without_being_asked() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    shout_back(&cloud);
    let mut connection = hub.connect().await;
    ask(&mut connection, "POST", EXEC, "").await;
    let head = read_until(&mut connection, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 50"), "{head}");
}

#[tokio::test]
async fn bytes_behind_a_refused_upgrade_are_requests_to_the_hub() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(EXEC, async |_| json(StatusCode::FORBIDDEN, "{}"));
    let stranger = "GET /version HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8\r\n\r\n";
    let body = "0\r\n\r\n";
    for (length, sent) in [
        ("Content-Length: 0\r\n".to_owned(), stranger.to_owned()),
        ("Transfer-Encoding: chunked\r\n".to_owned(), format!("{body}{stranger}")),
    ] {
        let head = format!("POST {EXEC} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: kubelet/v1\r\n{length}{ASK}\r\n");
        // The stranger's request closes the connection.
        let said = hub.said(&format!("{head}{sent}")).await;
        let codes: Vec<&str> = said.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
        assert_eq!(codes, ["403", "401"], "{length}: {said}");
    }
    // As the body of the upgrade, it is no request at all.
    let head = format!("POST {EXEC} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: kubelet/v1\r\nConnection: close\r\n");
    let length = stranger.len();
    let said = hub
        .said(&format!("{head}Content-Length: {length}\r\n{ASK}\r\n{stranger}"))
        .await;
    assert_eq!(said.matches("HTTP/1.1 ").count(), 1, "{said}");
    assert!(cloud.seen("/version").is_empty());
}

/// A connection that speaks HTTP behind the hub would carry requests that the hub does not check.
#[tokio::test]
async fn upgrade_to_http_or_tls_is_not_passed_on() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(EXEC, async |_| json(StatusCode::OK, "{}"));
    let protocols = [
        "h2c",
        "H2C",
        "websocket, h2c",
        "websocket\r\nUpgrade: h2c",
        "HTTP/2.0",
        "TLS/1.2",
    ];
    for protocol in protocols {
        let ask = format!("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\nHTTP2-Settings: AAMAAABk\r\n");
        let mut connection = hub.connect().await;
        self::ask(&mut connection, "GET", EXEC, &ask).await;
        let head = read_until(&mut connection, "\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{protocol}: {head}");
    }
    let seen = cloud.seen(EXEC);
    assert_eq!(seen.len(), protocols.len());
    for name in ["upgrade", "http2-settings"] {
        assert!(seen.iter().all(|seen| !seen.headers.contains_key(name)), "{name}");
    }
}
