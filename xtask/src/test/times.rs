//! Times of the steps, their table, and the budget of the tests.
//!
//! Pure. A step has two times: of building (compilation, downloads), which depends on caches, and of testing. Only the
//! second counts in the budget, so that a machine without caches keeps to the same budget.

use std::fmt::Write as _;
use std::time::Duration;

/// Times of one finished step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepTime {
    pub(super) name: String,
    pub(super) build: Duration,
    pub(super) test: Duration,
}

/// Returns the table of the steps with their sum.
pub(super) fn table(steps: &[StepTime]) -> String {
    let (build, test) = sums(steps);
    let sum = StepTime {
        name: "sum".to_owned(),
        build,
        test,
    };
    let mut out = format!("{:<8} {:>9} {:>9} {:>9}\n", "step", "build s", "test s", "all s");
    for step in steps.iter().chain([&sum]) {
        let all = step.build + step.test;
        let [build, test, all] = [step.build, step.test, all].map(|time| time.as_secs_f64());
        let _ = writeln!(out, "{:<8} {build:>9.1} {test:>9.1} {all:>9.1}", step.name);
    }
    out
}

/// Checks the test time of all steps.
///
/// # Errors
/// The sum is above `budget`; the message says so.
pub(super) fn check_budget(steps: &[StepTime], budget: Duration) -> Result<(), String> {
    let (_, test) = sums(steps);
    if test <= budget {
        return Ok(());
    }
    let [test, budget] = [test, budget].map(|time| time.as_secs_f64() / 60.0);
    Err(format!(
        "all steps passed, but the tests took {test:.1} min of a budget of {budget:.0} min (builds not counted). Make the \
         slowest step faster"
    ))
}

fn sums(steps: &[StepTime]) -> (Duration, Duration) {
    let build = steps.iter().map(|step| step.build).sum();
    let test = steps.iter().map(|step| step.test).sum();
    (build, test)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> [StepTime; 2] {
        let step = |name: &str, build, test| StepTime {
            name: name.to_owned(),
            build: Duration::from_secs(build),
            test: Duration::from_secs(test),
        };
        [step("unit", 4_000, 60), step("chaos", 1, 120)]
    }

    #[test]
    fn table_has_every_step_and_their_sum() {
        let table = table(&steps());
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["unit", "4000.0", "60.0", "4060.0"]);
        assert_eq!(lines[3], ["sum", "4001.0", "180.0", "4181.0"]);
    }

    #[test]
    fn budget_counts_tests_and_not_builds() {
        assert_eq!(check_budget(&steps(), Duration::from_secs(180)), Ok(()));
        let error = check_budget(&steps(), Duration::from_secs(179)).expect_err("above the budget");
        assert!(error.contains("took 3.0 min"), "{error}");
    }
}
