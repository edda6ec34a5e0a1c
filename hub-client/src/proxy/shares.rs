//! Shares: a maximum of something that all origins may hold together, divided among them.
//!
//! An origin may hold a quarter of what it leaves free: alone it gets a fifth of the total, and each further greedy one
//! a fifth of the rest. So a newcomer finds something, though nothing is taken back: a client that reads nothing can
//! hold its part for as long as it likes. Twenty origins leave one of 512. Tokens cost nothing to make up, origins
//! cannot be made up.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::caller::Origin;

/// Amount that an origin leaves free for each one that it holds.
const FREE_FOR_EACH: usize = 4;

/// Amounts that all origins hold, and their maximum.
pub(super) struct Shares {
    total: usize,
    /// Amount that must stay free for each one that an origin holds.
    free_for_each: usize,
    held: Mutex<Amounts>,
}

#[derive(Default)]
struct Amounts {
    all: usize,
    /// Origins that hold something.
    of: BTreeMap<Origin, usize>,
}

/// Amount that one request holds; given back when dropped.
pub(super) struct Part {
    shares: Arc<Shares>,
    origin: Origin,
    amount: usize,
}

// === impl Shares ===

impl Shares {
    /// All origins hold at most `total`, and each leaves most of the rest to the others.
    pub(super) fn fair(total: usize) -> Arc<Self> {
        Self::new(total, FREE_FOR_EACH)
    }

    /// All origins hold at most `total`, and one of them may hold it alone.
    pub(super) fn undivided(total: usize) -> Arc<Self> {
        Self::new(total, 0)
    }

    fn new(total: usize, free_for_each: usize) -> Arc<Self> {
        Arc::new(Self {
            total,
            free_for_each,
            held: Mutex::default(),
        })
    }

    /// Returns an empty part.
    pub(super) fn part(self: &Arc<Self>, origin: Origin) -> Part {
        Part {
            shares: self.clone(),
            origin,
            amount: 0,
        }
    }
}

// === impl Part ===

impl Part {
    /// Raises the part to `amount`; false if that is more than the origin may hold, and the part stays as it is.
    pub(super) fn grow(&mut self, amount: usize) -> bool {
        let more = amount.saturating_sub(self.amount);
        if more == 0 {
            // The others may have taken the rest since.
            return true;
        }
        let mut held = self.shares.held.lock();
        let own = held.of.get(&self.origin).map_or(more, |own| own.saturating_add(more));
        let all = held.all.saturating_add(more);
        let free = self.shares.total.checked_sub(all);
        if free.is_none_or(|free| own.saturating_mul(self.shares.free_for_each) > free) {
            return false;
        }
        held.all = all;
        held.of.insert(self.origin, own);
        self.amount += more;
        true
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut held = self.shares.held.lock();
        held.all -= self.amount;
        if let Some(own) = held.of.get_mut(&self.origin) {
            *own -= self.amount;
            if *own == 0 {
                held.of.remove(&self.origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: u8) -> Origin {
        Origin {
            address: [10, 1, 0, number].into(),
            uid: None,
        }
    }

    /// A part of this amount, if there is so much.
    fn part(shares: &Arc<Shares>, origin: Origin, amount: usize) -> Option<Part> {
        let mut part = shares.part(origin);
        part.grow(amount).then_some(part)
    }

    #[test]
    fn newcomer_gets_a_part_after_many_greedy_origins() {
        let shares = Shares::fair(512);
        let mut held = Vec::new();
        let amounts = (0..16).map(|number| {
            let before = held.len();
            held.extend(std::iter::from_fn(|| part(&shares, pod(number), 1)));
            held.len() - before
        });
        let amounts: Vec<usize> = amounts.collect();
        assert!(
            amounts.starts_with(&[102, 82, 65, 52]) && !amounts.contains(&0),
            "{amounts:?}"
        );
        assert!((16..100).all(|number| part(&shares, pod(number), 1).is_some()));
    }

    #[test]
    fn origin_leaves_most_of_the_rest_free_and_all_get_the_total() {
        let shares = Shares::fair(10);
        let _two = part(&shares, pod(1), 2).unwrap();
        assert!(part(&shares, pod(1), 1).is_none() && part(&shares, pod(2), 2).is_none());
        assert!(part(&shares, pod(2), 1).is_some());
        let shares = Shares::undivided(10);
        let _all = part(&shares, pod(1), 10).unwrap();
        assert!(part(&shares, pod(2), 1).is_none());
    }

    #[test]
    fn part_is_kept_when_others_take_the_rest() {
        let shares = Shares::fair(20);
        let mut first = part(&shares, pod(1), 4).unwrap();
        let _rest = (2..9)
            .map_while(|number| part(&shares, pod(number), 1))
            .collect::<Vec<_>>();
        assert!(first.grow(4) && first.grow(1) && !first.grow(5));
    }

    #[test]
    fn part_that_ends_gives_all_back_and_one_that_cannot_grow_stays() {
        let shares = Shares::fair(20);
        let mut first = part(&shares, pod(1), 1).unwrap();
        assert!(first.grow(3) && first.grow(2) && !first.grow(5) && !first.grow(usize::MAX));
        assert!(part(&shares, pod(1), 2).is_none());
        drop(first);
        assert!(part(&shares, pod(1), 4).is_some());
        let held = shares.held.lock();
        assert_eq!((held.all, held.of.len()), (0, 0));
    }
}
