//! A stop ends calls that no server answers: tasks that still run keep what is left of another cluster.

use http::{Response, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use yurt_runtime::http::empty;
use yurt_test_support::PATIENCE;

use super::cloud::{Cloud, SELF_REVIEWS};
use super::harness::TestHub;
use super::offline_events::{self, EVENTS};
use super::offline_writes::{self, POD, Stored};
use super::pool::Pool;

const FEED: &str = "/yurt/v1/feed";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
const EXEC: &str = "/api/v1/namespaces/shop/pods/web/exec";

/// A server that answers no request for a path.
struct Silence(watch::Receiver<usize>);

// === impl Silence ===

impl Silence {
    fn at(server: &Cloud, path: &str) -> Self {
        let (arrived, arrives) = watch::channel(0);
        server.on(path, move |_| {
            arrived.send_modify(|count| *count += 1);
            std::future::pending()
        });
        Self(arrives)
    }

    /// Waits for so many requests.
    async fn heard(mut self, requests: usize) {
        let heard = tokio::time::timeout(PATIENCE, self.0.wait_for(|count| *count >= requests));
        heard.await.expect("requests must come").expect("the server must live");
    }
}

/// Opens an upgraded connection that never ends.
async fn exec(hub: &TestHub, cloud: &Cloud) -> tokio::net::TcpStream {
    let tasks = cloud.tasks();
    cloud.on(EXEC, move |mut request| {
        let upgrade = hyper::upgrade::on(&mut request);
        tasks.spawn("exec", async move {
            let _upgraded = upgrade.await;
            std::future::pending().await
        });
        let answer = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        let answer = answer.header("connection", "Upgrade").header("upgrade", "SPDY/3.1");
        std::future::ready(answer.body(empty()).unwrap())
    });
    let mut connection = hub.connect().await;
    let head = format!("POST {EXEC} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: kubelet/v1\r\nContent-Length: 0\r\n");
    let head = format!("{head}Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n");
    connection.write_all(head.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    connection.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 101");
    connection
}

/// Stops the hub. These tasks must end by themselves; others may still wait for a slow disk.
async fn stop_without_cutting(hub: &mut TestHub, tasks: &[&str]) {
    let cut = hub
        .try_stop()
        .await
        .map_or_else(|running| running.names, |()| Vec::new());
    assert!(!cut.iter().any(|name| tasks.contains(name)), "{cut:?}");
}

#[tokio::test]
async fn stop_ends_requests_and_renewals_that_no_server_answers() {
    let pool = Pool::start_fed().await;
    let mut hub = pool.hub("n1", &["--leader-elect=false"]).await;
    hub.wait_until_complete().await;
    let _exec = exec(&hub, &pool.cloud).await;
    let (kubelet, pod) = (hub.kubelet(), hub.bearer("pod/v1", "token"));
    Silence::at(&pool.coordinator, FEED).heard(1).await;
    // The renewal at the cloud, and the first one at the coordinator, which creates the lease.
    let (at_cloud, at_pool) = (Silence::at(&pool.cloud, LEASE), Silence::at(&pool.coordinator, LEASES));
    let reviews = Silence::at(&pool.cloud, SELF_REVIEWS);
    tokio::select! {
        _ = kubelet.put(LEASE, "application/json", "{}") => panic!("no server answers"),
        _ = pod.get("/api/v1/services") => panic!("no server answers"),
        _ = async { tokio::join!(at_cloud.heard(1), at_pool.heard(1), reviews.heard(1)) } => {}
    }
    stop_without_cutting(
        &mut hub,
        &[
            "probe-coordinator",
            "upgraded",
            "pool-heartbeat",
            "kubelet-lease",
            "ask-authorization",
        ],
    )
    .await;
}

/// A hub that sends what its node wrote without the cloud, at `path`, and gets no answer.
async fn sending(cloud: &mut Cloud, path: &str) -> TestHub {
    Stored::at(cloud, POD, offline_writes::pod("web", "n1"));
    let hub = TestHub::start(cloud, &[]).await;
    offline_writes::read(&hub, &[POD]).await;
    cloud.go_away().await;
    let running = offline_writes::running();
    offline_writes::patch(&hub.kubelet(), POD, &running).await.expect(200);
    offline_events::create(&hub.kubelet(), "web.1").await.expect(201);
    let silence = Silence::at(cloud, path);
    cloud.come_back().await;
    silence.heard(1).await;
    hub
}

#[tokio::test]
async fn stop_keeps_the_write_that_the_cloud_does_not_answer() {
    let mut cloud = Cloud::start().await;
    let mut hub = sending(&mut cloud, POD).await;
    stop_without_cutting(&mut hub, &["send-local-writes"]).await;
    let stored = Stored::at(&cloud, POD, offline_writes::pod("web", "n1"));
    hub.restart().await;
    offline_writes::until_sent(&hub).await;
    assert_eq!(stored.status()["phase"], "Running");
}

#[tokio::test]
async fn stop_keeps_the_event_that_the_cloud_does_not_answer() {
    let mut cloud = Cloud::start().await;
    let mut hub = sending(&mut cloud, EVENTS).await;
    stop_without_cutting(&mut hub, &["send-events"]).await;
    let silence = Silence::at(&cloud, EVENTS);
    hub.restart().await;
    silence.heard(1).await;
}
