//! Admission of connections within the budgets of places.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::connection::Acceptor;
use super::holds::{Holds, Record};
use super::offenders::Origin;
use super::owner;
use super::places::{Place, Places};
use crate::files;
use crate::tasks::TaskGroup;

/// True if a connection from the first address to the second one is of this machine.
pub(super) type IsLocal = fn(IpAddr, IpAddr) -> bool;

/// Accepts the connections of a server.
///
/// A connection without a credential may have to wait for its place. Those from the network and those of this machine
/// wait in queues of their own, so that neither waits for the other.
pub(super) struct Door {
    pub(super) places: Arc<Places>,
    pub(super) holds: Arc<Holds>,
    /// True if the uid behind connections of this machine is looked up; those of root need no credential for the large
    /// budget.
    pub(super) wants_uids: bool,
    pub(super) is_local: IsLocal,
    pub(super) ipv6_prefix: u32,
    /// Maximum length of a queue.
    pub(super) max_waiting: usize,
    pub(super) acceptor: Arc<Acceptor>,
    pub(super) tasks: TaskGroup,
}

/// A connection without a place.
struct Arrival {
    stream: TcpStream,
    addr: SocketAddr,
    local_addr: SocketAddr,
    uid: Option<u32>,
    origin: Origin,
    is_local: bool,
}

/// An admitted connection.
pub(super) struct Guest {
    pub(super) stream: TcpStream,
    pub(super) addr: SocketAddr,
    pub(super) local_addr: SocketAddr,
    pub(super) uid: Option<u32>,
    pub(super) place: Place,
    pub(super) record: Record,
}

/// Pause after a failed accept for lack of open files or memory.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

// === impl Door ===

impl Door {
    /// Accepts connections until the group's token is cancelled.
    pub(super) async fn accept(self: Arc<Self>, listener: TcpListener) {
        let token = self.tasks.token();
        let (local, remote) = (self.queue(), self.queue());
        loop {
            let Some(accepted) = token.run_until_cancelled(listener.accept()).await else {
                return;
            };
            match accepted {
                Ok((stream, addr)) => {
                    let Some(arrival) = self.arrival(stream, addr) else {
                        continue;
                    };
                    let of_root = (arrival.uid == Some(0)).then(|| self.places.enter_known("root"));
                    if let Some(place) = of_root.flatten() {
                        self.serve(arrival, place);
                        continue;
                    }
                    let queue = if arrival.is_local { &local } else { &remote };
                    if let Err(refused) = queue.try_send(arrival) {
                        self.places.tell_refused(refused.into_inner().origin);
                    }
                    // A burst waits for places, and not for the task that gives them.
                    tokio::task::yield_now().await;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    let open_files_max = files::limit();
                    warn!(%error, open_files_max, "Failed to accept connections for lack of open files or memory");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    /// Starts the task that gives connections a stranger's place, in the order in which they are sent to it.
    fn queue(self: &Arc<Self>) -> mpsc::Sender<Arrival> {
        let (queue, mut arrivals) = mpsc::channel::<Arrival>(self.max_waiting);
        let (this, token) = (self.clone(), self.tasks.token());
        self.tasks.spawn_critical("places", async move {
            let serving = async {
                while let Some(arrival) = arrivals.recv().await {
                    if let Some(place) = this.places.enter(arrival.origin, arrival.is_local).await {
                        this.serve(arrival, place);
                    }
                }
            };
            token.run_until_cancelled(serving).await;
        });
        queue
    }

    /// `None` for a connection that is closed already.
    fn arrival(&self, stream: TcpStream, addr: SocketAddr) -> Option<Arrival> {
        let local_addr = match stream.local_addr() {
            Ok(local_addr) => local_addr,
            Err(error) => {
                debug!(peer = %addr, %error, "Connection closed right after accept");
                return None;
            }
        };
        // A listener of both families shows IPv4 addresses as IPv6 ones.
        let [addr, local_addr] = [addr, local_addr].map(|addr| match addr.ip().to_canonical() {
            IpAddr::V4(ip) => SocketAddr::new(ip.into(), addr.port()),
            IpAddr::V6(_) => addr,
        });
        let is_local = (self.is_local)(addr.ip(), local_addr.ip());
        let uid = match self.wants_uids && is_local {
            true => uid_behind(&stream, addr, local_addr),
            false => None,
        };
        Some(Arrival {
            stream,
            addr,
            local_addr,
            uid,
            origin: Origin::new(addr.ip(), uid, is_local, self.ipv6_prefix),
            is_local,
        })
    }

    /// Serves a connection that has a place.
    fn serve(&self, arrival: Arrival, place: Place) {
        let Arrival { addr, uid, .. } = arrival;
        let guest = Guest {
            record: self.holds.record(arrival.origin, arrival.is_local),
            stream: arrival.stream,
            addr,
            local_addr: arrival.local_addr,
            uid,
            place,
        };
        let acceptor = self.acceptor.clone();
        self.tasks
            .spawn_isolated("connection", async move { acceptor.serve(guest).await });
    }
}

/// True if a client is in this process' network namespace: on loopback, or at the same address that it connected to. No
/// other host and no pod can have that address, unless packets are rewritten on their way.
pub(super) fn is_local(from: IpAddr, to: IpAddr) -> bool {
    let from = from.to_canonical();
    from.is_loopback() || from == to.to_canonical()
}

/// The uid behind a connection. The connection must still be the same when the answer has arrived: after a client's
/// close, another one may use the same port.
fn uid_behind(stream: &TcpStream, addr: SocketAddr, local_addr: SocketAddr) -> Option<u32> {
    let uid = owner::uid_of(addr, local_addr).unwrap_or_else(|error| {
        warn!(peer = %addr, %error, "Failed to look up the owner of a connection");
        None
    });
    uid.filter(|_| stream.peer_addr().is_ok())
}
