//! `cargo xtask conformance`: the tests for each conformance case, and their results.
//!
//! Cases are listed in `docs/conformance.md`; tests claim them in their comments (`Conformance: 2.53, 3.G02`). The tidy
//! check of the same name compares both; this command also runs the tests.

mod cases;
mod claims;
mod results;

use std::collections::BTreeMap;

use anyhow::{Result, bail};

pub(crate) use cases::{Cases, FILE};
use claims::Claim;
pub(crate) use claims::{claims, function_name};
use results::{Outcome, Results};

use crate::tree::Tree;
use yurt_workspace::Stopwatch;

/// Arguments of `cargo xtask conformance`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the table without running tests
    #[arg(long)]
    list: bool,
    /// Skip the tests against the real Kubernetes programs, which take minutes
    #[arg(long, conflicts_with = "list")]
    skip_interop: bool,
    /// Run only these cases, or sections such as `3.F`
    cases: Vec<String>,
}

/// Prints the table, and fails when a case has a failed test or none.
pub(crate) fn run(args: &Args) -> Result<()> {
    let watch = Stopwatch::start();
    let tree = Tree::read(&yurt_workspace::root()?)?;
    let cases = Cases::of(&tree)?;
    let wanted = |id: &str| args.cases.is_empty() || args.cases.iter().any(|one| id.starts_with(one.as_str()));
    let claims: Vec<Claim> = claims(&tree)
        .into_iter()
        .filter(|claim| claim.ids.iter().any(|id| wanted(id)))
        .collect();
    if let Some((claim, id)) = unlisted(&cases, &claims) {
        bail!("{claim} claims case {id}, which {FILE} does not list");
    }
    let results = if args.list {
        Results::default()
    } else {
        println!(
            "{} tests are run first, and what they have to be built with; --list prints the table alone",
            claims.len()
        );
        Results::of(&claims, args.skip_interop)?
    };
    let mut totals = BTreeMap::new();
    for (id, title) in cases.titles.iter().filter(|(id, _)| wanted(id)) {
        let shown: Vec<(&Claim, Outcome)> = claims
            .iter()
            .filter(|claim| claim.ids.contains(id))
            .map(|claim| (claim, results.outcome(claim)))
            .collect();
        *totals.entry(print_case(&cases, id, title, &shown)).or_insert(0) += 1;
    }
    let text: Vec<String> = totals.iter().map(|(what, count)| format!("{count} {what}")).collect();
    println!("\n{} ({watch})", text.join(", "));
    if totals.contains_key(&CaseResult::Failed) || totals.contains_key(&CaseResult::Missing) {
        bail!("not every case is shown");
    }
    Ok(())
}

/// Returns a claim of a case that does not exist, most often a misspelt one.
fn unlisted<'a>(cases: &Cases, claims: &'a [Claim]) -> Option<(&'a Claim, &'a str)> {
    claims.iter().find_map(|claim| {
        let id = claim.ids.iter().find(|id| !cases.contains(id))?;
        Some((claim, id.as_str()))
    })
}

/// Result of one case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CaseResult {
    Passed,
    NotRun,
    Excused,
    Failed,
    Missing,
}

impl std::fmt::Display for CaseResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Passed => "pass",
            Self::NotRun => "not run",
            Self::Excused => "no test, with a reason",
            Self::Failed => "FAIL",
            Self::Missing => "NO TEST",
        })
    }
}

fn print_case(cases: &Cases, id: &str, title: &str, shown: &[(&Claim, Outcome)]) -> CaseResult {
    if shown.is_empty() {
        return match cases.reasons.get(id) {
            Some(reason) => {
                println!("{id:<6} {title}\n         - {reason}");
                CaseResult::Excused
            }
            None => {
                println!("{id:<6} {title}\n         - no test");
                CaseResult::Missing
            }
        };
    }
    println!("{id:<6} {title}");
    for (claim, outcome) in shown {
        println!("         {outcome:<8} {claim}");
    }
    let has = |wanted: Outcome| shown.iter().any(|(_, outcome)| *outcome == wanted);
    if has(Outcome::Failed) {
        CaseResult::Failed
    } else if has(Outcome::Passed) {
        CaseResult::Passed
    } else {
        CaseResult::NotRun
    }
}
