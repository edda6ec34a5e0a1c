//! Decides which report of another member this hub checks next, and which of its own findings it checks again.
//!
//! Pure: no I/O, no clock. A report is checked until there is an answer, three times at the most; all reports together
//! cost one check in 10 s. A finding is checked again after 10 s, 20 s, 40 s and so on for 10 minutes: its leader may
//! forge it again.

use std::collections::BTreeMap;
use std::time::Duration;

use yurt_apimachinery::ObjectKey;
use yurt_apimachinery::time::BootTime;
use yurt_pool_protocol::feed::OpenReport;

/// Minimum time between two checks.
const PAUSE: Duration = Duration::from_secs(10);
/// Maximum checks of one report.
const TRIES_MAX: u32 = 3;
/// Maximum reports that are looked at.
const REPORTS_MAX: usize = 64;

/// Time until a finding is checked again; it doubles with each check.
const AGAIN: Duration = Duration::from_secs(10);
/// Time for which a finding is checked again.
const FOLLOWED_UP: Duration = Duration::from_secs(600);

/// Checks of the reports that are open.
#[derive(Debug, Default)]
pub struct Warnings {
    /// Number of checks by report.
    tries: BTreeMap<OpenReport, u32>,
    /// Time of the last check.
    last: Option<BootTime>,
}

/// Objects that this hub found forged, at most one per collection.
#[derive(Debug, Default)]
pub struct Suspects(BTreeMap<String, Suspect>);

/// An object that was found forged.
#[derive(Debug)]
struct Suspect {
    key: ObjectKey,
    /// Time of the next check.
    next: BootTime,
    /// Time between that check and the one after it.
    pause: Duration,
    until: BootTime,
}

// === impl Warnings ===

impl Warnings {
    /// Returns the report to check now, of those in `open`. `node` has its own findings.
    pub fn next(&mut self, open: &[OpenReport], node: &str, now: BootTime) -> Option<OpenReport> {
        let open = &open[..open.len().min(REPORTS_MAX)];
        self.tries.retain(|report, _| open.contains(report));
        if self.last.is_some_and(|last| now.since(last) < PAUSE) {
            return None;
        }
        let has_reported = |report: &OpenReport| {
            let mut own = open.iter().filter(|one| one.accuser == node);
            own.any(|own| own.collection == report.collection)
        };
        let tries = |report: &OpenReport| self.tries.get(report).copied().unwrap_or_default();
        let due = open.iter().filter(|one| tries(one) < TRIES_MAX && !has_reported(one));
        let next = due.min_by_key(|one| tries(one))?.clone();
        *self.tries.entry(next.clone()).or_default() += 1;
        self.last = Some(now);
        Some(next)
    }

    /// Records that `report` needs no further check.
    pub fn answered(&mut self, report: &OpenReport) {
        self.tries.insert(report.clone(), TRIES_MAX);
    }
}

// === impl Suspects ===

impl Suspects {
    /// Records that the object `key` of `collection` was found forged at `now`.
    pub fn found(&mut self, collection: &str, key: &ObjectKey, now: BootTime) {
        let suspect = Suspect {
            key: key.clone(),
            next: now + AGAIN,
            pause: AGAIN * 2,
            until: now + FOLLOWED_UP,
        };
        self.0.insert(collection.to_owned(), suspect);
    }

    /// Returns a collection and the object to check in it now.
    pub fn next(&mut self, now: BootTime) -> Option<(String, ObjectKey)> {
        self.0.retain(|_, suspect| now < suspect.until);
        let (collection, suspect) = self.0.iter_mut().find(|(_, suspect)| now >= suspect.next)?;
        suspect.next = now + suspect.pause;
        suspect.pause *= 2;
        Some((collection.clone(), suspect.key.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_is_checked_again_at_growing_intervals_for_a_while() {
        let (key, start) = (ObjectKey::new(Some("shop"), "web"), at(1));
        let mut suspects = Suspects::default();
        suspects.found("services", &key, start);
        let seconds = (0..2000).map(Duration::from_secs);
        let checked = seconds.filter(|secs| suspects.next(start + *secs).is_some());
        assert_eq!(
            checked.map(|secs| secs.as_secs()).collect::<Vec<_>>(),
            [10, 30, 70, 150, 310]
        );
        assert!(suspects.0.is_empty());
        suspects.found("services", &key, start);
        assert_eq!(suspects.next(start + AGAIN), Some(("services".to_owned(), key)));
    }

    fn report(accuser: &str, key: &str) -> OpenReport {
        OpenReport {
            accuser: accuser.into(),
            collection: "services".into(),
            key: key.into(),
            ..OpenReport::default()
        }
    }

    fn at(pauses: u32) -> BootTime {
        BootTime::from_boot(PAUSE * pauses)
    }

    #[test]
    fn each_report_is_checked_until_it_is_answered_and_not_for_ever() {
        let (mut warnings, open) = (Warnings::default(), [report("n2", "a"), report("n3", "b")]);
        let mut next = |now| warnings.next(&open, "n1", at(now)).map(|report| report.key);
        assert_eq!(
            [next(1), next(2), next(3), next(4)].map(Option::unwrap),
            ["a", "b", "a", "b"]
        );
        assert_eq!([next(5), next(6), next(7)], [Some("a".into()), Some("b".into()), None]);

        let mut warnings = Warnings::default();
        let first = warnings.next(&open, "n1", at(1)).unwrap();
        warnings.answered(&first);
        let mut next = |now| warnings.next(&open, "n1", at(now)).map(|report| report.key);
        assert_eq!((next(2), next(3)), (Some("b".into()), Some("b".into())));
    }

    #[test]
    fn reports_together_cost_one_check_per_pause() {
        let (mut warnings, open) = (Warnings::default(), [report("n2", "a"), report("n3", "b")]);
        assert!(warnings.next(&open, "n1", at(1)).is_some());
        assert_eq!(warnings.next(&open, "n1", at(1) + PAUSE / 2), None);
        assert!(warnings.next(&open, "n1", at(2)).is_some());
    }

    #[test]
    fn own_findings_need_no_check() {
        let (mut warnings, open) = (Warnings::default(), [report("n1", "a"), report("n2", "b")]);
        assert_eq!(warnings.next(&open, "n1", at(1)), None);
        assert_eq!(warnings.next(&open, "n3", at(1)), Some(open[0].clone()));
    }

    #[test]
    fn memory_is_that_of_the_open_reports() {
        let mut warnings = Warnings::default();
        for round in 0..200 {
            let open: Vec<_> = (0..REPORTS_MAX * 2)
                .map(|n| report("n2", &format!("{round}-{n}")))
                .collect();
            warnings.next(&open, "n1", at(round));
            assert!(warnings.tries.len() <= REPORTS_MAX);
        }
    }
}
