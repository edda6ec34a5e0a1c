//! Own objects as rows: writes of a group of transactions, and the revert of a failed group.
//!
//! A commit that failed may have reached the disk, although its writers got an error. So its rows are set back to the
//! state in memory before anything else is written.

use std::collections::{BTreeMap, BTreeSet};

use redb::WriteTransaction;
use yurt_apimachinery::ResourceVersion;

use super::tables::{FACT_FLOOR, FACTS, OWN, OWN_TOMBSTONES, storage_error};
use crate::backend::{Action, Durability, Op, StorageError};

/// Maximum number of own tombstones.
pub(super) const OWN_TOMBSTONES_MAX: usize = 10_000;
/// Maximum bytes of own tombstones; a tombstone that exceeds the limit by itself is not stored at all.
pub(super) const OWN_TOMBSTONE_BYTES_MAX: usize = 16 << 20;

/// Number of tombstones, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tombstones {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

/// Rows as they were before a commit. Only the first recorded state of a row counts.
#[derive(Debug, Default)]
pub(super) struct Undo {
    rows: BTreeMap<String, Option<(u64, Vec<u8>)>>,
    tombstones: BTreeSet<(u64, u32)>,
}

/// Writes the durable operations of `group`, each with its RV, and records in `undo` the rows they replace. Returns the
/// resulting tombstones; the oldest make room, and raise the floor.
///
/// # Errors
/// Of the database.
pub(super) fn write<'a>(
    txn: &WriteTransaction,
    group: impl Iterator<Item = (ResourceVersion, &'a [Op])>,
    held: Tombstones,
    undo: &mut Undo,
) -> Result<Tombstones, StorageError> {
    let mut own = txn.open_table(OWN).map_err(storage_error)?;
    let mut deleted = Vec::new();
    for (rv, ops) in group {
        for (place, op) in (0_u32..).zip(ops) {
            let key = op.key.as_str();
            match &op.action {
                Action::Put(bytes, Durability::Durable) => {
                    let before = own.insert(key, (rv.0, bytes.bytes().as_ref())).map_err(storage_error)?;
                    undo.note(key, before.map(|row| owned(row.value())));
                }
                Action::Delete { last } => {
                    let before = own.remove(key).map_err(storage_error)?;
                    undo.note(key, before.map(|row| owned(row.value())));
                    deleted.push(((rv.0, place), key, last.bytes().as_ref()));
                }
                Action::Put(_, Durability::Volatile) | Action::Check => {}
            }
        }
    }
    add_tombstones(txn, &deleted, held, undo)
}

/// A future tombstone: position, key, last state.
type NewTombstone<'a> = ((u64, u32), &'a str, &'a [u8]);

fn add_tombstones(
    txn: &WriteTransaction,
    deleted: &[NewTombstone<'_>],
    mut held: Tombstones,
    undo: &mut Undo,
) -> Result<Tombstones, StorageError> {
    if deleted.is_empty() {
        return Ok(held);
    }
    let mut tombstones = txn.open_table(OWN_TOMBSTONES).map_err(storage_error)?;
    for (place, key, last) in deleted {
        tombstones.insert(place, (*key, *last)).map_err(storage_error)?;
        undo.tombstones.insert(*place);
        held.count += 1;
        held.bytes += size(key, last);
    }
    let mut floor = None;
    while held.count > OWN_TOMBSTONES_MAX || held.bytes > OWN_TOMBSTONE_BYTES_MAX {
        let Some((place, row)) = tombstones.pop_first().map_err(storage_error)? else {
            break;
        };
        let (key, last) = row.value();
        held.count = held.count.saturating_sub(1);
        held.bytes = held.bytes.saturating_sub(size(key, last));
        floor = Some(place.value().0);
    }
    if let Some(floor) = floor {
        let mut facts = txn.open_table(FACTS).map_err(storage_error)?;
        facts
            .insert(FACT_FLOOR, floor.to_string().as_str())
            .map_err(storage_error)?;
    }
    Ok(held)
}

/// Bytes of a tombstone that count in [`OWN_TOMBSTONE_BYTES_MAX`].
pub(super) fn size(key: &str, last: &[u8]) -> usize {
    key.len() + last.len()
}

fn owned((rv, bytes): (u64, &[u8])) -> (u64, Vec<u8>) {
    (rv, bytes.to_vec())
}

// === impl Undo ===

impl Undo {
    /// True if the state on the disk is fully known.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.tombstones.is_empty()
    }

    fn note(&mut self, key: &str, before: Option<(u64, Vec<u8>)>) {
        if !self.rows.contains_key(key) {
            self.rows.insert(key.to_owned(), before);
        }
    }

    /// Sets the rows back. A raised floor remains: it only forces readers to list.
    pub(super) fn apply(&self, txn: &WriteTransaction) -> Result<(), StorageError> {
        let mut own = txn.open_table(OWN).map_err(storage_error)?;
        for (key, before) in &self.rows {
            match before {
                Some((rv, bytes)) => drop(
                    own.insert(key.as_str(), (*rv, bytes.as_slice()))
                        .map_err(storage_error)?,
                ),
                None => drop(own.remove(key.as_str()).map_err(storage_error)?),
            }
        }
        let mut tombstones = txn.open_table(OWN_TOMBSTONES).map_err(storage_error)?;
        for place in &self.tombstones {
            tombstones.remove(place).map_err(storage_error)?;
        }
        Ok(())
    }
}
