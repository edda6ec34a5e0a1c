//! Requests that are not for pool data go to the cloud and back unchanged and unbuffered.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use yurt_runtime::http::{Body, BoxError, empty, full, json, respond, stream as stream_body};
use yurt_test_support::{PATIENCE, eventually};

use super::client::{piece, request};
use super::cloud::Cloud;
use super::harness::TestHub;

/// Leases are never cached: their lists and watches go to the cloud.
const LEASES: &str = "/apis/coordination.k8s.io/v1/leases";
/// Bytes above every limit of the hub for answers that it parses.
const LARGE: usize = 4 << 20;
const LOG: &str = "/api/v1/namespaces/shop/pods/web/log";

/// A body fed by the test: each message on the channel is a piece, `Err` breaks the body, and a dropped channel ends
/// it.
fn fed() -> (mpsc::Sender<Result<Bytes, BoxError>>, Body) {
    let (feed, pieces) = mpsc::channel::<Result<Bytes, BoxError>>(4);
    let pieces = stream::unfold(pieces, |mut pieces| async move { Some((pieces.recv().await?, pieces)) });
    (feed, stream_body(pieces))
}

/// Answers the next request for `path` with a body that the test feeds.
fn answer_with_pieces(cloud: &Cloud, path: &str) -> mpsc::Sender<Result<Bytes, BoxError>> {
    let (feed, body) = fed();
    let body = Arc::new(Mutex::new(Some(body)));
    cloud.on(path, move |_| {
        let body = body.lock().take().unwrap_or_else(empty);
        async move { respond(StatusCode::OK, "application/json".parse().unwrap(), body) }
    });
    feed
}

/// Conformance: 2.74, 7.70
#[tokio::test]
async fn response_pieces_arrive_as_the_cloud_sends_them() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    for path in [LOG, LEASES] {
        let feed = answer_with_pieces(&cloud, path);
        let query = if path == LOG { "?follow=true" } else { "?watch=1" };
        let response = hub
            .kubelet()
            .open(request(Method::GET, &format!("{path}{query}"), &[], empty()))
            .await;
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        // The second piece is sent only after the first one has arrived.
        for sent in ["one\n", "two\n"] {
            feed.send(Ok(sent.into())).await.unwrap();
            assert_eq!(piece(&mut body).await.unwrap().unwrap(), sent, "{path}");
        }
        drop(feed);
        assert!(piece(&mut body).await.is_none(), "{path}");
    }
}

#[tokio::test]
async fn request_pieces_reach_the_cloud_as_they_are_sent() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let (arrived, mut at_the_cloud) = mpsc::channel(4);
    cloud.on(LEASES, move |request| {
        let arrived = arrived.clone();
        async move {
            let mut pieces = request.into_body().into_data_stream();
            while let Some(piece) = pieces.next().await {
                arrived.send(piece.unwrap()).await.unwrap();
            }
            json(StatusCode::CREATED, "{}")
        }
    });
    let (feed, body) = fed();
    let kubelet = hub.kubelet();
    let sending = kubelet.send(request(Method::POST, LEASES, &[], body));
    let feeding = async {
        for sent in ["one", "two"] {
            feed.send(Ok(sent.into())).await.unwrap();
            assert_eq!(at_the_cloud.recv().await.unwrap(), sent);
        }
        drop(feed);
    };
    let (answer, ()) = tokio::time::timeout(PATIENCE, async { tokio::join!(sending, feeding) })
        .await
        .unwrap();
    answer.expect(201);
}

/// Conformance: 7.77
#[tokio::test]
async fn status_headers_and_body_come_back_byte_for_byte() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let answer = "\u{0}not JSON\r\n\r\n{";
    cloud.on(LEASES, move |_| async move {
        Response::builder()
            .status(429)
            .header("content-type", "application/vnd.kubernetes.protobuf")
            .header("warning", r#"299 - "unknown field \"spec.a\"""#)
            .header("warning", r#"299 - "second""#)
            .header("audit-id", "2f1a-7")
            .header("retry-after", "17")
            .header("x-kubernetes-pf-flowschema-uid", "f")
            .header("keep-alive", "timeout=5")
            .body(full(answer))
            .unwrap()
    });
    let got = hub.kubelet().get(LEASES).await;
    assert_eq!((got.code, got.body.as_ref()), (429, answer.as_bytes()));
    let warnings: Vec<_> = got
        .headers
        .get_all("warning")
        .iter()
        .map(|value| value.to_str().unwrap())
        .collect();
    assert_eq!(warnings, [r#"299 - "unknown field \"spec.a\"""#, r#"299 - "second""#]);
    for (name, value) in [
        ("content-type", Some("application/vnd.kubernetes.protobuf")),
        ("audit-id", Some("2f1a-7")),
        ("retry-after", Some("17")),
        ("x-kubernetes-pf-flowschema-uid", Some("f")),
        ("keep-alive", None),
    ] {
        assert_eq!(got.header(name), value, "{name}");
    }
}

/// Conformance: 7.62, 7.70
#[tokio::test]
async fn method_query_headers_and_body_arrive_byte_for_byte() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let bodies: Arc<Mutex<Vec<Bytes>>> = Arc::default();
    let kept = bodies.clone();
    let path = "/apis/example.com/v1/namespaces/a%20b/things/c";
    cloud.on(path, move |request| {
        let kept = kept.clone();
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            kept.lock().push(body);
            json(StatusCode::OK, "{}")
        }
    });
    let sent = Bytes::from_static(b"k8s\0\n\x0a\xff{ \"a\" : 1 }");
    let headers = [
        ("content-type", "application/apply-patch+yaml"),
        ("accept", "application/vnd.kubernetes.protobuf, */*"),
        ("connection", "x-mine"),
        ("x-mine", "belongs to the connection"),
        ("x-other", "a"),
        ("x-other", "b"),
    ];
    let target = format!("{path}?fieldManager=k%2Fs&force=true&&x");
    hub.kubelet()
        .send(request(Method::PATCH, &target, &headers, full(sent.clone())))
        .await
        .expect(200);
    let seen = cloud.seen(path).remove(0);
    assert_eq!(
        (seen.method, seen.query.as_deref()),
        (Method::PATCH, Some("fieldManager=k%2Fs&force=true&&x"))
    );
    assert_eq!(*bodies.lock(), [sent]);
    let values = |headers: &HeaderMap, name: &str| -> Vec<String> {
        headers
            .get_all(name)
            .iter()
            .map(|value| value.to_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(values(&seen.headers, "content-type"), ["application/apply-patch+yaml"]);
    assert_eq!(
        values(&seen.headers, "accept"),
        ["application/vnd.kubernetes.protobuf, */*"]
    );
    assert_eq!(values(&seen.headers, "x-other"), ["a", "b"]);
    assert!(values(&seen.headers, "x-mine").is_empty() && values(&seen.headers, "connection").is_empty());
    assert_eq!(
        values(&seen.headers, "host"),
        [cloud.url().replace("https://", "")],
        "the request goes to the cloud"
    );
}

/// kube-apiserver's audit log has these addresses.
#[tokio::test]
async fn address_of_the_caller_is_the_last_one_that_the_cloud_sees() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(LEASES, async |_| json(StatusCode::OK, "{}"));
    let earlier = [
        ("x-forwarded-for", "192.0.2.7, 192.0.2.8"),
        ("x-forwarded-for", "192.0.2.9"),
        ("x-real-ip", "192.0.2.10"),
    ];
    hub.kubelet().get(LEASES).await.expect(200);
    hub.pod(&cloud, "token").get_with(LEASES, &earlier).await.expect(200);
    let values: Vec<_> = cloud
        .seen(LEASES)
        .iter()
        .map(|seen| {
            let names = ["x-forwarded-for", "x-real-ip"];
            let all = names.into_iter().flat_map(|name| seen.headers.get_all(name));
            all.map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(values, [["127.0.0.1"], ["192.0.2.7, 192.0.2.8, 192.0.2.9, 127.0.0.1"]]);
}

/// Conformance: 2.95, 7.22, 7.72
#[tokio::test]
async fn watch_that_breaks_at_the_cloud_ends_cleanly() {
    let mut cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let feed = answer_with_pieces(&cloud, LEASES);
    let mut watch = hub.kubelet().watch(LEASES).await;
    let frame = r#"{"type":"ADDED","object":{"metadata":{"name":"web"}}}"#.to_owned() + "\n";
    feed.send(Ok(frame.into())).await.unwrap();
    assert_eq!(watch.told().await, "ADDED web");
    feed.send(Err("the cable is cut".into())).await.unwrap();
    assert!(watch.next().await.is_none());
    // The same if the whole cloud goes away.
    let _feed = answer_with_pieces(&cloud, LEASES);
    let mut watch = hub.kubelet().watch(LEASES).await;
    cloud.go_away().await;
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn answer_that_breaks_at_the_cloud_is_not_taken_for_a_whole_one() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let feed = answer_with_pieces(&cloud, LEASES);
    let mut body = hub
        .kubelet()
        .open(request(Method::GET, LEASES, &[], empty()))
        .await
        .into_body();
    feed.send(Ok(r#"{"items":["#.into())).await.unwrap();
    assert_eq!(piece(&mut body).await.unwrap().unwrap(), r#"{"items":["#);
    feed.send(Err("the cable is cut".into())).await.unwrap();
    assert!(
        piece(&mut body).await.unwrap().is_err(),
        "half a list must not look complete"
    );
}

#[tokio::test]
async fn answer_to_a_write_that_breaks_is_not_taken_for_a_whole_one() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    // The hub parses answers to writes of pool data, for their resourceVersion.
    let path = "/api/v1/namespaces/shop/services";
    let feed = answer_with_pieces(&cloud, path);
    let kubelet = hub.kubelet();
    let create = request(Method::POST, path, &[("content-type", "application/json")], full("{}"));
    let (answer, ()) = tokio::join!(kubelet.try_send(create), async {
        let all = feed.capacity();
        feed.send(Ok(r#"{"metadata":{"#.into())).await.unwrap();
        eventually("half of it must be sent", async || {
            (feed.capacity() == all).then_some(())
        })
        .await;
        feed.send(Err("the cable is cut".into())).await.unwrap();
    });
    assert!(
        answer.is_none_or(|answer| answer.code >= 500),
        "a success without a body would be wrong"
    );
}

#[tokio::test]
async fn head_has_the_headers_of_a_get_and_no_body() {
    let mut cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on("/version", async |_| json(StatusCode::OK, "0123456789"));
    let head = || request(Method::HEAD, "/version", &[], empty());
    // The pod speaks HTTP/2, where a body would be an error.
    for client in [hub.kubelet(), hub.pod(&cloud, "t")] {
        let answer = client.send(head()).await;
        assert_eq!((answer.code, answer.header("content-length")), (200, Some("10")));
    }
    assert!(cloud.seen("/version").iter().all(|seen| seen.method == Method::HEAD));
    cloud.go_away().await;
    for client in [hub.kubelet(), hub.pod(&cloud, "t")] {
        assert_eq!(client.send(head()).await.code, 503);
    }
}

#[tokio::test]
async fn client_that_hangs_up_ends_the_request_at_the_cloud() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let feed = answer_with_pieces(&cloud, LEASES);
    let watch = hub.kubelet().watch(LEASES).await;
    drop(watch);
    eventually("the cloud must hear of it", async || feed.is_closed().then_some(())).await;
}

/// Conformance: 4.16
#[tokio::test]
async fn unreachable_cloud_is_503_with_retry_after() {
    let mut cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    hub.kubelet().get(LEASES).await.expect(200);
    cloud.go_away().await;
    for client in [hub.kubelet(), hub.bearer("pod/v1", "t")] {
        for path in [
            LEASES,
            "/apis/coordination.k8s.io/v1/leases?watch=1",
            "/version",
            "/api/v1/namespaces/shop/configmaps/a",
        ] {
            let refused = client.get(path).await;
            assert_eq!(
                (refused.code, refused.header("retry-after")),
                (503, Some("1")),
                "{path}"
            );
            assert_eq!(refused.json()["reason"], "ServiceUnavailable");
        }
    }
    // The next regular probe would come 5 s after the start.
    let noticed = hub.until("a failed request must bring the probe forward", |state| {
        state["cloudReachable"] == false
    });
    tokio::time::timeout(Duration::from_secs(3), noticed)
        .await
        .expect("at once");
    cloud.come_back().await;
    hub.until("the cloud must be found again", |state| state["cloudReachable"] == true)
        .await;
    hub.kubelet().get(LEASES).await.expect(200);
}

/// The answer of a Service's backend is not a Service, even if it resembles one: the hub does not wait for its end.
#[tokio::test]
async fn answer_of_a_proxied_service_streams_and_has_no_limit() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let path = "/api/v1/namespaces/shop/services/graph/proxy/query";
    let post = || request(Method::POST, path, &[("content-type", "application/json")], full("{}"));
    let feed = answer_with_pieces(&cloud, path);
    let mut body = hub.kubelet().open(post()).await.into_body();
    // The second piece is sent only after the first one has arrived.
    for sent in ["one", "two"] {
        feed.send(Ok(sent.into())).await.unwrap();
        assert_eq!(piece(&mut body).await.unwrap().unwrap(), sent);
    }
    drop(feed);
    cloud.on(path, async |_| {
        json(StatusCode::OK, format!(r#"{{"data":"{}"}}"#, "x".repeat(LARGE)))
    });
    assert_eq!(hub.kubelet().send(post()).await.expect(200).len(), LARGE + 11);
}

/// The cloud has stored the object: its answer passes at any size to a component without filters.
#[tokio::test]
async fn answer_to_a_write_of_pool_data_has_no_limit() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let path = "/api/v1/namespaces/shop/services/web";
    let metadata = serde_json::json!({"namespace": "shop", "name": "web", "annotations": {"large": "x".repeat(LARGE)}});
    let large = serde_json::json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata}).to_string();
    let answer = large.clone();
    cloud.on(path, move |_| {
        let answer = answer.clone();
        async move { json(StatusCode::OK, answer) }
    });
    let stored = hub
        .bearer("agent/v1", "pod-token")
        .put(path, "application/json", "{}")
        .await
        .expect(200);
    assert_eq!(stored.len(), large.len());
}

/// Requests do not wait for a number outside the cloud's history.
#[tokio::test]
async fn only_the_written_object_tells_a_number_to_wait_for() {
    let cloud = Cloud::start().await;
    cloud.put(
        "services",
        serde_json::json!({"metadata": {"namespace": "shop", "name": "web"}}),
    );
    let hub = TestHub::start(&cloud, &[]).await;
    let service = ("v1", "Service", "shop", "web");
    let web = "/api/v1/namespaces/shop/services/web";
    for (method, path, (version, kind, namespace, name)) in [
        // Another Kubernetes API behind a Service.
        (
            Method::POST,
            "/api/v1/namespaces/shop/services/web/proxy/api/v1/namespaces/shop/services",
            service,
        ),
        (Method::PUT, "/api/v1/namespaces/shop/services/web/proxy", service),
        (Method::PUT, web, ("v1", "ConfigMap", "shop", "web")),
        (Method::PUT, web, ("other/v1", "Service", "shop", "web")),
        (Method::PUT, web, ("v1", "Service", "other", "web")),
        (Method::PUT, web, ("v1", "Service", "shop", "other")),
        (
            Method::POST,
            "/api/v1/namespaces/shop/services",
            ("v1", "Service", "other", "web"),
        ),
        (Method::DELETE, web, ("v1", "Status", "shop", "web")),
    ] {
        let metadata = serde_json::json!({"namespace": namespace, "name": name, "resourceVersion": "99999999"});
        let answer = serde_json::json!({"apiVersion": version, "kind": kind, "metadata": metadata}).to_string();
        cloud.on(path, move |_| {
            let answer = answer.clone();
            async move { json(StatusCode::OK, answer) }
        });
        let sent = request(
            method.clone(),
            path,
            &[("content-type", "application/json")],
            full("{}"),
        );
        hub.kubelet().send(sent).await.expect(200);
        cloud.off(path);
        let read = hub.kubelet().get("/api/v1/services").await;
        assert_eq!(read.names(), ["web"], "after {method} {path}");
    }
}
