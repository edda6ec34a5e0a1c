//! Dialling side of the relay: finds peers with a cloud link and reaches the cloud through one of them.
//!
//! Once this node is cut off, a search reads the node leases of a few members. It is repeated after a minute, or
//! earlier with other members when no route worked. The last working route is kept with its connection. After five
//! minutes it is rebuilt from the files, which may then hold a renewed certificate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode, Uri};
use parking_lot::Mutex;
use serde::Deserialize;
use yurt_apimachinery::time::{BootTime, MicroTime};
use yurt_pool_protocol::heartbeat::{DELEGATE_HEARTBEAT_ANNOTATION, DELEGATE_HEARTBEAT_VALUE, UnixMicros};
use yurt_pool_protocol::names::NODE_LEASES;
use yurt_runtime::Clock;
use yurt_runtime::http::client::tunnel::Tunnel;
use yurt_runtime::http::client::{HttpClient, Protocol};
use yurt_runtime::tls::{ClientTls, PeerTls, TlsError};

use super::route::{ConnectTarget, Peer, Route, Tries, may_dial, routes, sample};
use super::{ADDRESS_ANNOTATION, SERVERS_ANNOTATION};
use crate::replicas::membership::Membership;

/// Maximum wait for the leases of a search; the coordinator is near, but may be busy. A beat has 4 s.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between searches while a route works.
const SEARCH_AGAIN: Duration = Duration::from_secs(60);
/// Pause before the next search when no route worked; doubles each time, up to [`SEARCH_AGAIN`]. At that limit, 1,000
/// hubs of a fully cut-off pool read 1,000 × 16 leases in 60 s, which is 270 per second.
const SEARCH_PAUSE: Duration = Duration::from_secs(5);
/// Maximum time to open a tunnel and shake hands with the cloud; the timeout of a try is shorter.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum age of a route's connection; then it is rebuilt.
const KEPT: Duration = Duration::from_secs(300);

/// Client that reaches the cloud through other nodes of the pool.
pub struct RelayClient {
    settings: RelaySettings,
    state: Mutex<RelayState>,
}

/// Dependencies of a [`RelayClient`].
pub struct RelaySettings {
    /// Name of this node.
    pub node: String,
    /// The hub's own cloud servers; the far end must present a certificate for one of these names.
    pub servers: Vec<Uri>,
    /// Client of the coordinator, which holds the node leases.
    pub coordinator: HttpClient,
    /// The pool's members.
    pub members: Arc<Membership>,
    /// TLS settings towards the cloud.
    pub cloud_tls: ClientTls,
    /// TLS settings towards the peer.
    pub peer_tls: PeerTls,
    /// True to accept peer addresses on loopback.
    pub all_on_loopback: bool,
    /// Clock.
    pub clock: Clock,
}

#[derive(Default)]
struct RelayState {
    ways: Vec<Route>,
    /// Start of the last search.
    searched: Option<BootTime>,
    /// Consecutive searches of which no route worked.
    fruitless: u32,
    /// Round of the search; selects the members to read.
    round: usize,
    /// True if none of the routes worked, so that the peers may have changed.
    is_doubtful: bool,
    /// Index of the route to try first.
    first: usize,
    open: Option<OpenRoute>,
}

/// Route in use.
struct OpenRoute {
    route: Route,
    client: HttpClient,
    made: BootTime,
}

/// Iterator over the routes that one beat tries; each call reports the previous route as failed. Ends when no route or
/// no time is left.
pub struct Attempts<'a> {
    relay: &'a RelayClient,
    end: BootTime,
    tries: Tries,
    tried: u32,
}

/// Client of the cloud over one route, with its timeout.
pub struct RelayAttempt {
    /// HTTP client; sends requests as this node.
    pub client: HttpClient,
    /// Total time for all requests.
    pub timeout: Duration,
    /// Name of the relaying node.
    pub peer: String,
}

#[derive(Deserialize)]
struct LeaseItem {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    renew_time: Option<String>,
}

// === impl RelayClient ===

impl RelayClient {
    /// Creates a client that has no peers and no connection yet.
    #[must_use]
    pub fn new(settings: RelaySettings) -> Self {
        Self {
            settings,
            state: Mutex::default(),
        }
    }

    /// Starts the tries of one beat, which take at most `deadline` together.
    pub async fn begin(&self, deadline: Duration) -> Attempts<'_> {
        let end = self.settings.clock.boot() + deadline;
        if self.take_turn() {
            self.search().await;
        }
        Attempts {
            relay: self,
            end,
            tries: Tries::new(self.state.lock().ways.len()),
            tried: 0,
        }
    }

    /// Closes the tunnel: this node itself reaches the cloud again.
    pub fn close(&self) {
        self.state.lock().open = None;
    }

    /// Returns the name of the relaying node, if any.
    #[must_use]
    pub fn through(&self) -> Option<String> {
        self.state.lock().open.as_ref().map(|open| open.route.peer.clone())
    }

    /// Returns true if a search is due; the caller must then run it.
    fn take_turn(&self) -> bool {
        let now = self.settings.clock.boot();
        let mut state = self.state.lock();
        let works = !state.ways.is_empty() && !state.is_doubtful;
        let pause = SEARCH_PAUSE
            .saturating_mul(1 << state.fruitless.min(4))
            .min(SEARCH_AGAIN);
        let wait = if works { SEARCH_AGAIN } else { pause };
        let is_due = state.searched.is_none_or(|searched| now.since(searched) >= wait);
        if is_due {
            if works {
                state.fruitless = 0;
            } else if state.searched.is_some() {
                state.fruitless += 1;
                state.round += 1;
            }
            state.searched = Some(now);
        }
        is_due
    }

    /// Reads the leases of members and rebuilds the routes. If all reads fail the old routes stay: peers need no
    /// coordinator.
    async fn search(&self) {
        let Some(members) = self.settings.members.names() else {
            return;
        };
        let round = self.state.lock().round;
        let names = sample(&self.settings.node, &members, round);
        let reads = names.iter().map(|name| self.read(name));
        let read = futures_util::future::join_all(reads).await;
        if let Some(why) = read.iter().find_map(|lease| lease.as_ref().err()) {
            tracing::debug!(why, "Failed to read leases of peers");
        }
        let leases: Vec<_> = read.into_iter().filter_map(Result::ok).collect();
        if leases.is_empty() && !names.is_empty() {
            return;
        }
        let loopback = self.settings.all_on_loopback;
        let peers: Vec<_> = leases
            .iter()
            .flatten()
            .filter_map(|lease| lease.peer(loopback))
            .collect();
        let own: Vec<_> = self.settings.servers.iter().filter_map(ConnectTarget::of).collect();
        let ways = routes(&self.settings.node, &own, &peers);
        let mut state = self.state.lock();
        state.is_doubtful = false;
        // The route in use stays the first, regardless of the other peers.
        let open = state.open.as_ref().map(|open| &open.route);
        state.first = open
            .and_then(|open| ways.iter().position(|way| way == open))
            .unwrap_or(0);
        state.ways = ways;
    }

    /// Returns the lease of `node`; `None` if there is none.
    async fn read(&self, node: &str) -> Result<Option<LeaseItem>, String> {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NODE_LEASES}/leases/{node}?resourceVersion=0");
        let coordinator = &self.settings.coordinator;
        let answer = coordinator.request_json(Method::GET, &path, None, SEARCH_TIMEOUT).await;
        match answer {
            Ok((StatusCode::OK, _, body)) => Ok(serde_json::from_slice(&body).ok()),
            Ok((StatusCode::NOT_FOUND, ..)) => Ok(None),
            Ok((status, ..)) => Err(status.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns the route of the next try and its client.
    fn way(&self) -> Option<(Route, HttpClient)> {
        let now = self.settings.clock.boot();
        let mut state = self.state.lock();
        let route = state.ways.get(state.first)?.clone();
        if let Some(open) = &state.open
            && open.route == route
            && now.since(open.made) < KEPT
        {
            return Some((route, open.client.clone()));
        }
        let client = match self.connect(&route) {
            Ok(client) => client,
            Err(error) => {
                tracing::warn!(%error, "Failed to load certificates for relay");
                return None;
            }
        };
        state.open = Some(OpenRoute {
            route: route.clone(),
            client: client.clone(),
            made: now,
        });
        Some((route, client))
    }

    /// Connects over `route`. Reads the certificates (a few small files) again.
    fn connect(&self, route: &Route) -> Result<HttpClient, TlsError> {
        let settings = &self.settings;
        let tunnel = Tunnel {
            address: route.address,
            peer: route.peer.clone(),
            tls: std::sync::Arc::new(settings.peer_tls.client()?),
            target: route.target.to_string(),
        };
        let server = settings.servers[route.server].clone();
        let (tls, dial) = (Some(settings.cloud_tls.config()?), Some(tunnel.dial()));
        HttpClient::over(server, tls, Protocol::Http2, CONNECT_TIMEOUT, dial).map_err(|error| TlsError::Pem {
            origin: "--server-addr".to_owned(),
            problem: error.to_string(),
        })
    }

    /// Marks the present route as failed: the next try takes the next one. After a whole round a search for other peers
    /// is due.
    fn failed(&self, tried: u32) {
        let mut state = self.state.lock();
        state.open = None;
        let count = state.ways.len().max(1);
        state.first = (state.first + 1) % count;
        state.is_doubtful |= state.first == 0 || tried as usize >= count;
    }
}

// === impl Attempts ===

impl Iterator for Attempts<'_> {
    type Item = RelayAttempt;

    fn next(&mut self) -> Option<RelayAttempt> {
        if self.tried > 0 {
            self.relay.failed(self.tried);
        }
        let now = self.relay.settings.clock.boot();
        let timeout = self.tries.next(self.end.since(now))?;
        self.tried += 1;
        let (route, client) = self.relay.way()?;
        Some(RelayAttempt {
            client,
            timeout,
            peer: route.peer,
        })
    }
}

// === impl LeaseItem ===

impl LeaseItem {
    /// Returns the peer that this lease describes; `None` if it offers no usable relay.
    fn peer(&self, all_on_loopback: bool) -> Option<Peer> {
        let annotations = self.metadata.annotations.as_ref()?;
        let address = annotations.get(ADDRESS_ANNOTATION)?.parse().ok()?;
        let is_cut_off =
            annotations.get(DELEGATE_HEARTBEAT_ANNOTATION).map(String::as_str) == Some(DELEGATE_HEARTBEAT_VALUE);
        let renewed = self
            .spec
            .renew_time
            .as_ref()
            .and_then(|text| MicroTime::parse(text).ok());
        (may_dial(address, all_on_loopback) && !is_cut_off).then(|| Peer {
            name: self.metadata.name.clone(),
            address,
            servers: ConnectTarget::list(annotations.get(SERVERS_ANNOTATION).map_or("", String::as_str)),
            renewed: renewed.map(UnixMicros::from),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_with_an_address_that_may_not_be_dialled_is_no_peer() {
        let peer = |address: &str| {
            let annotations = serde_json::json!({ADDRESS_ANNOTATION: address, SERVERS_ANNOTATION: "cloud:443"});
            let lease = serde_json::json!({"metadata": {"name": "n2", "annotations": annotations}});
            let item: LeaseItem = serde_json::from_value(lease).expect("a lease");
            item.peer(false)
        };
        assert!(peer("10.0.0.2:10269").is_some());
        for address in [
            "127.0.0.1:10269",
            "[::1]:10269",
            "169.254.169.254:80",
            "[fe80::1]:10269",
            "n2:10269",
        ] {
            assert_eq!(peer(address), None, "{address}");
        }
    }
}
