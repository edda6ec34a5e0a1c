//! One accepted connection: handshake, then requests until either side ends it.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_LENGTH};
use http::{HeaderValue, Method, Request, Response, Version};
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};
use yurt_apimachinery::Status;

use super::door::Guest;
use super::frames::Metered;
use super::holds::Record;
use super::host;
use super::offenders::Offence;
use super::ping_timer::PingTimer;
use super::places::Place;
use super::stalls;
use super::write_coalescer::WriteCoalescer;
use super::{CloseConnection, Handler, KnownCaller, Limits, Peer, Ranks};
use crate::http::{Body, empty, status_response, tcp};
use crate::tasks::{TaskGroup, cancelled, panic_message};
use crate::tls::{ClientCertificate, ReloadingServerTls};

/// `Cache-Control` of every answer that has none, as at kube-apiserver: answers depend on the caller.
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache, private");

/// A connection, without TLS or with it. One type for both, because the HTTP libraries are compiled for each type.
type Transport = Either<TcpStream, TlsStream<TcpStream>>;

/// State shared by all connections of a server.
pub(super) struct Acceptor {
    tls: Option<ReloadingServerTls>,
    limits: Limits,
    ranks: Ranks,
    handler: Handler,
    tasks: TaskGroup,
}

/// State shared by the requests of a connection.
struct Client {
    peer: Peer,
    certificate: Option<ClientCertificate>,
    /// True if the certificate was valid when the connection began.
    was_good: bool,
    place: Arc<Place>,
    record: Record,
    /// Set by a flood of frames.
    is_flooded: Arc<AtomicBool>,
    /// Answer to every request if there is no place for the certificate's identity.
    refusal: Option<Status>,
    any_request: AtomicBool,
    closing: CancellationToken,
}

/// Extension of a request that asks for an upgrade: the place of its connection. The server no longer serves an
/// upgraded connection; its place is free once all clones are dropped.
#[derive(Clone, Debug)]
pub struct ConnectionPlace {
    place: Arc<Place>,
    closing: CancellationToken,
}

/// Runs the streams of an HTTP/2 connection as tasks of the server's group.
#[derive(Clone)]
struct GroupExecutor {
    tasks: TaskGroup,
    /// One more reference for each open stream.
    open: Arc<()>,
    max_stall: Option<Duration>,
}

// Limits of one connection. hyper's defaults are made for few, fast clients.

/// Maximum bytes of a request body that one HTTP/2 stream may have in flight.
const STREAM_WINDOW: u32 = 128 * 1024;
/// The same for a whole connection.
const CONNECTION_WINDOW: u32 = 512 * 1024;
/// Maximum bytes of a response that one stream buffers before it waits for the client.
const MAX_SEND_BUFFER: usize = 64 * 1024;
/// Maximum header lines of an HTTP/1.1 request. A user of many groups that a client impersonates has one for each.
const MAX_HEADERS: usize = 256;
/// Number of streams from which a connection yields to its streams before it writes, so that their frames are sent
/// together. With fewer streams, the yield costs more than it saves.
const MANY_STREAMS: usize = 16;
/// Seconds after which a client without a place should retry (`Retry-After`).
const FULL_RETRY_SECONDS: u32 = 10;
/// Time after which a connection whose certificate has ended is cut. Its watches have ended before.
const END_DRAIN: Duration = Duration::from_secs(5);
/// Time between HTTP/2 pings, to the nearest tick of [`PingTimer`].
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// Time after which an unanswered ping ends the connection, to the nearest tick.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

// === impl Acceptor ===

impl Acceptor {
    pub(super) fn new(
        tls: Option<ReloadingServerTls>,
        limits: Limits,
        ranks: Ranks,
        handler: Handler,
        tasks: TaskGroup,
    ) -> Arc<Self> {
        Arc::new(Acceptor {
            tls,
            limits,
            ranks,
            handler,
            tasks,
        })
    }

    /// Serves the connection to its end.
    pub(super) async fn serve(&self, guest: Guest) {
        let Guest {
            stream,
            addr,
            local_addr,
            uid,
            place,
            record,
        } = guest;
        if let Err(error) = tcp::tune_server(&stream, self.limits.max_stall) {
            return debug!(peer = %addr, %error, "Connection closed right after accept");
        }
        let peer = Peer {
            addr,
            local_addr,
            identity: None,
            is_refused: false,
            tls: self.tls.is_some(),
            uid,
            ends: CancellationToken::new(),
        };
        if !Box::pin(self.has_turn(&record, &place)).await {
            return debug!(peer = %addr, "Connection ended before its turn");
        }
        let Some(tls) = &self.tls else {
            let client = self.client(peer, None, place, record);
            return self.requests(Either::Left(stream), false, client).await;
        };
        record.note_handshake();
        // A shutdown need not wait for a handshake in progress.
        let handshake = Box::pin(async {
            tokio::select! {
                done = self.handshake(tls, stream) => done,
                () = place.evicted().cancelled() => Err("evicted in favour of another client".to_owned()),
            }
        });
        match self.tasks.token().run_until_cancelled(handshake).await {
            None => {}
            Some(Err(reason)) => {
                record.note(Offence::Abandoned);
                debug!(peer = %addr, reason, "TLS handshake failed");
            }
            Some(Ok(stream)) => {
                let certificate = ClientCertificate::of(stream.get_ref().1.peer_certificates(), tls);
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let client = self.client(peer, certificate, place, record);
                self.requests(Either::Right(stream), is_http2, client).await;
            }
        }
    }

    /// Waits for the connection's turn, if its origin is slowed; false if the connection has to end.
    async fn has_turn(&self, record: &Record, place: &Place) -> bool {
        let Some(held) = record.turn() else { return true };
        tokio::select! {
            () = held.over() => true,
            () = place.evicted().cancelled() => false,
            () = self.tasks.token().cancelled_owned() => false,
        }
    }

    /// Takes a place for the certificate's identity, if the certificate is valid.
    fn client(&self, peer: Peer, certificate: Option<ClientCertificate>, place: Place, record: Record) -> Arc<Client> {
        let identity = certificate.as_ref().and_then(ClientCertificate::identity);
        let named = identity.as_ref().filter(|identity| !identity.common_name.is_empty());
        let refused = named.filter(|identity| {
            let rank = (self.ranks)(identity);
            !place.promote(&identity.common_name, rank)
        });
        let refusal = refused.map(|identity| full(&identity.common_name));
        Arc::new(Client {
            peer,
            was_good: identity.is_some(),
            certificate,
            place: Arc::new(place),
            record,
            is_flooded: Arc::default(),
            refusal,
            any_request: AtomicBool::new(false),
            closing: CancellationToken::new(),
        })
    }

    async fn handshake(&self, tls: &ReloadingServerTls, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
        let handshake = TlsAcceptor::from(tls.current()).accept(stream);
        match tokio::time::timeout(self.limits.handshake_timeout, handshake).await {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err(format!("not finished after {:?}", self.limits.handshake_timeout)),
        }
    }

    /// Serves the requests of a connection. With `coalesces` small frames share records.
    ///
    /// Boxed part by part: an async function would reserve room for all intermediate states for the life of the
    /// connection.
    fn requests(&self, stream: Transport, coalesces: bool, client: Arc<Client>) -> impl Future<Output = ()> {
        let stream = Metered::new(WriteCoalescer::new(stream, coalesces), client.is_flooded.clone());
        let (shared, handler) = (client.clone(), self.handler.clone());
        // Boxed: an answer may take hours (a watch), and then only its body is needed.
        let service = service_fn(move |request| Box::pin(answer(handler.clone(), shared.clone(), request)));
        let open = Arc::new(());
        let builder = self.builder(open.clone());
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut connection = Box::pin(connection.into_owned());
        let token = self.tasks.token();
        let limit = self.limits.header_timeout;
        async move {
            let (mut stopping, mut ended) = (false, false);
            // Until the first request, and after the end of the certificate.
            let mut timer = pin!(tokio::time::sleep(limit));
            let mut waiting = true;
            let mut stop = pin!(async {
                tokio::select! { () = cancelled(&token) => {} () = cancelled(&client.closing) => {} }
            });
            let mut end = Box::pin(client.ended());
            let mut evicted = pin!(cancelled(client.place.evicted()));
            let mut had_turn = true;
            let closed = loop {
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
                    // In this order: a client whose watch ends must already know that the connection ends. Otherwise it
                    // watches again over it.
                    biased;
                    () = stop.as_mut(), if !stopping => {
                        stopping = true;
                        connection.as_mut().graceful_shutdown();
                    }
                    () = &mut end, if !ended => {
                        (ended, waiting) = (true, true);
                        timer.as_mut().reset(tokio::time::Instant::now() + END_DRAIN);
                        connection.as_mut().graceful_shutdown();
                    }
                    () = evicted.as_mut() => break Ok("Closing a stranger's connection: evicted in favour of another"),
                    () = timer.as_mut(), if waiting => {
                        waiting = false;
                        if ended {
                            break Ok("Closing a connection whose certificate has ended");
                        }
                        if !client.any_request.load(Ordering::Relaxed) {
                            break Ok("Closing a connection that sent no request");
                        }
                    }
                    closed = turn => break closed.map(|()| "Connection closed"),
                }
            };
            client.note_end(closed.map_err(|error| error as Box<dyn Error>));
        }
    }

    fn builder(&self, open: Arc<()>) -> auto::Builder<GroupExecutor> {
        let mut builder = auto::Builder::new(GroupExecutor {
            tasks: self.tasks.clone(),
            open,
            max_stall: self.limits.max_stall,
        });
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_timeout)
            .max_headers(MAX_HEADERS)
            .max_buf_size(self.limits.max_header_bytes as usize);
        builder
            .http2()
            .timer(PingTimer)
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

/// Answers one request, and decides whether the connection continues.
async fn answer(
    handler: Handler,
    client: Arc<Client>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    client.any_request.store(true, Ordering::Relaxed);
    let is_http2 = request.version() == Version::HTTP_2;
    let is_head = request.method() == Method::HEAD;
    if request.extensions().get::<OnUpgrade>().is_some() {
        request.extensions_mut().insert(client.connection_place());
    }
    let refusal = client.refusal.as_ref().map(status_response);
    let mut response = match refusal.or_else(|| host::refusal(&request)) {
        Some(mut response) => {
            response.extensions_mut().insert(CloseConnection);
            response
        }
        // The call is inside the guarded future, because it may panic before the first await.
        None => {
            let peer = client.peer();
            guarded(async move { handler(request, peer).await }).await
        }
    };
    response.headers_mut().entry(CACHE_CONTROL).or_insert(NO_CACHE);
    let known = response.extensions().get::<KnownCaller>();
    let has_no_place = known.is_some_and(|caller| !client.place.promote(&caller.name, caller.rank));
    if has_no_place || response.extensions().get::<CloseConnection>().is_some() {
        client.closing.cancel();
    }
    if is_head && is_http2 {
        response = without_body(response);
    }
    if client.closing.is_cancelled() && !is_http2 {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response.map(stalls::in_pieces))
}

/// Removes the body of an answer to HEAD. The library does so for HTTP/1.1 only; for HTTP/2 it would send the body,
/// which is a protocol error.
fn without_body(mut response: Response<Body>) -> Response<Body> {
    let body = response.body();
    let length = body.size_hint().exact().filter(|_| !body.is_end_stream());
    if let Some(length) = length {
        response.headers_mut().entry(CONTENT_LENGTH).or_insert(length.into());
    }
    response.map(|_| empty())
}

/// Answer to a client that has reached its limit of connections.
fn full(name: &str) -> Status {
    let message = format!("{name:?} has reached its present limit of connections: close some, or try again later");
    Status::too_many_requests(&message, FULL_RETRY_SECONDS)
}

/// True if the HTTP/2 library ended the connection because of a flood.
fn is_flood_for_http2(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    let cause = causes.find_map(|error| error.downcast_ref::<h2::Error>());
    cause.is_some_and(|error| error.is_library() && error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM))
}

/// Answers 500 when the handler panics.
async fn guarded(response: impl Future<Output = Response<Body>>) -> Response<Body> {
    AssertUnwindSafe(response).catch_unwind().await.unwrap_or_else(|panic| {
        error!(panic = panic_message(&*panic), "Handler panicked");
        status_response(&Status::internal("the request handler failed; see the server's log"))
    })
}

// === impl ConnectionPlace ===

impl ConnectionPlace {
    /// Moves the connection to the places of `caller`, as a response with a [`KnownCaller`] does. An upgrade is
    /// accepted only after that: then the server can no longer end the connection.
    ///
    /// # Errors
    /// 429 if there is no place for the caller. The connection ends after the next response.
    pub fn claim(&self, caller: &KnownCaller) -> Result<(), Status> {
        if self.place.promote(&caller.name, caller.rank) {
            return Ok(());
        }
        self.closing.cancel();
        Err(full(&caller.name))
    }
}

// === impl Client ===

impl Client {
    fn connection_place(&self) -> ConnectionPlace {
        ConnectionPlace {
            place: self.place.clone(),
            closing: self.closing.clone(),
        }
    }

    /// The sender of a request, at present.
    fn peer(&self) -> Peer {
        let identity = self.certificate.as_ref().and_then(ClientCertificate::identity);
        Peer {
            is_refused: self.certificate.is_some() && identity.is_none(),
            identity,
            ..self.peer.clone()
        }
    }

    /// Resolves, and ends watches, once a certificate that was valid becomes invalid.
    async fn ended(&self) {
        match &self.certificate {
            Some(certificate) if self.was_good => certificate.ended().await,
            _ => std::future::pending().await,
        }
        self.peer.ends.cancel();
    }

    /// Logs the end of the connection, and notes an offence.
    fn note_end(&self, closed: Result<&str, Box<dyn Error>>) {
        let mut is_flood = self.is_flooded.load(Ordering::Relaxed);
        match closed {
            Ok(what) => debug!(peer = %self.peer.addr, "{what}"),
            Err(error) => {
                is_flood |= is_flood_for_http2(&*error);
                debug!(peer = %self.peer.addr, error, "Connection broke");
            }
        }
        if is_flood {
            self.record.note(Offence::Flood);
        } else if !self.any_request.load(Ordering::Relaxed) {
            self.record.note(Offence::Abandoned);
        }
    }
}

// === impl GroupExecutor ===

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for GroupExecutor {
    fn execute(&self, stream: F) {
        let open = self.open.clone();
        let stream = stalls::until_stalled(stream, self.max_stall);
        self.tasks
            .spawn_isolated("http2-stream", stream.map(move |()| drop(open)));
    }
}
