//! Effect of attacks on a healthy client: its latency, its lost requests, and the growth of the server's memory.
//!
//! The attacker is a thread pinned to the second core; all threads of the server and of the healthy client share the
//! first. At a coordinator it has the certificate of a client without rights, at a hub the token of a pod.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::fchown;
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
use super::load::{Ask, MERGE, quantile};
use super::options::Scale;
use super::samples::{NODE_LEASES, lease};
use super::system_under_test::SystemUnderTest;
use super::usage;

/// Duration of one attack, s.
const SECONDS: usize = 60;
/// Maximum p99 of the healthy client, as a multiple of that without an attack.
const P99_TIMES_MAX: f64 = 2.0;
/// Maximum growth of the server's RSS during one attack, MiB.
const RSS_GROWTH_MAX: f64 = 16.0;
/// Time between two requests of the healthy client.
const PACE: Duration = Duration::from_millis(5);
/// Sockets that strangers hold.
const SOCKETS: usize = 2_000;
/// Connections of a flood.
const FLOODS: usize = 4;
/// Frames of one write.
const BATCH: u32 = 500;
/// Owners in a wide body.
const OWNERS: usize = 20_000;
/// Names of header fields, by their numbers in the static table of HPACK.
const AUTHORITY: usize = 1;
const PATH: usize = 4;
const AUTHORIZATION: usize = 23;
const CONTENT_TYPE: usize = 31;
/// The lease that a coordinator's healthy client renews.
const LEASE: &str = "healthy";

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

/// A server under attack.
pub(super) struct Victim {
    pub(super) pid: u32,
    /// Port on loopback, with TLS.
    pub(super) port: u16,
    /// TLS of the attacker.
    pub(super) tls: ClientTls,
    /// Credential of the attacker's requests: a service account token.
    pub(super) token: Option<String>,
    /// Owner of the attacker's sockets; `None` for the owner of this process.
    pub(super) uid: Option<u32>,
}

/// Address and credential of the attacker.
#[derive(Clone)]
struct AttackTarget {
    address: SocketAddr,
    /// Address of the attacker: each attack has its own, so that none suffers from those before.
    from: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
    token: Option<String>,
    uid: Option<u32>,
    /// Set when the attack is over.
    is_over: Arc<AtomicBool>,
    /// Connections that it opened.
    opened: Arc<AtomicU64>,
}

/// Attacks a coordinator, whose healthy client renews a lease.
pub(super) async fn measure_coordinator(system: SystemUnderTest, scale: Scale) -> Result<()> {
    let session = system.session()?;
    let object = lease(LEASE, 0, None).to_string();
    session.send(Ask::new(Method::POST, NODE_LEASES, object)).await?;
    let identities = &system.setup.identities;
    let stranger = identities.client_pair("attacker", &[])?;
    let victim = Victim {
        pid: system.pid()?,
        port: system.port(),
        tls: ClientTls {
            ca: PemSource::inline("the benchmark's CA", identities.ca_pem()),
            identity: Some(PemIdentity::inline("the attacker", &stranger)),
        },
        token: None,
        uid: None,
    };
    let path = format!("{NODE_LEASES}/{LEASE}");
    let renew = async |turn: u64| {
        let ask = Ask {
            content_type: MERGE,
            ..Ask::new(Method::PATCH, &path, renewal(turn))
        };
        session.send(ask).await.map(drop)
    };
    measure(&victim, renew, scale).await
}

/// Measures each attack while the healthy client sends one request after the other, and prints a table.
///
/// # Errors
/// An attack went beyond the limits.
pub(super) async fn measure(victim: &Victim, healthy: impl AsyncFn(u64) -> Result<()>, scale: Scale) -> Result<()> {
    let all = sched_getaffinity(None).context("cannot read the cores of a thread")?;
    pin_process(victim.pid, &one_core(0))?;
    pin_process(std::process::id(), &one_core(0))?;
    let measured = measure_all(victim, healthy, scale).await;
    // Other measurements may follow.
    pin_process(std::process::id(), &all)?;
    measured
}

async fn measure_all(victim: &Victim, healthy: impl AsyncFn(u64) -> Result<()>, scale: Scale) -> Result<()> {
    println!("| attack | p50 ms | p99 ms | requests | lost | RSS grows by MiB | attacker's connections |");
    println!("|---|---|---|---|---|---|---|");
    let (mut calm, mut over) = (None, Vec::new());
    for (host, attack) in (2..).zip(ALL) {
        let before = usage::usage(victim.pid)?.rss;
        usage::reset_peak(victim.pid)?;
        let target = target(victim, host)?;
        let attacker = start(attack, target.clone())?;
        let (took, lost) = repeat(&healthy, scale.of(SECONDS)).await;
        target.is_over.store(true, Ordering::Relaxed);
        let _ = attacker.join();
        let grown = usage::peak(victim.pid)?.saturating_sub(before) as f64 / f64::from(1 << 20);
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
    let limits = format!("p99 {P99_TIMES_MAX}x, RSS +{RSS_GROWTH_MAX} MiB, no request lost");
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

fn target(victim: &Victim, host: u8) -> Result<AttackTarget> {
    let mut tls = victim.tls.config()?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    Ok(AttackTarget {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, victim.port)),
        from: SocketAddr::from(([127, 0, 0, host], 0)),
        tls: Arc::new(tls),
        token: victim.token.clone(),
        uid: victim.uid,
        is_over: Arc::default(),
        opened: Arc::default(),
    })
}

/// Sends healthy requests at a steady pace. Returns the times of those that were answered, sorted, and how many were
/// not.
async fn repeat(healthy: &impl AsyncFn(u64) -> Result<()>, seconds: usize) -> (Vec<Duration>, usize) {
    let whole = Stopwatch::start();
    let (mut took, mut lost) = (Vec::new(), 0);
    while whole.elapsed() < Duration::from_secs(seconds as u64) {
        let watch = Stopwatch::start();
        match healthy(took.len() as u64).await {
            Ok(()) => took.push(watch.elapsed()),
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
    if let Some(uid) = target.uid {
        fchown(&socket, Some(uid), None)?;
    }
    socket.bind(target.from)?;
    socket.connect(target.address).await
}

/// One connection after the other, each until the server ends it.
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
        let token = target.token.as_deref();
        writer.write_all(&first(attack, token)).await?;
        for turn in 0.. {
            writer.write_all(&next(attack, token, turn)).await?;
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

fn first(attack: Attack, token: Option<&str>) -> Vec<u8> {
    match attack {
        Attack::Continuation => frame(1, 0, 1, &post("/version", token)),
        Attack::EmptyData => frame(1, 4, 1, &post("/version", token)),
        _ => Vec::new(),
    }
}

/// The frames of one write; `turn` counts the writes of a connection.
fn next(attack: Attack, token: Option<&str>, turn: u32) -> Vec<u8> {
    let many = |frame: Vec<u8>| frame.repeat(BATCH as usize);
    match attack {
        Attack::RapidReset => {
            let head = post("/version", token);
            (0..BATCH)
                .flat_map(|at| {
                    let stream = (turn * BATCH + at) * 2 + 1;
                    [frame(1, 4, stream, &head), frame(3, 0, stream, &[0, 0, 0, 8])].concat()
                })
                .collect()
        }
        Attack::Continuation => many(frame(9, 0, 1, &[b"\0\x04name\x64".as_slice(), &[b'x'; 100]].concat())),
        Attack::EmptyData => many(frame(0, 0, 1, &[])),
        Attack::WideBodies => wide(token, turn * 2 + 1),
        _ => many(frame(6, 0, 0, &[7; 8])),
    }
}

/// A review with very many owners: a whole request on a stream.
fn wide(token: Option<&str>, stream: u32) -> Vec<u8> {
    let owners: Vec<String> = (0..OWNERS).map(|at| format!(r#"{{"uid":"{at:06}"}}"#)).collect();
    let body = format!(r#"{{"metadata":{{"ownerReferences":[{}]}}}}"#, owners.join(","));
    let mut head = post("/apis/authentication.k8s.io/v1/selfsubjectreviews", token);
    literal(&mut head, CONTENT_TYPE, b"application/json");
    let mut request = frame(1, 4, stream, &head);
    let pieces = body.as_bytes().chunks(16 << 10);
    let last = pieces.len() - 1;
    for (at, piece) in pieces.enumerate() {
        request.extend(frame(0, u8::from(at == last), stream, piece));
    }
    request
}

/// The header block of a POST over https. Source: RFC 7541, appendix A for the names.
fn post(path: &str, token: Option<&str>) -> Vec<u8> {
    let (method, scheme) = (0x83, 0x87);
    let mut block = vec![method, scheme];
    literal(&mut block, PATH, path.as_bytes());
    literal(&mut block, AUTHORITY, b"a");
    if let Some(token) = token {
        literal(&mut block, AUTHORIZATION, format!("Bearer {token}").as_bytes());
    }
    block
}

/// Appends a field without indexing: the number of its name in the static table, and its value (RFC 7541, 6.2.2).
fn literal(block: &mut Vec<u8>, name: usize, value: &[u8]) {
    integer(block, 0x0f, name);
    integer(block, 0x7f, value.len());
    block.extend(value);
}

/// Appends an integer whose prefix has the bits of `mask` (RFC 7541, 5.1).
fn integer(block: &mut Vec<u8>, mask: u8, number: usize) {
    let Some(mut rest) = number.checked_sub(usize::from(mask)) else {
        block.push(number as u8);
        return;
    };
    block.push(mask);
    while rest >= 0x80 {
        block.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    block.push(rest as u8);
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
            let bytes = [first(attack, Some("t")), next(attack, Some("t"), 3)].concat();
            let mut rest = bytes.as_slice();
            while let [a, b, c, ..] = rest {
                let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
                rest = rest.get(9 + length..).expect("a frame must be whole");
            }
            assert!(rest.is_empty(), "{attack:?}");
        }
    }

    #[test]
    fn header_blocks_are_those_of_the_specification() {
        assert_eq!(post("/version", None), b"\x83\x87\x04\x08/version\x01\x01a");
        let block = post("/", Some(&"t".repeat(200)));
        // Bearer and a space are 7 bytes; 207 is 127 and 80.
        assert_eq!(block[8..14], *b"\x0f\x08\x7f\x50Be");
    }
}
