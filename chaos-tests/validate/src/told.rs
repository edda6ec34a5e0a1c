//! Constructors of events, for the checkers' tests.

use super::history::HistoryItem;

pub(crate) fn put(key: &str, version: u64, mark: &str) -> HistoryItem {
    HistoryItem::Put {
        key: key.into(),
        version,
        mark: mark.into(),
    }
}

pub(crate) fn gone(key: &str, version: u64) -> HistoryItem {
    HistoryItem::Gone {
        key: key.into(),
        version,
    }
}

pub(crate) fn list(version: u64, objects: &[(&str, u64)]) -> HistoryItem {
    HistoryItem::List(
        version,
        objects.iter().map(|(key, version)| ((*key).into(), *version)).collect(),
    )
}
