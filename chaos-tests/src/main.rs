//! `yurt-chaos`: explores the models, runs the simulations, hunts the mutants, and prints the results.

#![allow(clippy::print_stdout, reason = "printing is what this program is for")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use yurt_chaos_tests::faults::Fault;
use yurt_chaos_tests::run::{Plan, run};
use yurt_runtime::Clock;

/// Models and simulations of the pool under faults. Exit code 0: nothing was violated and every mutant was caught.
#[derive(Parser)]
#[command(name = "yurt-chaos")]
struct Flags {
    /// Use small bounds, a few minutes (the default).
    #[arg(long, conflicts_with = "long")]
    quick: bool,
    /// Use large bounds.
    #[arg(long)]
    long: bool,
    /// Run only scenarios and mutants with NAME in their names.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// First seed of every simulation; the same seed at the same commit is the same run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads of an exploration.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Most minutes for one exploration.
    #[arg(long, value_name = "MINUTES", default_value_t = 30)]
    minutes: u64,
    /// Most minutes for everything together; unfinished scenarios count as failures.
    #[arg(long, value_name = "MINUTES", default_value_t = 600)]
    within: u64,
    /// Also write the totals to FILE, as JSON.
    #[arg(long, value_name = "FILE")]
    totals: Option<PathBuf>,
    /// Print the faults of the models and exit.
    #[arg(long)]
    faults: bool,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    if flags.faults {
        for fault in Fault::ALL {
            println!("{:<28} {}", fault.id(), fault.what());
        }
        return ExitCode::SUCCESS;
    }
    let plan = Plan {
        long: flags.long,
        only: flags.only,
        seed: flags.seed,
        threads: flags.threads,
        longest: Duration::from_secs(60 * flags.minutes),
        ends: Clock::system().boot() + Duration::from_secs(60 * flags.within),
    };
    let report = run(&plan, &mut |line| println!("{line}"));
    print!("{report}");
    let mut problems = report.problems();
    if let Some(path) = flags.totals
        && let Err(error) = std::fs::write(&path, report.totals().to_string())
    {
        problems.push(format!("cannot write {}: {error}", path.display()));
    }
    for problem in &problems {
        println!("\nFAILED {problem}");
    }
    if problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
