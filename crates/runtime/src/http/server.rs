//! Accepts connections, plain or TLS, and gives every request to one handler.
//!
//! HTTP/1.1 (with upgrades) and HTTP/2 on the same port. Everything a client can take is bounded: connections, handshakes,
//! header size and time, streams, buffers. A panic of the handler answers 500 and harms no other request.
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
use tokio::sync::Semaphore;
use tracing::{info, warn};

use super::Body;
use crate::tasks::{StillRunning, TaskGroup};
use crate::tls::{PeerIdentity, ReloadingServerTls};

mod connection;
mod gather;
mod inherited;
mod owner;

use connection::Acceptor;
pub use inherited::Inherited;

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
}

/// Put into the extensions of a response, asks for the end of its connection once the open responses are sent: for callers
/// that did not say who they are, to whom a cheap connection is a weapon.
#[derive(Clone, Copy, Debug)]
pub struct CloseConnection;

/// A bound port that does not serve yet: until [`Server::serve`], clients wait in the backlog.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    addr: SocketAddr,
    tls: Option<ReloadingServerTls>,
    limits: Limits,
    wants_uids: bool,
}

/// What one server grants its clients.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at a time; further ones wait in the backlog.
    pub max_connections: usize,
    /// TLS handshakes at a time; further ones wait, within their timeout. Bounds the CPU that strangers can take.
    pub max_handshakes: usize,
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
/// A handshake takes about a millisecond of CPU: a fleet that reconnects at once is served in order.
pub const MAX_HANDSHAKES: usize = 64;
/// Generous for a client behind a slow link.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// As kube-apiserver's read-header timeout.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// A kubelet's watches of single Secrets share one connection.
pub const MAX_STREAMS: u32 = 1000;
/// Room for the largest bearer tokens.
pub const MAX_HEADER_BYTES: u32 = 64 * 1024;

/// Pause after an accept that failed for want of file descriptors or memory.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

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
        let from = self.addr.ip().to_canonical();
        from.is_loopback() || from == self.local_addr.ip().to_canonical()
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

    /// Asks the kernel once per connection from this machine for the uid behind it ([`Peer::uid`]).
    #[must_use]
    pub fn with_uids(mut self) -> Self {
        self.wants_uids = true;
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
        let acceptor = Acceptor::new(self.tls, self.wants_uids, self.limits.clone(), handler, tasks.clone());
        tasks.clone().spawn_critical(
            "accept",
            accept(self.listener, self.limits.max_connections, acceptor, tasks),
        );
        serving
    }
}

/// Accepts until the group is asked to end.
async fn accept(listener: TcpListener, max_connections: usize, acceptor: Arc<Acceptor>, tasks: TaskGroup) {
    let slots = Arc::new(Semaphore::new(max_connections));
    let token = tasks.token();
    loop {
        if slots.available_permits() == 0 {
            warn!(max_connections, "All connections are taken, new ones wait");
        }
        // A slot first: a connection that cannot be served stays in the kernel's backlog.
        let Some(Ok(slot)) = token.run_until_cancelled(slots.clone().acquire_owned()).await else {
            return;
        };
        let Some(accepted) = token.run_until_cancelled(listener.accept()).await else {
            return;
        };
        match accepted {
            Ok((stream, addr)) => {
                let acceptor = acceptor.clone();
                tasks.spawn_isolated("connection", async move {
                    acceptor.serve(stream, addr).await;
                    drop(slot);
                });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                warn!(%error, "Cannot accept");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
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

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_connections: MAX_CONNECTIONS,
            max_handshakes: MAX_HANDSHAKES,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            header_timeout: HEADER_TIMEOUT,
            max_streams: MAX_STREAMS,
            max_header_bytes: MAX_HEADER_BYTES,
        }
    }
}
