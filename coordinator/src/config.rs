//! The command line: every flag with its meaning and default, and the one-line error for a bad one.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory as _, FromArgMatches as _, Parser, ValueEnum, value_parser};
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::{GroupResource, ResourceKind, Space};
use yurt_pool_protocol::pool_scope;
use yurt_runtime::flags::{GoDuration, LogFlags, parse_go_bool};
use yurt_runtime::http::server;

use crate::fair_queue;

mod etcd;

pub use etcd::EtcdFlags;

/// The pool coordinator: one small apiserver per NodePool.
///
/// It serves the Kubernetes API for the data that the nodes of a pool share. That is a copy of the cloud's Services,
/// Endpoints and EndpointSlices, and own objects such as leases. The pool's leader feeds the copy with the cloud's
/// resourceVersions. Clients identify themselves by certificate: CN is the user, O the groups. Without certificate
/// flags it generates a CA and an admin kubeconfig below --data-dir.
#[derive(Clone, Debug, Parser)]
#[command(name = "yurt-coordinator", version, max_term_width = 110, after_help = EXAMPLE)]
pub struct Config {
    /// Authority over the served kinds. `pool`: pool data is a replica of the cloud, and writes to it are refused.
    /// `standalone`: every known kind belongs to this server, a small control plane for demos and tests.
    #[arg(long, value_enum, default_value_t = Profile::Pool)]
    pub profile: Profile,

    /// Folder for the store and, without certificate flags, the generated certificates. Created when missing.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/yurt-coordinator")]
    pub data_dir: PathBuf,

    /// Address to listen on. 0.0.0.0 and :: are all addresses of the node, of both families.
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,

    /// HTTPS port; 0 picks a free one and logs it.
    #[arg(long, value_name = "PORT", default_value_t = 10270)]
    pub secure_port: u16,

    /// PEM file with the authorities of client certificates, usually the cluster's CA. Default: the generated CA.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,

    /// PEM file with the serving certificate (and chain), reloaded when it changes. Default: a generated one.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,

    /// PEM file with the key of --tls-cert-file.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,

    /// PEM file with public keys (or certificates, or private keys) that verify service account tokens; may be given
    /// several times; read again every 10 s. Needs --service-account-issuer. Default: none, and bearer tokens are
    /// refused.
    #[arg(long, value_name = "FILE")]
    pub service_account_key_file: Vec<PathBuf>,

    /// Issuer of service account tokens; may be given several times: the first one signs, all are accepted.
    #[arg(long, value_name = "URL")]
    pub service_account_issuer: Vec<String>,

    /// PEM file with the private key that signs tokens for POST serviceaccounts/NAME/token. Needs
    /// --service-account-issuer. Default: no tokens are signed.
    #[arg(long, value_name = "FILE")]
    pub service_account_signing_key_file: Option<PathBuf>,

    /// Audiences that tokens for this server may name. Default: the first --service-account-issuer.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub api_audiences: Vec<String>,

    /// File or folder (*.yaml, *.yml, *.json) with Role, ClusterRole, RoleBinding and ClusterRoleBinding objects of
    /// rbac.authorization.k8s.io/v1; may be given several times; read again every 10 s. They grant the same rights as
    /// in a cluster, in addition to those of the profile. A faulty file ends the start; later it keeps the previous
    /// rules in force.
    #[arg(long, value_name = "PATH")]
    pub rbac_path: Vec<PathBuf>,

    /// File or folder (*.yaml, *.yml, *.json) with CustomResourceDefinition manifests of apiextensions.k8s.io/v1; may
    /// be given several times; read again every 10 s. Kinds are added, changed and removed without a restart; the
    /// stored objects of a removed kind return with it. A faulty file ends the start; later it keeps the previous kinds
    /// in force.
    #[arg(long, value_name = "PATH")]
    pub custom_resources_path: Vec<PathBuf>,

    /// Maximum number of kinds that --custom-resources-path may declare.
    #[arg(long, value_name = "N", default_value_t = CUSTOM_RESOURCES_MAX)]
    pub max_custom_resources: usize,

    /// Name of the NodePool, for messages. Default: none.
    #[arg(
        long = "nodepool-name",
        alias = "nodepool",
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub nodepool: String,

    /// Nodes that belong to the pool, and no others unless --members-from-leader is given: a comma-separated list, or
    /// @FILE with one name per line or comma, read again every 10 s. Default: none. The pool then has the members last
    /// fed by a leader; with an empty store every node is refused unless --trust-first-leader is given.
    #[arg(long, value_name = "LIST|@FILE", default_value = "", hide_default_value = true)]
    pub initial_members: String,

    /// Accept as members also the nodes that the pool's leader feeds, in addition to --initial-members: each leader may
    /// then add nodes of other pools. Default: members fed by a leader get no rights.
    #[arg(long, default_value = "false", value_parser = parse_go_bool, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub members_from_leader: bool,

    /// Until a leader has fed the members, every node with a certificate of the cluster may lead and feed them. The
    /// first one decides: start the pool's own nodes first. Without this and without --initial-members, a coordinator
    /// with an empty store refuses every node.
    #[arg(long, default_value = "false", value_parser = parse_go_bool, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub trust_first_leader: bool,

    /// etcd as the store instead of the embedded one.
    #[command(flatten)]
    pub etcd: EtcdFlags,

    /// Resources that are replicated from the cloud, as resource.group: services, endpoints, endpointslices and custom
    /// resources, no other resource of Kubernetes. Custom resources have to be declared in --custom-resources-path, and
    /// cannot change while the server runs. Further ones are added and removed with key pool_scope_resources of the
    /// cloud's ConfigMap kube-system/yurt-hub-cfg, which the pool's leader reads. Hubs copy only custom resources that
    /// this key lists.
    #[arg(
        long,
        value_name = "LIST",
        default_value = "services,endpoints,endpointslices.discovery.k8s.io"
    )]
    pub pool_scope_resources: PoolScope,

    /// Lifetime of an event after its last change, at least 1s.
    #[arg(long, value_name = "DURATION", default_value = "1h", allow_hyphen_values = true)]
    pub event_ttl: GoDuration,

    /// Lifetime of the lease of a node that left the pool, after its last observed change. Takes effect only once a
    /// leader has fed the members.
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    pub departed_lease_ttl: GoDuration,

    /// Minimum lifetime of a watch without timeoutSeconds; the actual one is random, up to twice as long.
    #[arg(long, value_name = "DURATION", default_value = "1800s")]
    pub min_request_timeout: GoDuration,

    /// File for the audit log: one JSON line per event (audit.k8s.io/v1, level Metadata), never with a body or a
    /// credential. Default: no audit log.
    #[arg(long, value_name = "FILE")]
    pub audit_log_path: Option<PathBuf>,

    /// Size in MB at which the audit log is renamed to FILE.1.
    #[arg(long, value_name = "MB", default_value_t = AUDIT_LOG_MEGABYTES)]
    pub audit_log_maxsize: NonZeroU64,

    /// Number of renamed audit logs to keep.
    #[arg(long, value_name = "N", default_value_t = AUDIT_LOG_BACKUPS)]
    pub audit_log_maxbackup: u32,

    /// Reads answered at a time; further ones wait. Leases, the feed and system:masters are exempt.
    #[arg(long, value_name = "N", default_value_t = nonzero(fair_queue::READS_IN_FLIGHT_MAX))]
    pub max_requests_inflight: NonZeroUsize,

    /// Writes answered at a time; further ones wait.
    #[arg(long, value_name = "N", default_value_t = nonzero(fair_queue::WRITES_IN_FLIGHT_MAX))]
    pub max_mutating_requests_inflight: NonZeroUsize,

    /// Reads, and as many writes, that may wait in a queue; further ones get 429 and Retry-After. Queues are served
    /// round robin by client; when full, the client with the longest queue loses a request.
    #[arg(long, value_name = "N", default_value_t = fair_queue::QUEUED_MAX)]
    pub max_queued_requests: usize,

    /// Longest wait of a request in its queue; then it gets 429 and Retry-After.
    #[arg(long, value_name = "DURATION", default_value = fair_queue::WAIT_MAX)]
    pub max_queue_wait: GoDuration,

    /// Largest body of a request in bytes, except those of the feed, at least 1024; larger ones get 413.
    #[arg(long, value_name = "BYTES", default_value_t = BODY_BYTES_MAX)]
    pub max_request_body_bytes: usize,

    /// Largest object as stored, in bytes, at least 1024; larger ones get 413. The default is etcd's own limit.
    #[arg(long, value_name = "BYTES", default_value_t = OBJECT_BYTES_MAX)]
    pub max_stored_object_bytes: usize,

    /// Bytes of the pool's data, as the cloud sent it, that the leader may feed, at least 65536. A snapshot or events
    /// above it get 413, and the data already held is served. As many bytes again may be in flight.
    #[arg(long, value_name = "BYTES", default_value_t = POOL_BYTES_MAX)]
    pub max_pool_bytes: usize,

    /// Bytes of the coordinator's own objects. Above it creates and growing writes get 403, while heartbeats and
    /// elections go on. The events of one node may take a sixteenth of it in --event-ttl, those that nodes write into
    /// one namespace an eighth. Default: 64 MiB in profile pool, no limit in profile standalone.
    #[arg(long, value_name = "BYTES")]
    pub max_own_bytes: Option<usize>,

    /// Largest header block of a request in bytes, as HTTP/2 counts it; larger ones get 431.
    #[arg(long, value_name = "BYTES", default_value_t = server::MAX_HEADER_BYTES, value_parser = value_parser!(u32).range(8192..=1048576))]
    pub max_header_bytes: u32,

    /// Connections at a time of clients with a good certificate or token; the limit of open files may allow fewer.
    /// Further ones get 429. One client may use a sixteenth of the free ones, or four. In profile pool, clients that
    /// are neither members nor administrators have a quarter in all, and a few are reserved for the leader.
    #[arg(long, value_name = "N", default_value_t = nonzero(server::MAX_CONNECTIONS))]
    pub max_connections: NonZeroUsize,

    /// Connections at a time of all other clients, unfinished handshakes included, and as many again for those on this
    /// machine. Above it the oldest connection is closed.
    #[arg(long, value_name = "N", default_value_t = nonzero(server::MAX_STRANGERS))]
    pub max_unauthenticated_connections: NonZeroUsize,

    /// The same limit for one address, or one IPv6 network of 64 bits, of another machine.
    #[arg(long, value_name = "N", default_value_t = nonzero(server::MAX_STRANGERS_PER_ADDRESS))]
    pub max_unauthenticated_connections_per_address: NonZeroUsize,

    /// Requests and watches at a time over one HTTP/2 connection.
    #[arg(long, value_name = "N", default_value_t = nonzero32(server::MAX_STREAMS))]
    pub http2_max_streams_per_connection: NonZeroU32,

    /// Log.
    #[command(flatten)]
    pub log: LogFlags,
}

/// Largest body of a request, as in kube-apiserver.
pub const BODY_BYTES_MAX: usize = 3 << 20;

/// Largest stored object: etcd's limit for a whole request.
pub const OBJECT_BYTES_MAX: usize = 3 << 19;

/// Minimum of the limits of a body and of an object, bytes: a heartbeat fits.
const OBJECT_BYTES_LEAST: usize = 1 << 10;

/// Minimum of the limit of the pool's data, bytes: the Services of a small cluster fit.
const POOL_BYTES_LEAST: usize = 64 << 10;

/// Minimum of `--event-ttl`: the search for expired events counts in seconds.
const EVENT_TTL_LEAST: Duration = Duration::from_secs(1);

/// Bytes of the pool's data, and of own objects in a pool.
pub const POOL_BYTES_MAX: usize = 64 << 20;

/// Maximum number of kinds that files may declare. Each costs a few KB, plus its schema, whose size its author chooses.
pub const CUSTOM_RESOURCES_MAX: usize = 200;

/// Size of an audit log, for an edge node's disk.
const AUDIT_LOG_MEGABYTES: NonZeroU64 = NonZeroU64::new(20).expect("a default limit must not be zero");
/// Number of older audit logs that are kept.
const AUDIT_LOG_BACKUPS: u32 = 5;

const fn nonzero(value: usize) -> NonZeroUsize {
    NonZeroUsize::new(value).expect("a default limit must not be zero")
}

const fn nonzero32(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).expect("a default limit must not be zero")
}

/// Authority over the kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// Pool kinds are replicas of the cloud; leases, events, namespaces and configmaps are the coordinator's.
    Pool,
    /// Every known kind is the coordinator's.
    Standalone,
}

/// The resources of `--pool-scope-resources`, checked as far as they are built in.
#[derive(Clone, Debug)]
pub struct PoolScope {
    kinds: Vec<&'static ResourceKind>,
    /// `resource.group` of the resources that have to be declared.
    custom: Vec<String>,
}

/// A command line that is rejected, or asks for help.
#[derive(Debug)]
pub enum FlagError {
    /// `--help` or `--version`: print and succeed.
    Help(String),
    /// One line: the flag and its fault.
    Bad(String),
}

/// The end of `--help`.
const EXAMPLE: &str = "To try it:
  yurt-coordinator --profile standalone --data-dir ./coordinator-data --bind-address 127.0.0.1
  kubectl --kubeconfig ./coordinator-data/admin.kubeconfig get namespaces";

// === impl Profile ===

impl Profile {
    /// Space of the RVs of own objects. A standalone control plane counts as a cloud does, because hubs may use it as
    /// one.
    #[must_use]
    pub fn space(self) -> Space {
        match self {
            Self::Pool => Space::Own,
            Self::Standalone => Space::Cloud,
        }
    }
}

// === impl Config ===

impl Config {
    /// Parses the command line (the first item is the program's name).
    ///
    /// # Errors
    /// [`FlagError`], ready to be printed.
    pub fn parse(args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Self, FlagError> {
        let matches = Self::command()
            .try_get_matches_from(args)
            .map_err(|error| FlagError::of(&error))?;
        let config = Self::from_arg_matches(&matches).map_err(|error| FlagError::of(&error))?;
        config.check_members().map_err(FlagError::Bad)?;
        config.check_limits().map_err(FlagError::Bad)?;
        config.etcd.check().map_err(FlagError::Bad)?;
        Ok(config)
    }

    /// Rejects combinations of flags that leave the source of the members ambiguous.
    fn check_members(&self) -> Result<(), String> {
        let has_initial = !self.initial_members.trim().is_empty();
        if self.trust_first_leader && has_initial {
            return Err(
                "--trust-first-leader cannot be used with --initial-members, which name the trusted nodes".to_owned(),
            );
        }
        if self.members_from_leader && !has_initial {
            return Err(
                "--members-from-leader needs --initial-members: without it members fed by a leader count anyway"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Rejects limits with which the server could serve nothing.
    fn check_limits(&self) -> Result<(), String> {
        for (flag, bytes, least) in [
            (
                "max-request-body-bytes",
                self.max_request_body_bytes,
                OBJECT_BYTES_LEAST,
            ),
            (
                "max-stored-object-bytes",
                self.max_stored_object_bytes,
                OBJECT_BYTES_LEAST,
            ),
            ("max-pool-bytes", self.max_pool_bytes, POOL_BYTES_LEAST),
        ] {
            if bytes < least {
                return Err(format!("--{flag}: {bytes} is too small; it must be at least {least}"));
            }
        }
        if self.event_ttl.0 < EVENT_TTL_LEAST {
            return Err(
                "--event-ttl: less than 1s deletes events at once; to keep them for long, write 8760h for example"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Address and port to listen on.
    #[must_use]
    pub fn listen_address(&self) -> SocketAddr {
        SocketAddr::new(self.bind_address, self.secure_port)
    }

    /// Limit of own bytes; `None` for no limit.
    #[must_use]
    pub fn own_bytes_max(&self) -> Option<usize> {
        let default = (self.profile == Profile::Pool).then_some(POOL_BYTES_MAX);
        self.max_own_bytes.or(default)
    }

    /// Built-in kinds that are pool-scope; none in profile standalone.
    #[must_use]
    pub fn pool_kinds(&self) -> &[&'static ResourceKind] {
        match self.profile {
            Profile::Pool => &self.pool_scope_resources.kinds,
            Profile::Standalone => &[],
        }
    }

    /// Names of custom resources that are pool-scope; none in profile standalone.
    #[must_use]
    pub fn pool_custom(&self) -> &[String] {
        match self.profile {
            Profile::Pool => &self.pool_scope_resources.custom,
            Profile::Standalone => &[],
        }
    }
}

// === impl PoolScope ===

impl std::str::FromStr for PoolScope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut seen = BTreeSet::new();
        let (mut kinds, mut custom) = (Vec::new(), Vec::new());
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let resource = GroupResource::parse(name);
            let kind = find_kind(&resource.group, &resource.resource);
            if kind.is_none() && !resource.group.contains('.') {
                return Err(format!(
                    "unknown resource {name}; write resource.group, as in endpointslices.discovery.k8s.io"
                ));
            }
            if let Some(why) = pool_scope::why_not(&resource) {
                return Err(format!("{name} cannot be pool-scope: {why}"));
            }
            if !seen.insert(name) {
                continue;
            }
            match kind {
                Some(kind) => kinds.push(kind),
                None => custom.push(name.to_owned()),
            }
        }
        Ok(Self { kinds, custom })
    }
}

// === impl FlagError ===

impl FlagError {
    fn of(error: &clap::Error) -> Self {
        let text = error.render().to_string();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Self::Help(text),
            _ => Self::Bad(one_line(&text)),
        }
    }
}

/// Shortens clap's message to its first part: clap adds usage on many lines, a log collector must get one.
fn one_line(text: &str) -> String {
    let relevant = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:"));
    let parts: Vec<&str> = relevant
        .filter(|line| !line.is_empty() && !line.starts_with("For more"))
        .collect();
    let joined = parts.join(" ");
    let message = joined.strip_prefix("error: ").unwrap_or(&joined);
    format!("{message}; --help lists all flags")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bad(args: &[&str]) -> String {
        let args = std::iter::once("yurt-coordinator").chain(args.iter().copied());
        match Config::parse(args) {
            Err(FlagError::Bad(line)) => line,
            other => panic!("must be refused: {other:?}"),
        }
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let config = Config::parse(["yurt-coordinator"]).unwrap();
        assert_eq!(config.profile, Profile::Pool);
        assert_eq!(config.listen_address().to_string(), "0.0.0.0:10270");
        let names: Vec<_> = config
            .pool_kinds()
            .iter()
            .map(|kind| kind.group_resource().to_string())
            .collect();
        assert_eq!(names, ["services", "endpoints", "endpointslices.discovery.k8s.io"]);
        assert_eq!(config.min_request_timeout.0.as_secs(), 1800);
    }

    #[test]
    fn every_bad_flag_is_one_line_that_names_it() {
        for (args, part) in [
            (vec!["--secure-port", "x"], "--secure-port"),
            (vec!["--bind-address", "here"], "--bind-address"),
            (vec!["--profile", "cloud"], "--profile"),
            (vec!["--nonsense"], "--nonsense"),
            (vec!["--tls-cert-file", "f"], "--tls-private-key-file"),
            (vec!["--min-request-timeout", "5"], "--min-request-timeout"),
            (
                vec!["--etcd-servers", "http://127.0.0.1:2379", "--etcd-certfile", "f"],
                "--etcd-keyfile",
            ),
            (
                vec!["--pool-scope-resources", "services,secrets"],
                "secrets cannot be pool-scope",
            ),
            (
                vec!["--pool-scope-resources", "leases.coordination.k8s.io"],
                "leases belong to the coordinator",
            ),
            (
                vec!["--pool-scope-resources", "services,pods"],
                "pods cannot be pool-scope",
            ),
            (vec!["--pool-scope-resources", "gadgets"], "unknown resource gadgets"),
            (vec!["--max-custom-resources", "many"], "--max-custom-resources"),
            (
                vec!["--trust-first-leader", "--initial-members", "n1"],
                "--trust-first-leader cannot be used with --initial-members",
            ),
            (vec!["--members-from-leader"], "needs --initial-members"),
            (vec!["--etcd-cafile", "/ca"], "--etcd-servers"),
            (
                vec!["--etcd-servers", "http://127.0.0.1:1,HTTPS://127.0.0.1:2"],
                "--etcd-cafile: HTTPS://127.0.0.1:2 of --etcd-servers needs",
            ),
            (vec!["--etcd-certfile", "c", "--etcd-keyfile", "k"], "--etcd-servers"),
            (vec!["--etcd-prefix", "x"], "--etcd-servers"),
            (vec!["--etcd-compaction-interval", "5m"], "--etcd-servers"),
            (vec!["--etcd-max-request-bytes", "9"], "--etcd-servers"),
            (vec!["--max-pool-bytes", "64"], "--max-pool-bytes"),
            (vec!["--max-request-body-bytes", "0"], "--max-request-body-bytes"),
            (vec!["--max-stored-object-bytes", "0"], "--max-stored-object-bytes"),
            (
                vec!["--event-ttl=0"],
                "--event-ttl: less than 1s deletes events at once",
            ),
            (
                vec!["--event-ttl=500ms"],
                "--event-ttl: less than 1s deletes events at once",
            ),
            (vec!["--event-ttl", "-1s"], "--event-ttl"),
        ] {
            let line = bad(&args);
            assert!(line.contains(part) && !line.contains('\n'), "{args:?}: {line}");
        }
    }

    #[test]
    fn help_names_every_flag_with_its_default() {
        let Err(FlagError::Help(help)) = Config::parse(["yurt-coordinator", "--help"]) else {
            panic!("help")
        };
        for part in [
            "--data-dir",
            "/var/lib/yurt-coordinator",
            "10270",
            "--initial-members",
            "1800s",
            "--etcd-servers",
        ] {
            assert!(help.contains(part), "{part} in {help}");
        }
    }
}
