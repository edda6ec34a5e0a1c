//! What a run prints at its end, and whether it passed.

use std::fmt::{self, Display};
use std::time::Duration;

use crate::faults::{Fault, Struck};

/// One exploration, or one simulation with many seeds.
#[derive(Debug)]
pub struct Row {
    /// Name, as for `--only`.
    pub name: String,
    /// How much of `unit` was seen.
    pub counted: u64,
    /// What was counted: distinct states, elections, reads.
    pub unit: &'static str,
    /// What bounds it.
    pub bound: String,
    /// How long it took.
    pub took: Duration,
    /// What is wrong, with the way there.
    pub problems: Vec<String>,
}

/// A rule left out, and whether somebody noticed.
#[derive(Debug)]
pub struct Mutant {
    /// Where and which.
    pub name: String,
    /// By what it was caught, and after how much.
    pub caught: Option<String>,
}

/// Everything of one run.
#[derive(Debug, Default)]
pub struct Report {
    /// Explorations.
    pub rows: Vec<Row>,
    /// Mutants.
    pub mutants: Vec<Mutant>,
    /// How many transitions were faults, by kind.
    pub struck: Struck,
    /// Kinds that must have struck, or the run shows nothing.
    pub required: Vec<Fault>,
}

// === impl Report ===

impl Report {
    /// What is wrong with the run: violations, mutants that got away, faults that never struck.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = Vec::new();
        for row in &self.rows {
            problems.extend(row.problems.iter().map(|problem| format!("{}: {problem}", row.name)));
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

    /// What was counted over all rows, by unit.
    fn sums(&self) -> Vec<String> {
        let mut sums: Vec<(&str, u64)> = Vec::new();
        for row in &self.rows {
            match sums.iter_mut().find(|(unit, _)| *unit == row.unit) {
                Some((_, sum)) => *sum += row.counted,
                None => sums.push((row.unit, row.counted)),
            }
        }
        sums.iter().map(|(unit, sum)| format!("{unit} {sum}")).collect()
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
        let caught = self.mutants.iter().filter(|mutant| mutant.caught.is_some()).count();
        let violations: usize = self.rows.iter().map(|row| row.problems.len()).sum();
        writeln!(
            f,
            "\nscenarios {}  {}  kinds of faults {} of {}  violations {}  mutants caught {caught}/{}",
            self.rows.len(),
            self.sums().join("  "),
            struck().count(),
            Fault::ALL.len(),
            violations,
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
        assert_eq!(report.problems().len(), 1);
        report.struck.count(Fault::MessageLost);
        assert!(report.problems().is_empty());
        let mutant = |caught: Option<&str>| Mutant {
            name: "m".into(),
            caught: caught.map(str::to_owned),
        };
        report.mutants = vec![mutant(Some("I4")), mutant(None)];
        assert_eq!(report.problems().len(), 1);
        assert!(report.to_string().contains("mutants caught 1/2"));
    }
}
