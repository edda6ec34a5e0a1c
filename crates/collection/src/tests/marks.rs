//! The stored mark is ahead of everything served, whatever happens to commits and processes.

use super::*;

/// µs since 1970, as a standalone coordinator counts.
const MICROS: u64 = 1_760_000_000_000_000;

#[derive(Clone, Debug)]
enum Act {
    /// The source has a change so many RVs later.
    Change(u64),
    /// A commit begins.
    Begin,
    /// It ends.
    End { is_stored: bool },
    /// The disk works from now on, or fails.
    Disk { works: bool },
    /// Another process continues with the last commit, or with the one in flight.
    Crash { is_stored: bool },
    /// The source comes back from a backup, so many RVs earlier.
    RollBack(u64),
}

/// A copy with its disk.
struct Copy {
    held: Collection,
    disk: Option<Recovered>,
    /// Generation of the last commit that this process knows to be stored.
    durable: Option<u64>,
    writing: Option<(Dirty, Recovered)>,
    works: bool,
    /// Highest RV that any reader has seen.
    served: u64,
}

impl Copy {
    fn begin(&mut self) {
        if self.writing.is_none()
            && let Some(dirty) = self.held.take_dirty()
        {
            self.writing = Some((dirty, self.held.to_recovered()));
        }
    }

    fn end(&mut self, is_stored: bool) {
        let Some((dirty, commit)) = self.writing.take() else {
            return;
        };
        if is_stored {
            self.durable = Some(commit.generation);
            self.held.mark_stored(commit.generation, commit.mark);
            self.disk = Some(commit);
        } else {
            self.held.restore_dirty(dirty);
        }
        self.serve();
    }

    fn serve(&mut self) {
        if self.held.is_complete() && self.durable == Some(self.held.generation()) {
            self.served = self.served.max(self.held.position().0);
        }
    }

    fn take(&mut self, act: &Act) {
        match *act {
            Act::Change(step) => {
                let to = rv(self.held.position().0.saturating_add(step));
                if !self.held.covers(to) {
                    self.held.want_mark(self.held.generation(), to);
                    self.end(self.works);
                    self.begin();
                    self.end(self.works);
                }
                if self.held.covers(to) {
                    self.held.advance(to);
                    self.serve();
                }
            }
            Act::Begin => self.begin(),
            Act::End { is_stored } => self.end(is_stored && self.works),
            Act::Disk { works } => self.works = works,
            Act::Crash { is_stored } => {
                let in_flight = self.writing.take().filter(|_| is_stored && self.works);
                let disk = in_flight.map(|(_, commit)| commit).or(self.disk.take());
                self.held = Collection::new(true);
                if let Some(stored) = disk {
                    self.durable = Some(stored.generation);
                    self.held.recover(stored);
                    self.disk = Some(self.held.to_recovered());
                } else {
                    self.durable = None;
                    self.held.restart(0, vec![], rv(MICROS));
                }
                self.serve();
            }
            Act::RollBack(step) => {
                let to = rv(self.held.position().0.saturating_sub(step).max(1));
                self.held.restart(self.held.generation() + 1, vec![], to);
                let high = self.held.high().0;
                assert!(high >= self.served, "{high} is below {}, which was served", self.served);
            }
        }
    }
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let step = prop_oneof![1..100_u64, 1..1_u64 << 22, 1..1_u64 << 38];
    let act = prop_oneof![
        6 => step.clone().prop_map(Act::Change),
        2 => Just(Act::Begin),
        2 => any::<bool>().prop_map(|is_stored| Act::End { is_stored }),
        1 => any::<bool>().prop_map(|works| Act::Disk { works }),
        1 => any::<bool>().prop_map(|is_stored| Act::Crash { is_stored }),
        1 => step.prop_map(Act::RollBack),
    ];
    proptest::collection::vec(act, 1..60)
}

proptest! {
    /// No reader of an older generation is above H, so none is resumed by its number.
    #[test]
    fn high_covers_everything_that_was_ever_served(first in prop_oneof![Just(MICROS), Just(100_u64)], acts in acts()) {
        let mut held = Collection::new(true);
        held.restart(0, vec![], rv(first));
        let mut copy = Copy { held, disk: None, durable: None, writing: None, works: true, served: 0 };
        copy.begin();
        copy.end(true);
        acts.iter().for_each(|act| copy.take(act));
    }
}

/// Hours for each way of counting: a source that continues while the disk fails is not held back soon.
#[test]
fn serving_goes_on_for_hours_while_commits_fail() {
    let hour = 3600;
    for (at, each_second) in [(MICROS, 1_000_000), (5_000_000, 100)] {
        let mut held = Collection::new(true);
        held.restart(0, vec![], rv(at));
        held.mark_stored(0, held.next_mark());
        assert!(held.covers(rv(at + each_second * hour)), "{at}");
        assert!(!held.covers(rv(at + each_second * 4 * hour)), "{at}");
    }
}

#[test]
fn mark_covers_what_it_was_requested_for() {
    let mut held = Collection::new(true);
    held.restart(0, vec![], rv(MICROS));
    held.mark_stored(0, held.next_mark());
    drop(held.take_dirty());
    let after_a_day = rv(MICROS + 86_400_000_000);
    assert!(!held.covers(after_a_day));
    held.want_mark(1, after_a_day);
    assert!(held.take_dirty().is_none(), "of another generation");
    held.want_mark(0, after_a_day);
    assert!(held.take_dirty().is_some(), "a commit is due");
    held.mark_stored(1, held.next_mark());
    assert!(!held.covers(after_a_day), "that commit was of another generation");
    held.mark_stored(0, held.next_mark());
    assert!(held.covers(after_a_day));
}
