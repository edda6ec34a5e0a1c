//! The dialling side: finds peers with a link and reaches the cloud through one of them.
//!
//! The peers are read from node leases in the pool once this node is cut off, those of a few members at a time, and again after a
//! minute or when none of them worked; others are read then. The way that worked last is kept, with its connection; after five minutes it is made anew from the files, which may
//! hold a renewed certificate by then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode, Uri};
use parking_lot::Mutex;
use serde::Deserialize;
use yurt_apimachinery::time::MicroTime;
use yurt_runtime::http::client::tunnel::Tunnel;
use yurt_runtime::http::client::{HttpClient, Protocol};
use yurt_runtime::tls::{ClientTls, PeerTls, TlsError};
use yurt_runtime::{BootTime, Clock};

use super::route::{Peer, Route, Target, Tries, may_dial, routes, sample};
use super::{ADDRESS_ANNOTATION, SERVERS_ANNOTATION};
use crate::pool::heartbeat::own::NAMESPACE;
use crate::pool::heartbeat::plan::{DELEGATE_HEARTBEAT_ANNOTATION, DELEGATE_HEARTBEAT_VALUE, UnixMicros};
use crate::pool::lease_client::to_micros;
use crate::replicas::PoolData;

/// Longest wait for the leases of a search; the coordinator is near.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(1);
/// A search is repeated after this long.
const SEARCH_AGAIN: Duration = Duration::from_secs(60);
/// The pause before the next search when no way worked, doubled each time: a pool of 1,000 hubs that is cut off as a whole reads
/// 1,000 × 16 leases in 60 s, 270 a second, once it has grown.
const SEARCH_PAUSE: Duration = Duration::from_secs(5);
/// Longest time to open a tunnel and shake hands with the cloud; a try's own time is shorter.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A way is made anew after this long.
const KEPT: Duration = Duration::from_secs(300);

/// Reaches the cloud through other nodes of the pool.
pub struct RelayClient {
    settings: Settings,
    state: Mutex<State>,
}

/// What it is made of.
pub struct Settings {
    /// Name of this node.
    pub node: String,
    /// The hub's own cloud servers; the cloud has to prove the name of one of them.
    pub servers: Vec<Uri>,
    /// Where the leases are.
    pub coordinator: HttpClient,
    /// Who the members are.
    pub data: Arc<PoolData>,
    /// TLS with the cloud.
    pub cloud_tls: ClientTls,
    /// TLS with the peer.
    pub peer_tls: PeerTls,
    /// Peers on loopback are believed.
    pub all_on_loopback: bool,
    /// Clock.
    pub clock: Clock,
}

#[derive(Default)]
struct State {
    ways: Vec<Route>,
    /// When a search last began.
    searched: Option<BootTime>,
    /// Searches in a row of which no way worked.
    fruitless: u32,
    /// Which members are looked at.
    round: usize,
    /// None of the ways worked: who knows who is there now.
    is_doubtful: bool,
    /// The way to try first.
    first: usize,
    open: Option<Open>,
}

/// A way in use.
struct Open {
    route: Route,
    client: HttpClient,
    made: BootTime,
}

/// The ways that one beat tries: the next one is asked for when the last one failed. Ends when there is no more, or no time.
pub struct Attempts<'a> {
    relay: &'a RelayClient,
    end: BootTime,
    tries: Tries,
    tried: u32,
}

/// A client of the cloud, and how long it may take.
pub struct Way {
    /// Sends requests as this node.
    pub client: HttpClient,
    /// Time for everything.
    pub timeout: Duration,
    /// Name of the node in between.
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
    /// Knows nobody yet and connects to nothing.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            state: Mutex::default(),
        }
    }

    /// Begins the tries of one beat, which take at most `deadline` together.
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

    /// This node reaches the cloud itself again: the tunnel is closed.
    pub fn close(&self) {
        self.state.lock().open = None;
    }

    /// Name of the node that is relayed through, if any.
    #[must_use]
    pub fn through(&self) -> Option<String> {
        self.state.lock().open.as_ref().map(|open| open.route.peer.clone())
    }

    /// Whether a search is due; the caller that is told so makes it.
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

    /// Reads who is there. Leases that cannot be had leave the old ways: peers need no coordinator.
    async fn search(&self) {
        let Some(members) = self.settings.data.members() else {
            return;
        };
        let round = self.state.lock().round;
        let names = sample(&self.settings.node, &members, round);
        let reads = names.iter().map(|name| self.read(name));
        let leases = match futures_util::future::try_join_all(reads).await {
            Ok(leases) => leases,
            Err(why) => return tracing::debug!(why, "Cannot look for relays"),
        };
        let loopback = self.settings.all_on_loopback;
        let peers: Vec<_> = leases
            .iter()
            .flatten()
            .filter_map(|lease| lease.peer(loopback))
            .collect();
        let own: Vec<_> = self.settings.servers.iter().filter_map(Target::of).collect();
        let ways = routes(&self.settings.node, &own, &peers);
        let mut state = self.state.lock();
        state.is_doubtful = false;
        // The one in use stays the first, whoever else there is now.
        let open = state.open.as_ref().map(|open| &open.route);
        state.first = open
            .and_then(|open| ways.iter().position(|way| way == open))
            .unwrap_or(0);
        state.ways = ways;
    }

    /// The lease of `node`; `None` when there is none.
    async fn read(&self, node: &str) -> Result<Option<LeaseItem>, String> {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{node}?resourceVersion=0");
        let coordinator = &self.settings.coordinator;
        let answer = coordinator.request_json(Method::GET, &path, None, SEARCH_TIMEOUT).await;
        match answer {
            Ok((StatusCode::OK, _, body)) => Ok(serde_json::from_slice(&body).ok()),
            Ok((StatusCode::NOT_FOUND, ..)) => Ok(None),
            Ok((status, ..)) => Err(status.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The way that the next try takes.
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
                tracing::warn!(%error, "No certificate to relay with");
                return None;
            }
        };
        state.open = Some(Open {
            route: route.clone(),
            client: client.clone(),
            made: now,
        });
        Some((route, client))
    }

    /// Reads the certificates anew; a few small files.
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

    /// The present way did not work: the next one is tried first from now on; after a whole round others are searched for.
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
    type Item = Way;

    fn next(&mut self) -> Option<Way> {
        if self.tried > 0 {
            self.relay.failed(self.tried);
        }
        let now = self.relay.settings.clock.boot();
        let timeout = self.tries.next(self.end.since(now))?;
        self.tried += 1;
        let (route, client) = self.relay.way()?;
        Some(Way {
            client,
            timeout,
            peer: route.peer,
        })
    }
}

// === impl LeaseItem ===

impl LeaseItem {
    /// The peer that this lease tells of; `None` when it offers nothing that may be used.
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
            servers: Target::list(annotations.get(SERVERS_ANNOTATION).map_or("", String::as_str)),
            renewed: renewed.map(|time| UnixMicros(to_micros(time))),
        })
    }
}
