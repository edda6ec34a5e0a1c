//! Check of the clients' histories after the cloud was restored from a backup: each client moves once from the old
//! history to the new one.
//!
//! Before the restore, all clients hold the cloud's full state. Later events are still of the old history as long as
//! they agree with it: the client keeps its state. The first other event is of the new history. From there on the rules
//! of [`super::history`] hold with the new truth. One exception: the position and objects may go back until the next
//! list or bookmark. There the client must hold exactly the state of the new history, each object at one of its
//! versions. The position of a list may be one that the old history had, too. The history of such a client is unknown:
//! it may get all objects again, but nothing else.

use super::history::{CheckResult, HistoryItem, Replay, Truth};

/// The end of a history, and the beginning of another one.
#[derive(Clone, Copy, Debug)]
pub struct Rollback<'a> {
    /// History of the cloud before the restore.
    pub before: &'a Truth,
    /// History of the restored cloud.
    pub after: &'a Truth,
    /// Highest RV of the old history.
    pub ended: u64,
    /// Number of lists that a client may make after it.
    pub lists_max: u32,
}

/// Checks a client's history from the `from`-th event on; the events before it have been checked.
#[must_use]
pub fn check(told: &[HistoryItem], from: usize, rollback: &Rollback<'_>) -> CheckResult {
    let (earlier, later) = told.split_at(from.min(told.len()));
    let mut replay = Replay::new(rollback.before);
    earlier.iter().for_each(|seen| replay.step(seen));
    let mut replay = replay.afresh();
    let mut is_old = true;
    for seen in later {
        let is_error = matches!(seen, HistoryItem::Error(_));
        if is_old && !is_error && !agrees(seen, &replay, rollback.ended) {
            is_old = false;
            replay.change_to(rollback.after);
        }
        replay.step(seen);
        if !is_old && matches!(seen, HistoryItem::List(version, _) if *version <= rollback.ended) {
            replay.let_tell_all();
        }
    }
    replay.require(!is_old, || "received nothing of the new history".to_owned());
    replay.end(rollback.lists_max)
}

/// True if a client of the old history may receive this: it holds all of it.
fn agrees(seen: &HistoryItem, replay: &Replay<'_>, ended: u64) -> bool {
    match seen {
        HistoryItem::Bookmark(version) => (replay.position..=ended).contains(version),
        HistoryItem::List(version, objects) => (replay.position..=ended).contains(version) && *objects == replay.held,
        HistoryItem::Watch(_) => true,
        HistoryItem::Put { .. } | HistoryItem::Gone { .. } | HistoryItem::Error(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::told::{gone, list, put};

    /// Verdict for events after this backup: a at 11, b at 6. Lost: a at 15, c at 16, the deletion of b at 17. New: a
    /// at 30, d at 31.
    fn found(later: &[HistoryItem]) -> Vec<String> {
        let old = [
            list(10, &[("a", 5), ("b", 6)]),
            put("a", 11, "1"),
            put("a", 15, "2"),
            put("c", 16, "3"),
            gone("b", 17),
            HistoryItem::Bookmark(17),
        ];
        let before = Truth::of(&old);
        let new = [list(12, &[("a", 11), ("b", 6)]), put("a", 30, "8"), put("d", 31, "9")];
        let after = before.restored(&new).expect("a backup of it");
        let rollback = Rollback {
            before: &before,
            after: &after,
            ended: 20,
            lists_max: 1,
        };
        let told: Vec<HistoryItem> = old.iter().chain(later).cloned().collect();
        check(&told, old.len(), &rollback).violations
    }

    #[test]
    fn client_may_start_over_or_be_told_what_differs() {
        let over = [
            HistoryItem::Bookmark(18),
            HistoryItem::Error(410),
            list(30, &[("a", 30), ("b", 6)]),
            put("d", 31, "9"),
            HistoryItem::Bookmark(32),
        ];
        assert_eq!(found(&over), [""; 0]);
        let in_stream = [
            gone("c", 12),
            put("b", 6, ""),
            put("a", 11, "1"),
            HistoryItem::Bookmark(12),
            put("a", 30, "8"),
            put("d", 31, "9"),
            HistoryItem::Bookmark(31),
        ];
        assert_eq!(found(&in_stream), [""; 0]);
    }

    /// The number of its list may be of either history.
    #[test]
    fn client_that_lists_at_an_old_number_may_be_told_everything_again() {
        let listed = |told: &[HistoryItem]| {
            let over = [HistoryItem::Error(410), list(12, &[("a", 11), ("b", 6)])];
            found(&[&over, told].concat())
        };
        let rest = [
            HistoryItem::Bookmark(12),
            put("a", 30, "8"),
            put("d", 31, "9"),
            HistoryItem::Bookmark(31),
        ];
        let again = [gone("c", 12), put("b", 6, ""), put("a", 11, "1")];
        assert_eq!(listed(&[&again[..], &rest].concat()), [""; 0]);
        assert_eq!(listed(&rest), [""; 0]);
        assert!(!listed(&[&[gone("a", 12), put("a", 11, "1")][..], &rest].concat()).is_empty());
        assert!(!listed(&[&rest[..], &again].concat()).is_empty(), "once");
    }

    #[test]
    fn each_kind_of_lie_is_noticed() {
        let new = || list(31, &[("a", 30), ("b", 6), ("d", 31)]);
        let lies: [(&str, Vec<HistoryItem>); 8] = [
            ("nothing new", vec![HistoryItem::Bookmark(18)]),
            (
                "the lost state stays",
                vec![
                    put("b", 6, ""),
                    put("d", 31, "9"),
                    gone("c", 31),
                    HistoryItem::Bookmark(31),
                ],
            ),
            (
                "the lost object stays",
                vec![
                    put("a", 30, "8"),
                    put("b", 6, ""),
                    put("d", 31, "9"),
                    HistoryItem::Bookmark(31),
                ],
            ),
            (
                "what is back is missing",
                vec![
                    put("a", 30, "8"),
                    put("d", 31, "9"),
                    gone("c", 31),
                    HistoryItem::Bookmark(31),
                ],
            ),
            (
                "a list of both",
                vec![list(31, &[("a", 30), ("b", 6), ("c", 16), ("d", 31)])],
            ),
            ("the old history again", vec![new(), put("c", 32, "3")]),
            ("back again", vec![new(), HistoryItem::Bookmark(30)]),
            ("over twice", vec![new(), new()]),
        ];
        for (name, lie) in lies {
            assert!(!found(&lie).is_empty(), "{name}");
        }
    }

    #[test]
    fn backup_of_another_cloud_is_none() {
        let before = Truth::of(&[list(10, &[("a", 5)])]);
        assert!(before.restored(&[list(10, &[("a", 6)])]).is_err());
    }
}
