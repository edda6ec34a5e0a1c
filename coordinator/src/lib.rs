//! The pool coordinator: an apiserver for the kinds a NodePool needs.
//!
//! ```text
//!   filters (identity, limits, rights) ─► dispatch ─► handlers (one per verb) ─► registry (one entry per resource) ─► storage
//!                                            └─► pool_api ─► feed (the leader fills pool data) ─────────────────────────┘
//! ```
//!
//! No module imports in a circle. In reading order:
//!
//! * a request: `filters` (`filters/chain.rs` is the order), `dispatch`, `request` (what a handler gets), `handlers`,
//!   `pool_api` (paths below `/yurt/v1`), `app` (state of all of it);
//! * rights and limits: `authn`, `authz`, `admission`, `audit`, `fair_queue`, `open_answers`,
//!   `bodies`;
//! * data: `registry` (resources and their rules), `standalone` (those of `--profile standalone` alone),
//!   `lease_objects`, `feed`, `forgery`, `store`, `commit_dispatcher`, `discovery`;
//! * the process: [`config`] (flags), `bootstrap` (certificates of a first start), `controllers` (background tasks),
//!   `lifecycle`, `health`, `metrics`, `status_error`, `reloadable_files`.
//!
//! All wiring is in [`build`].
//!
//! ```no_run
//! use yurt_coordinator::{build, config::Config};
//!
//! # async fn start() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::parse(["yurt-coordinator", "--profile", "standalone"]).map_err(|_| "bad flags")?;
//! let coordinator = build(config).await?;
//! println!("{}", coordinator.address());
//! coordinator.run(std::future::pending()).await?;
//! # Ok(()) }
//! ```

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use yurt_pool_protocol::fence::Fence;
use yurt_pool_protocol::guard::Guard;

mod admission;
mod app;
mod audit;
mod authn;
mod authz;
mod bodies;
mod bootstrap;
mod commit_dispatcher;
pub mod config;
mod controllers;
mod discovery;
mod dispatch;
mod fair_queue;
mod feed;
mod filters;
mod forgery;
#[doc(hidden)]
pub mod fuzzing;
mod handlers;
mod health;
mod lease_objects;
mod lifecycle;
mod metrics;
mod open_answers;
mod pool_api;
mod registry;
mod reloadable_files;
mod request;
#[doc(hidden)]
mod standalone;
mod status_error;
mod store;

use parking_lot::{Mutex, RwLock};
use yurt_runtime::http::server::{Limits, Server};
use yurt_runtime::tls::{ReloadingServerTls, TlsError, load_pair};
use yurt_runtime::{Clock, TaskGroup, files};
use yurt_storage::{Cacher, SharedCollection};

use app::{App, FilterState, Served, Settings};
use commit_dispatcher::CommitDispatcher;
use config::{Config, Profile};
use controllers::system_namespaces;
use feed::members::{Members, Policy};
use feed::scope::Scope;
use feed::void::Voids;
use feed::{Feed, FeedMetrics};
use filters::startup_server::{Port, QUIET_MAX, StartupServer};
use forgery::reports::Reports;
use health::Health;
use metrics::Metrics;
use open_answers::MAX_STALL;
use registry::Registry;
use registry::custom::CustomKinds;
use registry::own::{OwnStore, Room, Shares};
use store::Stores;

/// A coordinator whose port is bound and whose store is open; it answers after [`Coordinator::run`] has begun.
pub struct Coordinator {
    app: Arc<App>,
    port: Port,
    address: SocketAddr,
    stores: Stores,
    tasks: TaskGroup,
    files: Files,
}

/// Files that a first start wrote for its user.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Kubeconfig of an administrator.
    pub admin_kubeconfig: Option<PathBuf>,
    /// Certificate of the generated CA.
    pub ca: Option<PathBuf>,
}

/// Reason for which the coordinator cannot start, in one line: the fault, its file or flag, and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(String);

// === impl StartError ===

impl StartError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    pub(crate) fn metrics(error: prometheus::Error) -> Self {
        Self(format!("cannot set up metrics: {error}"))
    }

    pub(crate) fn file(path: &Path, action: &str, error: &std::io::Error) -> Self {
        Self(format!(
            "cannot {action} {} (below --data-dir): {error}",
            path.display()
        ))
    }
}

/// Binds the port, opens the store, and generates certificates where none are given. Writes nothing until every check
/// has passed.
///
/// # Errors
/// [`StartError`], to be printed unchanged.
pub async fn build(config: Config) -> Result<Coordinator, StartError> {
    let clock = Clock::system();
    bootstrap::check_given(&config).await?;
    let (policy, initial) = Policy::read(&config).map_err(StartError::new)?;
    let metrics = Arc::new(Metrics::new().map_err(StartError::metrics)?);
    let (custom, declared) = CustomKinds::open(&config).map_err(StartError::new)?;
    let filters = FilterState::open(&config, &metrics, clock.clone())?;
    let server = bind(&config).await?.with_metrics(metrics.connections());
    let (tasks, address) = (TaskGroup::new(), server.local_addr());
    let opening = Stores::open(&config, custom.pool_kinds(&declared), clock.clone(), &tasks);
    let (stores, port, files) = open(opening, &config, server, &tasks).await?;
    let cacher = Arc::new(Cacher::new(registry::stored_kinds(config.profile)));
    let pool = stores.pool();
    let (fence, scope) = (Arc::new(Fence::new(stores.id())), Arc::new(Scope::new(&pool)));
    let guard = Arc::new(Guard::new(clock.boot()));
    let voids = Arc::new(Voids::new(stores.collections().clone()));
    let dispatcher = CommitDispatcher::new(cacher.clone(), fence.clone(), scope.clone(), voids.clone());
    let dispatcher = dispatcher.with_shared_store(guard.clone(), clock.clone(), &stores);
    let (attached, port) = port.during(stores.attach(Arc::new(dispatcher)), &tasks).await;
    attached?;
    let members = Arc::new(Members::new(policy, initial, stores.collections().clone()));
    let electorate = (config.profile == Profile::Pool).then(|| members.clone());
    let end_watches = tasks.token().child_token();
    let registry = Registry::new(config.profile, standalone::strategy_of, &cacher, &pool, &end_watches);
    let feed = Feed::new(
        feed::Parts {
            fence: fence.clone(),
            members,
            scope,
            voids,
            collections: stores.collections().clone(),
            replicas: stores.replicas().clone(),
            storage: stores.storage().clone(),
            leases: election_leases(&cacher)?,
            calls: tasks.child(),
            bytes_max: config.max_pool_bytes,
            folder: config.data_dir.clone(),
        },
        clock.clone(),
        FeedMetrics::new(metrics.registry()).map_err(StartError::metrics)?,
    );
    watch_disk(&metrics, &stores);
    let app = App {
        settings: settings(&config),
        own: OwnStore::new(stores.storage().clone(), fence, guard, electorate, clock.clone())
            .with_limits(config.max_stored_object_bytes, room(&config, &cacher, &metrics)),
        served: RwLock::new(Arc::new(Served::new(registry))),
        declared: Mutex::new(declared),
        custom,
        cacher,
        feed: Arc::new(feed),
        reports: Mutex::new(Reports::new(clock.boot())),
        health: Health::default(),
        metrics,
        clock,
        writes: tasks.child(),
        end_watches,
        filters,
    };
    let (loaded, port) = port.during(load(&app), &tasks).await;
    loaded?;
    Ok(Coordinator {
        app: Arc::new(app),
        port,
        address,
        stores,
        tasks,
        files,
    })
}

/// Opens the store. Certificates are generated once it is open, or when it delays the start: faults of the flags for
/// the store have been reported before that.
async fn open(
    opening: impl Future<Output = Result<Stores, StartError>>,
    config: &Config,
    server: Server,
    tasks: &TaskGroup,
) -> Result<(Stores, Port, Files), StartError> {
    let mut opening = std::pin::pin!(opening);
    if let Ok(stores) = tokio::time::timeout(QUIET_MAX, &mut opening).await {
        let stores = stores?;
        let (tls, files) = credentials(config, &server).await?;
        return Ok((stores, Port::Bound(server.with_tls(tls)), files));
    }
    let (tls, files) = credentials(config, &server).await?;
    let waiting = StartupServer::serve(server.with_tls(tls), tasks);
    Ok((opening.await?, Port::Waiting(waiting), files))
}

/// Serves what the store holds, with the initial namespaces.
async fn load(app: &App) -> Result<(), StartError> {
    app.serve().map_err(StartError::new)?;
    app.served().registry.find_misfits();
    if app.settings.profile == Profile::Pool {
        let found = app.feed.find_leftovers();
        found.map_err(|error| StartError::new(format!("--data-dir: cannot read the names of pool data: {error}")))?;
    }
    // The controller repeats and logs what fails.
    drop(app.follow_scope().await);
    system_namespaces::create(app).await?;
    app.health.storage_loaded();
    Ok(())
}

/// The collection with the election lease.
fn election_leases(cacher: &Cacher) -> Result<Arc<SharedCollection>, StartError> {
    let leases = cacher.collection(lease_objects::COLLECTION);
    leases.ok_or_else(|| StartError::new("leases are not among the kinds served"))
}

fn watch_disk(metrics: &Metrics, stores: &Stores) {
    if let Some(disk) = stores.disk() {
        metrics.watch_disk(disk.clone());
    }
}

/// The server's certificate, generated where none is given, and the files written for the user.
async fn credentials(config: &Config, server: &Server) -> Result<(ReloadingServerTls, Files), StartError> {
    let credentials = bootstrap::prepare(config, server.local_addr())?;
    // The files may have been replaced since the check.
    let load = || ReloadingServerTls::new(credentials.tls.clone());
    let tls = load_pair(load, TlsError::is_mismatch)
        .await
        .map_err(|error| StartError::new(error.to_string()))?;
    let files = Files {
        admin_kubeconfig: credentials.admin_kubeconfig,
        ca: credentials.ca,
    };
    Ok((tls, files))
}

async fn bind(config: &Config) -> Result<Server, StartError> {
    let bound = Server::bind(config.listen_address(), "--bind-address, --secure-port").await;
    let server = bound.map_err(|error| StartError::new(error.to_string()))?;
    let limits = Limits {
        max_connections: config.max_connections.get(),
        max_strangers: config.max_unauthenticated_connections.get(),
        max_strangers_per_address: config.max_unauthenticated_connections_per_address.get(),
        max_streams: config.http2_max_streams_per_connection.get(),
        max_header_bytes: config.max_header_bytes,
        max_stall: Some(MAX_STALL),
        ..Limits::default()
    };
    Ok(server.with_limits(limits.within(files::for_servers())))
}

/// Limit on own objects, in bytes.
fn room(config: &Config, cacher: &Arc<Cacher>, metrics: &Metrics) -> Option<Room> {
    let bytes_max = config.own_bytes_max()?;
    metrics.own_bytes_limit(bytes_max);
    let shares = Shares::new(bytes_max, config.event_ttl.0);
    Some(Room::new(cacher.clone(), bytes_max, shares))
}

fn settings(config: &Config) -> Settings {
    Settings {
        profile: config.profile,
        nodepool: config.nodepool.clone(),
        min_request_timeout: config.min_request_timeout.0,
        body_bytes_max: config.max_request_body_bytes,
        event_ttl: config.event_ttl.0,
        departed_lease_ttl: config.departed_lease_ttl.0,
    }
}

// === impl Coordinator ===

impl Coordinator {
    /// Listening address, with the port picked for port 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Files written for the user.
    #[must_use]
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Serves until `stop` resolves, then stops in order and flushes everything to disk.
    ///
    /// # Errors
    /// [`StartError`] when a task died, or the store could not be flushed.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), StartError> {
        lifecycle::run(self, stop).await
    }
}
