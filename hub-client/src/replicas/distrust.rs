//! Records the collections in which the coordinator's data was forged; these follow the cloud for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use yurt_apimachinery::time::BootTime;
use yurt_pool_protocol::cloud_fallback::Wanted;
use yurt_pool_protocol::source::Source;

/// Time that a collection does not follow the coordinator after the first forgery. Each further forgery multiplies it
/// by six.
const FIRST: Duration = Duration::from_secs(600);
const GROWTH: u32 = 6;
/// Maximum of that time.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The collections that do not follow the coordinator.
#[derive(Debug, Default)]
pub struct Distrust {
    known: Mutex<DistrustState>,
    /// Counts changes.
    version: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct DistrustState {
    collections: BTreeMap<String, Caught>,
    /// Number of forgeries since the start, and a message about the last one.
    told: (u64, String),
}

#[derive(Clone, Copy, Debug)]
struct Caught {
    until: BootTime,
    lasts: Duration,
    /// True until the end of the period has been reported.
    is_open: bool,
}

// === impl Distrust ===

impl Distrust {
    /// Records a forgery in `collection`, described by `message`. Returns the time for which the coordinator is not
    /// followed.
    pub fn caught(&self, collection: &str, message: &str, now: BootTime) -> Duration {
        let mut known = self.known.lock();
        let before = known.collections.get(collection).map(|caught| caught.lasts);
        let lasts = before.map_or(FIRST, |lasts| (lasts * GROWTH).min(LONGEST));
        let until = now + lasts;
        let caught = Caught {
            until,
            lasts,
            is_open: true,
        };
        known.collections.insert(collection.to_owned(), caught);
        known.told = (known.told.0 + 1, message.to_owned());
        drop(known);
        self.version.send_modify(|version| *version += 1);
        lasts
    }

    /// True if `collection` must not follow the coordinator now.
    #[must_use]
    pub fn has(&self, collection: &str, now: BootTime) -> bool {
        let known = self.known.lock();
        let caught = known.collections.get(collection);
        caught.is_some_and(|caught| now < caught.until)
    }

    /// Returns the source for `collection` that replaces `wanted`.
    #[must_use]
    pub fn instead(&self, collection: &str, wanted: Wanted, now: BootTime) -> Wanted {
        match wanted.source {
            Source::Coordinator if self.has(collection, now) => Wanted {
                source: Source::Cloud,
                ..wanted
            },
            _ => wanted,
        }
    }

    /// Returns the collections that have become free to follow the coordinator since the last call.
    pub fn expire(&self, now: BootTime) -> Vec<String> {
        let mut ended = Vec::new();
        for (name, caught) in &mut self.known.lock().collections {
            if caught.is_open && now >= caught.until {
                caught.is_open = false;
                ended.push(name.clone());
            }
        }
        if !ended.is_empty() {
            self.version.send_modify(|version| *version += 1);
        }
        ended
    }

    /// Returns the number of forgeries since the start, and a message about the last one.
    #[must_use]
    pub fn told(&self) -> (u64, String) {
        self.known.lock().told.clone()
    }

    /// Receiver that ticks on a forgery and at the end of its period.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use yurt_runtime::Clock;

    use super::*;

    #[test]
    fn coordinator_is_left_longer_each_time() {
        let (clock, hand) = Clock::fake();
        let distrust = Distrust::default();
        let wanted = |source| Wanted { source, fallback: None };
        let follows = |source| distrust.instead("services", wanted(source), clock.boot()).source;
        assert_eq!(follows(Source::Coordinator), Source::Coordinator);
        let mut lasted = Vec::new();
        for _ in 0..5 {
            let lasts = distrust.caught("services", "one", clock.boot());
            assert_eq!(follows(Source::Coordinator), Source::Cloud);
            assert_eq!(follows(Source::None), Source::None);
            assert!(!distrust.has("endpoints", clock.boot()));
            assert!(distrust.expire(clock.boot()).is_empty());
            hand.advance(lasts);
            assert_eq!(distrust.expire(clock.boot()), ["services"]);
            assert_eq!(
                follows(Source::Coordinator),
                Source::Coordinator,
                "it gets another chance"
            );
            lasted.push(lasts);
        }
        assert_eq!((lasted[0], lasted[1], lasted[4]), (FIRST, FIRST * GROWTH, LONGEST));
        assert_eq!(distrust.told(), (5, "one".to_owned()));
    }
}
