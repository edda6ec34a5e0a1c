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
        self.last = (self.tag | micros(now)).max(self.last + 1);
        ResourceVersion(self.last)
    }

    /// Whether an RV issued at wall-clock time `now` would need a new mark first.
    pub(super) fn is_mark_near(&self, now: UnixTime) -> bool {
        (self.tag | micros(now)).max(self.last + 1) + LEFT_MICROS > self.mark
    }

    /// The mark to store before the RVs issued so far become visible; `None` while the stored one is far enough ahead.
    pub(super) fn mark_needed(&self) -> Option<u64> {
        (self.last + LEFT_MICROS > self.mark).then_some(self.mark_ahead())
    }

    /// A mark as far ahead as one is set.
    pub(super) fn mark_ahead(&self) -> u64 {
        self.last + AHEAD_MICROS
    }

    /// Says so when the stored mark is further ahead of the wall clock than a kill can leave it: the clock was stepped
    /// back, or was wrong before. RVs go on above the mark, counting by one until the clock has caught up.
    pub(super) fn warn_if_ahead(&self, now: UnixTime) {
        let ahead = (self.mark & !self.tag).saturating_sub(micros(now));
        if ahead > 2 * AHEAD_MICROS {
            let seconds = ahead / 1_000_000;
            tracing::warn!(
                seconds,
                "The clock stands behind what this store has seen; resourceVersions go on above it"
            );
        }
    }

    /// Whether `rv` may be shown: a restart goes on above it.
    pub(super) fn covers(&self, rv: ResourceVersion) -> bool {
        rv.0 <= self.mark
    }

    /// The mark `stored` is on the disk.
    pub(super) fn stored(&mut self, stored: u64) {
        self.mark = stored;
    }
}

/// µs since 1970, kept below the tag whatever the clock says.
fn micros(now: UnixTime) -> u64 {
    let micros = u64::try_from(now.secs).unwrap_or(0).saturating_mul(1_000_000) + u64::from(now.nanos / 1000);
    micros.min(ResourceVersion::OWN_BIT / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> UnixTime {
        UnixTime { secs, nanos: 0 }
    }

    /// Conformance: 7.40, 7.42
    #[test]
    fn clock_stepped_back_never_takes_the_rv_back() {
        let mut sequencer = Sequencer::after(0, Space::Own);
        let first = sequencer.next(at(1_000_000));
        let second = sequencer.next(at(10));
        assert!(second > first);
        assert!(second.is_own());
    }

    /// Conformance: 7.42
    #[test]
    fn restart_continues_above_the_mark() {
        let mut sequencer = Sequencer::after(0, Space::Own);
        let issued = sequencer.next(at(1_000));
        let mark = sequencer.mark_needed().expect("the first RV needs a mark");
        sequencer.stored(mark);
        assert_eq!(sequencer.mark_needed(), None);
        for (secs, is_near) in [(0, false), (1_000, false), (1_050, false), (1_051, true), (9_000, true)] {
            assert_eq!(sequencer.is_mark_near(at(secs)), is_near, "{secs}");
            let mut next = Sequencer { ..sequencer };
            next.next(at(secs));
            assert_eq!(next.mark_needed().is_some(), is_near, "{secs}");
        }
        let restarted = Sequencer::after(mark, Space::Own).next(at(1_000));
        assert!(restarted > issued && restarted.0 > mark);
    }
}
