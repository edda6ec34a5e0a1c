//! `cargo xtask`: every command of this workspace, each one line in the list it prints without arguments.
//!
//! Reading order:
//! * [`workspace`]: location and metadata of the workspace;
//! * [`tidy`]: the house rules as code;
//! * [`mod@test`]: the steps of CI;
//! * [`conformance`]: cases and the tests for them;
//! * [`interop`]: the Go module with the real Kubernetes programs;
//! * [`demo`]: a pool on this machine as a walkthrough.
#![allow(clippy::print_stdout, reason = "printing is what these commands are for")]

mod bench;
mod chaos;
mod conformance;
mod demo;
mod deny;
mod fuzz;
mod interop;
mod lab;
mod links;
mod mutants;
mod process;
mod rust_text;
mod stopwatch;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

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
    Demo(demo::Args),
    /// Inject faults into a pool of real processes and check the events its clients received
    Chaos(chaos::Args),
    /// Check a pool whose packets are lost, duplicated, reordered or dropped (network namespaces; needs root)
    Links(links::Args),
    /// Build kube-apiserver, etcd and further Kubernetes programs into interop/.cache
    BuildInterop,
    /// Search for inputs that break a fuzz target, for a bounded time
    Fuzz(fuzz::Args),
    /// Mutate the core in small ways, and report mutants that no test catches (an hour; not part of `test`)
    Mutants(mutants::Args),
    /// Measure the coordinator and kube-apiserver side by side (minutes)
    Bench(bench::Args),
    /// Measure a pool: leader loss, memory, events, starts, bytes from the cloud (minutes)
    BenchPool(bench::pool::Args),
    /// Cut a pool off from its coordinator and the cloud, and report resources that grow
    Soak(bench::pool::soak::Args),
    /// Measure one coordinator under 1,000 hubs, and the forwarding of their heartbeats (minutes)
    Scale(bench::pool::scale::Args),
    /// Send the same requests to kube-apiserver and the coordinator and compare the answers
    Differential(interop::DifferentialArgs),
    /// Measure start time, memory, and bytes that a pool reads from the cloud (minutes)
    Figures(interop::FiguresArgs),
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
        Command::Demo(args) => demo::run(&args),
        Command::Chaos(args) => chaos::run(&args),
        Command::Links(args) => links::run(&args),
        Command::BuildInterop => interop::build(),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Mutants(args) => mutants::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::BenchPool(args) => bench::pool::run(&args),
        Command::Soak(args) => bench::pool::soak::run(&args),
        Command::Scale(args) => bench::pool::scale::run(&args),
        Command::Differential(args) => interop::differential(&args),
        Command::Figures(args) => interop::figures(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
