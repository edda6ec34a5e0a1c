//! Command-line flags, by upstream's names, and the checked configuration made of them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{ArgAction, Parser};
use http::Uri;
use yurt_apimachinery::meta::{dns_label_errors, dns_subdomain_errors, label_value_errors};
use yurt_pool_protocol::election;
use yurt_runtime::flags::{GoDuration, LogFlags, Optional, parse_go_bool};

use crate::filter::HubAddress;
use crate::node_network::{self, NodeNetwork};

mod filters;
mod fixed;
mod identity;
mod join;
mod joining;
#[cfg(test)]
mod manifests;
mod mode;
pub mod proxy_variables;
#[cfg(test)]
mod units;
mod without_effect;

pub(crate) use filters::FilterFlags;
pub use filters::FilterSettings;
pub use identity::{NodeIdentity, Proof};
pub use join::{CLIENT_SIGNER, Join, JoinToken, KUBELET_SIGNER, OWN_KUBECONFIG, Trust};
pub(crate) use joining::KUBELET_CONF;
pub use mode::WorkingMode;

/// Default of `--coordinator-server-addr`, upstream's.
const COORDINATOR_SERVER: &str = "https://yurt-coordinator-apiserver:443";

/// Minimum of `--max-pool-bytes` and `--max-cache-bytes`.
const MAX_POOL_BYTES_LEAST: usize = 1 << 20;

/// YurtHub: the node's proxy to the cloud and to its NodePool's coordinator.
///
/// Point kubelet and kube-proxy at https://127.0.0.1:10268, with certificate-authority pki/yurthub-ca.crt and tokenFile
/// kubelet.token, both below --root-dir. Or use http://127.0.0.1:10261, where root's connections act as the node. This
/// node's own copies answer reads of Services, EndpointSlices and Endpoints, which one hub of the pool fetches from the
/// cloud for all, and what the node's components list and watch. Other requests go to the cloud. See
/// http://127.0.0.1:10267/debug/state.json for the leader and for stale data.
#[derive(Clone, Debug, Parser)]
#[command(name = "yurthub", version, max_term_width = 120, args_override_self = true)]
pub struct Flags {
    /// Address of the health, metrics and state port.
    #[arg(long, default_value = "127.0.0.1")]
    bind_address: IpAddr,
    /// Port for health, metrics and state.
    #[arg(long, default_value_t = 10267)]
    serve_port: u16,
    /// Address of the proxy ports.
    #[arg(long, default_value = "127.0.0.1")]
    bind_proxy_address: IpAddr,
    /// Plain HTTP port for clients on this node. Clients trust any process that takes this port while the hub is down.
    /// To prevent that, let systemd hold the proxy's ports (LISTEN_FDS; sockets are found by their address), or use
    /// --proxy-secure-port.
    #[arg(long, default_value_t = 10261)]
    proxy_port: u16,
    /// HTTPS port for pods and for components of the node. Serves pki/yurthub-server-current.pem under --root-dir if an
    /// administrator placed it. Otherwise a certificate of the hub's own CA, which is kept as pki/yurthub-ca.crt; at
    /// --dummy-if-ip, that of the cluster once it is issued.
    #[arg(long, default_value_t = 10268)]
    proxy_secure_port: u16,
    /// Name of this Node.
    #[arg(long, default_value = "", hide_default_value = true)]
    node_name: String,
    /// Namespace of ConfigMap yurt-hub-cfg, which configures the filters and the resources that a pool shares.
    #[arg(long, default_value = "kube-system")]
    namespace: String,
    /// Name of this node's NodePool; required with --enable-coordinator. By default the label apps.openyurt.io/nodepool
    /// of this Node. The hub ends when that changes, and takes the new one at its next start.
    #[arg(long, default_value = "", hide_default_value = true)]
    nodepool_name: String,
    /// Cloud apiservers, https://host:port, separated by commas. Each is probed on its own; a server that is down gets
    /// no requests.
    #[arg(long, default_value = "", hide_default_value = true)]
    server_addr: String,
    /// Choice between several cloud apiservers. rr: forwarded requests take those that are up in turn. priority: all go
    /// to the first one in the order of --server-addr that is up, and return to it once it has been up for 30 s again.
    #[arg(long, value_enum, default_value_t = LbMode::RoundRobin)]
    lb_mode: LbMode,
    #[command(flatten)]
    joining: joining::JoiningFlags,
    /// Working mode. edge: serve from this node's data while the cloud is away. cloud, for nodes next to the
    /// apiservers: pass requests on and filter them; nothing is answered without the cloud, and there is no
    /// coordinator.
    #[arg(long, default_value = "edge")]
    working_mode: String,
    /// CA of client certificates, at the HTTPS port and between the relays of a pool: the apiserver's --client-ca-file.
    /// Set it if this is not the CA of the apiservers. Relays authenticate with their node's client certificate
    /// [default: the CA of --kubeconfig, or of the cluster joined].
    #[arg(long)]
    client_ca_file: Option<PathBuf>,
    /// Directory of the hub's own state.
    #[arg(long, default_value = "/var/lib/yurthub", value_parser = absolute())]
    root_dir: PathBuf,
    /// Directory of what this node needs without the cloud: copies, kept answers, and changes that the cloud does not
    /// have yet.
    #[arg(long, default_value = "/etc/kubernetes/cache/", value_parser = absolute())]
    disk_cache_path: PathBuf,
    /// Create a dummy interface with --dummy-if-ip and serve the proxy there as well. Without it, pods use the hub only
    /// if --bind-proxy-address is an address that they can reach.
    #[arg(long, default_value = "true", value_parser = parse_go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    enable_dummy_if: bool,
    /// Address of the dummy interface [default: 169.254.2.1, fd00::2:1 with an IPv6 --bind-proxy-address].
    #[arg(long, default_value = "", hide_default_value = true)]
    dummy_if_ip: Optional<IpAddr>,
    /// Name of the dummy interface, at most 15 characters.
    #[arg(long, default_value = "yurthub-dummy0")]
    dummy_if_name: String,
    /// Accept packets between the dummy interface and the proxy's ports: a chain YURTHUB of iptables, or a table
    /// yurthub of nftables without iptables, which cannot overrule the drop of another table. Set it if iptables drops
    /// by default. `yurthub cleanup` removes it.
    #[arg(long, default_value = "false", value_parser = parse_go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    enable_iptables: bool,
    /// Share pool data and heartbeats through the pool's coordinator [default: false].
    #[arg(long, value_parser = parse_go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    enable_coordinator: Option<bool>,
    /// URL of the coordinator, https://host:port. Use an address that works without kube-proxy.
    #[arg(long, default_value = COORDINATOR_SERVER)]
    coordinator_server_addr: String,
    /// CA of the coordinator's certificate, if it is not the cloud's.
    #[arg(long)]
    coordinator_ca_file: Option<PathBuf>,
    /// Kubeconfig of a non-node identity (group openyurt:yurt-coordinator) that forwards heartbeats of cut-off nodes to
    /// the cloud. Without it this hub can lead but does not forward.
    #[arg(long)]
    delegate_kubeconfig: Option<PathBuf>,
    /// With --enable-coordinator: while this node is cut off from the cloud, send its heartbeats and NodeStatus through
    /// another hub of the pool. The hub offers the same to others. Tunnels lead to --server-addr only, are encrypted
    /// end to end, and are open to members of the pool only. If false, the leader forwards heartbeats of cut-off nodes.
    #[arg(long, default_value = "true", value_parser = parse_go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    enable_relay: bool,
    /// Address of the relay port, at which other nodes reach this one [default: the node's address on the route to the
    /// coordinator, else to the cloud].
    #[arg(long)]
    relay_address: Option<IpAddr>,
    /// Port of the relay.
    #[arg(long, default_value_t = 10269)]
    relay_port: u16,
    /// Maximum bytes per second of all tunnels of the relay together.
    #[arg(long, default_value_t = 131_072)]
    relay_bytes_per_second: u64,
    /// With --enable-coordinator: interval at which the pool compares a sample of the coordinator's data with the
    /// cloud. A sample is one object or one small page; the hubs take turns. A hub that finds a forgery follows the
    /// cloud. 0 disables the comparison.
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    pool_data_verify_period: GoDuration,
    /// Maximum bytes of all copies of pool data together. At the limit a hub keeps its data, rejects more, and reports
    /// that in /debug/state.json (troubles). During a list its collection is held twice.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    max_pool_bytes: usize,
    /// Maximum bytes of all other copies together: what components of this node list and watch. Above it the hub keeps
    /// what it has, passes further lists and watches on to the cloud, and reports that in /debug/state.json (troubles).
    /// Copies of reads with pods' tokens get half of it. Raise it on nodes with many secrets and configmaps, or that
    /// cache large collections (cache_agents of ConfigMap yurt-hub-cfg).
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    max_cache_bytes: usize,
    /// Take part in the election of the pool's leader.
    #[arg(long, default_value = "true", value_parser = parse_go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    leader_elect: bool,
    /// Time that other candidates wait after the leader's last renewal; whole seconds, 60s at most.
    #[arg(long, default_value = "15s")]
    leader_elect_lease_duration: GoDuration,
    /// Time without a successful renewal after which a leader stops leading.
    #[arg(long, default_value = "10s")]
    leader_elect_renew_deadline: GoDuration,
    /// Interval between renewals, and between attempts of candidates.
    #[arg(long, default_value = "2s")]
    leader_elect_retry_period: GoDuration,
    #[command(flatten)]
    fixed: fixed::FixedFlags,
    #[command(flatten)]
    without_effect: without_effect::WithoutEffect,
    #[command(flatten)]
    filters: filters::FilterFlags,
    #[command(flatten)]
    identity: identity::IdentityFlags,
    /// Minimum duration of a watch without timeoutSeconds; the maximum is twice that.
    #[arg(long, default_value = "1800s")]
    min_request_timeout: GoDuration,
    /// Maximum concurrent requests. A fifth is reserved for components that act as the node. The others take turns by
    /// address; as many as are served may wait, for up to 15 s. Further requests get 429. Watches and upgrades have the
    /// same number of places again, and hold theirs only while they open.
    #[arg(long, default_value_t = 250)]
    max_requests_in_flight: usize,
    #[command(flatten)]
    log: LogFlags,
}

/// Rule for the choice between several servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LbMode {
    /// Requests take the servers in turn.
    #[default]
    #[value(name = "rr")]
    RoundRobin,
    /// All requests go to the first server in the order of the flag that is up.
    Priority,
}

/// The checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address for health, metrics and state.
    pub admin_addr: SocketAddr,
    /// Address of the plain proxy port.
    pub proxy_addr: SocketAddr,
    /// Address of the HTTPS proxy port.
    pub secure_addr: SocketAddr,
    /// Name of this Node.
    pub node: String,
    /// Namespace of ConfigMap `yurt-hub-cfg`.
    pub namespace: String,
    /// Name of the NodePool; empty for a node without one, `None` while it is unknown.
    pub pool: Option<String>,
    /// True if the name is that of the Node's label, because no flag names the pool.
    pub is_pool_of_label: bool,
    /// Cloud apiservers in order of preference; at least one.
    pub servers: Vec<Uri>,
    /// Choice between them.
    pub lb_mode: LbMode,
    /// Kubeconfig with CA and node certificate.
    pub kubeconfig: PathBuf,
    /// Working mode.
    pub mode: WorkingMode,
    /// Means of joining the cluster; `None` if the kubelet owns the certificate.
    pub join: Option<Join>,
    /// CA of client certificates, if it is not the cloud's.
    pub client_ca_file: Option<PathBuf>,
    /// Directory of the hub's state.
    pub root_dir: PathBuf,
    /// Directory of the durable copy.
    pub cache_dir: PathBuf,
    /// Address for the node's pods; `None` without a dummy interface.
    pub network: Option<NodeNetwork>,
    /// Address at which pods reach the proxy (written by the masterservice filter).
    pub hub_host: IpAddr,
    /// Coordinator of the pool, if used.
    pub coordinator: Option<Coordinator>,
    /// Relay between the pool's hubs, if used.
    pub relay: Option<Relay>,
    /// Maximum bytes of all copies of pool data.
    pub max_pool_bytes: usize,
    /// Maximum bytes of all other copies.
    pub max_cache_bytes: usize,
    /// Interval between samples that the pool compares with the cloud; zero disables them.
    pub verify_period: Duration,
    /// Kubeconfig of the forwarding identity.
    pub delegate_kubeconfig: Option<PathBuf>,
    /// Settings of the data filters.
    pub filters: FilterSettings,
    /// Rules for requests that act as the node.
    pub identity: NodeIdentity,
    /// Minimum duration of a watch without timeoutSeconds.
    pub min_request_timeout: Duration,
    /// Maximum concurrent requests.
    pub max_in_flight: usize,
    /// Log level.
    pub verbosity: u8,
    /// Names of the given flags that have no effect.
    pub without_effect: Vec<&'static str>,
}

/// Relay for other hubs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relay {
    /// Address to serve on; detected if `None`.
    pub address: Option<IpAddr>,
    /// Port.
    pub port: u16,
    /// Maximum bytes per second of all tunnels together.
    pub bytes_per_second: u64,
}

/// Connection to the coordinator and settings of its election.
#[derive(Clone, Debug)]
pub struct Coordinator {
    /// Base URL.
    pub server: Uri,
    /// CA of its certificate, if it is not the cloud's.
    pub ca_file: Option<PathBuf>,
    /// True if this hub is a candidate.
    pub candidate: bool,
    /// Time that candidates wait after the leader's last renewal.
    pub lease_duration: Duration,
    /// Time without a successful renewal after which a leader stops leading.
    pub renew_deadline: Duration,
    /// Interval between renewals, and between attempts of candidates.
    pub retry_period: Duration,
}

/// An invalid flag; the message names the flag and a valid value.
#[derive(Debug, thiserror::Error)]
#[error("--{flag}: {problem}")]
pub struct FlagError {
    flag: &'static str,
    problem: String,
}

fn bad(flag: &'static str, problem: impl Into<String>) -> FlagError {
    FlagError {
        flag,
        problem: problem.into(),
    }
}

// === impl Config ===

impl Config {
    /// Returns the hub's address as the filters use it.
    #[must_use]
    pub fn hub(&self) -> HubAddress {
        HubAddress {
            host: self.hub_host,
            secure_port: self.secure_addr.port(),
        }
    }

    /// Returns the name of the NodePool; empty while it is unknown, too.
    pub(crate) fn pool_name(&self) -> &str {
        self.pool.as_deref().unwrap_or_default()
    }
}

// === impl Flags ===

impl Flags {
    /// Checks everything that needs no access to the machine.
    ///
    /// # Errors
    /// [`FlagError`], naming the flag and the fix.
    pub fn check(self) -> Result<Config, FlagError> {
        self.fixed.check()?;
        self.check_names()?;
        let network = self.network()?;
        let servers = self.servers()?;
        let coordinator = self.coordinator()?;
        // The relay finds its peers, and verifies their membership, through the coordinator.
        let relay = self.relay()?.filter(|_| coordinator.is_some());
        self.check_limits()?;
        let hub_host = match self.enable_dummy_if {
            true => network.address,
            false => self.bind_proxy_address,
        };
        let own = vec![self.node_name.clone(), hub_host.to_string()];
        let mode = WorkingMode::parse(&self.working_mode, coordinator.is_some())?;
        let (kubeconfig, join) = self.joining.check(&self.root_dir)?;
        Ok(Config {
            relay,
            admin_addr: SocketAddr::new(self.bind_address, self.serve_port),
            proxy_addr: SocketAddr::new(self.bind_proxy_address, self.proxy_port),
            secure_addr: SocketAddr::new(self.bind_proxy_address, self.proxy_secure_port),
            servers,
            lb_mode: self.lb_mode,
            coordinator,
            network: self.enable_dummy_if.then_some(network),
            hub_host,
            node: self.node_name,
            namespace: self.namespace,
            is_pool_of_label: self.nodepool_name.is_empty(),
            pool: Some(self.nodepool_name).filter(|name| !name.is_empty()),
            kubeconfig,
            join,
            mode,
            client_ca_file: self.client_ca_file,
            root_dir: self.root_dir,
            cache_dir: self.disk_cache_path,
            max_pool_bytes: self.max_pool_bytes,
            max_cache_bytes: self.max_cache_bytes,
            verify_period: self.pool_data_verify_period.0,
            delegate_kubeconfig: self.delegate_kubeconfig,
            filters: self.filters.check(mode)?,
            identity: self.identity.check(own)?,
            min_request_timeout: self.min_request_timeout.0,
            max_in_flight: self.max_requests_in_flight.max(1),
            verbosity: self.log.verbosity,
            without_effect: self.without_effect.given,
        })
    }

    fn check_names(&self) -> Result<(), FlagError> {
        let node = &self.node_name;
        if node.is_empty() {
            return Err(bad("node-name", "must be the name of this Node"));
        }
        let lower = node.to_lowercase();
        if *node != lower && dns_subdomain_errors(&lower).is_empty() {
            let problem = format!("must be {lower:?}: the kubelet registers a host name in lower case");
            return Err(bad("node-name", problem));
        }
        for (flag, name, errors) in [
            ("node-name", node, dns_subdomain_errors(node)),
            ("namespace", &self.namespace, dns_label_errors(&self.namespace)),
            (
                "nodepool-name",
                &self.nodepool_name,
                label_value_errors(&self.nodepool_name),
            ),
        ] {
            if let Some(error) = errors.first() {
                return Err(bad(flag, format!("{name:?} {error}")));
            }
        }
        if self.bind_proxy_address.is_unspecified() {
            let problem =
                "must be one address of this node, 127.0.0.1 for example; pods reach the hub at --dummy-if-ip";
            return Err(bad("bind-proxy-address", problem));
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<(), FlagError> {
        for (flag, bytes) in [
            ("max-pool-bytes", self.max_pool_bytes),
            ("max-cache-bytes", self.max_cache_bytes),
        ] {
            if bytes < MAX_POOL_BYTES_LEAST {
                let problem = format!("must be at least {MAX_POOL_BYTES_LEAST}: recent history alone needs some");
                return Err(bad(flag, problem));
            }
        }
        Ok(())
    }

    /// Returns the address for pods, enabled or not, which `yurthub cleanup` removes.
    ///
    /// # Errors
    /// [`FlagError`], naming the flag and the fix.
    pub fn network(&self) -> Result<NodeNetwork, FlagError> {
        let address = self.dummy_if_ip.0.unwrap_or(match self.bind_proxy_address {
            IpAddr::V4(_) => IpAddr::from([169, 254, 2, 1]),
            IpAddr::V6(_) => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 2, 1]),
        });
        node_network::check_address(address).map_err(|problem| bad("dummy-if-ip", problem))?;
        if self.dummy_if_name.is_empty() || self.dummy_if_name.len() > 15 {
            return Err(bad("dummy-if-name", "must have 1 to 15 characters"));
        }
        Ok(NodeNetwork {
            interface: self.dummy_if_name.clone(),
            address,
            ports: [self.proxy_port, self.proxy_secure_port],
            accepts: self.enable_iptables,
        })
    }

    fn relay(&self) -> Result<Option<Relay>, FlagError> {
        if self.relay_bytes_per_second == 0 {
            return Err(bad(
                "relay-bytes-per-second",
                "must be above 0; use --enable-relay=false",
            ));
        }
        if self.relay_address.is_some_and(|address| address.is_unspecified()) {
            return Err(bad("relay-address", "must be an address that other nodes can dial"));
        }
        Ok(self.enable_relay.then_some(Relay {
            address: self.relay_address,
            port: self.relay_port,
            bytes_per_second: self.relay_bytes_per_second,
        }))
    }

    fn servers(&self) -> Result<Vec<Uri>, FlagError> {
        let parse = |text: &str| https_url("server-addr", text.trim());
        let servers: Vec<Uri> = self
            .server_addr
            .split(',')
            .filter(|s| !s.trim().is_empty())
            .map(parse)
            .collect::<Result<_, _>>()?;
        if servers.is_empty() {
            return Err(bad(
                "server-addr",
                "must name at least one cloud apiserver, https://host:port",
            ));
        }
        Ok(servers)
    }

    fn coordinator(&self) -> Result<Option<Coordinator>, FlagError> {
        match self.enable_coordinator {
            Some(true) => {}
            // Its other flags wait for it to be enabled again.
            Some(false) => return Ok(None),
            None => return self.check_no_coordinator().map(|()| None),
        }
        if self.nodepool_name.is_empty() {
            return Err(bad(
                "nodepool-name",
                "must name this node's NodePool when --enable-coordinator is set",
            ));
        }
        let coordinator = Coordinator {
            server: https_url("coordinator-server-addr", self.coordinator_server())?,
            ca_file: self.coordinator_ca_file.clone(),
            candidate: self.leader_elect,
            lease_duration: self.leader_elect_lease_duration.0,
            renew_deadline: self.leader_elect_renew_deadline.0,
            retry_period: self.leader_elect_retry_period.0,
        };
        coordinator
            .election("check")
            .validate()
            .map_err(|error| bad(flag_of(error), error.to_string()))?;
        Ok(Some(coordinator))
    }

    fn coordinator_server(&self) -> &str {
        match self.coordinator_server_addr.as_str() {
            "" => COORDINATOR_SERVER,
            given => given,
        }
    }

    /// Refuses flags that have an effect with --enable-coordinator only. A default value is accepted.
    fn check_no_coordinator(&self) -> Result<(), FlagError> {
        for (flag, is_set) in [
            (
                "coordinator-server-addr",
                self.coordinator_server() != COORDINATOR_SERVER,
            ),
            ("coordinator-ca-file", self.coordinator_ca_file.is_some()),
            ("relay-address", self.relay_address.is_some()),
        ] {
            if is_set {
                return Err(bad(
                    flag,
                    "has no use without --enable-coordinator; add that flag, or omit this one",
                ));
            }
        }
        Ok(())
    }
}

// === impl Config ===

impl Config {
    /// Flag that leads to the node's certificate and the cluster's CA.
    #[must_use]
    pub fn certificate_flag(&self) -> &'static str {
        if self.join.is_some() { "root-dir" } else { "kubeconfig" }
    }
}

// === impl Coordinator ===

impl Coordinator {
    /// Returns the election machine's configuration for this identity.
    #[must_use]
    pub fn election(&self, identity: &str) -> election::Config {
        election::Config {
            lease_duration: self.lease_duration,
            renew_deadline: self.renew_deadline,
            retry_period: self.retry_period,
            ..election::Config::new(identity)
        }
    }
}

/// Returns the flag of an invalid election setting.
fn flag_of(error: election::ConfigError) -> &'static str {
    match error {
        election::ConfigError::LeaseDuration => "leader-elect-lease-duration",
        election::ConfigError::RenewDeadline => "leader-elect-renew-deadline",
        election::ConfigError::RetryPeriod => "leader-elect-retry-period",
        election::ConfigError::Identity => "node-name",
    }
}

/// Parser of a path, relative to the working directory. Files of the hub name others by such a path.
fn absolute() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

fn https_url(flag: &'static str, text: &str) -> Result<Uri, FlagError> {
    let uri: Uri = text
        .parse()
        .map_err(|_| bad(flag, format!("{text:?} is not a URL; write https://host:port")))?;
    let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
    if uri.scheme_str() != Some("https") || uri.host().is_none() || !is_bare {
        return Err(bad(flag, format!("{text:?} must be written https://host:port")));
    }
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory as _;

    use super::*;

    fn check(args: &[&str]) -> Result<Config, String> {
        let base = ["yurthub", "--node-name=n1", "--server-addr=https://10.0.0.1:6443"];
        let flags = Flags::try_parse_from(base.iter().chain(args)).map_err(|error| error.to_string())?;
        flags.check().map_err(|error| error.to_string())
    }

    /// Files of the hub name others below these folders, and such a file's reader resolves a relative path there.
    #[test]
    fn folders_are_absolute() {
        let config = check(&["--root-dir=t/r", "--disk-cache-path=./c"]).expect("valid");
        let here = std::env::current_dir().unwrap();
        assert_eq!((config.root_dir, config.cache_dir), (here.join("t/r"), here.join("c")));
        let config = check(&["--root-dir=/var/../r"]).expect("valid");
        assert_eq!(config.root_dir, Path::new("/var/../r"));
    }

    #[test]
    fn go_style_booleans_are_understood() {
        let config = check(&["--enable-dummy-if=false", "--enable-coordinator", "--nodepool-name=p"]).expect("valid");
        assert!(config.network.is_none() && config.coordinator.is_some());
        assert_eq!(config.relay.map(|relay| relay.port), Some(10269));
        let config = check(&["--enable-relay=false", "--enable-coordinator", "--nodepool-name=p"]).expect("valid");
        assert_eq!(config.relay, None);
        let config = check(&["--enable-coordinator=false"]).expect("valid");
        assert_eq!(config.relay, None, "without a coordinator there are no peers");
        assert!(config.network.is_some() && config.coordinator.is_none());
    }

    #[test]
    fn unusable_flags_are_named() {
        let cases: [(&[&str], &str); 21] = [
            (&["--disabled-resource-filters=nosuch"], "masterservice"),
            (&["--namespace=a/b"], "--namespace"),
            (&["--server-addr=http://x:1"], "--server-addr"),
            (&["--enable-coordinator"], "--nodepool-name"),
            (
                &[
                    "--enable-coordinator",
                    "--nodepool-name=p",
                    "--leader-elect-lease-duration=1500ms",
                ],
                "whole number",
            ),
            (
                &["--working-mode=other"],
                "--working-mode: \"other\" must be edge or cloud",
            ),
            (&["--working-mode=local"], "use edge or cloud"),
            (
                &["--working-mode=cloud", "--enable-coordinator", "--nodepool-name=p"],
                "omit --enable-coordinator",
            ),
            (&["--dummy-if-ip=169.254.31.7"], "--dummy-if-ip"),
            (&["--dummy-if-ip=10.0.0.7"], "169.254.0.0/16"),
            (&["--relay-address=0.0.0.0"], "--relay-address"),
            (&["--relay-bytes-per-second=0"], "--enable-relay=false"),
            (&["--dummy-if-name=a-name-that-is-too-long"], "--dummy-if-name"),
            (&["--bind-proxy-address=0.0.0.0"], "--bind-proxy-address: must be"),
            (&["--bind-proxy-address=::", "--enable-dummy-if=false"], "127.0.0.1"),
            (&["--coordinator-server-addr=https://a:1"], "--enable-coordinator"),
            (&["--coordinator-ca-file=/none"], "--enable-coordinator"),
            (&["--relay-address=10.0.0.1"], "--enable-coordinator"),
            (&["--nodepool-name=a&limit=1"], "--nodepool-name"),
            (&["--server-addr=https://a:1/path"], "https://host:port"),
            (&["--server-addr=https://a:1?x"], "https://host:port"),
        ];
        for (args, expected) in cases {
            let error = check(args).expect_err("must be refused");
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn node_name_is_that_of_a_node() {
        let check = |name: &str| {
            let args = ["yurthub", "--server-addr=https://a:1", &format!("--node-name={name}")];
            let checked = Flags::try_parse_from(args).expect("flags").check();
            checked.map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(check("edge-1.shore"), Ok(()));
        for name in ["", "Edge-1", "N_1/../x", "a b"] {
            let error = check(name).expect_err("must be refused");
            assert!(error.contains("--node-name"), "{error}");
        }
        assert!(check("Edge-1").is_err_and(|error| error.contains("edge-1")), "the fix");
    }

    #[test]
    fn flags_of_a_coordinator_that_is_switched_off_or_at_their_defaults_have_no_effect() {
        let default = format!("--coordinator-server-addr={COORDINATOR_SERVER}");
        check(&[&default]).expect("valid");
        let other = "--coordinator-server-addr=https://10.0.0.5:10270";
        check(&[other, "--enable-coordinator=false"]).expect("valid");
        let error = check(&[other]).expect_err("somebody forgot --enable-coordinator");
        assert!(error.contains("--enable-coordinator"), "{error}");
    }

    #[test]
    fn flags_with_one_value_are_accepted_hidden_and_refuse_any_other() {
        let supported = [
            "--leader-elect-resource-lock=leases",
            "--leader-elect-resource-name=yurthub",
            "--leader-elect-resource-namespace=kube-system",
        ];
        check(&supported).expect("valid");
        check(&[]).expect("the defaults are valid");
        let help = Flags::command().render_long_help().to_string();
        for flag in supported {
            let (name, value) = flag.split_once('=').expect("name=value");
            assert!(!help.contains(name), "{name}");
            let error = check(&[&format!("{name}=other")]).expect_err("must be refused");
            let parts = [name, "\"other\"", value];
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }

    #[test]
    fn help_begins_with_the_program_and_explains_the_log() {
        let help = Flags::command().render_long_help().to_string();
        assert!(help.starts_with("YurtHub:") && help.contains("4 and 5 debug"), "{help}");
    }
}
