//! `cargo xtask bench`: the coordinator and kube-apiserver on etcd under the same load in the same run, side by side.
//!
//! Reading order: [`subject`] (what is measured), [`process`] (what the kernel says about it), [`load`] (the client), then
//! one file per group of rows: [`memory`], [`leases`], [`objects`], [`lists`], [`watches`], [`disk`]. A pool of several
//! processes is measured in [`pool`], by commands of its own.

mod disk;
mod leases;
mod lists;
mod load;
mod memory;
mod objects;
pub(crate) mod pool;
mod process;
mod samples;
mod subject;
mod table;
mod watches;

use std::path::PathBuf;

use anyhow::{Context, Result};
use yurt_runtime::TaskGroup;

use crate::interop::{self, Profile};
use crate::stopwatch::Stopwatch;
use subject::{Lab, Side, Subject};
use table::Table;

/// Arguments of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure only these groups
    #[arg(value_enum)]
    groups: Vec<Group>,
    /// Leave the peer out: no ratios, half the time, no Go
    #[arg(long)]
    skip_peer: bool,
    /// A tenth of the load: to try the benchmark itself, its figures mean little
    #[arg(long)]
    small: bool,
    /// Use the programs in this folder instead of building them
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Write the table, as Markdown, between the markers of this file too; with groups, its other rows stay
    #[arg(long, value_name = "FILE")]
    update: Option<PathBuf>,
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
    /// Bytes written by heartbeats (minutes)
    Disk,
}

const ALL: [Group; 6] = [
    Group::Memory,
    Group::Leases,
    Group::Objects,
    Group::Lists,
    Group::Watches,
    Group::Disk,
];

/// How much load.
#[derive(Clone, Copy)]
struct Scale {
    divisor: usize,
}

impl Scale {
    /// `full`, or a tenth of it.
    fn of(self, full: usize) -> usize {
        (full / self.divisor).max(1)
    }
}

/// Builds, measures both sides group by group, prints the table.
pub(crate) fn run(args: &Args) -> Result<()> {
    let bin_dir = match &args.bin_dir {
        Some(dir) => dir.clone(),
        None => interop::build_programs(Profile::Release)?,
    };
    if !args.skip_peer {
        interop::build()?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let tasks = TaskGroup::new();
        let dir = tempfile::Builder::new().prefix("yurt-bench-").tempdir()?;
        let lab = Lab::new(dir.path(), bin_dir, tasks);
        let groups = if args.groups.is_empty() {
            ALL.to_vec()
        } else {
            args.groups.clone()
        };
        let scale = Scale {
            divisor: if args.small { 10 } else { 1 },
        };
        let mut table = Table::default();
        for group in groups {
            for side in [Side::Ours, Side::Peer] {
                if side == Side::Peer && args.skip_peer {
                    continue;
                }
                let watch = Stopwatch::start();
                measure(group, &lab, side, scale, &mut table)
                    .await
                    .with_context(|| format!("{group:?} of {side}"))?;
                println!("   {group:?} of {side}: {watch}");
            }
        }
        println!("\n{}", table.text());
        match &args.update {
            Some(file) => table.update(file, !args.groups.is_empty()),
            None => Ok(()),
        }
    })
}

async fn measure(group: Group, lab: &Lab, side: Side, scale: Scale, table: &mut Table) -> Result<()> {
    let subject = Subject::start(lab, side).await?;
    let mut notes = table.of(side);
    match group {
        Group::Memory => memory::measure(subject, scale, &mut notes).await,
        Group::Leases => leases::measure(subject, scale, &mut notes).await,
        Group::Objects => objects::measure(subject, scale, &mut notes).await,
        Group::Lists => lists::measure(subject, scale, &mut notes).await,
        Group::Watches => watches::measure(subject, scale, &mut notes).await,
        Group::Disk => disk::measure(subject, scale, &mut notes).await,
    }
}
