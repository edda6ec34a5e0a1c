//! Elapsed time for people: printed in seconds.

use std::fmt;
use std::time::{Duration, Instant};

/// Stopwatch that starts when made.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

// === impl Stopwatch ===

impl Stopwatch {
    /// Starts one now.
    #[expect(clippy::disallowed_methods, reason = "no decision of a program depends on it")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

impl fmt::Display for Stopwatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", self.elapsed().as_secs_f64())
    }
}
