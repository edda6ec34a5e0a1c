//! Connections of strangers, of one identity, and of expired identities leave room for others.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use yurt_runtime::pki::CertificateAuthority;
use yurt_test_support::eventually;

use crate::harness::{Client, PATIENCE, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// More connections than strangers may have in all.
const MANY: usize = 600;

/// Sockets that never begin a handshake.
async fn silent(server: &Server, count: usize) -> Vec<TcpStream> {
    let address: SocketAddr = server.url().trim_start_matches("https://").parse().unwrap();
    let mut sockets = Vec::new();
    for _ in 0..count {
        sockets.push(TcpStream::connect(address).await.unwrap());
    }
    sockets
}

/// Clients of one identity, each with a connection: those that were admitted, and the answer to the first that was
/// not.
async fn crowd(make: impl Fn(usize) -> Client, count: usize) -> (Vec<Client>, Option<u16>) {
    let mut served = Vec::new();
    for number in 0..count {
        let client = make(number);
        match client.try_get("/version").await {
            Some(200) => served.push(client),
            other => return (served, other),
        }
    }
    (served, None)
}

#[tokio::test]
async fn silent_strangers_hold_no_place_of_those_with_a_certificate() {
    let server = Server::start(&["--profile", "standalone", "--max-connections", "40"]).await;
    let _sockets = silent(&server, MANY).await;
    let member = server.node("n1");
    let served = async || (member.try_get("/version").await == Some(200)).then_some(());
    eventually("a member is served", served).await;
}

/// Fewer files than the sockets that strangers open.
#[tokio::test]
async fn open_files_that_are_short_are_divided_and_never_used_up() {
    let server = Server::with_open_files(400, &["--profile", "standalone"]).await;
    assert!(server.log().contains("Open files are short"), "{}", server.log());
    let _sockets = silent(&server, MANY).await;
    let member = server.node("n1");
    let served = async || (member.try_get("/version").await == Some(200)).then_some(());
    eventually("a member is served", served).await;
    assert!(!server.log().contains("Failed to accept"), "{}", server.log());
}

#[tokio::test]
async fn anonymous_answer_over_http1_ends_its_connection() {
    let server = Server::standalone().await;
    let nobody = server.anonymous_http1();
    for (path, code) in [
        ("/healthz", 200),
        ("/version", 200),
        ("/api", 403),
        ("/version?timeout=x", 400),
        ("/api/v1/watch", 400),
    ] {
        let before = nobody.connections();
        for _ in 0..2 {
            let answer = nobody.get(path).await;
            assert_eq!(answer.header("connection"), Some("close"), "{path}");
            assert_eq!(answer.code, code, "{path}");
        }
        assert_eq!(nobody.connections() - before, 2, "{path}");
    }
}

#[tokio::test]
async fn one_identity_takes_few_connections_of_all() {
    let server = Server::start(&["--profile", "standalone", "--max-connections", "40"]).await;
    let (held, refused) = crowd(|_| server.user("jane", &[]), 60).await;
    assert!((2..=10).contains(&held.len()), "{}", held.len());
    assert_eq!(refused, Some(429));
    server.node("n1").get("/version").await.expect(200);
    server.admin().get("/version").await.expect(200);
}

#[tokio::test]
async fn certificates_of_others_leave_places_to_the_pools_members() {
    let flags = [
        "--nodepool",
        "hangzhou",
        "--initial-members",
        "n1",
        "--max-connections",
        "40",
    ];
    let server = Server::start(&flags).await;
    let (held, refused) = crowd(|number| server.node(&format!("stranger-{number}")), 60).await;
    assert!((5..=30).contains(&held.len()), "{}", held.len());
    assert_eq!(refused, Some(429));
    server.node("n1").get("/version").await.expect(200);
}

/// There is no other request on the connection in between.
#[tokio::test]
async fn watch_ends_with_the_authority_of_its_certificate() {
    let [old, new] = ["old", "new"].map(|name| CertificateAuthority::generate(name).unwrap());
    let server = Server::with_cluster_ca(&old).await;
    let root = server.user_of(&old, "root", &["system:masters"]);
    let mut watch = root.watch(MAPS).await;
    server.write("clients", new.cert_pem());
    assert!(watch.next().await.is_none(), "it ends as one does whose time is over");
    let refused = async || (root.try_get(MAPS).await == Some(401)).then_some(());
    eventually("it identifies no user any more", refused).await;
    assert!(root.connections() > 1, "the old connection was closed");
}

/// The wall clock of the server moves past the end of the certificate.
#[tokio::test]
async fn watch_ends_with_its_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let skew = folder.path().join("skew");
    let mut server = Server::with_wall_clock_skew(&["--profile", "standalone"], &skew).await;
    let issuer = server.authority().with_leaf_validity(Duration::from_secs(3600));
    let root = server.user_of(&issuer, "root", &["system:masters"]);
    let mut watch = root.watch(MAPS).await;
    std::fs::write(&skew, "7200").unwrap();
    assert_eq!(root.try_get(MAPS).await, Some(401));
    let end = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap();
    assert!(end.is_none(), "it ends as one does whose time is over");
    server.stop();
}
