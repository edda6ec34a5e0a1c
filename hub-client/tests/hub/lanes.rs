//! Forwarded requests share few connections to the cloud and do not delay each other.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream as streams};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::sync::watch;
use yurt_runtime::http::server::CloseConnection;
use yurt_runtime::http::{Body, empty, full, json as answer_json, stream};
use yurt_test_support::{PATIENCE, eventually};

use super::client::{piece, request};
use super::cloud::Cloud;
use super::harness::TestHub;
use super::pool::NODE_LEASES;

const ALL: &str = "/apis/coordination.k8s.io/v1/leases";
/// Leases are never cached: their lists and watches go to the cloud.
const WATCHED: &str = "/apis/coordination.k8s.io/v1/namespaces/shop/leases";
const MAPS: &str = "/api/v1/namespaces/shop/configmaps";
/// A kubelet watches each Secret of its pods on its own.
const WATCHES: usize = 300;
/// Bytes of a piece of a large body.
const PIECE: usize = 64 * 1024;
/// Body of an answer 401.
const UNAUTHORIZED: &str = r#"{"kind":"Status","code":401}"#;
/// Pieces of a large body: 100 MiB.
const PIECES: usize = 1600;

/// Sends `one`, then what `rest` yields.
fn beginning_with_one(rest: impl futures_util::Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    let first = streams::iter([Bytes::from_static(b"one\n")]);
    Response::new(stream(first.chain(rest).map(Ok::<_, Infallible>)))
}

/// The same response, which asks for the end of its connection.
fn ending(mut response: Response<Body>) -> Response<Body> {
    response.extensions_mut().insert(CloseConnection);
    response
}

/// A body of [`PIECES`] pieces, and the number of those taken so far.
fn large() -> (Body, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = taken.clone();
    let pieces = streams::iter(0..PIECES).map(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(Bytes::from_static(&[b'x'; PIECE]))
    });
    (stream(pieces), taken)
}

/// Watches of [`ALL`] receive `one`, then `two` at each change of the returned number.
fn feeding(cloud: &Cloud) -> watch::Sender<usize> {
    let (feed, fed) = watch::channel(0);
    cloud.on(ALL, move |_| {
        let mut fed = fed.clone();
        fed.mark_unchanged();
        let rest = streams::unfold(fed, |mut fed| async move {
            fed.changed().await.ok()?;
            Some((Bytes::from_static(b"two\n"), fed))
        });
        async move { beginning_with_one(rest) }
    });
    feed
}

/// Waits until nothing more is taken, and returns how many bytes were.
async fn stalled_at(taken: &AtomicUsize) -> usize {
    let mut before = usize::MAX;
    let pieces = eventually("the sender must stall", async || {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        let now = taken.load(Ordering::Relaxed);
        (std::mem::replace(&mut before, now) == now).then_some(now)
    })
    .await;
    pieces * PIECE
}

fn connections(cloud: &Cloud, path: &str) -> BTreeSet<SocketAddr> {
    cloud.seen(path).iter().map(|seen| seen.peer).collect()
}

#[tokio::test]
async fn kubelet_with_many_watches_uses_few_connections_and_its_beat_none_of_them() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(WATCHED, async |_| beginning_with_one(streams::pending()));
    cloud.on(ALL, async |_| answer_json(StatusCode::OK, "{}"));
    let lease = format!("{NODE_LEASES}/n1");
    cloud.on(&lease, async |_| answer_json(StatusCode::OK, "{}"));
    let kubelet = hub.kubelet();
    let mut watches = Vec::new();
    for number in 0..WATCHES {
        let path = format!("{WATCHED}?watch=1&fieldSelector=metadata.name%3Ds{number}");
        let mut watch = kubelet
            .open(request(Method::GET, &path, &[], empty()))
            .await
            .into_body();
        assert_eq!(piece(&mut watch).await.unwrap().unwrap(), "one\n");
        watches.push(watch);
    }
    let of_watches = connections(&cloud, WATCHED);
    assert_eq!(
        of_watches.len(),
        WATCHES.div_ceil(yurt_runtime::http::client::lane::STREAMS)
    );
    kubelet.put(&lease, "application/json", "{}").await.expect(200);
    kubelet.get(ALL).await.expect(200);
    for path in [lease.as_str(), ALL] {
        let others = connections(&cloud, path);
        assert!(!others.is_empty() && others.is_disjoint(&of_watches), "{path}");
    }
}

#[tokio::test]
async fn proxied_answer_with_too_many_headers_ends_no_watch() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let feed = feeding(&cloud);
    // The server of a pod writes the headers of such an answer.
    let proxied = "/api/v1/namespaces/shop/pods/web/proxy/";
    cloud.on(proxied, async |_| {
        let mut response = answer_json(StatusCode::OK, "{}");
        for number in 0..128 {
            let name = HeaderName::try_from(format!("x-{number}")).expect("a name");
            let value = HeaderValue::try_from("v".repeat(8 << 10)).expect("a value");
            response.headers_mut().insert(name, value);
        }
        response
    });
    let (watcher, attacker) = (hub.bearer("agent/1", "t"), hub.bearer("pod/1", "pod"));
    let opened = watcher.open(request(Method::GET, &format!("{ALL}?watch=1"), &[], empty()));
    let mut live = opened.await.into_body();
    assert_eq!(piece(&mut live).await.unwrap().unwrap(), "one\n");
    assert_eq!(attacker.get(proxied).await.code, 503);
    feed.send_modify(|fed| *fed += 1);
    assert_eq!(piece(&mut live).await.unwrap().unwrap(), "two\n");
}

#[tokio::test]
async fn readers_that_stall_delay_no_other_stream_of_their_connection() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(WATCHED, async |_| Response::new(large().0));
    let feed = feeding(&cloud);
    let kubelet = hub.kubelet();
    let open = |path: &str| {
        let (kubelet, path) = (kubelet.clone(), format!("{path}?watch=1"));
        async move {
            kubelet
                .open(request(Method::GET, &path, &[], empty()))
                .await
                .into_body()
        }
    };
    let mut live = open(ALL).await;
    assert_eq!(piece(&mut live).await.unwrap().unwrap(), "one\n");
    // Their responses stay unread.
    let stalled = futures_util::future::join_all((0..60).map(|_| open(WATCHED))).await;
    assert_eq!(
        connections(&cloud, WATCHED),
        connections(&cloud, ALL),
        "they share a connection"
    );
    for _ in 0..3 {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        feed.send_modify(|fed| *fed += 1);
        assert_eq!(piece(&mut live).await.unwrap().unwrap(), "two\n");
    }
    drop(stalled);
}

#[tokio::test]
async fn answers_that_a_bearer_does_not_read_take_its_share_alone() {
    const SHARE: usize = 102;
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(WATCHED, async |_| Response::new(large().0));
    cloud.on(ALL, async |_| answer_json(StatusCode::OK, "{}"));
    let open = async |path: &str| {
        let pod = hub.bearer("pod/v1", "t");
        pod.open(request(Method::GET, path, &[], empty())).await
    };
    let mut unread = futures_util::future::join_all((0..SHARE).map(|_| open(WATCHED))).await;
    assert!(unread.iter().all(|answer| answer.status() == StatusCode::OK));
    let made_up = hub.bearer("pod/v1", "another");
    let refused = made_up.get(ALL).await;
    assert_eq!((refused.code, refused.header("retry-after")), (429, Some("1")));
    let watch = open(&format!("{WATCHED}?watch=1")).await;
    assert_eq!(watch.status(), StatusCode::OK, "watches have a share of their own");
    hub.kubelet().get(ALL).await.expect(200);
    unread.pop();
    eventually("the share must have room again", async || {
        (made_up.get(ALL).await.code == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn large_bodies_pass_without_being_held() {
    const HELD_MAX: usize = 40 << 20;
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    // Down: the client reads late.
    let (body, taken) = large();
    let body = Arc::new(parking_lot::Mutex::new(Some(body)));
    cloud.on(ALL, move |_| {
        let body = body.lock().take().unwrap_or_else(empty);
        async move { Response::new(body) }
    });
    let response = hub.kubelet().open(request(Method::GET, ALL, &[], empty())).await;
    let held = stalled_at(&taken).await;
    assert!(
        held < HELD_MAX,
        "{held} bytes are on their way, most of them in the buffers of sockets"
    );
    let read = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(read.len(), PIECES * PIECE);
    // Up: the cloud reads late.
    let (begin, begins) = watch::channel(false);
    cloud.on(MAPS, move |incoming| {
        let mut begins = begins.clone();
        async move {
            begins.wait_for(|begins| *begins).await.unwrap();
            let read = incoming.into_body().collect().await.unwrap().to_bytes();
            answer_json(StatusCode::CREATED, read.len().to_string())
        }
    });
    let (body, taken) = large();
    let kubelet = hub.kubelet();
    let sending = kubelet.send(request(Method::POST, MAPS, &[], body));
    let watching = async {
        let held = stalled_at(&taken).await;
        begin.send_replace(true);
        held
    };
    let (answer, held) = tokio::join!(sending, watching);
    assert!(held < HELD_MAX, "{held}");
    assert_eq!(answer.expect(201), (PIECES * PIECE).to_string());
}

/// kube-apiserver asks for the end of a connection with every 401.
#[tokio::test]
async fn requests_beside_one_that_ends_its_connection_are_answered() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(WATCHED, async |_| {
        ending(answer_json(StatusCode::UNAUTHORIZED, UNAUTHORIZED))
    });
    cloud.on(ALL, async |_| answer_json(StatusCode::OK, "{}"));
    cloud.on(MAPS, async |_| answer_json(StatusCode::CREATED, "{}"));
    let all = (0..100).map(|number| {
        let (bad, good) = (hub.bearer("pod/v1", "bad"), hub.bearer("pod/v1", "good"));
        async move {
            bad.get(WATCHED).await.expect(401);
            good.get(ALL).await.expect(200);
            let write = request(
                Method::POST,
                MAPS,
                &[],
                if number % 2 == 0 { empty() } else { full("{}") },
            );
            good.send(write).await.expect(201);
        }
    });
    let all = futures_util::future::join_all(all);
    tokio::time::timeout(PATIENCE, all).await.expect("all must be answered");
}

/// The open answer keeps the connection, so nothing but the GOAWAY tells the hub that it takes no more requests.
#[tokio::test]
async fn write_behind_a_request_that_ended_its_connection_arrives_once() {
    const ROUNDS: usize = 5;
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(WATCHED, async |_| {
        ending(answer_json(StatusCode::UNAUTHORIZED, UNAUTHORIZED))
    });
    cloud.on(ALL, async |_| beginning_with_one(streams::pending()));
    cloud.on(MAPS, async |incoming| {
        let body = incoming.into_body().collect().await.unwrap().to_bytes();
        answer_json(StatusCode::CREATED, body)
    });
    let (bad, good) = (hub.bearer("pod/v1", "bad"), hub.bearer("pod/v1", "good"));
    let mut open = Vec::new();
    for _ in 0..ROUNDS {
        open.push(good.open(request(Method::GET, ALL, &[], empty())).await);
        bad.get(WATCHED).await.expect(401);
        let write = request(Method::POST, MAPS, &[], full("{}"));
        assert_eq!(good.send(write).await.expect(201), "{}");
    }
    assert_eq!(cloud.seen(MAPS).len(), ROUNDS);
}

#[tokio::test]
async fn compressed_answers_pass_as_they_are() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    // Ten bytes that claim to be gzip: the hub must not look into them.
    cloud.on(ALL, async |_| {
        let answer = Response::builder()
            .header("content-encoding", "gzip")
            .header("vary", "Accept-Encoding");
        answer.body(full(&b"\x1f\x8bnot gzip"[..])).unwrap()
    });
    let answer = hub.kubelet().get_with(ALL, &[("accept-encoding", "gzip, br")]).await;
    assert_eq!(
        (answer.header("content-encoding"), answer.header("vary")),
        (Some("gzip"), Some("Accept-Encoding"))
    );
    assert_eq!(answer.expect(200), &b"\x1f\x8bnot gzip"[..]);
    let seen = cloud.seen(ALL).remove(0);
    assert_eq!(seen.headers["accept-encoding"], "gzip, br");
}
