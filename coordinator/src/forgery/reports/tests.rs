//! Votes of pools of several sizes.

use yurt_pool_protocol::penalties::TIMES;

use super::*;

const LATE: u64 = 100_000;

fn at(secs: u64) -> BootTime {
    BootTime::from_boot(Duration::from_secs(secs))
}

/// A pool of `n0` (the leader) to `n<size - 1>`, all heard of at [`LATE`].
struct Pool {
    members: BTreeSet<String>,
    reports: Reports,
}

// === impl Pool ===

impl Pool {
    fn of(size: usize) -> Self {
        let members: BTreeSet<String> = (0..size).map(|number| format!("n{number}")).collect();
        let mut reports = Reports::new(at(1));
        members.iter().for_each(|node| reports.heard(node, at(LATE)));
        Self { members, reports }
    }

    fn vote(&mut self, node: &str, vote: Vote, secs: u64) -> Result<ReportDecision, ReportRefusal> {
        self.reports.vote(node, vote, &self.members, Some("n0"), at(secs))
    }

    fn accuse(&mut self, node: &str, secs: u64) -> Result<ReportDecision, ReportRefusal> {
        self.vote(node, Vote::Forged(finding()), secs)
    }

    fn deny(&mut self, node: &str, accuser: &str, secs: u64) -> Result<ReportDecision, ReportRefusal> {
        let vote = Vote::Honest {
            accuser: accuser.to_owned(),
            finding: finding(),
        };
        self.vote(node, vote, secs)
    }

    /// Number of members that have to report before the collection is confirmed.
    fn needed(mut self) -> Option<usize> {
        let nodes: Vec<String> = self.members.iter().skip(1).cloned().collect();
        let confirms = |node: &String| matches!(self.accuse(node, LATE), Ok(ReportDecision::Confirmed { .. }));
        nodes.iter().position(confirms).map(|place| place + 1)
    }
}

fn finding() -> Finding {
    Finding {
        collection: "services".into(),
        generation: 7,
        key: "shop/web".into(),
        version: ResourceVersion(50),
        reason: "content".into(),
    }
}

#[test]
fn majority_of_the_voters_and_two_at_least_confirm() {
    for (size, needed) in [
        (1, None),
        (2, None),
        (3, Some(2)),
        (4, Some(2)),
        (5, Some(3)),
        (6, Some(3)),
        (10, Some(5)),
    ] {
        assert_eq!(Pool::of(size).needed(), needed, "a pool of {size}");
    }
}

#[test]
fn confirmed_report_names_all_accusers_and_ends() {
    let mut pool = Pool::of(3);
    assert_eq!(pool.accuse("n1", LATE), Ok(ReportDecision::Open));
    assert_eq!(
        pool.accuse("n1", LATE),
        Ok(ReportDecision::Open),
        "one member counts once"
    );
    let confirmed = ReportDecision::Confirmed {
        findings: ["n1", "n2"].map(|node| (node.to_owned(), finding())).to_vec(),
        is_first: true,
    };
    assert_eq!(pool.accuse("n2", LATE), Ok(confirmed));
    pool.reports.end("services");
    assert_eq!(pool.reports.open(at(LATE)).count(), 0);
    assert_eq!(pool.accuse("n2", LATE), Ok(ReportDecision::Open));
}

#[test]
fn confirmed_reports_stay_until_the_collection_is_voided() {
    let mut pool = Pool::of(3);
    pool.accuse("n1", LATE).unwrap();
    for expected in [true, false] {
        let Ok(ReportDecision::Confirmed { findings, is_first }) = pool.accuse("n2", LATE) else {
            panic!("two of two voters reported it")
        };
        assert_eq!((findings.len(), is_first), (2, expected), "it is one forgery");
        assert_eq!(pool.accuse("n1", LATE), Ok(ReportDecision::Open), "it is being voided");
        // The disk was full.
        pool.reports.keep("services", finding().generation);
        assert_eq!(pool.reports.open(at(LATE)).count(), 2);
    }
    let later = LATE + OPEN_FOR.as_secs();
    assert_eq!(
        pool.accuse("n1", later),
        Ok(ReportDecision::Open),
        "n1 was right, so it need not wait"
    );
}

#[test]
fn reports_of_void_data_count_no_longer_although_the_void_failed() {
    let mut pool = Pool::of(4);
    pool.accuse("n1", LATE).unwrap();
    pool.accuse("n2", LATE).unwrap();
    // The record of the void was stored, and the link to the store broke.
    pool.reports.keep("services", finding().generation + 1);
    let later = Finding {
        generation: finding().generation + 1,
        ..finding()
    };
    assert_eq!(
        pool.vote("n3", Vote::Forged(later), LATE),
        Ok(ReportDecision::Open),
        "one vote about what was fed since"
    );
}

#[test]
fn findings_about_other_objects_of_the_collection_count_together() {
    let mut pool = Pool::of(3);
    pool.accuse("n1", LATE).unwrap();
    let other = Finding {
        key: "shop/db".into(),
        generation: 8,
        ..finding()
    };
    let elsewhere = Finding {
        collection: "endpoints".into(),
        ..finding()
    };
    assert_eq!(pool.vote("n2", Vote::Forged(elsewhere), LATE), Ok(ReportDecision::Open));
    assert!(matches!(
        pool.vote("n2", Vote::Forged(other), LATE),
        Ok(ReportDecision::Confirmed { .. })
    ));
    pool.reports.end("services");
    let open: Vec<_> = pool.reports.open(at(LATE)).collect();
    assert_eq!(open.len(), 1, "that of the other collection: {open:?}");
}

#[test]
fn two_colluding_keys_in_a_pool_of_five_or_more_change_nothing() {
    for size in 5..=10 {
        let mut pool = Pool::of(size);
        for node in ["n1", "n2", "n1", "n2"] {
            assert_eq!(pool.accuse(node, LATE), Ok(ReportDecision::Open), "a pool of {size}");
        }
        assert_eq!(pool.accuse("n0", LATE), Err(ReportRefusal::NoVoter), "the leader");
        assert_eq!(pool.accuse("other", LATE), Err(ReportRefusal::NoVoter), "no member");
        for node in ["n1", "n2"] {
            pool.deny(node, "n1", LATE).unwrap();
        }
        assert_eq!(
            pool.reports.open(at(LATE)).count(),
            2,
            "nor silence each other's accuser"
        );
    }
}

#[test]
fn liar_is_ignored_for_a_growing_time() {
    let (mut pool, mut now) = (Pool::of(5), LATE);
    for time in TIMES {
        for node in ["n2", "n3", "n4"] {
            pool.reports.heard(node, at(now));
        }
        assert_eq!(pool.accuse("n1", now), Ok(ReportDecision::Open));
        assert_eq!(pool.deny("n2", "n1", now), Ok(ReportDecision::Open));
        assert_eq!(
            pool.deny("n2", "n1", now),
            Ok(ReportDecision::Open),
            "one member counts once"
        );
        assert_eq!(pool.deny("n3", "n1", now), Ok(ReportDecision::Open));
        assert_eq!(pool.deny("n4", "n1", now), Ok(ReportDecision::Denied(time)));
        assert_eq!(pool.deny("n4", "n1", now), Err(ReportRefusal::Unknown));
        now += time.as_secs();
        assert_eq!(
            pool.accuse("n1", now - 1),
            Err(ReportRefusal::Wait(Duration::from_secs(1)))
        );
    }
}

#[test]
fn only_the_very_finding_is_denied() {
    let mut pool = Pool::of(3);
    pool.accuse("n1", LATE).unwrap();
    for other in [
        Finding {
            generation: 8,
            ..finding()
        },
        Finding {
            version: ResourceVersion(51),
            ..finding()
        },
        Finding {
            key: "shop/db".into(),
            ..finding()
        },
    ] {
        let vote = Vote::Honest {
            accuser: "n1".into(),
            finding: other,
        };
        assert_eq!(pool.vote("n2", vote, LATE), Err(ReportRefusal::Unknown));
    }
}

#[test]
fn undecided_report_ends_and_its_accuser_waits() {
    let mut pool = Pool::of(5);
    pool.accuse("n1", LATE).unwrap();
    let end = LATE + OPEN_FOR.as_secs();
    assert_eq!(pool.reports.open(at(end - 1)).count(), 1);
    assert_eq!(pool.reports.open(at(end)).count(), 0);
    assert_eq!(pool.accuse("n1", end), Err(ReportRefusal::Wait(PAUSE)));
    assert_eq!(
        pool.accuse("n2", end),
        Ok(ReportDecision::Open),
        "others are not stopped"
    );
    assert_eq!(pool.accuse("n1", end + PAUSE.as_secs()), Ok(ReportDecision::Open));
}

#[test]
fn members_that_are_away_do_not_count_once_the_coordinator_ran_for_a_while() {
    let away = PRESENT_FOR.as_secs();
    let mut pool = Pool::of(10);
    pool.reports.heard("n3", at(LATE + away));
    pool.accuse("n1", LATE + away).unwrap();
    let decided = pool.accuse("n2", LATE + away);
    assert!(
        matches!(decided, Ok(ReportDecision::Confirmed { .. })),
        "two of three: {decided:?}"
    );

    let mut pool = Pool::of(10);
    pool.reports = Reports::new(at(LATE));
    pool.accuse("n1", LATE).unwrap();
    assert_eq!(
        pool.accuse("n2", LATE),
        Ok(ReportDecision::Open),
        "nobody was heard of yet"
    );
    pool.accuse("n1", LATE + away).unwrap();
    let decided = pool.accuse("n2", LATE + away);
    assert!(
        matches!(decided, Ok(ReportDecision::Confirmed { .. })),
        "these two are there: {decided:?}"
    );
}

#[test]
fn memory_is_bounded_by_members_and_collections() {
    let mut pool = Pool::of(10);
    for round in 0..100 {
        let now = LATE + round * 3600;
        for number in 1..5 {
            for key in ["a", "b", "c"] {
                let finding = Finding {
                    key: format!("{key}{round}"),
                    ..finding()
                };
                let _ = pool.vote(&format!("n{number}"), Vote::Forged(finding), now);
            }
        }
        pool.reports.heard(&format!("former{round}"), at(now));
    }
    let Reports {
        heard, open, paused, ..
    } = &pool.reports;
    assert!(
        heard.len() <= 10 && open.len() <= 4 && paused.len() <= 4,
        "{:?}",
        pool.reports
    );
}
