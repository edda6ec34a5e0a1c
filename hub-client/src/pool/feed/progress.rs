//! Progress of the present leadership's feed at the coordinator; source of the leader's readiness and lag.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use yurt_apimachinery::ResourceVersion;
use yurt_apimachinery::time::BootTime;
use yurt_runtime::Clock;

/// Progress of each collection's feed. One per hub; each leadership resets it.
pub struct FeedProgress {
    clock: Clock,
    // Leaf lock: no other lock is taken inside.
    delivered: Mutex<BTreeMap<String, Delivered>>,
}

/// Progress of one collection's feed.
#[derive(Clone, Copy, Debug, Default)]
struct Delivered {
    /// Position that the coordinator confirmed; `None` before the first confirmation.
    up_to: Option<ResourceVersion>,
    /// Time before which nothing was here that the coordinator lacks.
    behind_since: Option<BootTime>,
}

/// Lag of the coordinator behind the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    /// Difference of the two positions, in RVs of the cloud.
    pub versions: u64,
    /// Upper bound of the time since the arrival of the oldest change that the coordinator lacks.
    pub time: Duration,
}

// === impl FeedProgress ===

impl FeedProgress {
    /// Creates a progress without any delivery.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            delivered: Mutex::default(),
        }
    }

    /// Begins a leadership: drops the deliveries of earlier ones.
    pub fn begin(&self) {
        self.delivered.lock().clear();
    }

    /// Returns the present time, for the other calls.
    #[must_use]
    pub fn now(&self) -> BootTime {
        self.clock.boot()
    }

    /// Records that the state of the collection read at `read_at` is about to be sent.
    pub fn sending(&self, name: &str, read_at: BootTime) {
        let mut delivered = self.delivered.lock();
        let one = delivered.entry(name.to_owned()).or_default();
        one.behind_since.get_or_insert(read_at);
    }

    /// Records that the coordinator confirmed everything read at `read_at`, up to `up_to`; this hub's replica is now at
    /// `position`.
    pub fn delivered(&self, name: &str, up_to: ResourceVersion, position: ResourceVersion, read_at: BootTime) {
        let behind_since = (position > up_to).then_some(read_at);
        let one = Delivered {
            up_to: Some(up_to),
            behind_since,
        };
        self.delivered.lock().insert(name.to_owned(), one);
    }

    /// Returns the lag of a collection that is at `position` here; `None` before its first delivery under this
    /// leadership.
    #[must_use]
    pub fn lag(&self, name: &str, position: ResourceVersion) -> Option<Lag> {
        let one = self.delivered.lock().get(name).copied()?;
        let up_to = one.up_to?;
        let since = one.behind_since.filter(|_| position > up_to);
        Some(Lag {
            versions: position.0.saturating_sub(up_to.0),
            time: since.map_or(Duration::ZERO, |since| self.clock.boot().since(since)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "services";

    fn at(rv: u64) -> ResourceVersion {
        ResourceVersion(rv)
    }

    fn lag(versions: u64, secs: u64) -> Option<Lag> {
        let time = Duration::from_secs(secs);
        Some(Lag { versions, time })
    }

    #[test]
    fn lag_counts_from_the_first_change_that_is_missing_there() {
        let (clock, time) = Clock::fake();
        let progress = FeedProgress::new(clock);
        progress.sending(NAME, progress.now());
        assert_eq!(progress.lag(NAME, at(5)), None, "nothing was delivered");
        progress.delivered(NAME, at(10), at(10), progress.now());
        time.advance(Duration::from_secs(60));
        assert_eq!(progress.lag(NAME, at(10)), lag(0, 0));
        assert_eq!(progress.lag(NAME, at(11)), lag(1, 0), "it has just come");
        let read_at = progress.now();
        progress.sending(NAME, read_at);
        time.advance(Duration::from_secs(3));
        assert_eq!(progress.lag(NAME, at(14)), lag(4, 3));
        progress.sending(NAME, progress.now());
        assert_eq!(
            progress.lag(NAME, at(14)),
            lag(4, 3),
            "a second attempt is no new start"
        );
        progress.delivered(NAME, at(12), at(14), read_at);
        assert_eq!(progress.lag(NAME, at(14)), lag(2, 3));
        progress.delivered(NAME, at(14), at(14), progress.now());
        assert_eq!(progress.lag(NAME, at(14)), lag(0, 0));
    }

    #[test]
    fn a_new_leadership_has_delivered_nothing() {
        let (clock, _) = Clock::fake();
        let progress = FeedProgress::new(clock);
        progress.delivered(NAME, at(10), at(10), progress.now());
        progress.begin();
        assert_eq!(progress.lag(NAME, at(10)), None);
    }
}
