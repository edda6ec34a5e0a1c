//! Places of unauthenticated clients.
//!
//! No I/O. When places are short, the oldest connection of the origin that holds most is evicted. If all hold equally
//! many, its grace period must be over. So a fleet that reconnects at the same time waits instead of evicting its own
//! connections.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::offenders::Origin;

/// The strangers of a server, or those of this machine.
#[derive(Debug)]
pub(super) struct Strangers {
    limit: usize,
    per_address: usize,
    /// Guaranteed time for a handshake or an answer before another connection may take the place.
    grace: Duration,
    /// The oldest first.
    held: Vec<Stranger>,
    /// Earliest time of the next eviction among equals.
    next_eviction: Option<Instant>,
    next: u64,
}

#[derive(Debug)]
struct Stranger {
    number: u64,
    origin: Origin,
    since: Instant,
    evict: CancellationToken,
}

/// Answer to a connection that arrives.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It has a place, with this number.
    Taken(u64),
    /// Its origin has reached its limit.
    Refused,
    /// Every origin has an equal share, and the oldest place is not free before this time.
    Wait(Instant),
}

// === impl Strangers ===

impl Strangers {
    pub(super) fn new(limit: usize, per_address: usize, grace: Duration) -> Self {
        Self {
            limit: limit.max(1),
            per_address,
            grace,
            held: Vec::new(),
            next_eviction: None,
            next: 0,
        }
    }

    /// Takes a place for a connection of `origin`; `evict` is cancelled when the connection is evicted.
    pub(super) fn enter(&mut self, origin: Origin, now: Instant, evict: &CancellationToken) -> Entry {
        let own = self.count(origin);
        if own >= self.per_address {
            match self.oldest(|one| one.origin == origin) {
                Some(oldest) if self.had_grace(oldest, now) => self.evict(oldest),
                _ => return Entry::Refused,
            }
        } else if self.held.len() >= self.limit {
            let greedy = self.greediest(own + 1);
            let oldest = self.oldest(|one| greedy.is_none_or(|greedy| one.origin == greedy));
            match oldest {
                Some(oldest) if greedy.is_none() => {
                    let due = (self.held[oldest].since + self.grace).max(self.next_eviction.unwrap_or(now));
                    if due > now {
                        return Entry::Wait(due);
                    }
                    self.next_eviction = Some(now + self.pace());
                    self.evict(oldest);
                }
                Some(oldest) => self.evict(oldest),
                None => {}
            }
        }
        self.next += 1;
        self.held.push(Stranger {
            number: self.next,
            origin,
            since: now,
            evict: evict.clone(),
        });
        Entry::Taken(self.next)
    }

    /// Returns a place; it may have been taken away before.
    pub(super) fn leave(&mut self, number: u64) {
        self.held.retain(|one| one.number != number);
    }

    fn count(&self, origin: Origin) -> usize {
        self.held.iter().filter(|one| one.origin == origin).count()
    }

    /// The origin that holds most, if that is more than `least`.
    fn greediest(&self, least: usize) -> Option<Origin> {
        let mut counts = HashMap::<Origin, usize>::new();
        for one in &self.held {
            *counts.entry(one.origin).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.filter(|(_, count)| *count > least).map(|(origin, _)| origin)
    }

    fn oldest(&self, is_meant: impl Fn(&Stranger) -> bool) -> Option<usize> {
        self.held.iter().position(is_meant)
    }

    /// Time between two evictions among equals: as many in a grace period as there are places. Otherwise connections
    /// that came together would be replaced together, and all other work would wait for that.
    fn pace(&self) -> Duration {
        self.grace / u32::try_from(self.limit).unwrap_or(u32::MAX)
    }

    fn had_grace(&self, at: usize, now: Instant) -> bool {
        now >= self.held[at].since + self.grace
    }

    fn evict(&mut self, at: usize) {
        self.held.remove(at).evict.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(3);

    /// Strangers and the connections that requested a place, by number.
    struct Scene {
        strangers: Strangers,
        now: Instant,
    }

    fn origin(address: &str) -> Origin {
        Origin::new(address.parse().unwrap(), None, false, 64)
    }

    impl Scene {
        fn new(limit: usize, per_address: usize) -> Self {
            Self {
                strangers: Strangers::new(limit, per_address, GRACE),
                now: Instant::now(),
            }
        }

        fn enter(&mut self, address: &str) -> (Entry, CancellationToken) {
            let evict = CancellationToken::new();
            let entry = self.strangers.enter(origin(address), self.now, &evict);
            (entry, evict)
        }

        /// A connection that gets its place.
        fn taken(&mut self, address: &str) -> CancellationToken {
            let (entry, evict) = self.enter(address);
            assert!(matches!(entry, Entry::Taken(_)), "{address}: {entry:?}");
            evict
        }

        fn wait(&mut self) {
            self.now += GRACE;
        }
    }

    #[test]
    fn address_has_its_share_and_its_own_oldest_gives_way() {
        let mut scene = Scene::new(100, 2);
        let (first, second) = (scene.taken("10.0.0.1"), scene.taken("10.0.0.1"));
        assert_eq!(scene.enter("10.0.0.1").0, Entry::Refused);
        assert_eq!(scene.enter("::ffff:10.0.0.1").0, Entry::Refused, "the same host");
        scene.taken("10.0.0.2");
        scene.wait();
        scene.taken("10.0.0.1");
        assert!(first.is_cancelled() && !second.is_cancelled());
    }

    #[test]
    fn ipv6_network_is_one_address() {
        let mut scene = Scene::new(100, 2);
        scene.taken("2001:db8::1");
        scene.taken("2001:db8::2");
        assert_eq!(scene.enter("2001:db8::3").0, Entry::Refused);
        scene.taken("2001:db8:0:1::3");
    }

    /// An address without a place gets one, however many others hold, and however young these are.
    #[test]
    fn greedy_addresses_give_way_at_once() {
        let mut scene = Scene::new(8, 4);
        let of_one: Vec<_> = (0..4).map(|_| scene.taken("10.0.0.1")).collect();
        (0..4).for_each(|_| drop(scene.taken("10.0.0.2")));
        scene.taken("10.0.0.3");
        scene.taken("10.0.0.4");
        assert!(of_one.iter().filter(|evict| evict.is_cancelled()).count() <= 2);
        assert_eq!(scene.strangers.held.len(), 8);
        assert_eq!(scene.strangers.count(origin("10.0.0.3")), 1);
    }

    #[test]
    fn equals_wait_for_the_oldest_to_have_had_its_time() {
        let mut scene = Scene::new(3, 2);
        let first = scene.taken("10.0.0.1");
        let (since, second) = (scene.now, scene.taken("10.0.0.2"));
        scene.taken("10.0.0.3");
        assert_eq!(scene.enter("10.0.0.4").0, Entry::Wait(since + GRACE));
        assert!(!first.is_cancelled());
        scene.wait();
        scene.taken("10.0.0.4");
        assert!(first.is_cancelled() && !second.is_cancelled());
    }

    /// Silent sockets that were opened together are not replaced together.
    #[test]
    fn evictions_among_equals_are_spread_over_the_grace_period() {
        let mut scene = Scene::new(4, 5);
        (0..4).for_each(|_| drop(scene.taken("10.0.0.1")));
        scene.wait();
        for _ in 0..8 {
            scene.taken("10.0.0.1");
            assert_eq!(scene.enter("10.0.0.1").0, Entry::Wait(scene.now + GRACE / 4));
            scene.now += GRACE / 4;
        }
    }

    #[test]
    fn place_that_is_left_is_free() {
        let mut scene = Scene::new(1, 1);
        let (entry, _) = scene.enter("10.0.0.1");
        let Entry::Taken(number) = entry else {
            panic!("{entry:?}")
        };
        scene.strangers.leave(number);
        scene.strangers.leave(number);
        scene.taken("10.0.0.2");
    }
}
