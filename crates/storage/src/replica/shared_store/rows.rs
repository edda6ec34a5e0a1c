//! Rows of the shared store: their keys, and how collections become values.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion};
use yurt_collection::{Collection, Dirty, RangeTombstone};

use super::{BATCH_MAX, PREFIX};
use crate::backend::{Action, Durability, Expect, Op};

/// A row of a folder: its key within the folder and its value; `None` deletes.
pub(super) type Row = (String, Option<Bytes>);

/// Rows of the changes.
pub(super) fn rows_of(dirty: &Dirty) -> Vec<Row> {
    let object =
        |(key, state): (&ObjectKey, &Option<Object>)| (format!("o/{key}"), state.as_ref().map(|object| object.bytes()));
    let objects = dirty.objects.iter().map(object);
    let tombstones = dirty.tombstones.iter().map(tombstone_row);
    let kept = tombstones.chain(dirty.ranges.iter().map(range_row));
    objects.chain(kept.map(|(key, value)| (key, Some(value)))).collect()
}

/// All held rows, in key order. The first row of a new folder guards the flip to it.
pub(super) fn whole(held: &Collection) -> Vec<(String, Bytes)> {
    let object = |object: &Object| (format!("o/{}", object.key()), object.bytes());
    let ranges = held.range_tombstones();
    let mut rows: Vec<_> = held
        .objects()
        .map(object)
        .chain(held.tombstones().map(tombstone_row))
        .chain(ranges.iter().map(range_row))
        .collect();
    rows.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    rows
}

fn tombstone_row(object: &Object) -> (String, Bytes) {
    let key = format!("t/{:020}/{}", object.resource_version().0, object.key());
    (key, object.bytes())
}

fn range_row(range: &RangeTombstone) -> (String, Bytes) {
    let key = format!("r/{:020}/{:020}/{}", range.to.0, range.after.0, range.object.key());
    (key, range.object.bytes())
}

/// A change of the folder that the pointer names, which has the rows `stored`. Where it leaves room in the transaction,
/// rows of deletions up to `floor` are deleted: no reader can receive these any more.
pub(super) fn small_ops(
    name: &str,
    folder: &str,
    dirty: &Dirty,
    stored: &BTreeMap<String, Bytes>,
    floor: ResourceVersion,
) -> Vec<Op> {
    let rows = rows_of(dirty);
    let room = BATCH_MAX.saturating_sub(rows.len());
    // Coordinators that follow learn of a deletion by its row, even if it is forgotten already.
    let written: BTreeSet<&str> = rows.iter().map(|(key, _)| key.as_str()).collect();
    let forgotten = forgotten(stored, floor).filter(|key| !written.contains(key));
    let deletions: Vec<Op> = forgotten
        .take(room)
        .map(|key| delete(row_key(name, folder, key), Expect::Any))
        .collect();
    let op = |(key, value): Row| {
        let key = row_key(name, folder, &key);
        match value {
            Some(value) => put(key, value, Expect::Any),
            None => delete(key, Expect::Any),
        }
    };
    rows.into_iter().map(op).chain(deletions).collect()
}

/// Rows of deletions at or below `floor`.
fn forgotten(stored: &BTreeMap<String, Bytes>, floor: ResourceVersion) -> impl Iterator<Item = &str> {
    let end = floor.0.saturating_add(1);
    let up_to_floor = move |part| stored.range(format!("{part}/")..format!("{part}/{end:020}"));
    ["t", "r"]
        .into_iter()
        .flat_map(up_to_floor)
        .map(|(key, _)| key.as_str())
}

pub(super) fn pointer_key(name: &str) -> String {
    format!("{PREFIX}{name}/pointer")
}

pub(super) fn row_key(name: &str, folder: &str, key: &str) -> String {
    format!("{PREFIX}{name}/{folder}/{key}")
}

pub(super) fn put(key: String, value: Bytes, expect: Expect) -> Op {
    Op {
        key,
        expect,
        action: Action::Put(value.into(), Durability::Durable),
    }
}

pub(super) fn delete(key: String, expect: Expect) -> Op {
    Op {
        key,
        expect,
        action: Action::Delete {
            last: Bytes::new().into(),
        },
    }
}

/// An operation that only compares.
pub(super) fn check(key: String, expect: Expect) -> Op {
    Op {
        key,
        expect,
        action: Action::Check,
    }
}

/// True if `key` belongs to the collection `name`.
pub(super) fn is_of(key: &str, name: &str) -> bool {
    split(key).is_some_and(|(of, _)| of == name)
}

/// The collection of a key, and the rest of the key.
pub(super) fn split(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix(PREFIX)?.split_once('/')
}

#[cfg(test)]
mod tests {
    use yurt_apimachinery::kind::find_kind;
    use yurt_apimachinery::watch::EventType;

    use super::*;

    fn service(name: &str, rv: u64) -> Object {
        let json = format!(r#"{{"metadata":{{"namespace":"x","name":"{name}","resourceVersion":"{rv}"}}}}"#);
        Object::parse(json.into(), find_kind("", "services").expect("services")).expect("fixture must parse")
    }

    fn range(name: &str, to: u64) -> RangeTombstone {
        let (after, to) = (ResourceVersion(1), ResourceVersion(to));
        let object = service(name, 1);
        RangeTombstone { after, to, object }
    }

    /// Rows of a folder: an object, and deletions at these RVs.
    fn stored(tombstones: impl IntoIterator<Item = u64>, ranges: &[u64]) -> BTreeMap<String, Bytes> {
        let tombstones = tombstones.into_iter().map(|rv| tombstone_row(&service("t", rv)));
        let ranges = ranges.iter().map(|to| range_row(&range("r", *to)));
        let object = ("o/x/a".to_owned(), Bytes::new());
        tombstones.chain(ranges).chain([object]).collect()
    }

    /// The changes of a collection that has deleted objects at these RVs.
    fn deletions(at: impl IntoIterator<Item = u64>) -> Dirty {
        let mut held = Collection::new(true);
        held.restart(0, Vec::new(), ResourceVersion(1));
        drop(held.take_dirty());
        for rv in at {
            held.apply(EventType::Deleted, service("t", rv));
        }
        held.take_dirty().unwrap_or_default()
    }

    /// Keys that the change deletes, within the folder.
    fn deleted(dirty: &Dirty, stored: &BTreeMap<String, Bytes>, floor: u64) -> Vec<String> {
        let ops = small_ops("services", "f", dirty, stored, ResourceVersion(floor));
        let keys: BTreeSet<&str> = ops.iter().map(|op| op.key.as_str()).collect();
        assert_eq!(keys.len(), ops.len(), "a transaction names a key once");
        assert!(ops.len() <= BATCH_MAX.max(rows_of(dirty).len()), "{}", ops.len());
        let deleted = ops.iter().filter(|op| matches!(op.action, Action::Delete { .. }));
        let key = |op: &Op| op.key.strip_prefix("/~pool/services/f/").map(str::to_owned);
        deleted.filter_map(key).filter(|key| !key.starts_with("o/")).collect()
    }

    #[test]
    fn rows_of_forgotten_deletions_are_deleted_with_the_next_small_change() {
        let stored = stored([5, 10, 11, 100], &[9, 10, 11]);
        let keys = deleted(&Dirty::default(), &stored, 10);
        let versions: Vec<&str> = keys.iter().map(|key| &key[..22]).collect();
        assert_eq!(
            versions,
            [
                "t/00000000000000000005",
                "t/00000000000000000010",
                "r/00000000000000000009",
                "r/00000000000000000010"
            ]
        );
    }

    #[test]
    fn forgotten_rows_take_the_room_that_the_change_leaves() {
        let stored = stored(100..1_000, &[]);
        for changed in [0, 20, BATCH_MAX as u64] {
            let dirty = deletions(2_000..2_000 + changed);
            let room = BATCH_MAX.saturating_sub(rows_of(&dirty).len());
            assert_eq!(deleted(&dirty, &stored, 1_500).len(), room, "{changed} changes");
        }
    }

    /// A commit is repeated if its answer was lost.
    #[test]
    fn row_that_the_change_writes_is_not_deleted() {
        let dirty = deletions([5]);
        assert_eq!(
            deleted(&dirty, &stored([5, 6], &[]), 10),
            [tombstone_row(&service("t", 6)).0]
        );
    }
}
