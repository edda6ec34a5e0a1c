//! `cargo xtask demo`: a cloud, a pool of three hubs and its coordinator on this machine, as a walkthrough.
//!
//! It needs Rust only. The steps are in [`story`]; the programs and tools are in [`yurt_testbed`].
#![allow(clippy::print_stdout, reason = "printing is what this program is for")]

mod story;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use yurt_runtime::{TaskGroup, shutdown};
use yurt_testbed::cloud::Choice;
use yurt_testbed::identities::Identities;
use yurt_testbed::pool::TestPool;
use yurt_testbed::{self as testbed, Setup, program};
use yurt_workspace::programs::{self, Profile};

/// Run a pool on this machine as a walkthrough: election, copying, heartbeats, failover, offline
#[derive(Parser)]
#[command(name = "demo", bin_name = "cargo xtask demo")]
struct Args {
    /// Exit after the walkthrough, with 0 only if every step held
    #[arg(long)]
    once: bool,
    /// Program that serves as the cloud
    #[arg(long, value_enum, default_value = "demo")]
    cloud: CloudKind,
    /// Use the cluster of this kubeconfig as the cloud. The demo only reads it and skips steps that change it. The
    /// demo's nodes and their Leases live in a process of the demo
    #[arg(long, value_name = "FILE", conflicts_with = "cloud")]
    kubeconfig: Option<PathBuf>,
    /// Keep the folder with certificates, data and logs
    #[arg(long)]
    keep: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CloudKind {
    /// A second yurt-coordinator, with sample data; needs nothing but Rust
    Demo,
    /// kube-apiserver and etcd (`cargo xtask build-interop`, needs Go)
    Real,
}

/// Lines of each log that are shown when a step fails.
const LOG_TAIL_LINES: usize = 15;
/// Time links and clients have to end.
const STOP_LIMIT: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the programs, runs the walkthrough, and then keeps the pool running unless `--once` is set.
fn run(args: &Args) -> Result<()> {
    let bin_dir = programs::build(Profile::Quick)?;
    let dir = testbed::folder("demo", args.keep)?;
    let runtime = testbed::runtime()?;
    runtime.block_on(play(args, dir.path(), bin_dir))
}

async fn play(args: &Args, dir: &Path, bin_dir: PathBuf) -> Result<()> {
    let tasks = TaskGroup::new();
    let setup = Setup {
        dir: dir.to_path_buf(),
        bin_dir,
        identities: Identities::new(dir)?,
        tasks: tasks.clone(),
        net: None,
    };
    // Dropping the story at any step kills every program it started.
    let outcome = tokio::select! {
        outcome = perform(args, setup) => outcome,
        signal = shutdown::wait_for_signal() => match signal {
            Ok(name) if args.once => Err(anyhow::anyhow!("{name} before the end of the story")),
            Ok(name) => {
                println!("\n{name}: everything is stopped and removed");
                Ok(())
            }
            Err(error) => Err(error.into()),
        },
    };
    // Links and clients have no state to save; those that do not end are dropped.
    let _ = tasks.shutdown(STOP_LIMIT).await;
    if outcome.is_err() {
        eprintln!("\n{}", program::log_tails(dir, LOG_TAIL_LINES));
    }
    outcome
}

async fn perform(args: &Args, setup: Setup) -> Result<()> {
    let mut pool = TestPool::new(setup, &args.choice())
        .await
        .context("the cloud did not start")?;
    story::tell(&mut pool).await?;
    if args.once {
        return Ok(());
    }
    invite(&pool)?;
    // Runs until a signal.
    std::future::pending().await
}

/// Prints commands to try next.
fn invite(pool: &TestPool) -> Result<()> {
    let identities = &pool.setup.identities;
    let coordinator = identities.admin_kubeconfig("admin.kubeconfig", pool.coordinator.port)?;
    let cloud = identities.admin_kubeconfig("cloud.kubeconfig", pool.cloud.port)?;
    println!("\nEverything stays up until Ctrl-C. Try:");
    println!("  kubectl --kubeconfig {} get leases -A", coordinator.display());
    println!("  kubectl --kubeconfig {} get endpointslices -A", coordinator.display());
    println!("  kubectl --kubeconfig {} get services -A --watch", cloud.display());
    if pool.cloud.writable {
        println!(
            "  kubectl --kubeconfig {} annotate service -n demo app-01 hello=pool --overwrite",
            cloud.display()
        );
    }
    for hub in &pool.hubs {
        println!(
            "  curl -s http://127.0.0.1:{}/debug/state.json     # hub {}",
            hub.health_port, hub.node
        );
    }
    let hub = pool.hubs.first().context("there must be a hub")?;
    println!(
        "  curl -s -A kube-proxy/demo http://127.0.0.1:{}/api/v1/services",
        hub.proxy_port
    );
    Ok(())
}

// === impl Args ===

impl Args {
    fn choice(&self) -> Choice {
        match (&self.kubeconfig, self.cloud) {
            (Some(path), _) => Choice::Kubeconfig(path.clone()),
            (None, CloudKind::Demo) => Choice::Demo,
            (None, CloudKind::Real) => Choice::Real,
        }
    }
}
