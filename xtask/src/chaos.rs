//! `cargo xtask chaos`: a pool of real processes under faults, and clients that must notice nothing.
//!
//! A cloud, a coordinator and three hubs run as in the demo. Changes arrive at the cloud at a steady pace, clients behind
//! every hub record all they are told, and faults strike from a seed. In the end everything is mended, the pool must come
//! to rest, and every history is checked against what the cloud really had.
//!
//! [`faults`] (what can happen), [`agenda`] (when; pure), [`traffic`] (changes in the cloud), [`history`] (what is a
//! violation; pure), [`mod@run`] (one run), and the report below.

mod agenda;
mod faults;
pub(crate) mod history;
mod run;
mod traffic;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use yurt_runtime::TaskGroup;

use crate::interop::{self, Profile};
use crate::lab::cloud::Choice;
use crate::lab::identities::Identities;
use crate::lab::{self, Setup, program};
use faults::Fault;
use run::Outcome;

/// Arguments of `cargo xtask chaos`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A run of two minutes (the default)
    #[arg(long, conflicts_with = "minutes")]
    quick: bool,
    /// Let faults strike for this long
    #[arg(long, value_name = "N")]
    minutes: Option<u32>,
    /// Which faults strike, and when; the same number, the same faults
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these faults
    #[arg(long, value_enum, value_name = "FAULT", value_delimiter = ',')]
    only: Vec<Fault>,
    /// kube-apiserver and etcd as the cloud (`cargo xtask build-interop`, needs Go)
    #[arg(long)]
    real: bool,
    /// Keep the folder with certificates, data and logs
    #[arg(long)]
    keep: bool,
}

/// How long faults strike in a quick run.
const QUICK: Duration = Duration::from_secs(120);
/// A run with fewer changes per second than this says nothing.
const CHANGES_PER_SECOND_MIN: f64 = 2.0;
/// Lines of each log that are shown after a violation.
const LOG_TAIL_LINES: usize = 40;
/// How long links and clients may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Runs it and prints what happened.
///
/// # Errors
/// A violation, a pool that does not come to rest, or a run that says nothing.
pub(crate) fn run(args: &Args) -> Result<()> {
    let bin_dir = interop::build_programs(Profile::Quick)?;
    let dir = lab::folder("chaos", args.keep)?;
    let runtime = lab::runtime()?;
    let tasks = TaskGroup::new();
    let setup = Setup {
        dir: dir.path().to_path_buf(),
        bin_dir,
        identities: Identities::new(dir.path())?,
        tasks: tasks.clone(),
        net: None,
    };
    let outcome = runtime.block_on(async {
        let outcome = run::run(setup, &args.plan()).await;
        let _ = tasks.shutdown(STOP_LIMIT).await;
        outcome
    });
    let told = outcome.and_then(|outcome| args.judge(&outcome));
    if told.is_err() {
        eprintln!("\n{}", program::log_tails(dir.path(), LOG_TAIL_LINES));
        eprintln!("again: {}", args.again());
    }
    told
}

// === impl Args ===

impl Args {
    fn lasts(&self) -> Duration {
        self.minutes
            .map_or(QUICK, |minutes| Duration::from_secs(60 * u64::from(minutes)))
    }

    fn plan(&self) -> run::Plan {
        let kinds = match self.only.is_empty() {
            true => Fault::value_variants().to_vec(),
            false => self.only.clone(),
        };
        run::Plan {
            seed: self.seed,
            lasts: self.lasts(),
            kinds,
            cloud: if self.real { Choice::Real } else { Choice::Demo },
        }
    }

    fn again(&self) -> String {
        let minutes = self
            .minutes
            .map_or_else(String::new, |minutes| format!(" --minutes {minutes}"));
        let only: Vec<String> = self.only.iter().map(|fault| fault.to_string()).collect();
        let only = if only.is_empty() {
            String::new()
        } else {
            format!(" --only {}", only.join(","))
        };
        let real = if self.real { " --real" } else { "" };
        format!("cargo xtask chaos --seed {}{minutes}{only}{real} --keep", self.seed)
    }

    fn judge(&self, outcome: &Outcome) -> Result<()> {
        let struck: u32 = outcome.struck.values().sum();
        println!("\nfaults, {struck} of {} kinds:", outcome.struck.len());
        print_columns(&outcome.struck);
        let verdict = &outcome.verdict;
        println!(
            "\n{} changes in the cloud ({} not answered), {} clients, {} statements checked, {} whole states compared, \
             {} relists, {} streams; at rest after {:.1} s",
            outcome.written.total(),
            outcome.written.failed,
            outcome.clients,
            verdict.checked,
            verdict.bookmarks,
            outcome.relists,
            outcome.streams,
            outcome.rest.as_secs_f64()
        );
        let pace = outcome.written.total() as f64 / self.lasts().as_secs_f64();
        ensure!(
            pace >= CHANGES_PER_SECOND_MIN,
            "void: {pace:.1} changes per second are too few to say anything"
        );
        ensure!(verdict.bookmarks > 0, "void: no whole state was compared");
        if verdict.violations.is_empty() {
            println!("0 violations");
            return Ok(());
        }
        for violation in &verdict.violations {
            println!("✗ {violation}");
        }
        bail!("{} violations", verdict.violations.len());
    }
}

fn print_columns(struck: &BTreeMap<Fault, u32>) {
    for row in struck.iter().collect::<Vec<_>>().chunks(3) {
        let cells = row
            .iter()
            .map(|(fault, count)| format!("  {count:>4} {:<28}", fault.to_string()));
        println!("{}", cells.collect::<String>().trim_end());
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("?", |value| value.get_name()))
    }
}
