//! Rows of the shared store: their keys, and how collections become values.

use bytes::Bytes;
use yurt_apimachinery::{Object, ObjectKey};
use yurt_collection::{Collection, Dirty, RangeTombstone};

use super::PREFIX;
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

/// A change of the folder that the pointer names.
pub(super) fn small_ops(name: &str, folder: &str, dirty: &Dirty) -> Vec<Op> {
    let op = |(key, value): Row| {
        let key = row_key(name, folder, &key);
        match value {
            Some(value) => put(key, value, Expect::Any),
            None => delete(key, Expect::Any),
        }
    };
    rows_of(dirty).into_iter().map(op).collect()
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
