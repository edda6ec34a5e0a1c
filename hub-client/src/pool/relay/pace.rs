//! How fast bytes may pass; pure.

use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A budget of bytes that refills at a steady rate. Whoever spends more than there is waits for as long as it takes to earn
/// it; the next one waits behind it.
#[derive(Debug)]
pub struct Pace {
    /// Bytes per second.
    rate: u64,
    /// Time by which everything spent so far is earned and a full burst is saved up again.
    full: Duration,
    /// Time's worth of bytes that may be spent at once after a pause.
    burst: Duration,
}

// === impl Pace ===

impl Pace {
    /// `rate` bytes per second; after a pause, a second's worth at once.
    #[must_use]
    pub fn new(rate: u64) -> Self {
        Self::saving(rate, Duration::from_secs(1))
    }

    /// `bytes` in any 24 h beside those of a day that was saved up: all of a day's may be spent at once.
    #[must_use]
    pub fn daily(bytes: u64) -> Self {
        Self::saving(bytes / DAY.as_secs(), DAY)
    }

    fn saving(rate: u64, burst: Duration) -> Self {
        Self {
            rate: rate.max(1),
            full: Duration::ZERO,
            burst,
        }
    }

    /// Whether everything may be spent that can be saved up, as of a budget that was never used.
    #[must_use]
    pub fn is_full(&self, now: Duration) -> bool {
        self.full <= now
    }

    /// Spends `bytes` at time `now` and returns how long to wait before they go on.
    pub fn spend(&mut self, now: Duration, bytes: usize) -> Duration {
        let micros = (bytes as u64).saturating_mul(1_000_000) / self.rate;
        self.full = self.full.max(now).saturating_add(Duration::from_micros(micros));
        self.full.saturating_sub(now.saturating_add(self.burst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_second_is_free_and_the_rest_waits() {
        let mut pace = Pace::new(1_000);
        assert_eq!(pace.spend(secs(100), 1_000), Duration::ZERO);
        assert_eq!(pace.spend(secs(100), 500), Duration::from_millis(500));
        assert_eq!(pace.spend(secs(100), 500), secs(1), "behind the one before");
        assert_eq!(pace.spend(secs(102), 500), Duration::ZERO);
    }

    #[test]
    fn nobody_saves_up_more_than_a_second() {
        let mut pace = Pace::new(1_000);
        assert_eq!(pace.spend(secs(10), 10), Duration::ZERO);
        assert_eq!(pace.spend(secs(100_000), 3_000), secs(2));
    }

    #[test]
    fn day_may_be_spent_at_once_and_then_the_rate_remains() {
        let mut pace = Pace::daily(864_000);
        let morning = secs(60);
        assert!(pace.is_full(morning));
        assert_eq!(pace.spend(morning, 864_000), Duration::ZERO);
        assert_eq!(pace.spend(morning, 100), secs(10));
        assert!(!pace.is_full(morning + DAY));
        assert!(pace.is_full(morning + DAY + secs(10)), "everything is earned again");
    }

    #[test]
    fn no_number_is_too_large() {
        let mut pace = Pace::new(0);
        assert!(pace.spend(secs(1), usize::MAX) > secs(1_000));
        let _ = pace.spend(Duration::MAX, usize::MAX);
        assert!(pace.spend(secs(1), 1) > secs(1_000), "what was spent is not forgotten");
    }
}
