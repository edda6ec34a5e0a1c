//! Own resourceVersions: `tag | max(last + 1, unix µs)`, the tag being bit 62 beside pool data, with a durable mark ahead of every one issued.
//!
//! Pure. After a crash the next RV starts above the mark, so no RV is ever used twice and none goes back, whatever the
//! wall clock does.

use yurt_apimachinery::{ResourceVersion, Space};
use yurt_runtime::UnixTime;

/// How far ahead of the last RV the mark is set, µs.
const AHEAD_MICROS: u64 = 60_000_000;
/// The mark is renewed when less than this is left, µs.
const LEFT_MICROS: u64 = 10_000_000;

/// Issues RVs and says when the mark has to be stored first.
#[derive(Debug)]
pub(super) struct Sequencer {
    tag: u64,
    last: u64,
    mark: u64,
}

// === impl Sequencer ===

impl Sequencer {
    /// Goes on above `mark`, the value stored last.
    pub(super) fn after(mark: u64, space: Space) -> Self {
        let tag = if space == Space::Own {
            ResourceVersion::OWN_BIT
        } else {
            0
        };
        Self {
            tag,
            last: mark.max(tag),
            mark,
        }
    }

    /// The next RV at wall-clock time `now`.
    pub(super) fn next(&mut self, now: UnixTime) -> ResourceVersion {
        let micros = u64::try_from(now.secs).unwrap_or(0) * 1_000_000 + u64::from(now.nanos / 1000);
        self.last = (self.tag | micros).max(self.last + 1);
        ResourceVersion(self.last)
    }

    /// The mark to store before the RVs issued so far become visible; `None` while the stored one is far enough ahead.
    pub(super) fn mark_needed(&self) -> Option<u64> {
        (self.last + LEFT_MICROS > self.mark).then_some(self.last + AHEAD_MICROS)
    }

    /// The mark `stored` is on the disk.
    pub(super) fn stored(&mut self, stored: u64) {
        self.mark = stored;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> UnixTime {
        UnixTime { secs, nanos: 0 }
    }

    #[test]
    fn clock_stepped_back_never_takes_the_rv_back() {
        let mut sequencer = Sequencer::after(0, Space::Own);
        let first = sequencer.next(at(1_000_000));
        let second = sequencer.next(at(10));
        assert!(second > first);
        assert!(second.is_own());
    }

    #[test]
    fn restart_continues_above_the_mark() {
        let mut sequencer = Sequencer::after(0, Space::Own);
        let issued = sequencer.next(at(1_000));
        let mark = sequencer.mark_needed().expect("the first RV needs a mark");
        sequencer.stored(mark);
        assert_eq!(sequencer.mark_needed(), None);
        let restarted = Sequencer::after(mark, Space::Own).next(at(1_000));
        assert!(restarted > issued && restarted.0 > mark);
    }
}
