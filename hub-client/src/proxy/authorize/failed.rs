//! Reviews that ended without a verdict a moment ago: requests do not repeat them at once. Bounded, in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use yurt_apimachinery::time::BootTime;

use super::credential::Key;
use super::review::NoVerdict;

/// Minimum time between two reviews of a key, the first of which had no verdict.
pub const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Maximum number of keys.
const FAILED_MAX: usize = 1024;
/// Reason given for a review that is not repeated. That of the review itself may be long.
const WHY: &str = "a moment ago it had no verdict";

/// The last reviews without a verdict.
#[derive(Default)]
pub struct FailedReviews {
    rows: BTreeMap<Key, (BootTime, NoVerdict)>,
}

// === impl FailedReviews ===

impl FailedReviews {
    /// Records that the review of `key` ended without a verdict. Above the bound it is not recorded.
    pub fn failed(&mut self, key: Key, none: &NoVerdict, now: BootTime) {
        if self.rows.len() >= FAILED_MAX {
            self.rows.retain(|_, (at, _)| is_recent(*at, now));
        }
        if self.rows.len() < FAILED_MAX || self.rows.contains_key(&key) {
            let why = WHY.to_owned();
            let none = match none {
                NoVerdict::NotAsked { retry_after, .. } => NoVerdict::NotAsked {
                    why,
                    retry_after: *retry_after,
                },
                NoVerdict::Unanswered(_) => NoVerdict::Unanswered(why),
                NoVerdict::Undecided(_) => NoVerdict::Undecided(why),
            };
            self.rows.insert(key, (now, none));
        }
    }

    /// Records that the review of `key` has a verdict.
    pub fn answered(&mut self, key: &Key) {
        self.rows.remove(key);
    }

    /// Returns the result of the last review of `key`, if it had no verdict and must not be repeated yet.
    #[must_use]
    pub fn recent(&self, key: &Key, now: BootTime) -> Option<NoVerdict> {
        let (at, none) = self.rows.get(key)?;
        is_recent(*at, now).then(|| none.clone())
    }
}

fn is_recent(at: BootTime, now: BootTime) -> bool {
    now.since(at) < ASKED_AGAIN_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::authorize::credential::Hash;

    const NOW: BootTime = BootTime::from_boot(Duration::from_secs(30));

    fn key(number: usize) -> Key {
        let mut hash = Hash::default();
        hash[..8].copy_from_slice(&number.to_be_bytes());
        Key::from((hash, hash))
    }

    #[test]
    fn reviews_are_bounded_and_old_ones_give_way() {
        let (mut failed, later) = (FailedReviews::default(), NOW + ASKED_AGAIN_AFTER);
        let none = NoVerdict::Undecided("x".repeat(1 << 20));
        for number in 0..2 * FAILED_MAX {
            failed.failed(key(number), &none, NOW);
        }
        assert_eq!(failed.rows.len(), FAILED_MAX);
        assert_eq!(failed.recent(&key(0), NOW), Some(NoVerdict::Undecided(WHY.to_owned())));
        assert_eq!(failed.recent(&key(FAILED_MAX), NOW), None);
        assert_eq!(failed.recent(&key(0), later), None);
        failed.failed(key(FAILED_MAX), &none, later);
        assert_eq!(failed.rows.len(), 1);
    }
}
