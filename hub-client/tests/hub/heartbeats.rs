//! The kubelet's lease: forwarded to the cloud unchanged, and answered with or without the cloud.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;
use yurt_runtime::http::{Body, full, json, read_body, respond};
use yurt_test_support::eventually;

use super::client::request;
use super::cloud::Cloud;
use super::harness::{NODE_USER, TestHub};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
const OTHER_LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n2";
const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Answer of the cloud to a renewal.
const RENEWED: &str = r#"{"kind":"Lease","metadata":{"name":"n1","resourceVersion":"77"}}"#;
const NO_ITEMS: &str = r#"{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"9999"},"items":[]}"#;
const NOT_FOUND: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}"#;
const NOT_ALLOWED: &str =
    r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"MethodNotAllowed","code":405}"#;
/// Bytes that no parser accepts.
const OPAQUE: &[u8] = b"k8s\0\n\x1f\n\x16coordination.k8s.io\x00\xff\xfe";

/// The lease at the cloud: its written states, and a gate that holds renewals back.
#[derive(Clone)]
struct Lease {
    puts: Arc<Mutex<Vec<(String, Bytes)>>>,
    open: watch::Sender<bool>,
}

// === impl Lease ===

impl Lease {
    fn at(cloud: &Cloud) -> Self {
        let lease = Self {
            puts: Arc::default(),
            open: watch::Sender::new(true),
        };
        let script = lease.clone();
        cloud.on(LEASE, move |request| script.clone().answer(request));
        lease
    }

    async fn answer(self, request: Request<Incoming>) -> http::Response<Body> {
        let (head, body) = request.into_parts();
        let kind = head
            .headers
            .get("content-type")
            .map(|kind| kind.to_str().unwrap().to_owned())
            .unwrap_or_default();
        let body = read_body(body, 1 << 20).await.unwrap();
        if head.method != Method::PUT {
            return json(StatusCode::OK, RENEWED);
        }
        self.puts.lock().push((kind.clone(), body));
        self.open.subscribe().wait_for(|open| *open).await.unwrap();
        if kind == PROTOBUF {
            respond(StatusCode::OK, PROTOBUF.parse().unwrap(), full(OPAQUE))
        } else {
            json(StatusCode::OK, RENEWED)
        }
    }

    fn puts(&self) -> Vec<(String, Bytes)> {
        self.puts.lock().clone()
    }

    fn bodies(&self) -> Vec<String> {
        self.puts
            .lock()
            .iter()
            .map(|(_, body)| String::from_utf8_lossy(body).into_owned())
            .collect()
    }

    fn hold(&self, held: bool) {
        self.open.send_replace(!held);
    }
}

/// A renewal identified by `number`, in an unusual format.
fn beat(number: u32) -> String {
    format!("{{ \"metadata\":{{\"name\":\"n1\"}},\n \"spec\":{{\"renewTime\":\"{number}\"}} }}")
}

#[tokio::test]
async fn renewal_reaches_the_cloud_byte_for_byte() {
    let cloud = Cloud::start().await;
    let lease = Lease::at(&cloud);
    let hub = TestHub::start(&cloud, &[]).await;
    let answer = hub.kubelet().put(&format!("{LEASE}?timeout=10s"), JSON, beat(1)).await;
    assert_eq!(answer.expect(200), RENEWED, "the kubelet sees the cloud's answer");
    let answer = hub
        .kubelet()
        .put(LEASE, PROTOBUF, Bytes::from_static(b"\x01\x00\xff"))
        .await;
    assert_eq!(answer.header("content-type"), Some(PROTOBUF));
    assert_eq!(answer.expect(200), OPAQUE);
    let expected = [
        (JSON.to_owned(), beat(1).into()),
        (PROTOBUF.to_owned(), Bytes::from_static(b"\x01\x00\xff")),
    ];
    assert_eq!(lease.puts(), expected);
    let seen = cloud
        .seen(LEASE)
        .into_iter()
        .find(|seen| seen.method == Method::PUT)
        .unwrap();
    assert_eq!(
        (seen.user.as_deref(), seen.query.as_deref()),
        (Some(NODE_USER), Some("timeout=10s"))
    );
    assert!(seen.headers["user-agent"].to_str().unwrap().starts_with("kubelet/"));
}

#[tokio::test]
async fn cut_off_kubelet_is_answered_with_its_own_beat() {
    let mut cloud = Cloud::start().await;
    let lease = Lease::at(&cloud);
    let mut hub = TestHub::start(&cloud, &[]).await;
    hub.kubelet().put(LEASE, JSON, beat(1)).await.expect(200);
    cloud.go_away().await;
    for (kind, body) in [(JSON, Bytes::from(beat(2))), (PROTOBUF, Bytes::from_static(OPAQUE))] {
        let echo = hub.kubelet().put(LEASE, kind, body.clone()).await;
        assert_eq!(echo.header("content-type"), Some(kind));
        assert_eq!(echo.expect(200), body);
    }
    hub.until("the hub must detect that the cloud gets no heartbeats", |state| {
        state["cutOff"] == true
    })
    .await;
    let kept = hub.kubelet().get(LEASE).await;
    assert_eq!(
        (kept.header("content-type"), kept.body.as_ref()),
        (Some(JSON), RENEWED.as_bytes()),
        "the cloud's last answer"
    );
    hub.restart().await;
    assert_eq!(
        hub.kubelet().get(LEASE).await.expect(200),
        RENEWED,
        "also after a restart"
    );
    assert_eq!(hub.kubelet().put(LEASE, JSON, beat(3)).await.expect(200), beat(3));
    cloud.come_back().await;
    hub.kubelet().put(LEASE, JSON, beat(4)).await.expect(200);
    let arrived = || lease.bodies();
    assert_eq!(
        arrived().last(),
        Some(&beat(4)),
        "the first beat with a link goes to the cloud"
    );
    hub.until("the cloud must get heartbeats again", |state| state["cutOff"] == false)
        .await;
}

#[tokio::test]
async fn create_offline_finds_the_lease_that_is_known() {
    let mut cloud = Cloud::start().await;
    let _lease = Lease::at(&cloud);
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.go_away().await;
    let collection = LEASE.trim_end_matches("/n1");
    let create = || request(Method::POST, collection, &[("content-type", JSON)], full(beat(1)));
    let refused = hub.kubelet().send(create()).await;
    assert_eq!(
        (refused.code, refused.header("retry-after")),
        (503, Some("5")),
        "nothing is known that could be answered"
    );
    hub.kubelet().get(LEASE).await.expect(503);
    cloud.come_back().await;
    hub.kubelet().get(LEASE).await.expect(200);
    cloud.go_away().await;
    // The kubelet reads its lease then.
    let taken = hub.kubelet().send(create()).await;
    assert_eq!(
        (taken.code, taken.json()["reason"].as_str()),
        (409, Some("AlreadyExists"))
    );
    assert_eq!(hub.kubelet().get(LEASE).await.expect(200), RENEWED);
}

/// The kubelet reads, creates and replaces its lease.
#[tokio::test]
async fn other_operations_on_the_kubelets_lease_are_the_clouds() {
    let mut cloud = Cloud::start().await;
    cloud.on(LEASE, async |request| match *request.method() {
        Method::PUT => json(StatusCode::OK, RENEWED),
        _ => json(StatusCode::METHOD_NOT_ALLOWED, NOT_ALLOWED),
    });
    let hub = TestHub::start(&cloud, &[]).await;
    hub.kubelet().put(LEASE, JSON, beat(1)).await.expect(200);
    let patch = "application/merge-patch+json";
    let all = [Method::HEAD, Method::OPTIONS, Method::POST, Method::PATCH];
    for (code, is_up) in [(405, true), (503, false)] {
        if !is_up {
            cloud.go_away().await;
        }
        for method in &all {
            let sent = request(method.clone(), LEASE, &[("content-type", patch)], full(""));
            assert_eq!(hub.kubelet().send(sent).await.code, code, "{method}");
        }
    }
    assert_eq!(hub.kubelet().put(LEASE, JSON, beat(2)).await.expect(200), beat(2));
}

/// The one answer kept in addition to pool data survives empty answers to other requests.
#[tokio::test]
async fn answers_of_nothing_leave_the_kept_lease() {
    let mut cloud = Cloud::start().await;
    let lease = Lease::at(&cloud);
    let mut hub = TestHub::start(&cloud, &[]).await;
    hub.kubelet().put(LEASE, JSON, beat(1)).await.expect(200);
    let (leases, secrets) = (LEASE.trim_end_matches("/n1"), "/api/v1/namespaces/shop/secrets");
    for empty in [leases, secrets] {
        cloud.on(empty, async |_| json(StatusCode::OK, NO_ITEMS));
        for query in [
            "fieldSelector=metadata.name%3Dmissing",
            "limit=1",
            "watch=1&fieldSelector=metadata.name%3Dn1",
        ] {
            hub.kubelet().get(&format!("{empty}?{query}")).await.expect(200);
        }
    }
    for path in [LEASE, OTHER_LEASE] {
        cloud.on(path, async |_| json(StatusCode::NOT_FOUND, NOT_FOUND));
        hub.kubelet().get(path).await.expect(404);
    }
    hub.restart().await;
    cloud.go_away().await;
    assert_eq!(hub.kubelet().get(LEASE).await.expect(200), RENEWED);
    assert_eq!(lease.bodies(), [beat(1)]);
}

/// Conformance: 5.07, 7.59
#[tokio::test]
async fn only_the_kubelets_own_lease_is_answered_offline() {
    let mut cloud = Cloud::start().await;
    let _lease = Lease::at(&cloud);
    let hub = TestHub::start(&cloud, &[]).await;
    hub.kubelet().put(LEASE, JSON, beat(1)).await.expect(200);
    cloud.go_away().await;
    let refused = hub.kubelet().put(OTHER_LEASE, JSON, beat(2)).await;
    assert_eq!((refused.code, refused.header("retry-after")), (503, Some("1")));
    hub.kubelet().get(OTHER_LEASE).await.expect(503);
    hub.kube_proxy().put(LEASE, JSON, beat(2)).await.expect(503);
    hub.bearer("kubelet/v1", "t")
        .put(LEASE, JSON, beat(2))
        .await
        .expect(503);
    hub.kubelet()
        .send(request(Method::DELETE, LEASE, &[], full("")))
        .await
        .expect(503);
    // All other requests unknown to the cloud are refused.
    for (method, path) in [
        (Method::POST, "/api/v1/namespaces/shop/pods"),
        (Method::POST, "/api/v1/namespaces/shop/services"),
        (Method::PUT, "/api/v1/namespaces/shop/configmaps/a"),
        (Method::PATCH, "/api/v1/nodes/n1/status"),
        (Method::DELETE, "/api/v1/namespaces/shop/services/web"),
    ] {
        let write = request(method.clone(), path, &[("content-type", JSON)], full("{}"));
        let refused = hub.kubelet().send(write).await;
        assert_eq!(refused.code, 503, "{method} {path}");
        assert!(refused.header("retry-after").is_some(), "{method} {path}");
    }
    hub.kubelet()
        .put(&format!("{LEASE}/status"), JSON, beat(2))
        .await
        .expect(503);
    hub.kubelet().put(LEASE, JSON, beat(3)).await.expect(200);
}

#[tokio::test]
async fn refusals_of_the_cloud_are_the_kubelets_business_and_failures_are_not() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    for (code, told) in [(409, 409), (404, 404), (403, 403), (500, 200), (503, 200), (429, 200)] {
        let status = format!(r#"{{"kind":"Status","code":{code}}}"#);
        cloud.on(LEASE, move |_| {
            let status = status.clone();
            async move { json(StatusCode::from_u16(code).unwrap(), status) }
        });
        let answer = hub.kubelet().put(LEASE, JSON, beat(u32::from(code))).await;
        assert_eq!(answer.code, told, "the cloud said {code}");
        if told == 200 {
            assert_eq!(answer.body, beat(u32::from(code)));
        }
    }
}

#[tokio::test]
async fn kubelet_that_hangs_up_does_not_stop_later_beats() {
    let cloud = Cloud::start().await;
    let lease = Lease::at(&cloud);
    let hub = TestHub::start(&cloud, &[]).await;
    lease.hold(true);
    let mut connection = hub.connect().await;
    let body = beat(1);
    let head = format!("PUT {LEASE} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: kubelet/v1\r\nContent-Type: {JSON}\r\n");
    let head = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    connection.write_all(head.as_bytes()).await.unwrap();
    eventually("the first beat must reach the cloud", async || {
        (lease.bodies() == [beat(1)]).then_some(())
    })
    .await;
    drop(connection);
    // The first beat is never answered: its remains must not block later beats.
    let later = async || {
        assert_eq!(hub.kubelet().put(LEASE, JSON, beat(2)).await.code, 200);
        lease.bodies().contains(&beat(2)).then_some(())
    };
    eventually("a later beat must reach the cloud", later).await;
}

#[tokio::test]
async fn overtaken_beat_does_not_stop_later_beats() {
    let cloud = Cloud::start().await;
    let lease = Lease::at(&cloud);
    let hub = TestHub::start(&cloud, &[]).await;
    lease.hold(true);
    let kubelet = hub.kubelet();
    let (first, ()) = tokio::join!(kubelet.put(LEASE, JSON, beat(1)), async {
        eventually("the first beat must reach the cloud", async || {
            (lease.bodies() == [beat(1)]).then_some(())
        })
        .await;
        let overtaken = hub.kubelet().put(LEASE, JSON, beat(2)).await;
        assert_eq!(overtaken.expect(200), beat(2), "one renewal at a time");
        lease.hold(false);
    });
    assert_eq!(first.expect(200), RENEWED);
    let later = async || {
        assert_eq!(hub.kubelet().put(LEASE, JSON, beat(3)).await.code, 200);
        lease.bodies().contains(&beat(3)).then_some(())
    };
    eventually("a later beat must reach the cloud", later).await;
    hub.until("the node is heard", |state| state["cutOff"] == false).await;
}

#[tokio::test]
async fn cloud_that_does_not_answer_does_not_keep_the_kubelet_waiting() {
    let cloud = Cloud::start().await;
    let lease = Lease::at(&cloud);
    let hub = TestHub::start(&cloud, &[]).await;
    lease.hold(true);
    // The kubelet gives up after 10 s.
    let beaten = tokio::time::timeout(
        std::time::Duration::from_secs(8),
        hub.kubelet().put(LEASE, JSON, beat(1)),
    )
    .await;
    assert_eq!(beaten.expect("an answer in time").expect(200), beat(1));
    assert_eq!(hub.state().await["cutOff"], true);
}
