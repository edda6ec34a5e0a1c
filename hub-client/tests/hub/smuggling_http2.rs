//! Requests over HTTP/2 that mean something else, or two requests, to a server that reads them as HTTP/1.1.

use http::StatusCode;
use http_body_util::BodyExt as _;
use yurt_runtime::http::text;
use yurt_test_support::eventually;

use super::cloud::Cloud;
use super::harness::TestHub;
use super::raw_http2::{End, Raw};

const MAPS: &str = "/api/v1/namespaces/shop/configmaps";
/// A list that is never cached.
const AFTER: &str = "/apis/coordination.k8s.io/v1/namespaces/shop/leases";
/// A request that is hidden in a body.
const HIDDEN: &str = "GET /api/v1/hidden HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// The same behind the end of a chunked body.
const BEHIND_CHUNKS: &str = "0\r\n\r\nGET /api/v1/hidden HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn post(more: &[(&'static str, &'static str)]) -> Raw<'static> {
    Raw {
        body: BEHIND_CHUNKS,
        ..Raw::of_kubelet("POST", MAPS, more)
    }
}

/// Answers with the received body, as the cloud read it.
fn echo(cloud: &Cloud) {
    cloud.on(MAPS, |request| async move {
        let body = request.into_body().collect().await;
        text(StatusCode::OK, body.map(|body| body.to_bytes()).unwrap_or_default())
    });
}

/// Checks that the cloud received nothing but whole requests with one length, after another request was sent behind.
async fn check(cloud: &Cloud, hub: &TestHub, what: &str) {
    let before = cloud.seen(AFTER).len();
    hub.kubelet().get(AFTER).await;
    eventually("the next request must arrive", async || {
        (cloud.seen(AFTER).len() > before).then_some(())
    })
    .await;
    assert!(cloud.seen("/api/v1/hidden").is_empty(), "{what}");
    for seen in cloud.seen(MAPS) {
        let lengths = seen.headers.get_all("content-length").iter().count();
        let chunked = seen.headers.get_all("transfer-encoding").iter().count();
        assert!(lengths + chunked <= 1, "{what}: {:?}", seen.headers);
        for name in ["x-injected", "upgrade", "keep-alive", "te", "proxy-connection"] {
            assert!(!seen.headers.contains_key(name), "{what}: {:?}", seen.headers);
        }
    }
}

#[tokio::test]
async fn body_that_looks_like_a_request_is_a_body() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    echo(&cloud);
    for body in [HIDDEN, BEHIND_CHUNKS] {
        let length = body.len().to_string();
        for more in [&[][..], &[("content-length", length.as_str())]] {
            let request = Raw {
                body,
                ..Raw::of_kubelet("POST", MAPS, more)
            };
            assert_eq!(request.send(&hub).await, End::Answer(200));
            check(&cloud, &hub, body).await;
        }
    }
    assert_eq!(cloud.seen(MAPS).len(), 4);
}

#[tokio::test]
async fn lengths_and_encodings_of_http1_do_not_pass() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    echo(&cloud);
    for more in [
        &[("transfer-encoding", "chunked")][..],
        &[("transfer-encoding", "identity"), ("content-length", "4")],
        &[("Transfer-Encoding", "chunked")],
        &[("transfer-encoding ", "chunked")],
        &[("content-length", "0")],
        &[("content-length", "4")],
        &[("content-length", "4000")],
        &[("content-length", "4"), ("content-length", "53")],
        &[("content-length", "53"), ("content-length", "4")],
        &[("content-length", "4, 53")],
        &[("content-length", "+53")],
        &[("content-length", "0x35")],
        &[("content-length", " 53")],
        &[("content-length", "")],
    ] {
        let end = post(more).send(&hub).await;
        assert!(matches!(end, End::Refused | End::Answer(400)), "{more:?}: {end:?}");
        check(&cloud, &hub, &format!("{more:?}")).await;
    }
    assert!(cloud.seen(MAPS).is_empty(), "{:?}", cloud.seen(MAPS));
}

#[tokio::test]
async fn line_ends_and_headers_of_a_connection_do_not_pass() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    echo(&cloud);
    for more in [
        ("x-a", "b\r\nx-injected: c"),
        ("x-a", "b\nx-injected: c"),
        ("x-a", "b\rx-injected: c"),
        ("x-a", "b\0c"),
        ("x-a: b\r\nx-injected", "c"),
        ("x-a\nx-injected", "c"),
        ("x-injected:", "c"),
        ("x injected", "c"),
        ("X-Injected", "c"),
        ("", "c"),
        ("connection", "x-a"),
        ("connection", "transfer-encoding"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("upgrade", "h2c"),
        ("te", "gzip"),
        (":path", AFTER),
        (":authority", "elsewhere"),
        (":status", "200"),
        (":unknown", "x"),
    ] {
        let end = post(&[more]).send(&hub).await;
        assert!(matches!(end, End::Refused | End::Answer(400)), "{more:?}: {end:?}");
        check(&cloud, &hub, &format!("{more:?}")).await;
    }
    assert!(cloud.seen(MAPS).is_empty(), "{:?}", cloud.seen(MAPS));
}

#[tokio::test]
async fn pseudo_headers_become_no_other_request_line() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    echo(&cloud);
    let line = "/api/v1/hidden HTTP/1.1\r\nHost: localhost\r\n\r\nGET /x";
    for (name, value) in [
        (":path", line),
        (":path", "/api/v1/hidden HTTP/1.1"),
        (":path", "http://elsewhere/api/v1/hidden"),
        (":path", "api/v1/hidden"),
        (":path", "*"),
        (":path", ""),
        (":path", "/api/v1/x/../hidden"),
        (":path", "/api/v1%2fhidden"),
        (":method", "GET /api/v1/hidden HTTP/1.1\r\nx-a:"),
        (":method", "GET "),
        (":method", ""),
        (":method", "CONNECT"),
        (":authority", "localhost\r\nx-injected: c"),
        (":authority", "a@localhost"),
        (":authority", "elsewhere"),
        (":scheme", "http://localhost/api/v1/hidden?"),
    ] {
        let end = post(&[]).with(name, value).send(&hub).await;
        assert_ne!(end, End::Answer(200), "{name}: {value:?}");
        check(&cloud, &hub, value).await;
    }
    assert_eq!(post(&[("host", "elsewhere")]).send(&hub).await, End::Answer(421));
    assert!(cloud.seen(MAPS).is_empty(), "{:?}", cloud.seen(MAPS));
}
