//! `cargo xtask bench-pool`: a pool of real processes under leader loss, events and slow links (rows 15 to 22 of the targets).
//!
//! Reading order: [`field`] (what is started), [`election`] (a leader goes: rows 15, 16, 22), [`data`] (memory, events, start:
//! rows 17, 18, 19), [`bytes`] (what the cloud sends: row 20), [`slow`] (a thin link: row 21), [`peer`] (kube-apiserver on etcd as the pool's server),
//! [`soak`] (`cargo xtask soak`: does anything grow).

mod bytes;
mod data;
mod election;
mod field;
mod peer;
mod slow;
pub(crate) mod soak;

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::subject::{Lab, Side};
use super::table::Table;
use crate::interop::{self, Profile};
use crate::stopwatch::Stopwatch;

/// Arguments of `cargo xtask bench-pool`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure only these groups
    #[arg(value_enum)]
    groups: Vec<Group>,
    /// Leave kube-apiserver out, as the pool's server and as the cloud: no Go
    #[arg(long)]
    skip_peer: bool,
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
    /// The leader is killed (15) and stopped (16); heartbeats of a cut-off node meanwhile (22)
    Election,
    /// Memory with 1,009 slices (17), events (18), starts (19)
    Data,
    /// What the cloud sends to pools of 3, 10 and 30 hubs (20)
    Bytes,
    /// A first sync over a slow link with cuts (21); namespaces where permitted, a quarter of an hour
    Slow,
}

const ALL: [Group; 4] = [Group::Election, Group::Data, Group::Bytes, Group::Slow];

/// Builds, measures group by group, prints the table.
pub(crate) fn run(args: &Args) -> Result<()> {
    let bin_dir = match &args.bin_dir {
        Some(dir) => dir.clone(),
        None => interop::build_programs(Profile::Release)?,
    };
    if !args.skip_peer {
        interop::build()?;
    }
    let runtime = crate::lab::runtime()?;
    runtime.block_on(async {
        let dir = crate::lab::folder("bench-pool", false)?;
        let lab = Lab::new(dir.path(), bin_dir, yurt_runtime::TaskGroup::new());
        let groups = if args.groups.is_empty() {
            ALL.to_vec()
        } else {
            args.groups.clone()
        };
        let mut table = Table::of_pools();
        for group in groups {
            let watch = Stopwatch::start();
            let measured = measure(group, &lab, args, &mut table).await;
            measured.with_context(|| format!("{group:?}"))?;
            println!("   {group:?}: {watch}");
        }
        println!("\n{}", table.text());
        match &args.update {
            Some(file) => table.update(file, !args.groups.is_empty()),
            None => Ok(()),
        }
    })
}

async fn measure(group: Group, lab: &Lab, args: &Args, table: &mut Table) -> Result<()> {
    let real = !args.skip_peer;
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
