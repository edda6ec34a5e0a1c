//! `cargo xtask bench-pool`: a pool of real processes under leader loss, events and slow links (rows 15 to 22 of the
//! targets).
//!
//! Reading order: [`fixture`] (what is started), [`election`] (a leader goes: rows 15, 16, 22), [`data`] (memory,
//! events, start: rows 17, 18, 19), [`bytes`] (what the cloud sends: row 20), [`slow`] (a thin link: row 21),
//! [`baseline`] (kube-apiserver on etcd as the pool's server), [`soak`] (`cargo xtask soak`: does anything grow),
//! [`scale`] (`cargo xtask scale`: a pool of 1,000 hubs).

mod baseline;
mod bytes;
mod data;
mod election;
mod fixture;
pub(crate) mod scale;
mod slow;
pub(crate) mod soak;

use anyhow::{Result, ensure};
use yurt_workspace::Stopwatch;

use super::build_info;
use super::options::Common;
use super::system_under_test::{Environment, Side};
use super::table::Table;

/// Arguments of `cargo xtask bench-pool`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure only these groups
    #[arg(value_enum)]
    groups: Vec<Group>,
    #[command(flatten)]
    common: Common,
}

/// Rows that share their preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Group {
    /// The leader is killed (15) and stopped (16); heartbeats of a cut-off node during that (22)
    Election,
    /// Memory with 1,009 slices (17), events (18), starts (19)
    Data,
    /// Bytes that the cloud sends to pools of 3, 10 and 30 hubs (20)
    Bytes,
    /// A first sync over a slow link with cuts (21); namespaces where permitted, a quarter of an hour
    Slow,
}

const ALL: [Group; 4] = [Group::Election, Group::Data, Group::Bytes, Group::Slow];

/// Builds, measures group by group, prints the table.
///
/// # Errors
/// Names the groups that could not be measured to the end, after everything else was.
pub(crate) fn run(args: &Args) -> Result<()> {
    let bin_dir = args.common.build()?;
    let what = build_info::of(&args.groups, &args.common, false)?;
    let runtime = yurt_testbed::runtime()?;
    runtime.block_on(async {
        let dir = yurt_testbed::folder("bench-pool", false)?;
        let environment = Environment::new(dir.path(), bin_dir, yurt_runtime::TaskGroup::new());
        let groups = if args.groups.is_empty() {
            ALL.to_vec()
        } else {
            args.groups.clone()
        };
        let mut table = Table::of_pools(what);
        let mut failed = Vec::new();
        for group in groups {
            let watch = Stopwatch::start();
            match measure(group, &environment, args, &mut table).await {
                Ok(()) => println!("   {group:?}: {watch}"),
                Err(error) => failed.push(format!("{group:?}: {error:#}")),
            }
        }
        println!("\n{}", table.text());
        if let Some(file) = &args.common.update {
            table.update(file, !args.groups.is_empty())?;
        }
        ensure!(failed.is_empty(), "not measured to the end: {}", failed.join("; "));
        Ok(())
    })
}

async fn measure(group: Group, environment: &Environment, args: &Args, table: &mut Table) -> Result<()> {
    let real = !args.common.skip_baseline;
    match group {
        Group::Election => election::measure(environment, &mut table.of(Side::Ours)).await,
        Group::Data => {
            data::measure(environment, real, &mut table.of(Side::Ours)).await?;
            match real {
                true => baseline::measure(environment, &mut table.of(Side::Baseline)).await,
                false => Ok(()),
            }
        }
        Group::Bytes => bytes::measure(environment, &mut table.of(Side::Ours)).await,
        Group::Slow => slow::measure(environment, real, &mut table.of(Side::Ours)).await,
    }
}
