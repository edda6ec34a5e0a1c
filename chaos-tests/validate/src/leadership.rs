//! Referee of leadership: sees every write the coordinator accepted, independently of fences and clocks.
//!
//! It checks the invariants I3 and I4 of the design:
//!
//! * only feed calls of the present holder are applied, in the store and since the change of holder it was elected
//!   with;
//! * the present holder is not rejected;
//! * two processes that were elected in one store never act at the same time;
//! * a process that was elected in a lost store may act for a bounded time.

/// An election from the view of its winner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Number of the coordinator's store.
    pub store: u32,
    /// Changes of holder in that store so far.
    pub epoch: u64,
    /// Process that holds the lease.
    pub process: u32,
}

/// Judges writes and calls; keeps the first violation.
#[derive(Clone, Debug, Default)]
pub struct Referee {
    store: u32,
    epoch: u64,
    holder: Option<u32>,
    /// Real time of the last loss of the store, in microseconds.
    lost_at: Option<u64>,
    /// Number of acquisitions.
    pub elections: u64,
    /// Feed calls that were applied.
    pub fed: u64,
    /// Feed calls of former leaders, which were rejected.
    pub fenced: u64,
    /// The first violation.
    pub violation: Option<String>,
}

// === impl Referee ===

impl Referee {
    /// Records that the lease's holder became `holder`; `None` when it was released or deleted. Returns the hold that
    /// began.
    pub fn holder_became(&mut self, holder: Option<u32>) -> Option<Hold> {
        self.epoch += 1;
        self.holder = holder;
        self.elections += u64::from(holder.is_some());
        self.present()
    }

    /// Records that the coordinator starts with an empty store.
    pub fn store_lost(&mut self, now: u64) {
        self.store += 1;
        self.epoch = 0;
        self.holder = None;
        self.lost_at = Some(now);
    }

    /// The present hold.
    #[must_use]
    pub fn present(&self) -> Option<Hold> {
        self.holder.map(|process| Hold {
            store: self.store,
            epoch: self.epoch,
            process,
        })
    }

    /// Judges a feed call sent by the winner of `claim`, which was applied or rejected.
    pub fn feed_call(&mut self, claim: Hold, taken: bool) {
        let leads = self.present() == Some(claim);
        match (leads, taken) {
            (true, true) => self.fed += 1,
            (false, false) => self.fenced += 1,
            (false, true) => self.violated(format!("taken from {claim:?} while {:?} leads", self.present())),
            (true, false) => self.violated(format!("{claim:?} leads and was rejected")),
        }
    }

    /// Judges the processes that may act at `now`; `grace` is the time in microseconds that one of a lost store may
    /// act.
    pub fn acting(&mut self, now: u64, acting: &[Hold], grace: u64) {
        let (here, elsewhere): (Vec<Hold>, Vec<Hold>) = acting.iter().partition(|hold| hold.store == self.store);
        if here.len() > 1 {
            self.violated(format!("two act: {here:?}"));
        }
        let in_grace = self.lost_at.is_some_and(|lost| now <= lost + grace);
        if !elsewhere.is_empty() && !in_grace {
            self.violated(format!("{elsewhere:?} act for a store that is gone"));
        }
    }

    /// Records any other violation.
    pub fn violated(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_present_holder_is_heard() {
        let mut referee = Referee::default();
        let first = referee.holder_became(Some(1)).expect("holds");
        referee.feed_call(first, true);
        referee.holder_became(None);
        let again = referee.holder_became(Some(1)).expect("holds");
        referee.feed_call(first, false);
        referee.feed_call(again, true);
        assert_eq!((referee.fed, referee.fenced, referee.violation.clone()), (2, 1, None));
        let mut lenient = referee.clone();
        lenient.feed_call(first, true);
        assert!(lenient.violation.is_some(), "same process, older hold");
        referee.feed_call(again, false);
        assert!(referee.violation.is_some(), "the leader was shut out");
    }

    #[test]
    fn two_never_act_but_for_a_store_that_is_gone() {
        let mut referee = Referee::default();
        let old = referee.holder_became(Some(1)).expect("holds");
        let mut doubled = referee.clone();
        let other = doubled.holder_became(Some(2)).expect("holds");
        doubled.acting(5, &[old, other], 10);
        assert!(doubled.violation.is_some());
        referee.store_lost(100);
        let new = referee.holder_became(Some(2)).expect("holds");
        referee.acting(110, &[old, new], 10);
        assert_eq!(referee.violation, None);
        referee.feed_call(old, false);
        referee.acting(111, &[old, new], 10);
        assert!(referee.violation.is_some());
    }
}
