//! The operator's port: the routes of every program, the join token (`/v1/token`) and the node's pods (`/pods`). It
//! also answers while a new node waits for its certificate.

mod pods;

use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::json;
use yurt_runtime::admin::AdminRoutes;
use yurt_runtime::http::server::{Handler, Peer, Server, Serving, handler};
use yurt_runtime::http::{self as our_http, Body, read_body};
use yurt_runtime::metrics::Metrics as Registry;
use yurt_runtime::{Readiness, TaskGroup};

use crate::config::Config;
use crate::identity::discovery::JoinToken;
use crate::identity::{CertificateKeeper, IdentityError};
use crate::listeners;
use pods::Pods;

/// Path of the node's pods.
const PODS: &str = "/pods";
/// Path at which the hub receives a join token.
const TOKEN: &str = "/v1/token";
/// Maximum bytes of that request.
const TOKEN_BYTES_MAX: usize = 4096;
/// Maximum time for running requests to end when a join failed.
const STOP: Duration = Duration::from_millis(500);

/// Body of a token request, with upstream's field.
#[derive(Deserialize)]
struct TokenBody {
    #[serde(default)]
    jointoken: String,
}

/// The port, bound and perhaps serving.
pub(crate) struct OperatorPort {
    port: Port,
    /// Routes of the present phase: joining, then serving.
    routes: Arc<RwLock<Option<AdminRoutes>>>,
    uids: Vec<u32>,
    pods: Pods,
}

enum Port {
    Bound(Box<Server>),
    Serving(Serving),
}

// === impl OperatorPort ===

impl OperatorPort {
    pub(crate) fn new(server: Server, config: &Config) -> Self {
        Self {
            port: Port::Bound(Box::new(server)),
            routes: Arc::default(),
            // "any" is for requests that act as the node; a token changes the node's identity.
            uids: config.identity.uids.clone().unwrap_or_else(|| vec![0]),
            pods: Pods::new(config),
        }
    }

    /// Serves the state of the join until there is a certificate. The hub is live and not ready.
    ///
    /// # Errors
    /// As [`CertificateKeeper::join`]; the port is closed then.
    pub(crate) async fn join(
        self,
        tasks: &TaskGroup,
        node: &str,
        keeper: Arc<CertificateKeeper>,
    ) -> Result<Self, IdentityError> {
        let readiness = Readiness::new();
        let _unready = readiness.check("certificate");
        let (node, seen) = (node.to_owned(), keeper.clone());
        let state = move || json!({"node": node, "certificate": seen.standing().describe()});
        let routes = AdminRoutes::new(readiness, Registry::new()).with_state(state);
        let serving = self.start(tasks, routes, keeper.clone());
        match keeper.join().await {
            Ok(()) => Ok(serving),
            Err(error) => {
                if let Port::Serving(serving) = &serving.port {
                    let _ = serving.shutdown(STOP).await;
                }
                Err(error)
            }
        }
    }

    /// Serves these routes from now on.
    pub(crate) fn serve(
        self,
        tasks: &TaskGroup,
        routes: AdminRoutes,
        keeper: Arc<CertificateKeeper>,
    ) -> Option<Serving> {
        match self.start(tasks, routes, keeper).port {
            Port::Serving(serving) => Some(serving),
            Port::Bound(_) => None,
        }
    }

    fn start(self, tasks: &TaskGroup, routes: AdminRoutes, keeper: Arc<CertificateKeeper>) -> Self {
        *self.routes.write() = Some(routes);
        let server = match self.port {
            Port::Serving(_) => return self,
            Port::Bound(server) => server,
        };
        let answer = answer(self.routes.clone(), self.uids.clone(), self.pods.clone(), keeper);
        let serving = server.with_uids().with_limits(listeners::limits()).serve(tasks, answer);
        Self {
            port: Port::Serving(serving),
            ..self
        }
    }
}

fn answer(
    routes: Arc<RwLock<Option<AdminRoutes>>>,
    uids: Vec<u32>,
    pods: Pods,
    keeper: Arc<CertificateKeeper>,
) -> Handler {
    handler(move |request, peer| {
        let routes = routes.read().clone();
        let (uids, pods, keeper) = (uids.clone(), pods.clone(), keeper.clone());
        async move {
            let uri = request.uri();
            match uri.path() {
                TOKEN => return receive_token(request, &peer, &uids, &keeper).await,
                PODS if request.method() != Method::GET => {
                    return our_http::text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
                }
                // Pods may have secrets in their environment.
                PODS if !is_trusted(request.headers(), &peer, &uids) => {
                    let why = "only a process of root on this node (uids of --node-identity-uids) may read its pods\n";
                    return our_http::text(StatusCode::FORBIDDEN, why);
                }
                PODS => return pods.answer().await,
                _ => {}
            }
            let answer = routes.and_then(|routes| routes.answer(request.method(), uri.path(), uri.query()));
            answer.unwrap_or_else(|| our_http::text(StatusCode::NOT_FOUND, "404 page not found\n"))
        }
    })
}

/// Receives `{"jointoken": "…"}` from a process of an allowed uid on this node, or from the holder of the present
/// token.
async fn receive_token(
    request: Request<Incoming>,
    peer: &Peer,
    uids: &[u32],
    keeper: &Arc<CertificateKeeper>,
) -> Response<Body> {
    let refuse = |status, why: &str| our_http::text(status, format!("{why}\n"));
    if request.method() != Method::POST && request.method() != Method::PUT {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "only POST and PUT");
    }
    if !may_set_token(request.headers(), peer, uids, keeper).await {
        let why = "only a process of root on this node (uids of --node-identity-uids), or the bearer of the present join \
                   token, may set the join token";
        return refuse(StatusCode::FORBIDDEN, why);
    }
    let body = match read_body(request.into_body(), TOKEN_BYTES_MAX).await {
        Ok(body) => body,
        Err(status) => return our_http::status_response(&status),
    };
    let body: TokenBody = match serde_json::from_slice(&body) {
        Ok(body) => body,
        Err(error) => {
            return refuse(
                StatusCode::BAD_REQUEST,
                &format!("not {{\"jointoken\":\"…\"}}: {error}"),
            );
        }
    };
    let token = match JoinToken::parse(&body.jointoken) {
        Ok(token) => token,
        Err(why) => return refuse(StatusCode::BAD_REQUEST, &format!("jointoken {why}")),
    };
    let id = token.id().to_owned();
    match keeper.feed(token).await {
        Ok(()) => {
            tracing::info!(token = id, "Join token received");
            our_http::text(StatusCode::OK, "OK")
        }
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn may_set_token(headers: &HeaderMap, peer: &Peer, uids: &[u32], keeper: &Arc<CertificateKeeper>) -> bool {
    let bearer = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    if is_trusted(headers, peer, uids) {
        return true;
    }
    match bearer {
        Some(token) => keeper.knows(token).await,
        None => false,
    }
}

/// True for a process of an allowed uid on this node. A browser's request may come from a web page: it is recognised by
/// its Origin, or by a host that is not an address of this node.
fn is_trusted(headers: &HeaderMap, peer: &Peer, uids: &[u32]) -> bool {
    let host = headers
        .get(HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_own = name == "localhost" || name.trim_matches(['[', ']']).parse() == Ok(peer.local_addr.ip());
    peer.is_local() && is_own && peer.uid.is_some_and(|uid| uids.contains(&uid)) && !headers.contains_key(ORIGIN)
}
