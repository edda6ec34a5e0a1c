//! Requests whose length two parsers might read differently: the cloud gets the same request as the hub,
//! or none.

use http::StatusCode;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use yurt_runtime::http::text;
use yurt_test_support::PATIENCE;

use super::cloud::Cloud;
use super::harness::TestHub;

const MAPS: &str = "/api/v1/namespaces/shop/configmaps";
/// A request hidden in the body of another one.
const HIDDEN: &str = "GET /api/v1/hidden HTTP/1.1\r\nHost: localhost\r\nUser-Agent: kubelet/v1\r\n\r\n";
const HEAD: &str = "Host: localhost\r\nUser-Agent: kubelet/v1\r\nContent-Type: text/plain\r\n";

/// Answers with the received body, as the cloud read it.
fn echo(cloud: &Cloud) {
    cloud.on(MAPS, |request| async move {
        let body = request.into_body().collect().await;
        text(StatusCode::OK, body.map(|body| body.to_bytes()).unwrap_or_default())
    });
}

/// Reads until `end` arrives or the connection ends.
async fn read(connection: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    let reading = async {
        while let Ok(byte) = connection.read_u8().await {
            read.push(byte);
            if read.ends_with(end.as_bytes()) {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading)
        .await
        .expect("an answer must come");
    String::from_utf8_lossy(&read).into_owned()
}

#[tokio::test]
async fn body_with_two_lengths_is_one_request_with_the_chunked_one() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    echo(&cloud);
    let chunked = format!("{:x}\r\n{HIDDEN}\r\n0\r\n\r\n", HIDDEN.len());
    let (long, short) = (format!("Content-Length: {}\r\n", HIDDEN.len()), "Content-Length: 4\r\n");
    let te = "Transfer-Encoding: chunked\r\n";
    for (lengths, body) in [
        (format!("{short}{te}"), chunked.as_str()),
        (format!("{te}{short}"), &chunked),
        (format!("{long}Connection: content-length\r\n"), HIDDEN),
    ] {
        let before = cloud.seen(MAPS).len();
        let mut connection = hub.connect().await;
        let request = format!("POST {MAPS} HTTP/1.1\r\n{HEAD}{lengths}\r\n{body}");
        connection.write_all(request.as_bytes()).await.unwrap();
        let answer = read(&mut connection, HIDDEN).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(HIDDEN),
            "{lengths}: {answer}"
        );
        let seen = cloud.seen(MAPS);
        assert_eq!(seen.len(), before + 1, "{lengths}");
        let headers = &seen[before].headers;
        assert!(
            !(headers.contains_key("content-length") && headers.contains_key("transfer-encoding")),
            "{headers:?}"
        );
    }
    assert!(cloud.seen("/api/v1/hidden").is_empty());
}

#[tokio::test]
async fn lengths_that_can_be_read_in_two_ways_are_refused() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    echo(&cloud);
    for (version, lengths) in [
        ("1.1", "Content-Length: 4\r\nContent-Length: 40\r\n"),
        ("1.1", "Content-Length: 4, 40\r\n"),
        ("1.1", "Content-Length: +4\r\n"),
        ("1.1", "Content-Length: 0x4\r\n"),
        ("1.1", "Content-Length : 4\r\n"),
        ("1.1", "Transfer-Encoding: xchunked\r\n"),
        ("1.1", "Transfer-Encoding: chunked, identity\r\n"),
        ("1.1", "Transfer-Encoding:\r\n chunked\r\n"),
        ("1.0", "Transfer-Encoding: chunked\r\n"),
    ] {
        let mut connection = hub.connect().await;
        let request = format!("POST {MAPS} HTTP/{version}\r\n{HEAD}{lengths}\r\n0\r\n\r\n{HIDDEN}");
        connection.write_all(request.as_bytes()).await.unwrap();
        // To its end: the hub parses nothing after it as a request.
        let answer = read(&mut connection, "nothing ends so").await;
        assert!(answer.is_empty() || answer.contains(" 400 "), "{lengths}: {answer}");
        assert_eq!(
            answer.matches("HTTP/1.").count(),
            usize::from(!answer.is_empty()),
            "{lengths}: {answer}"
        );
    }
    assert!(cloud.seen(MAPS).is_empty() && cloud.seen("/api/v1/hidden").is_empty());
}
