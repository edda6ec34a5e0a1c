//! Decides whether the cloud still has the history of the replicas.
//!
//! Pure. A cloud restored from a backup issues resourceVersions again that had another meaning. Reads without
//! resourceVersion show it, because a server answers them with everything ever acknowledged. A known RV is ahead of the
//! answer, an object is older than before, or a deleted one exists. Reads of the past show it as well: at our `C` an
//! object differs from the replica.

use std::collections::{BTreeMap, BTreeSet};

use yurt_apimachinery::{ObjectKey, ResourceVersion};
use yurt_collection::generation;

/// Returns the generation after `last`. After the last step the numbers begin again: a hub only compares generations
/// for equality.
#[must_use]
pub fn next_generation(last: u64, random: u64) -> u64 {
    let next = generation::next(last, random).or_else(|| generation::next(0, random));
    next.unwrap_or_default()
}

/// Number of objects to read again, those with the highest RVs, and of the last deletions.
pub const NEWEST: usize = 3;

/// One of our objects: collection and key.
pub type ObjectRef = (String, ObjectKey);

/// An object as the replica has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldVersion {
    /// Its RV.
    pub version: ResourceVersion,
    /// RV at which it is known to have been in this state: its own or a later one, up to `C`.
    pub at: ResourceVersion,
}

/// Known state of the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownHistory {
    /// The highest `C`; zero without any data.
    pub position: ResourceVersion,
    /// RV of this node's lease as last acknowledged by the cloud. Its renewTime is no evidence: a coordinator in the
    /// role of the cloud keeps renewals in memory, and may have lost the last of them.
    pub lease: Option<ResourceVersion>,
    /// The newest objects of the replicas.
    pub newest: BTreeMap<ObjectRef, HeldVersion>,
    /// Uids of the last deleted objects that were not created again.
    pub deleted: BTreeMap<ObjectRef, String>,
}

/// Answers of one server. What was not requested, or is missing there, is no evidence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// RV of a list in the same numbers as [`KnownHistory::position`].
    pub head: ResourceVersion,
    /// RV of this node's lease.
    pub lease: Option<ResourceVersion>,
    /// Current RVs of the objects of [`KnownHistory::newest`] that exist.
    pub newest: BTreeMap<ObjectRef, ResourceVersion>,
    /// RVs at [`HeldVersion::at`] of the other objects, and of those that changed; `None` if there was no object.
    /// Objects whose past the server has compacted are absent.
    pub then: BTreeMap<ObjectRef, Option<ResourceVersion>>,
    /// Objects of [`KnownHistory::deleted`] that exist under the same uid.
    pub back: BTreeSet<ObjectRef>,
}

/// Conclusion from the answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryVerdict {
    /// Nothing contradicts the known history.
    Same,
    /// The server is behind; one that is not may have the known history.
    Lagging,
    /// The known history is gone; the text names the state that went back.
    NewTimeline(String),
}

/// Conclusions about one server from two kinds of evidence.
///
/// This hub reads selections from the cloud alone. Pool data may have come from a leader that lies, so it is no
/// evidence of the selections' history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdicts {
    /// From the selections.
    pub selections: HistoryVerdict,
    /// From the pool data.
    pub pool: HistoryVerdict,
}

/// Replicas whose history is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// None.
    Nothing,
    /// Those of pool data.
    PoolData,
    /// Those of pool data and the selections.
    All,
}

// === impl KnownHistory ===

impl KnownHistory {
    /// True if there is nothing that a cloud could contradict.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.position.is_zero()
    }

    /// Judges the answers of a server. `others` is true if further servers were not queried yet.
    ///
    /// A server below our `C` may only lag, as long as another server may be ahead of it. A server that has passed our
    /// `C` and has an older state of an object has another history. Other servers cannot refute that.
    #[must_use]
    pub fn judge(&self, answers: &Answers, others: bool) -> HistoryVerdict {
        if self.is_nothing() {
            return HistoryVerdict::Same;
        }
        if answers.head < self.position {
            let (head, position) = (answers.head, self.position);
            return match others {
                true => HistoryVerdict::Lagging,
                false => {
                    HistoryVerdict::NewTimeline(format!("the cloud is at {head}, below the known position {position}"))
                }
            };
        }
        if let (Some(known), Some(now)) = (self.lease, answers.lease)
            && now < known
        {
            return HistoryVerdict::NewTimeline(format!("the node lease went back from {known} to {now}"));
        }
        let other = self
            .newest
            .iter()
            .find_map(|(place, held)| answers.contradicts(place, *held));
        let back = answers.back.first();
        let back = back.map(|(name, key)| format!("{name} {key} exists, but was deleted"));
        other.or(back).map_or(HistoryVerdict::Same, HistoryVerdict::NewTimeline)
    }
}

// === impl HistoryVerdict ===

impl HistoryVerdict {
    /// The state that went back, if the history is gone.
    #[must_use]
    pub fn went_back(&self) -> Option<&str> {
        match self {
            Self::NewTimeline(why) => Some(why),
            Self::Same | Self::Lagging => None,
        }
    }
}

// === impl Verdicts ===

impl Verdicts {
    /// True if the server is behind any of what is known.
    #[must_use]
    pub fn is_lagging(&self) -> bool {
        [&self.selections, &self.pool].contains(&&HistoryVerdict::Lagging)
    }

    /// Returns what is gone. Pool data counts as evidence for the selections if `trusts_pool`.
    #[must_use]
    pub fn lost(&self, trusts_pool: bool) -> Lost {
        match (self.selections.went_back(), self.pool.went_back()) {
            (None, None) => Lost::Nothing,
            (None, Some(_)) if !trusts_pool => Lost::PoolData,
            _ => Lost::All,
        }
    }
}

// === impl Lost ===

impl Lost {
    /// True if this is gone: a selection, or pool data.
    #[must_use]
    pub fn includes(self, is_selection: bool) -> bool {
        match self {
            Self::Nothing => false,
            Self::PoolData => !is_selection,
            Self::All => true,
        }
    }
}

// === impl Answers ===

impl Answers {
    /// True if the current object at `place` shows its state at our `C`; otherwise the past has to be read.
    #[must_use]
    pub fn settles(&self, place: &ObjectRef, held: HeldVersion) -> bool {
        self.newest.get(place).is_some_and(|now| *now <= held.version)
    }

    fn contradicts(&self, place: &ObjectRef, HeldVersion { version: held, at }: HeldVersion) -> Option<String> {
        let (name, key) = place;
        if let Some(now) = self.newest.get(place).filter(|now| **now < held) {
            return Some(format!("{name} {key} went back from {held} to {now}"));
        }
        match self.then.get(place)? {
            Some(then) => (*then != held).then(|| format!("{name} {key} was {then} at {at}, the replica has {held}")),
            None => Some(format!("{name} {key} did not exist at {at}, the replica has {held}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rv(value: u64) -> ResourceVersion {
        ResourceVersion(value)
    }

    /// A cloud: RV by key, the lease, and the number of writes.
    #[derive(Clone, Debug, Default)]
    struct Cloud {
        head: u64,
        objects: BTreeMap<u8, u64>,
        /// Key and uid of each deletion.
        deleted: Vec<(u8, String)>,
        uids: BTreeMap<u8, String>,
        lease: Option<ResourceVersion>,
        /// The objects after each write; a backup has none of the earlier ones.
        past: BTreeMap<u64, BTreeMap<u8, u64>>,
    }

    #[derive(Clone, Copy, Debug)]
    enum Write {
        Put(u8),
        Delete(u8),
        Renew,
        Other,
    }

    fn writes(most: usize) -> impl Strategy<Value = Vec<Write>> {
        let one = prop_oneof![
            (0..6_u8).prop_map(Write::Put),
            (0..6_u8).prop_map(Write::Delete),
            Just(Write::Renew),
            Just(Write::Other),
        ];
        prop::collection::vec(one, 0..most)
    }

    fn place(key: u8) -> ObjectRef {
        ("services".to_owned(), ObjectKey::parse(&format!("x/{key}")))
    }

    impl Cloud {
        /// `history` distinguishes the uids of one history from those of another.
        fn write(&mut self, writes: &[Write], history: &str) {
            for write in writes {
                self.head += 1;
                let head = self.head;
                match *write {
                    Write::Put(key) => {
                        self.objects.insert(key, head);
                        self.uids.entry(key).or_insert_with(|| format!("{history} {head}"));
                    }
                    Write::Delete(key) => {
                        if self.objects.remove(&key).is_some() {
                            self.deleted.extend(self.uids.remove(&key).map(|uid| (key, uid)));
                        }
                    }
                    Write::Renew => self.lease = Some(rv(head)),
                    Write::Other => {}
                }
                self.past.insert(head, self.objects.clone());
            }
        }

        fn restored(&self) -> Self {
            Self {
                past: BTreeMap::new(),
                ..self.clone()
            }
        }

        fn known(&self) -> KnownHistory {
            let mut newest: Vec<_> = self.objects.iter().collect();
            newest.sort_by_key(|(_, version)| std::cmp::Reverse(**version));
            let held = |version: u64| HeldVersion {
                version: rv(version),
                at: rv(self.head),
            };
            let newest = newest.into_iter().take(NEWEST);
            let gone = self
                .deleted
                .iter()
                .rev()
                .filter(|(key, _)| !self.objects.contains_key(key));
            KnownHistory {
                position: rv(self.head),
                lease: self.lease,
                newest: newest.map(|(key, version)| (place(*key), held(*version))).collect(),
                deleted: gone.take(NEWEST).map(|(key, uid)| (place(*key), uid.clone())).collect(),
            }
        }

        fn answers(&self, known: &KnownHistory) -> Answers {
            let key_of = |place: &ObjectRef| -> u8 { place.1.as_str().strip_prefix("x/").unwrap().parse().unwrap() };
            let found = |place: &ObjectRef| Some((place.clone(), rv(*self.objects.get(&key_of(place))?)));
            let is_back = |(place, uid): &(&ObjectRef, &String)| self.uids.get(&key_of(place)) == Some(*uid);
            let mut answers = Answers {
                head: rv(self.head),
                lease: self.lease,
                newest: known.newest.keys().filter_map(found).collect(),
                back: known
                    .deleted
                    .iter()
                    .filter(is_back)
                    .map(|(place, _)| place.clone())
                    .collect(),
                ..Answers::default()
            };
            for (place, held) in &known.newest {
                if !answers.settles(place, *held)
                    && let Some(then) = self.past.get(&held.at.0)
                {
                    let then = then.get(&key_of(place)).copied().map(rv);
                    answers.then.insert(place.clone(), then);
                }
            }
            answers
        }
    }

    proptest! {
        /// A continuing history is never taken for another one, whatever changes.
        #[test]
        fn history_that_goes_on_is_the_same(before in writes(30), after in writes(30), others: bool) {
            let mut cloud = Cloud::default();
            cloud.write(&before, "first");
            let known = cloud.known();
            cloud.write(&after, "first");
            prop_assert_eq!(known.judge(&cloud.answers(&known), others), HistoryVerdict::Same);
        }

        /// A restored cloud is detected if it is behind the known position, or if any checked object is as in the
        /// backup. It is also detected if its state at our `C`, when not compacted, differs from ours.
        #[test]
        fn restored_cloud_is_noticed(kept in writes(20), lost in writes(20), after in writes(60)) {
            let mut cloud = Cloud::default();
            cloud.write(&kept, "first");
            let mut restored = cloud.restored();
            cloud.write(&lost, "first");
            let known = cloud.known();
            restored.write(&after, "second");
            let at = known.position.0;
            let differs = |place: &ObjectRef, held: &HeldVersion| {
                let key: u8 = place.1.as_str()[2..].parse().unwrap();
                restored.past.get(&at).is_some_and(|past| past.get(&key).copied().map(rv) != Some(held.version))
                    || restored.objects.get(&key).is_some_and(|now| rv(*now) < held.version)
            };
            let is_other = restored.head < cloud.head
                || known.newest.iter().any(|(place, held)| differs(place, held))
                || restored.lease.is_some() && restored.lease < known.lease
                || known.deleted.values().any(|uid| restored.uids.values().any(|now| now == uid));
            let verdict = known.judge(&restored.answers(&known), false);
            prop_assert_eq!(matches!(verdict, HistoryVerdict::NewTimeline(_)), is_other, "{:?}", verdict);
        }
    }

    fn known() -> KnownHistory {
        let place = |name: &str| ("services".to_owned(), ObjectKey::parse(name));
        let held = |version| HeldVersion {
            version: rv(version),
            at: rv(100),
        };
        KnownHistory {
            position: rv(100),
            lease: Some(rv(90)),
            newest: [(place("x/a"), held(95)), (place("x/b"), held(80))].into(),
            deleted: [(place("x/c"), "1".to_owned())].into(),
        }
    }

    fn answers() -> Answers {
        let known = known();
        Answers {
            head: rv(100),
            lease: known.lease,
            newest: known
                .newest
                .into_iter()
                .map(|(place, held)| (place, held.version))
                .collect(),
            ..Answers::default()
        }
    }

    #[test]
    fn server_behind_is_no_proof_while_another_one_may_be_ahead() {
        let behind = Answers {
            head: rv(99),
            ..answers()
        };
        assert_eq!(known().judge(&behind, true), HistoryVerdict::Lagging);
        assert!(matches!(known().judge(&behind, false), HistoryVerdict::NewTimeline(_)));
        assert_eq!(known().judge(&answers(), false), HistoryVerdict::Same);
    }

    /// The restored cloud has passed the known position: only its objects show it.
    #[test]
    fn one_older_state_is_a_proof_wherever_the_head_is() {
        let ahead = Answers {
            head: rv(10_000),
            ..answers()
        };
        assert_eq!(known().judge(&ahead, true), HistoryVerdict::Same);
        let mut lease = ahead.clone();
        lease.lease = Some(rv(89));
        let mut object = ahead.clone();
        object.newest.values_mut().for_each(|version| version.0 -= 1);
        let mut deleted = ahead.clone();
        deleted.back = known().deleted.into_keys().collect();
        for went_back in [lease, object, deleted] {
            let verdict = known().judge(&went_back, true);
            assert!(matches!(verdict, HistoryVerdict::NewTimeline(_)), "{verdict:?}");
        }
        let gone = Answers {
            lease: None,
            newest: BTreeMap::new(),
            ..ahead
        };
        assert_eq!(known().judge(&gone, false), HistoryVerdict::Same, "404 proves nothing");
    }

    /// All checked objects were written again: only the past shows that it was not ours.
    #[test]
    fn another_state_at_our_position_is_a_proof() {
        let (place, held) = known().newest.pop_first().unwrap();
        let written_again = |then: Option<Option<u64>>| {
            let mut answers = Answers {
                head: rv(10_000),
                ..answers()
            };
            answers.newest.values_mut().for_each(|version| version.0 += 1_000);
            assert!(!answers.settles(&place, held));
            answers.then.extend(then.map(|then| (place.clone(), then.map(rv))));
            known().judge(&answers, false)
        };
        assert_eq!(written_again(None), HistoryVerdict::Same, "not remembered");
        assert_eq!(written_again(Some(Some(95))), HistoryVerdict::Same);
        for other in [Some(94), Some(96), None] {
            assert!(
                matches!(written_again(Some(other)), HistoryVerdict::NewTimeline(_)),
                "{other:?}"
            );
        }
    }

    #[test]
    fn pool_data_is_evidence_for_selections_only_where_it_is_trusted() {
        let verdict = |is_gone| match is_gone {
            true => HistoryVerdict::NewTimeline("it went back".to_owned()),
            false => HistoryVerdict::Same,
        };
        for (selections, pool, trusts_pool, expected) in [
            (false, false, false, Lost::Nothing),
            (false, true, false, Lost::PoolData),
            (false, true, true, Lost::All),
            (true, false, false, Lost::All),
            (true, true, false, Lost::All),
        ] {
            let verdicts = Verdicts {
                selections: verdict(selections),
                pool: verdict(pool),
            };
            assert_eq!(verdicts.lost(trusts_pool), expected, "{verdicts:?}");
        }
        let parts = [Lost::Nothing, Lost::PoolData, Lost::All].map(|lost| (lost.includes(false), lost.includes(true)));
        assert_eq!(parts, [(false, false), (true, false), (true, true)]);
    }

    #[test]
    fn who_holds_nothing_believes_everything() {
        assert_eq!(
            KnownHistory::default().judge(&Answers::default(), false),
            HistoryVerdict::Same
        );
    }
}
