//! Faults against a pool of real processes: `cargo xtask chaos` and `cargo xtask links` are subcommands of this
//! program.
//!
//! Reading order:
//! * [`processes`]: programs are killed, paused, cut off and attacked, while clients record every event they receive;
//! * [`network`]: the packets between the programs are lost, duplicated, reordered, delayed or dropped one way.
//!
//! The programs and their network come from `testbed/`, the checks of the recorded histories from
//! `chaos-tests/validate`. Models and simulations are the program `yurt-chaos`, built apart.
#![allow(clippy::print_stdout, reason = "printing is what these commands are for")]

mod network;
mod processes;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Faults against a pool of real processes.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Inject faults into a pool of real processes and check the events its clients received
    Chaos(processes::Args),
    /// Check a pool whose packets are lost, duplicated, reordered or dropped (network namespaces; needs root)
    Links(network::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Chaos(args) => processes::run(&args),
        Command::Links(args) => network::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chaos: {error:#}");
            ExitCode::FAILURE
        }
    }
}
