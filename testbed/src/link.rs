//! A link between two programs that can be cut, silenced, slowed down or damaged, with counters on it.
//!
//! On the loopback interface it is a TCP proxy that forwards bytes without reading them, so TLS is end to end. Between
//! network namespaces it is a virtual link that carries packets (`net.rs`), and only there they can be lost, doubled or
//! reordered.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use yurt_runtime::TaskGroup;

use super::net::link_conditions::LinkConditions;

/// Treatment of the bytes on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They arrive.
    Pass,
    /// Connections are closed, and new ones as soon as they are accepted: a router that refuses.
    Cut,
    /// They wait without any error: a dead modem. Bytes under way arrive when the link passes again.
    Blackhole,
    /// Answers arrive, requests wait.
    RequestsVanish,
    /// Requests arrive, answers wait.
    AnswersVanish,
    /// They arrive at this many bytes per second and direction.
    Slow(u32),
    /// They arrive this much later.
    Late(Duration),
    /// One byte of every answer is changed on its way.
    Damaged,
    /// One packet in five is lost.
    Lossy,
    /// Some packets arrive behind later ones.
    Reordered,
    /// Some packets arrive twice.
    Doubled,
    /// Packets take a random time between 50 and 350 ms.
    Jittery,
    /// All of it: a bad radio link.
    Radio,
}

/// A listening link. Dropping it leaves established connections to the task group.
pub struct Link {
    /// Address of the near end.
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    counters: Arc<Counters>,
}

/// Counters of a link since it was made.
#[derive(Default)]
pub struct Counters {
    connections: AtomicU64,
    bytes_from_cloud: AtomicU64,
    latest: AtomicUsize,
}

/// A reading of a link's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Connections that reached the far end.
    pub connections: u64,
    /// Bytes the far end sent, TLS included; for a virtual link: bytes that arrived, with headers of IP and TCP.
    pub bytes_from_cloud: u64,
}

/// Direction of bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FlowDirection {
    /// From the hub.
    Request,
    /// To the hub.
    Answer,
}

const BUFFER_BYTES: usize = 64 * 1024;
/// A slow link delivers in pieces of this size, so that a small frame does not wait for the rest of a large one.
const PIECE_BYTES: usize = 512;

// === impl Mode ===

impl Mode {
    fn holds(self, way: FlowDirection) -> bool {
        match self {
            Self::Blackhole => true,
            Self::RequestsVanish => way == FlowDirection::Request,
            Self::AnswersVanish => way == FlowDirection::Answer,
            _ => false,
        }
    }

    /// The mode for packets. [`Mode::Cut`] is no condition: its packets are answered.
    pub fn conditions(self, way: FlowDirection) -> LinkConditions {
        let mut conditions = LinkConditions {
            is_silent: self.holds(way),
            delay: self.delay(),
            ..LinkConditions::default()
        };
        match self {
            Self::Slow(rate) => conditions.rate = Some(rate),
            Self::Damaged if way == FlowDirection::Answer => conditions.damaged = 50,
            Self::Lossy => conditions.lost = 200,
            Self::Reordered => conditions.overtaken = 250,
            Self::Doubled => conditions.doubled = 300,
            Self::Jittery => {
                (conditions.delay, conditions.jitter) = (Duration::from_millis(50), Duration::from_millis(300))
            }
            Self::Radio => {
                (
                    conditions.lost,
                    conditions.doubled,
                    conditions.overtaken,
                    conditions.damaged,
                ) = (50, 50, 100, 10);
                (conditions.delay, conditions.jitter) = (Duration::from_millis(80), Duration::from_millis(120));
            }
            _ => {}
        }
        conditions
    }

    fn delay(self) -> Duration {
        match self {
            Self::Late(delay) => delay,
            _ => Duration::ZERO,
        }
    }
}

// === impl Link ===

impl Link {
    /// A passing link to `far` on a free loopback port.
    pub async fn open(tasks: &TaskGroup, far: SocketAddr) -> Result<Self> {
        Self::balanced(tasks, vec![far]).await
    }

    /// As [`Self::open`], with the address of a Service at the far end: each connection goes to the next server that
    /// accepts it.
    pub async fn balanced(tasks: &TaskGroup, far: Vec<SocketAddr>) -> Result<Self> {
        let far: Arc<[SocketAddr]> = far.into();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.context("cannot open a link")?;
        let address = listener.local_addr()?;
        let (link, observed, shared) = Self::unconnected(address);
        let (group, token) = (tasks.clone(), tasks.token());
        tasks.spawn("link", async move {
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = token.cancelled() => return,
                };
                if let Ok((near, _)) = accepted {
                    let connection = connection(near, Arc::clone(&far), observed.clone(), Arc::clone(&shared));
                    let token = token.clone();
                    group.spawn("link connection", async move {
                        tokio::select! {
                            () = connection => {}
                            () = token.cancelled() => {}
                        }
                    });
                }
            }
        });
        Ok(link)
    }

    /// A passing link that another component carries: returns its modes to apply, and its counters to maintain.
    pub fn unconnected(address: SocketAddr) -> (Self, watch::Receiver<Mode>, Arc<Counters>) {
        let (mode, observed) = watch::channel(Mode::Pass);
        let counters = Arc::new(Counters::default());
        let link = Self {
            address,
            mode,
            counters: Arc::clone(&counters),
        };
        (link, observed, counters)
    }

    /// Address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what happens to bytes, those under way included.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Index of the far end of the latest connection.
    pub fn latest(&self) -> usize {
        self.counters.latest.load(Ordering::Relaxed)
    }

    /// Connections and bytes so far.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            connections: self.counters.connections.load(Ordering::Relaxed),
            bytes_from_cloud: self.counters.bytes_from_cloud.load(Ordering::Relaxed),
        }
    }
}

// === impl Counters ===

impl Counters {
    /// Counts a connection.
    pub fn add_connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Connects to the far end after the latest, or the first behind it that accepts.
    async fn connect(&self, far: &[SocketAddr]) -> Option<TcpStream> {
        let latest = self.latest.load(Ordering::Relaxed);
        for turn in 1..=far.len() {
            let next = (latest + turn) % far.len();
            if let Ok(stream) = TcpStream::connect(far[next]).await {
                self.latest.store(next, Ordering::Relaxed);
                return Some(stream);
            }
        }
        None
    }

    /// Counts bytes that the hub received.
    pub fn add_bytes(&self, count: usize) {
        self.bytes_from_cloud.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Forwards one connection until either side closes it or the link is cut.
async fn connection(near: TcpStream, far: Arc<[SocketAddr]>, mode: watch::Receiver<Mode>, counters: Arc<Counters>) {
    let mut cut = mode.clone();
    let relay = async {
        let mut passing = mode.clone();
        // A connection needs both directions.
        let opens = |mode: &Mode| {
            *mode != Mode::Cut && !mode.holds(FlowDirection::Request) && !mode.holds(FlowDirection::Answer)
        };
        if passing.wait_for(opens).await.is_err() {
            return;
        }
        let Some(far) = counters.connect(&far).await else {
            return;
        };
        counters.add_connection();
        // Small frames of a watch must not wait for each other.
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
        tokio::select! {
            () = pump(from_near, to_far, FlowDirection::Request, mode.clone(), |_| {}) => {}
            () = pump(from_far, to_near, FlowDirection::Answer, mode.clone(), |count| counters.add_bytes(count)) => {}
        }
    };
    tokio::select! {
        () = relay => {}
        _ = cut.wait_for(|mode| *mode == Mode::Cut) => {}
    }
}

/// Forwards one direction. Bytes that were read wait while the link holds this direction.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    way: FlowDirection,
    mut mode: watch::Receiver<Mode>,
    mut count: impl FnMut(usize),
) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = match from.read(&mut buffer).await {
            Ok(read) if read > 0 => read,
            _ => return,
        };
        let late = mode.borrow().delay();
        tokio::time::sleep(late).await;
        let mut rest = &mut buffer[..read];
        while !rest.is_empty() {
            let Ok(now) = mode.wait_for(|mode| !mode.holds(way)).await.map(|mode| *mode) else {
                return;
            };
            // Every small write wakes its reader: a link that only passes bytes makes none.
            let length = if matches!(now, Mode::Slow(_)) {
                PIECE_BYTES
            } else {
                rest.len()
            };
            let (piece, after) = rest.split_at_mut(length.min(rest.len()));
            rest = after;
            match now {
                Mode::Slow(rate) => {
                    tokio::time::sleep(Duration::from_secs_f64(piece.len() as f64 / f64::from(rate))).await;
                }
                Mode::Damaged if way == FlowDirection::Answer => piece[piece.len() / 2] ^= 0x20,
                _ => {}
            }
            if to.write_all(piece).await.is_err() {
                return;
            }
            count(piece.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BOUND: Duration = Duration::from_secs(5);

    /// A server that answers every byte with the same byte, a link to it and a connection over the link.
    async fn echo() -> (TaskGroup, Link, TcpStream) {
        let tasks = TaskGroup::new();
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = server.local_addr().expect("an address");
        tasks.spawn("echo", async move {
            while let Ok((stream, _)) = server.accept().await {
                let (mut read, mut write) = stream.into_split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            }
        });
        let link = Link::open(&tasks, address).await.expect("a link");
        let stream = TcpStream::connect(link.address()).await.expect("a connection");
        (tasks, link, stream)
    }

    async fn round_trip(stream: &mut TcpStream, byte: u8) -> Option<u8> {
        stream.write_all(&[byte]).await.ok()?;
        stream.read_u8().await.ok()
    }

    #[tokio::test]
    async fn bytes_pass_and_are_counted() {
        let (_tasks, link, mut stream) = echo().await;
        assert_eq!(round_trip(&mut stream, 7).await, Some(7));
        assert_eq!(
            link.traffic(),
            Traffic {
                connections: 1,
                bytes_from_cloud: 1
            }
        );
    }

    /// A process that starts inherits all sockets until it runs its program, also one that was only bound to find a
    /// free port.
    #[tokio::test]
    async fn a_link_opens_while_programs_start() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let programs = std::thread::spawn(move || {
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                let program = std::process::Command::new("true").current_dir("/").status();
                assert!(program.expect("a program").success());
            }
        });
        for _ in 0..20 {
            let tasks = TaskGroup::new();
            for _ in 0..100 {
                Link::open(&tasks, (Ipv4Addr::LOCALHOST, 1).into())
                    .await
                    .expect("a link");
            }
            tasks.shutdown(BOUND).await.expect("no hang");
        }
        drop(stop);
        programs.join().expect("each program ran");
    }

    #[tokio::test]
    async fn a_cut_ends_connections_and_refuses_new_ones() {
        let (_tasks, link, mut stream) = echo().await;
        assert_eq!(round_trip(&mut stream, 1).await, Some(1));
        link.set(Mode::Cut);
        assert_eq!(
            tokio::time::timeout(BOUND, stream.read(&mut [0]))
                .await
                .expect("no hang")
                .unwrap_or(0),
            0
        );
        let mut second = TcpStream::connect(link.address()).await.expect("accepted, then closed");
        assert_eq!(
            tokio::time::timeout(BOUND, second.read(&mut [0]))
                .await
                .expect("no hang")
                .unwrap_or(0),
            0
        );
        assert_eq!(link.traffic().connections, 1);
    }

    #[tokio::test]
    async fn half_a_link_lets_requests_out_and_no_answers_in() {
        let (_tasks, link, mut stream) = echo().await;
        assert_eq!(round_trip(&mut stream, 1).await, Some(1));
        link.set(Mode::AnswersVanish);
        let silent = tokio::time::timeout(Duration::from_millis(50), round_trip(&mut stream, 2)).await;
        assert!(silent.is_err(), "the answer does not arrive");
        link.set(Mode::RequestsVanish);
        let answer = tokio::time::timeout(BOUND, stream.read_u8()).await.expect("no hang");
        assert_eq!(answer.ok(), Some(2), "the earlier request is answered");
    }

    #[tokio::test]
    async fn a_damaged_link_changes_what_arrives() {
        let (_tasks, link, mut stream) = echo().await;
        link.set(Mode::Damaged);
        assert_eq!(round_trip(&mut stream, 1).await, Some(0x21));
        link.set(Mode::Late(Duration::from_millis(1)));
        assert_eq!(round_trip(&mut stream, 2).await, Some(2));
    }

    #[tokio::test]
    async fn a_black_hole_holds_bytes_until_the_link_passes_again() {
        let (_tasks, link, mut stream) = echo().await;
        assert_eq!(round_trip(&mut stream, 1).await, Some(1));
        link.set(Mode::Blackhole);
        let silent = tokio::time::timeout(Duration::from_millis(50), round_trip(&mut stream, 2)).await;
        assert!(silent.is_err(), "no answer comes out of a black hole");
        link.set(Mode::Pass);
        assert_eq!(
            tokio::time::timeout(BOUND, stream.read_u8())
                .await
                .expect("no hang")
                .ok(),
            Some(2)
        );
    }
}
