//! Ways to the cloud: directly, through a reverse proxy, through our hub, through OpenYurt's hub. Each has a link of
//! its own, whose bytes are counted and which can be cut.

use std::fmt;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use yurt_runtime::pki;
use yurt_testbed::api::Api;
use yurt_testbed::link::Link;
use yurt_testbed::program::{Launch, ManagedProcess};
use yurt_testbed::sample::{NODES, POOL};
use yurt_testbed::wait_for::wait_for;
use yurt_testbed::{Setup, ports, real};
use yurt_workspace::Stopwatch;

use super::upstream_rights::UPSTREAM_GROUP;
use super::world::{ALL_SERVICES, KUBE_PROXY, World};
use crate::load::{Ask, PROTOBUF, Session};
use crate::samples::ALL_SLICES;
use crate::usage::{self, Usage};

/// Everything is up within this time, even on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Interval at which a starting hub is polled.
const ASK_EVERY: Duration = Duration::from_millis(2);
/// Group of a node's certificate.
const NODES_GROUP: &str = "system:nodes";

/// A way to the cloud. The number is the column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Access {
    /// Our hub
    Hub,
    /// None: the clients connect to kube-apiserver
    Direct,
    /// A reverse proxy of Go's standard library
    PassThrough,
    /// OpenYurt's hub 1.7.0
    #[value(name = "upstream-1.7.0")]
    Upstream170,
    /// OpenYurt's hub 1.5.1
    #[value(name = "upstream-1.5.1")]
    Upstream151,
}

/// A way in use.
pub(super) struct Running {
    pub(super) access: Access,
    /// Its link to the cloud.
    pub(super) link: Link,
    /// Port for pods, with TLS.
    pub(super) port: u16,
    /// Port of a hub for the node's own components, without TLS.
    pub(super) plain: u16,
    /// The health port of a hub.
    health: Option<Api>,
    /// `None` if there is none between client and cloud.
    process: Option<ManagedProcess>,
}

/// Ports of a hub.
struct Ports {
    health: u16,
    plain: u16,
    secure: u16,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hub => "yurthub",
            Self::Direct => "direct",
            Self::PassThrough => "pass-through",
            Self::Upstream170 => "upstream-1.7.0",
            Self::Upstream151 => "upstream-1.5.1",
        })
    }
}

// === impl Access ===

impl Access {
    /// True if it is a program of others.
    pub(super) fn is_peer(self) -> bool {
        !matches!(self, Self::Hub | Self::Direct)
    }

    /// True if it filters, and serves without the cloud.
    pub(super) fn is_hub(self) -> bool {
        !matches!(self, Self::Direct | Self::PassThrough)
    }
}

// === impl Running ===

impl Running {
    /// Starts it with default filters, and waits until it serves kube-proxy.
    pub(super) async fn start(world: &World, access: Access) -> Result<Self> {
        Self::with_flags(world, access, &[]).await
    }

    /// As [`Self::start`], with these flags in addition.
    pub(super) async fn with_flags(world: &World, access: Access, flags: &[(&str, &str)]) -> Result<Self> {
        let running = Self::without_clients(world, access, flags).await?;
        let session = world.pod(running.port, KUBE_PROXY)?;
        for path in [ALL_SERVICES, ALL_SLICES] {
            list_patiently(&session, path).await?;
        }
        Ok(running)
    }

    /// Starts it with empty folders; waits until a hub is healthy.
    pub(super) async fn without_clients(world: &World, access: Access, flags: &[(&str, &str)]) -> Result<Self> {
        let setup = &world.setup;
        let link = Link::open(&setup.tasks, world.cloud.address()).await?;
        let dir = tempfile::Builder::new()
            .prefix(&format!("{access}-"))
            .tempdir_in(&setup.dir)?
            .keep();
        let ports = Ports {
            health: ports::free()?,
            plain: ports::free()?,
            secure: ports::free()?,
        };
        let launch = match access {
            Access::Direct => None,
            Access::PassThrough => Some(pass_through(setup, &link, &ports, dir)?),
            Access::Hub => Some(ours(setup, &link, &ports, dir)?),
            Access::Upstream170 | Access::Upstream151 => Some(upstream(setup, &link, &ports, dir, access)?),
        };
        let launch = launch.map(|launch| {
            flags
                .iter()
                .fold(launch, |launch, (flag, value)| launch.flag(flag, value))
        });
        let mut running = Self {
            access,
            port: launch.as_ref().map_or(link.address().port(), |_| ports.secure),
            plain: ports.plain,
            link,
            health: access.is_hub().then(|| Api::plain(ports.health, "bench")).transpose()?,
            process: launch.map(ManagedProcess::new),
        };
        running.launch()?;
        running.healthy(Stopwatch::start()).await?;
        Ok(running)
    }

    fn launch(&mut self) -> Result<()> {
        match &mut self.process {
            Some(process) => process.start().map(drop),
            None => Ok(()),
        }
    }

    /// Time on `watch` at which it reports that it is healthy, or accepts connections.
    async fn healthy(&self, watch: Stopwatch) -> Result<Duration> {
        loop {
            let is_up = match &self.health {
                Some(health) => health.ping("/v1/healthz").await.is_ok(),
                None => tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_ok(),
            };
            if is_up {
                return Ok(watch.elapsed());
            }
            ensure!(watch.elapsed() < START_LIMIT, "{} did not become healthy", self.access);
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// Kills the process and starts it again on its folders. Returns the times until it is healthy and until kube-proxy
    /// has a list of slices of at least `bytes`.
    pub(super) async fn restart(&mut self, world: &World, bytes: u64) -> Result<(Duration, Duration)> {
        let process = self.process.as_mut().context("nothing to restart")?;
        process.kill().await?;
        let watch = Stopwatch::start();
        self.launch()?;
        let session = world.pod(self.port, KUBE_PROXY)?;
        let listed = async {
            loop {
                match list(&session, ALL_SLICES).await {
                    Ok(got) if got >= bytes => return Ok(watch.elapsed()),
                    _ if watch.elapsed() > START_LIMIT => anyhow::bail!("no full list"),
                    _ => tokio::time::sleep(ASK_EVERY).await,
                }
            }
        };
        tokio::try_join!(self.healthy(watch), listed)
    }

    /// Resources that its process has used; `None` without a process.
    pub(super) fn usage(&mut self) -> Result<Option<Usage>> {
        self.pid()?.map(usage::usage).transpose()
    }

    /// CPU time that its process has used; zero without a process.
    pub(super) fn cpu(&mut self) -> Result<Duration> {
        Ok(self.pid()?.map(usage::threads_cpu).transpose()?.unwrap_or_default())
    }

    /// Its process; `None` without one.
    pub(super) fn pid(&mut self) -> Result<Option<u32>> {
        let Some(process) = &mut self.process else {
            return Ok(None);
        };
        let program = process.program()?;
        program.must_run()?;
        Ok(program.id())
    }
}

/// Lists in protobuf as soon as that succeeds: a hub that is not ready refuses.
pub(super) async fn list_patiently(session: &Session, path: &str) -> Result<()> {
    let listed = async || list(session, path).await.map(drop);
    wait_for(START_LIMIT, "a list", listed).await.map(drop)
}

/// Lists in protobuf; the bytes of the answer.
pub(super) async fn list(session: &Session, path: &str) -> Result<u64> {
    let ask = Ask {
        accept: PROTOBUF,
        ..Ask::new(http::Method::GET, path, Vec::new())
    };
    let (bytes, _) = tokio::time::timeout(START_LIMIT, session.drain(ask)).await??;
    Ok(bytes)
}

fn pass_through(setup: &Setup, link: &Link, ports: &Ports, dir: PathBuf) -> Result<Launch> {
    let (cert, key) = setup.identities.server("pass-through")?;
    Ok(Launch::new(&dir, "pass-through", real::binary("pass-through")?)
        .flag("listen", format!("127.0.0.1:{}", ports.secure))
        .flag("server", format!("https://{}", link.address()))
        .flag("ca", setup.identities.ca_file().display())
        .flag("cert", cert.display())
        .flag("key", key.display()))
}

/// Flags that OpenYurt's hub and ours have in common, after writing the files below the root directory.
fn hub(setup: &Setup, link: &Link, ports: &Ports, dir: &std::path::Path, program: PathBuf) -> Result<Launch> {
    let pki = dir.join("root/pki");
    std::fs::create_dir_all(&pki)?;
    let (cert, key) = setup.identities.server("hub")?;
    let pair = std::fs::read_to_string(cert)? + &std::fs::read_to_string(key)?;
    pki::write_secret(&pki.join("yurthub-server-current.pem"), pair)?;
    Ok(Launch::new(dir, "yurthub", program)
        .flag("node-name", NODES[0])
        .flag("nodepool-name", POOL)
        .flag("server-addr", format!("https://{}", link.address()))
        .flag("bind-address", "127.0.0.1")
        .flag("serve-port", ports.health)
        .flag("bind-proxy-address", "127.0.0.1")
        .flag("proxy-port", ports.plain)
        .flag("proxy-secure-port", ports.secure)
        .flag("root-dir", dir.join("root").display())
        .flag("disk-cache-path", dir.join("cache").display())
        .flag("enable-dummy-if", false))
}

/// The user of a hub.
fn user() -> String {
    format!("system:node:{}", NODES[0])
}

fn ours(setup: &Setup, link: &Link, ports: &Ports, dir: PathBuf) -> Result<Launch> {
    let kubeconfig = setup
        .identities
        .kubeconfig("hub.kubeconfig", &user(), &[NODES_GROUP], link.address())?;
    let launch = hub(setup, link, ports, &dir, setup.bin_dir.join("yurthub"))?;
    Ok(launch
        .flag("bootstrap-mode", "kubeletcertificate")
        .flag("kubeconfig", kubeconfig.display()))
}

/// OpenYurt's hub has joined already: it finds certificates and kubeconfig where it would write them.
fn upstream(setup: &Setup, link: &Link, ports: &Ports, dir: PathBuf, access: Access) -> Result<Launch> {
    let version = access.to_string().replace("upstream-", "");
    // It recognizes its own requests by the name of its file.
    let program = dir.join("yurthub");
    symlink(real::binary(&format!("yurthub-{version}"))?, &program)?;
    let launch = hub(setup, link, ports, &dir, program)?;
    let identities = &setup.identities;
    let kubeconfig = identities.kubeconfig(
        "hub.kubeconfig",
        &user(),
        &[NODES_GROUP, UPSTREAM_GROUP],
        link.address(),
    )?;
    let root = dir.join("root");
    std::fs::copy(&kubeconfig, root.join("yurthub.conf"))?;
    std::fs::copy(identities.ca_file(), root.join("pki/ca.crt"))?;
    let pem = kubeconfig.with_extension("kubeconfig.pem");
    std::fs::copy(pem, root.join("pki/yurthub-current.pem"))?;
    let launch = launch.flag("bootstrap-file", kubeconfig.display());
    Ok(match access {
        Access::Upstream170 => launch
            .flag("node-ip", "127.0.0.1")
            .flag("multiplexer-port", ports::free()?),
        _ => launch,
    })
}
