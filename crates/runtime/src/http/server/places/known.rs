//! Places of authenticated clients.
//!
//! No I/O. An identity gets a sixteenth of the free places, or four: however many a few identities take, a new one
//! finds a place. Most places are reserved for members of the pool, a few for its leader.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::Rank;

/// The places, by holder.
#[derive(Debug)]
pub(super) struct KnownPlaces {
    limit: usize,
    total: usize,
    /// Held by [`Rank::Other`].
    others: usize,
    of: HashMap<Arc<str>, usize>,
}

/// Number of free places per place of one identity.
const FREE_FOR_EACH: usize = 16;
/// Minimum number of places of an identity, while some are free.
const FEW: usize = 4;
/// Fraction (1/n) of the places that clients other than members may hold.
const SHARE_OF_OTHERS: usize = 4;
/// Places reserved for the leader: it has two connections, and may reconnect before its old ones are known to be dead.
const KEPT_FOR_LEADER: usize = 8;

// === impl KnownPlaces ===

impl KnownPlaces {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            total: 0,
            others: 0,
            of: HashMap::new(),
        }
    }

    /// Takes a place for a connection of `name`; false if there is none.
    pub(super) fn enter(&mut self, name: &Arc<str>, rank: Rank) -> bool {
        let held = self.of.get(name).copied().unwrap_or(0);
        let free = self.free_for(rank);
        let is_greedy = rank != Rank::Administrator && held >= (free / FREE_FOR_EACH).max(FEW);
        if free == 0 || is_greedy {
            return false;
        }
        self.total += 1;
        self.others += usize::from(rank == Rank::Other);
        *self.of.entry(name.clone()).or_default() += 1;
        true
    }

    /// Returns a place that was taken with the same rank.
    pub(super) fn leave(&mut self, name: &Arc<str>, rank: Rank) {
        self.total = self.total.saturating_sub(1);
        self.others = self.others.saturating_sub(usize::from(rank == Rank::Other));
        if let Some(held) = self.of.get_mut(name) {
            *held -= 1;
            if *held == 0 {
                self.of.remove(name);
            }
        }
    }

    fn free_for(&self, rank: Rank) -> usize {
        let kept = KEPT_FOR_LEADER.min(self.limit / SHARE_OF_OTHERS);
        let free = self.limit.saturating_sub(self.total);
        match rank {
            Rank::Leader => free,
            Rank::Member | Rank::Administrator => free.saturating_sub(kept),
            Rank::Other => {
                let share = (self.limit / SHARE_OF_OTHERS).max(1);
                share.saturating_sub(self.others).min(free.saturating_sub(kept))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(of: &str, number: usize) -> Arc<str> {
        Arc::from(format!("{of}-{number}"))
    }

    /// Takes places for `name` until there are no more for it.
    fn take_all(known: &mut KnownPlaces, name: &Arc<str>, rank: Rank) -> usize {
        (0..).take_while(|_| known.enter(name, rank)).count()
    }

    #[test]
    fn greedy_identities_leave_a_place_to_each_other_one() {
        let mut known = KnownPlaces::new(3000);
        for number in 0..50 {
            let taken = take_all(&mut known, &name("greedy", number), Rank::Member);
            assert!(taken > 0, "{number}");
        }
        for number in 0..100 {
            take_all(&mut known, &name("greedy", number % 50), Rank::Member);
            assert!(known.enter(&name("modest", number % 50), Rank::Member), "{number}");
        }
    }

    #[test]
    fn others_leave_most_places_to_members_and_members_some_to_the_leader() {
        let mut known = KnownPlaces::new(3000);
        let others = (0..5000)
            .filter(|one| known.enter(&name("other", *one), Rank::Other))
            .count();
        assert_eq!(others, 750);
        let members = (0..5000)
            .filter(|one| known.enter(&name("member", *one), Rank::Member))
            .count();
        assert_eq!(members, 3000 - 750 - KEPT_FOR_LEADER);
        let leader = name("leader", 0);
        assert_eq!(take_all(&mut known, &leader, Rank::Leader), FEW);
    }

    /// An administrator already has all rights, so a limit would protect nothing.
    #[test]
    fn administrator_takes_all_but_the_leaders_places() {
        let mut known = KnownPlaces::new(3000);
        let taken = take_all(&mut known, &name("admin", 0), Rank::Administrator);
        assert_eq!(taken, 3000 - KEPT_FOR_LEADER);
    }

    #[test]
    fn what_is_left_is_free_again() {
        let mut known = KnownPlaces::new(40);
        let one = name("one", 1);
        for rank in [Rank::Other, Rank::Member, Rank::Leader, Rank::Administrator] {
            let taken = take_all(&mut known, &one, rank);
            assert!(taken > 0);
            (0..taken).for_each(|_| known.leave(&one, rank));
            assert_eq!((known.total, known.others, known.of.len()), (0, 0, 0), "{rank:?}");
        }
    }

    #[test]
    fn smallest_server_serves_somebody() {
        for rank in [Rank::Other, Rank::Member, Rank::Leader] {
            assert!(KnownPlaces::new(1).enter(&name("one", 1), rank), "{rank:?}");
        }
    }
}
