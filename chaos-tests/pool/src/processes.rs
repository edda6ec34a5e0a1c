//! `cargo xtask chaos`: models, simulations and a pool of real processes under faults, with one report for all of them.
//!
//! Models and simulations are the program `yurt-chaos` (`chaos-tests/`). For the real processes, a cloud, a coordinator
//! and three hubs run as in the demo. Changes arrive at the cloud at a steady pace, clients behind every hub record all
//! events they receive, and a seed determines the faults. At the end all faults are repaired, the pool must come to
//! rest, and every history is checked against the history of the cloud.
//!
//! The modules:
//! * [`models`]: models and simulations;
//! * [`faults`]: faults of processes; pure;
//! * [`schedule`]: their times; pure;
//! * [`environment`]: their targets;
//! * [`hostile`]: actors that attack;
//! * [`memory`][]: budgets;
//! * [`traffic`]: changes in the cloud;
//! * [`local_writes`]: writes at the coordinators;
//! * [`clients`] and [`history`]: events that clients received;
//! * [`filtered`]: what clients with filters must hold;
//! * [`heartbeats`][]: heartbeats;
//! * [`mod@run`]: one run;
//! * [`report`]: the final report; pure.

mod clients;
mod environment;
mod faults;
mod filtered;
mod heartbeats;
pub(crate) mod history;
mod hostile;
mod local_writes;
mod memory;
mod models;
mod report;
mod rollback;
mod run;
mod schedule;
mod traffic;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use yurt_runtime::TaskGroup;
use yurt_testbed::cloud::Choice;
use yurt_testbed::identities::Identities;
use yurt_testbed::net::Net;
use yurt_testbed::{self as testbed, Setup, program};
use yurt_workspace::Stopwatch;
use yurt_workspace::programs::{self, Profile};

use environment::Store;
use faults::{Fault, Need};
use report::{Report, Totals};
use run::RunOutcome;

/// Arguments of `cargo xtask chaos`.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Run models and simulations with small bounds, and 75 s of faults (the default)
    #[arg(long)]
    quick: bool,
    /// Use large bounds, then run pools one after the other until --hours are over
    #[arg(long, conflicts_with_all = ["quick", "minutes"])]
    long: bool,
    /// Most hours that --long may take
    #[arg(long, value_name = "N", default_value_t = 3.0, requires = "long", value_parser = hours)]
    hours: f64,
    /// Run only the pool of real processes, with faults for this many minutes
    #[arg(long, value_name = "N", conflicts_with = "quick")]
    minutes: Option<u32>,
    /// Seed of the faults and their times; the same seed repeats them
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run only this: `models` (and simulations), `processes`, faults of processes by name, or the models, simulations
    /// and mutants with NAME in their names
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Use kube-apiserver and etcd as the cloud (`cargo xtask build-interop`, needs Go)
    #[arg(long)]
    real: bool,
    /// Run two coordinators over an etcd of three members, and add faults of etcd (`cargo xtask build-interop`, needs
    /// Go)
    #[arg(long, conflicts_with = "links")]
    etcd: bool,
    /// Run programs in network namespaces joined by virtual links: link faults affect packets below TCP (needs root)
    #[arg(long)]
    links: bool,
    /// Keep the folder with certificates, data, logs and histories; a failed run always keeps it
    #[arg(long)]
    keep: bool,
    /// Print the faults for processes, and exit
    #[arg(long)]
    faults: bool,
}

/// Selected parts of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Chosen {
    /// Models and simulations: all of them, or those with this in their names.
    models: Option<Option<String>>,
    /// Faults that may be injected into real processes.
    faults: Option<Vec<Fault>>,
}

/// Totals and result of a half, if it ran.
type Half = Option<(Totals, Result<()>)>;

/// Duration of the faults in a quick run.
const QUICK: Duration = Duration::from_secs(75);
/// Longest duration of the faults for one pool in a long run.
const ROUND: Duration = Duration::from_secs(600);
/// Additional time that a pool needs to start and to come to rest.
const AROUND: Duration = Duration::from_secs(240);
/// A run with fewer changes per second than this is inconclusive.
const CHANGES_PER_SECOND_MIN: f64 = 2.0;
/// Lines of each log that are shown after a violation.
const LOG_TAIL_LINES: usize = 40;
/// Time links and clients have to end.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Parses a positive and bounded number of hours.
fn hours(text: &str) -> Result<f64, String> {
    let hours: f64 = text.parse().map_err(|_| "not a number of hours".to_owned())?;
    match hours > 0.0 && hours <= 1000.0 {
        true => Ok(hours),
        false => Err("must be above 0 and at most 1000".to_owned()),
    }
}

/// Runs the selected parts and prints the results.
///
/// # Errors
/// A violation, a mutant that was not caught, a pool that does not come to rest, or an inconclusive run.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.faults {
        args.print_faults();
        return Ok(());
    }
    let chosen = args.chosen()?;
    let (models, pools) = args.halves(&chosen)?;
    let (mut report, mut failures) = (Report::default(), Vec::new());
    if let Some((totals, outcome)) = models {
        report.add("models and simulations", totals);
        failures.extend(outcome.err());
    }
    if let Some((totals, outcome)) = pools {
        let never = totals.never_struck();
        if args.long && !never.is_empty() {
            failures.push(anyhow::anyhow!("void: {} never struck", never.join(", ")));
        }
        report.add("real processes", totals);
        failures.extend(outcome.err());
    }
    print!("{report}");
    match failures.as_slice() {
        [] => Ok(()),
        failures => bail!(
            "{}",
            failures
                .iter()
                .map(|one| format!("{one:#}"))
                .collect::<Vec<_>>()
                .join("; ")
        ),
    }
}

// === impl Args ===

impl Args {
    fn chosen(&self) -> Result<Chosen> {
        let all = || Some(self.possible());
        let of = |models, faults| Ok(Chosen { models, faults });
        match self.only.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] if self.minutes.is_some() => of(None, all()),
            [] => of(Some(None), all()),
            ["models"] => of(Some(None), None),
            ["processes"] => of(None, all()),
            ref names => {
                let faults: Vec<Fault> = names
                    .iter()
                    .filter_map(|name| Fault::from_str(name, false).ok())
                    .collect();
                if let Some(fault) = faults.iter().find(|fault| !self.meets(**fault)) {
                    bail!("{fault} needs another pool; `--faults` says which");
                }
                match names {
                    _ if faults.len() == names.len() => of(None, Some(faults)),
                    [name] if self.minutes.is_none() => of(Some(Some((*name).to_owned())), None),
                    _ => bail!("--only takes faults of processes (`--faults` lists them) or one other name"),
                }
            }
        }
    }

    /// Faults that the requested pool supports; all of them, unless others are named.
    fn possible(&self) -> Vec<Fault> {
        let mut faults = Fault::value_variants().to_vec();
        faults.retain(|fault| self.meets(*fault) && !fault.is_last());
        faults
    }

    fn meets(&self, fault: Fault) -> bool {
        match fault.need() {
            Some(Need::Etcd) => self.etcd,
            Some(Need::Packets) => self.links,
            Some(Need::OurCloud) => !self.real,
            None => true,
        }
    }

    /// Runs both halves in parallel: one computes, the other mostly waits. The computing half runs at low priority, and
    /// its result is printed at the end.
    fn halves(&self, chosen: &Chosen) -> Result<(Half, Half)> {
        let watch = Stopwatch::start();
        let bin_dir = programs::build(Profile::Tests)?;
        let dir = testbed::folder("chaos-models", false)?;
        let plan = chosen.models.as_ref().map(|only| models::Plan {
            long: self.long.then(|| self.whole()),
            only: only.clone(),
            seed: self.seed,
            is_aside: chosen.faults.is_some(),
            program: bin_dir.join("yurt-chaos"),
        });
        std::thread::scope(|scope| {
            let models = plan.map(|plan| scope.spawn(move || models::run(&plan, dir.path())));
            let kinds = chosen.faults.as_deref();
            let pools = kinds.map(|kinds| self.pools(kinds, &bin_dir, &watch));
            let models = models.map(|models| {
                let panicked = |_| Err(anyhow::anyhow!("the thread panicked"));
                models.join().unwrap_or_else(panicked)
            });
            Ok((models.transpose()?, pools.transpose()?))
        })
    }

    /// Total time of the run.
    fn whole(&self) -> Duration {
        Duration::from_secs_f64(3600.0 * self.hours)
    }

    /// Injects faults into one pool. A long run repeats this with further pools until the time is over or a check
    /// fails.
    fn pools(&self, kinds: &[Fault], bin_dir: &Path, watch: &Stopwatch) -> Result<(Totals, Result<()>)> {
        let mut sum = Totals::default();
        if let Some(Err(why)) = self.links.then(probe_net) {
            println!("real processes: skipped, --links needs network namespaces and TUN devices ({why:#})");
            return Ok((sum, Ok(())));
        }
        for seed in self.seed.. {
            let lasts = match self.minutes {
                _ if self.long => ROUND.min(self.whole().saturating_sub(watch.elapsed() + AROUND)),
                Some(minutes) => Duration::from_secs(60 * u64::from(minutes)),
                None => QUICK,
            };
            let plan = run::Plan {
                seed,
                lasts,
                kinds: kinds.to_vec(),
                store: if self.etcd { Store::Etcd } else { Store::Files },
                cloud: if self.real { Choice::Real } else { Choice::Demo },
            };
            let (totals, outcome) = self.pool(&plan, bin_dir.to_path_buf())?;
            sum.add(&totals);
            let is_over = !self.long || watch.elapsed() + AROUND + QUICK > self.whole();
            if is_over || outcome.is_err() {
                return Ok((sum, outcome));
            }
        }
        Ok((sum, Ok(())))
    }

    /// One pool from its start to its verdict.
    fn pool(&self, plan: &run::Plan, bin_dir: PathBuf) -> Result<(Totals, Result<()>)> {
        let mut dir = testbed::folder("chaos", self.keep)?;
        let runtime = testbed::runtime()?;
        let tasks = TaskGroup::new();
        let entered = runtime.enter();
        let net = match self.links {
            true => Some(Net::new(&tasks, plan.seed).context("--links needs network namespaces and TUN devices")?),
            false => None,
        };
        drop(entered);
        let setup = Setup {
            dir: dir.path().to_path_buf(),
            bin_dir,
            identities: Identities::new(dir.path())?,
            tasks: tasks.clone(),
            net: net.map(Arc::new),
        };
        let outcome = runtime.block_on(async {
            let outcome = run::run(setup, plan).await;
            let _ = tasks.shutdown(STOP_LIMIT).await;
            outcome
        });
        let totals = outcome.as_ref().map(RunOutcome::totals).unwrap_or_default();
        let told = outcome.and_then(|outcome| judge(&outcome, plan.lasts));
        if told.is_err() {
            dir.disable_cleanup(true);
            eprintln!("\n{}", program::log_tails(dir.path(), LOG_TAIL_LINES));
            eprintln!("certificates, data, logs and histories: {}", dir.path().display());
            eprintln!("again: {}", self.again(plan));
        }
        Ok((totals, told))
    }

    fn again(&self, plan: &run::Plan) -> String {
        let minutes = plan.lasts.as_secs().div_ceil(60);
        let is_all = plan.kinds == self.possible();
        let only: Vec<String> = plan.kinds.iter().map(|fault| fault.to_string()).collect();
        let only = if is_all {
            String::new()
        } else {
            format!(" --only {}", only.join(","))
        };
        let real = if self.real { " --real" } else { "" };
        let links = if self.links { " --links" } else { "" };
        let etcd = if self.etcd { " --etcd" } else { "" };
        format!(
            "cargo xtask chaos --seed {} --minutes {minutes}{only}{real}{links}{etcd}",
            plan.seed
        )
    }

    fn print_faults(&self) {
        for fault in Fault::value_variants() {
            let value = fault.to_possible_value();
            let help = value
                .as_ref()
                .and_then(|value| value.get_help().map(ToString::to_string));
            println!("{:<32} {}", fault.to_string(), help.unwrap_or_default());
        }
    }
}

/// Checks that this machine permits network namespaces and TUN devices.
fn probe_net() -> Result<()> {
    let runtime = testbed::runtime()?;
    let _entered = runtime.enter();
    Net::new(&TaskGroup::new(), 0).map(drop)
}

/// Prints the results of one run; an error if a check failed.
fn judge(outcome: &RunOutcome, lasted: Duration) -> Result<()> {
    let (verdict, rest) = (&outcome.verdict, outcome.rest.as_ref());
    println!(
        "{} changes in the cloud ({} not answered), {} clients, {} statements checked, {} whole states compared, \
         {} relists, {} streams, {} leaders, {} heartbeats (seen relayed {} times), {} writes at coordinators \
         ({} not taken, {:.1} s the longest without one); {}",
        outcome.written.total(),
        outcome.written.failed,
        outcome.clients,
        verdict.checked,
        verdict.bookmarks,
        outcome.relists,
        outcome.streams,
        outcome.leaders.epochs,
        outcome.heartbeats.count,
        outcome.leaders.relayed,
        outcome.local_writes.count,
        outcome.local_writes.refused,
        outcome.local_writes.longest.as_secs_f64(),
        rest.map_or_else(
            |_| "never at rest".to_owned(),
            |after| format!("at rest after {:.1} s", after.as_secs_f64())
        )
    );
    if outcome.restarts > 0 {
        println!("{} starts refused because of a fault, and repeated", outcome.restarts);
    }
    println!("{}", outcome.peaks);
    println!("{}", outcome.hostile);
    let violations = outcome.violations();
    for violation in &violations {
        println!("✗ {violation}");
    }
    // Once more in the error, which is the last output of a run.
    ensure!(
        violations.is_empty(),
        "{} violations:\n✗ {}",
        violations.len(),
        violations.join("\n✗ ")
    );
    let pace = outcome.written.total() as f64 / lasted.as_secs_f64();
    ensure!(
        pace >= CHANGES_PER_SECOND_MIN,
        "void: {pace:.1} changes per second are too few for a result"
    );
    ensure!(verdict.bookmarks > 0, "void: no whole state was compared");
    let never = outcome.hostile.never_refused();
    ensure!(
        never.is_empty(),
        "void: no defence was seen to refuse {}",
        never.join(", ")
    );
    Ok(())
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("?", |value| value.get_name()))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn chosen(line: &str) -> Result<Chosen> {
        let line = std::iter::once("chaos").chain(line.split_whitespace());
        Line::try_parse_from(line)?.args.chosen()
    }

    #[test]
    fn both_halves_run_unless_one_is_named() {
        let all = Some(Line::try_parse_from(["chaos"]).expect("no flags").args.possible());
        let both = Chosen {
            models: Some(None),
            faults: all.clone(),
        };
        for line in ["", "--quick --seed 3", "--long --hours 5", "--long --hours 0.5"] {
            assert_eq!(chosen(line).expect(line), both);
        }
        let processes = Chosen {
            models: None,
            faults: all,
        };
        for line in ["--minutes 2", "--only processes", "--only processes --minutes 2"] {
            assert_eq!(chosen(line).expect(line), processes);
        }
        assert_eq!(chosen("--only models").expect("models").faults, None);
    }

    #[test]
    fn names_belong_to_one_half() {
        let faults = chosen("--only leader-killed,cloud-paused").expect("two faults");
        assert_eq!(faults.faults, Some(vec![Fault::LeaderKilled, Fault::CloudPaused]));
        assert_eq!(faults.models, None);
        let world = chosen("--only reads/lists").expect("a scenario").models;
        assert_eq!(world, Some(Some("reads/lists".to_owned())));
        assert!(chosen("--only leader-killed,reads/lists").is_err());
        assert!(chosen("--long --minutes 2").is_err());
    }

    #[test]
    fn faults_need_a_pool_that_they_can_strike() {
        let all = |line| chosen(line).expect(line).faults.expect("faults");
        assert!(!all("").contains(&Fault::EtcdLeaderKilled));
        assert!(all("--etcd").contains(&Fault::EtcdLeaderKilled));
        assert!(chosen("--only etcd-leader-killed").is_err());
        assert_eq!(all("--only etcd-leader-killed --etcd"), [Fault::EtcdLeaderKilled]);
        assert!(!all("").contains(&Fault::CloudRolledBack), "only by name");
        assert_eq!(all("--only cloud-rolled-back"), [Fault::CloudRolledBack]);
        assert!(chosen("--only cloud-rolled-back --real").is_err());
    }
}
