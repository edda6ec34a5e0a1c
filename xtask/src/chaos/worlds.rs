//! The half of the chaos tests that needs no processes: models and simulations, by the program `yurt-chaos`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::report::Totals;
use crate::process;

/// What to explore and simulate.
pub(super) struct Plan {
    /// With large bounds, and for this long at most.
    pub(super) long: Option<Duration>,
    /// Only what has this in its name.
    pub(super) only: Option<String>,
    pub(super) seed: u64,
    /// Beside others: at the lowest priority, and nothing is printed before the end.
    pub(super) is_aside: bool,
    /// `yurt-chaos`.
    pub(super) program: PathBuf,
}

/// Runs it with files in `dir`; what it did is told even when something was violated, as long as it came to its end.
///
/// # Errors
/// When the program ended without its totals.
pub(super) fn run(plan: &Plan, dir: &Path) -> Result<(Totals, Result<()>)> {
    let (file, said) = (dir.join("totals.json"), dir.join("said"));
    let mut command = if plan.is_aside {
        let mut nice = Command::new("nice");
        nice.args(["-n", "19"]).arg(&plan.program).stdout(File::create(&said)?);
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
    let outcome = process::run(command.arg("--totals").arg(&file));
    if plan.is_aside {
        println!("\n{}", std::fs::read_to_string(&said)?);
    }
    match std::fs::read(&file) {
        Ok(text) => Ok((Totals::parse(&text).context("yurt-chaos --totals")?, outcome)),
        Err(_) if outcome.is_err() => bail!("models and simulations did not come to their end"),
        Err(error) => Err(error).context("yurt-chaos wrote no totals"),
    }
}
