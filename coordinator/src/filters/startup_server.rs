//! Server that runs until the store is loaded: it is live, reports its version, and is not ready, with the reason.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::header::{ACCEPT, RETRY_AFTER};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use yurt_apimachinery::Status;
use yurt_codec::negotiation::Negotiated;
use yurt_runtime::TaskGroup;
use yurt_runtime::http::server::{CloseConnection, Peer, Rank, Server, Serving, handler};
use yurt_runtime::http::{self as web, Body};
use yurt_runtime::tls::PeerIdentity;

use super::{authentication, chain, headers};
use crate::app::App;
use crate::authn::User;
use crate::discovery;

/// A bound port.
pub(crate) enum Port {
    /// Clients wait in the backlog.
    Bound(Server),
    /// Clients get 503 with `Retry-After`.
    Waiting(StartupServer),
}

/// A server that answers before the store is loaded.
pub(crate) struct StartupServer {
    serving: Serving,
    /// Set once all requests can be answered; earlier connections stay open.
    app: Arc<OnceLock<Arc<App>>>,
}

/// Time after which the port answers requests although the start is not over yet.
pub(crate) const QUIET_MAX: Duration = Duration::from_secs(1);
/// Seconds of `Retry-After`, as kube-apiserver sends while it starts.
const RETRY_SECONDS: u32 = 5;
/// Message of the 503; a 404 would mean to controllers that a resource is gone.
const NOT_YET: &str = "the request has been made before all known HTTP paths have been installed, please try again";

// === impl Port ===

impl Port {
    /// Runs a `part` of the start. The port answers from now on if it takes long.
    pub(crate) async fn during<T>(self, part: impl Future<Output = T>, tasks: &TaskGroup) -> (T, Self) {
        let mut part = std::pin::pin!(part);
        match self {
            Self::Waiting(server) => (part.await, Self::Waiting(server)),
            Self::Bound(bound) => match tokio::time::timeout(QUIET_MAX, &mut part).await {
                Ok(done) => (done, Self::Bound(bound)),
                Err(_) => {
                    let waiting = StartupServer::serve(bound, tasks);
                    (part.await, Self::Waiting(waiting))
                }
            },
        }
    }

    /// Lets `app` answer all requests from now on.
    pub(crate) fn serve(self, tasks: &TaskGroup, app: Arc<App>) -> Serving {
        match self {
            Self::Waiting(server) => server.open(app),
            Self::Bound(bound) => {
                let ranked = app.clone();
                let ranks = Arc::new(move |identity: &PeerIdentity| rank(&ranked, identity));
                let answer = handler(move |request, peer| chain::answer(app.clone(), request, peer));
                bound.with_ranks(ranks).serve(tasks, answer)
            }
        }
    }
}

// === impl StartupServer ===

impl StartupServer {
    /// Starts answering at the port of `server`, in `tasks`.
    pub(crate) fn serve(server: Server, tasks: &TaskGroup) -> Self {
        let app = Arc::new(OnceLock::<Arc<App>>::new());
        let (known, ranked) = (app.clone(), app.clone());
        let ranks = move |identity: &PeerIdentity| ranked.get().map_or(Rank::Member, |app| rank(app, identity));
        let answer = move |request, peer| {
            let app = known.get().cloned();
            async move {
                match app {
                    Some(app) => chain::answer(app, request, peer).await,
                    None => not_yet(&request, &peer),
                }
            }
        };
        Self {
            serving: server.with_ranks(Arc::new(ranks)).serve(tasks, handler(answer)),
            app,
        }
    }

    fn open(self, app: Arc<App>) -> Serving {
        self.app.get_or_init(|| app);
        self.serving
    }
}

fn rank(app: &App, identity: &PeerIdentity) -> Rank {
    authentication::rank(app, &User::of_certificate(identity))
}

fn not_yet(request: &Request<Incoming>, peer: &Peer) -> Response<Body> {
    let mut answer = match request.uri().path().trim_matches('/') {
        "livez" => web::text(StatusCode::OK, "ok"),
        "version" if request.method() == Method::GET => discovery::version(),
        what @ ("healthz" | "readyz") => {
            let text = format!("[+]ping ok\n[-]etcd failed: waiting for it\n{what} check failed\n");
            let mut answer = web::text(StatusCode::SERVICE_UNAVAILABLE, text);
            answer
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
            answer
        }
        _ => {
            let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
            let status = Status::service_unavailable(NOT_YET, RETRY_SECONDS);
            web::status_response_as(Negotiated::of_status(accept, true), &status)
        }
    };
    if peer.identity.is_none() {
        answer.extensions_mut().insert(CloseConnection);
    }
    headers::with_common_headers(answer, &headers::audit_id(request.headers()))
}
