//! Bounded cache of verdicts. Allowed verdicts of one caller never evict those of all others; a denied one never evicts
//! an allowed one.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use yurt_apimachinery::time::BootTime;

use super::credential::{Hash, Key};
use super::decision::{AccessVerdict, KEPT_FOR, KnownAccess};

/// Maximum number of cached verdicts.
pub const ANSWERS_MAX: usize = 4096;
/// Maximum number of cached verdicts of one caller.
pub const ANSWERS_PER_CALLER: usize = 256;
/// Time after a 401 until a success with the same token revives its other verdicts. A kube-apiserver accepts a token
/// for 10 s without checking it again (`TokenSuccessCacheTTL`), and a success may have been under way.
pub const SETTLED_AFTER: Duration = Duration::from_secs(15);
/// Time after a 401 until the verdicts about the token may be removed: a kube-apiserver has started by then.
const SUSPENDED_FOR: Duration = Duration::from_secs(600);

/// Last verdict of every review.
pub struct Answers {
    rows: BTreeMap<Key, CachedAnswer>,
    max: usize,
    per_caller: usize,
}

#[derive(Clone, Copy)]
struct CachedAnswer {
    verdict: AccessVerdict,
    /// Age at `since`: the verdict may be older than this boot.
    before: Duration,
    since: BootTime,
    /// End of the caller's credential, Unix seconds; `None` if it has none.
    ends: Option<i64>,
    /// Time since which the cloud does not know the caller. The verdict does not count then.
    suspended: Option<BootTime>,
}

// === impl Answers ===

impl Default for Answers {
    fn default() -> Self {
        Self::bounded(ANSWERS_MAX, ANSWERS_PER_CALLER)
    }
}

impl Answers {
    fn bounded(max: usize, per_caller: usize) -> Self {
        let rows = BTreeMap::new();
        Self { rows, max, per_caller }
    }

    /// Returns the state of a review.
    #[must_use]
    pub fn known(&self, key: &Key, now: BootTime) -> Option<KnownAccess> {
        let answer = self.rows.get(key).filter(|answer| answer.suspended.is_none())?;
        Some(KnownAccess {
            verdict: answer.verdict,
            age: answer.age(now),
        })
    }

    /// Caches a verdict of the given age about a credential that `ends` then; returns the previous one, if any.
    pub fn learn(
        &mut self,
        key: Key,
        ends: Option<i64>,
        verdict: AccessVerdict,
        age: Duration,
        now: BootTime,
    ) -> Option<AccessVerdict> {
        let answer = CachedAnswer {
            verdict,
            before: age,
            since: now,
            ends,
            suspended: None,
        };
        if let Some(known) = self.rows.get_mut(&key) {
            return Some(std::mem::replace(known, answer).verdict);
        }
        if self.make_room(&key, verdict, now) {
            self.rows.insert(key, answer);
        }
        None
    }

    /// True if a verdict for `key` is cached, or has a place without the eviction of another one.
    #[must_use]
    pub fn has_room(&self, key: &Key) -> bool {
        let has_place = || self.rows.len() < self.max && self.of_caller(key).count() < self.per_caller;
        self.rows.contains_key(key) || has_place()
    }

    /// Removes a "denied"; returns whether there was one.
    pub fn forget_denied(&mut self, key: &Key) -> bool {
        let is_denied = self
            .rows
            .get(key)
            .is_some_and(|answer| answer.verdict == AccessVerdict::Denied);
        is_denied && self.rows.remove(key).is_some()
    }

    /// Suspends the verdicts about the caller of `key`: the cloud does not know it. Returns whether one counted.
    pub fn suspend(&mut self, key: &Key, now: BootTime) -> bool {
        let mut changed = false;
        for (_, answer) in self.rows.range_mut(range_of(key)) {
            changed |= answer.suspended.is_none();
            answer.suspended = Some(now);
        }
        changed
    }

    /// Revives the verdicts about the caller of `key`, which the cloud knows. Returns whether that changed one.
    pub fn revive(&mut self, key: &Key, now: BootTime) -> bool {
        let mut changed = false;
        for (_, answer) in self.rows.range_mut(range_of(key)) {
            if answer.suspended.is_some_and(|at| now.since(at) >= SETTLED_AFTER) {
                answer.suspended = None;
                changed = true;
            }
        }
        changed
    }

    /// Removes the verdicts about credentials that ended before `unix_now`, seconds, and those that were suspended for
    /// long: others need the place.
    pub fn remove_ended(&mut self, unix_now: i64, now: BootTime) {
        let is_ended = |answer: &CachedAnswer| answer.ends.is_some_and(|end| end <= unix_now);
        let is_unknown = |answer: &CachedAnswer| answer.suspended.is_some_and(|at| now.since(at) >= SUSPENDED_FOR);
        self.rows.retain(|_, answer| !is_ended(answer) && !is_unknown(answer));
    }

    /// True if the last verdict is "allowed", also if it does not count.
    #[must_use]
    pub fn is_allowed(&self, key: &Key) -> bool {
        let answer = self.rows.get(key);
        answer.is_some_and(|answer| answer.verdict == AccessVerdict::Allowed)
    }

    /// Returns every verdict that is still valid, with its age and the end of the credential.
    pub fn each(&self, now: BootTime) -> impl Iterator<Item = (&Key, AccessVerdict, Duration, Option<i64>)> {
        let counting = self.rows.iter().filter(|(_, answer)| answer.suspended.is_none());
        let all = counting.map(move |(key, answer)| (key, answer.verdict, answer.age(now), answer.ends));
        all.filter(|(_, _, age, _)| *age < KEPT_FOR)
    }

    /// Returns the verdicts about the caller of `key`.
    fn of_caller(&self, key: &Key) -> impl Iterator<Item = (Key, CachedAnswer)> {
        self.rows.range(range_of(key)).map(|(key, answer)| (*key, *answer))
    }

    /// Makes room for a verdict; returns false if it must not evict another one.
    fn make_room(&mut self, key: &Key, verdict: AccessVerdict, now: BootTime) -> bool {
        let of_caller: Vec<_> = self.of_caller(key).collect();
        let victim = if of_caller.len() >= self.per_caller {
            victim(of_caller.into_iter(), verdict, now)
        } else if self.rows.len() >= self.max {
            victim(self.rows.iter().map(|(key, answer)| (*key, *answer)), verdict, now)
        } else {
            return true;
        };
        victim.is_some_and(|victim| self.rows.remove(&victim).is_some())
    }
}

/// Keys of all reviews of the caller of `key`.
fn range_of(key: &Key) -> RangeInclusive<Key> {
    let first = Key {
        question: Hash::default(),
        ..*key
    };
    let last = Key {
        question: [u8::MAX; 32],
        ..*key
    };
    first..=last
}

/// Selects the verdict to evict: the oldest denied one. For an allowed newcomer, if there is none, the oldest allowed
/// one.
fn victim(answers: impl Iterator<Item = (Key, CachedAnswer)>, newcomer: AccessVerdict, now: BootTime) -> Option<Key> {
    let is_yes = |answer: &CachedAnswer| answer.verdict == AccessVerdict::Allowed && answer.suspended.is_none();
    let candidates = answers.filter(|(_, answer)| newcomer == AccessVerdict::Allowed || !is_yes(answer));
    let worst = candidates.max_by_key(|(_, answer)| (!is_yes(answer), answer.age(now)));
    worst.map(|(key, _)| key)
}

// === impl CachedAnswer ===

impl CachedAnswer {
    fn age(&self, now: BootTime) -> Duration {
        self.before + now.since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 40;
    const PER_CALLER: usize = 8;
    const NOW: BootTime = BootTime::from_boot(Duration::from_secs(30));

    fn key(caller: usize, question: usize) -> Key {
        let hash = |number: usize| {
            let mut hash = Hash::default();
            hash[..8].copy_from_slice(&number.to_be_bytes());
            hash
        };
        Key::from((hash(caller), hash(question)))
    }

    fn learn(answers: &mut Answers, key: Key, verdict: AccessVerdict, age: usize) {
        answers.learn(key, None, verdict, Duration::from_secs(age as u64), NOW);
    }

    #[test]
    fn age_goes_on_from_before_the_boot() {
        let mut answers = Answers::default();
        learn(&mut answers, key(1, 1), AccessVerdict::Allowed, 86_400);
        let known = answers.known(&key(1, 1), NOW + Duration::from_secs(5)).unwrap();
        assert_eq!(known.age, Duration::from_secs(86_405));
    }

    #[test]
    fn strangers_push_out_nobody_who_is_allowed() {
        let mut answers = Answers::bounded(MAX, PER_CALLER);
        learn(&mut answers, key(0, 0), AccessVerdict::Allowed, 1000);
        for stranger in 1..=2 * MAX {
            learn(&mut answers, key(stranger, 0), AccessVerdict::Unauthorized, 0);
        }
        assert_eq!(answers.rows.len(), MAX);
        assert!(answers.known(&key(0, 0), NOW).is_some());
        for caller in 1..MAX {
            learn(&mut answers, key(caller, 1), AccessVerdict::Allowed, 10);
        }
        let yeses = answers
            .rows
            .values()
            .filter(|answer| answer.verdict == AccessVerdict::Allowed);
        assert_eq!(yeses.count(), MAX);
        learn(&mut answers, key(99, 9), AccessVerdict::Denied, 0);
        assert!(
            answers.known(&key(99, 9), NOW).is_none(),
            "a denied verdict evicts no allowed one"
        );
        learn(&mut answers, key(99, 9), AccessVerdict::Allowed, 0);
        assert_eq!(answers.rows.len(), MAX);
        assert!(
            answers.known(&key(0, 0), NOW).is_none(),
            "the oldest allowed verdict is evicted"
        );
    }

    #[test]
    fn room_is_what_needs_no_eviction() {
        let mut answers = Answers::bounded(MAX, PER_CALLER);
        for question in 0..PER_CALLER {
            assert!(answers.has_room(&key(1, question)));
            learn(&mut answers, key(1, question), AccessVerdict::Allowed, 0);
        }
        assert!(answers.has_room(&key(1, 0)) && !answers.has_room(&key(1, 99)) && answers.has_room(&key(2, 0)));
        for caller in 2..=MAX {
            learn(&mut answers, key(caller, 0), AccessVerdict::Allowed, 0);
        }
        assert!(!answers.has_room(&key(99, 0)));
    }

    #[test]
    fn verdicts_of_a_caller_count_again_once_the_cloud_knows_it() {
        let mut answers = Answers::bounded(MAX, PER_CALLER);
        for (caller, question) in [(1, 0), (1, 1), (2, 0)] {
            learn(&mut answers, key(caller, question), AccessVerdict::Allowed, 0);
        }
        let counting = |answers: &Answers| answers.each(NOW).map(|(key, ..)| *key).collect::<Vec<_>>();
        assert!(answers.suspend(&key(1, 9), NOW) && !answers.suspend(&key(1, 9), NOW));
        assert_eq!(counting(&answers), [key(2, 0)]);
        learn(&mut answers, key(1, 0), AccessVerdict::Denied, 0);
        assert_eq!(counting(&answers), [key(1, 0), key(2, 0)], "the cloud's last word");
        assert!(!answers.revive(&key(1, 9), NOW + (SETTLED_AFTER - Duration::from_secs(1))));
        let settled = NOW + SETTLED_AFTER;
        assert!(answers.revive(&key(1, 9), settled) && !answers.revive(&key(1, 9), settled));
        assert_eq!(counting(&answers).len(), 3);
        assert!(!answers.is_allowed(&key(1, 0)) && answers.is_allowed(&key(1, 1)));
    }

    #[test]
    fn verdicts_about_ended_and_unknown_credentials_give_their_places_back() {
        let mut answers = Answers::bounded(MAX, PER_CALLER);
        for (caller, ends) in [(1, None), (2, Some(99)), (3, Some(100)), (4, Some(101))] {
            answers.learn(key(caller, 0), ends, AccessVerdict::Allowed, Duration::ZERO, NOW);
        }
        answers.suspend(&key(4, 0), NOW);
        let left = |answers: &Answers| answers.rows.keys().copied().collect::<Vec<_>>();
        answers.remove_ended(98, NOW);
        assert_eq!(left(&answers).len(), 4);
        answers.remove_ended(100, NOW + (SUSPENDED_FOR - Duration::from_secs(1)));
        assert_eq!(left(&answers), [key(1, 0), key(4, 0)]);
        answers.remove_ended(100, NOW + SUSPENDED_FOR);
        assert_eq!(left(&answers), [key(1, 0)]);
    }

    #[test]
    fn verdicts_that_do_not_count_give_way_first() {
        let mut answers = Answers::bounded(2, PER_CALLER);
        for (caller, age) in [(1, 1000), (2, 0)] {
            learn(&mut answers, key(caller, 0), AccessVerdict::Allowed, age);
        }
        answers.suspend(&key(2, 0), NOW);
        learn(&mut answers, key(3, 0), AccessVerdict::Allowed, 0);
        let known = [1, 2, 3].map(|caller| answers.known(&key(caller, 0), NOW).is_some());
        assert_eq!(known, [true, false, true]);
    }

    #[test]
    fn one_caller_pushes_out_its_own() {
        let mut answers = Answers::bounded(MAX, PER_CALLER);
        learn(&mut answers, key(1, 0), AccessVerdict::Allowed, 1000);
        for question in 0..2 * PER_CALLER {
            learn(&mut answers, key(2, question), AccessVerdict::Allowed, 999 - question);
        }
        assert_eq!(answers.rows.len(), PER_CALLER + 1);
        assert!(answers.known(&key(1, 0), NOW).is_some());
        assert!(answers.known(&key(2, 0), NOW).is_none());
        assert!(answers.known(&key(2, 2 * PER_CALLER - 1), NOW).is_some());
    }
}
