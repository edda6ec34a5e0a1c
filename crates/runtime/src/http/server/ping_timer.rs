//! Timer of the pings to clients: the connections of a process share its ticks.
//!
//! A ping needs three timers of the runtime's wheel, each of which wakes a thread several times before it fires.
//! Connections that ping at the same tick share all these wakes.

use std::pin::Pin;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use hyper_util::rt::TokioTimer;

/// Time between two ticks. A longer one would bring thousands of pings at a time.
const TICK: Duration = Duration::from_secs(4);
/// A tick of this process.
static ORIGIN: OnceLock<Instant> = OnceLock::new();

/// Timer that fires at the tick nearest to a deadline, at most half a tick before or after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PingTimer;

// === impl PingTimer ===

impl Timer for PingTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        TokioTimer::new().sleep_until(tick(deadline))
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, new_deadline: Instant) {
        TokioTimer::new().reset(sleep, tick(new_deadline));
    }

    fn now(&self) -> Instant {
        TokioTimer::new().now()
    }
}

/// The tick nearest to `deadline`.
fn tick(deadline: Instant) -> Instant {
    nearest(*ORIGIN.get_or_init(|| deadline), deadline)
}

fn nearest(origin: Instant, deadline: Instant) -> Instant {
    let Some(since) = deadline.checked_duration_since(origin) else {
        return deadline;
    };
    let ticks = (since + TICK / 2).as_millis() / TICK.as_millis();
    u32::try_from(ticks).map_or(deadline, |ticks| origin + TICK * ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_close_to_each_other_share_a_tick() {
        let origin = TokioTimer::new().now();
        let after = |millis| origin + Duration::from_millis(millis);
        let at = |millis| nearest(origin, after(millis));
        assert_eq!(at(0), origin);
        assert_eq!(at(18_001), after(20_000));
        assert_eq!(at(21_999), after(20_000));
        assert_eq!(at(22_000), after(24_000));
        // The next ping is due this long after the answer to the last one: the connection stays at its ticks.
        assert_eq!(at(20_000 + 20_003), after(40_000));
        assert_eq!(
            nearest(after(5_000), after(1_000)),
            after(1_000),
            "before the first deadline of all"
        );
    }
}
