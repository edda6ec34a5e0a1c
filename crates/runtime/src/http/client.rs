//! Client of one server over a small pool of connections.
//!
//! Dead connections are detected within about 15 s over HTTP/2: by pings while idle, by a TCP user timeout while
//! sending. Over HTTP/1.1, TCP keep-alive detects idle ones within 25 s, and requests need limits of their own. A new
//! client certificate is presented from the next request on ([`HttpClient::set_tls`]).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper_util::client::legacy::{Builder, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::RwLock;
use rustls::ClientConfig;
use serde_json::Value;

use super::{APPLICATION_JSON, Body, CollectError, Unbounded, collect, empty, full};

mod connect;
mod connector;
mod error;
pub mod lane;
mod signs;
pub mod tunnel;

pub use connect::connect_tcp;
use connector::{ConnectionNumber, Connections, Connector};
pub use connector::{Dial, Duplex};
pub use error::ClientError;
pub use signs::LifeSigns;

/// A client of one server. Cheap to clone; clones share connections. Traffic that must not wait behind other traffic
/// (heartbeats behind watches) needs a client of its own.
#[derive(Clone)]
pub struct HttpClient {
    shared: Arc<ClientShared>,
}

/// Protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 only: needed for upgrades.
    Http1,
    /// HTTP/2 only, by ALPN on TLS and by prior knowledge on plain TCP.
    Http2,
    /// The server's preference by ALPN; HTTP/1.1 on plain TCP.
    Auto,
}

struct ClientShared {
    scheme: Scheme,
    authority: Authority,
    /// Path before every request path, without a slash at its end.
    prefix: String,
    protocol: Protocol,
    connect_timeout: Duration,
    dial: Option<Dial>,
    signs: Option<LifeSigns>,
    /// True if HTTP/2 connections request signs of life.
    asks: bool,
    tls: RwLock<Option<ClientConfig>>,
    // Guards only the handle: a new TLS configuration replaces it as a whole.
    pool: RwLock<Client<Connector, Body>>,
    // The Authorization header of this client's own requests.
    bearer: RwLock<Option<HeaderValue>>,
    connections: Arc<Connections>,
}

/// Maximum size of an answer that [`HttpClient::request_json`] reads into memory: above etcd's own limit for a list
/// page.
pub const MAX_JSON_RESPONSE: usize = 32 * 1024 * 1024;

/// Maximum number of idle HTTP/1 connections in the pool.
const MAX_IDLE_CONNECTIONS: usize = 4;
/// Idle connections are closed earlier than by the servers' header timeout (30 s), which could hit a new request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(25);
/// Time between HTTP/2 pings, also while no request is running.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Time after which an unanswered ping ends the connection.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Silence of a connection after which a client that requests signs of life sends a ping.
pub const SIGN_INTERVAL: Duration = Duration::from_millis(1500);
/// Time after which its unanswered ping ends the connection. Lost packets are repeated after up to 6 s.
const SIGN_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of one HTTP/2 stream in flight: 2.5 MB/s at a round trip of 100 ms.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The same for a connection: thirty stalled readers must not stop the others.
const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;
/// Maximum bytes of a request that one stream buffers.
const MAX_SEND_BUFFER: usize = 64 * 1024;
/// Maximum header bytes of a response.
const MAX_HEADER_BYTES: u32 = 64 * 1024;
/// Read buffer of an HTTP/1 connection.
const HTTP1_BUFFER: usize = 64 * 1024;

// === impl HttpClient ===

impl HttpClient {
    /// A client of `base` (`http` or `https`), whose path is prefixed to every request's. Connects at the first
    /// request. `connect_timeout` covers name lookup, TCP and the TLS handshake. ALPN in `tls` is replaced according to
    /// `protocol`.
    ///
    /// # Errors
    /// [`ClientError::Unusable`] when `base` has no host, another scheme, or is https without `tls`.
    pub fn new(
        base: Uri,
        tls: Option<ClientConfig>,
        protocol: Protocol,
        connect_timeout: Duration,
    ) -> Result<Self, ClientError> {
        Self::over(base, tls, protocol, connect_timeout, None)
    }

    /// As [`Self::new`], over connections opened by `dial` instead of TCP. The server's certificate must still be for
    /// the host of `base`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn over(
        base: Uri,
        tls: Option<ClientConfig>,
        protocol: Protocol,
        connect_timeout: Duration,
        dial: Option<Dial>,
    ) -> Result<Self, ClientError> {
        Self::with(base, tls, protocol, connect_timeout, dial, None)
    }

    /// As [`Self::new`], noting in `signs` what arrives from the server. If `asks`, an HTTP/2 connection requests a
    /// sign of life after every [`SIGN_INTERVAL`] in which nothing arrived over it.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn noting(
        base: Uri,
        tls: Option<ClientConfig>,
        protocol: Protocol,
        connect_timeout: Duration,
        signs: LifeSigns,
        asks: bool,
    ) -> Result<Self, ClientError> {
        Self::with(base, tls, protocol, connect_timeout, None, Some((signs, asks)))
    }

    fn with(
        base: Uri,
        tls: Option<ClientConfig>,
        protocol: Protocol,
        connect_timeout: Duration,
        dial: Option<Dial>,
        signs: Option<(LifeSigns, bool)>,
    ) -> Result<Self, ClientError> {
        let (signs, asks) = signs.map_or((None, false), |(signs, asks)| (Some(signs), asks));
        let unusable = |why: &str| ClientError::Unusable {
            server: base.to_string(),
            why: why.to_owned(),
        };
        let authority = base
            .authority()
            .cloned()
            .ok_or_else(|| unusable("no host in the URL"))?;
        let scheme = base
            .scheme()
            .cloned()
            .ok_or_else(|| unusable("no http:// or https:// in front"))?;
        let tls = match scheme.as_str() {
            "https" => Some(tls.ok_or_else(|| unusable("https needs a certificate authority"))?),
            "http" => None,
            _ => return Err(unusable("neither http nor https")),
        };
        let prefix = base.path().trim_end_matches('/').to_owned();
        let connections = Arc::default();
        let connector = |tls| {
            Connector::new(
                tls,
                protocol,
                connect_timeout,
                dial.clone(),
                Arc::clone(&connections),
                signs.clone(),
            )
        };
        let pool = RwLock::new(pool(tls.clone(), protocol, asks, connector));
        let bearer = RwLock::new(None);
        Ok(HttpClient {
            shared: Arc::new(ClientShared {
                scheme,
                authority,
                prefix,
                protocol,
                connect_timeout,
                dial,
                signs,
                asks,
                tls: RwLock::new(tls),
                pool,
                bearer,
                connections,
            }),
        })
    }

    /// `https://host:port`, for logs.
    #[must_use]
    pub fn server(&self) -> String {
        format!("{}://{}", self.shared.scheme, self.shared.authority)
    }

    /// `host:port`, as in the URL of the server.
    #[must_use]
    pub fn authority(&self) -> &str {
        self.shared.authority.as_str()
    }

    /// Number of connections opened so far. While it is unchanged, requests without an error used existing connections.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.opened()
    }

    /// Number of the client's connection that `response` came over: the first one is 1, and later ones have higher
    /// numbers.
    #[must_use]
    pub fn connection_of<B>(response: &Response<B>) -> u64 {
        // This client's connector opened every connection.
        let number = response.extensions().get::<ConnectionNumber>();
        number.map_or(u64::MAX, |number| number.0)
    }

    /// Makes new requests use new connections with this configuration; running ones end on their old connection. No
    /// effect on a client of plain http.
    pub fn set_tls(&self, tls: ClientConfig) {
        if self.shared.scheme == Scheme::HTTPS {
            *self.shared.tls.write() = Some(tls);
            self.reconnect();
        }
    }

    /// Makes new requests avoid the connection with this number ([`Self::connection_of`]), because its peer does not
    /// answer. Running requests stay where they are.
    pub fn leave(&self, connection: u64) {
        if connection >= self.connections() {
            self.reconnect();
        }
    }

    /// Makes new requests use new connections. Running requests stay where they are.
    pub fn reconnect(&self) {
        let shared = &self.shared;
        let (dial, connections, signs) = (shared.dial.clone(), shared.connections.clone(), shared.signs.clone());
        let (protocol, timeout) = (shared.protocol, shared.connect_timeout);
        let connector = |tls| Connector::new(tls, protocol, timeout, dial, connections, signs);
        let tls = shared.tls.read().clone();
        *shared.pool.write() = pool(tls, protocol, shared.asks, connector);
    }

    /// Sets the bearer token of [`Self::request_json`] and [`Self::request_bytes`]. A token that is invalid in a header
    /// counts as none.
    pub fn set_bearer_token(&self, token: Option<&str>) {
        let value = token.and_then(|token| HeaderValue::try_from(format!("Bearer {token}")).ok());
        *self.shared.bearer.write() = value.map(|mut value| {
            value.set_sensitive(true);
            value
        });
    }

    /// Sends a request whose URI is a path and query, and returns when the response header has arrived. Headers are
    /// sent unchanged (Host is added when absent, no token). There is no timeout but that of connecting.
    ///
    /// # Errors
    /// See [`ClientError`].
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request; the server may or may not have acted on it.
    pub async fn send(&self, mut request: Request<Body>) -> Result<Response<Incoming>, ClientError> {
        *request.uri_mut() = self.uri(request.uri())?;
        // The version of a forwarded request is that of its own connection, not of this one.
        *request.version_mut() = Version::HTTP_11;
        let pool = self.shared.pool.read().clone();
        let sent = pool.request(request).await;
        sent.map_err(|error| {
            let error = ClientError::of_request(self.server(), &error);
            match (error, self.shared.connections.rejection()) {
                // The pool passes the cause of a connection's end on to some requests only.
                (ClientError::Protocol { server, .. }, Some(cause)) => ClientError::Tls {
                    server,
                    cause,
                    handshake: false,
                },
                (error, _) => error,
            }
        })
    }

    /// Sends a request as [`Self::send`] does and reads the whole answer of at most `limit` bytes, all within
    /// `timeout`. Adds the bearer token unless the request has an Authorization header.
    ///
    /// # Errors
    /// See [`ClientError`]. A status of 400 or above is not an error.
    pub async fn request_bytes(
        &self,
        mut request: Request<Body>,
        timeout: Duration,
        limit: usize,
    ) -> Result<(StatusCode, HeaderMap, Bytes), ClientError> {
        if let Some(bearer) = &*self.shared.bearer.read() {
            request
                .headers_mut()
                .entry(AUTHORIZATION)
                .or_insert_with(|| bearer.clone());
        }
        let round_trip = async {
            let (head, body) = self.send(request).await?.into_parts();
            let body = collect(body, limit, &mut Unbounded)
                .await
                .map_err(|error| match error {
                    CollectError::TooLarge => ClientError::BodyTooLarge {
                        server: self.server(),
                        limit,
                    },
                    CollectError::Broken(error) => ClientError::of_body(self.server(), &*error),
                    CollectError::NoRoom(never) => match never {},
                })?;
            Ok((head.status, head.headers, body))
        };
        match tokio::time::timeout(timeout, round_trip).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::Timeout {
                server: self.server(),
                after: timeout,
                connecting: false,
            }),
        }
    }

    /// Sends `body` as JSON (or nothing) to a path and query. Reads the answer, of at most [`MAX_JSON_RESPONSE`] bytes,
    /// all within `timeout`.
    ///
    /// # Errors
    /// See [`ClientError`]. A status of 400 or above is not an error.
    pub async fn request_json(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<(StatusCode, HeaderMap, Bytes), ClientError> {
        let uri = path.parse().map_err(|_| self.bad_path(path))?;
        let mut request = Request::new(body.map_or_else(empty, |value| full(value.to_string())));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        request.headers_mut().insert(ACCEPT, APPLICATION_JSON);
        if body.is_some() {
            request.headers_mut().insert(CONTENT_TYPE, APPLICATION_JSON);
        }
        self.request_bytes(request, timeout, MAX_JSON_RESPONSE).await
    }

    /// A connector with the present TLS configuration.
    fn connector(&self) -> Connector {
        let shared = &self.shared;
        let tls = shared.tls.read().clone();
        let tls = tls.map(|tls| shared.protocol.config(tls));
        let (dial, connections, signs) = (shared.dial.clone(), shared.connections.clone(), shared.signs.clone());
        let (protocol, timeout) = (shared.protocol, shared.connect_timeout);
        Connector::new(tls, protocol, timeout, dial, connections, signs)
    }

    /// The absolute URI of a path and query on this server.
    fn uri(&self, relative: &Uri) -> Result<Uri, ClientError> {
        let path = relative.path_and_query().map_or("/", PathAndQuery::as_str);
        Uri::builder()
            .scheme(self.shared.scheme.clone())
            .authority(self.shared.authority.clone())
            .path_and_query(format!("{}{path}", self.shared.prefix))
            .build()
            .map_err(|_| self.bad_path(path))
    }

    fn bad_path(&self, path: &str) -> ClientError {
        ClientError::Unusable {
            server: self.server(),
            why: format!("{path:?} is not a path"),
        }
    }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpClient({}, {:?})", self.server(), self.shared.protocol)
    }
}

/// A pool without connections.
fn pool(
    tls: Option<ClientConfig>,
    protocol: Protocol,
    asks: bool,
    connector: impl FnOnce(Option<Arc<ClientConfig>>) -> Connector,
) -> Client<Connector, Body> {
    let (interval, timeout) = match asks {
        true => (SIGN_INTERVAL, SIGN_TIMEOUT),
        false => (PING_INTERVAL, PING_TIMEOUT),
    };
    let tls = tls.map(|tls| protocol.config(tls));
    Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
        .http1_max_buf_size(HTTP1_BUFFER)
        .http2_only(protocol == Protocol::Http2)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .http2_max_send_buf_size(MAX_SEND_BUFFER)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .http2_keep_alive_interval(interval)
        .http2_keep_alive_timeout(timeout)
        .http2_keep_alive_while_idle(true)
        .build(connector(tls))
}

// === impl Protocol ===

impl Protocol {
    /// Returns `tls` with this protocol's ALPN.
    fn config(self, mut tls: ClientConfig) -> Arc<ClientConfig> {
        tls.alpn_protocols = self.alpn().iter().map(|name| name.to_vec()).collect();
        Arc::new(tls)
    }

    fn alpn(self) -> &'static [&'static [u8]] {
        match self {
            Protocol::Http1 => &[b"http/1.1"],
            Protocol::Http2 => &[b"h2"],
            Protocol::Auto => &[b"h2", b"http/1.1"],
        }
    }
}
