//! HTTP/1.1 on the wire of the hub's ports: Host, trailers, and Expect.

use futures_util::{StreamExt as _, stream as streams};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use yurt_runtime::http::{BoxError, json as answer_json, pass};
use yurt_test_support::PATIENCE;

use super::cloud::Cloud;
use super::harness::TestHub;

/// Leases are never cached: their lists and watches go to the cloud.
const LEASES: &str = "/apis/coordination.k8s.io/v1/leases";

#[tokio::test]
async fn request_without_one_host_gets_400_and_goes_nowhere() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    for (hosts, why) in [
        ("", "missing required Host header"),
        ("Host: a\r\nHost: b\r\n", "too many Host headers"),
        ("Host: a b\r\n", "malformed Host header"),
    ] {
        for line in [
            "GET /apis/coordination.k8s.io/v1/leases",
            "GET http://a/apis/coordination.k8s.io/v1/leases",
        ] {
            let answer = hub
                .said(&format!("{line} HTTP/1.1\r\nUser-Agent: kubelet/v1\r\n{hosts}\r\n"))
                .await;
            assert!(
                answer.starts_with("HTTP/1.1 400 ") && answer.ends_with(why),
                "{hosts:?}: {answer}"
            );
        }
    }
    assert!(cloud.seen(LEASES).is_empty());
}

#[tokio::test]
async fn trailers_reach_a_client_that_reads_them() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(LEASES, async |_| {
        let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "17".parse().unwrap())]);
        let frames = [Frame::data("one".into()), Frame::trailers(trailers)];
        let body = StreamBody::new(streams::iter(frames).map(Ok::<_, BoxError>));
        Response::builder().header("trailer", "X-Sum").body(pass(body)).unwrap()
    });
    for (te, expected) in [
        ("TE: trailers\r\nConnection: TE, close\r\n", true),
        ("Connection: close\r\n", false),
    ] {
        let request = format!("GET {LEASES} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: kubelet/v1\r\n{te}\r\n");
        let answer = hub.said(&request).await.to_ascii_lowercase();
        assert!(answer.contains("\r\ntrailer: x-sum\r\n"), "{answer}");
        assert_eq!(answer.contains("0\r\nx-sum: 17\r\n"), expected, "{answer}");
    }
    let seen = cloud.seen(LEASES);
    assert_eq!(seen[0].headers["te"], "trailers");
    assert!(!seen[1].headers.contains_key("te"));
}

#[tokio::test]
async fn expected_100_comes_once_the_body_is_wanted_and_not_if_it_is_refused() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(LEASES, async |request| {
        let read = request.into_body().collect().await.unwrap().to_bytes();
        answer_json(StatusCode::CREATED, read)
    });
    let head = |path: &str, agent: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: {agent}\r\nContent-Length: 4\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
        )
    };
    let mut connection = hub.connect().await;
    connection
        .write_all(head(LEASES, "kubelet/v1").as_bytes())
        .await
        .unwrap();
    let mut begin = [0; 25];
    tokio::time::timeout(PATIENCE, connection.read_exact(&mut begin))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&begin, b"HTTP/1.1 100 Continue\r\n\r\n");
    connection.write_all(b"\"ab\"").await.unwrap();
    let mut rest = String::new();
    tokio::time::timeout(PATIENCE, connection.read_to_string(&mut rest))
        .await
        .unwrap()
        .unwrap();
    assert!(rest.starts_with("HTTP/1.1 201 ") && rest.ends_with("\"ab\""), "{rest}");
    let refused = hub.said(&head("/api/v1/../pods", "kubelet/v1")).await;
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
}
