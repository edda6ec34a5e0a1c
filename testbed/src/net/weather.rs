//! Fate of a packet on a cable: lost, late, duplicated, reordered, damaged, or in the queue of a slow line.
//!
//! Pure: a function of the seed, the packet's number and the time. The content of packets does not matter.

use std::time::Duration;

/// Treatment of packets in one direction of a cable. Shares are in parts per thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// Nothing arrives.
    pub is_silent: bool,
    /// Never arrives.
    pub lost: u16,
    /// Arrives twice.
    pub doubled: u16,
    /// Arrives [`OVERTAKEN_BY`] later than it should, behind packets that were sent after it.
    pub overtaken: u16,
    /// Arrives with a byte changed; the receiver's checksum must detect it.
    pub damaged: u16,
    /// Every packet arrives this much later.
    pub delay: Duration,
    /// And up to this much more, in order.
    pub jitter: Duration,
    /// Bytes per second. A packet that would wait longer than [`QUEUE`] is lost.
    pub rate: Option<u32>,
}

/// One direction of a cable.
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

/// Fate of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
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

    /// Fate of the next packet, of `bytes` bytes, sent at `now`. Times never go back from call to call.
    pub fn fate(&mut self, weather: &Weather, now: Duration, bytes: usize) -> Fate {
        let mut random = fastrand::Rng::with_seed(self.seed ^ self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.number += 1;
        // All numbers are drawn for every packet: a change of weather does not change the numbers of later packets.
        let mut falls = |share: u16| random.u16(..PER_MILLE) < share;
        let (lost, doubled) = (falls(weather.lost), falls(weather.doubled));
        let (overtaken, is_damaged) = (falls(weather.overtaken), falls(weather.damaged));
        let jitter = weather.jitter.mul_f64(random.f64());
        if weather.is_silent {
            return Fate::default();
        }
        // A packet that is lost in the air has used the line all the same.
        let Some(sent) = self.send(weather.rate, now, bytes) else {
            return Fate::default();
        };
        if lost {
            return Fate::default();
        }
        let arrives = if overtaken {
            sent + weather.delay + jitter + OVERTAKEN_BY
        } else {
            self.last = self.last.max(sent + weather.delay + jitter);
            self.last
        };
        Fate {
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

    const CALM: Weather = Weather {
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
    fn fates(seed: u64, weather: &Weather) -> Vec<(Duration, Fate)> {
        let mut line = Direction::new(seed);
        let packets = (0..PACKETS).map(|number| millis(u64::from(number)));
        packets.map(|now| (now, line.fate(weather, now, 1000))).collect()
    }

    fn share(fates: &[(Duration, Fate)], wanted: impl Fn(&Fate) -> bool) -> f64 {
        fates.iter().filter(|(_, fate)| wanted(fate)).count() as f64 / f64::from(PACKETS)
    }

    #[test]
    fn a_calm_line_delivers_everything_at_once_and_in_order() {
        for (now, fate) in fates(1, &CALM) {
            assert_eq!(
                fate,
                Fate {
                    arrives: Some(now),
                    ..Fate::default()
                }
            );
        }
    }

    #[test]
    fn seed_decides_and_nothing_else() {
        let bad = Weather {
            lost: 200,
            doubled: 100,
            overtaken: 100,
            jitter: millis(40),
            ..CALM
        };
        assert_eq!(fates(7, &bad), fates(7, &bad));
        assert_ne!(fates(7, &bad), fates(8, &bad));
    }

    #[test]
    fn shares_are_what_was_asked_for() {
        let bad = Weather {
            lost: 200,
            doubled: 100,
            damaged: 50,
            ..CALM
        };
        let fates = fates(3, &bad);
        let near = |share: f64, wanted: f64| assert!((share - wanted).abs() < 0.02, "{share} instead of {wanted}");
        near(share(&fates, |fate| fate.arrives.is_none()), 0.2);
        near(share(&fates, |fate| fate.again.is_some()), 0.1 * 0.8);
        near(share(&fates, |fate| fate.is_damaged), 0.05 * 0.8);
    }

    #[test]
    fn jitter_alone_keeps_the_order_and_overtaking_does_not() {
        let arrivals = |weather: &Weather| -> Vec<Duration> {
            fates(5, weather).iter().filter_map(|(_, fate)| fate.arrives).collect()
        };
        let late = arrivals(&Weather {
            delay: millis(100),
            jitter: millis(50),
            ..CALM
        });
        assert!(late.is_sorted());
        assert!(late[0] >= millis(100) && late[0] <= millis(150), "{:?}", late[0]);
        assert!(!arrivals(&Weather { overtaken: 100, ..CALM }).is_sorted());
    }

    #[test]
    fn silence_swallows_everything_and_uses_no_line() {
        let silent = Weather {
            is_silent: true,
            rate: Some(1),
            ..CALM
        };
        let mut line = Direction::new(1);
        for _ in 0..10 {
            assert_eq!(line.fate(&silent, Duration::ZERO, 1500).arrives, None);
        }
        let after = line.fate(&CALM, millis(1), 1500);
        assert_eq!(after.arrives, Some(millis(1)));
    }

    #[test]
    fn a_thin_line_carries_its_rate_and_its_queue_is_bounded() {
        // Offered: 1,000 bytes per millisecond for 10 s; carried: 6,250 bytes per second.
        let thin = Weather {
            rate: Some(6_250),
            ..CALM
        };
        let fates = fates(1, &thin);
        let carried = 1000.0 * share(&fates, |fate| fate.arrives.is_some()) * f64::from(PACKETS);
        assert!((60_000.0..=72_000.0).contains(&carried), "{carried} bytes in 10 s");
        for (now, fate) in fates {
            assert!(
                fate.arrives.is_none_or(|at| at - now <= QUEUE + millis(160)),
                "{fate:?}"
            );
        }
    }
}
