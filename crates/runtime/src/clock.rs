//! Access to the two clocks of the machine, or of a test.
//!
//! Durations are measured with [`Clock::boot`] (CLOCK_BOOTTIME), which continues while the machine sleeps and never
//! jumps. So an edge node that was suspended for an hour does not treat its lease as fresh. [`Clock::unix`] is the wall
//! clock, which may jump in both directions. It is only for times that others read (`renewTime`, `creationTimestamp`).

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use yurt_apimachinery::time::BootTime;

/// Wall-clock time since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime {
    /// Whole seconds; negative before 1970.
    pub secs: i64,
    /// Nanoseconds within the second, 0..=999_999_999, counted forward also before 1970.
    pub nanos: u32,
}

/// Source of the time. Cheap to clone; every clone of a fake clock shows the same time.
#[derive(Clone)]
pub struct Clock(Source);

/// Control of the clock made by [`Clock::fake`].
#[derive(Clone)]
pub struct FakeClock(Arc<Mutex<Reading>>);

#[derive(Clone)]
enum Source {
    System,
    Fake(Arc<Mutex<Reading>>),
}

#[derive(Clone, Copy)]
struct Reading {
    boot: BootTime,
    unix: UnixTime,
}

const NANOS_PER_SEC: u32 = 1_000_000_000;

/// Initial reading of a fake clock: some uptime, so that subtracting a few minutes does not saturate.
const FAKE_BOOT: Duration = Duration::from_secs(100_000);
/// 2023-11-14T22:13:20Z.
const FAKE_UNIX_SECS: i64 = 1_700_000_000;

// === impl Clock ===

impl Clock {
    /// The clocks of the machine.
    #[must_use]
    pub fn system() -> Self {
        Clock(Source::System)
    }

    /// A clock that does not move until its [`FakeClock`] is advanced.
    #[must_use]
    pub fn fake() -> (Self, FakeClock) {
        let reading = Reading {
            boot: BootTime::from_boot(FAKE_BOOT),
            unix: UnixTime {
                secs: FAKE_UNIX_SECS,
                nanos: 0,
            },
        };
        let shared = Arc::new(Mutex::new(reading));
        (Clock(Source::Fake(shared.clone())), FakeClock(shared))
    }

    /// Time since boot: for every timeout, age and deadline.
    #[must_use]
    pub fn boot(&self) -> BootTime {
        match &self.0 {
            Source::Fake(shared) => shared.lock().boot,
            Source::System => {
                let now = read(ClockId::Boottime);
                BootTime::from_boot(Duration::new(u64::try_from(now.secs).unwrap_or(0), now.nanos))
            }
        }
    }

    /// Wall-clock time: only for timestamps that others read.
    #[must_use]
    pub fn unix(&self) -> UnixTime {
        match &self.0 {
            Source::Fake(shared) => shared.lock().unix,
            Source::System => skewed(read(ClockId::Realtime)),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self.0, Source::System) {
            "Clock::system"
        } else {
            "Clock::fake"
        })
    }
}

/// The wall clock's reading: in a release build, that of the machine.
#[cfg(not(debug_assertions))]
fn skewed(now: UnixTime) -> UnixTime {
    now
}

/// Test builds only: `YURT_FAILPOINTS=wall-clock-skew=FILE` shifts the wall clock by the number of seconds in the file,
/// which may change at any time. Without the file, or with other content, the clock is right.
#[cfg(debug_assertions)]
fn skewed(now: UnixTime) -> UnixTime {
    static FILE: std::sync::LazyLock<Option<std::path::PathBuf>> =
        std::sync::LazyLock::new(|| crate::failpoints::value(crate::failpoints::WALL_CLOCK_SKEW).map(Into::into));
    let text = FILE.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
    let skew: i64 = text.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    UnixTime {
        secs: now.secs.saturating_add(skew),
        ..now
    }
}

fn read(id: ClockId) -> UnixTime {
    let now = clock_gettime(id);
    UnixTime {
        secs: now.tv_sec,
        nanos: u32::try_from(now.tv_nsec).unwrap_or(0),
    }
}

// === impl FakeClock ===

impl FakeClock {
    /// Moves both clocks forward.
    pub fn advance(&self, by: Duration) {
        let mut reading = self.0.lock();
        reading.boot += by;
        reading.unix = reading.unix + by;
    }

    /// Makes the wall clock jump, as NTP does; the time since boot stays.
    pub fn set_unix(&self, unix: UnixTime) {
        self.0.lock().unix = unix;
    }
}

impl fmt::Debug for FakeClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeClock")
    }
}

// === impl UnixTime ===

impl UnixTime {
    /// Duration from the time `earlier` to `self`; zero when it was later.
    #[must_use]
    pub fn since(self, earlier: UnixTime) -> Duration {
        let nanos = self.as_nanos() - earlier.as_nanos();
        let Ok(nanos) = u128::try_from(nanos) else {
            return Duration::ZERO;
        };
        let secs = u64::try_from(nanos / u128::from(NANOS_PER_SEC)).unwrap_or(u64::MAX);
        Duration::new(secs, u32::try_from(nanos % u128::from(NANOS_PER_SEC)).unwrap_or(0))
    }

    fn as_nanos(self) -> i128 {
        i128::from(self.secs) * i128::from(NANOS_PER_SEC) + i128::from(self.nanos)
    }
}

impl Add<Duration> for UnixTime {
    type Output = UnixTime;
    /// Saturates at the end of time.
    fn add(self, by: Duration) -> UnixTime {
        let nanos = self.nanos + by.subsec_nanos();
        let carry = i64::from(nanos / NANOS_PER_SEC);
        let secs = self.secs.saturating_add_unsigned(by.as_secs()).saturating_add(carry);
        UnixTime {
            secs,
            nanos: nanos % NANOS_PER_SEC,
        }
    }
}

impl Sub<Duration> for UnixTime {
    type Output = UnixTime;
    /// Saturates at the beginning of time.
    fn sub(self, by: Duration) -> UnixTime {
        let borrow = i64::from(self.nanos < by.subsec_nanos());
        let nanos = if borrow == 1 {
            self.nanos + NANOS_PER_SEC
        } else {
            self.nanos
        } - by.subsec_nanos();
        UnixTime {
            secs: self.secs.saturating_sub_unsigned(by.as_secs()).saturating_sub(borrow),
            nanos,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fake_clock_moves_both_readings_and_all_clones() {
        let (clock, hand) = Clock::fake();
        let other = clock.clone();
        let (boot, unix) = (clock.boot(), clock.unix());
        hand.advance(Duration::from_millis(2_750));
        hand.advance(Duration::from_millis(500));
        assert_eq!(other.boot() - boot, Duration::from_millis(3_250));
        assert_eq!(other.unix().since(unix), Duration::from_millis(3_250));
        assert_eq!(other.unix().nanos, 250_000_000);
    }

    #[test]
    fn wall_clock_jump_leaves_boot_time_alone() {
        let (clock, hand) = Clock::fake();
        let boot = clock.boot();
        hand.set_unix(UnixTime { secs: 5, nanos: 0 });
        assert_eq!((clock.boot(), clock.unix().secs), (boot, 5));
    }

    #[test]
    fn arithmetic_saturates_and_borrows() {
        let t = UnixTime { secs: 10, nanos: 100 };
        assert_eq!(
            t - Duration::from_nanos(200),
            UnixTime {
                secs: 9,
                nanos: 999_999_900
            }
        );
        assert_eq!(t - Duration::from_nanos(200) + Duration::from_nanos(200), t);
        assert_eq!(t.since(t + Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn system_clock_goes_forward() {
        let clock = Clock::system();
        let first = clock.boot();
        assert!(clock.boot() >= first && clock.unix().secs > FAKE_UNIX_SECS);
    }
}
