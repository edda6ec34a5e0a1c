//! Ports that are never free: a kubelet would trust any program that takes the hub's port while the hub is down.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use yurt_test_support::{PATIENCE, TestDir, bind_freely, eventually, free_port};

use super::cloud::Cloud;
use super::harness::{NODE, flags_of, own_uid};

/// A hub in a process of its own; killed at the end.
struct Activated(Child);

impl Activated {
    /// Starts `yurthub` as systemd does: the listener is its descriptor 3.
    fn start(held: &TcpListener, flags: &[String], log: &TestDir) -> Self {
        let pass = r#"exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_FDNAMES=proxy LISTEN_PID=$$ exec "$@""#;
        Self::start_by(pass, [Self::passed(held), Stdio::null()], flags, log)
    }

    /// The same with two listeners, on a machine without the program `ip`.
    fn start_without_ip(held: [&TcpListener; 2], flags: &[String], log: &TestDir) -> Self {
        let pass = r#"exec 3<&0 4<&1 </dev/null >/dev/null
            LISTEN_FDS=2 LISTEN_FDNAMES=proxy:proxy LISTEN_PID=$$ exec env PATH=/nowhere "$@""#;
        Self::start_by(pass, held.map(Self::passed), flags, log)
    }

    fn start_by(pass: &str, [stdin, stdout]: [Stdio; 2], flags: &[String], log: &TestDir) -> Self {
        let log = File::create(log.path().join("log")).unwrap();
        let child = Command::new("sh")
            .args(["-c", pass, "sh", env!("CARGO_BIN_EXE_yurthub")])
            .args(flags)
            .stdin(stdin)
            .stdout(stdout)
            .stderr(log)
            .spawn();
        Self(child.expect("sh must start"))
    }

    fn passed(held: &TcpListener) -> Stdio {
        OwnedFd::from(held.try_clone().unwrap()).into()
    }
}

impl Drop for Activated {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn flags(cloud: &Cloud, folder: &TestDir, proxy: SocketAddr) -> Vec<String> {
    flags_with(cloud, folder, proxy, free_port())
}

fn flags_with(cloud: &Cloud, folder: &TestDir, proxy: SocketAddr, secure: u16) -> Vec<String> {
    let mut flags = flags_of(cloud, folder, NODE, &cloud.url());
    flags.push(format!("--node-identity-uids={}", own_uid()));
    for (name, port) in [
        ("serve-port", free_port()),
        ("proxy-secure-port", secure),
        ("proxy-port", proxy.port()),
    ] {
        flags.push(format!("--{name}={port}"));
    }
    flags
}

/// Sends a kubelet's request, which waits until a process accepts the connection.
async fn waiting(addr: SocketAddr) -> TcpStream {
    waiting_for("/api/v1/pods", addr).await
}

async fn waiting_for(path: &str, addr: SocketAddr) -> TcpStream {
    let mut connection = TcpStream::connect(addr).await.expect("the port must be held");
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: kubelet/v1\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    connection
}

async fn is_answered(connection: TcpStream) {
    let answer = answer(connection).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

async fn answer(mut connection: TcpStream) -> String {
    let mut answer = String::new();
    let reading = tokio::time::timeout(PATIENCE, connection.read_to_string(&mut answer));
    reading.await.expect("an answer must come").unwrap();
    answer
}

#[tokio::test]
async fn inherited_port_is_held_while_the_hub_is_away() {
    let (cloud, folder) = (Cloud::start().await, TestDir::new());
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = held.local_addr().unwrap();
    let flags = flags(&cloud, &folder, addr);
    for _ in 0..2 {
        let early = waiting(addr).await;
        let hub = Activated::start(&held, &flags, &folder);
        is_answered(early).await;
        drop(hub);
        let taken = TcpListener::bind(addr).map(drop).map_err(|error| error.kind());
        assert_eq!(taken, Err(ErrorKind::AddrInUse), "no process takes the port in between");
    }
}

/// The way to the cloud is the deepest one, and builds for tests have the largest frames. Threads of a test have larger
/// stacks than those of the program.
#[tokio::test]
async fn stacks_of_the_program_are_large_enough_for_a_request_to_the_cloud() {
    let (cloud, folder) = (Cloud::start().await, TestDir::new());
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = held.local_addr().unwrap();
    let _hub = Activated::start(&held, &flags(&cloud, &folder, addr), &folder);
    let passed = answer(waiting_for("/version", addr).await).await;
    assert!(passed.starts_with("HTTP/1.1 404 "), "of the cloud: {passed}");
}

#[tokio::test]
async fn inherited_socket_that_no_flag_names_ends_the_start() {
    let (cloud, folder) = (Cloud::start().await, TestDir::new());
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut hub = Activated::start(&held, &flags(&cloud, &folder, other), &folder);
    let status = eventually("the start must fail", async || hub.0.try_wait().unwrap()).await;
    let said = std::fs::read_to_string(folder.path().join("log")).unwrap();
    let addr = held.local_addr().unwrap().to_string();
    assert!(
        !status.success() && said.contains("proxy") && said.contains(&addr),
        "{said}"
    );
}

#[tokio::test]
async fn hub_without_an_address_for_pods_starts_beside_the_sockets_that_are_held_for_it() {
    let (cloud, folder) = (Cloud::start().await, TestDir::new());
    let proxy = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let secure = free_port();
    let mut flags = flags_with(&cloud, &folder, proxy, secure);
    flags.retain(|flag| flag != "--enable-dummy-if=false");
    // The default of --dummy-if-ip.
    let held = [proxy.port(), secure].map(|port| bind_freely(([169, 254, 2, 1], port).into()).unwrap());
    let _hub = Activated::start_without_ip([&held[0], &held[1]], &flags, &folder);
    eventually("the hub must serve", async || TcpStream::connect(proxy).await.ok()).await;
    is_answered(waiting(proxy).await).await;
}
