//! A read-only proxy of a cluster of the user's: the demo's hubs use it as their cloud, and nothing is written to the
//! cluster.
//!
//! Reads go to the cluster with the user's credentials. The demo's own nodes and their Leases do not exist there: they
//! live in a coordinator of the demo (the overlay), and requests for them go there. Every other write is refused here.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use http::header::{AUTHORIZATION, CONNECTION, HOST};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;
use yurt_runtime::http::client::{HttpClient, Protocol};
use yurt_runtime::http::server::{Server, handler};
use yurt_runtime::http::{Body, json, pass};
use yurt_runtime::kubeconfig::Kubeconfig;
use yurt_runtime::tls::{ClientTls, PemIdentity, PemSource, ReloadingServerTls, ServerTls};

use crate::Setup;

/// A running proxy.
pub(crate) struct ReadOnlyProxy {
    pub(crate) port: u16,
    /// The user's server, as their kubeconfig names it.
    pub(crate) server: String,
}

struct Backends {
    cluster: HttpClient,
    /// `Bearer …`, where the kubeconfig has a token.
    authorization: Option<String>,
    overlay: HttpClient,
}

/// Destination of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Cluster,
    Overlay,
    /// The kind is hidden: the demo's membership comes from its own nodes.
    NotServed,
    Refused,
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

// === impl ReadOnlyProxy ===

impl ReadOnlyProxy {
    /// Starts to serve on a free loopback port with the demo's CA.
    pub(crate) async fn start(setup: &Setup, kubeconfig: &Path, overlay_port: u16) -> Result<Self> {
        let user = Kubeconfig::load(kubeconfig)?;
        let authorization = user
            .token
            .as_ref()
            .map(|token| Ok::<_, std::io::Error>(format!("Bearer {}", token.read()?)));
        let backends = Arc::new(Backends {
            cluster: client(&user.server, &user.client_tls()?)?,
            authorization: authorization.transpose()?,
            overlay: client(&format!("https://127.0.0.1:{overlay_port}"), &admin_tls(setup))?,
        });
        let serving = PemIdentity::inline("the demo's read-only proxy", &setup.identities.server_pair("front")?);
        let client_ca = Some(PemSource::inline("the demo's CA", setup.identities.ca_pem()));
        let tls = ReloadingServerTls::new(ServerTls {
            identity: serving,
            client_ca,
        })?;
        let server = Server::bind(([127, 0, 0, 1], 0).into(), "a free port")
            .await?
            .with_tls(tls);
        let port = server.local_addr().port();
        server.serve(
            &setup.tasks,
            handler(move |request, peer| {
                let backends = Arc::clone(&backends);
                async move {
                    // This port has the user's rights: only the demo may use them.
                    match peer.identity {
                        Some(_) => backends.answer(request).await,
                        None => status(StatusCode::UNAUTHORIZED, "a certificate of the demo is needed"),
                    }
                }
            }),
        );
        Ok(Self {
            port,
            server: user.server,
        })
    }
}

fn client(server: &str, tls: &ClientTls) -> Result<HttpClient> {
    let base = server.parse().with_context(|| format!("{server} is no URL"))?;
    Ok(HttpClient::new(
        base,
        Some(tls.config()?),
        Protocol::Auto,
        CONNECT_TIMEOUT,
    )?)
}

fn admin_tls(setup: &Setup) -> ClientTls {
    let identity = PemIdentity::inline("the demo's administrator", &setup.identities.admin);
    ClientTls {
        ca: PemSource::inline("the demo's CA", setup.identities.ca_pem()),
        identity: Some(identity),
    }
}

fn route(method: &Method, path: &str) -> Route {
    const OVERLAID: [&str; 2] = [
        "/api/v1/nodes",
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
    ];
    let is_below = |prefix: &str| {
        path.strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if OVERLAID.iter().any(|prefix| is_below(prefix)) {
        return Route::Overlay;
    }
    if is_below("/apis/apps.openyurt.io") {
        return Route::NotServed;
    }
    // A review is a POST that writes nothing.
    let reads = *method == Method::GET || path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    if reads { Route::Cluster } else { Route::Refused }
}

// === impl Backends ===

impl Backends {
    async fn answer(&self, mut request: Request<Incoming>) -> Response<Body> {
        let headers = request.headers_mut();
        for own in [HOST, CONNECTION, AUTHORIZATION] {
            headers.remove(own);
        }
        let client = match route(request.method(), request.uri().path()) {
            Route::NotServed => return status(StatusCode::NOT_FOUND, "not served in the demo"),
            Route::Refused => return status(StatusCode::FORBIDDEN, "the demo only reads from your cluster"),
            Route::Overlay => &self.overlay,
            Route::Cluster => {
                if let Some(value) = self.authorization.as_ref().and_then(|value| value.parse().ok()) {
                    request.headers_mut().insert(AUTHORIZATION, value);
                }
                &self.cluster
            }
        };
        match client.send(request.map(pass)).await {
            Ok(response) => response.map(pass),
            Err(error) => status(StatusCode::BAD_GATEWAY, &error.to_string()),
        }
    }
}

fn status(code: StatusCode, message: &str) -> Response<Body> {
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "code": code.as_u16()});
    json(code, body.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reads_reach_the_cluster_and_only_foreign_ones() {
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/shore-1";
        assert_eq!(route(&Method::GET, "/api/v1/services"), Route::Cluster);
        assert_eq!(route(&Method::PUT, lease), Route::Overlay);
        assert_eq!(route(&Method::GET, "/api/v1/nodes"), Route::Overlay);
        assert_eq!(route(&Method::GET, "/api/v1/nodes/shore-1"), Route::Overlay);
        assert_eq!(
            route(&Method::GET, "/apis/apps.openyurt.io/v1beta2/nodepools"),
            Route::NotServed
        );
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            assert_eq!(route(&method, "/api/v1/namespaces/default/services"), Route::Refused);
            assert_eq!(route(&method, "/api/v1/nodesish"), Route::Refused);
        }
    }
}
