//! `cargo xtask bench`: the coordinator and kube-apiserver on etcd under the same load in the same run, side by side.
//!
//! Each group of rows is a file of its own; both sides of a group start with an empty server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use yurt_runtime::TaskGroup;
use yurt_workspace::Stopwatch;

use super::options::{Common, Scale};
use super::system_under_test::{Environment, Side, SystemUnderTest};
use super::table::Table;
use super::watches::{self, Shape};
use super::{attacks, background_clients, build_info, disk, leases, lists, memory, objects};

/// Arguments of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure only these groups
    #[arg(value_enum)]
    groups: Vec<Group>,
    /// A tenth of the load: to try the benchmark itself, its figures mean little
    #[arg(long)]
    small: bool,
    #[command(flatten)]
    common: Common,
}

/// Rows that share their preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Group {
    /// Start, idle memory, memory with objects and after patches
    Memory,
    /// Renewals and reads of leases
    Leases,
    /// Creates and patches
    Objects,
    /// Lists in three formats
    Lists,
    /// Watchers: memory, fan-out, latency
    Watches,
    /// One watcher beside some that never read, or reconnect all the time
    #[value(alias = "companions")]
    BackgroundClients,
    /// Bytes written by heartbeats (minutes)
    Disk,
    /// A healthy client beside attackers; of the coordinator alone, and only when it is asked for
    Attacks,
}

const ALL: [Group; 7] = [
    Group::Memory,
    Group::Leases,
    Group::Objects,
    Group::Lists,
    Group::Watches,
    Group::BackgroundClients,
    Group::Disk,
];

/// Maximum time of one group of one side. Most take a minute, on a busy machine three; the attacks take seven.
const GROUP_LIMIT: Duration = Duration::from_secs(600);
/// Files that client and server may have open: 5,000 watchers have a connection each.
const FILES_MIN: u64 = 6_000;
/// A group that fails is measured once more.
const ATTEMPTS: usize = 2;

/// Builds, measures both sides group by group, prints the table.
///
/// # Errors
/// Names the groups that could not be measured, after everything else was.
pub(crate) fn run(args: &Args) -> Result<()> {
    let bin_dir = match args.is_of_ours_alone() {
        true => args.common.programs.build()?,
        false => args.common.build()?,
    };
    raise_files()?;
    let what = build_info::of(&args.groups, &args.common, args.small)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let dir = tempfile::Builder::new().prefix("yurt-bench-").tempdir()?;
        let environment = Environment::new(dir.path(), bin_dir, TaskGroup::new());
        let mut table = Table::new(what);
        let failed = measure_all(args, &environment, &mut table).await;
        println!("\n{}", table.text());
        if let Some(file) = &args.common.update {
            table.update(file, !args.groups.is_empty())?;
        }
        ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
        Ok(())
    })
}

/// Lets this process, and those it starts, open as many files as it may.
fn raise_files() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).context("cannot raise the limit of open files")?;
    // None is no limit.
    let most = limit.maximum.unwrap_or(u64::MAX);
    ensure!(
        most >= FILES_MIN,
        "at most {most} open files are allowed, the benchmark needs {FILES_MIN} (`ulimit -Hn`)"
    );
    Ok(())
}

// === impl Args ===

impl Args {
    fn is_of_ours_alone(&self) -> bool {
        self.common.skip_baseline || self.groups == [Group::Attacks]
    }
}

/// Measures all groups and returns those that failed.
async fn measure_all(args: &Args, environment: &Environment, table: &mut Table) -> Vec<String> {
    let groups: &[Group] = if args.groups.is_empty() { &ALL } else { &args.groups };
    let sides: &[Side] = if args.is_of_ours_alone() {
        &[Side::Ours]
    } else {
        &[Side::Ours, Side::Baseline]
    };
    let scale = Scale {
        divisor: if args.small { 10 } else { 1 },
    };
    let mut failed = Vec::new();
    for group in groups {
        let turns: Vec<&[Side]> = match group {
            Group::Disk => vec![sides],
            _ => sides.chunks(1).collect(),
        };
        for turn in turns {
            let names: Vec<String> = turn.iter().map(Side::to_string).collect();
            let name = format!("{group:?} of {}", names.join(" and "));
            if !measure_patiently(*group, environment, turn, scale, table, &name).await {
                failed.push(name);
            }
        }
    }
    failed
}

/// Whether it could be measured.
async fn measure_patiently(
    group: Group,
    environment: &Environment,
    sides: &[Side],
    scale: Scale,
    table: &mut Table,
    name: &str,
) -> bool {
    for _ in 0..ATTEMPTS {
        let watch = Stopwatch::start();
        let measured = tokio::time::timeout(GROUP_LIMIT, measure(group, environment, sides, scale, table)).await;
        match measured.context("took too long").flatten() {
            Ok(()) => {
                println!("   {name}: {watch}");
                return true;
            }
            Err(error) => println!("   {name} failed after {watch}: {error:#}"),
        }
    }
    false
}

async fn measure(
    group: Group,
    environment: &Environment,
    sides: &[Side],
    scale: Scale,
    table: &mut Table,
) -> Result<()> {
    if group == Group::Disk {
        return disk::measure(environment, sides, scale, table).await;
    }
    for side in sides {
        if group == Group::Watches {
            for shape in [Shape::Own, Shape::Shared] {
                let system = SystemUnderTest::start(environment, *side).await?;
                watches::measure(system, shape, scale, &mut table.of(*side)).await?;
            }
            continue;
        }
        let system = SystemUnderTest::start(environment, *side).await?;
        let mut notes = table.of(*side);
        match group {
            Group::Memory => memory::measure(system, scale, &mut notes).await?,
            Group::Leases => leases::measure(system, scale, &mut notes).await?,
            Group::Objects => objects::measure(system, scale, &mut notes).await?,
            Group::Lists => lists::measure(system, scale, &mut notes).await?,
            Group::BackgroundClients => background_clients::measure(system, scale, &mut notes).await?,
            Group::Attacks if *side == Side::Ours => attacks::measure_coordinator(system, scale).await?,
            Group::Watches | Group::Disk | Group::Attacks => {}
        }
    }
    Ok(())
}
