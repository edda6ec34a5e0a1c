//! Serves one accepted connection: handshake, then requests until either side ends it.

use std::convert::Infallible;
use std::future::Future;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::Response;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};
use yurt_apimachinery::Status;

use super::gather::Gather;
use super::{CloseConnection, Handler, Limits, Peer, owner};
use crate::http::{Body, status_response, tcp};
use crate::tasks::{TaskGroup, cancelled, panic_message};
use crate::tls::{ClientCertificate, ReloadingServerTls};

/// What all connections of a server share.
pub(super) struct Acceptor {
    tls: Option<ReloadingServerTls>,
    wants_uids: bool,
    handshakes: Semaphore,
    limits: Limits,
    handler: Handler,
    tasks: TaskGroup,
}

/// Runs the streams of an HTTP/2 connection as tasks of the server's group.
#[derive(Clone)]
struct GroupExecutor {
    tasks: TaskGroup,
    /// One more reference for each stream that is open.
    open: Arc<()>,
}

// What one connection may take. hyper's defaults are made for few, fast clients.

/// Bytes of a request body that one HTTP/2 stream may have in flight.
const STREAM_WINDOW: u32 = 128 * 1024;
/// The same for a whole connection.
const CONNECTION_WINDOW: u32 = 512 * 1024;
/// Bytes of a response that one stream buffers before it waits for the client.
const MAX_SEND_BUFFER: usize = 64 * 1024;
/// A connection with this many streams has its turn after those of them that have something to say: their frames leave
/// together. With fewer, waiting for a turn costs more than it saves.
const MANY_STREAMS: usize = 16;
/// Time between HTTP/2 pings.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// An unanswered ping ends the connection after this long.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

// === impl Acceptor ===

impl Acceptor {
    pub(super) fn new(
        tls: Option<ReloadingServerTls>,
        wants_uids: bool,
        limits: Limits,
        handler: Handler,
        tasks: TaskGroup,
    ) -> Arc<Self> {
        let handshakes = Semaphore::new(limits.max_handshakes);
        Arc::new(Acceptor {
            tls,
            wants_uids,
            handshakes,
            limits,
            handler,
            tasks,
        })
    }

    /// Serves the connection to its end.
    pub(super) async fn serve(&self, stream: TcpStream, addr: SocketAddr) {
        let local_addr = match tcp::tune_server(&stream).and_then(|()| stream.local_addr()) {
            Ok(local_addr) => local_addr,
            Err(error) => return debug!(peer = %addr, %error, "Connection was gone at once"),
        };
        let mut peer = Peer {
            addr,
            local_addr,
            identity: None,
            is_refused: false,
            tls: self.tls.is_some(),
            uid: None,
        };
        if self.wants_uids && peer.is_local() {
            peer.uid = uid_behind(&stream, &peer);
        }
        let Some(tls) = &self.tls else {
            return self.requests(stream, peer, None).await;
        };
        // A handshake in progress is not worth waiting for at shutdown.
        match self
            .tasks
            .token()
            .run_until_cancelled(Box::pin(self.handshake(tls, stream)))
            .await
        {
            None => {}
            Some(Err(reason)) => debug!(peer = %addr, reason, "TLS handshake failed"),
            Some(Ok(stream)) => {
                let certificate = ClientCertificate::of(stream.get_ref().1.peer_certificates(), tls);
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let stream = Gather::new(stream, is_http2);
                self.requests(stream, peer, certificate).await;
            }
        }
    }

    async fn handshake(&self, tls: &ReloadingServerTls, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
        let handshake = async {
            let _turn = self.handshakes.acquire().await.map_err(|e| e.to_string())?;
            TlsAcceptor::from(tls.current())
                .accept(stream)
                .await
                .map_err(|e| e.to_string())
        };
        match tokio::time::timeout(self.limits.handshake_timeout, handshake).await {
            Ok(result) => result,
            Err(_) => Err(format!("not finished after {:?}", self.limits.handshake_timeout)),
        }
    }

    /// Boxed part by part: an async function would keep, for as long as the connection lives, room for everything that was
    /// on the way to it.
    fn requests(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        peer: Peer,
        certificate: Option<ClientCertificate>,
    ) -> impl Future<Output = ()> {
        let (addr, handler) = (peer.addr, self.handler.clone());
        let any_request = Arc::new(AtomicBool::new(false));
        let seen = any_request.clone();
        let closing = CancellationToken::new();
        let close = closing.clone();
        let service = service_fn(move |request| {
            seen.store(true, Ordering::Relaxed);
            let (handler, close) = (handler.clone(), close.clone());
            let identity = certificate.as_ref().and_then(ClientCertificate::identity);
            let peer = Peer {
                is_refused: certificate.is_some() && identity.is_none(),
                identity,
                ..peer.clone()
            };
            // Boxed: an answer may take hours (a watch), and by then only its body is needed.
            Box::pin(async move {
                // The call is inside the guarded future: it may panic before the first await.
                let response = guarded(async move { handler(request, peer).await }).await;
                if response.extensions().get::<CloseConnection>().is_some() {
                    close.cancel();
                }
                Ok::<_, Infallible>(response)
            })
        });
        let open = Arc::new(());
        let builder = self.builder(open.clone());
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut connection = Box::pin(connection.into_owned());
        let token = self.tasks.token();
        let limit = self.limits.header_timeout;
        async move {
            let mut stopping = false;
            let mut first_request = pin!(tokio::time::sleep(limit));
            let mut stop = pin!(async {
                tokio::select! { () = cancelled(&token) => {} () = cancelled(&closing) => {} }
            });
            let mut waiting = true;
            let mut had_turn = true;
            let ended = loop {
                let turn = poll_fn(|cx| {
                    if had_turn && Arc::strong_count(&open) >= MANY_STREAMS {
                        had_turn = false;
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    had_turn = true;
                    connection.as_mut().poll(cx)
                });
                tokio::select! {
                    ended = turn => break ended,
                    () = stop.as_mut(), if !stopping => {
                        stopping = true;
                        connection.as_mut().graceful_shutdown();
                    }
                    () = first_request.as_mut(), if waiting => {
                        waiting = false;
                        if !any_request.load(Ordering::Relaxed) {
                            return debug!(peer = %addr, "Closing a connection that sent no request");
                        }
                    }
                }
            };
            match ended {
                Ok(()) => debug!(peer = %addr, "Connection closed"),
                Err(error) => debug!(peer = %addr, %error, "Connection broke"),
            }
        }
    }

    fn builder(&self, open: Arc<()>) -> auto::Builder<GroupExecutor> {
        let tasks = self.tasks.clone();
        let mut builder = auto::Builder::new(GroupExecutor { tasks, open });
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_timeout)
            .max_buf_size(self.limits.max_header_bytes as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(MAX_SEND_BUFFER)
            .max_concurrent_streams(self.limits.max_streams)
            .max_header_list_size(self.limits.max_header_bytes)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        builder
    }
}

/// The uid behind a connection, which is still the one it was asked about when the answer is there: a client that closed
/// may have been followed by another one on the same port.
fn uid_behind(stream: &TcpStream, peer: &Peer) -> Option<u32> {
    let uid = owner::uid_of(peer.addr, peer.local_addr).unwrap_or_else(|error| {
        warn!(peer = %peer.addr, %error, "Cannot find out whose connection this is");
        None
    });
    uid.filter(|_| stream.peer_addr().is_ok())
}

/// Answers 500 when the handler panics.
async fn guarded(response: impl Future<Output = Response<Body>>) -> Response<Body> {
    AssertUnwindSafe(response).catch_unwind().await.unwrap_or_else(|panic| {
        error!(panic = panic_message(&*panic), "Handler panicked");
        status_response(&Status::internal("the request handler failed; see the server's log"))
    })
}

// === impl GroupExecutor ===

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for GroupExecutor {
    fn execute(&self, stream: F) {
        let open = self.open.clone();
        self.tasks
            .spawn_isolated("http2-stream", stream.map(move |()| drop(open)));
    }
}
