//! Origins whose connections cost work and bring no request, and the pace of their next connections.
//!
//! No I/O. Every offence adds to the debt of its origin; time repays it, a second per second. Above [`TOLERATED`], the
//! connections of the origin take turns before their handshakes. A turn is a gap of a quarter of the longest hold. So
//! an attacker pays with time, and another client at the same address, for example behind the same NAT, waits for a few
//! turns only.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tokio::time::Instant;

/// Origin of connections: a network, or this machine and the uid, if it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    network: IpAddr,
    uid: Option<u32>,
}

/// Use of a connection that is of no use to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offence {
    /// Cut for a flood of frames.
    Flood,
    /// Ended without a handshake or a request, or broken by invalid frames.
    Abandoned,
}

/// The origins with a debt.
#[derive(Debug, Default)]
pub(super) struct Offenders {
    by: HashMap<Origin, Offender>,
}

#[derive(Debug)]
struct Offender {
    /// Time at which the debt is repaid.
    clear: Instant,
    /// Time of the next free turn.
    next: Instant,
}

/// Debt without consequence: seven abandoned connections in a burst, or one every four seconds without end. Load
/// balancers check the health of a port so.
const TOLERATED: Duration = Duration::from_secs(30);
/// Debt of an abandoned connection.
const ABANDONED: Duration = Duration::from_secs(4);
/// Debt of a flood: the first one slows its origin down for ten seconds.
const FLOOD: Duration = Duration::from_secs(40);
/// Maximum debt. An origin is slowed down for a minute after its last offence at most.
const DEBT_MAX: Duration = Duration::from_secs(90);
/// Maximum number of origins with a debt; one takes about 100 bytes.
const ORIGINS_MAX: usize = 4096;
/// Turns within the longest hold.
const TURNS: u32 = 4;

// === impl Origin ===

impl Origin {
    /// The origin of a connection from `address`. An IPv6 client has a network of `ipv6_prefix` bits to itself.
    pub(super) fn new(address: IpAddr, uid: Option<u32>, is_local: bool, ipv6_prefix: u32) -> Self {
        let network = network(counted_address(address, is_local), ipv6_prefix);
        Self { network, uid }
    }

    /// True for root of this machine, which could stop the server as well: it is never slowed.
    pub(super) fn is_root(self) -> bool {
        self.uid == Some(0)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uid {
            Some(uid) => write!(f, "uid {uid}"),
            None => self.network.fmt(f),
        }
    }
}

/// Address that a client counts by: 127.0.0.1 for all of this machine, which may bind to any loopback address.
pub(super) fn counted_address(address: IpAddr, is_local: bool) -> IpAddr {
    match is_local {
        true => Ipv4Addr::LOCALHOST.into(),
        false => address.to_canonical(),
    }
}

/// The address, or its IPv6 network of so many bits.
fn network(address: IpAddr, ipv6_prefix: u32) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let rest = u128::MAX.checked_shr(ipv6_prefix).unwrap_or_default();
            Ipv6Addr::from_bits(address.to_bits() & !rest).into()
        }
        v4 => v4,
    }
}

// === impl Offenders ===

impl Offenders {
    /// Takes a turn for a new connection: the time before which its handshake must not begin. At most `hold` from now.
    pub(super) fn turn(&mut self, origin: Origin, hold: Duration, now: Instant) -> Instant {
        let Some(offender) = self.by.get_mut(&origin).filter(|one| one.is_slowed(now)) else {
            return now;
        };
        let turn = offender.next.clamp(now, now + hold);
        offender.next = turn + hold / TURNS;
        turn
    }

    /// Adds an offence to the debt of its origin.
    pub(super) fn note(&mut self, origin: Origin, offence: Offence, now: Instant) {
        if self.by.len() >= ORIGINS_MAX && !self.by.contains_key(&origin) {
            self.forget_one(now);
        }
        let offender = self.by.entry(origin).or_insert(Offender { clear: now, next: now });
        let debt = match offence {
            Offence::Flood => FLOOD,
            Offence::Abandoned => ABANDONED,
        };
        offender.clear = (offender.clear.max(now) + debt).min(now + DEBT_MAX);
    }

    /// Forgets all origins without a debt, or, if there are none, the one with the lowest debt.
    fn forget_one(&mut self, now: Instant) {
        self.by.retain(|_, offender| offender.clear > now);
        if self.by.len() >= ORIGINS_MAX {
            let least = self.by.iter().min_by_key(|(_, offender)| offender.clear);
            if let Some(origin) = least.map(|(origin, _)| *origin) {
                self.by.remove(&origin);
            }
        }
    }
}

// === impl Offender ===

impl Offender {
    fn is_slowed(&self, now: Instant) -> bool {
        self.clear > now + TOLERATED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Duration = Duration::from_secs(2);

    struct Scene {
        offenders: Offenders,
        now: Instant,
    }

    impl Scene {
        fn new() -> Self {
            Self {
                offenders: Offenders::default(),
                now: Instant::now(),
            }
        }

        fn note(&mut self, address: &str, offence: Offence) {
            self.offenders.note(origin(address), offence, self.now);
        }

        /// Time that the next connection of `address` is held.
        fn held(&mut self, address: &str) -> Duration {
            let turn = self.offenders.turn(origin(address), HOLD, self.now);
            turn - self.now
        }

        fn is_slowed(&mut self, address: &str) -> bool {
            self.held(address);
            !self.held(address).is_zero()
        }

        fn wait(&mut self, time: Duration) {
            self.now += time;
        }
    }

    fn origin(address: &str) -> Origin {
        Origin::new(address.parse().unwrap(), None, false, 64)
    }

    #[test]
    fn connections_after_a_flood_take_turns_and_none_waits_for_longer_than_the_hold() {
        let mut scene = Scene::new();
        scene.note("10.0.0.1", Offence::Flood);
        let held: Vec<_> = (0..7).map(|_| scene.held("10.0.0.1").as_millis()).collect();
        assert_eq!(held, [0, 500, 1000, 1500, 2000, 2000, 2000]);
        assert!(!scene.is_slowed("10.0.0.2"), "another address");
        scene.wait(HOLD);
        assert!(scene.held("10.0.0.1") <= HOLD);
    }

    /// A client that shares its address with an attacker, which keeps a few connections waiting.
    #[test]
    fn client_that_comes_later_waits_behind_those_that_came_before_only() {
        let mut scene = Scene::new();
        scene.note("10.0.0.1", Offence::Flood);
        assert_eq!(
            [scene.held("10.0.0.1"), scene.held("10.0.0.1")],
            [Duration::ZERO, HOLD / 4]
        );
        scene.wait(Duration::from_millis(100));
        assert_eq!(scene.held("10.0.0.1"), Duration::from_millis(900));
    }

    #[test]
    fn offenders_are_forgotten_after_a_quiet_minute() {
        let mut scene = Scene::new();
        (0..100).for_each(|_| scene.note("10.0.0.1", Offence::Flood));
        scene.wait(Duration::from_secs(59));
        assert!(scene.is_slowed("10.0.0.1"));
        scene.wait(Duration::from_secs(1));
        assert!(!scene.is_slowed("10.0.0.1"));
    }

    #[test]
    fn abandoned_connections_are_tolerated_while_they_are_few() {
        let mut scene = Scene::new();
        for _ in 0..1000 {
            scene.note("10.0.0.1", Offence::Abandoned);
            assert!(!scene.is_slowed("10.0.0.1"));
            scene.wait(Duration::from_secs(4));
        }
        (0..7).for_each(|_| scene.note("10.0.0.1", Offence::Abandoned));
        assert!(!scene.is_slowed("10.0.0.1"));
        scene.note("10.0.0.1", Offence::Abandoned);
        assert!(scene.is_slowed("10.0.0.1"));
    }

    #[test]
    fn networks_of_ipv6_and_users_are_origins() {
        let mut scene = Scene::new();
        scene.note("2001:db8::1", Offence::Flood);
        assert!(scene.is_slowed("2001:db8::2"));
        assert!(!scene.is_slowed("2001:db8:0:1::1"));
        scene.note("::ffff:10.0.0.1", Offence::Flood);
        assert!(scene.is_slowed("10.0.0.1"));
        let [one, other] = [1000, 1001].map(|uid| Origin::new([127, 0, 0, 1].into(), Some(uid), true, 64));
        scene.offenders.note(one, Offence::Flood, scene.now);
        let mut held = |origin| {
            scene.offenders.turn(origin, HOLD, scene.now);
            scene.offenders.turn(origin, HOLD, scene.now) - scene.now
        };
        assert!(held(other).is_zero() && !held(one).is_zero());
        assert!(Origin::new([127, 0, 0, 1].into(), Some(0), true, 64).is_root());
    }

    #[test]
    fn ipv6_origin_has_the_bits_of_the_prefix() {
        let of = |address: &str, prefix| Origin::new(address.parse().unwrap(), None, false, prefix);
        for (prefix, one, other, is_same) in [
            (64, "2001:db8::1", "2001:db8::2", true),
            (64, "2001:db8::1", "2001:db8:0:1::1", false),
            (128, "2001:db8::1", "2001:db8::2", false),
            (128, "2001:db8::1", "2001:db8::1", true),
            (0, "2001:db8::1", "fd00::1", true),
            (64, "10.0.0.1", "10.0.0.2", false),
        ] {
            assert_eq!(
                of(one, prefix) == of(other, prefix),
                is_same,
                "{prefix}: {one}, {other}"
            );
        }
    }

    #[test]
    fn process_of_this_machine_is_one_origin_at_every_address() {
        let of = |address: &str, uid| Origin::new(address.parse().unwrap(), uid, true, 64);
        for uid in [None, Some(1000)] {
            for address in ["127.0.0.2", "::ffff:127.0.0.3", "::1", "192.0.2.7"] {
                assert_eq!(of(address, uid), of("127.0.0.1", uid), "{address}");
            }
        }
        assert_ne!(of("127.0.0.1", Some(1000)), of("127.0.0.1", Some(1001)));
    }

    #[test]
    fn table_is_bounded_and_keeps_the_worst() {
        let mut scene = Scene::new();
        scene.note("192.0.2.1", Offence::Flood);
        scene.note("192.0.2.1", Offence::Flood);
        for number in 0..2 * ORIGINS_MAX as u32 {
            let origin = Origin::new(Ipv4Addr::from_bits(number).into(), None, false, 64);
            scene.offenders.note(origin, Offence::Flood, scene.now);
        }
        assert_eq!(scene.offenders.by.len(), ORIGINS_MAX);
        assert!(scene.is_slowed("192.0.2.1"));
        scene.wait(DEBT_MAX);
        scene.note("192.0.2.2", Offence::Abandoned);
        assert_eq!(scene.offenders.by.len(), 1);
    }
}
