//! Lane: requests of one purpose to one server, as HTTP/2 streams over few connections.
//!
//! A connection takes [`STREAMS`] streams unless the lane says otherwise, or fewer if the server allows fewer; then the
//! next one is opened. Until the server's SETTINGS say how many it allows, a new connection takes one. The window of a
//! connection is that of [`STREAMS`] streams together, so readers that stall delay nothing else. An idle connection is
//! closed, and one that is to be replaced ends with its last stream.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use futures_util::task::AtomicWaker;
use http::{Request, Response, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::sync::watch;
use tower_service::Service as _;

use super::connector::{self, ConnectionNumber, Connector};
use super::{ClientError, HttpClient, MAX_HEADER_BYTES, MAX_SEND_BUFFER, PING_INTERVAL};
use crate::http::{Body, BoxError, pass};
use crate::tasks::TaskGroup;

/// Maximum number of streams of one connection of most lanes. Go's servers allow 100 or 250.
pub const STREAMS: usize = 80;
/// Time after which an unanswered ping ends a connection. Long, because lost packets are repeated after several
/// seconds.
const LANE_PING_TIMEOUT: Duration = Duration::from_secs(15);
/// A connection without a stream for this time, or twice this time, is closed.
const IDLE: Duration = Duration::from_secs(45);
/// Maximum number of streams of a connection until the server's SETTINGS have arrived. More might wait behind a watch.
const EARLY_STREAMS: usize = 1;
/// Limit of streams that the HTTP library has until then: no server sends it, and without a limit there is a higher
/// one.
const UNKNOWN: usize = usize::MAX - 1;

/// Requests of one purpose to one server. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Lane {
    shared: Arc<LaneShared>,
}

struct LaneShared {
    client: HttpClient,
    tasks: TaskGroup,
    /// Maximum bytes of one stream in flight.
    window: u32,
    /// Maximum streams of one connection.
    streams: usize,
    open: Mutex<Vec<Arc<Connection>>>,
    dial: Mutex<Option<Dialing>>,
    /// Number of calls of [`Lane::retire`].
    retired: AtomicUsize,
}

type Dialing = Shared<BoxFuture<'static, Result<(), ClientError>>>;

/// Streams that a server allows; `None` until its SETTINGS have arrived.
type Allowed = Option<usize>;

struct Connection {
    sender: http2::SendRequest<Body>,
    streams: Arc<AtomicUsize>,
    /// Its sender is dropped with the connection.
    allowed: watch::Receiver<Allowed>,
    /// Streams that the lane allows.
    max: usize,
    number: ConnectionNumber,
    /// False once there was no stream during a whole [`IDLE`].
    is_used: AtomicBool,
    /// True once the server answered a request.
    has_answered: AtomicBool,
}

/// Right to send one request over an open connection.
pub struct Slot {
    connection: Arc<Connection>,
    stream: Stream,
    lane: Lane,
}

/// One stream in use.
struct Stream(Arc<AtomicUsize>);

/// Failure of a request on a [`Slot`].
#[derive(Debug)]
pub struct SendError {
    /// Reason.
    pub error: ClientError,
    /// True if the server certainly did not act on the request.
    pub is_unprocessed: bool,
    /// True if the server certainly did not act on it because its connection goes away, which answered others before. A
    /// server that refuses new connections refuses the next one as well.
    pub is_stale: bool,
}

/// A connection of the HTTP library to a server.
type ClientConnection = http2::Connection<TokioIo<connector::Stream>, Body, LaneExecutor>;

/// Runs the parts of a connection as tasks of the lane's group.
#[derive(Clone)]
struct LaneExecutor {
    tasks: TaskGroup,
    /// Woken by the part that reads the SETTINGS, among others.
    progress: Arc<AtomicWaker>,
}

/// Response body that holds its stream.
struct Held {
    body: Incoming,
    _stream: Stream,
}

// === impl Lane ===

impl Lane {
    /// A lane to the server of `client`, with its TLS configuration at the time of each connection. A stream has at
    /// most `window` bytes in flight. `tasks` own the connections.
    #[must_use]
    pub fn new(client: HttpClient, window: u32, tasks: TaskGroup) -> Self {
        Self::with_streams(client, window, STREAMS, tasks)
    }

    /// As [`Self::new`], with at most `streams` streams per connection. For streams that are read without delay.
    #[must_use]
    pub fn with_streams(client: HttpClient, window: u32, streams: usize, tasks: TaskGroup) -> Self {
        let shared = LaneShared {
            client,
            tasks,
            window,
            streams,
            open: Mutex::default(),
            dial: Mutex::default(),
            retired: AtomicUsize::new(0),
        };
        Lane {
            shared: Arc::new(shared),
        }
    }

    /// Makes new requests use new connections. The present ones end with their last stream.
    pub fn retire(&self) {
        let mut open = self.shared.open.lock();
        self.shared.retired.fetch_add(1, Ordering::Relaxed);
        open.clear();
        drop(open);
        *self.shared.dial.lock() = None;
    }

    /// Makes new requests avoid the connection with this number ([`HttpClient::connection_of`]), because its peer does
    /// not answer. Running requests stay where they are.
    pub fn leave(&self, connection: u64) {
        let mut open = self.shared.open.lock();
        open.retain(|one| one.number.0 != connection);
    }

    /// Number of connections opened so far. A connection counts once its handshake is done.
    #[must_use]
    pub fn opened(&self) -> u64 {
        self.shared.client.connections()
    }

    /// Number of open connections that take new streams.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.open.lock().len()
    }

    /// Returns a slot of an open connection, or of a new one. Waits for the SETTINGS of a new one that already has a
    /// stream, as long as connecting may take.
    ///
    /// # Errors
    /// As connecting; no request was sent.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the connection to others.
    pub async fn slot(&self) -> Result<Slot, ClientError> {
        loop {
            let new = match self.free() {
                Ok(slot) => return Ok(slot),
                Err(new) => new,
            };
            if let Some(new) = new {
                self.settings_of(&new).await?;
                continue;
            }
            let dialing = self.dial();
            let dialed = dialing.clone().await;
            self.shared.dial.lock().take_if(|dial| dial.ptr_eq(&dialing));
            dialed?;
        }
    }

    /// Takes a stream of an open connection. If none is free, returns a connection that may have more with its
    /// SETTINGS.
    fn free(&self) -> Result<Slot, Option<Arc<Connection>>> {
        let mut open = self.shared.open.lock();
        open.retain(|connection| connection.is_of_use());
        let found = open
            .iter()
            .find_map(|connection| Some((connection.stream()?, connection)));
        let Some((stream, connection)) = found else {
            let mut new = open.iter().filter(|connection| connection.allowed.borrow().is_none());
            return Err(new.next().cloned());
        };
        connection.is_used.store(true, Ordering::Relaxed);
        Ok(Slot {
            connection: connection.clone(),
            stream,
            lane: self.clone(),
        })
    }

    /// Waits for the SETTINGS of a connection.
    async fn settings_of(&self, connection: &Connection) -> Result<(), ClientError> {
        let (client, mut allowed) = (&self.shared.client, connection.allowed.clone());
        let (server, after) = (client.server(), client.shared.connect_timeout);
        match tokio::time::timeout(after, allowed.wait_for(Option::is_some)).await {
            Ok(Ok(_)) => Ok(()),
            // All who wait share the failure, and do not try one after the other.
            Ok(Err(_)) => Err(ClientError::Connect {
                server,
                cause: "the connection ended before its SETTINGS".to_owned(),
            }),
            Err(_) => {
                self.leave(connection.number.0);
                Err(ClientError::Timeout {
                    server,
                    after,
                    connecting: true,
                })
            }
        }
    }

    /// Returns the handshake in progress, or begins one. It ends even if all who wait for it leave.
    fn dial(&self) -> Dialing {
        let mut dial = self.shared.dial.lock();
        let begin = || {
            let this = self.clone();
            let dialing = self
                .shared
                .tasks
                .detached("lane-dial", async move { this.connect().await });
            let server = self.shared.client.server();
            let dialing = async move {
                let lost = |error: crate::tasks::TaskLost| ClientError::Connect {
                    server,
                    cause: error.to_string(),
                };
                dialing.await.map_err(lost)?
            };
            dialing.boxed().shared()
        };
        dial.get_or_insert_with(begin).clone()
    }

    async fn connect(&self) -> Result<(), ClientError> {
        let (client, tasks) = (&self.shared.client, &self.shared.tasks);
        let retired = self.shared.retired.load(Ordering::Relaxed);
        let mut connector: Connector = client.connector();
        let base = client.uri(&http::Uri::from_static("/"))?;
        let fail = |error: &(dyn Error + 'static)| ClientError::of_request(client.server(), error);
        let io = connector.call(base).await.map_err(|error| fail(&error))?;
        let number = io.inner().number();
        let progress = Arc::new(AtomicWaker::new());
        let mut builder = http2::Builder::new(LaneExecutor {
            tasks: tasks.clone(),
            progress: progress.clone(),
        });
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(self.shared.window)
            .initial_connection_window_size(self.shared.window.saturating_mul(STREAMS as u32))
            .max_send_buf_size(MAX_SEND_BUFFER)
            .max_header_list_size(MAX_HEADER_BYTES)
            .initial_max_send_streams(UNKNOWN)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(LANE_PING_TIMEOUT);
        let (sender, connection) = builder.handshake(io).await.map_err(|error| fail(&error))?;
        let (allowed, of_server) = watch::channel(None);
        let entry = Arc::new(Connection {
            sender,
            streams: Arc::default(),
            allowed: of_server,
            max: self.shared.streams,
            number,
            is_used: AtomicBool::new(true),
            has_answered: AtomicBool::new(false),
        });
        let mut open = self.shared.open.lock();
        if self.shared.retired.load(Ordering::Relaxed) == retired {
            open.push(entry.clone());
        }
        drop(open);
        self.run(connection, progress, allowed, &entry);
        Ok(())
    }

    /// Starts the task that runs a connection, and closes it when it is idle.
    fn run(
        &self,
        mut connection: ClientConnection,
        progress: Arc<AtomicWaker>,
        allowed: watch::Sender<Allowed>,
        entry: &Arc<Connection>,
    ) {
        let entry = Arc::downgrade(entry);
        let (this, token) = (Arc::downgrade(&self.shared), self.shared.tasks.token());
        self.shared.tasks.spawn_isolated("lane-connection", async move {
            let running = poll_fn(|cx| {
                // Another task reads the SETTINGS.
                if allowed.borrow().is_none() {
                    progress.register(cx.waker());
                }
                let polled = Pin::new(&mut connection).poll(cx);
                let max = connection.current_max_send_streams();
                let known = (max != UNKNOWN).then_some(max);
                allowed.send_if_modified(|allowed| std::mem::replace(allowed, known) != known);
                polled
            });
            let mut running = pin!(token.run_until_cancelled(running));
            loop {
                tokio::select! {
                    _ = &mut running => break,
                    () = tokio::time::sleep(IDLE) => {
                        let (Some(lane), Some(entry)) = (this.upgrade(), entry.upgrade()) else { continue };
                        if entry.is_idle() {
                            lane.open.lock().retain(|open| !Arc::ptr_eq(open, &entry));
                        }
                    }
                }
            }
        });
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lane({:?})", self.shared.client)
    }
}

// === impl Connection ===

impl Connection {
    /// False once the connection has ended, or while its server allows no stream.
    fn is_of_use(&self) -> bool {
        let is_running = !self.sender.is_closed() && self.allowed.has_changed().is_ok();
        is_running && *self.allowed.borrow() != Some(0)
    }

    /// Takes a stream, if one is free.
    fn stream(&self) -> Option<Stream> {
        let max = self.allowed.borrow().unwrap_or(EARLY_STREAMS).min(self.max);
        let take = |taken| (taken < max).then_some(taken + 1);
        let taken = self.streams.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        taken.ok().map(|_| Stream(self.streams.clone()))
    }

    /// True if no stream was taken since the last call.
    fn is_idle(&self) -> bool {
        let was_used = self.is_used.swap(false, Ordering::Relaxed);
        !was_used && self.streams.load(Ordering::Acquire) == 0
    }
}

// === impl Slot ===

impl Slot {
    /// Sends a request whose URI is a path and query, and returns when the response header has arrived.
    /// [`HttpClient::connection_of`] the response is the number of its connection.
    ///
    /// # Errors
    /// [`SendError`].
    ///
    /// # Cancel safety
    /// Dropping the future resets the stream; the server may or may not have acted on the request.
    pub async fn send(self, mut request: Request<Body>) -> Result<Response<Body>, SendError> {
        let server = &self.lane.shared.client;
        *request.uri_mut() = server.uri(request.uri()).map_err(|error| SendError {
            error,
            is_unprocessed: true,
            is_stale: false,
        })?;
        *request.version_mut() = Version::HTTP_2;
        let Connection {
            sender,
            number,
            has_answered,
            ..
        } = &*self.connection;
        match sender.clone().try_send_request(request).await {
            Ok(mut response) => {
                has_answered.store(true, Ordering::Relaxed);
                response.extensions_mut().insert(*number);
                Ok(response.map(|body| {
                    pass(Held {
                        body,
                        _stream: self.stream,
                    })
                }))
            }
            Err(mut failed) => {
                let is_unsent = failed.take_message().is_some();
                let cause = cause_in_h2(failed.error());
                let is_unprocessed = is_unsent || cause.is_some_and(is_unprocessed);
                let has_ended = is_unsent || cause.is_some_and(h2::Error::is_go_away);
                if has_ended {
                    // hyper notices only with the next request that the connection takes no more.
                    self.lane.leave(number.0);
                }
                Err(SendError {
                    error: ClientError::of_request(server.server(), failed.error()),
                    is_unprocessed,
                    is_stale: is_unprocessed && has_ended && has_answered.load(Ordering::Relaxed),
                })
            }
        }
    }
}

/// The error of the HTTP/2 library behind this one.
fn cause_in_h2<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a h2::Error> {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.find_map(|error| error.downcast_ref())
}

/// True if the server refused the stream, or announced that it will not process it (RFC 9113, 6.8 and 8.7). A GOAWAY is
/// the error only of streams above its last one, with any error code; the others continue.
fn is_unprocessed(error: &h2::Error) -> bool {
    error.is_remote() && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM))
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for LaneExecutor {
    fn execute(&self, part: F) {
        let (token, progress) = (self.tasks.token(), self.progress.clone());
        self.tasks.spawn_isolated("lane-stream", async move {
            let mut part = pin!(part);
            let running = poll_fn(|cx| {
                let polled = part.as_mut().poll(cx);
                progress.wake();
                polled
            });
            token.run_until_cancelled(running).await;
        });
    }
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
