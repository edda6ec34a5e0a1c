//! The half of the chaos tests without processes: models and simulations, run by the program `yurt-chaos`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use yurt_workspace::command;

use super::report::Totals;

/// Interval between progress lines of a run in the background.
const PROGRESS_EVERY: Duration = Duration::from_secs(20);

/// Models and simulations to run.
pub(super) struct Plan {
    /// With large bounds, and for this long at most.
    pub(super) long: Option<Duration>,
    /// Only those with this in their names.
    pub(super) only: Option<String>,
    pub(super) seed: u64,
    /// True for a run in the background: at the lowest priority, and only its progress is printed before the end.
    pub(super) is_aside: bool,
    /// `yurt-chaos`.
    pub(super) program: PathBuf,
}

/// Runs the program with files in `dir`. Returns its totals even after a violation, as long as it ran to its end.
///
/// # Errors
/// When the program ended without its totals.
pub(super) fn run(plan: &Plan, dir: &Path) -> Result<(Totals, Result<()>)> {
    let file = dir.join("totals.json");
    let mut command = if plan.is_aside {
        let mut nice = Command::new("nice");
        nice.args(["-n", "19"]).arg(&plan.program);
        nice
    } else {
        Command::new(&plan.program)
    };
    command.arg(format!("--seed={}", plan.seed));
    match plan.long {
        Some(longest) => command.args(["--long".to_owned(), format!("--within={}", longest.as_secs() / 60)]),
        None => command.arg("--quick"),
    };
    command.args(plan.only.iter().map(|only| format!("--only={only}")));
    command.arg("--totals").arg(&file);
    let outcome = if plan.is_aside {
        let mut said = Vec::new();
        let outcome = command::run_lines(&mut command, PROGRESS_EVERY, |line| match line {
            Some(line) => said.push(line.to_owned()),
            None => println!("   models and simulations: {} lines so far", said.len()),
        });
        println!("\n{}", said.join("\n"));
        outcome
    } else {
        command::run(&mut command)
    };
    match std::fs::read(&file) {
        Ok(text) => Ok((Totals::parse(&text).context("yurt-chaos --totals")?, outcome)),
        Err(_) if outcome.is_err() => bail!("models and simulations did not come to their end"),
        Err(error) => Err(error).context("yurt-chaos wrote no totals"),
    }
}
