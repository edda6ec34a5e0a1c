//! Outcome of a packet on a virtual link: lost, late, duplicated, reordered, damaged, or in the queue of a slow line.
//!
//! Pure: a function of the seed, the packet's number and the time. The content of packets does not matter.

use std::time::Duration;

/// Treatment of packets in one direction of a virtual link. Shares are in parts per thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkConditions {
    /// Nothing arrives.
    pub is_silent: bool,
    /// Never arrives.
    pub lost: u16,
    /// Arrives twice.
    pub doubled: u16,
    /// Arrives `OVERTAKEN_BY` later than it should, behind packets that were sent after it.
    pub overtaken: u16,
    /// Arrives with a byte changed; the receiver's checksum must detect it.
    pub damaged: u16,
    /// Every packet arrives this much later.
    pub delay: Duration,
    /// And up to this much more, in order.
    pub jitter: Duration,
    /// Bytes per second. A packet that would wait longer than `QUEUE` is lost.
    pub rate: Option<u32>,
}

/// One direction of a virtual link.
#[derive(Debug)]
pub struct Direction {
    seed: u64,
    /// Number of packets so far.
    number: u64,
    /// Time at which the line has sent all its packets.
    busy_until: Duration,
    /// Arrival time of the last packet that keeps the order.
    last: Duration,
}

/// Outcome of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketOutcome {
    /// Arrival time; `None` if it is lost.
    pub arrives: Option<Duration>,
    /// Arrival time of a copy.
    pub again: Option<Duration>,
    /// True if a byte of it is changed.
    pub is_damaged: bool,
}

/// Delay of a reordered packet: a few packets at the pace of a bulk transfer.
const OVERTAKEN_BY: Duration = Duration::from_millis(25);
/// Delay of a copy.
const COPY_AFTER: Duration = Duration::from_millis(3);
/// The queue in front of a slow line holds as much as it sends in this time.
const QUEUE: Duration = Duration::from_secs(1);
/// A packet of any size finds room in an empty queue.
const PER_MILLE: u16 = 1000;

// === impl Direction ===

impl Direction {
    /// A line that has sent nothing yet.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            number: 0,
            busy_until: Duration::ZERO,
            last: Duration::ZERO,
        }
    }

    /// Outcome of the next packet, of `bytes` bytes, sent at `now`. Times never go back from call to call.
    pub fn outcome(&mut self, conditions: &LinkConditions, now: Duration, bytes: usize) -> PacketOutcome {
        let mut random = fastrand::Rng::with_seed(self.seed ^ self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.number += 1;
        // All numbers are drawn for every packet: a change of the conditions does not change the numbers of later
        // packets.
        let mut falls = |share: u16| random.u16(..PER_MILLE) < share;
        let (lost, doubled) = (falls(conditions.lost), falls(conditions.doubled));
        let (overtaken, is_damaged) = (falls(conditions.overtaken), falls(conditions.damaged));
        let jitter = conditions.jitter.mul_f64(random.f64());
        if conditions.is_silent {
            return PacketOutcome::default();
        }
        // A packet that is lost in the air has used the line all the same.
        let Some(sent) = self.send(conditions.rate, now, bytes) else {
            return PacketOutcome::default();
        };
        if lost {
            return PacketOutcome::default();
        }
        let arrives = if overtaken {
            sent + conditions.delay + jitter + OVERTAKEN_BY
        } else {
            self.last = self.last.max(sent + conditions.delay + jitter);
            self.last
        };
        PacketOutcome {
            arrives: Some(arrives),
            again: doubled.then_some(arrives + COPY_AFTER),
            is_damaged,
        }
    }

    /// Time at which the line has sent the packet; `None` when its queue is full.
    fn send(&mut self, rate: Option<u32>, now: Duration, bytes: usize) -> Option<Duration> {
        let Some(rate) = rate else {
            self.busy_until = now;
            return Some(now);
        };
        let begins = self.busy_until.max(now);
        if begins - now > QUEUE {
            return None;
        }
        self.busy_until = begins + Duration::from_secs_f64(bytes as f64 / f64::from(rate.max(1)));
        Some(self.busy_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: LinkConditions = LinkConditions {
        is_silent: false,
        lost: 0,
        doubled: 0,
        overtaken: 0,
        damaged: 0,
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        rate: None,
    };
    const PACKETS: u32 = 10_000;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The fates of packets of 1,000 bytes, one each millisecond.
    fn outcomes(seed: u64, conditions: &LinkConditions) -> Vec<(Duration, PacketOutcome)> {
        let mut line = Direction::new(seed);
        let packets = (0..PACKETS).map(|number| millis(u64::from(number)));
        packets.map(|now| (now, line.outcome(conditions, now, 1000))).collect()
    }

    fn share(outcomes: &[(Duration, PacketOutcome)], wanted: impl Fn(&PacketOutcome) -> bool) -> f64 {
        outcomes.iter().filter(|(_, outcome)| wanted(outcome)).count() as f64 / f64::from(PACKETS)
    }

    #[test]
    fn a_calm_line_delivers_everything_at_once_and_in_order() {
        for (now, outcome) in outcomes(1, &CALM) {
            assert_eq!(
                outcome,
                PacketOutcome {
                    arrives: Some(now),
                    ..PacketOutcome::default()
                }
            );
        }
    }

    #[test]
    fn seed_decides_and_nothing_else() {
        let bad = LinkConditions {
            lost: 200,
            doubled: 100,
            overtaken: 100,
            jitter: millis(40),
            ..CALM
        };
        assert_eq!(outcomes(7, &bad), outcomes(7, &bad));
        assert_ne!(outcomes(7, &bad), outcomes(8, &bad));
    }

    #[test]
    fn shares_are_what_was_asked_for() {
        let bad = LinkConditions {
            lost: 200,
            doubled: 100,
            damaged: 50,
            ..CALM
        };
        let outcomes = outcomes(3, &bad);
        let near = |share: f64, wanted: f64| assert!((share - wanted).abs() < 0.02, "{share} instead of {wanted}");
        near(share(&outcomes, |outcome| outcome.arrives.is_none()), 0.2);
        near(share(&outcomes, |outcome| outcome.again.is_some()), 0.1 * 0.8);
        near(share(&outcomes, |outcome| outcome.is_damaged), 0.05 * 0.8);
    }

    #[test]
    fn jitter_alone_keeps_the_order_and_overtaking_does_not() {
        let arrivals = |conditions: &LinkConditions| -> Vec<Duration> {
            outcomes(5, conditions)
                .iter()
                .filter_map(|(_, outcome)| outcome.arrives)
                .collect()
        };
        let late = arrivals(&LinkConditions {
            delay: millis(100),
            jitter: millis(50),
            ..CALM
        });
        assert!(late.is_sorted());
        assert!(late[0] >= millis(100) && late[0] <= millis(150), "{:?}", late[0]);
        assert!(!arrivals(&LinkConditions { overtaken: 100, ..CALM }).is_sorted());
    }

    #[test]
    fn silence_swallows_everything_and_uses_no_line() {
        let silent = LinkConditions {
            is_silent: true,
            rate: Some(1),
            ..CALM
        };
        let mut line = Direction::new(1);
        for _ in 0..10 {
            assert_eq!(line.outcome(&silent, Duration::ZERO, 1500).arrives, None);
        }
        let after = line.outcome(&CALM, millis(1), 1500);
        assert_eq!(after.arrives, Some(millis(1)));
    }

    #[test]
    fn a_thin_line_carries_its_rate_and_its_queue_is_bounded() {
        // Offered: 1,000 bytes per millisecond for 10 s; carried: 6,250 bytes per second.
        let thin = LinkConditions {
            rate: Some(6_250),
            ..CALM
        };
        let outcomes = outcomes(1, &thin);
        let carried = 1000.0 * share(&outcomes, |outcome| outcome.arrives.is_some()) * f64::from(PACKETS);
        assert!((60_000.0..=72_000.0).contains(&carried), "{carried} bytes in 10 s");
        for (now, outcome) in outcomes {
            assert!(
                outcome.arrives.is_none_or(|at| at - now <= QUEUE + millis(160)),
                "{outcome:?}"
            );
        }
    }
}
