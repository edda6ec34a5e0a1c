//! `cargo xtask`: every command of this workspace, each one line in the list it prints without arguments.
//!
//! Reading order: [`workspace`] (where things are), [`tidy`] (the house rules as code), [`mod@test`] (what CI runs),
//! [`conformance`] (cases and the tests that show them),
//! [`interop`] (the Go module with the real Kubernetes programs), [`demo`] (a pool on this machine as a story).
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
    /// Check the house rules that no compiler knows (`--list` names them)
    Tidy(tidy::Args),
    /// Run what CI runs: fmt, tidy, clippy, doc, deny, unit, chaos, fuzz, interop
    Test(test::Args),
    /// Print which test shows which conformance case, and whether it passes (`--list` runs nothing)
    Conformance(conformance::Args),
    /// Run a pool on this machine as a story: election, copying, heartbeats, failover, offline
    Demo(demo::Args),
    /// Let faults strike a pool of real processes and check what its clients were told
    Chaos(chaos::Args),
    /// Check a pool whose packets are lost, doubled, overtaken or swallowed (network namespaces; root)
    Links(links::Args),
    /// Build kube-apiserver, etcd and the rest into interop/.cache
    BuildInterop,
    /// Look for inputs that break a fuzz target, for a bounded time
    Fuzz(fuzz::Args),
    /// Change the core in small ways, and look for changes that no test notices (an hour; not part of `test`)
    Mutants(mutants::Args),
    /// Measure the coordinator and kube-apiserver side by side (minutes)
    Bench(bench::Args),
    /// Measure a pool: leader loss, memory, events, starts, bytes from the cloud (minutes)
    BenchPool(bench::pool::Args),
    /// Let a pool lose its coordinator and the cloud, and look for what grows
    Soak(bench::pool::soak::Args),
    /// Measure one coordinator under 1,000 hubs, and the forwarding of their heartbeats (minutes)
    Scale(bench::pool::scale::Args),
    /// Play the same requests against kube-apiserver and the coordinator and compare the answers
    Differential(interop::DifferentialArgs),
    /// Measure the figures the README quotes (minutes)
    Figures(interop::FiguresArgs),
}

fn main() -> ExitCode {
    let Some(command) = Cli::parse().command else {
        // Nothing was asked for: the list is the answer, and no failure.
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
