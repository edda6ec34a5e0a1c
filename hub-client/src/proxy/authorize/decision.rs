//! How a caller is answered, by what is known of its rights and of the cloud. Pure.
//!
//! | what the cloud said last | the cloud is there | not known yet | away |
//! |---|---|---|---|
//! | nothing | ask | ask | try again later |
//! | yes, below [`RENEWED_FROM`] | yes | yes | yes |
//! | yes, below [`ALLOWED_FOR`] | yes, ask behind it | yes, ask behind it | yes |
//! | yes, older | ask | yes, ask behind it | yes |
//! | no, below [`DENIED_FOR`] | no | no | no |
//! | the same, older | ask | ask | no |
//!
//! An answer older than [`KEPT_FOR`] is nothing. That the cloud did not know a token is not remembered of the token. A credential whose own time is over is asked about, and unknown (401) where
//! nobody can be asked. A question without an answer leaves what is known ([`unanswered`]).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pool::probe::CloudReach;

/// From this age on a yes is asked about again behind the answer.
pub const RENEWED_FROM: Duration = Duration::from_secs(45);
/// How long a yes is good while the cloud is there, or while nobody has noticed that it is not. Above the ten minutes for
/// which clients watch before they ask again.
pub const ALLOWED_FOR: Duration = Duration::from_secs(15 * 60);
/// How long a no is good while the cloud can be asked.
pub const DENIED_FOR: Duration = Duration::from_secs(10);
/// How long an answer is good while the cloud is away. Rights that were taken away meanwhile last as long.
pub const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);
/// After a question without an answer none is asked behind an answer for so long.
pub const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// What the cloud said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Yes.
    Allowed,
    /// No.
    Denied,
    /// The cloud does not know the token.
    Unauthorized,
}

/// What is known of one question.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The last answer.
    pub verdict: Verdict,
    /// Time since then.
    pub age: Duration,
    /// Time since a question without an answer, if that was the last one.
    pub failed: Option<Duration>,
}

/// How a caller is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// With this.
    Answer(Verdict),
    /// With this; the cloud is asked behind it.
    AnswerAndAsk(Verdict),
    /// With what the cloud says.
    Ask,
    /// With 429.
    TryLater,
}

/// Decides how a caller is answered; `is_over` says that its credential has no time left.
#[must_use]
pub fn next(known: Option<Known>, reach: CloudReach, is_over: bool) -> Next {
    let is_away = is_away(reach);
    if is_over {
        return if is_away {
            Next::Answer(Verdict::Unauthorized)
        } else {
            Next::Ask
        };
    }
    let Some(known) = known.filter(is_kept) else {
        return if is_away { Next::TryLater } else { Next::Ask };
    };
    let good_for = match known.verdict {
        Verdict::Allowed if reach.is_up() => ALLOWED_FOR,
        Verdict::Allowed => KEPT_FOR,
        Verdict::Denied | Verdict::Unauthorized => DENIED_FOR,
    };
    if is_away {
        return Next::Answer(known.verdict);
    }
    if known.age >= good_for {
        return Next::Ask;
    }
    let is_due = known.verdict == Verdict::Allowed && known.age >= RENEWED_FROM;
    if is_due && known.failed.is_none_or(|ago| ago >= ASKED_AGAIN_AFTER) {
        Next::AnswerAndAsk(known.verdict)
    } else {
        Next::Answer(known.verdict)
    }
}

/// The answer to a caller whose question got none; `None`: it has to try again later.
#[must_use]
pub fn unanswered(known: Option<Known>, is_over: bool) -> Option<Verdict> {
    if is_over {
        return Some(Verdict::Unauthorized);
    }
    known.filter(is_kept).map(|known| known.verdict)
}

/// Whether the probes know that the cloud does not answer.
#[must_use]
pub fn is_away(reach: CloudReach) -> bool {
    reach.failed_probes.is_some_and(|failed| failed > 0)
}

fn is_kept(known: &Known) -> bool {
    known.age < KEPT_FOR
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UP: CloudReach = CloudReach { failed_probes: Some(0) };
    const UNKNOWN: CloudReach = CloudReach { failed_probes: None };
    const AWAY: CloudReach = CloudReach { failed_probes: Some(1) };
    const VERDICTS: [Verdict; 3] = [Verdict::Allowed, Verdict::Denied, Verdict::Unauthorized];

    fn said(verdict: Verdict, age: Duration) -> Option<Known> {
        let failed = None;
        Some(Known { verdict, age, failed })
    }

    /// What is done with the cloud there, not known, and away.
    fn all(known: Option<Known>) -> [Next; 3] {
        [UP, UNKNOWN, AWAY].map(|reach| next(known, reach, false))
    }

    #[test]
    fn table_holds_at_its_edges() {
        use Next::{Answer, AnswerAndAsk, Ask, TryLater};
        use Verdict::Allowed;
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
        for no in [Verdict::Denied, Verdict::Unauthorized] {
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
            failed in prop::option::of(0..20_u64),
            probes in prop::option::of(0..3_u32),
            is_over: bool,
        ) {
            let (age, failed) = (Duration::from_secs(age), failed.map(Duration::from_secs));
            let known = verdict.map(|verdict| Known { verdict, age, failed });
            let reach = CloudReach { failed_probes: probes };
            let decided = next(known, reach, is_over);
            let left = unanswered(known, is_over);
            let told = match decided {
                Next::Answer(told) | Next::AnswerAndAsk(told) => Some(told),
                Next::Ask | Next::TryLater => None,
            };
            for answer in [told, left].into_iter().flatten() {
                let is_said = verdict == Some(answer) && age < KEPT_FOR && !is_over;
                prop_assert!(is_said || (is_over && answer == Verdict::Unauthorized));
            }
            if is_away(reach) {
                prop_assert!(matches!(decided, Next::Answer(_) | Next::TryLater), "nobody is there to ask");
                prop_assert_eq!(told, left);
            }
            let is_good = verdict == Some(Verdict::Allowed) && age < ALLOWED_FOR && !is_over;
            prop_assert!(!is_good || told == Some(Verdict::Allowed), "a good yes is used at once");
        }
    }
}
