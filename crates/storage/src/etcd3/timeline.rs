//! Timelines of an etcd: the identity of its history, and the mapping of its revisions to RVs. Pure.
//!
//! An etcd that is restored to an older state issues revisions again that had another meaning. A coordinator that
//! detects this begins a new timeline: another store id, and RVs above all that were ever shown. The record is in etcd,
//! so every coordinator adds the same offset.
//!
//! Each timeline begins at the time of day in microseconds, like RVs of the embedded store. That is above the RVs shown
//! by any coordinator before, even by one that is absent now.

use yurt_apimachinery::ResourceVersion;

/// Numbers left out between two timelines, for revisions that the mark did not cover.
pub(super) const MARGIN: u64 = 1 << 20;

/// The record below the store's id key: `<id> <offset> <since> <cluster>`. Without a cluster, or with an id only, in
/// older stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timeline {
    /// Random.
    pub(super) id: String,
    /// Added to every revision.
    pub(super) offset: u64,
    /// Revisions up to this one belong to earlier timelines: no reader can resume from them.
    pub(super) since: u64,
    /// Id of the etcd cluster; 0 if unknown. A backup is restored into another cluster.
    pub(super) cluster: u64,
}

/// State of the store that a coordinator has seen before this start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownStore {
    /// Highest number that was shown, without its tag; 0 for none.
    pub(super) number: u64,
    /// Id of the store.
    pub(super) id: String,
    /// Id of the etcd cluster.
    pub(super) cluster: u64,
}

// === impl Timeline ===

impl Timeline {
    /// The timeline that begins at `revision` of `cluster` with a number above `above`.
    pub(super) fn begin(id: String, cluster: u64, revision: i64, above: u64) -> Self {
        let since = u64::try_from(revision).unwrap_or(0);
        Self {
            id,
            offset: above.saturating_sub(since).saturating_add(1),
            since,
            cluster,
        }
    }

    /// `None` for text that no version of this program wrote.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split(' ').collect();
        let (id, offset, since, cluster) = match parts[..] {
            [id] => (id, "0", "0", "0"),
            [id, offset, since] => (id, offset, since, "0"),
            [id, offset, since, cluster] => (id, offset, since, cluster),
            _ => return None,
        };
        let number = |text: &str| {
            text.parse()
                .ok()
                .filter(|number| *number < ResourceVersion::OWN_BIT / 2)
        };
        let (offset, since) = (number(offset)?, number(since)?);
        let cluster = u64::from_str_radix(cluster, 16).ok()?;
        let id = Some(id.to_owned()).filter(|id| !id.is_empty())?;
        Some(Self {
            id,
            offset,
            since,
            cluster,
        })
    }

    pub(super) fn to_text(&self) -> String {
        let Self {
            id,
            offset,
            since,
            cluster,
        } = self;
        format!("{id} {offset} {since} {cluster:x}")
    }

    /// The number of `revision`, before it is tagged.
    pub(super) fn number(&self, revision: i64) -> u64 {
        self.offset.saturating_add(u64::try_from(revision).unwrap_or(0))
    }

    /// The revision of `number`; `None` if it has none.
    pub(super) fn revision(&self, number: u64) -> Option<i64> {
        i64::try_from(number.checked_sub(self.offset)?).ok()
    }

    /// Numbers up to this one belong to earlier timelines; zero for the first one.
    pub(super) fn floor(&self) -> u64 {
        if self.offset == 0 {
            0
        } else {
            self.offset.saturating_add(self.since)
        }
    }

    /// Reason why readers with the position `seen` cannot resume in this timeline, now that `cluster` is at `revision`.
    /// `None` if they can.
    pub(super) fn is_over(&self, cluster: u64, revision: i64, seen: &KnownStore) -> Option<&'static str> {
        let is_other = |known: u64| known != 0 && known != cluster;
        let is_mine = seen.id == self.id;
        if is_other(self.cluster) || is_mine && is_other(seen.cluster) {
            return Some("etcd is another cluster than before");
        }
        if seen.number > self.number(revision) {
            return Some("etcd has gone back");
        }
        (!is_mine && seen.number > 0 && seen.number >= self.floor()).then_some("etcd has lost its previous store")
    }

    /// The number that a later timeline must exceed, if a coordinator has `seen` this position.
    pub(super) fn highest(&self, revision: i64, seen: &KnownStore) -> u64 {
        self.number(revision).max(seen.number).saturating_add(MARGIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: u64 = 0xc1;
    const OTHER: u64 = 0xc2;

    fn old(id: &str, cluster: u64) -> Timeline {
        Timeline {
            id: id.into(),
            offset: 0,
            since: 0,
            cluster,
        }
    }

    fn seen(number: u64, id: &str, cluster: u64) -> KnownStore {
        KnownStore {
            number,
            id: id.into(),
            cluster,
        }
    }

    #[test]
    fn numbers_go_on_above_all_that_were_shown() {
        let first = old("a", CLUSTER);
        assert_eq!((first.number(7), first.revision(7), first.floor()), (7, Some(7), 0));
        let second = Timeline::begin("b".into(), CLUSTER, 900, first.highest(900, &seen(1_000, "a", CLUSTER)));
        assert!(second.number(900) > 1_000 + MARGIN && second.floor() == second.number(900));
        assert_eq!(second.revision(second.number(901)), Some(901));
        assert_eq!(
            second.revision(1_000),
            None,
            "a number of before is that of no revision"
        );
        // A further restore, from further back, by a coordinator without a record.
        let third = Timeline::begin("c".into(), OTHER, 10, second.highest(10, &KnownStore::default()));
        assert!(third.number(10) > second.number(10));
    }

    /// Covers a restored etcd, with or without a coordinator that has a record.
    #[test]
    fn timeline_is_over_when_what_was_seen_cannot_be_in_it() {
        let (store, nothing, much) = (old("a", CLUSTER), KnownStore::default(), seen(1_000, "a", CLUSTER));
        assert_eq!(store.is_over(CLUSTER, 900, &nothing), None, "nothing is seen");
        assert_eq!(store.is_over(CLUSTER, 1_000, &much), None);
        for (cluster, revision, seen) in [(CLUSTER, 999, &much), (OTHER, 900, &nothing), (OTHER, 5_000, &much)] {
            assert!(
                store.is_over(cluster, revision, seen).is_some(),
                "{cluster} {revision} {seen:?}"
            );
        }
        // A record from before the cluster was part of it.
        let old_record = old("a", 0);
        assert_eq!(old_record.is_over(OTHER, 2_000, &nothing), None);
        assert!(old_record.is_over(OTHER, 2_000, &much).is_some());
        // Another coordinator began a new one, above all numbers or not.
        let above = Timeline::begin("b".into(), OTHER, 900, 1_000_000);
        assert_eq!(above.is_over(OTHER, 901, &much), None);
        assert!(old("b", OTHER).is_over(OTHER, 5_000, &much).is_some());
    }

    #[test]
    fn record_comes_back_as_it_was_written() {
        let second = Timeline::begin("b".into(), 0x51f4_0000_0000_00c1, 900, 1_000);
        for timeline in [old("a", CLUSTER), second] {
            assert_eq!(Timeline::parse(&timeline.to_text()), Some(timeline));
        }
        assert_eq!(Timeline::parse("a"), Some(old("a", 0)));
        assert_eq!(Timeline::parse("a 0 0"), Some(old("a", 0)));
        for text in [
            "",
            " 1 2",
            "a 1",
            "a x 2",
            "a 1 2 3 4",
            "a 1 2 x",
            "a 1 -2",
            "a 9223372036854775807 1",
        ] {
            assert_eq!(Timeline::parse(text), None, "{text:?}");
        }
    }
}
