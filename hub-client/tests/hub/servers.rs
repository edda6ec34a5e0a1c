//! Several cloud servers: requests are spread or ordered by preference, and leave a server that is down.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::StatusCode;
use http::header::HOST;
use yurt_runtime::http::{json as answer_json, text};
use yurt_test_support::eventually;

use super::cloud::{Cloud, SeenRequest};
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

/// The server's watches stay open and silent, as those of an apiserver that has lost its etcd.
#[tokio::test]
async fn streams_of_data_leave_a_server_that_is_down_although_it_answers() {
    let (first, second, hub) = with_two("--lb-mode=rr").await;
    let (down, host) = (Arc::new(AtomicBool::new(false)), first.addr().to_string());
    let is_down = down.clone();
    first.on("/livez", move |request| {
        let given = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let authority = request.uri().authority().map(|authority| authority.as_str());
        let is_first = authority.or(given) == Some(&host);
        let code = match is_first && is_down.load(Ordering::Relaxed) {
            true => StatusCode::INTERNAL_SERVER_ERROR,
            false => StatusCode::OK,
        };
        async move { text(code, "") }
    });
    let streams = |path: &'static str| {
        let is_watch = |seen: &SeenRequest| seen.query.as_ref().is_some_and(|query| query.contains("watch=1"));
        let seen = first.seen(path).into_iter();
        let watches: BTreeSet<SocketAddr> = seen.filter(is_watch).map(|seen| seen.at).collect();
        watches
    };
    let pods = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
    let _reader = hub.kubelet().watch(pods).await;
    for path in ["/api/v1/services", "/api/v1/pods"] {
        eventually("the first server must be used", async || {
            streams(path).contains(&first.addr()).then_some(())
        })
        .await;
    }
    down.store(true, Ordering::Relaxed);
    for path in [
        "/api/v1/services",
        "/api/v1/pods",
        "/api/v1/namespaces/kube-system/configmaps",
    ] {
        eventually("streams must go on at the second server", async || {
            streams(path).contains(&second.addr()).then_some(())
        })
        .await;
    }
    assert_eq!(hub.state().await["cloudReachable"], true);
}
