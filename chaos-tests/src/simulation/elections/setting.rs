//! Settings of the simulated elections: timings, and clocks with an offset and a rate of their own.

use std::time::Duration;

use yurt_pool_protocol::election::Config;

use super::Mutation;
use crate::random::Random;

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Largest deviation of the clocks' rates, in percent.
    pub drift_percent: u64,
    /// The lease, the renew deadline and the retry period, in seconds.
    pub timings: (u64, u64, u64),
    /// True if the timings guarantee, with the clocks of the setting, that two hubs never act at the same time. The
    /// guarantees of the fence need no clock.
    pub exclusive: bool,
}

/// The settings, by name.
pub const SETTINGS: [(&str, Setting); 3] = [
    (
        "elections/default",
        Setting {
            drift_percent: 18,
            timings: (15, 10, 2),
            exclusive: true,
        },
    ),
    (
        "elections/drift-50",
        Setting {
            drift_percent: 50,
            timings: (15, 4, 1),
            exclusive: true,
        },
    ),
    (
        "elections/drift-beyond",
        Setting {
            drift_percent: 50,
            timings: (15, 10, 2),
            exclusive: false,
        },
    ),
];

/// A clock that began at `offset` and runs at `rate_percent` of real time, both in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drift {
    offset: u64,
    rate_percent: u64,
}

// === impl Drift ===

impl Drift {
    pub(super) fn local(self, real: u64) -> u64 {
        self.offset + real * self.rate_percent / 100
    }

    /// The real time at which it shows `local`, rounded up.
    pub(super) fn real(self, local: u64) -> u64 {
        ((local - self.offset.min(local)) * 100).div_ceil(self.rate_percent) + 1
    }
}

// === impl Setting ===

impl Setting {
    pub(super) fn drift(&self, random: &mut Random, offset: u64) -> Drift {
        let rate_percent = 100 - self.drift_percent + random.below(2 * self.drift_percent + 1);
        Drift { offset, rate_percent }
    }

    pub(super) fn config(&self, identity: String, rank: u32, mutation: Option<Mutation>) -> Config {
        let (duration, deadline, retry) = self.timings;
        Config {
            lease_duration: Duration::from_secs(duration),
            renew_deadline: Duration::from_secs(deadline),
            retry_period: Duration::from_secs(retry),
            rank,
            ignore_own_clock: mutation == Some(Mutation::IgnoreOwnClock),
            ..Config::new(identity)
        }
    }

    pub(super) fn slowest_percent(&self) -> u64 {
        100 - self.drift_percent
    }
}
