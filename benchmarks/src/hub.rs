//! `cargo xtask bench-hub`: a hub and other ways to the cloud, side by side (rows 23 to 31 of the targets).
//!
//! The cloud is one kube-apiserver with etcd, 1,000 Services and 1,000 EndpointSlices of 100 endpoints. Each way has a
//! link of its own to it ([`access`]): none, a reverse proxy, our hub, OpenYurt's hub. Clients are pods with a service
//! account token and one TLS connection each. Reading order: [`world`] (cloud and data, with [`upstream_rights`]),
//! [`access`], then one file per group of rows: [`memory`], [`reads`], [`events`], [`filters`], [`outage`]; [`attacks`]
//! prints a table of its own.

mod access;
mod attacks;
mod events;
mod filters;
mod memory;
mod outage;
mod reads;
mod upstream_rights;
mod world;

use anyhow::{Result, ensure};
use yurt_workspace::{Stopwatch, programs};

use super::build_info;
use super::options::Common;
use super::system_under_test::Environment;
use super::table::{Notes, Table};
use access::{Access, Running};
use world::World;

/// Arguments of `cargo xtask bench-hub`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Measure only these groups
    #[arg(value_enum)]
    groups: Vec<Group>,
    /// Measure only these ways to the cloud
    #[arg(long = "access", value_enum, conflicts_with = "update")]
    access: Vec<Access>,
    /// Keep the folder with the logs
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    common: Common,
}

/// Rows that share their preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Group {
    /// Memory without clients and with 20 pods (23)
    Memory,
    /// Lists (25), reads by name (28), restart (24)
    Reads,
    /// Events to 1 and 20 clients: bytes (26), CPU (27), latency (28)
    Events,
    /// Lists and events of kube-proxy with filters, by the number of Services that a filter changes (31)
    Filters,
    /// The cloud is killed, swallows packets (29), and is back (30)
    Outage,
    /// The kubelet beside a pod that attacks; of our hub alone, and only when it is asked for (minutes)
    Attacks,
}

const ALL: [Group; 5] = [
    Group::Memory,
    Group::Reads,
    Group::Events,
    Group::Filters,
    Group::Outage,
];

/// Builds, measures one way after the other, prints the table.
///
/// # Errors
/// Names what could not be measured, after everything else was.
pub(super) fn run(args: &Args) -> Result<()> {
    programs::build_kubernetes()?;
    if args.access().iter().any(|access| access.is_peer()) {
        programs::build_peers()?;
    }
    let bin_dir = args.common.programs.build()?;
    let what = build_info::of(&args.groups, &args.common, false)?;
    let runtime = yurt_testbed::runtime()?;
    runtime.block_on(async {
        let dir = yurt_testbed::folder("bench-hub", args.keep)?;
        let environment = Environment::new(dir.path(), bin_dir, yurt_runtime::TaskGroup::new());
        let mut world = World::start(&environment).await?;
        let mut table = Table::of_hubs(what);
        let mut failed = Vec::new();
        for access in args.access() {
            for group in args.groups() {
                let watch = Stopwatch::start();
                let mut notes = table.column(access as usize);
                match measure(group, access, &mut world, &mut notes).await {
                    Ok(()) => println!("   {group:?} of {access}: {watch}"),
                    Err(error) => {
                        println!("   {group:?} of {access} failed after {watch}: {error:#}");
                        failed.push(format!("{group:?} of {access}: {error:#}"));
                    }
                }
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

async fn measure(group: Group, access: Access, world: &mut World, notes: &mut Notes<'_>) -> Result<()> {
    match group {
        Group::Memory => {
            let mut running = Running::without_clients(world, access, &[]).await?;
            memory::measure(&mut running, world, notes).await
        }
        Group::Reads => reads::measure(&mut Running::start(world, access).await?, world, notes).await,
        Group::Events => events::measure(&mut Running::start(world, access).await?, world, notes).await,
        Group::Filters if access.is_hub() => filters::measure(world, access, notes).await,
        Group::Outage if access.is_hub() => outage::measure(&Running::start(world, access).await?, world, notes).await,
        Group::Attacks if access == Access::Hub => {
            attacks::measure(&mut Running::start(world, access).await?, world).await
        }
        // Without a hub nothing is filtered, and nothing is served without the cloud.
        Group::Filters | Group::Outage | Group::Attacks => Ok(()),
    }
}

// === impl Args ===

impl Args {
    fn groups(&self) -> Vec<Group> {
        match self.groups.as_slice() {
            [] => ALL.to_vec(),
            groups => groups.to_vec(),
        }
    }

    fn access(&self) -> Vec<Access> {
        let all = [
            Access::Hub,
            Access::Direct,
            Access::PassThrough,
            Access::Upstream170,
            Access::Upstream151,
        ];
        let is_wanted = |access: &Access| match self.access.as_slice() {
            [] => !self.common.skip_baseline || matches!(access, Access::Hub | Access::Direct),
            wanted => wanted.contains(access),
        };
        all.into_iter().filter(is_wanted).collect()
    }
}
