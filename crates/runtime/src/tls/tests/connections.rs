//! Eviction of connections, and their end with the certificate. Real sockets, small budgets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use futures_util::StreamExt as _;
use tokio::net::{TcpSocket, TcpStream};

use super::*;
use crate::http::server::{Peer, Rank};
use crate::http::until;

/// Strangers keep their places for the whole test, unless they are evicted.
const LONG: Duration = Duration::from_secs(3600);

fn limits(max_strangers: usize, max_connections: usize) -> Limits {
    Limits {
        max_connections,
        max_strangers,
        max_strangers_per_address: 4,
        handshake_timeout: LONG,
        header_timeout: LONG,
        ..Limits::default()
    }
}

async fn bind(ca: &CertificateAuthority, limits: Limits) -> Server {
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), "--test").await.unwrap();
    let tls = ReloadingServerTls::new(server_tls(ca, ca.cert_pem().to_owned())).unwrap();
    server.with_tls(tls).with_limits(limits)
}

/// Answers every request with a short text.
async fn here(_: http::Request<hyper::body::Incoming>, _: Peer) -> http::Response<crate::http::Body> {
    text(StatusCode::OK, "here")
}

/// A socket from 127.0.0.`host` that never begins a handshake.
pub(super) async fn silent(to: SocketAddr, host: u8) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let from = IpAddr::V4(Ipv4Addr::new(127, 0, 0, host));
    socket.bind(SocketAddr::new(from, 0)).unwrap();
    socket.connect(to).await.unwrap()
}

fn client(serving: &Serving, ca: &CertificateAuthority, user: Option<&str>) -> HttpClient {
    let pair = user.map(|user| ca.issue_client(user, &["system:nodes"]).unwrap());
    let base = format!("https://{}", serving.local_addr()).parse().unwrap();
    let config = client_config(ca.cert_pem(), pair.as_ref());
    HttpClient::new(base, Some(config), Protocol::Http2, TIMEOUT).unwrap()
}

/// True if the server has not closed the connection, which sent no data so far.
fn is_open(stream: &TcpStream) -> bool {
    let nothing = stream.try_read(&mut [0; 1]);
    nothing.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

#[tokio::test]
async fn strangers_of_few_addresses_keep_nobody_out() {
    let (tasks, ca) = (TaskGroup::new(), CertificateAuthority::generate("a").unwrap());
    let server = bind(&ca, limits(8, 100)).await.with_local(|_, _| false);
    let serving = server.serve(&tasks, handler(here));
    let mut held = Vec::new();
    for host in [2, 3, 2, 3, 2, 3, 2, 3] {
        held.push(silent(serving.local_addr(), host).await);
    }
    for user in ["n1", "n2", "n3"] {
        assert_eq!(said(&client(&serving, &ca, Some(user))).await.unwrap(), "here");
    }
    let closed = held.iter().filter(|stream| !is_open(stream)).count();
    assert!((1..=3).contains(&closed), "{closed} gave way");
}

#[tokio::test]
async fn address_has_a_share_of_the_strangers_places() {
    let (tasks, ca) = (TaskGroup::new(), CertificateAuthority::generate("a").unwrap());
    let server = bind(&ca, limits(8, 100)).await.with_local(|_, _| false);
    let serving = server.serve(&tasks, handler(here));
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(silent(serving.local_addr(), 2).await);
    }
    // One is closed: the newest, or, where the machine was slow, the oldest.
    let closing: Vec<_> = held.iter().map(|stream| Box::pin(stream.readable())).collect();
    let one = futures_util::future::select_all(closing);
    assert!(tokio::time::timeout(TIMEOUT, one).await.is_ok());
    assert_eq!(held.iter().filter(|stream| is_open(stream)).count(), 4);
}

#[tokio::test]
async fn strangers_of_this_machine_have_places_of_their_own() {
    let (tasks, ca) = (TaskGroup::new(), CertificateAuthority::generate("a").unwrap());
    let server = bind(&ca, limits(4, 100)).await;
    let server = server.with_local(|from, _| from == IpAddr::V4(Ipv4Addr::LOCALHOST));
    let serving = server.serve(&tasks, handler(here));
    let mut held = Vec::new();
    // One more than there are places waits for its turn.
    for host in 2..7 {
        held.push(silent(serving.local_addr(), host).await);
    }
    for _ in 0..3 {
        assert_eq!(said(&client(&serving, &ca, None)).await.unwrap(), "here");
    }
    assert!(held.iter().all(is_open), "none was evicted because of it");
}

#[tokio::test]
async fn connection_beyond_those_that_may_wait_is_closed() {
    let (tasks, ca) = (TaskGroup::new(), CertificateAuthority::generate("a").unwrap());
    let limits = Limits {
        max_waiting: 1,
        ..limits(1, 100)
    };
    let server = bind(&ca, limits).await.with_local(|_, _| false);
    let serving = server.serve(&tasks, handler(here));
    // One has the place, the next one is in turn, and one waits behind it.
    let mut held = Vec::new();
    for host in 2..6 {
        held.push(silent(serving.local_addr(), host).await);
    }
    let closed = tokio::time::timeout(TIMEOUT, held[3].readable());
    assert!(closed.await.is_ok() && !is_open(&held[3]));
    assert!(held[..3].iter().any(is_open), "it did not wait for their end");
}

/// The ports of a program: sockets at one of them neither delay connections to another nor give way to them.
#[tokio::test]
async fn sockets_held_at_one_port_take_no_place_of_another() {
    let (tasks, ca) = (TaskGroup::new(), CertificateAuthority::generate("a").unwrap());
    let pods = bind(&ca, limits(4, 100)).await.serve(&tasks, handler(here));
    let kubelets = bind(&ca, limits(4, 100)).await.serve(&tasks, handler(here));
    let mut held = Vec::new();
    for host in 2..6 {
        held.push(silent(pods.local_addr(), host).await);
    }
    for _ in 0..3 {
        assert_eq!(said(&client(&kubelets, &ca, None)).await.unwrap(), "here");
    }
    assert!(held.iter().all(is_open), "none was evicted because of it");
}

#[tokio::test]
async fn certificate_takes_a_connection_out_of_the_places_of_strangers() {
    let (tasks, ca) = (TaskGroup::new(), CertificateAuthority::generate("a").unwrap());
    let serving = bind(&ca, limits(1, 100)).await.serve(&tasks, handler(here));
    let clients: Vec<_> = (0..5).map(|n| client(&serving, &ca, Some(&format!("n{n}")))).collect();
    for _ in 0..2 {
        for client in &clients {
            assert_eq!(said(client).await.unwrap(), "here");
        }
    }
    assert!(clients.iter().all(|client| client.connections() == 1));
}

/// Certificates of others, and those of members, leave places to the leader. A client without a place gets an answer.
#[tokio::test]
async fn leader_has_a_place_when_all_others_are_taken() {
    let (tasks, ca) = (TaskGroup::new(), CertificateAuthority::generate("a").unwrap());
    let ranks = |identity: &PeerIdentity| match identity.common_name.split('-').next() {
        Some("leader") => Rank::Leader,
        Some("member") => Rank::Member,
        _ => Rank::Other,
    };
    let server = bind(&ca, limits(8, 12)).await.with_ranks(std::sync::Arc::new(ranks));
    let serving = server.serve(&tasks, handler(here));
    let mut held = Vec::new();
    for (kind, places) in [("other", 3), ("member", 6), ("leader", 1)] {
        for number in 0..places {
            let client = client(&serving, &ca, Some(&format!("{kind}-{number}")));
            assert_eq!(said(&client).await.unwrap(), "here", "{kind} {number}");
            held.push(client);
        }
        if kind != "leader" {
            let client = client(&serving, &ca, Some(&format!("{kind}-more")));
            let (status, ..) = client.request_json(Method::GET, "/", None, TIMEOUT).await.unwrap();
            assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{kind}");
        }
    }
}

/// The watch is quiet, and no client sends a request.
#[tokio::test]
async fn watch_ends_with_its_certificate_and_so_does_the_connection() {
    const HOUR: Duration = Duration::from_secs(3600);
    let tasks = TaskGroup::new();
    let ca = CertificateAuthority::generate("a").unwrap();
    let (clock, time) = Clock::fake();
    time.set_unix(Clock::system().unix());
    let source = server_tls(&ca, ca.cert_pem().to_owned());
    let tls = ReloadingServerTls::with_clients(source, server::Clients::Any, clock).unwrap();
    let watch = handler(|_, peer: Peer| {
        let endless = stream::iter([Ok::<_, BoxError>(Bytes::from("one"))]).chain(stream::pending());
        std::future::ready(http::Response::new(until(crate::http::stream(endless), peer.ends)))
    });
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), "--test").await.unwrap();
    let serving = server.with_tls(tls).serve(&tasks, watch);
    let issuer = CertificateAuthority::load(ca.cert_pem(), &ca.pair().key_pem).unwrap();
    let pair = issuer.with_leaf_validity(HOUR).issue_client("jane", &["dev"]).unwrap();
    let mut watches = Vec::new();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let base = format!("https://{}", serving.local_addr()).parse().unwrap();
        let config = client_config(ca.cert_pem(), Some(&pair));
        let client = HttpClient::new(base, Some(config), protocol, TIMEOUT).unwrap();
        let request = http::Request::get("/").body(crate::http::empty()).unwrap();
        let mut body = client.send(request).await.unwrap().into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
        watches.push((client, body));
    }
    time.advance(HOUR + Duration::from_secs(1));
    // The server checks again at most a minute after its last check.
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(61)).await;
    tokio::time::resume();
    for (client, body) in watches {
        let rest = tokio::time::timeout(TIMEOUT, body.collect()).await.unwrap();
        assert!(rest.unwrap().to_bytes().is_empty(), "it ends, and is not broken");
        assert_eq!(client.connections(), 1);
    }
}
