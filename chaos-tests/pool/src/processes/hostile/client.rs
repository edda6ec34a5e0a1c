//! HTTP client of the attackers: any request as it is, and bodies that never end.
//!
//! It is the client of our programs. kube's client sends only whole bodies, and opens connections on other threads than
//! the caller's, whose uid is part of an attack. Only the server's answer is judged here.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request};
use serde_json::Value;
use yurt_runtime::http::client::{HttpClient, MAX_JSON_RESPONSE, Protocol};
use yurt_runtime::http::{APPLICATION_JSON, Body, empty, full, stream};
use yurt_runtime::tls::{ClientTls, PemIdentity, PemPair, PemSource};

/// Client of one server.
#[derive(Clone)]
pub(super) struct AttackClient(HttpClient);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const NAME: HeaderValue = HeaderValue::from_static("hostile/demo");

// === impl AttackClient ===

impl AttackClient {
    /// A server on the loopback interface, with this certificate.
    pub(super) fn https(port: u16, ca_pem: &str, identity: &PemPair) -> Result<Self> {
        let identity = PemIdentity::inline("the attacker", identity);
        Self::tls(port, ca_pem, Some(identity), Protocol::Auto)
    }

    /// As [`Self::https`], without a certificate, and with a connection for each request.
    pub(super) fn anonymous(port: u16, ca_pem: &str) -> Result<Self> {
        Self::tls(port, ca_pem, None, Protocol::Http1)
    }

    fn tls(port: u16, ca_pem: &str, identity: Option<PemIdentity>, protocol: Protocol) -> Result<Self> {
        let ca = PemSource::inline("the testbed's CA", ca_pem);
        let tls = ClientTls { ca, identity };
        let base = format!("https://127.0.0.1:{port}").parse();
        let base = base.context("a loopback URL must parse")?;
        Ok(Self(HttpClient::new(
            base,
            Some(tls.config()?),
            protocol,
            CONNECT_TIMEOUT,
        )?))
    }

    /// A plain HTTP port on the loopback interface.
    pub(super) fn plain(port: u16) -> Result<Self> {
        let base = format!("http://127.0.0.1:{port}").parse();
        let base = base.context("a loopback URL must parse")?;
        Ok(Self(HttpClient::new(base, None, Protocol::Http1, CONNECT_TIMEOUT)?))
    }

    /// Sends a request with these headers; returns status and body of any answer.
    ///
    /// # Errors
    /// There is no complete answer.
    pub(super) async fn ask(
        &self,
        (method, path): (Method, &str),
        headers: &HeaderMap,
        body: Option<&Value>,
    ) -> Result<(u16, Bytes)> {
        let content = body.map_or_else(empty, |value| full(value.to_string()));
        let mut request = request(method, path, content)?;
        if body.is_some() {
            request.headers_mut().insert(CONTENT_TYPE, APPLICATION_JSON);
        }
        request.headers_mut().extend(headers.clone());
        self.send(request, ANSWER_TIMEOUT).await
    }

    /// Sends a POST with these headers whose body begins and never ends; returns its answer within `limit`.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(super) async fn begin(&self, path: &str, headers: &HeaderMap, limit: Duration) -> Result<(u16, Bytes)> {
        let begun = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"{"))]);
        let content = stream(begun.chain(futures_util::stream::pending()));
        let mut request = request(Method::POST, path, content)?;
        request.headers_mut().extend(headers.clone());
        request.headers_mut().insert(CONTENT_TYPE, APPLICATION_JSON);
        self.send(request, limit).await
    }

    async fn send(&self, request: Request<Body>, limit: Duration) -> Result<(u16, Bytes)> {
        let (status, _, bytes) = self.0.request_bytes(request, limit, MAX_JSON_RESPONSE).await?;
        Ok((status.as_u16(), bytes))
    }
}

fn request(method: Method, path: &str, body: Body) -> Result<Request<Body>> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().with_context(|| format!("{path} must be a path"))?;
    request.headers_mut().insert(ACCEPT, APPLICATION_JSON);
    request.headers_mut().insert(USER_AGENT, NAME);
    Ok(request)
}
