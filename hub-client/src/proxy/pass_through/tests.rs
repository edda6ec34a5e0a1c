//! Upgrades and headers, against servers of the test.

mod repeated;

use std::net::Ipv4Addr;

use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;
use yurt_runtime::http::client::{HttpClient, Protocol};
use yurt_runtime::http::server::{Handler, Limits, Server, handler};
use yurt_runtime::http::{full, read_body, status_response};
use yurt_test_support::{PATIENCE, eventually};

use super::*;
use crate::failures::Failures;
use crate::proxy::caller::Origin;

const EXEC: &str = "/api/v1/namespaces/shop/pods/web/exec";

/// Serves at a free port of this machine; returns the URL.
async fn serve(tasks: &TaskGroup, limits: Limits, handler: Handler) -> String {
    let server = Server::bind((Ipv4Addr::LOCALHOST, 0).into(), "--test").await.unwrap();
    let serving = server.with_limits(limits).serve(tasks, handler);
    format!("http://{}", serving.local_addr())
}

/// A cloud that accepts every upgrade, and keeps it until the other side ends it.
fn upgrading(tasks: TaskGroup) -> Handler {
    handler(move |mut request, _| {
        let upgrade = hyper::upgrade::on(&mut request);
        tasks.spawn_isolated("upgraded", async move {
            let Ok(upgraded) = upgrade.await else { return };
            let _ = TokioIo::new(upgraded).read_to_end(&mut Vec::new()).await;
        });
        let answer = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        let answer = answer.header(CONNECTION, "Upgrade").header(UPGRADE, "SPDY/3.1");
        std::future::ready(answer.body(empty()).unwrap())
    })
}

/// Sends to the servers of a cloud.
fn pass_through_to(servers: &[&str], tasks: TaskGroup) -> PassThrough {
    PassThrough {
        cloud: Arc::new(Cloud::of_servers(servers)),
        reach: watch::Sender::new(CloudReach { failed_probes: Some(0) }).subscribe(),
        tasks,
        wake: Arc::default(),
        streams: OpenAnswers::streams(),
        agents: Arc::new(Agents::new(
            watch::Sender::default().subscribe(),
            Failures::new(yurt_runtime::Clock::system()),
        )),
        end_watches: CancellationToken::new(),
    }
}

fn pod() -> Caller {
    Caller {
        component: "pod".to_owned(),
        credential: Credential::Token("t".to_owned()),
        origin: Origin {
            address: Ipv4Addr::LOCALHOST.into(),
            uid: None,
        },
    }
}

/// Passes all requests on to the servers of a cloud as those of one pod.
fn passing_on(servers: &[&str], tasks: TaskGroup) -> Handler {
    let pass_through = Arc::new(pass_through_to(servers, tasks));
    handler(move |request, _| {
        let pass_through = pass_through.clone();
        async move {
            let info = RequestInfo::parse("POST", EXEC, None).unwrap();
            let sent = pass_through.send(request.map(pass), &info, &pod()).await;
            sent.unwrap_or_else(|status| status_response(&status))
        }
    })
}

/// A pod's upgrade over a connection of its own.
async fn upgrade(hub: &str) -> Response<Incoming> {
    let pod = HttpClient::new(hub.parse().unwrap(), None, Protocol::Http1, Duration::from_secs(20)).unwrap();
    let ask = Request::post(EXEC).header(CONNECTION, "Upgrade");
    let ask = ask.header(UPGRADE, "SPDY/3.1").body(empty()).unwrap();
    pod.send(ask).await.unwrap()
}

#[tokio::test]
async fn upgrade_goes_to_the_next_server_if_the_first_one_refuses_connections() {
    let tasks = TaskGroup::new();
    let cloud = serve(&tasks, Limits::default(), upgrading(tasks.clone())).await;
    let passing_on = passing_on(&["http://127.0.0.1:1", &cloud], tasks.clone());
    let hub = serve(&tasks, Limits::default(), passing_on).await;
    assert_eq!(upgrade(&hub).await.status(), StatusCode::SWITCHING_PROTOCOLS);
}

/// A listener whose queue is full, so that further connections get no answer, and the connections in its queue.
async fn silent() -> (TcpListener, Vec<TcpStream>) {
    const UNANSWERED: Duration = Duration::from_millis(200);
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(yurt_test_support::LOOPBACK).unwrap();
    let listener = socket.listen(1).unwrap();
    let (address, mut queued) = (listener.local_addr().unwrap(), Vec::new());
    while let Ok(stream) = tokio::time::timeout(UNANSWERED, TcpStream::connect(address)).await {
        queued.push(stream.unwrap());
    }
    (listener, queued)
}

#[tokio::test]
async fn upgrade_goes_to_the_next_server_if_the_first_one_is_lost_before_it_connects() {
    let tasks = TaskGroup::new();
    let cloud = serve(&tasks, Limits::default(), upgrading(tasks.clone())).await;
    let (first, _queued) = silent().await;
    let first = format!("http://{}", first.local_addr().unwrap());
    let to = pass_through_to(&[&first, &cloud], tasks.clone());
    let ask = Request::post(EXEC).header(UPGRADE, "SPDY/3.1").body(empty()).unwrap();
    let info = RequestInfo::parse("POST", EXEC, None).unwrap();
    let caller = pod();
    // The request waits for its connection when the server is lost.
    let losing = async { to.cloud.at(0).availability.set(Some(false), false) };
    let (sent, ()) = tokio::join!(to.send(ask, &info, &caller), losing);
    assert_eq!(sent.unwrap().status(), StatusCode::SWITCHING_PROTOCOLS);
}

/// As an apiserver that has lost its etcd: `/livez` gets an error, other requests get nothing.
#[tokio::test]
async fn repeatable_request_goes_to_the_next_server_once_the_first_one_is_down_although_it_answers() {
    let (tasks, asked) = (TaskGroup::new(), Arc::new(Notify::new()));
    let asking = asked.clone();
    let hanging = handler(move |_, _| {
        asking.notify_one();
        std::future::pending()
    });
    let issuing = handler(|_, _| std::future::ready(Response::new(full("token"))));
    let hanging = serve(&tasks, Limits::default(), hanging).await;
    let issuing = serve(&tasks, Limits::default(), issuing).await;
    let to = pass_through_to(&[&hanging, &issuing], tasks.clone());
    for server in [0, 1] {
        to.cloud.at(server).availability.set(Some(true), true);
    }
    let path = "/api/v1/namespaces/shop/serviceaccounts/web/token";
    let ask = Request::post(path).body(full("{}")).unwrap();
    let (info, caller) = (RequestInfo::parse("POST", path, None).unwrap(), pod());
    let falling = async {
        asked.notified().await;
        to.cloud.at(0).availability.set(Some(false), true);
    };
    let sending = tokio::time::timeout(PATIENCE, to.send_repeatable(ask, &info, &caller));
    let (sent, ()) = tokio::join!(sending, falling);
    let answer = sent.expect("the first server must be left").unwrap();
    assert_eq!(read_body(answer.into_body(), 64).await.unwrap(), "token");
}

#[test]
fn json_patches_are_not_repeated() {
    let of =
        |content_type: &'static str| HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
    assert!(!may_repeat(&of("application/json-patch+json; charset=utf-8")));
    assert!(may_repeat(&of("application/strategic-merge-patch+json")));
    assert!(may_repeat(&HeaderMap::new()));
}

/// The hub's server does not serve an upgraded connection any more, but counts it.
#[tokio::test]
async fn upgraded_connections_of_a_pod_hold_their_places_until_they_end() {
    let tasks = TaskGroup::new();
    let cloud = serve(&tasks, Limits::default(), upgrading(tasks.clone())).await;
    // One caller gets four of so few places.
    let limits = Limits {
        max_connections: 8,
        ..Limits::default()
    };
    let hub = serve(&tasks, limits, passing_on(&[&cloud], tasks.clone())).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(upgrade(&hub).await);
    }
    assert!(held.iter().all(|one| one.status() == StatusCode::SWITCHING_PROTOCOLS));
    let refused = upgrade(&hub).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()[CONNECTION], "close");
    held.pop();
    eventually("the place must be free again", async || {
        (upgrade(&hub).await.status() == StatusCode::SWITCHING_PROTOCOLS).then_some(())
    })
    .await;
}

#[test]
fn headers_of_the_clients_connection_are_not_passed_on() {
    let mut request = Request::new(());
    let headers = request.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("close, X-Hop"));
    for name in [
        "te",
        "trailer",
        "transfer-encoding",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
    ] {
        headers.insert(name, HeaderValue::from_static("1"));
    }
    for name in ["host", "upgrade", "x-hop", "x-kept"] {
        headers.insert(name, HeaderValue::from_static("1"));
    }
    let head = forwardable(request.into_parts().0);
    let names: Vec<&str> = head.headers.keys().map(HeaderName::as_str).collect();
    assert_eq!(names, ["x-kept"]);
}
