//! Opener of one connection: name lookup, TCP or a replacement for it, TLS, all within one timeout.

use std::io::{self, ErrorKind, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::Protocol;
use super::connect::connect_tcp;
use super::error::rejection;
use super::signs::{LifeSigns, Noting};
use crate::http::tcp;

/// A stream of bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Opens the replacement for a client's TCP connection to its server, such as a [tunnel](super::tunnel). Called once
/// per connection; must fail by itself or when dropped.
pub type Dial = Arc<dyn Fn() -> BoxFuture<'static, io::Result<Box<dyn Duplex>>> + Send + Sync>;

/// Connects for the pool.
#[derive(Clone)]
pub(super) struct Connector {
    tls: Option<Arc<ClientConfig>>,
    protocol: Protocol,
    timeout: Duration,
    dial: Option<Dial>,
    connections: Arc<Connections>,
    signs: Option<LifeSigns>,
}

/// Record of a client's connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    opened: AtomicU64,
    /// Reason for which one side of the newest connection rejected the other's certificate, if it did.
    rejection: Mutex<Option<String>>,
}

/// Transport below TLS.
type Raw = Noting<Either<TcpStream, Box<dyn Duplex>>>;

/// Reason why there is no connection. No request was sent on it.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{0}")]
    Tcp(io::Error),
    #[error("{0}")]
    Tls(io::Error),
    #[error("no connection after {0:?}")]
    Timeout(Duration),
}

/// An open connection.
pub(super) struct Stream {
    io: Either<Raw, TlsStream<Raw>>,
    number: u64,
    connections: Arc<Connections>,
}

/// Bytes that have arrived on a connection, for a reader that does not wait.
struct Arrived<'a, 'b> {
    io: &'a mut Raw,
    cx: &'a mut Context<'b>,
}

/// Extension of a response: number of its client's connection that it came over, counted from 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionNumber(pub(super) u64);

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

// === impl Connector ===

impl Connector {
    pub(super) fn new(
        tls: Option<Arc<ClientConfig>>,
        protocol: Protocol,
        timeout: Duration,
        dial: Option<Dial>,
        connections: Arc<Connections>,
        signs: Option<LifeSigns>,
    ) -> Self {
        Connector {
            tls,
            protocol,
            timeout,
            dial,
            connections,
            signs,
        }
    }

    async fn connect(self, uri: Uri) -> Result<TokioIo<Stream>, ConnectError> {
        // An IPv6 address has brackets in a URI and none in a socket address.
        let host = uri
            .host()
            .unwrap_or_default()
            .trim_start_matches('[')
            .trim_end_matches(']');
        let default_port = if uri.scheme() == Some(&Scheme::HTTPS) {
            HTTPS_PORT
        } else {
            HTTP_PORT
        };
        let connecting = async {
            let stream = match &self.dial {
                Some(dial) => Either::Right(dial().await.map_err(ConnectError::Tcp)?),
                None => {
                    let tcp = connect_tcp(host, uri.port_u16().unwrap_or(default_port));
                    let stream = tcp.await.map_err(ConnectError::Tcp)?;
                    tcp::tune_client(&stream).map_err(ConnectError::Tcp)?;
                    if self.protocol == Protocol::Http2 {
                        tcp::limit_unacknowledged(&stream).map_err(ConnectError::Tcp)?;
                    }
                    Either::Left(stream)
                }
            };
            let stream = Noting::new(stream, self.signs);
            let Some(tls) = self.tls else {
                return Ok(Either::Left(stream));
            };
            let name = ServerName::try_from(host.to_owned()).map_err(|e| ConnectError::Tls(io::Error::other(e)))?;
            let stream = TlsConnector::from(tls)
                .connect(name, stream)
                .await
                .map_err(ConnectError::Tls)?;
            Ok(Either::Right(stream))
        };
        let io = tokio::time::timeout(self.timeout, connecting).await;
        let io = io.unwrap_or(Err(ConnectError::Timeout(self.timeout)));
        // Requests that waited for this connection get no cause of its failure.
        let io = io.inspect_err(|error| match error {
            ConnectError::Tls(error) => self.connections.note(error),
            ConnectError::Tcp(_) | ConnectError::Timeout(_) => self.connections.forget(),
        })?;
        let (number, connections) = (self.connections.open(), self.connections);
        Ok(TokioIo::new(Stream {
            io,
            number,
            connections,
        }))
    }
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<Self::Response, ConnectError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

// === impl Connections ===

impl Connections {
    /// Number of connections opened so far.
    pub(super) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Reason for which one side of the newest connection rejected the other's certificate, if it did.
    pub(super) fn rejection(&self) -> Option<String> {
        self.rejection.lock().clone()
    }

    fn forget(&self) {
        *self.rejection.lock() = None;
    }

    fn open(&self) -> u64 {
        self.forget();
        self.opened.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn note(&self, error: &io::Error) {
        if let Some(rejection) = rejection(error) {
            *self.rejection.lock() = Some(rejection.to_string());
        }
    }
}

// === impl Stream ===

impl Stream {
    /// Number among the connections of its client, counted from 1.
    pub(super) fn number(&self) -> ConnectionNumber {
        ConnectionNumber(self.number)
    }

    /// Replaces the error of a write by the alert that the peer sent before it closed, if there is one. In TLS 1.3 a
    /// server rejects the client's certificate after the client's handshake has ended (RFC 8446 §4.4.2.4), so the next
    /// write may fail before the alert is read. Data that arrived before it stays readable.
    fn failed<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let is_closed = |error: &io::Error| matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
        match (&written, &mut self.io) {
            (Poll::Ready(Err(error)), Either::Right(tls)) if is_closed(error) => {
                let arrived = ready!(process_arrived(tls, cx));
                arrived.inspect_err(|error| self.connections.note(error))?;
                written
            }
            _ => written,
        }
    }
}

/// Decrypts what has arrived, up to the end of the connection. Waits for that end: a closed connection is readable.
fn process_arrived(tls: &mut TlsStream<Raw>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    let (io, session) = tls.get_mut();
    loop {
        match session.read_tls(&mut Arrived { io, cx }) {
            Ok(1..) => {
                let processed = session.process_new_packets();
                processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Poll::Pending,
            Ok(0) | Err(_) => return Poll::Ready(Ok(())),
        }
    }
}

// === impl Arrived ===

impl Read for Arrived<'_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut buf = ReadBuf::new(buf);
        match Pin::new(&mut *self.io).poll_read(self.cx, &mut buf) {
            Poll::Ready(read) => read.map(|()| buf.filled().len()),
            Poll::Pending => Err(ErrorKind::WouldBlock.into()),
        }
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        let is_h2 = match &self.io {
            Either::Left(_) => false,
            Either::Right(tls) => tls.get_ref().1.alpn_protocol() == Some(b"h2"),
        };
        let connected = Connected::new().extra(self.number());
        match is_h2 {
            true => connected.negotiated_h2(),
            false => connected,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if let Poll::Ready(Err(error)) = &read {
            self.connections.note(error);
        }
        read
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.failed(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.failed(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.failed(cx, written)
    }
}

#[cfg(test)]
mod tests;
