//! Server that accepts connections, plain or TLS, and passes every request to one handler.
//!
//! HTTP/1.1 (with upgrades) and HTTP/2 on the same port. All resources of a client are bounded: connections and
//! handshakes (`places`), header size and time, streams, buffers. A panic of the handler answers 500 and affects no
//! other request.
//!
//! The future of a handler is dropped when its client hangs up; writes therefore go through
//! [`TaskGroup::detached`](crate::TaskGroup::detached).

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Body;
use crate::files;
use crate::tasks::{StillRunning, TaskGroup};
use crate::tls::{PeerIdentity, ReloadingServerTls};

mod connection;
mod door;
mod frames;
mod holds;
mod host;
mod inherited;
mod offenders;
mod owner;
mod ping_timer;
mod places;
mod stalls;
mod write_coalescer;

use connection::Acceptor;
pub use connection::ConnectionPlace;
use door::{Door, IsLocal};
pub use holds::ConnectionMetrics;
use holds::Holds;
pub use inherited::Inherited;
use places::Places;

/// Function that answers requests. Made by [`handler`].
pub type Handler = Arc<dyn Fn(Request<Incoming>, Peer) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// Sender of a request. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Address of the client, or of the last proxy before this server.
    pub addr: SocketAddr,
    /// Address of this server that the client connected to.
    pub local_addr: SocketAddr,
    /// Subject of the client certificate, if one was presented that is valid at the time of the request.
    pub identity: Option<Arc<PeerIdentity>>,
    /// True if an invalid client certificate was presented: of an unknown authority, not for clients, or expired.
    pub is_refused: bool,
    /// True if the connection is encrypted.
    pub tls: bool,
    /// The uid that made the client's socket, if that is open in this process' network namespace. Known only at a
    /// server [`with_uids`](Server::with_uids), for connections over loopback or over an address of this machine.
    pub uid: Option<u32>,
    /// Cancelled when the certificate, valid at the begin of the connection, becomes invalid. Endless answers end then;
    /// the connection is closed soon after.
    pub ends: CancellationToken,
}

/// Extension of a response that requests the end of its connection once the open responses are sent. For
/// unauthenticated callers, who could use many cheap connections for an attack.
#[derive(Clone, Copy, Debug)]
pub struct CloseConnection;

/// Extension of a response whose caller presented a credential other than a certificate. The connection leaves the
/// places of strangers. Before an upgrade, see [`ConnectionPlace::claim`].
#[derive(Clone, Debug)]
pub struct KnownCaller {
    /// Name of the caller: connections with the same name are counted together.
    pub name: String,
    /// The places it may take.
    pub rank: Rank,
}

/// Share of the large budget that a connection may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// A quarter of all places.
    Other,
    /// All places but a few.
    Member,
    /// All places.
    Leader,
    /// As a member, without a limit per identity.
    Administrator,
}

/// Returns the rank of a valid certificate's holder.
pub type Ranks = Arc<dyn Fn(&PeerIdentity) -> Rank + Send + Sync>;

/// A bound port that does not serve yet: until [`Server::serve`], clients wait in the backlog.
pub struct Server {
    listener: TcpListener,
    addr: SocketAddr,
    tls: Option<ReloadingServerTls>,
    limits: Limits,
    wants_uids: bool,
    ranks: Ranks,
    is_local: IsLocal,
    metrics: Option<ConnectionMetrics>,
}

/// Limits of one server on its clients.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum number of concurrent connections of authenticated clients; further ones get 429. One client gets a
    /// sixteenth of the free places, or four.
    pub max_connections: usize,
    /// Maximum number of concurrent connections of all other clients, unfinished handshakes included; those of this
    /// machine have as many again. Further connections replace the oldest one, or wait.
    pub max_strangers: usize,
    /// Maximum number of connections that wait for a stranger's place, beside the next one in turn; those of this
    /// machine have as many again. Further ones are closed.
    pub max_waiting: usize,
    /// As `max_strangers`, for one address, or one IPv6 network of `ipv6_prefix` bits. It does not apply to this
    /// machine.
    pub max_strangers_per_address: usize,
    /// Bits of the IPv6 network that one client has to itself: 64 for a host of the network, 128 for a pod, because the
    /// pods of a node share a network of 64 bits.
    pub ipv6_prefix: u32,
    /// Maximum time that a connection waits before its handshake, when others of its address were cut for floods or
    /// abandoned. On this machine a fifth. Below the time after which a waiting stranger may be evicted.
    pub max_hold: Duration,
    /// From the begin to the end of the TLS handshake.
    pub handshake_timeout: Duration,
    /// From accept, or from the last response, to the end of the (next) HTTP/1 request header. Also closes connections,
    /// including HTTP/2, that never send a request.
    pub header_timeout: Duration,
    /// Maximum number of concurrent requests over one HTTP/2 connection.
    pub max_streams: u32,
    /// Maximum bytes of a request's header, as HTTP/2 counts them: for every field 32 more than its name and value.
    pub max_header_bytes: u32,
    /// Maximum time in which a client takes nothing of an answer that waits: an HTTP/2 stream is reset between one and
    /// two such times, any other connection is closed. `None` for servers of upgrades and of logs: their readers may
    /// pause.
    pub max_stall: Option<Duration>,
}

/// A running server. Dropping it does not stop it; the shutdown of its task group does.
#[derive(Clone, Debug)]
pub struct Serving {
    addr: SocketAddr,
    tasks: TaskGroup,
}

/// The port is not available.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr} (set by {flag}): {error}{}", fix_of(error))]
pub struct BindError {
    addr: SocketAddr,
    flag: String,
    error: io::Error,
}

fn fix_of(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; `ss -ltnp` shows the process that holds the port: stop it or choose another port"
        }
        io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need CAP_NET_BIND_SERVICE",
        _ => "",
    }
}

/// Three for each node of a pool of a thousand. A node's hub has one connection, or two while it leads, and may
/// reconnect before the old ones are known to be dead. The rest is for kubectl and Prometheus.
pub const MAX_CONNECTIONS: usize = 3000;
/// For handshakes in progress, probes, and answers to unauthenticated clients. A handshake takes about a millisecond of
/// CPU: a fleet that reconnects at the same time is served in order.
pub const MAX_STRANGERS: usize = 256;
/// A fleet of a thousand that reconnects at the same time waits and is served in order.
pub const MAX_WAITING: usize = 1024;
/// Connections that wait in the kernel, as for every other listener of tokio.
const BACKLOG: u32 = 1024;
/// A host has one or two connections before it authenticates.
pub const MAX_STRANGERS_PER_ADDRESS: usize = 16;
/// Two handshakes a second for an address that floods. A hub that shares the address with the attacker still renews its
/// lease in time, which takes a new connection within ten seconds.
pub const MAX_HOLD: Duration = Duration::from_secs(2);
/// Generous for a client behind a slow link.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// As kube-apiserver's read-header timeout.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// A kubelet's watches of single Secrets share one connection.
pub const MAX_STREAMS: u32 = 1000;
/// Room for the largest bearer tokens.
pub const MAX_HEADER_BYTES: u32 = 64 * 1024;

/// Makes a [`Handler`] from an async function or closure.
pub fn handler<F, Fut>(function: F) -> Handler
where
    F: Fn(Request<Incoming>, Peer) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Response<Body>> + Send + 'static,
{
    Arc::new(move |request, peer| Box::pin(function(request, peer)))
}

// === impl Peer ===

impl Peer {
    /// True if the client is in this process' network namespace: on loopback, or at the same address that it connected
    /// to. No other host and no pod can have that address, unless packets are rewritten on their way.
    #[must_use]
    pub fn is_local(&self) -> bool {
        door::is_local(self.addr.ip(), self.local_addr.ip())
    }

    /// Address that the client counts by: 127.0.0.1 for all of this machine, which may bind to any loopback address.
    #[must_use]
    pub fn counted_address(&self) -> IpAddr {
        offenders::counted_address(self.addr.ip(), self.is_local())
    }
}

/// Listens on an address. On an unspecified one, of both families where the kernel has IPv6, as Go's `net.Listen` does.
async fn listen(addr: SocketAddr) -> std::io::Result<TcpListener> {
    if addr.ip().is_unspecified()
        && let Ok(socket) = TcpSocket::new_v6()
    {
        socket.set_reuseaddr(true)?;
        rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
        let every = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), addr.port());
        match socket.bind(every) {
            Ok(()) => return socket.listen(BACKLOG),
            Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => {}
            Err(error) => return Err(error),
        }
    }
    TcpListener::bind(addr).await
}

// === impl Server ===

impl Server {
    /// Binds the port (0 picks a free one). `flag` is the command-line flag that sets the address.
    ///
    /// # Errors
    /// [`BindError`] names the address and the flag.
    pub async fn bind(addr: SocketAddr, flag: &str) -> Result<Self, BindError> {
        Self::bind_or_take(addr, flag, &mut Inherited::default()).await
    }

    /// As [`Self::bind`], but uses the inherited socket of this address if there is one.
    ///
    /// # Errors
    /// [`BindError`] names the address and the flag.
    pub async fn bind_or_take(addr: SocketAddr, flag: &str, inherited: &mut Inherited) -> Result<Self, BindError> {
        let fail = |error| BindError {
            addr,
            flag: flag.to_owned(),
            error,
        };
        let listener = match inherited.take(addr) {
            Some(listener) => TcpListener::from_std(listener).map_err(fail)?,
            None => listen(addr).await.map_err(fail)?,
        };
        let bound = listener.local_addr().map_err(fail)?;
        // A listener of both families has an IPv6 address.
        let addr = SocketAddr::new(addr.ip(), bound.port());
        Ok(Server {
            listener,
            addr: if addr.ip().is_unspecified() { addr } else { bound },
            tls: None,
            limits: Limits::default(),
            wants_uids: false,
            ranks: Arc::new(|_| Rank::Member),
            is_local: door::is_local,
            metrics: None,
        })
    }

    /// Serves TLS only; changed certificate files are reloaded while serving.
    #[must_use]
    pub fn with_tls(mut self, tls: ReloadingServerTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Replaces the default limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Looks up, once per connection from this machine, the uid behind it ([`Peer::uid`]). Connections of root need no
    /// credential for the large budget.
    #[must_use]
    pub fn with_uids(mut self) -> Self {
        self.wants_uids = true;
        self
    }

    /// Calls `ranks` for every valid certificate. Without it all holders are members.
    #[must_use]
    pub fn with_ranks(mut self, ranks: Ranks) -> Self {
        self.ranks = ranks;
        self
    }

    /// Counts connections in `metrics`.
    #[must_use]
    pub fn with_metrics(mut self, metrics: ConnectionMetrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Replaces the rule that decides whether a connection is of this machine.
    #[cfg(test)]
    pub(crate) fn with_local(mut self, is_local: IsLocal) -> Self {
        self.is_local = is_local;
        self
    }

    /// The address, with the port that was picked for port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Starts accepting, in a child group of `tasks`.
    pub fn serve(self, tasks: &TaskGroup, handler: Handler) -> Serving {
        let tasks = tasks.child();
        let serving = Serving {
            addr: self.addr,
            tasks: tasks.clone(),
        };
        if let Some(tls) = &self.tls {
            tls.watch(&tasks);
        }
        info!(addr = %self.addr, tls = self.tls.is_some(), "Serving");
        let door = Arc::new(Door {
            places: Places::new(&self.limits),
            holds: Holds::new(self.limits.max_hold, self.metrics),
            wants_uids: self.wants_uids,
            is_local: self.is_local,
            ipv6_prefix: self.limits.ipv6_prefix,
            max_waiting: self.limits.max_waiting,
            acceptor: Acceptor::new(self.tls, self.limits, self.ranks, handler, tasks.clone()),
            tasks: tasks.clone(),
        });
        tasks.spawn_critical("accept", door.accept(self.listener));
        serving
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("addr", &self.addr)
            .finish_non_exhaustive()
    }
}

// === impl Serving ===

impl Serving {
    /// The address that is served.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Stops accepting and requests the end of connections: HTTP/1 after the current response, HTTP/2 after its open
    /// streams. Endless responses (watches) must end by themselves, or are cut at the deadline.
    ///
    /// # Errors
    /// [`StillRunning`] when connections were cut.
    pub async fn shutdown(&self, deadline: Duration) -> Result<(), StillRunning> {
        self.tasks.shutdown(deadline).await
    }
}

// === impl Limits ===

impl Limits {
    /// The same limits, or lower ones where `files` open files do not suffice, which is logged. Waiting connections
    /// give way first, down to a quarter as many as strangers; then strangers, down to a quarter of the files; then
    /// known clients.
    #[must_use]
    pub fn within(mut self, files: usize) -> Self {
        let wanted = self.files();
        if wanted > files {
            // Each of them may also be of this machine.
            let pairs = files.saturating_sub(self.max_connections) / 2;
            self.max_strangers = self.max_strangers.min((pairs / 5 * 4).max(files / 8)).max(1);
            let waiting = pairs.saturating_sub(self.max_strangers).max(self.max_strangers / 4);
            self.max_waiting = self.max_waiting.min(waiting).max(1);
            let left = files.saturating_sub(2 * (self.max_strangers + self.max_waiting));
            self.max_connections = self.max_connections.min(left).max(1);
            let (max_connections, max_strangers, max_waiting) =
                (self.max_connections, self.max_strangers, self.max_waiting);
            warn!(
                max_connections,
                max_strangers,
                max_waiting,
                wanted,
                files,
                open_files_max = files::limit(),
                "Open files are short, so a port grants fewer connections: raise the hard limit (RLIMIT_NOFILE, LimitNOFILE=)"
            );
        }
        self
    }

    /// Number of open files that these limits need.
    fn files(&self) -> usize {
        self.max_strangers
            .saturating_add(self.max_waiting)
            .saturating_mul(2)
            .saturating_add(self.max_connections)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_connections: MAX_CONNECTIONS,
            max_strangers: MAX_STRANGERS,
            max_waiting: MAX_WAITING,
            max_strangers_per_address: MAX_STRANGERS_PER_ADDRESS,
            ipv6_prefix: 64,
            max_hold: MAX_HOLD,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            header_timeout: HEADER_TIMEOUT,
            max_streams: MAX_STREAMS,
            max_header_bytes: MAX_HEADER_BYTES,
            max_stall: None,
        }
    }
}
