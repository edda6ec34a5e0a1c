//! Changes of a folder that its one writer has yet to make: the newest of each key, within a bound.
//!
//! A reader looks here first, so a change counts before the disk has it.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::record::{FileName, Record};
use super::shelf::Shelf;

/// The changes.
#[derive(Debug)]
pub(super) struct Backlog {
    changes: HashMap<String, Change>,
    bytes: usize,
    /// Number of the last change.
    last: u64,
    bounds: Bounds,
}

/// Limits of the records of a backlog. A deletion is accepted above them, because its record exists, on the disk or
/// here. It counts, so that records that are kept and deleted again while the disk is slow do not add up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Maximum number of changes.
    pub(super) changes: usize,
    /// Maximum bytes of the bodies.
    pub(super) bytes: usize,
}

/// The newest change of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    /// In the order of arrival.
    pub(super) number: u64,
    /// Name of the key's file.
    pub(super) name: FileName,
    /// The record to write; `None` for a deletion.
    pub(super) record: Option<Record>,
    /// True if it took the place of a deletion that the disk may not have: what is on the disk counts no more.
    pub(super) replaces_deletion: bool,
}

// === impl Backlog ===

impl Backlog {
    pub(super) fn within(bounds: Bounds) -> Self {
        Self {
            changes: HashMap::new(),
            bytes: 0,
            last: 0,
            bounds,
        }
    }

    /// Adds a record to write, to the file `name` of its key. False if it does not fit: an earlier change of its key
    /// stays.
    #[must_use]
    pub(super) fn keep(&mut self, name: FileName, record: Record) -> bool {
        let former = self.changes.get(&record.key);
        let others = self.changes.len() - usize::from(former.is_some());
        let bytes = self.bytes - former.map_or(0, Change::bytes) + record.body.len();
        let fits = others < self.bounds.changes && bytes <= self.bounds.bytes;
        if fits {
            let is_deletion = |change: &Change| change.record.is_none() || change.replaces_deletion;
            let replaces_deletion = former.is_some_and(is_deletion);
            self.insert(name, record.key.clone(), Some(record), replaces_deletion);
        }
        fits
    }

    /// Adds a deletion of the file `name` of a key.
    pub(super) fn forget(&mut self, name: FileName, key: String) {
        self.insert(name, key, None, false);
    }

    /// Returns the change of a key.
    pub(super) fn get(&self, key: &str) -> Option<&Change> {
        self.changes.get(key)
    }

    /// Keys of the changes that are due, oldest first.
    pub(super) fn due(&self, is_due: impl Fn(&Change) -> bool) -> Vec<String> {
        let due = self.changes.iter().filter(|(_, change)| is_due(change));
        let mut due: Vec<(u64, &String)> = due.map(|(key, change)| (change.number, key)).collect();
        due.sort_unstable();
        due.into_iter().map(|(_, key)| key.clone()).collect()
    }

    /// Removes a change that the disk has, or did not take. A newer one of the same key stays.
    pub(super) fn done(&mut self, key: &str, number: u64) {
        if self.changes.get(key).is_some_and(|change| change.number == number) {
            self.remove(key);
        }
    }

    /// Removes the records that `is_over` selects.
    pub(super) fn drop_those(&mut self, is_over: impl Fn(&Record) -> bool) {
        for key in self.due(|change| change.record.as_ref().is_some_and(&is_over)) {
            self.remove(&key);
        }
    }

    /// Removes all changes.
    pub(super) fn clear(&mut self) {
        self.changes.clear();
        self.bytes = 0;
    }

    /// Bytes of the bodies.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn insert(&mut self, name: FileName, key: String, record: Option<Record>, replaces_deletion: bool) {
        self.remove(&key);
        self.last += 1;
        let change = Change {
            number: self.last,
            name,
            record,
            replaces_deletion,
        };
        self.bytes += change.bytes();
        self.changes.insert(key, change);
    }

    fn remove(&mut self, key: &str) {
        if let Some(change) = self.changes.remove(key) {
            self.bytes -= change.bytes();
        }
    }
}

// === impl Change ===

impl Change {
    fn bytes(&self) -> usize {
        self.record.as_ref().map_or(0, |record| record.body.len())
    }
}

/// Returns the record of a key as its newest change leaves it. Blocks.
pub(super) fn find(backlog: &Mutex<Backlog>, shelf: &Shelf, key: &str) -> Option<Record> {
    let change = backlog.lock().get(key).cloned();
    change.map_or_else(|| shelf.get(key), |change| change.record)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BOUNDS: Bounds = Bounds { changes: 3, bytes: 10 };

    fn record(key: &str, body: &'static str) -> Record {
        Record {
            key: key.to_owned(),
            facts: json!({}),
            body: body.into(),
        }
    }

    fn keep(backlog: &mut Backlog, key: &str, body: &'static str) -> bool {
        backlog.keep(FileName::of(key), record(key, body))
    }

    fn forget(backlog: &mut Backlog, key: &str) {
        backlog.forget(FileName::of(key), key.to_owned());
    }

    fn body<'a>(backlog: &'a Backlog, key: &str) -> Option<&'a [u8]> {
        Some(&backlog.get(key)?.record.as_ref()?.body)
    }

    #[test]
    fn newest_change_of_a_key_counts_and_outlives_the_end_of_an_older_one() {
        let mut backlog = Backlog::within(BOUNDS);
        assert!(keep(&mut backlog, "a", "one") && keep(&mut backlog, "b", "x"));
        let first = backlog.get("a").unwrap().number;
        assert!(keep(&mut backlog, "a", "two"));
        backlog.done("a", first);
        assert_eq!(body(&backlog, "a"), Some(&b"two"[..]));
        assert_eq!(backlog.due(|_| true), ["b", "a"], "oldest first");
        let second = backlog.get("a").unwrap().number;
        forget(&mut backlog, "a");
        backlog.done("a", second);
        assert_eq!(backlog.get("a").map(|change| &change.record), Some(&None));
        assert_eq!(backlog.due(|change| change.record.is_none()), ["a"]);
        let last = backlog.get("a").unwrap().number;
        backlog.done("a", last);
        assert_eq!((backlog.get("a"), backlog.bytes()), (None, 1));
    }

    #[test]
    fn record_behind_a_deletion_is_marked_until_it_is_written() {
        let mut backlog = Backlog::within(BOUNDS);
        let is_marked = |backlog: &Backlog| backlog.get("a").is_some_and(|change| change.replaces_deletion);
        assert!(keep(&mut backlog, "a", "one") && !is_marked(&backlog));
        forget(&mut backlog, "a");
        for body in ["two", "three"] {
            assert!(keep(&mut backlog, "a", body) && is_marked(&backlog), "{body}");
        }
        let last = backlog.get("a").unwrap().number;
        backlog.done("a", last);
        assert!(keep(&mut backlog, "a", "four") && !is_marked(&backlog));
    }

    #[test]
    fn records_are_bounded_in_number_and_bytes() {
        let mut backlog = Backlog::within(BOUNDS);
        assert!(keep(&mut backlog, "a", "123456") && !keep(&mut backlog, "b", "12345"));
        assert!(!keep(&mut backlog, "a", "12345678901"));
        assert_eq!(body(&backlog, "a"), Some(&b"123456"[..]), "the earlier one stays");
        assert!(keep(&mut backlog, "a", "1234567890"), "in place of the earlier one");
        assert!(keep(&mut backlog, "b", "") && keep(&mut backlog, "c", "") && !keep(&mut backlog, "d", ""));
        forget(&mut backlog, "e");
        assert_eq!((backlog.changes.len(), backlog.bytes()), (4, 10));
        backlog.clear();
        assert_eq!((backlog.changes.len(), backlog.bytes()), (0, 0));
    }

    #[test]
    fn records_that_are_deleted_before_they_are_written_do_not_add_up() {
        let mut backlog = Backlog::within(BOUNDS);
        let names: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        let kept = names.iter().filter(|name| {
            let is_kept = keep(&mut backlog, name, "");
            // As in `Answers::forget`: only what is there.
            if backlog.get(name).is_some() {
                forget(&mut backlog, name);
            }
            is_kept
        });
        assert_eq!((kept.count(), backlog.changes.len()), (BOUNDS.changes, BOUNDS.changes));
    }
}
