//! YurtHub: the node's door to the cloud and to its NodePool, the holder of the node's replicas, a candidate for leader.
//!
//! Reading order: [`config`] → [`proxy`] (a request's way) → [`replicas`] (where the data comes from) → [`filter`] (what
//! a local client may see of it) → [`pool`] (who leads, the feed, heartbeats) → [`upstream`] (connections). All wiring
//! is here, in [`Hub::start`].

pub mod config;
pub mod dummy;
pub mod filter;
pub mod metrics;
pub mod pool;
pub mod preflight;
pub mod proxy;
pub mod random;
pub mod replicas;
mod report;
pub mod upstream;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use yurt_runtime::http::server::{BindError, Server, Serving, handler};
use yurt_runtime::pki::{CertificateAuthority, PkiError};
use yurt_runtime::tls::{PemIdentity, ReloadingServerTls, ServerTls, TlsError};
use yurt_runtime::{Clock, Readiness, TaskGroup};
use yurt_storage::StorageError;
use yurt_storage::embedded::replicas::ReplicaStore;
use yurt_storage::embedded::{OpenError, open_database};

use config::Config;
use metrics::Metrics;
use pool::election::driver::{Driver, ElectionView, Signals};
use pool::heartbeat::own::{self, OwnHeartbeat};
use pool::leader::Leader;
use pool::lease_client::LeaseClient;
use pool::probe::{self, CloudReach, CoordinatorReach};
use preflight::PreflightError;
use proxy::Proxy;
use proxy::authorize::Authorizer;
use proxy::caller::Callers;
use proxy::local::{Local, NodeFacts};
use proxy::pass_through::PassThrough;
use replicas::follow::Follower;
use replicas::source::{CoordinatorState, Source};
use replicas::steer::Steering;
use replicas::{PoolData, members};
use upstream::{CoordinatorClient, UpstreamError, Upstreams};

/// The replicas' changes are committed this often; a crash costs no more than asking for them again.
const PERSIST_EVERY: Duration = Duration::from_secs(5);
/// Clients get this long to finish at a stop.
const DRAIN: Duration = Duration::from_millis(500);
/// Giving the lease back may take this long at a stop.
const RELEASE: Duration = Duration::from_secs(4);
/// Everything else may take this long at a stop.
const STOP: Duration = Duration::from_secs(2);
/// Serving certificate and key of the HTTPS proxy port, under the root folder.
const SECURE_PEM: &str = "pki/yurthub-server-current.pem";

/// Why the hub does not start: one line that names the flag or the file.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A folder cannot be used.
    #[error("--{flag}: cannot use {path}: {error}")]
    Folder {
        /// The flag.
        flag: &'static str,
        /// The folder.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// Connections cannot be set up.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// A port is taken.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The serving certificate is of no use.
    #[error("--root-dir: {0}")]
    Serving(#[from] TlsError),
    /// The durable copy cannot be opened.
    #[error("--disk-cache-path: {0}")]
    Cache(#[from] OpenError),
    /// The durable copy cannot be read.
    #[error("--disk-cache-path: {0}")]
    Store(#[from] StorageError),
    /// A certificate can never work.
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    /// A mistake in the program's own set-up.
    #[error("{0}")]
    Internal(String),
}

/// A hub at work.
pub struct Hub {
    tasks: TaskGroup,
    election_tasks: TaskGroup,
    stop_election: CancellationToken,
    end_watches: CancellationToken,
    data: Arc<PoolData>,
    readiness: Readiness,
    serving: Vec<Serving>,
}

/// What the parts of a hub share.
struct Parts {
    config: Config,
    clock: Clock,
    tasks: TaskGroup,
    upstreams: Upstreams,
    data: Arc<PoolData>,
    metrics: Arc<Metrics>,
    cloud: (watch::Sender<CloudReach>, Arc<Notify>),
    coordinator: (watch::Sender<CoordinatorReach>, Arc<Notify>),
    election: watch::Sender<ElectionView>,
    member_count: watch::Sender<u32>,
    rank: watch::Sender<u32>,
}

// === impl Hub ===

impl Hub {
    /// Checks everything, takes the ports, starts the tasks.
    ///
    /// # Errors
    /// [`StartError`]; nothing keeps running then.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        Self::start_after(config, || ()).await
    }

    /// As [`Self::start`]; `checked` is called once nothing can fail any more and before anything is logged.
    ///
    /// # Errors
    /// [`StartError`]; nothing keeps running then.
    pub async fn start_after(mut config: Config, checked: impl FnOnce()) -> Result<Self, StartError> {
        let (tasks, clock) = (TaskGroup::new(), Clock::system());
        let upstreams = Upstreams::new(&config, &tasks)?;
        let admin = Server::bind(config.admin_addr, "--bind-address, --serve-port").await?;
        let mut proxies = vec![Server::bind(config.proxy_addr, "--bind-proxy-address, --proxy-port").await?];
        proxies.push(secure_port(&config, &upstreams, config.secure_addr).await?);
        let store = config.cache_dir.join("replicas.redb");
        if !store.exists() {
            preflight::check(&config, &upstreams).await?;
        }
        make_folder("root-dir", &config.root_dir)?;
        make_folder("disk-cache-path", &config.cache_dir)?;
        let database = Arc::new(open_database(&store)?);
        let data = Arc::new(PoolData::open(ReplicaStore::open(database)?, clock.clone())?);
        let metrics = Arc::new(Metrics::new().map_err(|error| StartError::Internal(error.to_string()))?);
        checked();
        proxies.extend(dummy_ports(&mut config, &upstreams).await?);
        let unknown = CoordinatorReach {
            state: CoordinatorState::Unreachable { since: clock.boot() },
            status: None,
        };
        let parts = Parts {
            config,
            clock,
            tasks: tasks.clone(),
            upstreams,
            data: data.clone(),
            metrics,
            cloud: (watch::Sender::default(), Arc::default()),
            coordinator: (watch::Sender::new(unknown), Arc::default()),
            election: watch::Sender::default(),
            member_count: watch::Sender::new(1),
            rank: watch::Sender::new(0),
        };
        let (stop_election, end_watches, election_tasks) =
            (CancellationToken::new(), CancellationToken::new(), TaskGroup::new());
        parts.start_probes();
        parts.start_replicas();
        parts.start_election(&election_tasks, &stop_election)?;
        let readiness = Readiness::new();
        let heartbeat = parts.heartbeat();
        let proxy = Arc::new(parts.proxy(heartbeat.clone(), end_watches.clone()));
        let answer = handler(move |request, peer| {
            let proxy = proxy.clone();
            async move { proxy.handle(request, peer).await }
        });
        let mut serving: Vec<_> = proxies
            .into_iter()
            .map(|server| server.serve(&tasks, answer.clone()))
            .collect();
        serving.push(admin.serve(&tasks, parts.admin(readiness.clone(), heartbeat)));
        readiness.check("serving").set(true);
        Ok(Self {
            tasks,
            election_tasks,
            stop_election,
            end_watches,
            data,
            readiness,
            serving,
        })
    }

    /// Resolves with the name of a task that failed.
    pub async fn failed(&self) -> &'static str {
        tokio::select! {
            name = self.tasks.failed() => name,
            name = self.election_tasks.failed() => name,
        }
    }

    /// Ends in order: not ready, leadership given back, watches ended, replicas stored.
    pub async fn stop(self) {
        self.readiness.check("serving").set(false);
        self.stop_election.cancel();
        // The lease first: a successor should not wait for our clients. Still-running tasks are dropped and logged.
        let released = self.election_tasks.shutdown(RELEASE);
        self.end_watches.cancel();
        let drained = futures_util::future::join_all(self.serving.iter().map(|serving| serving.shutdown(DRAIN)));
        let _ = tokio::join!(released, drained);
        let _ = self.tasks.shutdown(STOP).await;
        if let Err(error) = self.data.replicas().persist().await {
            tracing::warn!(%error, "Replicas not stored; they will be asked for again");
        }
    }
}

// === impl Parts ===

impl Parts {
    fn start_probes(&self) {
        let token = self.tasks.token();
        let (reach, nudge) = &self.cloud;
        let cloud = self.upstreams.cloud.clone();
        self.tasks.spawn_critical(
            "probe-cloud",
            probe::probe_cloud(cloud, reach.clone(), nudge.clone(), token.clone()),
        );
        if let Some(CoordinatorClient { leases, .. }) = self.upstreams.coordinator.clone() {
            let (reach, nudge) = &self.coordinator;
            let probing = probe::probe_coordinator(leases, self.clock.clone(), reach.clone(), nudge.clone(), token);
            self.tasks.spawn_critical("probe-coordinator", probing);
        }
    }

    fn start_replicas(&self) {
        let wanted = watch::Sender::new(Source::None);
        for replica in self.data.replicas().iter() {
            // Without a pool there is no membership to follow.
            if replica.name() == members::COLLECTION && self.config.pool.is_empty() {
                continue;
            }
            let follower = Follower {
                replica: replica.clone(),
                data: self.data.clone(),
                upstreams: self.upstreams.clone(),
                wanted: wanted.subscribe(),
                pool: self.config.pool.clone(),
                tasks: self.tasks.clone(),
            };
            self.tasks.spawn_critical("follow-replica", follower.run());
        }
        let steering = Steering {
            election: self.election.subscribe(),
            cloud: self.cloud.0.subscribe(),
            coordinator: self
                .upstreams
                .coordinator
                .as_ref()
                .map(|_| self.coordinator.0.subscribe()),
            members: self.member_count.subscribe(),
            clock: self.clock.clone(),
        };
        self.tasks
            .spawn_critical("steer-replicas", steering.run(wanted, self.tasks.token()));
        self.tasks
            .spawn_critical("persist-replicas", persist(self.data.clone(), self.tasks.token()));
        let ranking = report_members(
            self.data.clone(),
            self.config.node.clone(),
            self.member_count.clone(),
            self.rank.clone(),
            self.tasks.token(),
        );
        self.tasks.spawn_critical("rank-members", ranking);
    }

    fn start_election(&self, tasks: &TaskGroup, stop: &CancellationToken) -> Result<(), StartError> {
        let (Some(settings), Some(coordinator)) = (&self.config.coordinator, &self.upstreams.coordinator) else {
            return Ok(());
        };
        if !settings.candidate {
            return Ok(());
        }
        let identity = format!("{}_{}", self.config.node, uuid::Uuid::new_v4());
        let mut election = settings.election(&identity);
        election.ignore_own_clock =
            std::env::var("YURT_FAILPOINTS").is_ok_and(|points| points == "leader-clock-check=off");
        let leader = Leader {
            identity,
            upstreams: self.upstreams.clone(),
            coordinator: coordinator.clone(),
            data: self.data.clone(),
            metrics: self.metrics.clone(),
            clock: self.clock.clone(),
        };
        let lease = LeaseClient::new(coordinator.leases.clone(), &settings.lease.0, &settings.lease.1);
        let start_leading = Box::new(move |group: &TaskGroup, leadership| leader.start(group, &leadership));
        let driver = Driver::new(
            election,
            self.clock.clone(),
            lease,
            self.election.clone(),
            start_leading,
            tasks.clone(),
        )
        .map_err(|error| StartError::Internal(error.to_string()))?;
        let signals = Signals {
            cloud: self.cloud.0.subscribe(),
            coordinator: self.coordinator.0.subscribe(),
            rank: self.rank.subscribe(),
            nudge: self.coordinator.1.clone(),
        };
        tasks.spawn_critical("election", driver.run(signals, stop.clone().cancelled_owned()));
        Ok(())
    }

    fn heartbeat(&self) -> Arc<OwnHeartbeat> {
        let pool = self.upstreams.coordinator.as_ref();
        let lease = pool.map(|pool| LeaseClient::new(pool.leases.clone(), own::NAMESPACE, &self.config.node));
        let heartbeat = Arc::new(OwnHeartbeat::new(
            &self.config.node,
            self.upstreams.cloud.clone(),
            lease,
            self.clock.clone(),
            self.tasks.clone(),
            self.cloud.1.clone(),
            self.config.cache_dir.join("node-lease"),
        ));
        let (mut reach, token, beats) = (self.cloud.0.subscribe(), self.tasks.token(), heartbeat.clone());
        self.tasks.spawn_critical("recover-heartbeat", async move {
            while let Some(Ok(())) = token.run_until_cancelled(reach.changed()).await {
                if reach.borrow_and_update().is_up() {
                    beats.cloud_is_back().await;
                }
            }
        });
        heartbeat
    }

    fn proxy(&self, heartbeat: Arc<OwnHeartbeat>, end_watches: CancellationToken) -> Proxy {
        let config = &self.config;
        let cloud = self.upstreams.cloud.clone();
        let node = NodeFacts {
            node: config.node.clone(),
            pool: config.pool.clone(),
            host: config.hub_host,
            secure_port: config.secure_addr.port(),
        };
        let local = Local {
            data: self.data.clone(),
            authorizer: Authorizer::new(cloud.clone(), self.clock.clone()),
            node,
            cloud: self.cloud.0.subscribe(),
            min_request_timeout: config.min_request_timeout,
            shutdown: end_watches,
            written: Mutex::default(),
        };
        Proxy {
            node: config.node.clone(),
            callers: Callers::new(config.components.clone()),
            local: Arc::new(local),
            cloud: PassThrough {
                cloud,
                tasks: self.tasks.clone(),
                nudge: self.cloud.1.clone(),
            },
            heartbeat,
            tasks: self.tasks.clone(),
            metrics: self.metrics.clone(),
            max_in_flight: config.max_in_flight,
            in_flight: Default::default(),
        }
    }

    fn admin(&self, readiness: Readiness, heartbeat: Arc<OwnHeartbeat>) -> yurt_runtime::http::server::Handler {
        let report = report::Report {
            node: self.config.node.clone(),
            pool: self.config.pool.clone(),
            data: self.data.clone(),
            cloud: self.cloud.0.subscribe(),
            coordinator: self
                .upstreams
                .coordinator
                .as_ref()
                .map(|_| self.coordinator.0.subscribe()),
            election: self.election.subscribe(),
            heartbeat,
            metrics: self.metrics.clone(),
            forwards: self.upstreams.cloud.server().delegate.is_some(),
        };
        report.routes(readiness).handler()
    }
}

/// The HTTPS port for pods. Without a certificate of the cluster's CA it serves one of its own making, which pods do not
/// trust: good for trying it out, and the port is taken.
async fn secure_port(config: &Config, upstreams: &Upstreams, addr: SocketAddr) -> Result<Server, StartError> {
    let pem = config.root_dir.join(SECURE_PEM);
    let identity = if pem.exists() {
        PemIdentity::one_file(pem)
    } else {
        self_signed(config)?
    };
    let tls = ServerTls {
        identity,
        client_ca: Some(upstreams.cluster_ca.clone()),
    };
    let tls = ReloadingServerTls::new(tls)?;
    Ok(Server::bind(addr, "--bind-proxy-address, --proxy-secure-port")
        .await?
        .with_tls(tls))
}

/// The proxy's ports on the dummy interface; none, and pods are led to the other address, where it cannot be made.
async fn dummy_ports(config: &mut Config, upstreams: &Upstreams) -> Result<Vec<Server>, StartError> {
    let Some((name, address)) = config.dummy.clone() else {
        return Ok(Vec::new());
    };
    let ready = tokio::task::spawn_blocking(move || dummy::ensure(&name, address)).await;
    if let Err(why) = ready.unwrap_or_else(|error| Err(error.to_string())) {
        tracing::warn!(why, "The hub is served on --bind-proxy-address only");
        config.hub_host = config.proxy_addr.ip();
        return Ok(Vec::new());
    }
    let plain = SocketAddr::new(address, config.proxy_addr.port());
    let secure = SocketAddr::new(address, config.secure_addr.port());
    let plain = Server::bind(plain, "--dummy-if-ip, --proxy-port").await?;
    Ok(vec![plain, secure_port(config, upstreams, secure).await?])
}

fn self_signed(config: &Config) -> Result<PemIdentity, StartError> {
    let fail = |error: PkiError| StartError::Internal(format!("cannot make a serving certificate: {error}"));
    let authority = CertificateAuthority::generate("yurthub").map_err(fail)?;
    let names = [
        "127.0.0.1".to_owned(),
        "localhost".to_owned(),
        config.hub_host.to_string(),
        config.node.clone(),
    ];
    let pair = authority.issue_server(&config.node, &names).map_err(fail)?;
    Ok(PemIdentity::inline("the hub's own serving certificate", &pair))
}

fn make_folder(flag: &'static str, path: &Path) -> Result<(), StartError> {
    let fail = |error| StartError::Folder {
        flag,
        path: path.display().to_string(),
        error,
    };
    std::fs::create_dir_all(path).map_err(fail)?;
    let probe = path.join(".writable");
    std::fs::write(&probe, b"")
        .and_then(|()| std::fs::remove_file(&probe))
        .map_err(fail)
}

async fn persist(data: Arc<PoolData>, token: CancellationToken) {
    while token
        .run_until_cancelled(tokio::time::sleep(PERSIST_EVERY))
        .await
        .is_some()
    {
        if let Err(error) = data.replicas().persist().await {
            tracing::warn!(%error, "Replicas not stored, trying again");
        }
    }
}

/// Tells the election this node's place among the members, and the steering how many there are.
async fn report_members(
    data: Arc<PoolData>,
    node: String,
    count: watch::Sender<u32>,
    rank: watch::Sender<u32>,
    token: CancellationToken,
) {
    let Some(members) = data.replicas().named(members::COLLECTION).cloned() else {
        return;
    };
    let mut changes = members.collection().subscribe();
    loop {
        let names = members.collection().read(|c| members::names(c.objects()));
        let place = names.iter().position(|name| *name == node).unwrap_or(names.len());
        count.send_replace(u32::try_from(names.len().max(1)).unwrap_or(u32::MAX));
        rank.send_if_modified(|rank| {
            let place = u32::try_from(place).unwrap_or(u32::MAX);
            std::mem::replace(rank, place) != place
        });
        data.set_members(names);
        match token.run_until_cancelled(changes.changed()).await {
            Some(Ok(())) => {}
            _ => return,
        }
    }
}
