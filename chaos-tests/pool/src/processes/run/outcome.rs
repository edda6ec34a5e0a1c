//! Results of a run, as numbers of the report and as violations.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Error, Result};
use yurt_chaos_validate::history::CheckResult;

use super::super::faults::Fault;
use super::super::heartbeats::Heartbeats;
use super::super::memory::Peaks;
use super::super::report::Totals;
use super::super::traffic::Written;
use super::super::{hostile, local_writes};
use super::leaders::Leaders;

/// Results of a run.
pub(in super::super) struct RunOutcome {
    /// Number of faults, for every kind that might occur.
    pub(in super::super) struck: BTreeMap<Fault, u32>,
    pub(in super::super) written: Written,
    pub(in super::super) clients: usize,
    /// Verdict over all clients.
    pub(in super::super) verdict: CheckResult,
    /// Lists of clients after their first one.
    pub(in super::super) relists: u32,
    /// Watches that clients opened.
    pub(in super::super) streams: u32,
    pub(in super::super) heartbeats: Heartbeats,
    pub(in super::super) leaders: Leaders,
    pub(in super::super) local_writes: local_writes::Totals,
    /// Results of the attacks.
    pub(in super::super) hostile: hostile::Totals,
    /// Peak memory of programs, and their disk usage.
    pub(in super::super) peaks: Peaks,
    /// Starts that were refused because of a fault, and repeated.
    pub(in super::super) restarts: u32,
    /// Panics found in the logs.
    pub(in super::super) panics: Vec<String>,
    /// Time from the end of the faults until all clients had the cloud's state; or the reason why they never had.
    pub(in super::super) rest: Result<Duration>,
}

// === impl RunOutcome ===

impl RunOutcome {
    /// The same as numbers of the report.
    pub(in super::super) fn totals(&self) -> Totals {
        let operations = [
            ("changes in the cloud", self.written.total()),
            ("statements to clients", self.verdict.checked),
            ("whole states", self.verdict.bookmarks),
            ("renewals of node leases", self.heartbeats.count),
            ("writes at coordinators", self.local_writes.count),
            ("leaders of processes", self.leaders.epochs),
            ("attacks refused", self.hostile.refused()),
        ];
        let times = |(fault, times): (&Fault, &u32)| (fault.to_string(), u64::from(*times));
        let found = [
            &self.verdict.violations,
            &self.heartbeats.violations,
            &self.local_writes.violations,
            &self.hostile.violations,
            &self.peaks.violations(),
            &self.panics,
        ];
        let violations = found.map(Vec::len).iter().sum::<usize>() + usize::from(self.rest.is_err());
        Totals {
            scenarios: 1,
            faults: self.struck.iter().map(times).collect(),
            operations: operations.map(|(name, count)| (name.to_owned(), count)).into(),
            violations: violations as u64,
            mutants: (0, 0),
        }
    }

    /// All violations.
    pub(in super::super) fn violations(&self) -> Vec<String> {
        let rest = self.rest.as_ref().err().map(|error: &Error| format!("{error:#}"));
        let told = self.verdict.violations.iter().chain(&self.heartbeats.violations);
        told.chain(&self.local_writes.violations)
            .chain(&self.hostile.violations)
            .chain(&self.panics)
            .cloned()
            .chain(self.peaks.violations())
            .chain(rest)
            .collect()
    }
}
