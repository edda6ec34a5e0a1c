//! Final report of a run, and its verdict.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::time::Duration;

use serde_json::{Value, json};

use crate::faults::{Fault, Struck};

/// One exploration, or one simulation with many seeds.
#[derive(Debug)]
pub struct Row {
    /// Name, as for `--only`.
    pub name: String,
    /// Number of operations, in `unit`.
    pub counted: u64,
    /// Unit of the count: distinct states, elections, reads.
    pub unit: &'static str,
    /// Bound of the exploration or simulation.
    pub bound: String,
    /// Duration of the row.
    pub took: Duration,
    /// Failures, with the path to each.
    pub problems: Vec<String>,
}

/// A rule left out, and whether a check caught it.
#[derive(Debug)]
pub struct Mutant {
    /// Scenario and mutation.
    pub name: String,
    /// The check that caught it, and the effort.
    pub caught: Option<String>,
}

/// Everything of one run.
#[derive(Debug, Default)]
pub struct Report {
    /// Explorations.
    pub rows: Vec<Row>,
    /// Mutants.
    pub mutants: Vec<Mutant>,
    /// Number of faults, by kind.
    pub struck: Struck,
    /// Kinds that must have occurred, or the run is inconclusive.
    pub required: Vec<Fault>,
}

// === impl Report ===

impl Report {
    /// Failures of the run: violations, mutants that were not caught, faults that never occurred.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = Vec::new();
        for row in &self.rows {
            problems.extend(row.problems.iter().map(|problem| format!("{}: {problem}", row.name)));
        }
        if self.rows.is_empty() && self.mutants.is_empty() {
            problems.push("void: nothing has such a name".to_owned());
        }
        let free = self.mutants.iter().filter(|mutant| mutant.caught.is_none());
        problems.extend(free.map(|mutant| format!("mutant {} was not caught", mutant.name)));
        for fault in &self.required {
            if self.struck.of(*fault) == 0 {
                problems.push(format!("void: {} never struck", fault.id()));
            }
        }
        problems
    }

    /// The totals for programs to read: `{scenarios, operations: {unit: n}, faults: {kind: times}, violations, mutants:
    /// {caught, total}}`. Every kind of the catalogue is there, with 0 if it never occurred.
    #[must_use]
    pub fn totals(&self) -> Value {
        let times = |fault: &Fault| (fault.id().to_owned(), self.struck.of(*fault).into());
        let faults: serde_json::Map<String, Value> = Fault::ALL.iter().map(times).collect();
        json!({
            "scenarios": self.rows.len(),
            "operations": self.sums(),
            "faults": faults,
            "violations": self.violations(),
            "mutants": {"caught": self.caught(), "total": self.mutants.len()},
        })
    }

    /// Counts over all rows, by unit.
    fn sums(&self) -> BTreeMap<&'static str, u64> {
        let mut sums = BTreeMap::new();
        for row in &self.rows {
            *sums.entry(row.unit).or_default() += row.counted;
        }
        sums
    }

    fn violations(&self) -> usize {
        self.rows.iter().map(|row| row.problems.len()).sum()
    }

    fn caught(&self) -> usize {
        self.mutants.iter().filter(|mutant| mutant.caught.is_some()).count()
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:<28} {:>8}  what; bounds", "scenario", "seconds")?;
        for row in &self.rows {
            let result = if row.problems.is_empty() { "" } else { "  FAILED" };
            let (name, seconds) = (&row.name, row.took.as_secs_f64());
            writeln!(
                f,
                "{name:<28} {seconds:>8.1}  {} {}; {}{result}",
                row.counted, row.unit, row.bound
            )?;
        }
        writeln!(f, "\n{:<28} {:>12}", "fault", "times")?;
        let struck = || Fault::ALL.iter().filter(|fault| self.struck.of(**fault) > 0);
        for fault in struck() {
            writeln!(f, "{:<28} {:>12}", fault.id(), self.struck.of(*fault))?;
        }
        writeln!(f, "\n{:<44} caught by", "mutant")?;
        for mutant in &self.mutants {
            let caught = mutant.caught.as_deref().unwrap_or("NOT CAUGHT");
            writeln!(f, "{:<44} {caught}", mutant.name)?;
        }
        let sums: String = self
            .sums()
            .iter()
            .map(|(unit, sum)| format!("  {unit} {sum}"))
            .collect();
        writeln!(
            f,
            "\nscenarios {}{sums}  kinds of faults {} of {}  violations {}  mutants caught {}/{}",
            self.rows.len(),
            struck().count(),
            Fault::ALL.len(),
            self.violations(),
            self.caught(),
            self.mutants.len(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_without_its_faults_or_with_a_free_mutant_is_no_pass() {
        let mut report = Report {
            required: vec![Fault::MessageLost],
            ..Report::default()
        };
        assert_eq!(report.problems().len(), 2);
        report.struck.count(Fault::MessageLost);
        assert_eq!(report.problems(), ["void: nothing has such a name"]);
        let mutant = |caught: Option<&str>| Mutant {
            name: "m".into(),
            caught: caught.map(str::to_owned),
        };
        report.mutants = vec![mutant(Some("I4")), mutant(None)];
        assert_eq!(report.problems().len(), 1);
        assert!(report.to_string().contains("mutants caught 1/2"));
        let totals = report.totals();
        assert_eq!(totals["mutants"], json!({"caught": 1, "total": 2}));
        assert_eq!(
            (&totals["faults"]["message-lost"], &totals["faults"]["message-late"]),
            (&json!(1), &json!(0))
        );
    }
}
