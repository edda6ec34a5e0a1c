//! Several cloud servers: requests are spread or ordered by preference, and leave a server that is down.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use yurt_runtime::http::json as answer_json;
use yurt_test_support::eventually;

use super::cloud::Cloud;
use super::harness::TestHub;
use super::relay_pool::Link;

/// Leases are never cached: their lists and watches go to the cloud.
const LEASES: &str = "/apis/coordination.k8s.io/v1/leases";

/// A hub with two servers of one cloud.
async fn with_two(flag: &str) -> (Cloud, Cloud, TestHub) {
    let first = Cloud::start().await;
    let second = first.another_server().await;
    first.on(LEASES, async |_| answer_json(http::StatusCode::OK, "{}"));
    let servers = format!("{},{}", first.url(), second.url());
    let hub = TestHub::start_node(&first, "n1", &servers, &[flag]).await;
    hub.wait_until_complete().await;
    (first, second, hub)
}

/// Sends a few requests, which must succeed, and returns the servers that received them.
async fn users(cloud: &Cloud, hub: &TestHub) -> BTreeSet<SocketAddr> {
    let before = cloud.seen(LEASES).len();
    for _ in 0..6 {
        hub.kubelet().get(LEASES).await.expect(200);
    }
    cloud.seen(LEASES)[before..].iter().map(|seen| seen.at).collect()
}

#[tokio::test]
async fn requests_take_the_servers_that_are_up_in_turn() {
    let (first, mut second, hub) = with_two("--lb-mode=rr").await;
    let both = BTreeSet::from([first.addr(), second.addr()]);
    eventually("both servers must be used", async || {
        (users(&first, &hub).await == both).then_some(())
    })
    .await;
    second.go_away().await;
    eventually("the other server must be left", async || {
        (hub.kubelet().get(LEASES).await.code == 200).then_some(())
    })
    .await;
    assert_eq!(hub.state().await["cloudReachable"], true);
    second.come_back().await;
    eventually("the other server must be used again", async || {
        (users(&first, &hub).await == both).then_some(())
    })
    .await;
}

#[tokio::test]
async fn all_requests_go_to_the_preferred_server_while_it_is_up() {
    let (mut first, second, hub) = with_two("--lb-mode=priority").await;
    assert_eq!(users(&first, &hub).await, BTreeSet::from([first.addr()]));
    first.go_away().await;
    eventually("the next server must be used", async || {
        (hub.kubelet().get(LEASES).await.code == 200).then_some(())
    })
    .await;
    assert_eq!(users(&first, &hub).await, BTreeSet::from([second.addr()]));
}

#[tokio::test]
async fn first_server_that_is_silent_costs_no_request_anything() {
    let cloud = Cloud::start().await;
    cloud.on(LEASES, async |_| answer_json(http::StatusCode::OK, "{}"));
    let silent = Link::to(cloud.addr()).await;
    silent.freeze();
    for mode in ["--lb-mode=rr", "--lb-mode=priority"] {
        let servers = format!("{},{}", silent.url(), cloud.url());
        let hub = TestHub::start_node(&cloud, "n1", &servers, &[mode]).await;
        for _ in 0..4 {
            hub.kubelet().get(LEASES).await.expect(200);
        }
    }
}
