//! Tunnels through a peer: TCP, TLS, then HTTP CONNECT; the result carries any bytes.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Dial, Duplex};
use crate::http::tcp;

/// Maximum bytes of the peer's answer to CONNECT; hyper's minimum.
const ANSWER_MAX: usize = 8 * 1024;

/// Endpoints of a tunnel.
#[derive(Clone, Debug)]
pub struct Tunnel {
    /// Address of the peer.
    pub address: SocketAddr,
    /// The name that `tls` verifies: that of a node, with [`PeerTls`](crate::tls::PeerTls).
    pub peer: String,
    /// TLS to the peer.
    pub tls: Arc<ClientConfig>,
    /// `host:port` that the peer is to connect to.
    pub target: String,
}

// === impl Tunnel ===

impl Tunnel {
    /// Opens the tunnel. There is no timeout: the caller sets one and drops the future.
    ///
    /// # Errors
    /// The failed step; the status if the peer rejected the request.
    pub async fn open(&self) -> io::Result<Box<dyn Duplex>> {
        let stream = TcpStream::connect(self.address).await?;
        tcp::tune_client(&stream)?;
        tcp::limit_unacknowledged(&stream)?;
        let name = ServerName::try_from(self.peer.clone()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(self.tls.clone()).connect(name, stream).await?;
        let target: Uri = self.target.parse().map_err(io::Error::other)?;
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = target;
        let host = http::HeaderValue::try_from(&self.target).map_err(io::Error::other)?;
        request.headers_mut().insert(http::header::HOST, host);
        let mut builder = hyper::client::conn::http1::Builder::new();
        builder.max_buf_size(ANSWER_MAX);
        let (mut sender, connection) = builder
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        let (mut connection, mut sending) = (pin!(connection.with_upgrades()), pin!(sender.send_request(request)));
        // The answer to CONNECT ends the connection as HTTP, and either event may be seen first.
        let (response, ended) = tokio::select! {
            response = &mut sending => (response, false),
            _ = &mut connection => (sending.await, true),
        };
        let response = response.map_err(io::Error::other)?;
        if response.status() != StatusCode::OK {
            return Err(io::Error::other(format!("the peer answered {}", response.status())));
        }
        let upgrade = hyper::upgrade::on(response);
        let upgraded = if ended {
            upgrade.await
        } else {
            tokio::join!(upgrade, connection).0
        };
        Ok(Box::new(TokioIo::new(upgraded.map_err(io::Error::other)?)))
    }

    /// For [`HttpClient::over`](super::HttpClient::over): every connection is a new tunnel.
    #[must_use]
    pub fn dial(self) -> Dial {
        let tunnel = Arc::new(self);
        Arc::new(move || {
            let tunnel = tunnel.clone();
            Box::pin(async move { tunnel.open().await })
        })
    }
}
