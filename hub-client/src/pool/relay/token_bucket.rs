//! Rate limit for tunnel bytes. Pure.

use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Token bucket in bytes. A caller that overdraws waits for the refill; later callers queue behind it.
#[derive(Debug)]
pub struct TokenBucket {
    /// Refill rate, bytes per second.
    rate: u64,
    /// Time at which the bucket is full again.
    full: Duration,
    /// Capacity of the bucket, as the time that it takes to fill.
    burst: Duration,
}

// === impl TokenBucket ===

impl TokenBucket {
    /// Creates a bucket of `rate` bytes per second that holds one second of them.
    #[must_use]
    pub fn new(rate: u64) -> Self {
        Self::saving(rate, Duration::from_secs(1))
    }

    /// Creates a bucket that refills `bytes` in 24 h and holds one day of them; all of them may be spent in one burst.
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

    /// True if the bucket is full, like one that was never used.
    #[must_use]
    pub fn is_full(&self, now: Duration) -> bool {
        self.full <= now
    }

    /// Takes `bytes` at time `now` and returns the time to wait before sending them.
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
        let mut bucket = TokenBucket::new(1_000);
        assert_eq!(bucket.spend(secs(100), 1_000), Duration::ZERO);
        assert_eq!(bucket.spend(secs(100), 500), Duration::from_millis(500));
        assert_eq!(bucket.spend(secs(100), 500), secs(1), "behind the one before");
        assert_eq!(bucket.spend(secs(102), 500), Duration::ZERO);
    }

    #[test]
    fn nobody_saves_up_more_than_a_second() {
        let mut bucket = TokenBucket::new(1_000);
        assert_eq!(bucket.spend(secs(10), 10), Duration::ZERO);
        assert_eq!(bucket.spend(secs(100_000), 3_000), secs(2));
    }

    #[test]
    fn day_may_be_spent_at_once_and_then_the_rate_remains() {
        let mut bucket = TokenBucket::daily(864_000);
        let morning = secs(60);
        assert!(bucket.is_full(morning));
        assert_eq!(bucket.spend(morning, 864_000), Duration::ZERO);
        assert_eq!(bucket.spend(morning, 100), secs(10));
        assert!(!bucket.is_full(morning + DAY));
        assert!(bucket.is_full(morning + DAY + secs(10)), "everything is earned again");
    }

    #[test]
    fn no_number_is_too_large() {
        let mut bucket = TokenBucket::new(0);
        assert!(bucket.spend(secs(1), usize::MAX) > secs(1_000));
        let _ = bucket.spend(Duration::MAX, usize::MAX);
        assert!(
            bucket.spend(secs(1), 1) > secs(1_000),
            "what was spent is not forgotten"
        );
    }
}
