//! YurtHub: the node's proxy to the cloud and to its NodePool, the owner of the node's replicas, and a candidate for
//! leader.
//!
//! Reading order: [`config`] → [`proxy`] (path of a request) → [`replicas`] (source of the data) → [`filter`] (view of
//! a local client) → [`hub_config`] (configuration in the cloud) → [`pool`] (election, feed, heartbeats) → [`health`]
//! (probes) → [`upstream`] (connections). `status` shows all of it to the operator; every part reports to [`failures`]
//! and [`metrics`]. The wiring is in [`Hub::start`] and `wiring.rs`.

pub mod cache;
pub mod client_name;
pub mod commands;
pub mod config;
mod copied;
pub mod failpoints;
pub mod failures;
pub mod filter;
pub mod health;
pub mod hub_config;
pub mod identity;
mod listeners;
pub mod metrics;
pub mod node_network;
pub mod offline;
mod operator_port;
pub mod pool;
pub mod preflight;
pub mod proxy;
pub mod replicas;
mod status;
mod unwritten;
pub mod upstream;
mod wiring;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use yurt_runtime::http::server::{BindError, Inherited, Server, Serving, handler};
use yurt_runtime::tasks::StillRunning;
use yurt_runtime::tls::{TlsError, load_pair};
use yurt_runtime::{Clock, Readiness, TaskGroup, pki};

use config::Config;
use identity::{CertificateKeeper, IdentityError};
use metrics::Metrics;
use operator_port::OperatorPort;
use preflight::PreflightError;
use proxy::caller::token::{self, NodeToken};
use replicas::PoolData;
use replicas::disk::{self, DiskError};
use replicas::pool_label::PoolLabel;
use unwritten::Unwritten;
use upstream::{UpstreamError, Upstreams};
use wiring::Wiring;

/// Maximum time for clients to finish at a stop.
const DRAIN: Duration = Duration::from_millis(500);
/// Maximum time to release the lease at a stop.
const RELEASE: Duration = Duration::from_secs(4);
/// Maximum time for everything else at a stop.
const STOP: Duration = Duration::from_secs(2);
/// Mode of the directories of the flags. Files with secrets have modes of their own.
pub(crate) const FOLDER_MODE: u32 = 0o755;

/// Error that prevents the hub's start; one line that names the flag or the file.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A directory is not usable.
    #[error("--{flag}: cannot use {path}: {error}; it must be a directory that the hub may write")]
    Folder {
        /// The flag.
        flag: &'static str,
        /// The directory.
        path: String,
        /// Cause.
        error: std::io::Error,
    },
    /// The node has no certificate and gets none.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Connections cannot be set up.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// A port is in use.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The serving certificate is not usable.
    #[error("--root-dir: {0}")]
    Serving(#[from] TlsError),
    /// The durable copy is not usable.
    #[error("--disk-cache-path: {0}")]
    Cache(#[from] DiskError),
    /// A certificate can never work with the servers.
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    /// A fault in the program's own set-up.
    #[error("{0}")]
    Internal(String),
}

/// A running hub.
pub struct Hub {
    tasks: TaskGroup,
    election_tasks: TaskGroup,
    end_watches: CancellationToken,
    data: Arc<PoolData>,
    readiness: Readiness,
    serving: Vec<Serving>,
}

// === impl Hub ===

impl Hub {
    /// Checks the configuration, binds the ports and starts the tasks.
    ///
    /// # Errors
    /// [`StartError`]; nothing keeps running then.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        Self::start_after(config, Inherited::default(), || ()).await
    }

    /// Like [`Self::start`], on the `inherited` ports. Calls `checked` once the start can no longer fail, before the
    /// first log line, and earlier if the start waits for a certificate.
    ///
    /// # Errors
    /// [`StartError`]; nothing keeps running then.
    pub async fn start_after(
        mut config: Config,
        mut inherited: Inherited,
        checked: impl Fn(),
    ) -> Result<Self, StartError> {
        let (tasks, clock) = (TaskGroup::new(), Clock::system());
        make_folder("root-dir", &config.root_dir)?;
        let admin = Server::bind_or_take(config.admin_addr, "--bind-address, --serve-port", &mut inherited).await?;
        let operator = OperatorPort::new(admin, &config);
        let (plain, secure) = listeners::main(&config, &mut inherited).await?;
        let identity = Self::identity(&config, &tasks, &clock, operator, &checked);
        let (operator, upstreams, keeper) = identity.await?;
        let label = Self::settle(&mut config, &upstreams, &keeper).await?;
        make_folder("disk-cache-path", &config.cache_dir)?;
        let mut unwritten = Unwritten::default();
        let token = open_token(&config, &mut unwritten)?;
        let data = open_data(&config, &clock)?;
        let metrics = Arc::new(Metrics::new().map_err(|error| StartError::Internal(error.to_string()))?);
        let mut proxies = vec![
            plain,
            listeners::encrypted(&config, &upstreams, secure, &mut unwritten)?,
        ];
        let owners = (&tasks, data.failures());
        let for_pods = listeners::for_pods(&mut config, &upstreams, &mut inherited, owners, &mut unwritten);
        let (for_pods, trust) = for_pods.await?;
        proxies.extend(for_pods);
        inherited.check_all_taken().map_err(StartError::Internal)?;
        checked();
        data.log_opening();
        keeper.log_unused();
        let (limits, connections) = (listeners::limits(), metrics.connections.clone());
        let wiring = Wiring::new(config, clock, tasks.clone(), upstreams, data.clone(), metrics, trust);
        let (end_watches, election_tasks) = (CancellationToken::new(), TaskGroup::new());
        tasks.spawn("store-files", unwritten.store(data.failures().clone(), tasks.token()));
        wiring.load_cache().await;
        wiring.start_probes();
        wiring.start_hub_config();
        wiring.start_pool_label(label);
        wiring.start_replicas();
        wiring.start_election(&election_tasks)?;
        let readiness = Readiness::new();
        wiring.start_certificate(&keeper, &readiness);
        let heartbeat = wiring.heartbeat();
        wiring.start_reporting(&heartbeat);
        let proxy = Arc::new(wiring.proxy(heartbeat.clone(), token, end_watches.clone()));
        let offline = proxy.offline.clone();
        let answer = handler(move |request, peer| {
            let proxy = proxy.clone();
            async move { proxy.handle(request, peer).await }
        });
        let mut serving: Vec<_> = proxies
            .into_iter()
            .map(|server| {
                server
                    .with_uids()
                    .with_limits(limits.clone())
                    .with_metrics(connections.clone())
                    .serve(&tasks, answer.clone())
            })
            .collect();
        let routes = wiring.admin(readiness.clone(), heartbeat, keeper.clone(), offline);
        serving.extend(operator.serve(&tasks, routes, keeper));
        readiness.check("serving").set(true);
        Ok(Self {
            tasks,
            election_tasks,
            end_watches,
            data,
            readiness,
            serving,
        })
    }

    /// Reads the node's certificate, after waiting for the first one if the hub owns it, and creates the connections.
    async fn identity(
        config: &Config,
        tasks: &TaskGroup,
        clock: &Clock,
        mut operator: OperatorPort,
        checked: &impl Fn(),
    ) -> Result<(OperatorPort, Upstreams, Arc<CertificateKeeper>), StartError> {
        let own = CertificateKeeper::own(config, clock.clone())?.map(Arc::new);
        if let Some(keeper) = own.as_ref().filter(|keeper| !keeper.has_certificate()) {
            checked();
            operator = operator.join(tasks, &config.node, keeper.clone()).await?;
        }
        let upstreams = load_pair(|| Upstreams::new(config, tasks), UpstreamError::is_mismatch).await?;
        let keeper = match own {
            Some(keeper) => keeper,
            None => Arc::new(CertificateKeeper::of_kubelet(config, &upstreams, clock.clone())?),
        };
        Ok((operator, upstreams, keeper))
    }

    /// Checks a first start, and completes the configuration by the pool of the Node's label.
    async fn settle(
        config: &mut Config,
        upstreams: &Upstreams,
        keeper: &CertificateKeeper,
    ) -> Result<PoolLabel, StartError> {
        let label = PoolLabel::of(&config.node, &config.root_dir);
        if config.is_pool_of_label {
            config.pool = label.stored().await;
        }
        let is_first = !config.cache_dir.join(disk::FILE).exists();
        // Servers refuse a certificate that is not valid now; the hub starts with it, and gets another one.
        let is_usable = keeper.standing().is_valid();
        if is_first && is_usable {
            preflight::check(config, upstreams).await?;
        }
        if config.pool.is_none() && is_usable {
            config.pool = label.first(&upstreams.cloud).await;
        }
        Ok(label)
    }

    /// Resolves with the name of a failed task.
    pub async fn failed(&self) -> &'static str {
        tokio::select! {
            name = self.tasks.failed() => name,
            name = self.election_tasks.failed() => name,
        }
    }

    /// Stops in order: not ready, lease released, watches ended, replicas stored.
    ///
    /// # Errors
    /// Tasks that did not end in time, which is logged. What is left of another cluster stays for the next start then.
    pub async fn stop(self) -> Result<(), StillRunning> {
        self.readiness.check("serving").set(false);
        // The lease comes first, so that a successor does not wait for our clients. Tasks that still run are dropped
        // and logged.
        let released = self.election_tasks.shutdown(RELEASE);
        self.end_watches.cancel();
        let drained = futures_util::future::join_all(self.serving.iter().map(|serving| serving.shutdown(DRAIN)));
        let _ = tokio::join!(released, drained);
        let ended = self.tasks.shutdown(STOP).await;
        self.data.partial_lists().save().await;
        if let Err(error) = self.data.replicas().persist(None).await {
            tracing::warn!(%error, "Failed to store the replicas; the next start fetches them again");
        }
        // A task that still runs could write again; the next start finds the other cluster once more.
        if ended.is_ok() {
            self.data.copy().remove_rest(&wiring::KEPT);
        }
        ended
    }
}

fn open_data(config: &Config, clock: &Clock) -> Result<Arc<PoolData>, StartError> {
    let bytes_max = (config.max_pool_bytes, config.max_cache_bytes);
    let data = PoolData::open(&config.cache_dir, config.pool_name(), bytes_max, clock.clone())?;
    Ok(Arc::new(data))
}

fn open_token(config: &Config, unwritten: &mut Unwritten) -> Result<NodeToken, StartError> {
    let token = NodeToken::open(&config.root_dir, unwritten);
    token.map_err(|error| listeners::unusable(&config.root_dir.join(token::FILE), error))
}

fn make_folder(flag: &'static str, path: &Path) -> Result<(), StartError> {
    let fail = |error| StartError::Folder {
        flag,
        path: path.display().to_string(),
        error,
    };
    pki::make_folder(path, FOLDER_MODE).map_err(fail)?;
    let probe = path.join(".writable");
    let written = std::fs::write(&probe, b"").and_then(|()| std::fs::remove_file(&probe));
    match written {
        // A hub runs without a disk that is full or read-only.
        Err(error) if disk::takes_nothing(&error) => Ok(()),
        written => written.map_err(fail),
    }
}
