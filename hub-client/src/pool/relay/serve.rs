//! Accepting side of the relay: one listener for the hubs of the pool, one tunnel per `CONNECT`.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::watch;
use yurt_runtime::http::client::connect_tcp;
use yurt_runtime::http::server::{Handler, Limits as ServerLimits, Peer, Server, Serving, handler};
use yurt_runtime::http::{Body, empty, text};
use yurt_runtime::tls::{PeerIdentity, ReloadingServerTls};
use yurt_runtime::{Clock, TaskGroup};

use super::admission::{Admission, Ask, Refusal, TOTAL};
use super::route::ConnectTarget;
use super::token_bucket::TokenBucket;
use super::tunnel::{self, Limits};
use crate::health::CloudReach;
use crate::metrics::Metrics;
use crate::replicas::membership::Membership;

/// Maximum number of connections that are not tunnels yet; further ones wait in the backlog.
const CONNECTIONS_MAX: usize = 64;
/// Maximum time of a TLS handshake. Hubs shake hands and send their request immediately; a slow client must not delay
/// them.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time for a request header, for the same reason as [`HANDSHAKE_TIMEOUT`].
const HEADER_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of a request header, bytes; a `CONNECT` has about a hundred.
const HEADER_BYTES_MAX: u32 = 8 * 1024;
/// Maximum wait for a connection to the cloud.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum wait for the peer to read the response that begins its tunnel.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Dependencies of the accepting side.
pub struct Relay {
    /// Cloud servers that are permitted as targets of tunnels.
    pub targets: Vec<ConnectTarget>,
    /// The pool's members.
    pub members: Arc<Membership>,
    /// Reachability of the cloud from this node.
    pub cloud: watch::Receiver<CloudReach>,
    /// Bytes per second of all tunnels together.
    pub rate: u64,
    /// Limits of one tunnel.
    pub limits: Limits,
    /// Metrics of the hub.
    pub metrics: Arc<Metrics>,
    /// Clock.
    pub clock: Clock,
}

struct RelayShared {
    members: Arc<Membership>,
    cloud: watch::Receiver<CloudReach>,
    limits: Limits,
    metrics: Arc<Metrics>,
    clock: Clock,
    admission: Mutex<Admission>,
    bucket: Arc<Mutex<TokenBucket>>,
    tasks: TaskGroup,
}

/// Admission of one tunnel; released when dropped.
struct TunnelPlace {
    shared: Arc<RelayShared>,
    member: String,
    budget: Arc<Mutex<TokenBucket>>,
}

// === impl Relay ===

impl Relay {
    /// Serves on a bound port until `tasks` ends; only clients with a certificate of the cluster CA complete a
    /// handshake.
    pub fn serve(self, server: Server, tls: ReloadingServerTls, tasks: &TaskGroup) -> Serving {
        let limits = ServerLimits {
            max_connections: CONNECTIONS_MAX,
            max_strangers: CONNECTIONS_MAX,
            max_waiting: CONNECTIONS_MAX,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            header_timeout: HEADER_TIMEOUT,
            max_streams: 1,
            max_header_bytes: HEADER_BYTES_MAX,
            ..ServerLimits::default()
        };
        server
            .with_tls(tls)
            .with_limits(limits)
            .serve(tasks, self.handler(tasks.clone()))
    }

    fn handler(self, tasks: TaskGroup) -> Handler {
        // The series exist at zero, so that an increase is seen.
        for refusal in Refusal::ALL {
            self.metrics.relay_refused.with_label_values(&[refusal.name()]);
        }
        let shared = Arc::new(RelayShared {
            members: self.members,
            cloud: self.cloud,
            limits: self.limits,
            metrics: self.metrics,
            clock: self.clock,
            admission: Mutex::new(Admission::new(self.targets)),
            bucket: Arc::new(Mutex::new(TokenBucket::new(self.rate))),
            tasks,
        });
        handler(move |request, peer| {
            let shared = shared.clone();
            async move { shared.answer(request, &peer).await }
        })
    }
}

// === impl RelayShared ===

impl RelayShared {
    async fn answer(self: Arc<Self>, mut request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        let (target, place) = match self.enter(&request, peer) {
            Ok(entered) => entered,
            Err(refusal) => {
                self.metrics.relay_refused.with_label_values(&[refusal.name()]).inc();
                tracing::debug!(peer = %peer.addr, ?refusal, "Tunnel refused");
                return refuse(refusal);
            }
        };
        let (host, port) = target.to_dial();
        let dialled = tokio::time::timeout(DIAL_TIMEOUT, connect_tcp(host, port)).await;
        let cloud = match dialled {
            Ok(Ok(cloud)) => cloud,
            Ok(Err(error)) => {
                tracing::debug!(%target, %error, "Failed to connect tunnel to cloud server");
                return closing(text(StatusCode::BAD_GATEWAY, "the cloud server is unreachable\n"));
            }
            Err(_) => return closing(text(StatusCode::GATEWAY_TIMEOUT, "the cloud server does not answer\n")),
        };
        tracing::info!(node = place.member, %target, "Tunnel opened for cut-off node");
        let (upgrade, shared) = (hyper::upgrade::on(&mut request), self.clone());
        let stop = self.tasks.token();
        self.tasks.spawn_isolated("relay-tunnel", async move {
            stop.run_until_cancelled(shared.carry(upgrade, cloud, place)).await;
        });
        Response::new(empty())
    }

    fn enter(
        self: &Arc<Self>,
        request: &Request<Incoming>,
        peer: &Peer,
    ) -> Result<(ConnectTarget, TunnelPlace), Refusal> {
        let node = peer.identity.as_deref().and_then(PeerIdentity::node_name);
        let members = self.members.names();
        let ask = Ask {
            member: node.filter(|node| members.as_ref().is_some_and(|members| members.contains(*node))),
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            has_cloud: self.cloud.borrow().is_up(),
        };
        let mut admission = self.admission.lock();
        let target = admission.enter(ask)?;
        self.count(&admission);
        let member = ask.member.unwrap_or_default().to_owned();
        let budget = admission.budget(&member, self.clock.boot().since_boot());
        Ok((
            target,
            TunnelPlace {
                shared: self.clone(),
                member,
                budget,
            },
        ))
    }

    async fn carry(&self, upgrade: OnUpgrade, cloud: TcpStream, place: TunnelPlace) {
        let begun = tokio::time::timeout(BEGIN_TIMEOUT, upgrade).await;
        let Ok(Ok(near)) = begun else { return };
        // TLS sends small packets; each would wait for the acknowledgement of the previous one.
        let _ = cloud.set_nodelay(true);
        let (near, budget) = (TokioIo::new(near), place.budget.clone());
        let copying = tunnel::copy(near, cloud, self.limits, budget, self.bucket.clone(), &self.clock);
        let end = copying.await;
        tracing::debug!(node = place.member, ?end, "Tunnel ended");
    }

    fn count(&self, admission: &Admission) {
        let open = i64::try_from(admission.total().min(TOTAL)).unwrap_or(0);
        self.metrics.relay_tunnels.set(open);
    }
}

// === impl TunnelPlace ===

impl Drop for TunnelPlace {
    fn drop(&mut self) {
        let mut admission = self.shared.admission.lock();
        admission.leave(&self.member);
        self.shared.count(&admission);
    }
}

/// Returns the response to a refusal. It closes the connection, so that following bytes are not read as a request.
fn refuse(refusal: Refusal) -> Response<Body> {
    let (status, words) = match refusal {
        Refusal::NotConnect => (
            StatusCode::METHOD_NOT_ALLOWED,
            "only CONNECT over HTTP/1.1 is served here\n",
        ),
        Refusal::NotMember => (StatusCode::FORBIDDEN, "only nodes of this pool are served here\n"),
        Refusal::OtherTarget => (StatusCode::FORBIDDEN, "not a cloud server of this hub\n"),
        Refusal::CutOff => (StatusCode::SERVICE_UNAVAILABLE, "this node itself is cut off\n"),
        Refusal::TooMany => (StatusCode::TOO_MANY_REQUESTS, "too many tunnels\n"),
    };
    let mut response = closing(text(status, words));
    if refusal == Refusal::TooMany {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from_static("10"));
    }
    response
}

fn closing(mut response: Response<Body>) -> Response<Body> {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
    response
}
