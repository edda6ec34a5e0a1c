//! Decides which programs to restart after they ended by themselves, and when. Pure.
//!
//! One end is allowed: a start that was refused because a fault had just changed its files, or because they were being
//! replaced. It ends with that fault. Everything else is a crash, and no restart hides it.

use std::time::Duration;

use yurt_apimachinery::time::BootTime;

/// Restarts of one program in a row.
const RESTARTS_MAX: u32 = 5;
/// Pause before the first restart; each further one takes twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A program that ended longer after its previous restart begins another row.
const ROW: Duration = Duration::from_secs(60);
/// Exit code of a start that was refused.
const REFUSED: i32 = 1;
/// Allowed reasons of a refused start: half of a pair was replaced; a disk fails, or is full; the limit of open files
/// is reached.
const ALLOWED: [&str; 4] = [
    "does not belong to the certificate in",
    "Input/output error (os error 5)",
    "No space left on device (os error 28)",
    "Too many open files (os error 24)",
];

/// Counts the restarts of one program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Supervisor {
    in_row: u32,
    /// Time of the decision for the latest restart.
    latest: Option<BootTime>,
    restarts: u32,
}

// === impl Supervisor ===

impl Supervisor {
    /// Pause before the restart of a program that ended with `code` (none after a signal) and logged `said` since its
    /// start. `None` when it crashed, or was restarted too often.
    pub(crate) fn judge(&mut self, code: Option<i32>, said: &str, now: BootTime) -> Option<Duration> {
        if self.latest.is_none_or(|latest| now.since(latest) > ROW) {
            self.in_row = 0;
        }
        if code != Some(REFUSED) || !is_refusal(said) || self.in_row == RESTARTS_MAX {
            return None;
        }
        let pause = FIRST_PAUSE * 2_u32.pow(self.in_row);
        self.in_row += 1;
        self.restarts += 1;
        self.latest = Some(now);
        Some(pause.min(PAUSE_MAX))
    }

    pub(crate) fn restarts(self) -> u32 {
        self.restarts
    }
}

/// True if the log is that of a refused start: one line and nothing else.
fn is_refusal(said: &str) -> bool {
    let mut lines = said.lines();
    let is_allowed = |line: &str| line.contains(": error: ") && ALLOWED.iter().any(|reason| line.contains(reason));
    lines.next().is_some_and(is_allowed) && lines.next().is_none()
}

#[cfg(test)]
mod tests {
    use yurt_runtime::Clock;

    use super::*;

    const MISMATCH: &str =
        "yurt-coordinator: error: --tls-cert-file: the private key in k does not belong to the certificate in c\n";

    #[test]
    fn start_refused_in_a_rotation_is_repeated_with_growing_pauses_and_not_for_ever() {
        let (clock, hand) = Clock::fake();
        let mut supervisor = Supervisor::default();
        let pauses: Vec<_> = std::iter::from_fn(|| supervisor.judge(Some(1), MISMATCH, clock.boot())).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 10].map(Duration::from_secs));
        hand.advance(ROW);
        assert_eq!(supervisor.judge(Some(1), MISMATCH, clock.boot()), None, "the same row");
        hand.advance(Duration::from_secs(1));
        assert_eq!(supervisor.judge(Some(1), MISMATCH, clock.boot()), Some(FIRST_PAUSE));
        assert_eq!(supervisor.restarts(), 6);
    }

    #[test]
    fn start_on_a_disk_that_fails_is_refused_and_repeated() {
        let said = "yurthub: error: --disk-cache-path: store unavailable: x.redb: I/O error: Input/output error (os error 5)\n";
        let now = Clock::fake().0.boot();
        assert_eq!(Supervisor::default().judge(Some(1), said, now), Some(FIRST_PAUSE));
    }

    #[test]
    fn crashes_are_never_hidden_by_a_restart() {
        let mut supervisor = Supervisor::default();
        let now = Clock::fake().0.boot();
        let after_its_start = format!("INFO Coordinator is ready\n{MISMATCH}");
        for (code, said) in [
            (Some(101), MISMATCH),
            (None, MISMATCH),
            (Some(0), MISMATCH),
            (Some(2), MISMATCH),
            (Some(1), "yurt-coordinator: error: --data-dir: store.redb is damaged\n"),
            (Some(1), &after_its_start),
            (
                Some(1),
                "WARN the private key in k does not belong to the certificate in c\n",
            ),
            (Some(1), ""),
        ] {
            assert_eq!(supervisor.judge(code, said, now), None, "{code:?} {said}");
        }
        assert_eq!(supervisor.restarts(), 0);
    }
}
