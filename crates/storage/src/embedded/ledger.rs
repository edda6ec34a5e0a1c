//! Own objects on the disk: what is committed, what a start reads, and what commits that failed may have left.
//!
//! A commit that failed may have reached the disk. It is taken back before the next group, in a commit of its own: so what
//! has to be taken back is one group's at most, however long the disk fails.

use std::sync::Arc;

use bytes::Bytes;
use redb::{ReadTransaction, ReadableTable, WriteTransaction};
use yurt_apimachinery::ResourceVersion;

use super::disk::Disk;
use super::engine::{Group, Values};
use super::rows::{self, Tombstones, Undo};
use super::tables::{FACT_FLOOR, FACT_MARK, FACT_STORE_ID, FACTS, OWN, OWN_TOMBSTONES, storage_error};
use crate::backend::{Loaded, StorageError, Stored};

/// The rows of own objects.
pub(super) struct Ledger {
    disk: Arc<Disk>,
    tombstones: Tombstones,
    unsettled: Undo,
}

/// What a store says about itself.
pub(super) struct Identity {
    /// Random.
    pub(super) id: String,
    /// Every RV issued is at most this.
    pub(super) mark: u64,
}

// === impl Ledger ===

impl Ledger {
    /// Opens the tables, creates the store id on first use.
    pub(super) fn open(disk: Arc<Disk>) -> Result<(Self, Identity), StorageError> {
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
            let mark = number(&facts, FACT_MARK)?;
            Ok(Some(Identity { id, mark }))
        })?;
        let identity = match known {
            Some(known) => known,
            None => Identity {
                id: disk.write(create_tables)?,
                mark: 0,
            },
        };
        let ledger = Self {
            disk,
            tombstones: Tombstones::default(),
            unsettled: Undo::default(),
        };
        Ok((ledger, identity))
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

    /// Stores a group with its mark. Blocks for as long as the medium takes.
    ///
    /// # Errors
    /// Nothing of it counts; what may have reached the disk is taken back before anything else is written.
    pub(super) fn commit(&mut self, group: &Group) -> Result<(), StorageError> {
        self.take_back()?;
        let (mut undo, held) = (Undo::default(), self.tombstones);
        let stored = self.disk.write(|txn| {
            let held = rows::write(txn, group.rows(), held, &mut undo)?;
            group.mark().map_or(Ok(()), |mark| write_mark(txn, mark))?;
            Ok(held)
        });
        match stored {
            Ok(held) => {
                self.tombstones = held;
                Ok(())
            }
            Err(error) => {
                self.unsettled = undo;
                Err(error)
            }
        }
    }

    /// Stores a mark alone.
    pub(super) fn store_mark(&mut self, mark: u64) -> Result<(), StorageError> {
        self.take_back()?;
        self.disk.write(|txn| write_mark(txn, mark))
    }

    /// Stores values that are in memory only.
    pub(super) fn flush(&mut self, volatile: &Values) -> Result<(), StorageError> {
        self.take_back()?;
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

    /// Why writes are refused; `None` when they go through.
    pub(super) fn trouble(&self) -> Option<StorageError> {
        self.disk.trouble()
    }

    fn take_back(&mut self) -> Result<(), StorageError> {
        if !self.unsettled.is_empty() {
            self.disk.write(|txn| self.unsettled.apply(txn))?;
            self.unsettled = Undo::default();
        }
        Ok(())
    }
}

/// The tables and the id of a new store.
fn create_tables(txn: &WriteTransaction) -> Result<String, StorageError> {
    txn.open_table(OWN).map_err(storage_error)?;
    txn.open_table(OWN_TOMBSTONES).map_err(storage_error)?;
    let mut facts = txn.open_table(FACTS).map_err(storage_error)?;
    let id = uuid::Uuid::new_v4().to_string();
    facts.insert(FACT_STORE_ID, id.as_str()).map_err(storage_error)?;
    Ok(id)
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
