//! Opener of one connection: name lookup, TCP or a replacement for it, TLS, all within one timeout.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

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
    timeout: Duration,
    dial: Option<Dial>,
    /// Number of opened connections.
    opened: Arc<AtomicU64>,
    signs: Option<LifeSigns>,
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
        timeout: Duration,
        dial: Option<Dial>,
        opened: Arc<AtomicU64>,
        signs: Option<LifeSigns>,
    ) -> Self {
        Connector {
            tls,
            timeout,
            dial,
            opened,
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
                    let tcp = TcpStream::connect((host, uri.port_u16().unwrap_or(default_port)));
                    let stream = tcp.await.map_err(ConnectError::Tcp)?;
                    tcp::tune_client(&stream).map_err(ConnectError::Tcp)?;
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
        let io = io.map_err(|_| ConnectError::Timeout(self.timeout))??;
        let number = self.opened.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(TokioIo::new(Stream { io, number }))
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

// === impl Stream ===

impl Stream {
    /// Number among the connections of its client, counted from 1.
    pub(super) fn number(&self) -> ConnectionNumber {
        ConnectionNumber(self.number)
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
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
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
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
}
