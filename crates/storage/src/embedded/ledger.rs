//! Own objects on the disk: commits, the load at a start, and the repair after failed commits.
//!
//! A commit that failed may have reached the disk. It is reverted before the next group, in a commit of its own. So at
//! most one group has to be reverted, however long the disk fails.

use std::sync::Arc;

use bytes::Bytes;
use redb::{ReadTransaction, ReadableTable, WriteTransaction};
use yurt_apimachinery::ResourceVersion;

use super::beside::{MarkFile, Noted};
use super::disk::Disk;
use super::engine::{Group, Values};
use super::rows::{self, Tombstones, Undo};
use super::tables::{FACT_FLOOR, FACT_MARK, FACT_STORE_ID, FACTS, OWN, OWN_TOMBSTONES, storage_error};
use crate::backend::{Loaded, StorageError, Stored};

/// The rows of own objects.
pub(super) struct Ledger {
    disk: Arc<Disk>,
    noted: Option<MarkFile>,
    tombstones: Tombstones,
    unsettled: Undo,
}

/// Identity of an opened store.
pub(super) struct Identity {
    /// Random; `None` when a new timeline has to begin.
    pub(super) id: Option<String>,
    /// Upper bound of every RV issued, as far as is known.
    pub(super) mark: u64,
    /// True if other RVs were issued, and their mark is unknown.
    pub(super) is_mark_lost: bool,
}

// === impl Identity ===

impl Identity {
    /// Identity of a store with mark `stored`, if `noted` is the mark file's content. A store older than the mark it
    /// has shown was restored from a copy. A mark that was never stored was never shown.
    fn of(id: String, stored: u64, noted: Option<Noted>) -> Self {
        let (shown, is_put_back) = match noted {
            None => (stored, false),
            Some(Noted::Missing) => (stored, stored > 0),
            Some(Noted::Mark(shown)) => (shown, shown > stored),
        };
        if is_put_back {
            tracing::error!(
                shown,
                stored,
                "Store was restored from a copy; resourceVersions continue above the mark and all clients relist"
            );
        }
        Self {
            id: (!is_put_back).then_some(id),
            mark: stored.max(shown),
            is_mark_lost: is_put_back && noted == Some(Noted::Missing),
        }
    }

    /// Identity of a new store. A deleted store may have left its mark file.
    fn new(noted: Option<Noted>) -> Self {
        let mark = match noted {
            None | Some(Noted::Missing) => 0,
            Some(Noted::Mark(shown)) => shown,
        };
        Self {
            id: None,
            mark,
            is_mark_lost: false,
        }
    }
}

// === impl Ledger ===

impl Ledger {
    /// Opens the existing store, or a new one. `noted` is the file with the copy of the mark.
    pub(super) fn open(disk: Arc<Disk>, noted: Option<MarkFile>) -> Result<(Self, Identity), StorageError> {
        let known = disk.read(|read| {
            let facts = match read.open_table(FACTS) {
                Ok(facts) => facts,
                Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
                Err(error) => return Err(storage_error(error)),
            };
            let id = facts.get(FACT_STORE_ID).map_err(storage_error)?;
            let Some(id) = id.map(|id| id.value().to_owned()) else {
                return Ok(None);
            };
            Ok(Some((id, number(&facts, FACT_MARK)?)))
        })?;
        let shown = noted.as_ref().map(MarkFile::read).transpose();
        let shown = shown.map_err(StorageError::Unavailable)?;
        let identity = match known {
            Some((id, mark)) => Identity::of(id, mark, shown),
            None => Identity::new(shown),
        };
        let ledger = Self {
            disk,
            noted,
            tombstones: Tombstones::default(),
            unsettled: Undo::default(),
        };
        Ok((ledger, identity))
    }

    /// Gives the store a new id, and returns it. No reader of another id can resume, since all are below `floor`.
    pub(super) fn begin_timeline(&mut self, floor: ResourceVersion, mark: u64) -> Result<String, StorageError> {
        let id = uuid::Uuid::new_v4().to_string();
        self.disk.write(|txn| {
            txn.open_table(OWN).map_err(storage_error)?;
            let mut tombstones = txn.open_table(OWN_TOMBSTONES).map_err(storage_error)?;
            tombstones.retain(|_, _| false).map_err(storage_error)?;
            write_mark(txn, mark)?;
            let mut facts = txn.open_table(FACTS).map_err(storage_error)?;
            let floor = floor.0.to_string();
            facts.insert(FACT_FLOOR, floor.as_str()).map_err(storage_error)?;
            facts.insert(FACT_STORE_ID, id.as_str()).map_err(storage_error)?;
            Ok(())
        })?;
        self.note(mark);
        Ok(id)
    }

    /// Reads everything.
    pub(super) fn load(&mut self) -> Result<Loaded, StorageError> {
        let disk = self.disk.clone();
        disk.read(|read| self.load_rows(read))
    }

    fn load_rows(&mut self, read: &ReadTransaction) -> Result<Loaded, StorageError> {
        let own = read.open_table(OWN).map_err(storage_error)?;
        let tombstones = read.open_table(OWN_TOMBSTONES).map_err(storage_error)?;
        let facts = read.open_table(FACTS).map_err(storage_error)?;
        let mut loaded = Loaded {
            floor: ResourceVersion(number(&facts, FACT_FLOOR)?),
            ..Loaded::default()
        };
        for row in own.iter().map_err(storage_error)? {
            let (key, value) = row.map_err(storage_error)?;
            let (rv, bytes) = value.value();
            loaded.live.push(Stored {
                key: key.value().to_owned(),
                rv: ResourceVersion(rv),
                value: Bytes::copy_from_slice(bytes),
            });
        }
        for row in tombstones.iter().map_err(storage_error)? {
            let (place, value) = row.map_err(storage_error)?;
            let (key, bytes) = value.value();
            self.tombstones.count += 1;
            self.tombstones.bytes += rows::size(key, bytes);
            loaded.tombstones.push(Stored {
                key: key.to_owned(),
                rv: ResourceVersion(place.value().0),
                value: Bytes::copy_from_slice(bytes),
            });
        }
        Ok(loaded)
    }

    /// Waits until no other commit uses the same disk. Another one may begin right after.
    pub(super) fn wait_for_turn(&self) {
        self.disk.wait_until_free();
    }

    /// Stores a group with its mark. Blocks for as long as the medium takes.
    ///
    /// # Errors
    /// Nothing of the group counts, but see [`Self::has_to_revert`].
    pub(super) fn commit(&mut self, group: &Group) -> Result<(), StorageError> {
        let (mut undo, held, mut is_commit_tried) = (Undo::default(), self.tombstones, false);
        let stored = self.disk.write(|txn| {
            let held = rows::write(txn, group.rows(), held, &mut undo)?;
            group.mark().map_or(Ok(()), |mark| write_mark(txn, mark))?;
            is_commit_tried = true;
            Ok(held)
        });
        match stored {
            Ok(held) => {
                self.tombstones = held;
                if let Some(mark) = group.mark() {
                    self.note(mark);
                }
                Ok(())
            }
            Err(error) => {
                if is_commit_tried {
                    self.unsettled = undo;
                }
                Err(error)
            }
        }
    }

    /// True if the last commit failed and may have reached the disk. Nothing else may be written before
    /// [`Self::revert`] succeeds.
    pub(super) fn has_to_revert(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// Sets the rows of the failed commit back.
    pub(super) fn revert(&mut self) -> Result<(), StorageError> {
        self.disk.write(|txn| self.unsettled.apply(txn))?;
        self.unsettled = Undo::default();
        Ok(())
    }

    /// Stores only a mark.
    pub(super) fn store_mark(&mut self, mark: u64) -> Result<(), StorageError> {
        self.disk.write(|txn| write_mark(txn, mark))?;
        self.note(mark);
        Ok(())
    }

    /// Stores values that are in memory only.
    pub(super) fn flush(&mut self, volatile: &Values) -> Result<(), StorageError> {
        if volatile.is_empty() {
            return Ok(());
        }
        self.disk.write(|txn| {
            let mut own = txn.open_table(OWN).map_err(storage_error)?;
            for (key, (rv, value)) in volatile {
                own.insert(key.as_str(), (rv.0, value.as_ref()))
                    .map_err(storage_error)?;
            }
            Ok(())
        })
    }

    /// Reason why writes fail; `None` when they succeed.
    pub(super) fn trouble(&self) -> Option<StorageError> {
        self.disk.trouble()
    }

    /// Writes the mark file. The store's own commit of the mark must come first.
    fn note(&mut self, mark: u64) {
        if let Some(noted) = &mut self.noted {
            noted.write(mark);
        }
    }
}

fn write_mark(txn: &WriteTransaction, mark: u64) -> Result<(), StorageError> {
    let mut facts = txn.open_table(FACTS).map_err(storage_error)?;
    let text = mark.to_string();
    facts.insert(FACT_MARK, text.as_str()).map_err(storage_error)?;
    Ok(())
}

fn number(facts: &impl ReadableTable<&'static str, &'static str>, name: &str) -> Result<u64, StorageError> {
    let Some(text) = facts.get(name).map_err(storage_error)? else {
        return Ok(0);
    };
    text.value()
        .parse()
        .map_err(|_| StorageError::Corrupt(format!("fact {name} is not a number")))
}
