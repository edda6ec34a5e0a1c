//! Times of faults: derived from a seed, so that a run can be repeated, and never two at one target.
//!
//! Pure: the time is an argument. Only the pool's answers in between (the current leader) do not come from the seed.

use std::collections::BTreeMap;
use std::time::Duration;

use super::faults::{Act, Fault, FaultTarget, Step, Topology};

/// Pause between two faults, in milliseconds; faults overlap.
const PAUSE_MILLIS: std::ops::Range<u64> = 300..2_500;
/// Duration of most faults, in milliseconds.
const SHORT_MILLIS: std::ops::Range<u64> = 200..3_000;
/// Duration of one fault in four: longer than a lease, and than every timeout.
const LONG_MILLIS: std::ops::Range<u64> = 4_000..12_000;

/// Schedule of the faults of a run.
pub(super) struct Schedule {
    random: fastrand::Rng,
    kinds: Vec<Fault>,
    /// Kinds that were not injected in this round; every kind occurs once per round.
    round: Vec<Fault>,
    next_strike: Duration,
    /// Steps to come, by time and a number that keeps the order.
    steps: BTreeMap<(Duration, u64), (FaultTarget, Act)>,
    number: u64,
    struck: BTreeMap<Fault, u32>,
}

// === impl Schedule ===

impl Schedule {
    /// Faults of these kinds, from `seed`.
    pub(super) fn new(seed: u64, kinds: &[Fault]) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            kinds: kinds.iter().copied().filter(|kind| !kind.is_last()).collect(),
            round: Vec::new(),
            next_strike: Duration::ZERO,
            steps: BTreeMap::new(),
            number: 0,
            struck: BTreeMap::new(),
        }
    }

    /// True if a fault is due.
    pub(super) fn strikes(&self, now: Duration) -> bool {
        now >= self.next_strike
    }

    /// Starts the next fault. `topology` lists the present targets; the choice among them is made here.
    pub(super) fn strike(&mut self, now: Duration, topology: &Topology) -> Option<Fault> {
        self.next_strike = now + self.millis(PAUSE_MILLIS);
        if self.round.is_empty() {
            self.round.clone_from(&self.kinds);
            self.random.shuffle(&mut self.round);
        }
        let range = if self.random.u8(..4) == 0 {
            LONG_MILLIS
        } else {
            SHORT_MILLIS
        };
        let lasts = self.millis(range);
        let topology = Topology {
            pick: self.random.usize(..),
            ..*topology
        };
        // A kind without a target now gets its turn later.
        let possible = |fault: &Fault| fault.steps(&topology, lasts).filter(|steps| self.are_free(steps));
        let at = self.round.iter().rposition(|fault| possible(fault).is_some())?;
        let steps = possible(&self.round[at])?;
        let fault = self.round.remove(at);
        for step in steps {
            self.number += 1;
            self.steps
                .insert((now + step.after, self.number), (step.target, step.act));
        }
        *self.struck.entry(fault).or_default() += 1;
        Some(fault)
    }

    /// The next step that is due.
    pub(super) fn due(&mut self, now: Duration) -> Option<(FaultTarget, Act)> {
        let first = self.steps.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Every undo step that is left, in order.
    pub(super) fn rest(&mut self) -> Vec<(FaultTarget, Act)> {
        std::mem::take(&mut self.steps).into_values().collect()
    }

    /// Number of faults of each kind.
    pub(super) fn struck(&self) -> &BTreeMap<Fault, u32> {
        &self.struck
    }

    fn are_free(&self, steps: &[Step]) -> bool {
        let is_busy = |target| self.steps.values().any(|(busy, _)| *busy == target);
        !steps.iter().any(|step| is_busy(step.target))
    }

    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.random.u64(range))
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    const TOPOLOGY: Topology = Topology {
        hubs: 3,
        leader: Some(0),
        coordinators: 2,
        fed: Some(0),
        members: 3,
        member_leader: Some(0),
        pick: 0,
    };

    /// Faults in a bit more than two minutes, with the first hub leading all the time.
    fn happened(seed: u64) -> (Vec<(Duration, Fault)>, Schedule) {
        let mut schedule = Schedule::new(seed, Fault::value_variants());
        let (mut faults, mut open) = (Vec::new(), Vec::new());
        for tick in 0..2_700 {
            let now = Duration::from_millis(50 * tick);
            while let Some((target, act)) = schedule.due(now) {
                let ends = act.is_good();
                match open.iter().position(|(other, _)| *other == target) {
                    Some(at) if ends => drop(open.remove(at)),
                    Some(_) => assert!(
                        matches!(
                            act,
                            Act::LoseDisk | Act::DamageDisk | Act::Move(_) | Act::Reboot(_) | Act::Eio
                        ),
                        "two faults at {target:?}: {act:?}"
                    ),
                    // A certificate is replaced by another valid one; the other kinds are kept away.
                    None if ends => assert!(matches!(act, Act::Issue(_) | Act::Good), "{act:?} at {target:?}"),
                    None => open.push((target, act)),
                }
            }
            if schedule.strikes(now)
                && let Some(fault) = schedule.strike(now, &TOPOLOGY)
            {
                faults.push((now, fault));
            }
        }
        (faults, schedule)
    }

    #[test]
    fn seed_decides_what_happens() {
        assert_eq!(happened(7).0, happened(7).0);
        assert_ne!(happened(7).0, happened(8).0);
    }

    #[test]
    fn nearly_all_kinds_strike_soon() {
        let (faults, schedule) = happened(1);
        assert!(faults.len() > 50, "{}", faults.len());
        let missing: Vec<_> = Fault::value_variants()
            .iter()
            .filter(|fault| !fault.is_last() && !schedule.struck().contains_key(*fault))
            .collect();
        assert!(missing.len() <= 3, "{missing:?}");
    }
}
