//! What a coordinator answers while it waits for its store: that it lives, which version it is, that it is not ready and why.

use std::sync::{Arc, OnceLock};

use http::header::{ACCEPT, RETRY_AFTER};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use yurt_apimachinery::Status;
use yurt_apimachinery::negotiation::Negotiated;
use yurt_runtime::TaskGroup;
use yurt_runtime::http::server::{CloseConnection, Peer, Rank, Server, Serving, handler};
use yurt_runtime::http::{self as web, Body};
use yurt_runtime::tls::PeerIdentity;

use crate::app::App;
use crate::authn::User;
use crate::{discovery, gate, server, status_error};

/// A port that is taken.
pub(crate) enum Port {
    /// Clients wait in the backlog.
    Bound(Server),
    /// Clients are told to come again.
    Waiting(Waiting),
}

/// A port that answers before there is anything to serve.
pub(crate) struct Waiting {
    serving: Serving,
    /// Set once everything can be answered; connections made before live on.
    app: Arc<OnceLock<Arc<App>>>,
}

/// Seconds after which a client should come again, as kube-apiserver says while it starts.
const RETRY_SECONDS: u32 = 5;
/// What it says then: a 404 would tell controllers that a resource is gone.
const NOT_YET: &str = "the request has been made before all known HTTP paths have been installed, please try again";

// === impl Port ===

impl Port {
    /// From now on requests are answered by `app`.
    pub(crate) fn serve(self, tasks: &TaskGroup, app: Arc<App>) -> Serving {
        match self {
            Self::Waiting(waiting) => waiting.open(app),
            Self::Bound(bound) => {
                let ranked = app.clone();
                let ranks = Arc::new(move |identity: &PeerIdentity| rank(&ranked, identity));
                let answer = handler(move |request, peer| server::answer(app.clone(), request, peer));
                bound.with_ranks(ranks).serve(tasks, answer)
            }
        }
    }
}

// === impl Waiting ===

impl Waiting {
    /// Begins to answer at the port of `server`, in `tasks`.
    pub(crate) fn serve(server: Server, tasks: &TaskGroup) -> Self {
        let app = Arc::new(OnceLock::<Arc<App>>::new());
        let (known, ranked) = (app.clone(), app.clone());
        let ranks = move |identity: &PeerIdentity| ranked.get().map_or(Rank::Member, |app| rank(app, identity));
        let answer = move |request, peer| {
            let app = known.get().cloned();
            async move {
                match app {
                    Some(app) => server::answer(app, request, peer).await,
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
    gate::rank(app, &User::of_certificate(identity))
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
            status_error::respond(Negotiated::of_status(accept, true), &status)
        }
    };
    if peer.identity.is_none() {
        answer.extensions_mut().insert(CloseConnection);
    }
    server::dressed(answer, request.method(), &server::audit_id(request.headers()))
}
