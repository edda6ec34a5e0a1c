//! `cargo xtask`: every command of this workspace, each one line in the list it prints without arguments.
//!
//! Reading order:
//! * [`tidy`]: the house rules as code;
//! * [`mod@test`]: the steps of CI;
//! * [`conformance`]: cases and the tests for them;
//! * [`interop`]: the Go module with the real Kubernetes programs;
//! * [`forward`]: demo, chaos and benchmarks, which are programs of their own.
#![allow(clippy::print_stdout, reason = "printing is what these commands are for")]

mod conformance;
mod deny;
mod forward;
mod fuzz;
mod interop;
mod mutants;
mod rust_text;
mod test;
mod tidy;
mod tree;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use forward::{Arguments, BENCH, BENCH_HUB, BENCH_POOL, CHAOS, DEMO, LINKS, SCALE, SOAK};

/// Commands of the workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Check the house rules that the compiler does not check (`--list` names them)
    Tidy(tidy::Args),
    /// Run the steps of CI: fmt, tidy, clippy, doc, deny, unit, chaos, fuzz, interop
    Test(test::Args),
    /// Print the tests for each conformance case, and their results (`--list` runs nothing)
    Conformance(conformance::Args),
    /// Run a pool on this machine as a walkthrough: election, copying, heartbeats, failover, offline
    #[command(disable_help_flag = true)]
    Demo(Arguments),
    /// Inject faults into a pool of real processes and check the events its clients received
    #[command(disable_help_flag = true)]
    Chaos(Arguments),
    /// Check a pool whose packets are lost, duplicated, reordered or dropped (network namespaces; needs root)
    #[command(disable_help_flag = true)]
    Links(Arguments),
    /// Build kube-apiserver, etcd and further Kubernetes programs into interop/.cache
    BuildInterop,
    /// Search for inputs that break a fuzz target, for a bounded time
    Fuzz(fuzz::Args),
    /// Mutate the core in small ways, and report mutants that no test catches (an hour; not part of `test`)
    Mutants(mutants::Args),
    /// Measure the coordinator and kube-apiserver side by side (minutes)
    #[command(disable_help_flag = true)]
    Bench(Arguments),
    /// Measure a pool: leader loss, memory, events, starts, bytes from the cloud (minutes)
    #[command(disable_help_flag = true)]
    BenchPool(Arguments),
    /// Measure a hub, direct access, a reverse proxy and OpenYurt's hubs (half an hour)
    #[command(disable_help_flag = true)]
    BenchHub(Arguments),
    /// Cut a pool off from its coordinator and the cloud, and report resources that grow
    #[command(disable_help_flag = true)]
    Soak(Arguments),
    /// Measure one coordinator under 1,000 hubs, and the forwarding of their heartbeats (minutes)
    #[command(disable_help_flag = true)]
    Scale(Arguments),
    /// Send the same requests to kube-apiserver and the coordinator and compare the answers
    Differential(interop::DifferentialArgs),
}

fn main() -> ExitCode {
    let Some(command) = Cli::parse().command else {
        // Without a command the list is the answer, and no failure.
        return match Cli::command().print_help() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    };
    let outcome = match command {
        Command::Tidy(args) => tidy::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Conformance(args) => conformance::run(&args),
        Command::Demo(args) => DEMO.replace(&args),
        Command::Chaos(args) => CHAOS.replace(&args),
        Command::Links(args) => LINKS.replace(&args),
        Command::BuildInterop => yurt_workspace::programs::build_kubernetes(),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Mutants(args) => mutants::run(&args),
        Command::Bench(args) => BENCH.replace(&args),
        Command::BenchPool(args) => BENCH_POOL.replace(&args),
        Command::BenchHub(args) => BENCH_HUB.replace(&args),
        Command::Soak(args) => SOAK.replace(&args),
        Command::Scale(args) => SCALE.replace(&args),
        Command::Differential(args) => interop::differential(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
