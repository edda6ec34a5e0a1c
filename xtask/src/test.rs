//! `cargo xtask test`: exactly what CI runs, step by step, stopping at the first that fails.

mod long;
mod times;

use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use yurt_workspace::Stopwatch;
use yurt_workspace::command;
use yurt_workspace::programs::{self, Profile};

use crate::{deny, forward, fuzz, interop, tidy};
use times::StepTime;

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only these steps
    #[arg(long, value_name = "STEP", conflicts_with = "skip")]
    only: Vec<Step>,
    /// Leave these steps out
    #[arg(long, value_name = "STEP")]
    skip: Vec<Step>,
    /// Leave out building the documentation
    #[arg(long)]
    quick: bool,
    /// Run only the interop tests whose name matches this Go regular expression
    #[arg(long, value_name = "TEST")]
    run: Option<String>,
    /// Fail if the tests of all steps take more minutes, builds and downloads not counted [default: warn above 35]
    #[arg(long, value_name = "MINUTES")]
    budget: Option<u32>,
    /// Run these long runs instead of the steps, or `all`; without a name print their list (docs/TESTING.md)
    #[arg(long, value_name = "RUN", num_args = 0.., conflicts_with_all = ["only", "skip", "quick", "run", "budget"])]
    long: Option<Vec<String>>,
}

/// Budget of the tests on two idle cores.
const BUDGET_MINUTES: u32 = 35;

/// The steps, in the order they run: what fails fastest comes first.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    /// The source is formatted
    Fmt,
    /// The house rules hold
    Tidy,
    /// No lint complains
    Clippy,
    /// The documentation builds without a warning
    Doc,
    /// Licences, banned crates, sources, and advisories where their database can be had; installs cargo-deny once
    Deny,
    /// Unit, contract and component tests
    Unit,
    /// Models, simulations and real processes of a pool under faults, for minutes
    Chaos,
    /// Every fuzz target for a few seconds from its kept corpus
    Fuzz,
    /// Our programs against the real Kubernetes programs
    Interop,
}

/// Environment variable with the number of tests of a program that run in parallel.
const THREADS_VARIABLE: &str = "RUST_TEST_THREADS";

/// Runs the chosen steps, or long runs.
pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(names) = &args.long {
        return long::run(names);
    }
    let steps: Vec<Step> = Step::value_variants()
        .iter()
        .copied()
        .filter(|step| args.wants(*step))
        .collect();
    let names: Vec<String> = steps.iter().map(|step| step.name()).collect();
    let minutes = args.budget.unwrap_or(BUDGET_MINUTES);
    println!("steps: {}; budget of the tests: {minutes} min", names.join(", "));
    let whole = Stopwatch::start();
    let mut times = Vec::new();
    for step in steps {
        let name = step.name();
        println!("\n== {name} == (at {whole})");
        let watch = Stopwatch::start();
        match step.timed(args.run.as_deref()) {
            Ok(time) => {
                let [build, test] = [time.build, time.test].map(|time| time.as_secs_f64());
                println!("== {name}: ok ({watch}: build {build:.1} s, test {test:.1} s)");
                times.push(time);
            }
            Err(error) => {
                println!("\n{}", times::table(&times));
                bail!("step {name} failed after {watch}: {error:#}. Alone: `cargo xtask test --only {name}`");
            }
        }
    }
    println!("\nall steps passed ({whole})\n{}", times::table(&times));
    match times::check_budget(&times, Duration::from_secs(60 * u64::from(minutes))) {
        Err(excess) if args.budget.is_some() => bail!(excess),
        // The machine may be loaded or slow.
        Err(excess) => println!("warning: {excess}"),
        Ok(()) => {}
    }
    Ok(())
}

// === impl Args ===

impl Args {
    fn wants(&self, step: Step) -> bool {
        match (self.only.as_slice(), &self.run) {
            // A filter without --only means the step it filters.
            ([], Some(_)) => step == Step::Interop,
            ([], None) if self.quick && step == Step::Doc => false,
            ([], None) => !self.skip.contains(&step),
            (only, _) => only.contains(&step),
        }
    }
}

// === impl Step ===

impl Step {
    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Runs the step and returns its times.
    fn timed(self, filter: Option<&str>) -> Result<StepTime> {
        let watch = Stopwatch::start();
        self.build()?;
        let build = watch.elapsed();
        self.run(filter)?;
        Ok(StepTime {
            name: self.name(),
            build,
            test: watch.elapsed().saturating_sub(build),
        })
    }

    /// Compiles and downloads what the step needs, as far as that can be apart from its tests. Clippy and rustdoc are
    /// compilers: all of their time is here.
    fn build(self) -> Result<()> {
        match self {
            Self::Fmt | Self::Tidy => Ok(()),
            Self::Clippy => cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[]),
            Self::Doc => cargo(
                &["doc", "--workspace", "--no-deps", "--document-private-items"],
                &[("RUSTDOCFLAGS", "-D warnings")],
            ),
            Self::Deny => deny::install(),
            Self::Unit => cargo(&["test", "--workspace", "--no-run"], &[]),
            Self::Chaos => {
                forward::CHAOS.build()?;
                programs::build(Profile::Tests).map(|_| ())
            }
            Self::Fuzz => fuzz::build().map(|_| ()),
            Self::Interop => interop::prepare(),
        }
    }

    fn run(self, filter: Option<&str>) -> Result<()> {
        match self {
            Self::Fmt => cargo(&["fmt", "--all", "--check"], &[])?,
            Self::Tidy => tidy::run(&tidy::Args::default())?,
            Self::Clippy | Self::Doc => {}
            Self::Deny => deny::run()?,
            Self::Unit => {
                let threads = std::env::var(THREADS_VARIABLE).unwrap_or_else(|_| unit_threads().to_string());
                cargo(
                    &["test", "--workspace", "--no-fail-fast"],
                    &[(THREADS_VARIABLE, &threads)],
                )?;
            }
            Self::Chaos => forward::CHAOS.run(&["--quick"])?,
            Self::Fuzz => fuzz::ci()?,
            Self::Interop => interop::test(filter)?,
        }
        Ok(())
    }
}

/// Number of tests in parallel: twice the cores, because component tests wait for a quarter of their time.
fn unit_threads() -> usize {
    2 * std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn cargo(arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let root = yurt_workspace::root()?;
    command::run(
        yurt_workspace::cargo()
            .args(arguments)
            .envs(environment.iter().copied())
            .current_dir(root),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(args: Args) -> Vec<String> {
        Step::value_variants()
            .iter()
            .copied()
            .filter(|step| args.wants(*step))
            .map(Step::name)
            .collect()
    }

    fn args(only: &[Step], skip: &[Step], quick: bool, run: Option<&str>) -> Args {
        Args {
            only: only.to_vec(),
            skip: skip.to_vec(),
            quick,
            run: run.map(str::to_owned),
            budget: None,
            long: None,
        }
    }

    #[test]
    fn by_default_every_step_runs_in_order() {
        let all = [
            "fmt", "tidy", "clippy", "doc", "deny", "unit", "chaos", "fuzz", "interop",
        ];
        assert_eq!(chosen(args(&[], &[], false, None)), all);
    }

    #[test]
    fn only_skip_quick_and_run_choose() {
        assert_eq!(chosen(args(&[Step::Unit], &[], true, None)), ["unit"]);
        assert_eq!(
            chosen(args(&[], &[Step::Interop], true, None)),
            ["fmt", "tidy", "clippy", "deny", "unit", "chaos", "fuzz"]
        );
        assert_eq!(chosen(args(&[], &[], false, Some("TestX"))), ["interop"]);
        assert_eq!(chosen(args(&[Step::Interop], &[], false, Some("TestX"))), ["interop"]);
    }
}
