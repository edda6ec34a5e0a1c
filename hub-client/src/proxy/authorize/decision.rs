//! Decides how to answer a caller, by the cached verdict and the reachability of the cloud. Pure.
//!
//! | last verdict | cloud reachable | not known yet | away |
//! |---|---|---|---|
//! | none | review | review | try again later |
//! | allowed, below [`RENEWED_FROM`] | allowed | allowed | allowed |
//! | allowed, below [`ALLOWED_FOR`] | allowed, review in background | allowed, review in background | allowed |
//! | allowed, older | review | allowed, review in background | allowed |
//! | denied, below [`DENIED_FOR`] | denied | denied | denied |
//! | denied, older | review | review | denied |
//!
//! A verdict older than [`KEPT_FOR`] counts as none. A token that the cloud does not know is not cached here
//! (`peers.rs`). An expired credential is reviewed, and unknown (401) where no review is possible. A review that the
//! cloud does not answer leaves the cached verdict in force ([`unanswered`]). One that it answers without a verdict
//! leaves an allowed one cached, for the time without the cloud, and its lifetime as it was ([`undecided`]). Neither is
//! repeated at once (`failed.rs`).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::health::CloudReach;

/// Age from which an allowed verdict is renewed in the background.
pub const RENEWED_FROM: Duration = Duration::from_secs(45);
/// Lifetime of an allowed verdict while the cloud is reachable, or its loss is not detected yet. Above ten minutes, the
/// time after which clients renew their watches.
pub const ALLOWED_FOR: Duration = Duration::from_secs(15 * 60);
/// Lifetime of a denied verdict while the cloud can be reached.
pub const DENIED_FOR: Duration = Duration::from_secs(10);
/// Lifetime of a verdict while the cloud is away. Rights revoked in that time last as long.
pub const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);

/// AccessVerdict of the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessVerdict {
    /// The cloud allows the request.
    Allowed,
    /// The cloud denies the request.
    Denied,
    /// The cloud does not know the token.
    Unauthorized,
}

/// State of one review.
#[derive(Clone, Copy, Debug)]
pub struct KnownAccess {
    /// The last verdict.
    pub verdict: AccessVerdict,
    /// Time since the last verdict.
    pub age: Duration,
}

/// Decision how to answer a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Answer with this verdict.
    Answer(AccessVerdict),
    /// Answer with this verdict, and review in the background.
    AnswerAndAsk(AccessVerdict),
    /// Review, and answer with the result.
    Ask,
    /// Answer with 429.
    TryLater,
}

/// Decides how to answer a caller. `is_over` is true if its credential has expired.
#[must_use]
pub fn next(known: Option<KnownAccess>, reach: CloudReach, is_over: bool) -> Next {
    let is_away = reach.is_failing();
    if is_over {
        return if is_away {
            Next::Answer(AccessVerdict::Unauthorized)
        } else {
            Next::Ask
        };
    }
    let Some(known) = known.filter(is_kept) else {
        return if is_away { Next::TryLater } else { Next::Ask };
    };
    let good_for = match known.verdict {
        AccessVerdict::Allowed if reach.is_up() => ALLOWED_FOR,
        AccessVerdict::Allowed => KEPT_FOR,
        AccessVerdict::Denied | AccessVerdict::Unauthorized => DENIED_FOR,
    };
    if is_away {
        return Next::Answer(known.verdict);
    }
    if known.age >= good_for {
        return Next::Ask;
    }
    let is_due = known.verdict == AccessVerdict::Allowed && known.age >= RENEWED_FROM;
    match is_due {
        true => Next::AnswerAndAsk(known.verdict),
        false => Next::Answer(known.verdict),
    }
}

/// Returns the verdict for a caller whose review had no result; `None` if the caller must try again later.
#[must_use]
pub fn unanswered(known: Option<KnownAccess>, is_over: bool) -> Option<AccessVerdict> {
    if is_over {
        return Some(AccessVerdict::Unauthorized);
    }
    known.filter(is_kept).map(|known| known.verdict)
}

/// Returns the verdict for a caller whose review the cloud answered without a verdict; `None` if the caller must try
/// again later. An allowed verdict that had to be reviewed does not count: the cloud is there.
#[must_use]
pub fn undecided(known: Option<KnownAccess>, is_over: bool) -> Option<AccessVerdict> {
    unanswered(known, is_over).filter(|verdict| *verdict != AccessVerdict::Allowed)
}

fn is_kept(known: &KnownAccess) -> bool {
    known.age < KEPT_FOR
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UP: CloudReach = CloudReach { failed_probes: Some(0) };
    const UNKNOWN: CloudReach = CloudReach { failed_probes: None };
    const AWAY: CloudReach = CloudReach { failed_probes: Some(1) };
    const VERDICTS: [AccessVerdict; 3] = [
        AccessVerdict::Allowed,
        AccessVerdict::Denied,
        AccessVerdict::Unauthorized,
    ];

    fn said(verdict: AccessVerdict, age: Duration) -> Option<KnownAccess> {
        Some(KnownAccess { verdict, age })
    }

    /// Returns the decisions with the cloud reachable, not known yet, and away.
    fn all(known: Option<KnownAccess>) -> [Next; 3] {
        [UP, UNKNOWN, AWAY].map(|reach| next(known, reach, false))
    }

    #[test]
    fn table_holds_at_its_edges() {
        use AccessVerdict::Allowed;
        use Next::{Answer, AnswerAndAsk, Ask, TryLater};
        let just = Duration::from_millis(1);
        assert_eq!(all(None), [Ask, Ask, TryLater]);
        let behind = AnswerAndAsk(Allowed);
        for (age, expected) in [
            (Duration::ZERO, [Answer(Allowed); 3]),
            (RENEWED_FROM - just, [Answer(Allowed); 3]),
            (RENEWED_FROM, [behind, behind, Answer(Allowed)]),
            (ALLOWED_FOR - just, [behind, behind, Answer(Allowed)]),
            (ALLOWED_FOR, [Ask, behind, Answer(Allowed)]),
            (KEPT_FOR - just, [Ask, behind, Answer(Allowed)]),
            (KEPT_FOR, [Ask, Ask, TryLater]),
        ] {
            assert_eq!(all(said(Allowed, age)), expected, "a yes of {age:?}");
        }
        for no in [AccessVerdict::Denied, AccessVerdict::Unauthorized] {
            assert_eq!(all(said(no, DENIED_FOR - just)), [Answer(no); 3]);
            assert_eq!(all(said(no, DENIED_FOR)), [Ask, Ask, Answer(no)]);
            assert_eq!(all(said(no, KEPT_FOR)), [Ask, Ask, TryLater]);
        }
    }

    proptest! {
        #[test]
        fn nobody_is_allowed_what_the_cloud_did_not_allow(
            verdict in prop::option::of(prop::sample::select(VERDICTS.to_vec())),
            age in prop_oneof![0..3600_u64, 0..2 * KEPT_FOR.as_secs()],
            probes in prop::option::of(0..3_u32),
            is_over: bool,
        ) {
            let age = Duration::from_secs(age);
            let known = verdict.map(|verdict| KnownAccess { verdict, age });
            let reach = CloudReach { failed_probes: probes };
            let decided = next(known, reach, is_over);
            let left = unanswered(known, is_over);
            let told = match decided {
                Next::Answer(told) | Next::AnswerAndAsk(told) => Some(told),
                Next::Ask | Next::TryLater => None,
            };
            for answer in [told, left].into_iter().flatten() {
                let is_said = verdict == Some(answer) && age < KEPT_FOR && !is_over;
                prop_assert!(is_said || (is_over && answer == AccessVerdict::Unauthorized));
            }
            if reach.is_failing() {
                prop_assert!(matches!(decided, Next::Answer(_) | Next::TryLater), "without the cloud there is no review");
                prop_assert_eq!(told, left);
            }
            prop_assert_eq!(undecided(known, is_over), left.filter(|left| *left != AccessVerdict::Allowed));
            let is_good = verdict == Some(AccessVerdict::Allowed) && age < ALLOWED_FOR && !is_over;
            prop_assert!(!is_good || told == Some(AccessVerdict::Allowed), "a valid allowed verdict is used without a review");
        }
    }
}
