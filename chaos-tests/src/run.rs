//! Steps of a run, in order, with progress messages.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use yurt_apimachinery::time::BootTime;
use yurt_runtime::Clock;

use crate::check::{Explored, Order, explore};
use crate::faults::{Fault, Struck};
use crate::model::leadership::state::State;
use crate::model::leadership::{Bounds, Leadership, Reached};
use crate::model::replica::Replica;
use crate::model::{leadership, replica};
use crate::report::{Mutant, Report, Row};
use crate::simulation::{self, Scenario};

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Large bounds.
    pub long: bool,
    /// Only scenarios with this in their names.
    pub only: Option<String>,
    /// First seed of every simulation.
    pub seed: u64,
    /// Threads of an exploration.
    pub threads: usize,
    /// Longest duration of one exploration.
    pub longest: Duration,
    /// End of the run.
    pub ends: BootTime,
}

/// Runs all scenarios of `plan`; `say` receives progress messages.
pub fn run(plan: &Plan, say: &mut dyn FnMut(&str)) -> Report {
    let mut report = Report::default();
    let wanted = |name: &str| plan.only.as_deref().is_none_or(|only| name.contains(only));
    for (name, quick, long) in leadership::scenarios::SCENARIOS {
        let name = format!("leadership/{name}");
        if wanted(&name) {
            let bounds = if plan.long { long } else { quick };
            say(&format!("exploring {name}"));
            report.rows.push(explore_leadership(name, bounds, plan, &report.struck));
        }
    }
    for (name, quick, long) in replica::scenarios::SCENARIOS {
        let name = format!("replica/{name}");
        if wanted(&name) {
            let bounds = if plan.long { long } else { quick };
            say(&format!("exploring {name}"));
            report.rows.push(explore_replica(name, bounds, plan, &report.struck));
        }
    }
    for scenario in simulation::all().iter().filter(|scenario| wanted(&scenario.name)) {
        say(&format!("simulating {}", scenario.name));
        report.rows.push(simulate(scenario, plan, &report.struck));
    }
    hunt(plan, &mut report, say);
    if plan.only.is_none() {
        report.required = vec![
            Fault::MessageLost,
            Fault::AnswerLost,
            Fault::MessageDuplicated,
            Fault::RequestTimedOut,
            Fault::LeaderStepsDown,
            Fault::LeaseDeleted,
            Fault::RenewalsLost,
            Fault::StoreLost,
            Fault::CloudRolledBack,
            Fault::StaleFeed,
            Fault::HubPaused,
            Fault::MessageLate,
            Fault::ForeignElector,
            Fault::StreamCut,
            Fault::SourceSwitched,
            Fault::CloudLagging,
            Fault::CloudCompacted,
            Fault::HubKilled,
            Fault::HubDiskLost,
            Fault::CoordinatorKilled,
        ];
    }
    report
}

// === impl Plan ===

impl Plan {
    /// Time left for the next exploration.
    fn limit(&self) -> Duration {
        self.longest.min(self.ends.since(Clock::system().boot()))
    }
}

/// Runs with each rule left out, in models and in simulations.
fn hunt(plan: &Plan, report: &mut Report, say: &mut dyn FnMut(&str)) {
    let wanted = |name: &str| plan.only.as_deref().is_none_or(|only| name.contains(only));
    for (mutation, bounds) in leadership::scenarios::MUTANTS {
        let name = format!("leadership/{mutation:?}");
        if wanted(&name) {
            say(&format!("hunting {name}"));
            let model = Leadership {
                bounds,
                mutation: Some(mutation),
                struck: Arc::default(),
                reached: Arc::default(),
            };
            let caught = caught_by(&explore(model, Order::Nearest, plan.threads, plan.limit()));
            report.mutants.push(Mutant { name, caught });
        }
    }
    for (mutation, bounds) in replica::scenarios::MUTANTS {
        let name = format!("replica/{mutation:?}");
        if wanted(&name) {
            say(&format!("hunting {name}"));
            let model = Replica {
                bounds,
                mutation: Some(mutation),
                struck: Arc::default(),
            };
            let caught = caught_by(&explore(model, Order::Nearest, plan.threads, plan.limit()));
            report.mutants.push(Mutant { name, caught });
        }
    }
    for scenario in simulation::mutants().iter().filter(|scenario| wanted(&scenario.name)) {
        say(&format!("hunting {}", scenario.name));
        let total = simulation::repeat(scenario, plan.seed, u64::MAX, plan.threads, plan.limit());
        let caught = total.violation.map(|(seed, what)| {
            // The path to it follows in more lines.
            let what = what.lines().next().unwrap_or_default();
            format!("{what} (seed {seed}, {} runs)", total.runs)
        });
        report.mutants.push(Mutant {
            name: scenario.name.clone(),
            caught,
        });
    }
}

fn simulate(scenario: &Scenario, plan: &Plan, struck: &Struck) -> Row {
    let enough = if plan.long {
        scenario.enough.1
    } else {
        scenario.enough.0
    };
    let total = simulation::repeat(scenario, plan.seed, enough, plan.threads, plan.limit());
    struck.add(&total.struck);
    let mut problems = Vec::new();
    if let Some((seed, what)) = &total.violation {
        let name = &scenario.name;
        problems.push(format!(
            "violated with seed {seed}: {what}\nagain: yurt-chaos --only {name} --seed {seed}"
        ));
    } else if total.operations < enough {
        problems.push(format!(
            "void: {} of {enough} {} in time",
            total.operations, scenario.unit
        ));
    }
    let (first, runs, checked) = (plan.seed, total.runs, total.checked);
    Row {
        name: scenario.name.clone(),
        counted: total.operations,
        unit: scenario.unit,
        bound: format!("{runs} runs from seed {first}, {checked} other checks"),
        took: total.took,
        problems,
    }
}

fn explore_leadership(name: String, bounds: Bounds, plan: &Plan, struck: &Struck) -> Row {
    let model = Leadership {
        bounds,
        mutation: None,
        struck: Arc::default(),
        reached: Arc::default(),
    };
    let (faults, reached) = (model.struck.clone(), model.reached.clone());
    let explored = explore(
        model,
        Order::Deepest(Some(State::representative)),
        plan.threads,
        plan.limit(),
    );
    struck.add(&faults);
    let mut problems = problems_of(&explored);
    problems.extend(unreached(bounds, &reached).map(|what| format!("void: {what}")));
    row(name, &explored, bounds, problems)
}

/// States that should have been reached and were not.
fn unreached(bounds: Bounds, reached: &Reached) -> impl Iterator<Item = &'static str> {
    let never_fed = bounds.feeds > 2 && reached.fed_twice.load(Ordering::Relaxed) == 0;
    let never_restored =
        bounds.feeds > 2 && bounds.restarts > 0 && reached.served_after_restart.load(Ordering::Relaxed) == 0;
    let never_fed = never_fed.then_some("no second leader fed");
    never_fed
        .into_iter()
        .chain(never_restored.then_some("nothing was served after a restart"))
}

fn problems_of(explored: &Explored) -> Vec<String> {
    let failed = explored.failures.iter();
    let mut problems: Vec<_> = failed
        .map(|failure| format!("violated: {}\n{}", failure.property, failure.trace))
        .collect();
    if explored.failures.is_empty() && !explored.exhausted {
        problems.push("not explored to its bounds in time".to_owned());
    }
    if explored.exhausted {
        let unseen = explored.unseen.iter();
        problems.extend(unseen.map(|what| format!("void: never seen: {what}")));
    }
    problems
}

fn row(name: String, explored: &Explored, bounds: impl std::fmt::Debug, problems: Vec<String>) -> Row {
    Row {
        name,
        counted: explored.states as u64,
        unit: "states",
        bound: bound_text(&format!("{bounds:?}")),
        took: explored.took,
        problems,
    }
}

/// `Bounds { hubs: 2, … }` as text; zero and false values are left out.
fn bound_text(debug: &str) -> String {
    let inner = debug.split_once('{').map_or(debug, |(_, inner)| inner);
    let fields = inner.trim_end_matches(['}', ' ']).split(',').map(str::trim);
    let told = fields.filter(|field| !field.ends_with(" 0") && !field.ends_with(" false"));
    let words: Vec<_> = told
        .map(|field| field.replace(": ", " ").replace(" true", ""))
        .collect();
    words.join(", ")
}

fn explore_replica(name: String, bounds: replica::Bounds, plan: &Plan, struck: &Struck) -> Row {
    let model = Replica {
        bounds,
        mutation: None,
        struck: Arc::default(),
    };
    let faults = model.struck.clone();
    let mut explored = explore(model.clone(), Order::Deepest(None), plan.threads, plan.limit());
    if !explored.failures.is_empty() {
        // Deep paths are long: for a reader the shortest one is better.
        explored = explore(model, Order::Nearest, plan.threads, plan.limit());
    }
    struck.add(&faults);
    let problems = problems_of(&explored);
    row(name, &explored, bounds, problems)
}

fn caught_by(explored: &Explored) -> Option<String> {
    let failure = explored.failures.first()?;
    let steps = failure
        .trace
        .lines()
        .take_while(|line| !line.starts_with("ends in"))
        .count();
    let states = explored.states;
    Some(format!("{} ({steps} steps, {states} states)", failure.property))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_told_in_words() {
        assert_eq!(
            bound_text("Bounds { hubs: 2, foreign: false, wire: 2, restarts: 0, x: true }"),
            "hubs 2, wire 2, x"
        );
    }
}
