//! Shares: a maximum of something that all origins may hold together, and one for each of them.
//!
//! An origin gets no more than its share, so it cannot take what others need. Tokens cost nothing to make up, addresses
//! cannot be made up.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::caller::Origin;

/// Amounts that all origins hold, and their maxima.
pub(super) struct Shares {
    total: usize,
    share: usize,
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
    /// All origins hold at most `total`, and one of them `share`.
    pub(super) fn new(total: usize, share: usize) -> Arc<Self> {
        Arc::new(Self {
            total,
            share,
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
    /// Raises the part to `amount`; false if that exceeds a maximum, and the part stays as it is.
    pub(super) fn grow(&mut self, amount: usize) -> bool {
        let more = amount.saturating_sub(self.amount);
        let mut held = self.shares.held.lock();
        let own = held.of.get(&self.origin).map_or(more, |own| own.saturating_add(more));
        let all = held.all.saturating_add(more);
        if own > self.shares.share || all > self.shares.total {
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
    fn origin_gets_its_share_and_all_get_the_total() {
        let shares = Shares::new(10, 4);
        let _parts = [1, 2].map(|number| part(&shares, pod(number), 4).unwrap());
        assert!(part(&shares, pod(1), 1).is_none());
        assert!(part(&shares, pod(3), 3).is_none());
        assert!(part(&shares, pod(3), 2).is_some());
    }

    #[test]
    fn part_that_ends_gives_all_back_and_one_that_cannot_grow_stays() {
        let shares = Shares::new(10, 4);
        let mut first = part(&shares, pod(1), 1).unwrap();
        assert!(first.grow(3) && first.grow(2) && !first.grow(5));
        assert!(part(&shares, pod(1), 2).is_none());
        drop(first);
        assert!(part(&shares, pod(1), 4).is_some());
        let held = shares.held.lock();
        assert_eq!((held.all, held.of.len()), (0, 0));
    }
}
