//! Check of the events that clients with filters received, against the cloud's history.
//!
//! A view has the cloud's RVs, except for revised objects: these have the position of the view at their revision. A
//! watch that resumes at or below the last revision receives everything. The rules:
//!
//! * Within one watch the position never goes back after its first bookmark.
//! * A watch that goes back before it, or sends what is below its own begin, sends everything. That is each object that
//!   the client holds, or its deletion.
//! * An object at RV v has the cloud's state at v.
//! * A DELETED, or an object missing from a list, was deleted in the cloud after the client's state, or may be hidden.
//! * At a bookmark the client holds the cloud's state there. Objects that may be hidden can be missing.
//! * No client has to list twice.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{CheckResult, HistoryItem, Truth};

/// Replays the history of one client with filters.
struct Replay<'a, F> {
    truth: &'a Truth,
    /// True for an object that the filters hide at times.
    may_hide: F,
    held: BTreeMap<String, u64>,
    /// Highest RV of the present watch.
    position: u64,
    /// True from the first bookmark of the present watch on.
    is_settled: bool,
    /// RV that the present watch began from.
    began: u64,
    /// Objects of the present watch until its first bookmark, and if it sends everything.
    told: BTreeSet<String>,
    tells_all: bool,
    lists: u32,
    verdict: CheckResult,
}

/// Checks the history of one client with filters, with at most `lists_max` lists. `may_hide` is true for the keys of
/// objects that its filters hide at times.
#[must_use]
pub fn check(history: &[HistoryItem], truth: &Truth, may_hide: impl Fn(&str) -> bool, lists_max: u32) -> CheckResult {
    let mut replay = Replay {
        truth,
        may_hide,
        held: BTreeMap::new(),
        position: 0,
        is_settled: false,
        began: 0,
        told: BTreeSet::new(),
        tells_all: false,
        lists: 0,
        verdict: CheckResult::default(),
    };
    for seen in history {
        replay.step(seen);
    }
    let lists = replay.lists;
    replay
        .verdict
        .require(lists <= lists_max, || format!("listed {lists} times"));
    replay.verdict
}

// === impl Replay ===

impl<F: Fn(&str) -> bool> Replay<'_, F> {
    fn step(&mut self, seen: &HistoryItem) {
        match seen {
            HistoryItem::List(version, objects) => self.list(*version, objects),
            HistoryItem::Watch(from) => {
                (self.began, self.position) = (*from, 0);
                (self.tells_all, self.is_settled) = (false, false);
                self.told.clear();
            }
            HistoryItem::Put { key, version, mark } => self.put(key, *version, mark),
            HistoryItem::Gone { key, version } => self.gone(key, *version),
            HistoryItem::Bookmark(version) => self.bookmark(*version),
            HistoryItem::Error(code) => {
                let is_known = matches!(code, 410 | 500 | 503 | 504);
                self.verdict.require(is_known, || format!("ERROR {code}"));
            }
        }
    }

    fn move_to(&mut self, version: u64, by: &str, may_go_back: bool) {
        let from = self.position;
        self.verdict.require(version >= from || may_go_back, || {
            format!("{by} moved the position of one watch from {from} to {version}")
        });
        self.position = version.max(from);
    }

    fn tell(&mut self, key: &str, version: u64) {
        self.tells_all |= !self.is_settled && version < self.began.max(self.position);
        self.move_to(version, key, !self.is_settled);
        self.told.insert(key.to_owned());
    }

    fn list(&mut self, version: u64, objects: &BTreeMap<String, u64>) {
        self.lists += 1;
        for (key, version) in objects {
            let exists = self.truth.at(key, *version).is_some() || self.truth.is_in_gap(*version);
            let unknown = || format!("a list has {key}@{version}, which never existed");
            self.verdict.require(exists, unknown);
        }
        let held = std::mem::replace(&mut self.held, objects.clone());
        for (key, held) in held.iter().filter(|(key, _)| !objects.contains_key(*key)) {
            self.require_gone(key, *held, "a list lacks");
        }
        self.position = version;
    }

    fn put(&mut self, key: &str, version: u64, mark: &str) {
        self.tell(key, version);
        let truth = self.truth;
        self.verdict.require(truth.may_have_had(key, version, mark), || {
            let had = truth.at(key, version);
            format!("{key}@{version} was delivered with mark {mark:?}, the cloud had {had:?}")
        });
        self.held.insert(key.to_owned(), version);
    }

    fn gone(&mut self, key: &str, version: u64) {
        self.tell(key, version);
        if let Some(held) = self.held.remove(key) {
            self.require_gone(key, held, "DELETED for");
        }
    }

    fn require_gone(&mut self, key: &str, held: u64, by: &str) {
        let is_gone = self.truth.was_deleted_after(key, held) || (self.may_hide)(key);
        let alive = || format!("{by} {key}, which is shown and alive since {held}");
        self.verdict.require(is_gone, alive);
    }

    fn bookmark(&mut self, version: u64) {
        self.move_to(version, "a bookmark", false);
        self.is_settled = true;
        if std::mem::take(&mut self.tells_all) {
            let untold = self.held.keys().find(|key| !self.told.contains(*key));
            let untold = untold.map(|key| format!("the watch from {} went back and did not send {key}", self.began));
            self.verdict.require(untold.is_none(), || untold.unwrap_or_default());
        }
        if version < self.truth.from || self.truth.is_in_gap(version) {
            return;
        }
        self.verdict.bookmarks += 1;
        let wrong = self.first_difference(version);
        self.verdict.require(wrong.is_none(), || {
            format!("at the bookmark {version}: {}", wrong.unwrap_or_default())
        });
    }

    fn first_difference(&self, version: u64) -> Option<String> {
        let is_lost = |key: &&String| !self.held.contains_key(*key) && !(self.may_hide)(key);
        if let Some(key) = self.truth.alive_at(version).find(is_lost) {
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

    /// a: written at 5, 12, deleted at 14, created at 20; b: written at 6; h, which may be hidden: written at 7.
    fn truth() -> Truth {
        let witness = [
            list(10, &[("a", 5), ("b", 6), ("h", 7)]),
            put("a", 12, "1"),
            gone("a", 14),
            put("a", 20, "2"),
        ];
        Truth::of(&witness)
    }

    fn violations(later: &[HistoryItem]) -> Vec<String> {
        let start = [list(10, &[("a", 5), ("b", 6), ("h", 7)]), HistoryItem::Watch(10)];
        let history: Vec<HistoryItem> = start.iter().chain(later).cloned().collect();
        check(&history, &truth(), |key| key == "h", 9).violations
    }

    #[test]
    fn revised_objects_have_numbers_of_the_view() {
        let revised = [
            put("a", 12, "1"),
            // b is shown otherwise, and h is hidden and shown again.
            put("b", 13, ""),
            gone("h", 13),
            gone("a", 14),
            put("h", 16, ""),
            HistoryItem::Bookmark(16),
        ];
        assert_eq!(violations(&revised), [""; 0]);
        let mut resumed = revised.to_vec();
        resumed.extend([
            HistoryItem::Watch(16),
            gone("a", 14),
            // Everything comes in any order.
            put("h", 16, ""),
            put("b", 15, ""),
            put("a", 20, "2"),
            HistoryItem::Bookmark(21),
        ]);
        assert_eq!(violations(&resumed), [""; 0]);
    }

    #[test]
    fn client_that_lists_again_is_noticed() {
        let twice = [list(10, &[]), list(10, &[])];
        assert_eq!(check(&twice, &truth(), |_| false, 1).violations, ["listed 2 times"]);
    }

    #[test]
    fn each_kind_of_lie_is_noticed() {
        let lies: [(&str, Vec<HistoryItem>); 12] = [
            (
                "back in one watch",
                vec![put("b", 13, ""), put("a", 12, "1"), HistoryItem::Bookmark(13)],
            ),
            (
                "back after a bookmark",
                vec![put("a", 12, "1"), HistoryItem::Bookmark(13), put("b", 12, "")],
            ),
            ("forged", vec![put("a", 12, "9")]),
            ("revised to an old state", vec![put("a", 13, "")]),
            ("risen", vec![put("a", 16, "1")]),
            ("hidden without a cause", vec![gone("b", 12)]),
            ("lost last state", vec![HistoryItem::Bookmark(13)]),
            ("lost deletion", vec![put("a", 12, "1"), HistoryItem::Bookmark(15)]),
            (
                "lost deletion, after everything came again",
                vec![
                    put("a", 12, "1"),
                    HistoryItem::Watch(13),
                    put("b", 6, ""),
                    put("h", 7, ""),
                    put("a", 12, "1"),
                    HistoryItem::Bookmark(15),
                ],
            ),
            (
                "a part of everything",
                vec![
                    put("a", 12, "1"),
                    HistoryItem::Bookmark(13),
                    HistoryItem::Watch(13),
                    put("b", 6, ""),
                    put("a", 12, "1"),
                    HistoryItem::Bookmark(13),
                ],
            ),
            ("a list without a living object", vec![list(12, &[("a", 12), ("h", 7)])]),
            (
                "a bookmark that goes back",
                vec![put("a", 12, "1"), HistoryItem::Bookmark(11)],
            ),
        ];
        for (name, lie) in lies {
            assert!(!violations(&lie).is_empty(), "{name}");
        }
    }
}
