//! The one report at the end of `cargo xtask chaos`: scenarios, faults, checks and violations.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use anyhow::{Context, Result};
use serde_json::Value;

/// Totals of one half of a run, or of several runs of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Models, simulations, pools.
    pub(super) scenarios: u64,
    /// Number of faults of each kind; kinds that never occurred have 0.
    pub(super) faults: BTreeMap<String, u64>,
    /// Number of checks, by name.
    pub(super) operations: BTreeMap<String, u64>,
    pub(super) violations: u64,
    /// Mutants that were caught, and all of them.
    pub(super) mutants: (u64, u64),
}

/// Both halves, in the order they ran.
#[derive(Default)]
pub(super) struct Report {
    halves: Vec<(&'static str, Totals)>,
}

/// Columns of the tables.
const COLUMNS: usize = 3;

// === impl Totals ===

impl Totals {
    /// Reads what `yurt-chaos --totals` writes.
    ///
    /// # Errors
    /// When something is missing.
    pub(super) fn parse(text: &[u8]) -> Result<Self> {
        let value: Value = serde_json::from_slice(text).context("the totals are not JSON")?;
        let number = |value: &Value| value.as_u64().context("the totals lack a number");
        let counts = |value: &Value| {
            let counts = value.as_object().context("the totals lack a table")?;
            let counts = counts.iter().map(|(name, count)| Ok((name.clone(), number(count)?)));
            counts.collect::<Result<BTreeMap<_, _>>>()
        };
        let mutants = &value["mutants"];
        Ok(Self {
            scenarios: number(&value["scenarios"])?,
            faults: counts(&value["faults"])?,
            operations: counts(&value["operations"])?,
            violations: number(&value["violations"])?,
            mutants: (number(&mutants["caught"])?, number(&mutants["total"])?),
        })
    }

    /// Adds the totals of `other`.
    pub(super) fn add(&mut self, other: &Self) {
        self.scenarios += other.scenarios;
        self.violations += other.violations;
        self.mutants.0 += other.mutants.0;
        self.mutants.1 += other.mutants.1;
        for (mine, theirs) in [
            (&mut self.faults, &other.faults),
            (&mut self.operations, &other.operations),
        ] {
            for (name, count) in theirs {
                *mine.entry(name.clone()).or_default() += count;
            }
        }
    }

    /// Number of kinds of faults that were injected.
    fn kinds(&self) -> usize {
        self.faults.values().filter(|times| **times > 0).count()
    }

    /// Kinds of faults that were never injected.
    pub(super) fn never_struck(&self) -> Vec<&str> {
        let never = self.faults.iter().filter(|(_, times)| **times == 0);
        never.map(|(name, _)| name.as_str()).collect()
    }
}

// === impl Report ===

impl Report {
    /// Adds a half.
    pub(super) fn add(&mut self, name: &'static str, totals: Totals) {
        self.halves.push((name, totals));
    }

    fn sum(&self) -> Totals {
        let mut sum = Totals::default();
        for (_, totals) in &self.halves {
            sum.add(totals);
        }
        sum
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, totals) in &self.halves {
            let (kinds, all, struck) = (totals.kinds(), totals.faults.len(), totals.faults.values().sum::<u64>());
            writeln!(f, "\n{name}: {kinds} of {all} kinds of faults, {struck} times")?;
            columns(f, totals.faults.iter().filter(|(_, times)| **times > 0))?;
            let never = totals.never_struck();
            if !never.is_empty() {
                writeln!(f, "  never struck: {}", never.join(", "))?;
            }
        }
        let sum = self.sum();
        let kinds: usize = self.halves.iter().map(|(_, totals)| totals.kinds()).sum();
        let all: usize = self.halves.iter().map(|(_, totals)| totals.faults.len()).sum();
        let part = |totals: &Totals, name| format!("{name} {}", totals.scenarios);
        let parts: Vec<String> = self.halves.iter().map(|(name, totals)| part(totals, name)).collect();
        writeln!(f, "\nscenarios         {} ({})", sum.scenarios, parts.join(", "))?;
        writeln!(
            f,
            "kinds of faults   {kinds} of {all}, {} times",
            sum.faults.values().sum::<u64>()
        )?;
        let operations = sum.operations.iter().map(|(name, count)| format!("{count} {name}"));
        writeln!(f, "checked           {}", operations.collect::<Vec<_>>().join(", "))?;
        writeln!(f, "violations        {}", sum.violations)?;
        writeln!(f, "mutants caught    {} of {}", sum.mutants.0, sum.mutants.1)
    }
}

fn columns<'a>(f: &mut fmt::Formatter<'_>, counts: impl Iterator<Item = (&'a String, &'a u64)>) -> fmt::Result {
    let cells: Vec<String> = counts.map(|(name, count)| format!("  {count:>9} {name:<30}")).collect();
    for row in cells.chunks(COLUMNS) {
        writeln!(f, "{}", row.concat().trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTALS: &str = r#"{"scenarios": 2, "operations": {"reads": 10}, "faults": {"lost": 3, "late": 0}, "violations": 1,
        "mutants": {"caught": 4, "total": 5}}"#;

    #[test]
    fn totals_are_read_added_and_told() {
        let one = Totals::parse(TOTALS.as_bytes()).expect("totals");
        let mut report = Report::default();
        report.add("models", one.clone());
        let mut two = one.clone();
        two.add(&one);
        report.add("pools", two);
        let text = report.to_string();
        for line in [
            "models: 1 of 2 kinds of faults, 3 times",
            "pools: 1 of 2 kinds of faults, 6 times",
            "never struck: late",
            "scenarios         6 (models 2, pools 4)",
            "kinds of faults   2 of 4, 9 times",
            "checked           30 reads",
            "violations        3",
            "mutants caught    12 of 15",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
    }

    #[test]
    fn totals_without_a_number_are_refused() {
        assert!(Totals::parse(TOTALS.replace("\"violations\": 1,", "").as_bytes()).is_err());
    }
}
