//! `/pods`: the pods of this node, as the kubelet lists them through this hub. So the answer comes from the hub's data
//! while the cloud is away.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, HOST, USER_AGENT};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use yurt_runtime::http::client::{HttpClient, MAX_JSON_RESPONSE, Protocol};
use yurt_runtime::http::{self as our_http, APPLICATION_JSON, Body, empty};

use crate::config::{Config, Proof};
use crate::proxy::caller::token;

/// Maximum time of the request to the own proxy port.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time to connect to it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The component whose list this is.
const KUBELET: HeaderValue = HeaderValue::from_static("kubelet/yurthub");

/// Reader of the node's pods.
#[derive(Clone, Debug)]
pub(super) struct Pods {
    client: Option<HttpClient>,
    uri: Uri,
    /// File with the token of the node's components, if they need it.
    token: Option<PathBuf>,
}

// === impl Pods ===

impl Pods {
    pub(super) fn new(config: &Config) -> Self {
        let base = format!("http://{}", reachable(config.proxy_addr));
        let client = base
            .parse()
            .ok()
            .and_then(|base| HttpClient::new(base, None, Protocol::Http1, CONNECT_TIMEOUT).ok());
        // Node names are DNS names, which need no escape.
        let list = format!(
            "/api/v1/pods?fieldSelector=spec.nodeName%3D{}&resourceVersion=0",
            config.node
        );
        Self {
            client,
            uri: list.parse().unwrap_or_default(),
            token: (config.identity.proof == Proof::Token).then(|| config.root_dir.join(token::FILE)),
        }
    }

    /// Returns the PodList in JSON, or the proxy's refusal.
    pub(super) async fn answer(&self) -> Response<Body> {
        let fail = |why: String| our_http::text(StatusCode::SERVICE_UNAVAILABLE, why + "\n");
        let Some(client) = &self.client else {
            return fail("--bind-proxy-address cannot be dialled".to_owned());
        };
        let mut request = Request::new(empty());
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, KUBELET);
        headers.insert(ACCEPT, APPLICATION_JSON);
        headers.insert(HOST, HeaderValue::from_static("localhost"));
        if let Some(path) = &self.token {
            match bearer(path.clone()).await {
                Some(bearer) => headers.insert(AUTHORIZATION, bearer),
                None => return fail(format!("cannot read {}", path.display())),
            };
        }
        match client.request_bytes(request, TIMEOUT, MAX_JSON_RESPONSE).await {
            Ok((status, _, body)) => our_http::json(status, body),
            Err(error) => fail(error.to_string()),
        }
    }
}

/// The header value for the token in the file `path`.
async fn bearer(path: PathBuf) -> Option<HeaderValue> {
    let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(path));
    let token = read.await.ok()?.ok()?;
    HeaderValue::try_from(format!("Bearer {}", token.trim())).ok()
}

/// The address by which this machine reaches its own port.
fn reachable(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, addr.port())
}
