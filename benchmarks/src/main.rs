//! Measurements: `cargo xtask bench`, `bench-pool`, `bench-hub`, `soak` and `scale` are subcommands of this program.
//!
//! Reading order: [`servers`] (one coordinator and one kube-apiserver under the same load, side by side) with `system`
//! (the measured server), [`usage`] (its resources), [`load`] (the client), and one file per group of rows: [`memory`],
//! [`leases`], [`objects`], [`lists`], [`watches`], [`background_clients`], [`disk`]; [`attacks`] has a table of its
//! own. [`pool`] measures a pool of several processes, [`hub`] a hub and other ways to the cloud. [`table`] prints,
//! [`build_info`] names the measured tree.
#![allow(clippy::print_stdout, reason = "printing is what these commands are for")]

mod attacks;
mod background_clients;
mod build_info;
mod disk;
mod hub;
mod leases;
mod lists;
mod load;
mod memory;
mod objects;
mod options;
mod pool;
mod samples;
mod servers;
mod system_under_test;
mod table;
mod usage;
mod watches;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};

/// Measurements of the coordinator, kube-apiserver and whole pools.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure the coordinator and kube-apiserver side by side (minutes)
    Bench(servers::Args),
    /// Measure a pool: leader loss, memory, events, starts, bytes from the cloud (minutes)
    BenchPool(pool::Args),
    /// Measure a hub, direct access, a reverse proxy and OpenYurt's hubs (half an hour)
    BenchHub(hub::Args),
    /// Cut a pool off from its coordinator and the cloud, and report resources that grow
    Soak(pool::soak::Args),
    /// Measure one coordinator under 1,000 hubs, and the forwarding of their heartbeats (minutes)
    Scale(pool::scale::Args),
}

fn main() -> ExitCode {
    match measure(&Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("benchmarks: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(command: &Command) -> Result<()> {
    // The client runs on the server's cores: one that is not optimised would be most of what is measured.
    ensure!(
        !cfg!(debug_assertions),
        "this client is not optimised: start it with `cargo xtask bench`, or with `cargo run --release`"
    );
    match command {
        Command::Bench(args) => servers::run(args),
        Command::BenchPool(args) => pool::run(args),
        Command::BenchHub(args) => hub::run(args),
        Command::Soak(args) => pool::soak::run(args),
        Command::Scale(args) => pool::scale::run(args),
    }
}
