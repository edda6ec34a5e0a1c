//! Connections of the hub to each cloud apiserver and to the coordinator, separate by purpose so that no heartbeat
//! waits behind a watch.

pub(crate) mod attempts;
mod availability;
mod certificates;
pub(crate) mod hop_by_hop;
mod identity;
pub(crate) mod json_watch;
mod token;
pub(crate) mod watch_body;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode, Uri};
use tokio::sync::Notify;
use yurt_apimachinery::text::cut_middle;
use yurt_apimachinery::{RequestInfo, Status, Verb};
use yurt_runtime::TaskGroup;
use yurt_runtime::http::client::lane::Lane;
use yurt_runtime::http::client::{ClientError, HttpClient, LifeSigns, Protocol};
use yurt_runtime::kubeconfig::{Kubeconfig, KubeconfigError};
use yurt_runtime::tls::{ClientTls, PemIdentity, PemSource, TlsError};

use crate::config::{Config, KUBELET_CONF, LbMode};
use crate::metrics::traffic::Traffic;
pub use availability::Availability;
pub use certificates::CertificateFiles;
pub(crate) use certificates::is_of_time;
use identity::Identity;
use token::{RotatedToken, TokenWatch};

/// Maximum time to connect, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum bytes of one forwarded stream of the node's components in flight: 2.5 MB/s at a round trip of 100 ms.
const NODE_WINDOW: u32 = 256 * 1024;
/// The same for a bearer of a token: the hub holds that much for each stream whose reader stalls.
const TOKEN_WINDOW: u32 = 64 * 1024;

/// Maximum bytes of a message that a description of an answer shows. kube-apiserver puts whole objects into some.
const MESSAGE_MAX: usize = 1024;

/// Returns the delay that a server requests (`Retry-After`, RFC 9110 10.2.3), if it is in seconds.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Describes an error response for people: the status, and the message of the Status in `body` if there is one.
pub(crate) fn describe_answer(status: StatusCode, body: &[u8]) -> String {
    match Status::from_json(body) {
        Some(said) if !said.message().is_empty() => format!("{status}: {}", cut_middle(said.message(), MESSAGE_MAX)),
        _ => status.to_string(),
    }
}

/// Error in setting up the connections; each message names the file or the flag.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The kubeconfig is not usable.
    #[error("--{flag}: {error}")]
    Kubeconfig {
        /// The flag that names the file.
        flag: &'static str,
        /// Fault of the file.
        error: KubeconfigError,
    },
    /// The default kubeconfig is not usable.
    #[error(
        "--kubeconfig: {0}; name the kubeconfig with the node's certificate, or let the hub request its own: with \
         --join-token, and once it has joined with --bootstrap-mode=token"
    )]
    NoCertificate(KubeconfigError),
    /// A certificate or CA is not usable.
    #[error("--{flag}: {error}")]
    Tls {
        /// The flag that leads to the file.
        flag: &'static str,
        /// Fault of the file.
        error: TlsError,
    },
    /// The kubeconfig has no client certificate.
    #[error("--kubeconfig: {path} has no client certificate; the hub needs the node's (CN system:node:<name>)")]
    NoIdentity {
        /// Path of the kubeconfig.
        path: String,
    },
    /// A token file is not usable.
    #[error("--{flag}: {error}")]
    Token {
        /// The flag that leads to the file.
        flag: &'static str,
        /// Fault of the file.
        error: std::io::Error,
    },
    /// A server address is not usable.
    #[error("--{flag}: {error}")]
    Server {
        /// The flag.
        flag: &'static str,
        /// Fault of the address.
        error: ClientError,
    },
}

// === impl UpstreamError ===

impl UpstreamError {
    /// True if a certificate and its key do not match; the second half of a rotation corrects that.
    #[must_use]
    pub fn is_mismatch(&self) -> bool {
        matches!(self, UpstreamError::Tls { error, .. } if error.is_mismatch())
    }
}

/// Clients of one cloud apiserver.
#[derive(Clone, Debug)]
pub struct CloudServer {
    /// Node identity: forwarded requests of this node's components.
    pub node: Forwarding,
    /// No identity: forwarded requests with a bearer token, over which a client certificate would take precedence.
    pub token: Forwarding,
    /// Node identity, HTTP/2: streams of pool data and of the configuration.
    pub streams: HttpClient,
    /// Node identity: streams of cached selections.
    pub selections: Lane,
    /// No identity: streams of cached selections that a caller's token may read.
    pub token_selections: Lane,
    /// Node identity: heartbeats and probes.
    pub beats: HttpClient,
    /// Node identity, HTTP/1.1: probes over new connections, while the open ones are silent.
    pub knocks: HttpClient,
    /// The forwarding identity, if given.
    pub delegate: Option<HttpClient>,
    /// Signs of life from all these clients.
    pub signs: LifeSigns,
    /// Judgement of the probes.
    pub availability: Arc<Availability>,
}

/// Connections for forwarded requests of one identity. Requests never wait behind watches.
#[derive(Clone, Debug)]
pub struct Forwarding {
    /// Requests with an answer that ends.
    pub calls: Lane,
    /// Watches and logs.
    pub streams: Lane,
    /// Answers that a pod or a service writes (subresource `proxy`). They may be long, and one with too many headers
    /// ends its connection.
    pub proxied: Lane,
    /// HTTP/1.1: upgrades, and reviews of a bearer's rights.
    pub single: HttpClient,
}

/// All cloud apiservers, and the one in use.
#[derive(Debug)]
pub struct Cloud {
    servers: Vec<CloudServer>,
    mode: LbMode,
    current: AtomicUsize,
    /// Number of requests so far that took a server in turn.
    turn: AtomicUsize,
    delegate_token: Option<RotatedToken>,
    files: CertificateFiles,
    /// Bytes on the link.
    traffic: Traffic,
}

/// Clients of the coordinator. It has a thousand hubs, so a follower keeps one connection to it and a leader two.
#[derive(Clone, Debug)]
pub struct CoordinatorClient {
    /// Streams of the replicas, probes, election and leases, over one connection. A watch is read without delay, and a
    /// list fills only its own stream's window. So small calls are answered between its parts.
    pub shared: HttpClient,
    /// The feed, which connects with its first call. It is separate because snapshots fill the upstream direction,
    /// where renewals must not wait.
    pub feed: HttpClient,
    /// HTTP/1.1, for single requests: its errors distinguish a TLS alert of the peer from a broken connection.
    pub once: HttpClient,
    /// Files behind these connections.
    pub files: CertificateFiles,
}

/// All connections of the hub.
#[derive(Clone, Debug)]
pub struct Upstreams {
    /// The cloud.
    pub cloud: Arc<Cloud>,
    /// The coordinator, if used.
    pub coordinator: Option<CoordinatorClient>,
    /// CA bundle of the apiservers.
    pub cluster_ca: PemSource,
    /// CA bundle of client certificates: those of callers, and those of the pool's relays.
    pub client_ca: PemSource,
    /// Client certificate of the node.
    pub node: PemIdentity,
    /// Wakes one waiter once a changed certificate of the node is in use.
    pub renewed: Arc<Notify>,
}

// === impl Cloud ===

impl Cloud {
    /// Creates a cloud of one server at `url`, without TLS and identity.
    #[cfg(test)]
    pub(crate) fn for_test(url: &str) -> Self {
        Self::of_servers(&[url])
    }

    /// As [`Self::for_test`], of several servers in the order of their priority.
    #[cfg(test)]
    pub(crate) fn of_servers(urls: &[&str]) -> Self {
        let client = |url: &&str| {
            let uri: Uri = url.parse().expect("a URL");
            HttpClient::new(uri, None, Protocol::Http1, CONNECT_TIMEOUT).expect("a client without TLS")
        };
        Self::of_clients(urls.iter().map(client))
    }

    /// As [`Self::of_servers`], each with this client for all purposes.
    #[cfg(test)]
    pub(crate) fn of_clients(clients: impl IntoIterator<Item = HttpClient>) -> Self {
        let servers = clients.into_iter().map(CloudServer::for_test);
        Self::new(servers.collect(), LbMode::Priority, None, CertificateFiles::for_test())
    }

    fn new(
        servers: Vec<CloudServer>,
        mode: LbMode,
        delegate_token: Option<RotatedToken>,
        files: CertificateFiles,
    ) -> Self {
        Self {
            servers,
            mode,
            current: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
            delegate_token,
            files,
            traffic: Traffic::default(),
        }
    }

    /// Files behind the connections of the node.
    pub(crate) fn files(&self) -> &CertificateFiles {
        &self.files
    }

    /// Counter of the bytes on the link.
    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Rule for the choice between the servers.
    #[must_use]
    pub fn mode(&self) -> LbMode {
        self.mode
    }

    /// Servers for one request, in the order in which it tries them: those that are up, else those that are not known
    /// to be unreachable. Empty while the cloud is away.
    #[must_use]
    pub fn candidates(&self) -> Vec<usize> {
        let servers = || self.servers.iter().map(|server| &server.availability).enumerate();
        let mut places: Vec<usize> = servers()
            .filter(|(_, server)| server.is_up() == Some(true))
            .map(|(place, _)| place)
            .collect();
        if places.is_empty() {
            places = servers()
                .filter(|(_, server)| server.may_answer())
                .map(|(place, _)| place)
                .collect();
        }
        let first = match self.mode {
            LbMode::RoundRobin => self.turn.fetch_add(1, Ordering::Relaxed),
            LbMode::Priority => places.iter().position(|place| *place == self.current()).unwrap_or(0),
        };
        let count = places.len().max(1);
        places.rotate_left(first % count);
        places
    }

    /// True if a server is up.
    #[must_use]
    pub fn has_server_up(&self) -> bool {
        let mut servers = self.servers.iter();
        servers.any(|server| server.availability.is_up() == Some(true))
    }

    /// Server in use.
    #[must_use]
    pub fn server(&self) -> &CloudServer {
        self.at(self.current())
    }

    /// Server at this index.
    #[must_use]
    pub fn at(&self, place: usize) -> &CloudServer {
        &self.servers[place]
    }

    /// Index of the server in use.
    #[must_use]
    pub fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed) % self.servers.len()
    }

    /// Number of servers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.servers.len()
    }

    /// True if there are no servers; the flags prevent that.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// Switches to the server at this index.
    pub fn use_server(&self, place: usize) {
        self.current.store(place, Ordering::Relaxed);
    }

    /// Rereads the token of the forwarding identity, if it is in a file, because a server did not accept it.
    pub fn renew_delegate(&self) {
        if let Some(token) = &self.delegate_token {
            token.read_again();
        }
    }

    /// Switches to the next server; a single server stays in use.
    pub fn try_next(&self) {
        self.current.fetch_add(1, Ordering::Relaxed);
    }
}

// === impl Forwarding ===

impl Forwarding {
    /// Lane for a request.
    #[must_use]
    pub fn lane_for(&self, info: &RequestInfo) -> &Lane {
        match (info.verb, info.subresource.as_deref()) {
            _ if info.is_proxy() => &self.proxied,
            (Verb::Watch, _) | (_, Some("log")) => &self.streams,
            _ => &self.calls,
        }
    }

    fn lanes(&self) -> [&Lane; 3] {
        [&self.calls, &self.streams, &self.proxied]
    }
}

// === impl CloudServer ===

impl CloudServer {
    #[cfg(test)]
    fn for_test(client: HttpClient) -> Self {
        let lane = || Lane::new(client.clone(), NODE_WINDOW, TaskGroup::new());
        let forwarding = Forwarding {
            calls: lane(),
            streams: lane(),
            proxied: lane(),
            single: client.clone(),
        };
        Self {
            node: forwarding.clone(),
            token: forwarding,
            streams: client.clone(),
            knocks: client.clone(),
            selections: lane(),
            token_selections: lane(),
            beats: client,
            delegate: None,
            signs: LifeSigns::default(),
            availability: Arc::default(),
        }
    }

    /// Makes new requests use new connections.
    pub(crate) fn reconnect(&self) {
        let clients = [
            &self.streams,
            &self.beats,
            &self.knocks,
            &self.node.single,
            &self.token.single,
        ];
        clients
            .into_iter()
            .chain(&self.delegate)
            .for_each(HttpClient::reconnect);
        let lanes = [&self.node, &self.token].map(Forwarding::lanes);
        let selections = [&self.selections, &self.token_selections];
        lanes.into_iter().flatten().chain(selections).for_each(Lane::retire);
    }
}

// === impl Upstreams ===

impl Upstreams {
    /// Reads the certificates and creates the clients without connecting. `tasks` watch the certificate files.
    ///
    /// # Errors
    /// [`UpstreamError`], naming file and flag.
    pub fn new(config: &Config, tasks: &TaskGroup) -> Result<Self, UpstreamError> {
        let flag = config.certificate_flag();
        let path = &config.kubeconfig;
        let kubeconfig = Kubeconfig::load(path).map_err(|error| unusable(flag, path, error))?;
        let Some(identity) = kubeconfig.identity.clone() else {
            return Err(UpstreamError::NoIdentity {
                path: config.kubeconfig.display().to_string(),
            });
        };
        let tls = kubeconfig
            .client_tls()
            .map_err(|error| UpstreamError::Tls { flag, error })?;
        let mut node = Identity::new(flag, tls.clone())?;
        let mut anonymous = Identity::new(
            flag,
            ClientTls {
                ca: tls.ca.clone(),
                identity: None,
            },
        )?;
        let mut delegate = delegate_identity(config)?;
        let server = |uri: &Uri| {
            let delegate = delegate
                .as_mut()
                .map(|delegate| delegate.client("server-addr", uri, Protocol::Http2));
            let signs = LifeSigns::default();
            Ok(CloudServer {
                delegate: delegate.transpose()?,
                node: node.forwarding(uri, &signs, NODE_WINDOW, tasks)?,
                token: anonymous.forwarding(uri, &signs, TOKEN_WINDOW, tasks)?,
                streams: node.noting(uri, Protocol::Http2, signs.clone(), false)?,
                selections: node.selections(uri, &signs, tasks)?,
                token_selections: anonymous.selections(uri, &signs, tasks)?,
                beats: node.noting(uri, Protocol::Http2, signs.clone(), true)?,
                knocks: node.noting(uri, Protocol::Http1, signs.clone(), false)?,
                signs,
                availability: Arc::default(),
            })
        };
        let servers = config
            .servers
            .iter()
            .map(server)
            .collect::<Result<Vec<_>, UpstreamError>>()?;
        let client_ca = client_ca(config, &tls.ca)?;
        let coordinator = coordinator_client(config, &tls, &identity, tasks)?;
        let delegate_token = delegate.and_then(|delegate| delegate.watch(tasks));
        let renewed = node.renewed.clone();
        node.watch(tasks);
        anonymous.watch(tasks);
        let files = CertificateFiles {
            ca: tls.ca.clone(),
            own: identity.cert.clone(),
        };
        let cloud = Arc::new(Cloud::new(servers, config.lb_mode, delegate_token, files));
        Ok(Self {
            cloud,
            coordinator,
            client_ca,
            cluster_ca: tls.ca,
            node: identity,
            renewed,
        })
    }
}

/// Returns the error of the kubeconfig with the node's certificate.
fn unusable(flag: &'static str, path: &Path, error: KubeconfigError) -> UpstreamError {
    match path == Path::new(KUBELET_CONF) {
        true => UpstreamError::NoCertificate(error),
        false => UpstreamError::Kubeconfig { flag, error },
    }
}

/// Returns the CA of client certificates: the configured one, or that of the servers.
fn client_ca(config: &Config, cluster_ca: &PemSource) -> Result<PemSource, UpstreamError> {
    let Some(file) = &config.client_ca_file else {
        return Ok(cluster_ca.clone());
    };
    let ca = PemSource::from(file.clone());
    let flag = "client-ca-file";
    ca.roots().map_err(|error| UpstreamError::Tls { flag, error })?;
    Ok(ca)
}

fn coordinator_client(
    config: &Config,
    node: &ClientTls,
    own: &PemIdentity,
    tasks: &TaskGroup,
) -> Result<Option<CoordinatorClient>, UpstreamError> {
    let Some(coordinator) = &config.coordinator else {
        return Ok(None);
    };
    let ca = coordinator
        .ca_file
        .clone()
        .map_or_else(|| node.ca.clone(), PemSource::File);
    let files = CertificateFiles {
        ca: ca.clone(),
        own: own.cert.clone(),
    };
    let identity = Some(own.clone());
    let mut identity = Identity::new("coordinator-ca-file", ClientTls { ca, identity })?;
    let mut client = |protocol| identity.client("coordinator-server-addr", &coordinator.server, protocol);
    let clients = CoordinatorClient {
        shared: client(Protocol::Http2)?,
        feed: client(Protocol::Http2)?,
        once: client(Protocol::Http1)?,
        files,
    };
    identity.watch(tasks);
    Ok(Some(clients))
}

/// Returns the forwarding identity. It is used with the hub's own cloud servers, regardless of the server in its
/// kubeconfig.
fn delegate_identity(config: &Config) -> Result<Option<Identity>, UpstreamError> {
    let flag = "delegate-kubeconfig";
    let Some(path) = &config.delegate_kubeconfig else {
        return Ok(None);
    };
    let kubeconfig = Kubeconfig::load(path).map_err(|error| UpstreamError::Kubeconfig { flag, error })?;
    let tls = kubeconfig
        .client_tls()
        .map_err(|error| UpstreamError::Tls { flag, error })?;
    let mut identity = Identity::new(flag, tls)?;
    if let Some(token) = kubeconfig.token {
        let watch = TokenWatch::new(token).map_err(|error| UpstreamError::Token { flag, error })?;
        identity.token = Some(watch);
    }
    Ok(Some(identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_kubeconfig_of_the_kubelet_names_the_flags_that_replace_it() {
        let error = |path| {
            let kubeconfig = Kubeconfig::load(Path::new("/nowhere/x")).unwrap_err();
            unusable("kubeconfig", Path::new(path), kubeconfig).to_string()
        };
        let default = error("/etc/kubernetes/kubelet.conf");
        for part in ["/nowhere/x", "--kubeconfig", "--join-token", "--bootstrap-mode=token"] {
            assert!(default.contains(part), "{part} in {default}");
        }
        assert!(!error("/own.conf").contains("--join-token"), "a file that a flag names");
    }
}
