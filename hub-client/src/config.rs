//! Command-line flags, by upstream's names and defaults, and the checked configuration made of them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser};
use http::Uri;
use yurt_runtime::flags::{GoDuration, parse_go_bool};

use crate::pool::election::machine;

mod identity;

pub use identity::{NodeIdentity, Proof};

/// Least value of `--max-pool-bytes`.
const MAX_POOL_BYTES_LEAST: usize = 1 << 20;

/// YurtHub: the node's door to the cloud and to its NodePool's coordinator.
///
/// Point kubelet and kube-proxy at https://127.0.0.1:10268, with certificate-authority pki/yurthub-ca.crt and tokenFile
/// kubelet.token, both below --root-dir, or at http://127.0.0.1:10261, where root's connections act as the node. Services, EndpointSlices and Endpoints are answered
/// from this node's own copy, which one hub of the pool fetches from the cloud for all; everything else is passed on.
/// Look at http://127.0.0.1:10267/debug/state.json to see who leads and what is stale.
#[derive(Clone, Debug, Parser)]
#[command(name = "yurthub", version, max_term_width = 120)]
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
    /// Plain HTTP port for clients on this node. Whoever takes it while the hub is away is taken for the hub: let systemd hold
    /// the proxy's ports (LISTEN_FDS; sockets are found by their address), or use --proxy-secure-port.
    #[arg(long, default_value_t = 10261)]
    proxy_port: u16,
    /// HTTPS port for pods and for components of the node. Serves pki/yurthub-server-current.pem under --root-dir if it is there,
    /// else a certificate of the hub's own CA, which is kept as pki/yurthub-ca.crt.
    #[arg(long, default_value_t = 10268)]
    proxy_secure_port: u16,
    /// Name of this Node.
    #[arg(long, default_value = "")]
    node_name: String,
    /// Name of this node's NodePool (label apps.openyurt.io/nodepool on Nodes).
    #[arg(long, default_value = "")]
    nodepool_name: String,
    /// Cloud apiservers, https://host:port, separated by commas; the first that answers is used.
    #[arg(long, default_value = "")]
    server_addr: String,
    /// Where CA and node certificate come from; only kubeletcertificate (read from --kubeconfig) is supported.
    #[arg(long, default_value = "token")]
    bootstrap_mode: String,
    /// With --bootstrap-mode=kubeletcertificate: kubeconfig with the cluster CA and the node's client certificate.
    #[arg(long, default_value = "/etc/kubernetes/kubelet.conf")]
    kubeconfig: PathBuf,
    /// CA of client certificates, at the HTTPS port and between the relays of a pool, where it is not the CA of the apiservers:
    /// the apiserver's --client-ca-file. Relays prove themselves with their node's client certificate [default: the CA in
    /// --kubeconfig].
    #[arg(long)]
    client_ca_file: Option<PathBuf>,
    /// Folder of the hub's own state.
    #[arg(long, default_value = "/var/lib/yurthub")]
    root_dir: PathBuf,
    /// Folder of the durable copy of shared data.
    #[arg(long, default_value = "/etc/kubernetes/cache/")]
    disk_cache_path: PathBuf,
    /// Create a dummy interface with --dummy-if-ip and serve the proxy there too.
    #[arg(long, default_value = "true", value_parser = parse_go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    enable_dummy_if: bool,
    /// Address of the dummy interface [default: 169.254.2.1, fd00::2:1 with an IPv6 --bind-proxy-address].
    #[arg(long)]
    dummy_if_ip: Option<IpAddr>,
    /// Name of the dummy interface, at most 15 characters.
    #[arg(long, default_value = "yurthub-dummy0")]
    dummy_if_name: String,
    /// Share pool data and heartbeats through the pool's coordinator.
    #[arg(long, default_value = "false", value_parser = parse_go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    enable_coordinator: bool,
    /// The coordinator, https://host:port. Give an address that works without kube-proxy.
    #[arg(long, default_value = "https://yurt-coordinator-apiserver:443")]
    coordinator_server_addr: String,
    /// CA of the coordinator's certificate, when it is not the cloud's.
    #[arg(long)]
    coordinator_ca_file: Option<PathBuf>,
    /// Kubeconfig of a non-node identity (group openyurt:yurt-coordinator) that forwards heartbeats of cut-off nodes to
    /// the cloud; without it this hub can lead but does not forward.
    #[arg(long)]
    delegate_kubeconfig: Option<PathBuf>,
    /// With --enable-coordinator: while this node is cut off from the cloud, send its heartbeats and NodeStatus through the
    /// hub of another node of the pool; offer the same to others. Tunnels lead to --server-addr only, are encrypted from end
    /// to end, and open to members of the pool only. Off, the leader speaks for cut-off nodes.
    #[arg(long, default_value = "true", value_parser = parse_go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    enable_relay: bool,
    /// Address of the relay port, under which other nodes reach this one [default: the node's address on its way to the
    /// coordinator, else to the cloud].
    #[arg(long)]
    relay_address: Option<IpAddr>,
    /// Port of the relay.
    #[arg(long, default_value_t = 10269)]
    relay_port: u16,
    /// Bytes per second that all tunnels of the relay may take together.
    #[arg(long, default_value_t = 131_072)]
    relay_bytes_per_second: u64,
    /// With --enable-coordinator: how often the pool compares a sample of what its coordinator feeds with the cloud: one object
    /// or one small page per period, by the hubs in turn. A hub that finds a forgery follows the cloud. 0: never.
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    pool_data_verify_period: GoDuration,
    /// Bytes that all copies of pool data may have together. A hub keeps what it has instead of taking more, and says so
    /// (/debug/state.json, troubles). While a list comes its collection is held twice.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    max_pool_bytes: usize,
    /// Take part in the election of the pool's leader.
    #[arg(long, default_value = "true", value_parser = parse_go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    leader_elect: bool,
    /// How long others wait after a leader's last renewal; whole seconds, 60s at the most.
    #[arg(long, default_value = "15s")]
    leader_elect_lease_duration: GoDuration,
    /// A leader that could not renew for this long stops leading.
    #[arg(long, default_value = "10s")]
    leader_elect_renew_deadline: GoDuration,
    /// Time between renewals, and between tries of candidates.
    #[arg(long, default_value = "2s")]
    leader_elect_retry_period: GoDuration,
    /// Only leases is supported.
    #[arg(long, default_value = "leases")]
    leader_elect_resource_lock: String,
    /// Name of the election Lease.
    #[arg(long, default_value = "yurthub")]
    leader_elect_resource_name: String,
    /// Namespace of the election Lease.
    #[arg(long, default_value = "kube-system")]
    leader_elect_resource_namespace: String,
    #[command(flatten)]
    identity: identity::IdentityFlags,
    /// Shortest time a watch without timeoutSeconds lasts; the longest is twice that.
    #[arg(long, default_value = "1800s")]
    min_request_timeout: GoDuration,
    /// Requests served at a time. A fifth is kept for components that act as the node; the others take turns by address and wait
    /// for up to 15 s, as many as are served; above that the answer is 429. Watches and upgrades have as many places again, and
    /// hold theirs only while they open.
    #[arg(long, default_value_t = 250)]
    max_requests_in_flight: usize,
    /// More log: 0 info, 1 debug, 2 trace.
    #[arg(short = 'v', long = "v", default_value_t = 0)]
    verbosity: u8,
}

/// The checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Health, metrics, state.
    pub admin_addr: SocketAddr,
    /// Plain proxy port.
    pub proxy_addr: SocketAddr,
    /// HTTPS proxy port.
    pub secure_addr: SocketAddr,
    /// Name of this Node.
    pub node: String,
    /// Name of the NodePool; may be empty without a coordinator.
    pub pool: String,
    /// Cloud apiservers in order of preference; at least one.
    pub servers: Vec<Uri>,
    /// Kubeconfig with CA and node certificate.
    pub kubeconfig: PathBuf,
    /// CA of client certificates, when it is not the cloud's.
    pub client_ca_file: Option<PathBuf>,
    /// Hub state.
    pub root_dir: PathBuf,
    /// Durable copy.
    pub cache_dir: PathBuf,
    /// Dummy interface: name and address.
    pub dummy: Option<(String, IpAddr)>,
    /// Where pods find the proxy (written by the masterservice filter).
    pub hub_host: IpAddr,
    /// The pool's coordinator, if used.
    pub coordinator: Option<Coordinator>,
    /// Relay between the pool's hubs, if used.
    pub relay: Option<Relay>,
    /// See the flag.
    pub max_pool_bytes: usize,
    /// Time between two samples that the pool compares with the cloud; zero: none are.
    pub verify_period: Duration,
    /// Forwarding identity.
    pub delegate_kubeconfig: Option<PathBuf>,
    /// Which requests act as the node.
    pub identity: NodeIdentity,
    /// See the flag.
    pub min_request_timeout: Duration,
    /// See the flag.
    pub max_in_flight: usize,
    /// Log level.
    pub verbosity: u8,
}

/// How this hub relays for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relay {
    /// Address to serve on; found out when `None`.
    pub address: Option<IpAddr>,
    /// Port.
    pub port: u16,
    /// Bytes per second of all tunnels together.
    pub bytes_per_second: u64,
}

/// How to reach the coordinator and take part in its election.
#[derive(Clone, Debug)]
pub struct Coordinator {
    /// Base URL.
    pub server: Uri,
    /// CA, when it is not the cloud's.
    pub ca_file: Option<PathBuf>,
    /// Whether this hub is a candidate.
    pub candidate: bool,
    /// Timings of the election.
    pub lease_duration: Duration,
    /// See [`Coordinator::lease_duration`].
    pub renew_deadline: Duration,
    /// See [`Coordinator::lease_duration`].
    pub retry_period: Duration,
    /// Namespace and name of the election lease.
    pub lease: (String, String),
}

/// A flag that cannot be used: which, and what to write instead.
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

// === impl Flags ===

impl Flags {
    /// Checks everything that can be checked without touching the machine.
    ///
    /// # Errors
    /// [`FlagError`], naming the flag and the fix.
    pub fn check(self) -> Result<Config, FlagError> {
        if self.node_name.is_empty() {
            return Err(bad("node-name", "must be the name of this Node"));
        }
        if self.bootstrap_mode != "kubeletcertificate" {
            let problem = format!(
                "{:?} is not supported; use kubeletcertificate with --kubeconfig",
                self.bootstrap_mode
            );
            return Err(bad("bootstrap-mode", problem));
        }
        let dummy_ip = self.dummy_if_ip.unwrap_or(match self.bind_proxy_address {
            IpAddr::V4(_) => IpAddr::from([169, 254, 2, 1]),
            IpAddr::V6(_) => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 2, 1]),
        });
        if self.dummy_if_name.is_empty() || self.dummy_if_name.len() > 15 {
            return Err(bad("dummy-if-name", "must have 1 to 15 characters"));
        }
        let servers = self.servers()?;
        let coordinator = self.coordinator()?;
        // Peers are found, and known to be members, through the coordinator.
        let relay = (self.enable_relay && coordinator.is_some()).then_some(Relay {
            address: self.relay_address,
            port: self.relay_port,
            bytes_per_second: self.relay_bytes_per_second,
        });
        if self.relay_bytes_per_second == 0 {
            return Err(bad(
                "relay-bytes-per-second",
                "must be above 0; use --enable-relay=false",
            ));
        }
        if self.max_pool_bytes < MAX_POOL_BYTES_LEAST {
            let problem = format!("must be at least {MAX_POOL_BYTES_LEAST}: recent history alone takes some");
            return Err(bad("max-pool-bytes", problem));
        }
        if self.relay_address.is_some_and(|address| address.is_unspecified()) {
            return Err(bad("relay-address", "must be an address that other nodes can dial"));
        }
        let hub_host = if self.enable_dummy_if {
            dummy_ip
        } else {
            self.bind_proxy_address
        };
        let own = vec![self.node_name.clone(), hub_host.to_string()];
        Ok(Config {
            relay,
            admin_addr: SocketAddr::new(self.bind_address, self.serve_port),
            proxy_addr: SocketAddr::new(self.bind_proxy_address, self.proxy_port),
            secure_addr: SocketAddr::new(self.bind_proxy_address, self.proxy_secure_port),
            servers,
            coordinator,
            dummy: self.enable_dummy_if.then(|| (self.dummy_if_name.clone(), dummy_ip)),
            hub_host,
            node: self.node_name,
            pool: self.nodepool_name,
            kubeconfig: self.kubeconfig,
            client_ca_file: self.client_ca_file,
            root_dir: self.root_dir,
            cache_dir: self.disk_cache_path,
            max_pool_bytes: self.max_pool_bytes,
            verify_period: self.pool_data_verify_period.0,
            delegate_kubeconfig: self.delegate_kubeconfig,
            identity: self.identity.check(own)?,
            min_request_timeout: self.min_request_timeout.0,
            max_in_flight: self.max_requests_in_flight.max(1),
            verbosity: self.verbosity,
        })
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
        if !self.enable_coordinator {
            return Ok(None);
        }
        if self.nodepool_name.is_empty() {
            return Err(bad(
                "nodepool-name",
                "must name this node's NodePool when --enable-coordinator is set",
            ));
        }
        if self.leader_elect_resource_lock != "leases" {
            return Err(bad("leader-elect-resource-lock", "only leases is supported"));
        }
        let coordinator = Coordinator {
            server: https_url("coordinator-server-addr", &self.coordinator_server_addr)?,
            ca_file: self.coordinator_ca_file.clone(),
            candidate: self.leader_elect,
            lease_duration: self.leader_elect_lease_duration.0,
            renew_deadline: self.leader_elect_renew_deadline.0,
            retry_period: self.leader_elect_retry_period.0,
            lease: (
                self.leader_elect_resource_namespace.clone(),
                self.leader_elect_resource_name.clone(),
            ),
        };
        coordinator
            .election("check")
            .validate()
            .map_err(|error| bad(flag_of(error), error.to_string()))?;
        Ok(Some(coordinator))
    }
}

// === impl Coordinator ===

impl Coordinator {
    /// The election machine's configuration for this identity.
    #[must_use]
    pub fn election(&self, identity: &str) -> machine::Config {
        machine::Config {
            lease_duration: self.lease_duration,
            renew_deadline: self.renew_deadline,
            retry_period: self.retry_period,
            ..machine::Config::new(identity)
        }
    }

    /// Path of the election lease.
    #[must_use]
    pub fn lease_path(&self) -> String {
        let (namespace, name) = &self.lease;
        format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}")
    }
}

/// The flag behind an election setting that cannot be used.
fn flag_of(error: machine::ConfigError) -> &'static str {
    match error {
        machine::ConfigError::LeaseDuration => "leader-elect-lease-duration",
        machine::ConfigError::RenewDeadline => "leader-elect-renew-deadline",
        machine::ConfigError::RetryPeriod => "leader-elect-retry-period",
        machine::ConfigError::Identity => "node-name",
    }
}

fn https_url(flag: &'static str, text: &str) -> Result<Uri, FlagError> {
    let uri: Uri = text
        .parse()
        .map_err(|_| bad(flag, format!("{text:?} is not a URL; write https://host:port")))?;
    if uri.scheme_str() != Some("https") || uri.host().is_none() {
        return Err(bad(flag, format!("{text:?} must be written https://host:port")));
    }
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(args: &[&str]) -> Result<Config, String> {
        let base = [
            "yurthub",
            "--node-name=n1",
            "--server-addr=https://10.0.0.1:6443",
            "--bootstrap-mode=kubeletcertificate",
        ];
        let flags = Flags::try_parse_from(base.iter().chain(args)).map_err(|error| error.to_string())?;
        flags.check().map_err(|error| error.to_string())
    }

    #[test]
    fn go_style_booleans_are_understood() {
        let config = check(&["--enable-dummy-if=false", "--enable-coordinator", "--nodepool-name=p"]).expect("valid");
        assert!(config.dummy.is_none() && config.coordinator.is_some());
        assert_eq!(config.relay.map(|relay| relay.port), Some(10269));
        let config = check(&["--enable-relay=false", "--enable-coordinator", "--nodepool-name=p"]).expect("valid");
        assert_eq!(config.relay, None);
        let config = check(&["--enable-coordinator=false"]).expect("valid");
        assert_eq!(config.relay, None, "without a coordinator there are no peers");
        assert!(config.dummy.is_some() && config.coordinator.is_none());
    }

    #[test]
    fn unusable_flags_are_named() {
        let cases: [(&[&str], &str); 6] = [
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
            (&["--relay-address=0.0.0.0"], "--relay-address"),
            (&["--relay-bytes-per-second=0"], "--enable-relay=false"),
            (&["--dummy-if-name=a-name-that-is-too-long"], "--dummy-if-name"),
        ];
        for (args, expected) in cases {
            // The last of a repeated flag does not win in clap: drop the base value first.
            let args: Vec<&str> = args.to_vec();
            let result = if args[0].starts_with("--server-addr") {
                Flags::try_parse_from([
                    "yurthub",
                    "--node-name=n",
                    "--bootstrap-mode=kubeletcertificate",
                    args[0],
                ])
                .map_err(|error| error.to_string())
                .and_then(|flags| flags.check().map_err(|error| error.to_string()))
            } else {
                check(&args)
            };
            let error = result.expect_err("must be refused");
            assert!(error.contains(expected), "{error}");
        }
    }
}
