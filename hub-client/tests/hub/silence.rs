//! A link that swallows all packets: requests in flight end, and those that follow do not wait.

use http::{Method, Response};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use yurt_runtime::http::{empty, full, json as answer_json, stream};
use yurt_test_support::{PATIENCE, eventually};

use super::client::{Answer, piece, request};
use super::cloud::Cloud;
use super::harness::TestHub;
use super::relay_pool::Link;

/// Leases are never cached: their lists and watches go to the cloud.
const LEASES: &str = "/apis/coordination.k8s.io/v1/leases";
const MAPS: &str = "/api/v1/namespaces/shop/configmaps";
const LOG: &str = "/api/v1/namespaces/shop/pods/web/log";
const EXEC: &str = "/api/v1/namespaces/shop/pods/web/exec";

/// A hub behind a link, and the link.
async fn behind_a_link(cloud: &Cloud, flags: &[&str]) -> (TestHub, Link) {
    let link = Link::to(cloud.addr()).await;
    let hub = TestHub::start_node(cloud, "n1", &link.url(), flags).await;
    hub.wait_until_complete().await;
    (hub, link)
}

/// Sends a piece and never ends.
fn endless(cloud: &Cloud, path: &str) {
    cloud.on(path, |_| async {
        let pieces = futures_util::stream::once(async { Ok::<_, std::convert::Infallible>("one\n".into()) });
        let endless = futures_util::StreamExt::chain(pieces, futures_util::stream::pending());
        Response::new(stream(endless))
    });
}

/// Waits until the hub knows that the cloud is away. The probe's message names the cause.
async fn until_away(hub: &TestHub) {
    hub.until("the silence must be noticed", |state| state["cloudReachable"] == false)
        .await;
}

fn is_refused_at_once(answer: &Answer) -> bool {
    answer.code == 503
        && answer.header("retry-after") == Some("1")
        && String::from_utf8_lossy(&answer.body).contains("none of its servers answers")
}

#[tokio::test]
async fn requests_in_flight_end_when_the_link_falls_silent() {
    let cloud = Cloud::start().await;
    let (hub, link) = behind_a_link(&cloud, &[]).await;
    let (arrived, mut at_the_cloud) = mpsc::channel(4);
    for path in [LEASES, MAPS] {
        let arrived = arrived.clone();
        cloud.on(path, move |_| {
            let arrived = arrived.clone();
            async move {
                arrived.send(()).await.unwrap();
                std::future::pending().await
            }
        });
    }
    endless(&cloud, LOG);
    endless(&cloud, "/api/v1/events");
    let kubelet = hub.kubelet();
    let mut log = kubelet.open(request(Method::GET, LOG, &[], empty())).await.into_body();
    let watch = request(Method::GET, "/api/v1/events?watch=1", &[], empty());
    let mut watch = kubelet.open(watch).await.into_body();
    for body in [&mut log, &mut watch] {
        assert_eq!(piece(body).await.unwrap().unwrap(), "one\n");
    }
    let get = kubelet.get(LEASES);
    let post = kubelet.send(request(Method::POST, MAPS, &[], full("{}")));
    let freezing = async {
        for _ in 0..2 {
            at_the_cloud.recv().await.unwrap();
        }
        link.freeze();
    };
    let all = async { tokio::join!(get, post, freezing, piece(&mut log), piece(&mut watch)) };
    let (get, post, (), log, watch) = tokio::time::timeout(PATIENCE, all).await.expect("all must end");
    assert_eq!(
        (get.code, get.header("retry-after")),
        (503, Some("1")),
        "a read is repeated"
    );
    assert_eq!(
        (post.code, post.header("retry-after")),
        (504, None),
        "the cloud may have acted on it"
    );
    for answer in [&get, &post] {
        let why = String::from_utf8_lossy(&answer.body);
        assert!(
            why.contains("the server has fallen silent"),
            "not for a later cause: {why}"
        );
    }
    assert!(
        log.unwrap().is_err(),
        "an answer that is cut is not taken for a whole one"
    );
    assert!(watch.is_none(), "a watch ends cleanly, and its client resumes it");
    assert_eq!(hub.state().await["cloudReachable"], false);
}

#[tokio::test]
async fn pipe_ends_when_the_link_falls_silent() {
    let cloud = Cloud::start().await;
    let (hub, link) = behind_a_link(&cloud, &[]).await;
    let tasks = cloud.tasks();
    cloud.on(EXEC, move |mut request| {
        let upgrade = hyper::upgrade::on(&mut request);
        tasks.spawn("hold", async move {
            let _upgraded = upgrade.await;
            std::future::pending().await
        });
        let answer = Response::builder().status(101).header("connection", "Upgrade");
        let answer = answer.header("upgrade", "SPDY/3.1").body(empty()).unwrap();
        async move { answer }
    });
    let mut connection = hub.connect().await;
    let head = format!(
        "POST {EXEC} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: kubelet/v1\r\nContent-Length: 0\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    let mut begin = [0; 13];
    connection.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 101 ");
    link.freeze();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, connection.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the pipe must end");
}

#[tokio::test]
async fn nothing_is_asked_of_a_cloud_that_is_known_to_be_away() {
    let mut cloud = Cloud::start().await;
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    let (hub, link) = behind_a_link(&cloud, &[]).await;
    cloud.on(LEASES, async |_| answer_json(http::StatusCode::OK, "{}"));
    hub.kubelet().get(LEASES).await.expect(200);
    link.freeze();
    until_away(&hub).await;
    for client in [hub.kubelet(), hub.bearer("pod/v1", "t")] {
        let get = client.get(LEASES).await;
        assert!(is_refused_at_once(&get), "{get:?}");
        let post = client.send(request(Method::POST, MAPS, &[], full("{}"))).await;
        assert!(
            is_refused_at_once(&post),
            "nothing was sent, so it may be repeated: {post:?}"
        );
    }
    assert_eq!(hub.kube_proxy().get("/api/v1/services").await.names(), ["web"]);
    link.thaw();
    eventually("the cloud must be used again", async || {
        (hub.kubelet().get(LEASES).await.code == 200).then_some(())
    })
    .await;
    // A refused connection is another cause of the same state.
    cloud.go_away().await;
    until_away(&hub).await;
    let get = hub.kubelet().get(LEASES).await;
    assert!(is_refused_at_once(&get), "{get:?}");
}

#[tokio::test]
async fn server_that_is_not_healthy_is_still_asked_if_there_is_no_better_one() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(LEASES, async |_| answer_json(http::StatusCode::OK, "{}"));
    cloud.on("/livez", async |_| {
        answer_json(http::StatusCode::INTERNAL_SERVER_ERROR, "{}")
    });
    until_away(&hub).await;
    hub.kubelet().get(LEASES).await.expect(200);
}
