//! Deterministic simulations of the real code: one thread, and one seed that alone determines all events.
//!
//! * [`elections`]: election machines of hubs against the guard and the fence of the coordinator.
//! * [`reads`]: a collection from the cloud to clients, through replicas, feed and readers.
//!
//! The same seed at the same commit is the same run, to the last message. Only the environment of the code is
//! simulated: links, clocks, disks, crashes. Checkers are in `validate/`.

pub mod elections;
pub mod reads;

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use yurt_runtime::Clock;

use crate::faults::Struck;

/// Result of one run.
#[derive(Debug)]
pub struct Ran {
    /// Count of the scenario's unit: elections, reads.
    pub operations: u64,
    /// Number of other checks.
    pub checked: u64,
    /// Faults, by kind.
    pub struck: Struck,
    /// The first violation.
    pub violation: Option<String>,
}

/// A simulation that can be repeated with any seed.
pub struct Scenario {
    /// Name, as for `--only`.
    pub name: String,
    /// Unit of the count.
    pub unit: &'static str,
    /// Operations of a quick and of a long run.
    pub enough: (u64, u64),
    /// Executes one run.
    pub simulate: Box<dyn Fn(u64) -> Ran + Sync>,
}

/// Totals of many runs.
#[derive(Debug, Default)]
pub struct Total {
    /// Runs.
    pub runs: u64,
    /// Operations of all of them.
    pub operations: u64,
    /// Number of other checks.
    pub checked: u64,
    /// Faults, by kind.
    pub struck: Struck,
    /// The first violation found, with its seed.
    pub violation: Option<(u64, String)>,
    /// Duration of the runs.
    pub took: Duration,
}

/// Seeds within which a mutant must be caught.
const MUTANT_RUNS: u64 = 400;

/// All simulations.
#[must_use]
pub fn all() -> Vec<Scenario> {
    let elections = elections::SETTINGS.into_iter().map(|(name, setting)| Scenario {
        name: name.to_owned(),
        unit: "elections",
        enough: (40_000, 400_000),
        simulate: Box::new(move |seed| elections::simulate(setting, None, seed)),
    });
    let reads = reads::SETTINGS.into_iter().map(|(name, setting)| Scenario {
        name: name.to_owned(),
        unit: "reads",
        enough: (400_000, 4_000_000),
        simulate: Box::new(move |seed| reads::simulate(setting, None, seed)),
    });
    elections.chain(reads).collect()
}

/// The simulations again, each with a rule left out.
#[must_use]
pub fn mutants() -> Vec<Scenario> {
    let mutant = |mutation: &dyn Debug, simulate| Scenario {
        name: format!("simulated/{mutation:?}"),
        unit: "",
        enough: (u64::MAX, u64::MAX),
        simulate,
    };
    let elections = elections::MUTATIONS.into_iter().map(|mutation| {
        let setting = elections::SETTINGS[0].1;
        let simulate = Box::new(move |seed| elections::simulate(setting, Some(mutation), seed));
        mutant(&mutation, simulate)
    });
    let reads = reads::MUTATIONS.into_iter().map(|mutation| {
        let setting = reads::SETTINGS[mutation.strikes_in()].1;
        let simulate = Box::new(move |seed| reads::simulate(setting, Some(mutation), seed));
        mutant(&mutation, simulate)
    });
    elections.chain(reads).collect()
}

/// Repeats `scenario` from the seed `first` on. Ends after `enough` operations, at a violation, or when `longest` has
/// passed.
#[must_use]
pub fn repeat(scenario: &Scenario, first: u64, enough: u64, threads: usize, longest: Duration) -> Total {
    let clock = Clock::system();
    let began = clock.boot();
    let next = AtomicU64::new(first);
    let total = Mutex::new(Total::default());
    let runs_max = if enough == u64::MAX { MUTANT_RUNS } else { u64::MAX };
    let work = || {
        loop {
            {
                let total = total.lock().unwrap_or_else(PoisonError::into_inner);
                let is_over = total.operations >= enough || total.violation.is_some() || total.runs >= runs_max;
                if is_over || clock.boot().since(began) >= longest {
                    return;
                }
            }
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let ran = (scenario.simulate)(seed);
            total.lock().unwrap_or_else(PoisonError::into_inner).add(seed, ran);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    total.took = clock.boot().since(began);
    total
}

// === impl Total ===

impl Total {
    fn add(&mut self, seed: u64, ran: Ran) {
        self.runs += 1;
        self.operations += ran.operations;
        self.checked += ran.checked;
        self.struck.add(&ran.struck);
        if let Some(violation) = ran.violation
            && self.violation.as_ref().is_none_or(|(earlier, _)| seed < *earlier)
        {
            self.violation = Some((seed, violation));
        }
    }
}
