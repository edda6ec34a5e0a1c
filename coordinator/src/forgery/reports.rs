//! Reports of forged pool data, and the rule that confirms or denies them.
//!
//! Pure: no I/O, no clock. A report is the finding of one member. A collection is confirmed as forged when a majority
//! of the voters, and at least two, have reported it. Voters are the members heard of in the last 5 minutes, except the
//! leader.
//!
//! ```text
//!   reports of ≥ 2 voters and more than half of them ──► confirmed, all reports of the collection end with its void
//!   denied by more than half of the voters ────────────► the report ends, its accuser is ignored for a growing time
//!   neither within 10 min ─────────────────────────────► the report ends, its accuser waits for 10 min
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use yurt_apimachinery::ResourceVersion;
use yurt_apimachinery::time::BootTime;
use yurt_pool_protocol::penalties::Penalties;

/// Minimum number of voters that confirm: one stolen key is not enough.
const CONFIRMING_MIN: usize = 2;
/// Time after which an undecided report ends.
pub(crate) const OPEN_FOR: Duration = Duration::from_secs(10 * 60);
/// Time that the accuser of an undecided report has to wait for its next one.
const PAUSE: Duration = Duration::from_secs(10 * 60);
/// A member votes for so long after it was heard of; after the start all members vote for as long.
const PRESENT_FOR: Duration = Duration::from_secs(5 * 60);

/// All open reports: at most one per member and collection.
#[derive(Debug)]
pub(crate) struct Reports {
    started: BootTime,
    /// Time of the last request of each member.
    heard: BTreeMap<String, BootTime>,
    /// By collection and accuser.
    open: BTreeMap<(String, String), Report>,
    /// Collections that are being voided.
    voiding: BTreeSet<String>,
    /// End of the pause of accusers whose report stayed undecided.
    paused: BTreeMap<String, BootTime>,
    ignored: Penalties,
}

/// State of an object at the coordinator that contradicts the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Name of the collection.
    pub(crate) collection: String,
    /// Generation of the collection.
    pub(crate) generation: u64,
    /// Key of the object.
    pub(crate) key: String,
    /// RV of the object; zero if the collection lacks it.
    pub(crate) version: ResourceVersion,
    /// Kind of the forgery.
    pub(crate) reason: String,
}

/// An open report.
#[derive(Debug)]
struct Report {
    finding: Finding,
    since: BootTime,
    denied_by: BTreeSet<String>,
    /// True if a majority has confirmed it.
    is_confirmed: bool,
}

/// Vote of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    /// The member has found this itself.
    Forged(Finding),
    /// The finding that `accuser` reported is not true: the object is the cloud's.
    Honest {
        /// Member that reported.
        accuser: String,
        /// Its finding.
        finding: Finding,
    },
}

/// Result of a vote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReportDecision {
    /// The report is open.
    Open,
    /// The collection is forged.
    Confirmed {
        /// The reports, by accuser.
        findings: Vec<(String, Finding)>,
        /// True if the reports are confirmed for the first time: no void of them has failed.
        is_first: bool,
    },
    /// The report is not true: its accuser is ignored for this time.
    Denied(Duration),
}

/// Reason for which a vote does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportRefusal {
    /// The node leads, or is no member.
    NoVoter,
    /// The node may report after this time.
    Wait(Duration),
    /// There is no such report.
    Unknown,
}

// === impl Vote ===

impl Vote {
    /// The reported state of an object.
    pub(crate) fn finding(&self) -> &Finding {
        match self {
            Self::Forged(finding) | Self::Honest { finding, .. } => finding,
        }
    }
}

// === impl Reports ===

impl Reports {
    /// No reports; the coordinator started at `now`.
    pub(crate) fn new(now: BootTime) -> Self {
        Self {
            started: now,
            heard: BTreeMap::new(),
            open: BTreeMap::new(),
            voiding: BTreeSet::new(),
            paused: BTreeMap::new(),
            ignored: Penalties::default(),
        }
    }

    /// Records a request of the member `node`. The members bound the memory.
    pub(crate) fn heard(&mut self, node: &str, now: BootTime) {
        if let Some(heard) = self.heard.get_mut(node) {
            *heard = now;
            return;
        }
        self.heard.retain(|_, heard| now.since(*heard) < PRESENT_FOR);
        self.heard.insert(node.to_owned(), now);
    }

    /// Counts the vote of `node`, where `leader` leads a pool of `members`.
    ///
    /// # Errors
    /// [`ReportRefusal`]; nothing has changed then.
    pub(crate) fn vote(
        &mut self,
        node: &str,
        vote: Vote,
        members: &BTreeSet<String>,
        leader: Option<&str>,
        now: BootTime,
    ) -> Result<ReportDecision, ReportRefusal> {
        self.expire(now);
        let mut voters = self.voters(members, leader, now);
        if !members.contains(node) || leader == Some(node) {
            return Err(ReportRefusal::NoVoter);
        }
        // Its vote shows that it is there.
        voters.insert(node.to_owned());
        self.heard(node, now);
        match vote {
            Vote::Forged(finding) => self.accuse(node, finding, &voters, now),
            Vote::Honest { accuser, finding } => self.deny(node, accuser, &finding, &voters, now),
        }
    }

    /// Ends all reports of a collection, which has been voided.
    pub(crate) fn end(&mut self, collection: &str) {
        self.open.retain(|(name, _), _| name != collection);
        self.voiding.remove(collection);
    }

    /// Keeps the reports of a collection whose void failed: the next one confirms it again. A void may have taken
    /// effect all the same. Reports of generations below `required`, the lowest that is not void, end.
    pub(crate) fn keep(&mut self, collection: &str, required: u64) {
        self.voiding.remove(collection);
        self.open
            .retain(|(name, _), report| name != collection || report.finding.generation >= required);
    }

    /// The open reports, by accuser.
    pub(crate) fn open(&mut self, now: BootTime) -> impl Iterator<Item = (&str, &Finding)> {
        self.expire(now);
        let open = self.open.iter();
        open.map(|((_, accuser), report)| (accuser.as_str(), &report.finding))
    }

    fn accuse(
        &mut self,
        node: &str,
        finding: Finding,
        voters: &BTreeSet<String>,
        now: BootTime,
    ) -> Result<ReportDecision, ReportRefusal> {
        if let Some(left) = self.ignored.left(node, now) {
            return Err(ReportRefusal::Wait(left));
        }
        let key = (finding.collection.clone(), node.to_owned());
        if !self.open.contains_key(&key) {
            if let Some(until) = self.paused.get(node) {
                return Err(ReportRefusal::Wait(until.since(now)));
            }
            let report = Report {
                finding,
                since: now,
                denied_by: BTreeSet::new(),
                is_confirmed: false,
            };
            self.open.insert(key.clone(), report);
        }
        let collection = key.0;
        let of_collection = self.open.iter().filter(|((name, _), _)| *name == collection);
        let counted = of_collection.filter(|((_, accuser), _)| voters.contains(accuser));
        let findings: Vec<_> = counted
            .map(|((_, accuser), report)| (accuser.clone(), report.finding.clone()))
            .collect();
        // One void at a time: a second one would take what has been fed since.
        if !is_majority(findings.len(), voters) || !self.voiding.insert(collection.clone()) {
            return Ok(ReportDecision::Open);
        }
        let mut is_first = true;
        let of_collection = self.open.iter_mut().filter(|((name, _), _)| *name == collection);
        for (_, report) in of_collection {
            is_first &= !std::mem::replace(&mut report.is_confirmed, true);
        }
        Ok(ReportDecision::Confirmed { findings, is_first })
    }

    fn deny(
        &mut self,
        node: &str,
        accuser: String,
        finding: &Finding,
        voters: &BTreeSet<String>,
        now: BootTime,
    ) -> Result<ReportDecision, ReportRefusal> {
        let key = (finding.collection.clone(), accuser);
        let report = self.open.get_mut(&key).filter(|report| report.finding.is(finding));
        let report = report.ok_or(ReportRefusal::Unknown)?;
        report.denied_by.insert(node.to_owned());
        if !is_majority(report.denied_by.intersection(voters).count(), voters) {
            return Ok(ReportDecision::Open);
        }
        self.open.remove(&key);
        Ok(ReportDecision::Denied(self.ignored.add(&key.1, now)))
    }

    fn voters(&self, members: &BTreeSet<String>, leader: Option<&str>, now: BootTime) -> BTreeSet<String> {
        let is_new = now.since(self.started) < PRESENT_FOR;
        let is_present = |node: &str| {
            is_new
                || self
                    .heard
                    .get(node)
                    .is_some_and(|heard| now.since(*heard) < PRESENT_FOR)
        };
        let voters = members.iter().filter(|node| leader != Some(node) && is_present(node));
        voters.cloned().collect()
    }

    fn expire(&mut self, now: BootTime) {
        self.paused.retain(|_, until| now < *until);
        let paused = &mut self.paused;
        self.open.retain(|(_, accuser), report| {
            let end = report.since + OPEN_FOR;
            if now >= end && now < end + PAUSE && !report.is_confirmed {
                paused.insert(accuser.clone(), end + PAUSE);
            }
            now < end
        });
    }
}

fn is_majority(count: usize, voters: &BTreeSet<String>) -> bool {
    count >= CONFIRMING_MIN && count * 2 > voters.len()
}

// === impl Finding ===

impl Finding {
    /// True if both are about the same state of the same object.
    fn is(&self, other: &Self) -> bool {
        (self.generation, &self.key, self.version) == (other.generation, &other.key, other.version)
    }
}

#[cfg(test)]
mod tests;
