//! Which history an etcd tells, and how its revisions become RVs. Pure.
//!
//! An etcd that is put back to an older state issues revisions again that stood for something else. Whoever knows of a
//! later one begins a new timeline then: another store id, and RVs that lie above all that were ever shown. The record
//! is in etcd, so every coordinator adds the same.

use yurt_apimachinery::ResourceVersion;

/// Numbers left out between two timelines: revisions of which the mark did not know.
const MARGIN: u64 = 1 << 20;

/// The record below the store's id key: `<id>`, or `<id> <offset> <since>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timeline {
    /// Random.
    pub(super) id: String,
    /// Added to every revision.
    pub(super) offset: u64,
    /// Revisions up to this one are of the timelines before: no reader can go on from them.
    pub(super) since: u64,
}

// === impl Timeline ===

impl Timeline {
    /// The first one of a store.
    pub(super) fn new(id: String) -> Self {
        Self {
            id,
            offset: 0,
            since: 0,
        }
    }

    /// `None` for text that no version of this program wrote.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let id = parts.next().filter(|id| !id.is_empty())?.to_owned();
        let Some(offset) = parts.next() else {
            return Some(Self::new(id));
        };
        let number = |text: &str| {
            text.parse()
                .ok()
                .filter(|number| *number < ResourceVersion::OWN_BIT / 2)
        };
        let (offset, since) = (number(offset)?, number(parts.next()?)?);
        parts.next().is_none().then_some(Self { id, offset, since })
    }

    pub(super) fn to_text(&self) -> String {
        match self.offset {
            0 => self.id.clone(),
            offset => format!("{} {offset} {}", self.id, self.since),
        }
    }

    /// The number that stands for `revision`, before it is tagged.
    pub(super) fn number(&self, revision: i64) -> u64 {
        self.offset.saturating_add(u64::try_from(revision).unwrap_or(0))
    }

    /// The revision that `number` stands for; `None` when none can.
    pub(super) fn revision(&self, number: u64) -> Option<i64> {
        i64::try_from(number.checked_sub(self.offset)?).ok()
    }

    /// Numbers up to this one are of the timelines before; zero for the first one.
    pub(super) fn floor(&self) -> u64 {
        if self.offset == 0 {
            0
        } else {
            self.offset.saturating_add(self.since)
        }
    }

    /// The timeline to go on with at `revision`, when numbers up to `mark` have been shown; `None` while this one is above
    /// them.
    pub(super) fn above(&self, mark: u64, revision: i64, id: String) -> Option<Self> {
        let missing = mark.checked_sub(self.number(revision)).filter(|missing| *missing > 0)?;
        Some(Self {
            id,
            offset: self.offset.saturating_add(missing).saturating_add(MARGIN),
            since: u64::try_from(revision).unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_above_all_that_were_shown() {
        let first = Timeline::new("a".into());
        assert_eq!((first.number(7), first.revision(7), first.floor()), (7, Some(7), 0));
        assert_eq!(first.above(7, 7, "b".into()), None);
        let second = first.above(1_000, 900, "b".into()).expect("it went back");
        assert!(second.number(900) > 1_000 && second.floor() == second.number(900));
        assert_eq!(second.revision(second.number(901)), Some(901));
        assert_eq!(
            second.revision(1_000),
            None,
            "a number of before is that of no revision"
        );
        // Once more, from further back.
        let third = second
            .above(second.number(950), 10, "c".into())
            .expect("it went back again");
        assert!(third.number(10) > second.number(950));
    }

    #[test]
    fn record_comes_back_as_it_was_written() {
        let first = Timeline::new("a".into());
        let second = first.above(1_000, 900, "b".into()).expect("it went back");
        for timeline in [first, second] {
            assert_eq!(Timeline::parse(&timeline.to_text()), Some(timeline));
        }
        for text in [
            "",
            " 1 2",
            "a 1",
            "a x 2",
            "a 1 2 3",
            "a 1 -2",
            "a 9223372036854775807 1",
        ] {
            assert_eq!(Timeline::parse(text), None, "{text:?}");
        }
    }
}
