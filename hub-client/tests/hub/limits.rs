//! A client cannot take more of the hub than its share.

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::{Method, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use yurt_runtime::http::{empty, full, json as answer_json};
use yurt_test_support::eventually;

use super::client::request;
use super::cloud::Cloud;
use super::harness::TestHub;

/// Leases are never cached: their lists and watches go to the cloud.
const LEASES: &str = "/apis/coordination.k8s.io/v1/leases";
const SERVICES: &str = "/api/v1/services";

/// Holds requests for leases at the cloud until the gate is opened.
fn hold_leases(cloud: &Cloud) -> watch::Sender<bool> {
    hold(cloud, LEASES)
}

fn hold(cloud: &Cloud, path: &str) -> watch::Sender<bool> {
    let gate = watch::Sender::new(false);
    let open = gate.clone();
    cloud.on(path, move |_| {
        let mut open = open.subscribe();
        async move {
            open.wait_for(|open| *open).await.unwrap();
            answer_json(StatusCode::OK, "{}")
        }
    });
    gate
}

async fn until_held(cloud: &Cloud, count: usize) {
    eventually("the requests must reach the cloud", async || {
        (cloud.seen(LEASES).len() == count).then_some(())
    })
    .await;
}

/// The lease of the node the test hub runs on.
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";

#[tokio::test]
async fn requests_above_the_limit_get_429_and_watches_do_not_count() {
    let cloud = Cloud::start().await;
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    let hub = TestHub::start(&cloud, &["--max-requests-in-flight=2"]).await;
    let gate = hold_leases(&cloud);
    let [one, two] = [hub.kubelet(), hub.kubelet()];
    let meanwhile = async {
        until_held(&cloud, 2).await;
        // Two wait, the third is refused.
        let waiting = (0..3).map(|_| async { hub.kube_proxy().get(SERVICES).await });
        let mut waiting: FuturesUnordered<_> = waiting.collect();
        let refused = waiting.next().await.unwrap();
        assert_eq!((refused.code, refused.header("retry-after")), (429, Some("1")));
        assert_eq!(refused.json()["reason"], "TooManyRequests");
        assert_eq!(hub.kube_proxy().watch(SERVICES).await.told().await, "ADDED web");
        let beat = hub.kubelet().get(LEASE).await;
        assert_ne!(beat.code, 429, "a full hub must not make its node look dead");
        assert_eq!(cloud.seen(LEASES).len(), 2, "what is refused costs the cloud nothing");
        gate.send_replace(true);
        let answers: Vec<_> = waiting.map(|answer| answer.code).collect().await;
        assert_eq!(answers, [200, 200], "the waiting requests are served");
    };
    let (one, two, ()) = tokio::join!(one.get(LEASES), two.get(LEASES), meanwhile);
    assert_eq!((one.code, two.code), (200, 200));
    hub.kube_proxy().get(SERVICES).await.expect(200);
}

#[tokio::test]
async fn client_that_hangs_up_gives_its_place_back() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &["--max-requests-in-flight=1"]).await;
    let _gate = hold_leases(&cloud);
    let kubelet = hub.kubelet();
    tokio::select! {
        _ = kubelet.open(request(Method::GET, LEASES, &[], empty())) => panic!("the cloud holds this request"),
        () = until_held(&cloud, 1) => {}
    }
    let free = async || (hub.kube_proxy().get(SERVICES).await.code == 200).then_some(());
    eventually("the place must be free again", free).await;
}

#[tokio::test]
async fn gauge_of_requests_in_flight_goes_down_again() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    hub.kubelet().get(LEASES).await.expect(200);
    let metrics = hub.admin().get("/metrics").await.expect(200);
    let metrics = String::from_utf8_lossy(&metrics).into_owned();
    assert!(
        metrics.contains("node_yurthub_in_flight_requests_total 0\n"),
        "nothing is in flight any more:\n{metrics}"
    );
}

/// A bearer's request on a connection of its own.
async fn ask(hub: &TestHub, method: &str, path: &str, headers: &str) -> TcpStream {
    ask_as("pod", hub, method, path, headers).await
}

/// The same with the name of a component.
async fn ask_as(component: &str, hub: &TestHub, method: &str, path: &str, headers: &str) -> TcpStream {
    let mut connection = hub.connect().await;
    let agent = format!("User-Agent: {component}/v1\r\n");
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{agent}Authorization: Bearer t\r\n{headers}\r\n");
    connection.write_all(head.as_bytes()).await.unwrap();
    connection
}

/// The deprecated form of a watch.
const WATCHED: &str = "/apis/coordination.k8s.io/v1/watch/leases";
const OWN_REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

#[tokio::test]
async fn bodies_that_never_end_do_not_take_the_kubelets_places() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &["--max-requests-in-flight=10"]).await;
    let mut unfinished = Vec::new();
    for _ in 0..10 {
        unfinished.push(ask(&hub, "POST", OWN_REVIEWS, "Content-Length: 100\r\n").await);
    }
    until_busy(&hub, 8).await;
    for _ in 0..5 {
        hub.kubelet().get(LEASES).await.expect(200);
        hub.kube_proxy().get(SERVICES).await.expect(200);
    }
    // Waits behind the pod and gets a place, because missing bodies time out.
    let other = hub.bearer("pod/v1", "other").get(LEASES).await;
    assert_eq!(other.code, 200);
    let mut answer = String::new();
    unfinished[0].read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 400 ") && answer.contains("body did not come"),
        "{answer}"
    );
}

#[tokio::test]
async fn unfinished_patches_of_a_bearer_take_its_share_alone_and_the_kubelet_patches_on() {
    const SERVICE: &str = "/api/v1/namespaces/shop/services/web";
    const PATCH: &str = "application/merge-patch+json";
    let cloud = Cloud::start().await;
    let web = json!({"metadata": {"namespace": "shop", "name": "web"}});
    let web = cloud.put("services", web).to_string();
    cloud.on(SERVICE, move |_| {
        let web = web.clone();
        async { answer_json(StatusCode::OK, web) }
    });
    let hub = TestHub::start(&cloud, &[]).await;
    // Reads of services by this component are filtered, so the hub reads its writes. They are as large as they may be.
    let headers = format!("Content-Type: {PATCH}\r\nContent-Length: {}\r\n", 3 << 20);
    let patch = async || ask_as("kubelet", &hub, "PATCH", SERVICE, &headers).await;
    let _unfinished = [patch().await, patch().await];
    until_busy(&hub, 2).await;
    let mut answer = [0; 12];
    patch().await.read_exact(&mut answer).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 429");
    let own = request(Method::PATCH, SERVICE, &[("content-type", PATCH)], full("{}"));
    hub.kubelet().send(own).await.expect(200);
}

#[tokio::test]
async fn filtered_write_whose_answer_has_no_room_does_not_reach_the_cloud() {
    const SERVICE: &str = "/api/v1/namespaces/shop/services/web";
    const PATCH: &str = "application/merge-patch+json";
    /// Less than the answer of the write.
    const FREE: usize = 32 << 10;
    let cloud = Cloud::start().await;
    let annotations = json!({"long": "x".repeat(FREE)});
    let web = json!({"metadata": {"namespace": "shop", "name": "web", "annotations": annotations}});
    let web = cloud.put("services", web).to_string();
    cloud.on(SERVICE, move |_| {
        let web = web.clone();
        async { answer_json(StatusCode::OK, web) }
    });
    let hub = TestHub::start(&cloud, &[]).await;
    let mut unfinished = Vec::new();
    for length in [3 << 20, 3 << 20, (1 << 20) - FREE] {
        let headers = format!("Content-Type: {PATCH}\r\nContent-Length: {length}\r\n");
        unfinished.push(ask_as("kubelet", &hub, "PATCH", SERVICE, &headers).await);
    }
    until_busy(&hub, unfinished.len()).await;
    let patch = request(Method::PATCH, SERVICE, &[("content-type", PATCH)], full("{}"));
    let refused = hub.bearer("kubelet/v1", "t").send(patch).await;
    assert_eq!((refused.code, refused.header("retry-after")), (429, Some("1")));
    assert_eq!(cloud.seen(SERVICE).len(), 0);
}

#[tokio::test]
async fn streams_that_do_not_open_hold_places_too() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &["--max-requests-in-flight=5"]).await;
    let _gates = [LEASES, WATCHED].map(|path| hold(&cloud, path));
    let mut asking = Vec::new();
    for number in 0..9 {
        let (path, headers) = match number % 3 {
            0 => (format!("{LEASES}?watch=1"), ""),
            1 => (LEASES.to_owned(), "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"),
            _ => (WATCHED.to_owned(), ""),
        };
        asking.push(ask(&hub, "GET", &path, headers).await);
        let held = || cloud.seen(LEASES).len() + cloud.seen(WATCHED).len();
        let reached = asking.len().min(4);
        eventually("the first four must reach the cloud", async || {
            (held() >= reached).then_some(())
        })
        .await;
    }
    hub.kube_proxy().get(SERVICES).await.expect(200);
    hub.kube_proxy().watch(SERVICES).await;
    let held = cloud.seen(LEASES).len() + cloud.seen(WATCHED).len();
    assert_eq!(held, 4, "the fifth place is the node's");
}

/// Waits until so many requests are in flight.
async fn until_busy(hub: &TestHub, count: usize) {
    let gauge = format!("node_yurthub_in_flight_requests_total {count}\n");
    eventually("the requests must be in flight", async || {
        let metrics = hub.admin().get("/metrics").await.expect(200);
        String::from_utf8_lossy(&metrics).contains(&gauge).then_some(())
    })
    .await;
}
