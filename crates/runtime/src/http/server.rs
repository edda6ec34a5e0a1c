//! Accepts connections, plain or TLS, and gives every request to one handler.
//!
//! HTTP/1.1 (with upgrades) and HTTP/2 on the same port. Everything a client can take is bounded: connections and
//! handshakes (`places`), header size and time, streams, buffers. A panic of the handler answers 500 and harms no other request.
//!
//! The future of a handler is dropped when its client hangs up; writes therefore go through
//! [`TaskGroup::detached`](crate::TaskGroup::detached).

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Body;
use crate::files;
use crate::tasks::{StillRunning, TaskGroup};
use crate::tls::{PeerIdentity, ReloadingServerTls};

mod connection;
mod door;
mod frames;
mod gather;
mod inherited;
mod owner;
mod places;

use connection::Acceptor;
use door::{Door, IsLocal};
pub use inherited::Inherited;
use places::Places;

/// Answers requests. Make one with [`handler`].
pub type Handler = Arc<dyn Fn(Request<Incoming>, Peer) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// Who sent a request. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Address of the client, or of the last proxy before us.
    pub addr: SocketAddr,
    /// Our address that the client connected to.
    pub local_addr: SocketAddr,
    /// Subject of the client certificate, if one was presented that is good at the time of the request.
    pub identity: Option<Arc<PeerIdentity>>,
    /// A client certificate was presented that is not good: of an unknown authority, not for clients, or past its time.
    pub is_refused: bool,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// The uid that made the client's socket, where it is open in our own network namespace. Known only at a server
    /// [`with_uids`](Server::with_uids), of connections over loopback or over an address of this machine.
    pub uid: Option<u32>,
    /// Cancelled when the certificate that was good when the connection began is not good any more. Endless answers end then;
    /// the connection is closed soon after.
    pub ends: CancellationToken,
}

/// Put into the extensions of a response, asks for the end of its connection once the open responses are sent: for callers
/// that did not say who they are, to whom a cheap connection is a weapon.
#[derive(Clone, Copy, Debug)]
pub struct CloseConnection;

/// Put into the extensions of a response, says that its caller showed a credential that is no certificate. The connection
/// leaves the places of strangers.
#[derive(Clone, Debug)]
pub struct KnownCaller {
    /// One caller has one name: its connections are counted together.
    pub name: String,
    /// The places it may take.
    pub rank: Rank,
}

/// The places of the large budget that a connection may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// A quarter of all.
    Other,
    /// All but a few.
    Member,
    /// All.
    Leader,
    /// As a member, and as many as there are.
    Administrator,
}

/// Says which rank the holder of a good certificate has.
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
}

/// What one server grants its clients.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at a time of clients that said who they are; further ones get 429. One client has a sixteenth of those
    /// that are free, or four.
    pub max_connections: usize,
    /// Connections at a time of all others, unfinished handshakes included, and as many again for those of this machine.
    /// Further ones take the place of the oldest, or wait in the backlog.
    pub max_strangers: usize,
    /// The same for one address, or one IPv6 network of 64 bits. Not for this machine's.
    pub max_strangers_per_address: usize,
    /// From accept to the end of the TLS handshake.
    pub handshake_timeout: Duration,
    /// From accept, or from the last response, to the end of the (next) HTTP/1 request header. Also closes connections,
    /// HTTP/2 included, that never send a request.
    pub header_timeout: Duration,
    /// Requests at a time over one HTTP/2 connection.
    pub max_streams: u32,
    /// Bytes of a request's header, as HTTP/2 counts them: 32 more than its name and value for every field.
    pub max_header_bytes: u32,
}

/// A server at work. Dropping it does not stop it; the shutdown of its task group does.
#[derive(Clone, Debug)]
pub struct Serving {
    addr: SocketAddr,
    tasks: TaskGroup,
}

/// The port cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr} (set by {flag}): {error}")]
pub struct BindError {
    addr: SocketAddr,
    flag: String,
    error: io::Error,
}

/// Three for each node of a pool of a thousand: its hub has one, or two while it leads, and may come back with new ones before
/// the old ones are known to be dead. The rest is for kubectl and Prometheus.
pub const MAX_CONNECTIONS: usize = 3000;
/// Handshakes under way, probes, and answers to nobody. A handshake takes about a millisecond of CPU: a fleet that
/// reconnects at once is served in order.
pub const MAX_STRANGERS: usize = 256;
/// A host has one or two connections until it says who it is.
pub const MAX_STRANGERS_PER_ADDRESS: usize = 16;
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
    /// Whether the client is in our own network namespace: on loopback, or at the very address it connected to, which no
    /// other host and no pod can be, unless its packets are rewritten on their way.
    #[must_use]
    pub fn is_local(&self) -> bool {
        door::is_local(self.addr.ip(), self.local_addr.ip())
    }
}

// === impl Server ===

impl Server {
    /// Takes the port (0 picks a free one). `flag` is the command-line flag that an operator would change.
    ///
    /// # Errors
    /// [`BindError`] names the address and the flag.
    pub async fn bind(addr: SocketAddr, flag: &str) -> Result<Self, BindError> {
        Self::bind_or_take(addr, flag, &mut Inherited::default()).await
    }

    /// The same with the socket of this address that was inherited, if there is one.
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
            None => TcpListener::bind(addr).await.map_err(fail)?,
        };
        let bound = listener.local_addr().map_err(fail)?;
        Ok(Server {
            listener,
            addr: bound,
            tls: None,
            limits: Limits::default(),
            wants_uids: false,
            ranks: Arc::new(|_| Rank::Member),
            is_local: door::is_local,
        })
    }

    /// Serves TLS only; changed certificate files are taken over while serving.
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

    /// Asks the kernel once per connection from this machine for the uid behind it ([`Peer::uid`]). Connections of root need no
    /// credential for the large budget.
    #[must_use]
    pub fn with_uids(mut self) -> Self {
        self.wants_uids = true;
        self
    }

    /// Asks `ranks` about every good certificate. Without it all are members.
    #[must_use]
    pub fn with_ranks(mut self, ranks: Ranks) -> Self {
        self.ranks = ranks;
        self
    }

    /// Replaces what counts as a connection of this machine.
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
        let door = Door {
            places: Places::new(&self.limits),
            wants_uids: self.wants_uids,
            is_local: self.is_local,
        };
        let acceptor = Acceptor::new(self.tls, self.limits, self.ranks, handler, tasks.clone());
        tasks
            .clone()
            .spawn_critical("accept", door.accept(self.listener, acceptor, tasks));
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

    /// Stops accepting and asks connections to finish: HTTP/1 after the current response, HTTP/2 after its open streams.
    /// Endless responses (watches) must end by themselves, or are cut at the deadline.
    ///
    /// # Errors
    /// [`StillRunning`] when connections were cut.
    pub async fn shutdown(&self, deadline: Duration) -> Result<(), StillRunning> {
        self.tasks.shutdown(deadline).await
    }
}

// === impl Limits ===

impl Limits {
    /// The same, or less where so many open files do not suffice, which the log says. A quarter of these is for strangers
    /// at most.
    #[must_use]
    pub fn within(mut self, files: usize) -> Self {
        let wanted = self.files();
        if wanted > files {
            self.max_strangers = self.max_strangers.min(files / 8).max(1);
            let left = files.saturating_sub(2 * self.max_strangers);
            self.max_connections = self.max_connections.min(left).max(1);
            let (max_connections, max_strangers) = (self.max_connections, self.max_strangers);
            warn!(
                max_connections,
                max_strangers,
                wanted,
                files,
                open_files_max = files::limit(),
                "Open files are short, so a port grants fewer connections: raise the hard limit (RLIMIT_NOFILE, LimitNOFILE=)"
            );
        }
        self
    }

    /// Open files of a server that grants all of it.
    fn files(&self) -> usize {
        self.max_strangers
            .saturating_mul(2)
            .saturating_add(self.max_connections)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_connections: MAX_CONNECTIONS,
            max_strangers: MAX_STRANGERS,
            max_strangers_per_address: MAX_STRANGERS_PER_ADDRESS,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            header_timeout: HEADER_TIMEOUT,
            max_streams: MAX_STREAMS,
            max_header_bytes: MAX_HEADER_BYTES,
        }
    }
}
