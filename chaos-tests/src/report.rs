//! What a run prints at its end, and whether it passed.

use std::fmt::{self, Display};
use std::time::Duration;

use crate::faults::{Fault, Part, Struck};

/// One model or simulation.
#[derive(Debug)]
pub struct Row {
    /// Name, as for `--only`.
    pub name: String,
    /// States, elections, reads: what was looked at, and how many.
    pub looked_at: Vec<(&'static str, u64)>,
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
    /// Models and simulations.
    pub rows: Vec<Row>,
    /// Mutants.
    pub mutants: Vec<Mutant>,
    /// Faults in models: transitions that were followed.
    pub in_models: Struck,
    /// Faults in simulations.
    pub in_simulations: Struck,
    /// Kinds that must have struck, or the run shows nothing.
    pub required: Vec<(Part, Fault)>,
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
        for (part, fault) in &self.required {
            if self.struck(*part).of(*fault) == 0 {
                problems.push(format!("void: {} never struck", fault.id()));
            }
        }
        problems
    }

    fn struck(&self, part: Part) -> &Struck {
        match part {
            Part::Simulation => &self.in_simulations,
            Part::Model | Part::Process => &self.in_models,
        }
    }

    /// Sum of everything called `what`.
    #[must_use]
    pub fn total(&self, what: &str) -> u64 {
        let all = self.rows.iter().flat_map(|row| &row.looked_at);
        all.filter(|(name, _)| *name == what).map(|(_, count)| count).sum()
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:<28} {:>8}  looked at", "scenario", "seconds")?;
        for row in &self.rows {
            let counts: Vec<_> = row.looked_at.iter().map(|(what, n)| format!("{n} {what}")).collect();
            let result = if row.problems.is_empty() { "" } else { "  FAILED" };
            let (name, seconds) = (&row.name, row.took.as_secs_f64());
            writeln!(
                f,
                "{name:<28} {seconds:>8.1}  {}; {}{result}",
                counts.join(", "),
                row.bound
            )?;
        }
        writeln!(f, "\n{:<28} {:>12} {:>12}", "fault", "in models", "simulated")?;
        for fault in Fault::ALL {
            let counts = (self.in_models.of(*fault), self.in_simulations.of(*fault));
            if counts != (0, 0) {
                writeln!(f, "{:<28} {:>12} {:>12}", fault.id(), counts.0, counts.1)?;
            }
        }
        writeln!(f, "\n{:<44} caught by", "mutant")?;
        for mutant in &self.mutants {
            let caught = mutant.caught.as_deref().unwrap_or("NOT CAUGHT");
            writeln!(f, "{:<44} {caught}", mutant.name)?;
        }
        let caught = self.mutants.iter().filter(|mutant| mutant.caught.is_some()).count();
        let kinds = |struck: &Struck| Fault::ALL.iter().filter(|fault| struck.of(**fault) > 0).count();
        let violations: usize = self.rows.iter().map(|row| row.problems.len()).sum();
        writeln!(
            f,
            "\nscenarios {}  states {}  elections {}  reads checked {}  kinds of faults {} + {} of {}  violations {}  mutants \
             caught {caught}/{}",
            self.rows.len(),
            self.total("states"),
            self.total("elections"),
            self.total("reads"),
            kinds(&self.in_models),
            kinds(&self.in_simulations),
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
            required: vec![(Part::Model, Fault::MessageLost)],
            ..Report::default()
        };
        assert_eq!(report.problems().len(), 1);
        report.in_models.count(Fault::MessageLost);
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
