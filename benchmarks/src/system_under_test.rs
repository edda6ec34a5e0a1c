//! System under test: our coordinator, or kube-apiserver on an etcd of its own, started empty with durable writes.

use std::cell::Cell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use yurt_runtime::TaskGroup;
use yurt_testbed::api::Api;
use yurt_testbed::identities::Identities;
use yurt_testbed::net::ProgramNamespace;
use yurt_testbed::program::{Launch, Program};
use yurt_testbed::real::{self, Sync};
use yurt_testbed::{START_LIMIT, Setup, coordinator_launch};
use yurt_workspace::Stopwatch;

use super::load::{Connector, Session};
use super::usage::{self, Usage};

/// Interval at which a starting server's readiness is polled.
const ASK_EVERY: Duration = Duration::from_millis(1);

/// Connections that ours takes: more than the 5,000 watchers with one each. The baseline has no such limit.
const CONNECTIONS_MAX: usize = 6_000;

/// Kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Ours,
    Baseline,
}

/// Folders, programs and tasks of the measured systems.
pub(super) struct Environment {
    dir: PathBuf,
    bin_dir: PathBuf,
    tasks: TaskGroup,
    started: Cell<u32>,
}

/// A running server.
pub(super) struct SystemUnderTest {
    pub(super) setup: Setup,
    pub(super) api: Api,
    /// From exec to `/readyz`.
    pub(super) ready_after: Duration,
    port: u16,
    launch: Launch,
    /// The API server.
    server: Option<Program>,
    /// Its store, if that is another process.
    store: Option<Program>,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours => "yurt-coordinator",
            Self::Baseline => "kube-apiserver",
        })
    }
}

// === impl Environment ===

impl Environment {
    pub(super) fn new(dir: &Path, bin_dir: PathBuf, tasks: TaskGroup) -> Self {
        Self {
            dir: dir.to_path_buf(),
            bin_dir,
            tasks,
            started: Cell::new(0),
        }
    }

    /// A new folder with its own certificates.
    pub(super) fn setup(&self) -> Result<Setup> {
        self.started.set(self.started.get() + 1);
        let dir = self.dir.join(self.started.get().to_string());
        std::fs::create_dir(&dir).context("cannot make a folder")?;
        Ok(Setup {
            identities: Identities::new(&dir)?,
            dir,
            bin_dir: self.bin_dir.clone(),
            tasks: self.tasks.child(),
            net: None,
        })
    }
}

// === impl SystemUnderTest ===

impl SystemUnderTest {
    /// Starts one that is empty, and waits until it is ready.
    pub(super) async fn start(environment: &Environment, side: Side) -> Result<Self> {
        let setup = environment.setup()?;
        let (port, launch, store) = match side {
            Side::Ours => {
                let (port, launch) = coordinator_launch(&setup, ProgramNamespace::Pool, "coordinator")?;
                let launch = launch.flag("profile", "standalone");
                (port, launch.flag("max-connections", CONNECTIONS_MAX), None)
            }
            Side::Baseline => {
                let (etcd_port, etcd) = real::etcd_launch(&setup, Sync::Durable)?;
                let store = etcd.start()?;
                let (port, launch) = real::apiserver_launch(&setup, etcd_port)?;
                (port, launch, Some(store))
            }
        };
        let api = Api::https(port, setup.identities.ca_pem(), &setup.identities.admin)?;
        let mut system = Self {
            setup,
            api,
            ready_after: Duration::ZERO,
            port,
            launch,
            server: None,
            store,
        };
        system.run().await?;
        Ok(system)
    }

    /// Stops the API server in order and starts it again on what it stored.
    pub(super) async fn restart(&mut self) -> Result<()> {
        if let Some(server) = self.server.take() {
            server.stop(Duration::from_secs(60)).await?;
        }
        self.run().await
    }

    async fn run(&mut self) -> Result<()> {
        let watch = Stopwatch::start();
        let mut program = self.launch.start()?;
        // Asked often, as the answer is the measurement; the patient wait of the laboratory looks every 50 ms.
        while self.api.ping("/readyz").await.is_err() {
            program.must_run()?;
            ensure!(
                watch.elapsed() < START_LIMIT,
                "the server was not ready within {START_LIMIT:?}"
            );
            tokio::time::sleep(ASK_EVERY).await;
        }
        self.ready_after = watch.elapsed();
        self.server = Some(program);
        Ok(())
    }

    /// A new client with a connection of its own.
    pub(super) fn session(&self) -> Result<Session> {
        self.connector().session()
    }

    /// Makes such clients.
    pub(super) fn connector(&self) -> Connector {
        Connector::new(self.port, &self.setup.identities)
    }

    /// Its port on loopback.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Resources that the processes have used so far: API server and, for CPU and bytes, its store.
    pub(super) fn usage(&self) -> Result<Usage> {
        let mut usage = usage::usage(self.pid()?)?;
        if let Some(store) = &self.store {
            let store = usage::usage(store.id().context("the store has ended")?)?;
            usage.cpu += store.cpu;
            usage.written += store.written;
            usage.store_rss = store.rss;
        }
        Ok(usage)
    }

    /// The API server's process.
    pub(super) fn pid(&self) -> Result<u32> {
        self.server
            .as_ref()
            .and_then(Program::id)
            .context("the server has ended")
    }
}
