//! `cargo xtask bench-pool`: a pool of real processes under leader loss, events and slow links (rows 15 to 22 of the targets).
//!
//! Reading order: [`field`] (what is started), [`election`] (a leader goes: rows 15, 16, 22), [`data`] (memory, events, start:
//! rows 17, 18, 19), [`bytes`] (what the cloud sends: row 20), [`slow`] (a thin link: row 21), [`peer`] (kube-apiserver on etcd as the pool's server),
//! [`soak`] (`cargo xtask soak`: does anything grow), [`scale`] (`cargo xtask scale`: a pool of 1,000 hubs).

mod bytes;
mod data;
mod election;
mod field;
mod peer;
pub(crate) mod scale;
mod slow;
pub(crate) mod soak;

use anyhow::{Result, ensure};
use yurt_workspace::Stopwatch;

use super::options::Common;
use super::origin;
use super::subject::{Lab, Side};
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
    let what = origin::of(&args.groups, &args.common, false)?;
    let runtime = yurt_testbed::runtime()?;
    runtime.block_on(async {
        let dir = yurt_testbed::folder("bench-pool", false)?;
        let lab = Lab::new(dir.path(), bin_dir, yurt_runtime::TaskGroup::new());
        let groups = if args.groups.is_empty() {
            ALL.to_vec()
        } else {
            args.groups.clone()
        };
        let mut table = Table::of_pools(what);
        let mut failed = Vec::new();
        for group in groups {
            let watch = Stopwatch::start();
            match measure(group, &lab, args, &mut table).await {
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

async fn measure(group: Group, lab: &Lab, args: &Args, table: &mut Table) -> Result<()> {
    let real = !args.common.skip_peer;
    match group {
        Group::Election => election::measure(lab, &mut table.of(Side::Ours)).await,
        Group::Data => {
            data::measure(lab, real, &mut table.of(Side::Ours)).await?;
            match real {
                true => peer::measure(lab, &mut table.of(Side::Peer)).await,
                false => Ok(()),
            }
        }
        Group::Bytes => bytes::measure(lab, &mut table.of(Side::Ours)).await,
        Group::Slow => slow::measure(lab, real, &mut table.of(Side::Ours)).await,
    }
}
