//! Elapsed time for people: printed in seconds.

use std::fmt;
use std::time::Duration;

use yurt_apimachinery::time::BootTime;
use yurt_runtime::Clock;

/// Stopwatch that starts when made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(BootTime);

// === impl Stopwatch ===

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Clock::system().boot())
    }

    pub(crate) fn elapsed(self) -> Duration {
        Clock::system().boot().since(self.0)
    }
}

impl fmt::Display for Stopwatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", self.elapsed().as_secs_f64())
    }
}
