//! Judgement whether one server is reachable, from the results of probes and from its silence. Pure.
//!
//! A server is up after its first answer. It is down after [`MISSES`] failed probes in a row, or once nothing at all
//! has arrived from it for [`SILENCE`]. Lost packets alone do not make it down: over a link that loses a fifth,
//! something arrives in that time. A server that is down must answer for a while before it is up again, longer after
//! each short stay.

use std::time::Duration;

use crate::config::LbMode;

#[cfg(test)]
mod tests;

/// Failed probes in a row after which a server is down.
pub const MISSES: u32 = 2;
/// Silence after which a server is probed.
pub const SUSPECT: Duration = Duration::from_secs(1);
/// Silence after which a server is down. With the interval of the signs of life, a link that swallows all packets is
/// known in less than 5 s.
pub const SILENCE: Duration = Duration::from_millis(3250);
/// Longest planned time between two looks at a server's silence. A longer one is a stall of this machine, in which
/// nothing that arrives is read: it says nothing about the server.
pub const LOOK_GAP: Duration = Duration::from_secs(1);
/// Time between two looks at a server that is not silent: shorter than [`SUSPECT`] and [`LOOK_GAP`].
const LOOK_MAX: Duration = Duration::from_millis(900);
/// Shortest time between two looks.
const LOOK_MIN: Duration = Duration::from_millis(250);
/// Time between probes of a server that is up.
const EVERY: Duration = Duration::from_secs(5);
/// Time between the beginnings of probes of a server that is down. One that ends later is repeated at once.
const AGAIN: Duration = Duration::from_secs(1);
/// Time to the probe that confirms the last one.
const CONFIRM: Duration = Duration::from_millis(250);
/// Time for which a server must answer before it is up again.
const STEADY: Duration = Duration::from_millis(250);
/// Maximum of that time, after several short stays.
const STEADY_MAX: Duration = Duration::from_secs(8);
/// A stay of this length or less is short; after a longer one the time is [`STEADY`] again.
const SHORT_STAY: Duration = Duration::from_secs(30);

/// Time for which a preferred server must be up before it is used again.
pub const FAILBACK: Duration = Duration::from_secs(30);

/// Result of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The server is healthy.
    Answered,
    /// The server answered that it is not healthy.
    Unhealthy,
    /// The server refused, broke the connection, or did not answer in time.
    Failed,
}

/// Judge of one server. All times are of one clock.
#[derive(Clone, Debug)]
pub struct Judge {
    verdict: Judgement,
    /// Failed probes in a row.
    misses: u32,
    /// Time for which the server must answer before it is up again.
    steady: Duration,
    /// Time of the last look at its silence; `None` if it was not up since.
    looked: Option<Duration>,
    /// Stalls of this machine during the present silence.
    stalls: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    Unknown,
    Up {
        since: Duration,
    },
    Down {
        /// Begin of the answers in a row.
        answers_since: Option<Duration>,
        /// True if the server answers although it is not healthy.
        is_reachable: bool,
    },
}

impl Default for Judge {
    fn default() -> Self {
        Self {
            verdict: Judgement::Unknown,
            misses: 0,
            steady: STEADY,
            looked: None,
            stalls: Duration::ZERO,
        }
    }
}

// === impl Judge ===

impl Judge {
    /// True if the server is up, false if it is down, `None` before the first result.
    #[must_use]
    pub fn is_up(&self) -> Option<bool> {
        match self.verdict {
            Judgement::Unknown => None,
            Judgement::Up { .. } => Some(true),
            Judgement::Down { .. } => Some(false),
        }
    }

    /// False if the server is known not to answer at all.
    #[must_use]
    pub fn may_answer(&self) -> bool {
        !matches!(
            self.verdict,
            Judgement::Down {
                is_reachable: false,
                ..
            }
        )
    }

    /// Failed probes in a row of a server that is down, at least 1; 0 for one that is up; `None` before the first
    /// result.
    #[must_use]
    pub fn failed_probes(&self) -> Option<u32> {
        Some(match self.is_up()? {
            true => 0,
            false => self.misses.max(1),
        })
    }

    /// Time since the server came up; `None` if it is not up.
    #[must_use]
    pub fn up_for(&self, now: Duration) -> Option<Duration> {
        match self.verdict {
            Judgement::Up { since } => Some(now.saturating_sub(since)),
            _ => None,
        }
    }

    /// Records the result of a probe that ended at `now`.
    pub fn probed(&mut self, now: Duration, probe: Probe) {
        let answers = match (probe, self.verdict) {
            (Probe::Failed | Probe::Unhealthy, _) => return self.missed(now, probe == Probe::Unhealthy),
            (Probe::Answered, Judgement::Unknown | Judgement::Up { .. }) => None,
            (Probe::Answered, Judgement::Down { answers_since, .. }) => Some(answers_since.unwrap_or(now)),
        };
        match (answers, &mut self.verdict) {
            (Some(since), Judgement::Down { answers_since, .. }) if now.saturating_sub(since) < self.steady => {
                *answers_since = Some(since);
            }
            (_, verdict) => {
                self.misses = 0;
                if !matches!(verdict, Judgement::Up { .. }) {
                    *verdict = Judgement::Up { since: now };
                }
            }
        }
    }

    /// Records that the server has been silent for `silence` although something was sent to it. Returns true if it is
    /// to be probed now. Stalls of this machine do not count.
    pub fn silent(&mut self, now: Duration, silence: Duration) -> bool {
        let gap = self.looked.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        self.looked = Some(now);
        self.stalls = match silence.is_zero() {
            true => Duration::ZERO,
            false => self.stalls + gap.saturating_sub(LOOK_GAP),
        };
        let silence = silence.saturating_sub(self.stalls);
        if self.is_up() == Some(true) && silence >= SILENCE {
            self.misses = self.misses.max(MISSES);
            self.fall(now, false);
        }
        silence >= SUSPECT
    }

    /// Time from the end of a probe that took `took` to the next one.
    #[must_use]
    pub fn pause(&self, took: Duration) -> Duration {
        match self.verdict {
            Judgement::Up { .. } if self.misses == 0 => EVERY,
            Judgement::Up { .. }
            | Judgement::Down {
                answers_since: Some(_), ..
            } => CONFIRM,
            Judgement::Unknown | Judgement::Down { .. } => AGAIN.saturating_sub(took),
        }
    }

    fn missed(&mut self, now: Duration, is_reachable: bool) {
        self.misses = self.misses.saturating_add(1);
        match self.verdict {
            Judgement::Up { .. } if self.misses < MISSES => {}
            _ => self.fall(now, is_reachable),
        }
    }

    fn fall(&mut self, now: Duration, is_reachable: bool) {
        if let Some(stay) = self.up_for(now) {
            self.steady = if stay <= SHORT_STAY {
                (self.steady * 2).min(STEADY_MAX)
            } else {
                STEADY
            };
        }
        // A server that is down is not looked at.
        (self.looked, self.stalls) = (None, Duration::ZERO);
        self.verdict = Judgement::Down {
            answers_since: None,
            is_reachable,
        };
    }
}

/// Time to the next look at a server that has been silent for `silence`: until that is [`SUSPECT`], if it lasts.
#[must_use]
pub fn next_look(silence: Duration) -> Duration {
    SUSPECT.saturating_sub(silence).clamp(LOOK_MIN, LOOK_MAX)
}

/// Returns the server for everything that is not taken in turn, out of those that `judges` judge. `current` stays while
/// it is up. With [`LbMode::Priority`], an earlier one replaces it once it has been up for [`FAILBACK`].
#[must_use]
pub fn choose(mode: LbMode, judges: &[Judge], current: usize, now: Duration) -> usize {
    let is_up = |place: &usize| judges[*place].is_up() == Some(true);
    if !is_up(&current) {
        return (0..judges.len()).find(is_up).unwrap_or(current);
    }
    let is_steady = |place: &usize| judges[*place].up_for(now).is_some_and(|up| up >= FAILBACK);
    let preferred = (0..current).find(is_steady).filter(|_| mode == LbMode::Priority);
    preferred.unwrap_or(current)
}
