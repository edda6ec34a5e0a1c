//! Check of the events that clients received against the cloud's history.
//!
//! A [`History`] is recorded for each client behind a hub and for one client at the cloud itself, the witness. After
//! the run [`check`] replays each client's history against that of the witness. It checks invariants I1, I2 and I7 of
//! the design as an informer experiences them:
//!
//! * the position never goes back;
//! * an object at RV v has the cloud's state at v (forged or stale content has another mark);
//! * a DELETED, or an object missing from a list, was deleted in the cloud after the client's state;
//! * at a bookmark the client holds exactly the cloud's state there: no last state and no deletion was lost;
//! * no client has to list twice.

use std::collections::{BTreeMap, BTreeSet};

/// Most violations of one client that are listed; the rest is counted.
const TOLD_MAX: usize = 5;

/// A list or event that a client received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryItem {
    /// A whole list at this RV: keys and RVs.
    List(u64, BTreeMap<String, u64>),
    /// A watch from this RV began.
    Watch(u64),
    /// ADDED or MODIFIED.
    Put {
        /// Namespace and name.
        key: String,
        /// resourceVersion.
        version: u64,
        /// Mark that the writer gave this state.
        mark: String,
    },
    /// DELETED.
    Gone {
        /// Namespace and name.
        key: String,
        /// resourceVersion of the event.
        version: u64,
    },
    /// BOOKMARK at this RV: the client holds everything up to there.
    Bookmark(u64),
    /// ERROR with this code.
    Error(u64),
}

/// Everything one client received, in order.
pub type History = Vec<HistoryItem>;

/// States of the cloud, by key: RV and mark of each state, `None` for a deletion.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    states: BTreeMap<String, BTreeMap<u64, Option<String>>>,
    /// Objects of the first list existed before the witness started.
    pub(crate) from: u64,
    /// Changes that the witness missed, because it had to list again: RVs from the first to the second.
    gaps: Vec<(u64, u64)>,
}

/// The mark of a state that the witness has from a list after its first.
const UNKNOWN: &str = "?";

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckResult {
    /// Statements that were checked.
    pub checked: u64,
    /// Whole states compared at bookmarks.
    pub bookmarks: u64,
    /// Violations; the first few of them.
    pub violations: Vec<String>,
}

/// Replays one client's history.
pub(crate) struct Replay<'a> {
    truth: &'a Truth,
    pub(crate) position: u64,
    pub(crate) held: BTreeMap<String, u64>,
    lists: u32,
    verdict: CheckResult,
    untold: usize,
    /// True if held objects may be of another history, until a list or a bookmark gives the whole state.
    is_between: bool,
    /// True if all objects may be delivered again until the next bookmark, by the same rules except for the position.
    is_told_all: bool,
    /// Objects delivered since then.
    told_again: BTreeSet<String>,
}

// === impl Truth ===

impl Truth {
    /// The history that the witness recorded. It starts before the traffic begins: no object in its first list has a
    /// mark.
    #[must_use]
    pub fn of(witness: &[HistoryItem]) -> Self {
        let mut truth = Self::default();
        let mut position = None;
        for seen in witness {
            match seen {
                HistoryItem::List(version, objects) => match position {
                    None => {
                        truth.from = *version;
                        for (key, version) in objects {
                            truth.add(key, *version, Some(String::new()));
                        }
                    }
                    Some(position) => truth.jump(position, *version, objects),
                },
                HistoryItem::Put { key, version, mark } => truth.add(key, *version, Some(mark.clone())),
                HistoryItem::Gone { key, version } => truth.add(key, *version, None),
                HistoryItem::Watch(_) | HistoryItem::Bookmark(_) | HistoryItem::Error(_) => {}
            }
            if let HistoryItem::List(version, _)
            | HistoryItem::Bookmark(version)
            | HistoryItem::Put { version, .. }
            | HistoryItem::Gone { version, .. } = seen
            {
                position = Some(*version);
            }
        }
        truth
    }

    /// Records a list at `to` by the witness, whose position was `from`.
    fn jump(&mut self, from: u64, to: u64, objects: &BTreeMap<String, u64>) {
        if to > from {
            self.gaps.push((from + 1, to));
        }
        let gone: Vec<String> = self
            .alive_at(to)
            .filter(|key| !objects.contains_key(*key))
            .cloned()
            .collect();
        for key in gone {
            self.add(&key, to, None);
        }
        for (key, version) in objects.iter().filter(|(_, version)| **version > from) {
            self.add(key, *version, Some(UNKNOWN.to_owned()));
        }
    }

    /// Number of ranges that the witness missed.
    #[must_use]
    pub fn gaps(&self) -> usize {
        self.gaps.len()
    }

    pub(crate) fn is_in_gap(&self, version: u64) -> bool {
        self.gaps
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&version))
    }

    /// The history of a cloud that was restored from a backup of this one, as `witness` recorded it from then on.
    ///
    /// # Errors
    /// An object that this cloud never had.
    pub fn restored(&self, witness: &[HistoryItem]) -> Result<Self, String> {
        let mut restored = Self::of(witness);
        for objects in witness.iter().filter_map(|seen| match seen {
            HistoryItem::List(_, objects) => Some(objects),
            _ => None,
        }) {
            for (key, version) in objects {
                let mark = self.states.get(key).and_then(|states| states.get(version));
                let mark = mark.ok_or_else(|| format!("{key}@{version} is in the backup and was never there"))?;
                restored.add(key, *version, mark.clone());
            }
        }
        Ok(restored)
    }

    /// Records that `key` had this mark from `version` on; `None` for a deletion.
    pub fn add(&mut self, key: &str, version: u64, mark: Option<String>) {
        self.states.entry(key.to_owned()).or_default().insert(version, mark);
    }

    /// The mark of `key` at `version`; `None` when it did not exist.
    pub(crate) fn at(&self, key: &str, version: u64) -> Option<&str> {
        self.states.get(key)?.range(..=version).next_back()?.1.as_deref()
    }

    /// True if `key` changed at exactly this version.
    fn was_at(&self, key: &str, version: u64) -> bool {
        let states = self.states.get(key);
        states.is_some_and(|states| matches!(states.get(&version), Some(Some(_))))
    }

    /// True if it was deleted, or may have been: it changed in a range that the witness missed.
    pub(crate) fn was_deleted_after(&self, key: &str, version: u64) -> bool {
        let states = self.states.get(key);
        let is_end = |(at, mark): (&u64, &Option<String>)| mark.is_none() || self.is_in_gap(*at);
        states.is_some_and(|states| states.range(version + 1..).any(is_end))
    }

    /// True if the cloud may have had this state of `key` at `version`.
    pub(crate) fn may_have_had(&self, key: &str, version: u64, mark: &str) -> bool {
        let had = self.at(key, version);
        had == Some(mark) || self.is_in_gap(version) && (had == Some(UNKNOWN) || !self.was_at(key, version))
    }

    /// Everything that existed at `version`.
    pub(crate) fn alive_at(&self, version: u64) -> impl Iterator<Item = &String> {
        self.states.keys().filter(move |key| self.at(key, version).is_some())
    }
}

// === impl CheckResult ===

impl CheckResult {
    pub(crate) fn require(&mut self, holds: bool, violation: impl FnOnce() -> String) {
        self.checked += 1;
        if !holds && self.violations.len() < TOLD_MAX {
            self.violations.push(violation());
        }
    }

    /// Adds the results of another check.
    pub fn add(&mut self, other: Self) {
        self.checked += other.checked;
        self.bookmarks += other.bookmarks;
        self.violations.extend(other.violations);
    }
}

/// The last list or event of a history.
#[must_use]
pub fn last_received(history: &[HistoryItem]) -> Option<&HistoryItem> {
    history.iter().rfind(|seen| !matches!(seen, HistoryItem::Watch(_)))
}

/// Checks one client's history, with at most `lists_max` lists.
#[must_use]
pub fn check(history: &[HistoryItem], truth: &Truth, lists_max: u32) -> CheckResult {
    let mut replay = Replay::new(truth);
    for seen in history {
        replay.step(seen);
    }
    replay.end(lists_max)
}

// === impl Replay ===

impl<'a> Replay<'a> {
    /// A client without any state.
    pub(crate) fn new(truth: &'a Truth) -> Self {
        Self {
            truth,
            position: 0,
            held: BTreeMap::new(),
            lists: 0,
            verdict: CheckResult::default(),
            untold: 0,
            is_between: false,
            is_told_all: false,
            told_again: BTreeSet::new(),
        }
    }

    /// The same client, without results.
    pub(crate) fn afresh(self) -> Self {
        Self {
            position: self.position,
            held: self.held,
            ..Self::new(self.truth)
        }
    }

    /// Switches the client to another history.
    pub(crate) fn change_to(&mut self, truth: &'a Truth) {
        (self.truth, self.position, self.is_between) = (truth, 0, true);
        self.told_again.clear();
    }

    /// Allows all objects to be delivered once more, in any order, until the next bookmark.
    pub(crate) fn let_tell_all(&mut self) {
        self.is_told_all = true;
    }

    /// Returns the result.
    pub(crate) fn end(mut self, lists_max: u32) -> CheckResult {
        let lists = self.lists;
        self.require(lists <= lists_max, || format!("listed {lists} times"));
        if self.untold > 0 {
            self.verdict.violations.push(format!("and {} more", self.untold));
        }
        self.verdict
    }

    pub(crate) fn require(&mut self, holds: bool, violation: impl FnOnce() -> String) {
        self.verdict.checked += 1;
        match holds {
            true => {}
            false if self.verdict.violations.len() < TOLD_MAX => self.verdict.violations.push(violation()),
            false => self.untold += 1,
        }
    }

    fn move_to(&mut self, version: u64, by: &str) {
        if self.is_between || self.is_told_all {
            return;
        }
        let from = self.position;
        self.require(version >= from, || {
            format!("{by} moved the position from {from} to {version}")
        });
        self.position = version;
    }

    pub(crate) fn step(&mut self, seen: &HistoryItem) {
        match seen {
            HistoryItem::List(version, objects) => self.list(*version, objects),
            HistoryItem::Put { key, version, mark } => self.put(key, *version, mark),
            HistoryItem::Gone { key, version } => self.gone(key, *version),
            HistoryItem::Bookmark(version) => self.bookmark(*version),
            HistoryItem::Watch(_) => {}
            // The stream ends or the client lists again, which is counted there.
            HistoryItem::Error(code) => self.require(matches!(code, 410 | 500 | 503 | 504), || format!("ERROR {code}")),
        }
    }

    fn list(&mut self, version: u64, objects: &BTreeMap<String, u64>) {
        self.lists += 1;
        let was_between = std::mem::take(&mut self.is_between);
        self.move_to(version, "a list");
        for (key, version) in objects {
            let exists = self.truth.at(key, *version).is_some() || self.truth.is_in_gap(*version);
            self.require(exists, || format!("a list has {key}@{version}, which never existed"));
        }
        let missing: Vec<(String, u64)> = self
            .held
            .iter()
            .filter(|(key, _)| !was_between && !objects.contains_key(*key))
            .map(|(key, version)| (key.clone(), *version))
            .collect();
        for (key, version) in missing {
            let deleted = self.truth.was_deleted_after(&key, version);
            self.require(deleted, || {
                format!("a list lacks {key}, which is alive since {version}")
            });
        }
        self.held.clone_from(objects);
    }

    fn put(&mut self, key: &str, version: u64, mark: &str) {
        self.move_to(version, key);
        let truth = self.truth;
        self.require(truth.may_have_had(key, version, mark), || {
            let had = truth.at(key, version);
            format!("{key}@{version} was delivered with mark {mark:?}, the cloud had {had:?}")
        });
        self.held.insert(key.to_owned(), version);
        if self.is_between {
            self.told_again.insert(key.to_owned());
        }
    }

    fn gone(&mut self, key: &str, version: u64) {
        self.move_to(version, &format!("DELETED for {key}"));
        if let Some(held) = self.held.remove(key).filter(|_| !self.is_between) {
            let deleted = self.truth.was_deleted_after(key, held);
            self.require(deleted, || format!("DELETED for {key}, which is alive since {held}"));
        }
    }

    fn bookmark(&mut self, version: u64) {
        let was_between = std::mem::take(&mut self.is_between);
        self.is_told_all = false;
        self.move_to(version, "a bookmark");
        if was_between {
            let truth = self.truth;
            let is_lost = |(key, held): &(&String, &u64)| !self.told_again.contains(*key) && !truth.was_at(key, **held);
            let lost = self.held.iter().find(is_lost);
            let lost = lost.map(|(key, held)| format!("{key}@{held}"));
            self.require(lost.is_none(), || {
                format!("{} is held, which the cloud has no more", lost.unwrap_or_default())
            });
        }
        if version < self.truth.from || self.truth.is_in_gap(version) {
            return;
        }
        self.verdict.bookmarks += 1;
        let wrong = self.first_difference(version);
        self.require(wrong.is_none(), || {
            format!("at the bookmark {version}: {}", wrong.unwrap_or_default())
        });
    }

    fn first_difference(&self, version: u64) -> Option<String> {
        let lost = self.truth.alive_at(version).find(|key| !self.held.contains_key(*key));
        if let Some(key) = lost {
            return Some(format!("{key} is missing"));
        }
        self.held.iter().find_map(|(key, held)| {
            let (has, had) = (self.truth.at(key, *held), self.truth.at(key, version));
            (had.is_none() || has != had).then(|| format!("{key}@{held} is held with {has:?}, the cloud had {had:?}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::told::{gone, list, put};

    /// a: written at 5, 12, deleted at 14, created at 20; b: written at 6.
    fn truth() -> Truth {
        let witness = [
            list(10, &[("a", 5), ("b", 6)]),
            put("a", 12, "1"),
            gone("a", 14),
            put("a", 20, "2"),
        ];
        Truth::of(&witness)
    }

    fn violations(history: &[HistoryItem]) -> Vec<String> {
        check(history, &truth(), 1).violations
    }

    const START: fn() -> HistoryItem = || list(10, &[("a", 5), ("b", 6)]);

    #[test]
    fn histories_an_informer_may_see_pass() {
        let exact = [
            START(),
            put("a", 12, "1"),
            gone("a", 14),
            HistoryItem::Bookmark(15),
            put("a", 20, "2"),
        ];
        assert_eq!(violations(&exact), [""; 0]);
        let conflated = [START(), gone("a", 10), put("a", 20, "2"), HistoryItem::Bookmark(21)];
        assert_eq!(violations(&conflated), [""; 0]);
    }

    #[test]
    fn each_kind_of_lie_is_noticed() {
        let lies: [(&str, Vec<HistoryItem>); 11] = [
            ("back", vec![START(), put("a", 12, "1"), gone("none", 11)]),
            ("forged", vec![START(), put("a", 12, "9")]),
            ("never there", vec![START(), put("ghost", 12, "")]),
            (
                "never there, in a list",
                vec![list(10, &[("a", 5), ("b", 6), ("ghost", 7)])],
            ),
            ("renumbered", vec![START(), put("a", 13, "")]),
            ("risen", vec![START(), put("a", 16, "1")]),
            ("false deletion", vec![START(), gone("b", 12)]),
            (
                "lost deletion",
                vec![START(), put("a", 12, "1"), HistoryItem::Bookmark(15)],
            ),
            ("lost last state", vec![START(), HistoryItem::Bookmark(13)]),
            (
                "lost creation",
                vec![START(), put("a", 12, "1"), gone("a", 14), HistoryItem::Bookmark(21)],
            ),
            ("relist", vec![START(), START()]),
        ];
        for (name, lie) in lies {
            assert_eq!(violations(&lie).len(), 1, "{name}: {:?}", violations(&lie));
        }
    }

    /// The witness of `truth` missed the changes from 14 on, and found a, b and c at 30.
    #[test]
    fn what_the_witness_did_not_see_is_unknown_and_nothing_else_is() {
        let witness = [
            list(10, &[("a", 5), ("b", 6)]),
            put("a", 12, "1"),
            gone("a", 14),
            list(30, &[("a", 20), ("b", 6), ("c", 25)]),
            put("c", 31, "3"),
        ];
        let truth = Truth::of(&witness);
        assert_eq!(truth.gaps(), 1);
        let found = |later: &[HistoryItem]| {
            let told: Vec<HistoryItem> = witness[..3].iter().chain(later).cloned().collect();
            check(&told, &truth, 1).violations
        };
        let end = [
            put("c", 25, "2"),
            HistoryItem::Bookmark(30),
            put("c", 31, "3"),
            HistoryItem::Bookmark(31),
        ];
        let fine = [put("a", 16, "x"), gone("a", 18), put("a", 20, "2"), gone("c", 22)];
        assert_eq!(found(&[&fine[..], &end].concat()), [""; 0]);
        let lies: [(&str, Vec<HistoryItem>); 4] = [
            ("false deletion", vec![gone("b", 22), put("a", 20, "2")]),
            ("lost last state", vec![put("a", 16, "x")]),
            ("lost creation", vec![]),
            ("not there any more", vec![put("a", 20, "2"), put("d", 22, "x")]),
        ];
        for (name, lie) in lies {
            assert!(!found(&[&lie[..], &end].concat()).is_empty(), "{name}");
        }
    }

    #[test]
    fn a_list_that_lacks_a_living_object_is_noticed() {
        let wiped = [START(), list(12, &[])];
        let found = check(&wiped, &truth(), 9).violations;
        assert_eq!(
            found.len(),
            1,
            "b is alive; a was deleted later, so its absence is excusable: {found:?}"
        );
    }
}
