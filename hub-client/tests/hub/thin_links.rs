//! First lists over slow and unreliable links: they resume after each cut.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use yurt_runtime::TaskGroup;
use yurt_test_support::LOOPBACK;

use super::cloud::Cloud;
use super::harness::TestHub;

const SERVICES: &str = "/api/v1/services";
/// Approximate bytes of each object of these tests.
const OBJECT: usize = 10_000;

/// A link to a server with a limited rate in bytes per second; it breaks each connection after a number of bytes.
pub(crate) struct Link {
    pub(crate) addr: SocketAddr,
    connections: Arc<AtomicU64>,
    /// Bytes sent to clients.
    sent: Arc<AtomicU64>,
    tasks: TaskGroup,
}

// === impl Link ===

impl Link {
    pub(crate) async fn to(server: SocketAddr, rate: u64, cut_after: u64) -> Self {
        let listener = TcpListener::bind(LOOPBACK).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let connections = Arc::<AtomicU64>::default();
        let tasks = TaskGroup::new();
        let sent = Arc::<AtomicU64>::default();
        let (group, accepted, counted) = (tasks.clone(), connections.clone(), sent.clone());
        tasks.spawn("link", async move {
            while let Ok((client, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::Relaxed);
                let counted = counted.clone();
                group.spawn("connection", async move {
                    // Either end may go away at any time.
                    let _ = pass(client, server, rate, cut_after, &counted).await;
                });
            }
        });
        Self {
            addr,
            connections,
            sent,
            tasks,
        }
    }

    fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Bytes that clients got so far.
    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub(crate) async fn end(self) {
        let _ = self.tasks.shutdown(Duration::ZERO).await;
    }
}

async fn pass(
    mut client: TcpStream,
    server: SocketAddr,
    rate: u64,
    cut_after: u64,
    sent: &AtomicU64,
) -> std::io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let up = async {
        tokio::io::copy(&mut from_client, &mut to_server).await?;
        Ok(())
    };
    let down = async {
        let (mut buffer, mut left) = ([0; 4096], cut_after);
        loop {
            let read = from_server.read(&mut buffer).await?;
            if read == 0 || (read as u64) > left {
                return Ok(());
            }
            left -= read as u64;
            tokio::time::sleep(Duration::from_secs(1).mul_f64(read as f64 / rate as f64)).await;
            to_client.write_all(&buffer[..read]).await?;
            sent.fetch_add(read as u64, Ordering::Relaxed);
        }
    };
    tokio::select! { ended = up => ended, ended = down => ended }
}

fn service(number: usize, version: u64) -> Value {
    service_of(OBJECT, number, version)
}

fn service_of(bytes: usize, number: usize, version: u64) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": format!("web-{number:04}")},
        "spec": {"ports": [{"port": version}]},
        "padding": "x".repeat(bytes),
    })
}

/// Number of lists that began, by the queries at the cloud, without those of metadata alone.
fn first_pages(cloud: &Cloud) -> usize {
    let seen = cloud.seen(SERVICES);
    let copies = seen.iter().filter(|seen| !seen.is_of_metadata());
    let queries = copies.filter_map(|seen| seen.query.as_deref());
    let begins = |query: &&str| query.starts_with("limit=") && !query.contains("continue=");
    queries.filter(begins).count()
}

async fn objects(hub: &TestHub) -> Vec<Value> {
    let list = hub.kube_proxy().get(SERVICES).await.json();
    list["items"].as_array().unwrap().clone()
}

#[tokio::test]
async fn list_over_a_link_that_breaks_costs_little_more_than_its_size() {
    let mut cloud = Cloud::start().await;
    let put: Vec<Value> = (0..600)
        .map(|number| cloud.put("services", service_of(OBJECT / 2, number, 1)))
        .collect();
    let cut_after = 200_000;
    let link = Link::to(cloud.addr(), u64::MAX, cut_after).await;
    cloud.put_behind(link.addr);
    let hub = TestHub::start(&cloud, &[]).await;
    assert!(objects(&hub).await == put, "all of it, and nothing else");
    assert_eq!(first_pages(&cloud), 1, "never from the beginning");
    // A cut costs a page at most. A page is an eighth of what the hub estimates between two cuts, so a quarter if the
    // estimate is twice too high. Before the first cut the link is unknown, which may cost all of one connection.
    // Another quarter is for handshakes and probes, which grow with the time that a busy machine takes.
    let size: u64 = put.iter().map(|object| object.to_string().len() as u64).sum();
    let (sent, bound) = (link.sent(), size * 3 / 2 + cut_after);
    assert!(sent <= bound, "{sent} bytes for {size}, at most {bound}");
    assert!(link.connections() > 10, "the link did break");
    link.end().await;
}

#[tokio::test]
async fn list_goes_on_after_a_restart_of_the_hub() {
    let mut cloud = Cloud::start().await;
    let put: Vec<Value> = (0..200)
        .map(|number| cloud.put("services", service(number, 1)))
        .collect();
    let link = Link::to(cloud.addr(), 600_000, u64::MAX).await;
    cloud.put_behind(link.addr);
    let mut hub = TestHub::start_at_once(&cloud, &[]).await;
    let half = |state: &Value| state["collections"]["services"]["listing"]["objects"].as_u64() > Some(60);
    hub.until("some pages must arrive", half).await;
    hub.restart().await;
    hub.wait_until_complete().await;
    assert!(objects(&hub).await == put);
    assert_eq!(first_pages(&cloud), 1, "never from the beginning");
    hub.until("it must be stored, and the draft be gone", |state| {
        let services = &state["collections"]["services"];
        services["listing"].is_null() && services["durableRv"] == services["rv"]
    })
    .await;
    hub.restart().await;
    assert_eq!(first_pages(&cloud), 1, "a complete replica is not listed");
    link.end().await;
}

#[tokio::test]
async fn list_whose_state_the_cloud_forgets_ends_as_one_state() {
    let mut cloud = Cloud::start().await;
    for number in 0..200 {
        cloud.put("services", service(number, 1));
    }
    let link = Link::to(cloud.addr(), 500_000, 600_000).await;
    cloud.put_behind(link.addr);
    let hub = TestHub::start_at_once(&cloud, &[]).await;
    let begun = |state: &Value| state["collections"]["services"]["listing"]["objects"].as_u64() > Some(30);
    hub.until("some pages must arrive", begun).await;
    // The server's history is bounded by bytes: this is more.
    for number in 0..150 {
        cloud.put("services", service(number, 2));
    }
    (0..10).for_each(|number| cloud.delete("services", "shop", &format!("web-{number:04}")));
    (150..160).for_each(|number| cloud.delete("services", "shop", &format!("web-{number:04}")));
    let new = cloud.put("services", service(5, 3));
    hub.wait_until_complete().await;
    let listed = objects(&hub).await;
    assert_eq!(listed.len(), 181);
    assert_eq!(listed[0], new);
    let versions = listed
        .iter()
        .map(|object| object["spec"]["ports"][0]["port"].as_u64().unwrap());
    assert_eq!(versions.sum::<u64>(), 3 + 140 * 2 + 40, "the last state of each");
    assert_eq!(first_pages(&cloud), 1, "never from the beginning");
    link.end().await;
}

/// A cloud is restored from a backup during a first list: the received pages are of the lost history.
///
/// Conformance: 7.55
#[tokio::test]
async fn begun_list_of_a_lost_history_is_dropped() {
    let mut cloud = Cloud::start().await;
    for number in 0..200 {
        cloud.put("services", service(number, 1));
    }
    let backup = cloud.backup();
    for number in 0..200 {
        cloud.put("services", service(number, 2));
    }
    let link = Link::to(cloud.addr(), 600_000, u64::MAX).await;
    cloud.put_behind(link.addr);
    let mut hub = TestHub::start_at_once(&cloud, &[]).await;
    let half = |state: &Value| state["collections"]["services"]["listing"]["objects"].as_u64() > Some(60);
    hub.until("some pages must arrive", half).await;
    hub.stop().await;
    cloud.restore(backup);
    for number in 0..300 {
        let pod = json!({"metadata": {"namespace": "shop", "name": format!("p{number}")}});
        cloud.put("pods", pod);
    }
    hub.restart().await;
    hub.wait_until_complete().await;
    let listed = yurt_test_support::eventually("the new generation must be served", async || {
        let list = hub.kube_proxy().get(SERVICES).await;
        (list.code == 200).then(|| list.json()["items"].as_array().unwrap().clone())
    })
    .await;
    let lost = listed.iter().filter(|object| object["spec"]["ports"][0]["port"] == 2);
    assert_eq!((listed.len(), lost.count()), (200, 0), "nothing of the lost history");
    assert_eq!(first_pages(&cloud), 2, "from the beginning");
    link.end().await;
}
