//! Effect of attacks on a healthy client: its latency, its lost renewals, and the growth of the coordinator's memory.
//!
//! The attacker is a thread pinned to the second core; all threads of the coordinator and of the healthy client share
//! the first. It holds the certificate of a client without rights, or none.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::Method;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use yurt_runtime::tls::{ClientTls, PemIdentity, PemSource};
use yurt_workspace::Stopwatch;

use super::leases::renewal;
use super::load::{Ask, MERGE, Session, quantile};
use super::options::Scale;
use super::samples::{NODE_LEASES, lease};
use super::system_under_test::SystemUnderTest;
use super::usage;

/// Duration of one attack, s.
const SECONDS: usize = 60;
/// Maximum p99 of the healthy client, as a multiple of that without an attack.
const P99_TIMES_MAX: f64 = 2.0;
/// Maximum growth of the coordinator's RSS during one attack, MiB.
const RSS_GROWTH_MAX: f64 = 16.0;
/// Time between two renewals of the healthy client.
const PACE: Duration = Duration::from_millis(5);
/// Sockets that strangers hold.
const SOCKETS: usize = 2_000;
/// Connections of a flood.
const FLOODS: usize = 4;
/// Frames of one write.
const BATCH: u32 = 500;
/// Owners in a wide body.
const OWNERS: usize = 20_000;
/// The lease that the healthy client renews.
const LEASE: &str = "healthy";

/// `:method POST`, `:scheme https`, `:path /version` literally, and an authority (HPACK).
const POST: &[u8] = b"\x83\x87\x04\x08/version\x41\x01a";

/// Kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    Nothing,
    Sockets,
    RapidReset,
    Continuation,
    EmptyData,
    Ping,
    WideBodies,
}

const ALL: [Attack; 7] = [
    Attack::Nothing,
    Attack::Sockets,
    Attack::RapidReset,
    Attack::Continuation,
    Attack::EmptyData,
    Attack::Ping,
    Attack::WideBodies,
];

/// Address and certificate of the attacker.
#[derive(Clone)]
struct AttackTarget {
    address: SocketAddr,
    /// Address of the attacker: each attack has its own, so that none suffers from those before.
    from: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
    /// Set when the attack is over.
    is_over: Arc<AtomicBool>,
    /// Connections that it opened.
    opened: Arc<AtomicU64>,
}

/// Measures each attack, and prints a table.
pub(super) async fn measure(system: SystemUnderTest, scale: Scale) -> Result<()> {
    let session = system.session()?;
    let object = lease(LEASE, 0, None).to_string();
    session.send(Ask::new(Method::POST, NODE_LEASES, object)).await?;
    let all = sched_getaffinity(None).context("cannot read the cores of a thread")?;
    pin_process(system.pid()?, &one_core(0))?;
    pin_process(std::process::id(), &one_core(0))?;
    let measured = measure_all(&system, &session, scale).await;
    // Other measurements may follow.
    pin_process(std::process::id(), &all)?;
    measured
}

async fn measure_all(system: &SystemUnderTest, session: &Session, scale: Scale) -> Result<()> {
    println!("| attack | p50 ms | p99 ms | renewals | lost | RSS grows by MiB | attacker's connections |");
    println!("|---|---|---|---|---|---|---|");
    let (mut calm, mut over) = (None, Vec::new());
    for (host, attack) in (2..).zip(ALL) {
        let before = usage::usage(system.pid()?)?.rss;
        usage::reset_peak(system.pid()?)?;
        let target = target(system, host)?;
        let attacker = start(attack, target.clone())?;
        let (took, lost) = renew(session, scale.of(SECONDS)).await;
        target.is_over.store(true, Ordering::Relaxed);
        let _ = attacker.join();
        let grown = usage::peak(system.pid()?)?.saturating_sub(before) as f64 / f64::from(1 << 20);
        let p99 = quantile(&took, 0.99);
        println!(
            "| {attack:?} | {:.1} | {p99:.1} | {} | {lost} | {grown:.1} | {} |",
            quantile(&took, 0.5),
            took.len(),
            target.opened.load(Ordering::Relaxed),
        );
        let times = p99 / *calm.get_or_insert(p99);
        if times > P99_TIMES_MAX || grown > RSS_GROWTH_MAX || lost > 0 {
            over.push(format!("{attack:?} (p99 {times:.1}x)"));
        }
    }
    let limits = format!("p99 {P99_TIMES_MAX}x, RSS +{RSS_GROWTH_MAX} MiB, no renewal lost");
    if !over.is_empty() {
        bail!("beyond the limits ({limits}): {}", over.join(", "));
    }
    println!("\nEvery attack is within the limits: {limits}.");
    Ok(())
}

/// Lets all present threads of a process run on these cores alone.
fn pin_process(pid: u32, cores: &CpuSet) -> Result<()> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).context("cannot list threads")? {
        let name = thread?.file_name();
        // A thread may end at any time.
        let _ = sched_setaffinity(name.to_str().and_then(|name| Pid::from_raw(name.parse().ok()?)), cores);
    }
    Ok(())
}

fn one_core(core: usize) -> CpuSet {
    let mut cores = CpuSet::new();
    cores.set(core);
    cores
}

fn target(system: &SystemUnderTest, host: u8) -> Result<AttackTarget> {
    let identities = &system.setup.identities;
    let nobody = identities.client_pair("attacker", &[])?;
    let tls = ClientTls {
        ca: PemSource::inline("the benchmark's CA", identities.ca_pem()),
        identity: Some(PemIdentity::inline("the attacker", &nobody)),
    };
    let mut tls = tls.config()?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    Ok(AttackTarget {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, system.port())),
        from: SocketAddr::from(([127, 0, 0, host], 0)),
        tls: Arc::new(tls),
        is_over: Arc::default(),
        opened: Arc::default(),
    })
}

/// Renews at a steady pace; the times of those that were taken, sorted, and how many were not.
async fn renew(session: &Session, seconds: usize) -> (Vec<Duration>, usize) {
    let (path, whole) = (format!("{NODE_LEASES}/{LEASE}"), Stopwatch::start());
    let (mut took, mut lost) = (Vec::new(), 0);
    while whole.elapsed() < Duration::from_secs(seconds as u64) {
        let ask = Ask {
            content_type: MERGE,
            ..Ask::new(Method::PATCH, &path, renewal(took.len() as u64))
        };
        let watch = Stopwatch::start();
        match session.send(ask).await {
            Ok(_) => took.push(watch.elapsed()),
            Err(_) => lost += 1,
        }
        tokio::time::sleep(PACE).await;
    }
    took.sort_unstable();
    (took, lost)
}

/// Starts the attacker's thread.
fn start(attack: Attack, target: AttackTarget) -> Result<std::thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let run = move || {
        // Without it the figures are worse, and still figures.
        let _ = sched_setaffinity(None, &one_core(1));
        runtime.block_on(async {
            let over = async {
                while !target.is_over.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            tokio::select! { () = over => {} () = run(attack, &target) => {} }
        });
    };
    let thread = std::thread::Builder::new().name("attacker".to_owned());
    thread.spawn(run).context("cannot start a thread")
}

async fn run(attack: Attack, target: &AttackTarget) {
    match attack {
        Attack::Nothing => std::future::pending().await,
        Attack::Sockets => hold(target).await,
        _ => {
            let floods = (0..FLOODS).map(|_| flood(attack, target));
            futures_util::future::join_all(floods).await;
        }
    }
}

/// Holds sockets that say nothing, and opens others for those that were closed.
async fn hold(target: &AttackTarget) {
    let mut held: Vec<TcpStream> = Vec::new();
    loop {
        held.retain(|socket| {
            let read = socket.try_read(&mut [0; 1]);
            read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        });
        while held.len() < SOCKETS {
            let connecting = dial(target);
            let Ok(Ok(socket)) = tokio::time::timeout(Duration::from_millis(100), connecting).await else {
                break;
            };
            target.opened.fetch_add(1, Ordering::Relaxed);
            held.push(socket);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn dial(target: &AttackTarget) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(target.from)?;
    socket.connect(target.address).await
}

/// One connection after the other, each until the coordinator ends it.
async fn flood(attack: Attack, target: &AttackTarget) {
    loop {
        // Whatever ends it, the next one follows.
        let _: Result<()> = one_flood(attack, target).await;
        tokio::task::yield_now().await;
    }
}

async fn one_flood(attack: Attack, target: &AttackTarget) -> Result<()> {
    let stream = dial(target).await?;
    let connector = TlsConnector::from(target.tls.clone());
    let stream = connector.connect("127.0.0.1".try_into()?, stream).await?;
    target.opened.fetch_add(1, Ordering::Relaxed);
    let (mut reader, mut writer) = tokio::io::split(stream);
    let writing = async {
        writer.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
        writer.write_all(&frame(4, 0, 0, &[])).await?;
        writer.write_all(&first(attack)).await?;
        for turn in 0.. {
            writer.write_all(&next(attack, turn)).await?;
            writer.flush().await?;
        }
        Ok(())
    };
    let reading = async {
        let mut piece = vec![0; 16 << 10];
        while reader.read(&mut piece).await? > 0 {}
        Ok(())
    };
    tokio::select! { done = writing => done, done = reading => done }
}

fn first(attack: Attack) -> Vec<u8> {
    match attack {
        Attack::Continuation => frame(1, 0, 1, POST),
        Attack::EmptyData => frame(1, 4, 1, POST),
        _ => Vec::new(),
    }
}

/// The frames of one write; `turn` counts the writes of a connection.
fn next(attack: Attack, turn: u32) -> Vec<u8> {
    let many = |frame: Vec<u8>| frame.repeat(BATCH as usize);
    match attack {
        Attack::RapidReset => (0..BATCH)
            .flat_map(|at| {
                let stream = (turn * BATCH + at) * 2 + 1;
                [frame(1, 4, stream, POST), frame(3, 0, stream, &[0, 0, 0, 8])].concat()
            })
            .collect(),
        Attack::Continuation => many(frame(9, 0, 1, &[b"\0\x04name\x64".as_slice(), &[b'x'; 100]].concat())),
        Attack::EmptyData => many(frame(0, 0, 1, &[])),
        Attack::WideBodies => wide(turn * 2 + 1),
        _ => many(frame(6, 0, 0, &[7; 8])),
    }
}

/// A review with very many owners: a whole request on a stream.
fn wide(stream: u32) -> Vec<u8> {
    let path = b"/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let owners: Vec<String> = (0..OWNERS).map(|at| format!(r#"{{"uid":"{at:06}"}}"#)).collect();
    let body = format!(r#"{{"metadata":{{"ownerReferences":[{}]}}}}"#, owners.join(","));
    let head = [
        b"\x83\x87\x04\x31".as_slice(),
        path,
        b"\x41\x01a\x0f\x10\x10application/json",
    ]
    .concat();
    let mut request = frame(1, 4, stream, &head);
    let pieces = body.as_bytes().chunks(16 << 10);
    let last = pieces.len() - 1;
    for (at, piece) in pieces.enumerate() {
        request.extend(frame(0, u8::from(at == last), stream, piece));
    }
    request
}

/// A frame of HTTP/2: type, flags, stream, payload.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attack_sends_whole_frames() {
        for attack in ALL {
            let bytes = [first(attack), next(attack, 3)].concat();
            let mut rest = bytes.as_slice();
            while let [a, b, c, ..] = rest {
                let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
                rest = rest.get(9 + length..).expect("a frame must be whole");
            }
            assert!(rest.is_empty(), "{attack:?}");
        }
    }
}
