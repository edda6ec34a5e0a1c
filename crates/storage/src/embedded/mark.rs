//! Own resourceVersions: `tag | max(last + 1, unix µs)`, with a durable mark ahead of every one issued. The tag is bit
//! 62 in a process that also holds pool data.
//!
//! Pure. After a crash the next RV starts above the mark. So no RV is ever used twice and none goes back, even if the
//! wall clock does.
//!
//! A group of transactions has its RVs before its commit begins, and RVs are published in order. So a group leaves
//! numbers free below its first RV. Writes in memory during its commit take those, one by one. They also count by one
//! near the mark, so that they go on while the disk takes no mark.

use yurt_apimachinery::{ResourceVersion, Space};
use yurt_runtime::UnixTime;

/// Distance of a new mark from the last RV, µs.
const AHEAD_MICROS: u64 = 120_000_000;
/// A group renews the mark when less than this is left, µs.
const LEFT_MICROS: u64 = 60_000_000;
/// Numbers below the mark that writes in memory take one by one: 2,000 nodes renew for more than 13 hours.
const COUNTED: u64 = 10_000_000;

/// Maximum number of RVs that a group leaves free below it. They may be as many µs ahead of the clock, which delays the
/// expiry of events, for example.
const RESERVE_MAX: u64 = 2_000_000;
/// Lead over the clock, µs, up to which a group leaves more numbers free than time has passed.
const LEAD_MAX: u64 = SHARE * RESERVE_MAX;
/// Part of the rest up to [`LEAD_MAX`] that a group leaves free: many groups leave a million numbers per second
/// together.
const SHARE: u64 = 8;
/// Distance left above a timeline without a known mark: it may have been this much ahead of the clock, µs.
const LEAP_MICROS: u64 = 600_000_000;

/// Issues RVs, and reports when the mark has to be stored first.
#[derive(Debug)]
pub(super) struct Sequencer {
    tag: u64,
    last: u64,
    mark: u64,
    group: Option<Group>,
    /// Time of the last group, as an RV.
    grouped_at: u64,
}

/// The numbers of a group in flight: from `first` up to, not including, `next`.
#[derive(Clone, Copy, Debug)]
struct Group {
    first: u64,
    next: u64,
}

// === impl Sequencer ===

impl Sequencer {
    /// Continues above `mark`, the value stored last.
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
            group: None,
            grouped_at: 0,
        }
    }

    /// The next RV at wall-clock time `now`, while no group is in flight.
    pub(super) fn next(&mut self, now: UnixTime) -> ResourceVersion {
        self.last = self.at(now).max(self.last + 1);
        ResourceVersion(self.last)
    }

    /// As [`Self::next`], above everything that may have been issued without a known mark.
    pub(super) fn leap(&mut self, now: UnixTime) -> ResourceVersion {
        self.last = self.at(now).max(self.last) + LEAP_MICROS;
        ResourceVersion(self.last)
    }

    /// The next RV for a write in memory. `None` when the mark would have to be stored first, or a group in flight has
    /// left no number free.
    pub(super) fn next_in_memory(&mut self, now: UnixTime) -> Option<ResourceVersion> {
        let next = match self.group {
            None => self.at(now).min(self.mark.saturating_sub(COUNTED)).max(self.last + 1),
            Some(group) => Some(self.last + 1).filter(|next| *next < group.first)?,
        };
        let next = Some(next).filter(|next| *next <= self.mark)?;
        self.last = next;
        Some(ResourceVersion(next))
    }

    /// Begins a group: until it ends, writes in memory take the numbers below its own.
    pub(super) fn begin_group(&mut self, now: UnixTime) {
        let now = self.at(now);
        let room = LEAD_MAX.saturating_sub(self.last.saturating_sub(now)) / SHARE;
        // Less than the time that has passed: RVs ahead of the clock do not get further ahead.
        let passed = now.saturating_sub(self.grouped_at) / 2;
        let reserve = room.max(passed).min(RESERVE_MAX);
        self.grouped_at = now;
        let first = now.max(self.last + 1 + reserve);
        self.group = Some(Group { first, next: first });
    }

    /// The next RV of the group in flight.
    pub(super) fn next_of_group(&mut self, now: UnixTime) -> ResourceVersion {
        let Some(group) = &mut self.group else {
            return self.next(now);
        };
        group.next += 1;
        ResourceVersion(group.next - 1)
    }

    /// Ends the group in flight: its numbers are used up.
    pub(super) fn end_group(&mut self) {
        self.last = self.highest();
        self.group = None;
    }

    /// Ends the group in flight, if there is one: its numbers were not shown, and are not on the disk. They are free
    /// again, because groups that fail one after another would use up those below the mark.
    pub(super) fn drop_group(&mut self) {
        self.group = None;
    }

    /// The mark to store before the RVs issued so far become visible; `None` while the stored one is far enough ahead.
    pub(super) fn mark_needed(&self) -> Option<u64> {
        (self.highest() + LEFT_MICROS > self.mark).then_some(self.mark_ahead())
    }

    /// A mark at the usual distance ahead.
    pub(super) fn mark_ahead(&self) -> u64 {
        self.highest() + AHEAD_MICROS
    }

    /// Logs a warning when the stored mark is further ahead of the wall clock than a kill can leave it. The clock was
    /// stepped back, or was wrong before. RVs continue above the mark, counting by one until the clock has caught up.
    pub(super) fn warn_if_ahead(&self, now: UnixTime) {
        let ahead = self.mark.saturating_sub(self.at(now));
        if ahead > 2 * AHEAD_MICROS {
            let seconds = ahead / 1_000_000;
            tracing::warn!(
                seconds,
                "Wall clock is behind the store's RV mark; resourceVersions continue above the mark"
            );
        }
    }

    /// Records that the mark `stored` is on the disk.
    pub(super) fn stored(&mut self, stored: u64) {
        self.mark = stored;
    }

    fn highest(&self) -> u64 {
        let group = self.group.filter(|group| group.next > group.first);
        group.map_or(self.last, |group| group.next - 1)
    }

    fn at(&self, now: UnixTime) -> u64 {
        self.tag | micros(now)
    }
}

/// µs since 1970, kept below the tag even if the clock is wrong.
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
        for (secs, is_near, is_beyond) in [
            (0, false, false),
            (1_060, false, false),
            (1_061, true, false),
            (1_109, true, false),
            (1_111, true, true),
            (9_000, true, true),
        ] {
            let mut next = Sequencer { ..sequencer };
            let in_memory = next.next_in_memory(at(secs));
            assert!(in_memory.is_some_and(|rv| rv > issued && rv.0 <= mark), "{secs}");
            assert_eq!(
                in_memory < Some(ResourceVersion(next.at(at(secs)))),
                is_beyond,
                "{secs}"
            );
            let mut next = Sequencer { ..sequencer };
            next.next(at(secs));
            assert_eq!(next.mark_needed().is_some(), is_near, "{secs}");
        }
        let restarted = Sequencer::after(mark, Space::Own).next(at(1_000));
        assert!(restarted > issued && restarted.0 > mark);
    }

    /// Holds also when the clock steps in either direction during the group.
    #[test]
    fn writes_in_memory_beside_a_group_lie_below_it() {
        for secs in [1_000, 1_050, 10] {
            let mut sequencer = Sequencer::after(0, Space::Own);
            let before = sequencer.next(at(1_000));
            sequencer.stored(sequencer.mark_ahead());
            sequencer.begin_group(at(1_000));
            let group = [sequencer.next_of_group(at(1_000)), sequencer.next_of_group(at(1_000))];
            let beside = [(); 2].map(|()| sequencer.next_in_memory(at(secs)).expect("there are free numbers"));
            let all = [before, beside[0], beside[1], group[0], group[1]];
            sequencer.end_group();
            let after = sequencer.next_in_memory(at(10)).expect("the mark is ahead");
            assert!(
                all.is_sorted_by(|a, b| a < b) && after > group[1],
                "{secs}: {all:?}, {after}"
            );
        }
    }

    #[test]
    fn numbers_beside_a_group_end_below_it() {
        let mut sequencer = Sequencer::after(0, Space::Own);
        sequencer.next(at(1_000));
        sequencer.stored(sequencer.mark_ahead());
        sequencer.begin_group(at(1_000));
        let of_group = sequencer.next_of_group(at(1_000));
        let mut beside = Vec::new();
        while let Some(rv) = sequencer.next_in_memory(at(1_000)) {
            beside.push(rv);
        }
        assert_eq!(beside.len() as u64, RESERVE_MAX);
        assert!(beside.last().is_some_and(|last| *last < of_group));
    }

    #[test]
    fn numbers_below_the_mark_last_for_hours_without_a_disk() {
        let mut sequencer = Sequencer::after(0, Space::Own);
        sequencer.next(at(1_000));
        sequencer.stored(sequencer.mark_ahead());
        // A write is refused every second.
        for secs in 1_000..10_000 {
            sequencer.begin_group(at(secs));
            sequencer.next_of_group(at(secs));
            sequencer.drop_group();
            assert!(
                (0..1_000).all(|_| sequencer.next_in_memory(at(secs)).is_some()),
                "{secs}"
            );
        }
        let left = sequencer.mark - sequencer.last;
        assert!((0..left).all(|_| sequencer.next_in_memory(at(10_000)).is_some()));
        assert_eq!(sequencer.next_in_memory(at(10_000)), None);
    }

    /// Also if the clock is behind.
    #[test]
    fn numbers_beside_a_group_last_for_minutes() {
        for (groups_per_sec, begun_at, least) in [
            (1, 1_000, 900_000),
            (10, 1_000, 90_000),
            (100, 1_000, 9_000),
            (1, 5_000, 450_000),
            (10, 5_000, 45_000),
            (100, 5_000, 4_500),
        ] {
            let mut sequencer = Sequencer::after(0, Space::Own);
            sequencer.next(at(begun_at));
            for round in 0..100 * groups_per_sec {
                let now = UnixTime {
                    secs: 1_000 + i64::from(round / groups_per_sec),
                    nanos: round % groups_per_sec * (1_000_000_000 / groups_per_sec),
                };
                sequencer.begin_group(now);
                let left = sequencer.group.map_or(0, |group| group.first - sequencer.last);
                assert!(left > least, "{left} numbers with {groups_per_sec} groups per second");
                sequencer.next_of_group(now);
                sequencer.end_group();
            }
        }
    }

    /// Events expire by these numbers.
    #[test]
    fn groups_do_not_run_away_from_the_clock() {
        for (micros_between, begun_at) in [(10, 1_000), (1_000, 1_000), (5_000, 1_000), (10, 5_000), (5_000, 5_000)] {
            let mut sequencer = Sequencer::after(0, Space::Own);
            let most = sequencer.next(at(begun_at)).0.max(sequencer.at(at(1_000)) + LEAD_MAX);
            let most_ahead = most - sequencer.at(at(1_000)) + RESERVE_MAX + 2;
            for round in 0..100_000_u32 {
                let micros = round * micros_between;
                let now = UnixTime {
                    secs: 1_000 + i64::from(micros / 1_000_000),
                    nanos: micros % 1_000_000 * 1_000,
                };
                sequencer.begin_group(now);
                let rv = sequencer.next_of_group(now);
                sequencer.end_group();
                let ahead = rv.0.saturating_sub(sequencer.at(now));
                assert!(
                    ahead <= most_ahead,
                    "{ahead} µs ahead, groups every {micros_between} µs"
                );
            }
        }
    }
}
