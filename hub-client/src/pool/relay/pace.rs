//! How fast bytes may pass; pure.

use std::time::Duration;

/// A budget of bytes that refills at a steady rate. Whoever spends more than there is waits for as long as it takes to earn
/// it; the next one waits behind it.
#[derive(Debug)]
pub struct Pace {
    /// Bytes per second.
    rate: u64,
    /// Time by which everything spent so far is earned.
    earned: Duration,
    /// Time's worth of bytes that may be spent at once after a pause.
    burst: Duration,
}

// === impl Pace ===

impl Pace {
    /// `rate` bytes per second; after a pause, a second's worth at once.
    #[must_use]
    pub fn new(rate: u64) -> Self {
        Self {
            rate: rate.max(1),
            earned: Duration::ZERO,
            burst: Duration::from_secs(1),
        }
    }

    /// Spends `bytes` at time `now` and returns how long to wait before they go on.
    pub fn spend(&mut self, now: Duration, bytes: usize) -> Duration {
        let micros = (bytes as u64).saturating_mul(1_000_000) / self.rate;
        let begin = self.earned.max(now.saturating_sub(self.burst));
        self.earned = begin.saturating_add(Duration::from_micros(micros));
        self.earned.saturating_sub(now)
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
    fn no_number_is_too_large() {
        let mut pace = Pace::new(0);
        assert!(pace.spend(secs(1), usize::MAX) > secs(1_000));
        let _ = pace.spend(Duration::MAX, usize::MAX);
        assert!(pace.spend(secs(1), 1) > secs(1_000), "what was spent is not forgotten");
    }
}
