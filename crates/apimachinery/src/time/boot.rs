//! A reading of a clock that counts from the start of the machine: for timeouts and ages.

use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// Time since the machine booted, suspend included. Only comparable with readings of the same boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(Duration);

// === impl BootTime ===

impl BootTime {
    /// The moment of boot.
    pub const ZERO: BootTime = BootTime(Duration::ZERO);

    /// A reading given as its distance from boot.
    #[must_use]
    pub const fn from_boot(since_boot: Duration) -> Self {
        BootTime(since_boot)
    }

    /// Distance from boot.
    #[must_use]
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// Duration from the reading `earlier` to `self`; zero when it was later.
    #[must_use]
    pub const fn since(self, earlier: BootTime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for BootTime {
    type Output = BootTime;
    fn add(self, by: Duration) -> BootTime {
        BootTime(self.0.saturating_add(by))
    }
}

impl AddAssign<Duration> for BootTime {
    fn add_assign(&mut self, by: Duration) {
        *self = *self + by;
    }
}

impl Sub<Duration> for BootTime {
    type Output = BootTime;
    /// Saturates at boot.
    fn sub(self, by: Duration) -> BootTime {
        BootTime(self.0.saturating_sub(by))
    }
}

impl Sub for BootTime {
    type Output = Duration;
    /// Same as [`BootTime::since`].
    fn sub(self, earlier: BootTime) -> Duration {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_saturate() {
        let second = Duration::from_secs(1);
        assert_eq!(BootTime::ZERO - second, BootTime::ZERO);
        assert_eq!(BootTime::ZERO - (BootTime::ZERO + second), Duration::ZERO);
        assert_eq!((BootTime::ZERO + second) - BootTime::ZERO, second);
    }
}
