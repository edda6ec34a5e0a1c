//! One redb database on one medium. It is verified when it is opened and reopened in place after a failure. It never
//! ends the process.
//!
//! redb rejects everything after the first I/O error, and may panic on damaged pages. Both are handled here. The
//! database is closed, the caller gets a [`StorageError`] that names the file and the remedy, and a later write opens
//! it again. A failed transaction may have reached the medium all the same; its writer settles that with its next one.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redb::{Database, ReadTransaction, ReadableDatabase as _, WriteTransaction};
use yurt_apimachinery::time::BootTime;
use yurt_runtime::Clock;

use super::OpenError;
use super::file_backend::{FileBackend, LockedFile, Meter, RedbBackend};
use super::open;
use super::overlay::Overlay;
use super::tables::storage_error;
use crate::backend::StorageError;

/// Minimum time after a failure until the database is opened again: opening reads all of it.
const REOPEN_AFTER: Duration = Duration::from_secs(1);
/// [`Disk::trouble`] ends with the first successful write this long after the last failed one.
const TROUBLE_HOLD: Duration = Duration::from_secs(10);
/// Kind of failure: there is no space.
const FULL: usize = 0;
/// Kind of failure: another I/O error.
const IO: usize = 1;
/// Kind of failure: damage.
const CORRUPT: usize = 2;

/// A database file that can fail and come back.
pub struct Disk {
    path: PathBuf,
    medium: Arc<dyn FileBackend>,
    clock: Clock,
    meter: Arc<Meter>,
    /// `None` after a failure.
    database: Mutex<Option<Database>>,
    trouble: Mutex<Option<Trouble>>,
    /// Failures by kind: [`FULL`], [`IO`], [`CORRUPT`].
    failures: [AtomicU64; 3],
}

/// The last failure.
struct Trouble {
    error: StorageError,
    at: BootTime,
}

/// Counters of a [`Disk`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Bytes handed to the file.
    pub bytes_written: u64,
    /// Write calls.
    pub writes: u64,
    /// Number of times the medium was synced.
    pub syncs: u64,
    /// Size of the file in bytes; 0 when it cannot be read.
    pub file_bytes: u64,
    /// Transactions that failed for lack of space.
    pub full: u64,
    /// Transactions that failed with another I/O error.
    pub io: u64,
    /// Transactions that failed because of damage.
    pub corrupt: u64,
}

// === impl Disk ===

impl Disk {
    /// Opens or creates the database file at `path` (its folder must exist), and verifies it.
    ///
    /// # Errors
    /// [`OpenError`], naming the file and the remedy.
    pub fn open(path: &Path, clock: Clock) -> Result<Arc<Self>, OpenError> {
        let medium = LockedFile::open(path).map_err(|error| unopened(path, &error))?;
        Self::open_on(path, Arc::new(medium), clock)
    }

    /// Opens the database in the file at `path`, which stays as it is: later commits are kept in memory. For a disk
    /// that is full or read-only.
    ///
    /// # Errors
    /// [`OpenError`], also if there is no file.
    pub fn open_unwritten(path: &Path, clock: Clock) -> Result<Arc<Self>, OpenError> {
        let medium = Overlay::open(path).map_err(|error| unopened(path, &error))?;
        Self::open_on(path, Arc::new(medium), clock)
    }

    /// As [`Self::open`], on another medium; messages use `path` only as its name. For tests and measurements.
    ///
    /// # Errors
    /// [`OpenError`], naming the file and the remedy.
    pub fn open_on(path: &Path, medium: Arc<dyn FileBackend>, clock: Clock) -> Result<Arc<Self>, OpenError> {
        let meter = Arc::new(Meter::default());
        let backend = RedbBackend {
            medium: medium.clone(),
            meter: meter.clone(),
        };
        let database = open::database(path, backend)?;
        Ok(Arc::new(Self {
            path: path.to_owned(),
            medium,
            clock,
            meter,
            database: Mutex::new(Some(database)),
            trouble: Mutex::new(None),
            failures: Default::default(),
        }))
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> DiskStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [full, io, corrupt] = self.failures.each_ref().map(read);
        DiskStats {
            bytes_written: read(&self.meter.bytes),
            writes: read(&self.meter.writes),
            syncs: read(&self.meter.syncs),
            file_bytes: self.medium.size().unwrap_or(0),
            full,
            io,
            corrupt,
        }
    }

    /// Reason of recent write failures; `None` when writes succeed.
    #[must_use]
    pub fn trouble(&self) -> Option<StorageError> {
        self.trouble.lock().as_ref().map(|trouble| trouble.error.clone())
    }

    /// Reads the last committed state.
    pub(super) fn read<T>(
        &self,
        look: impl FnOnce(&ReadTransaction) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let mut database = self.database.lock();
        self.transact(&mut database, |database| {
            look(&database.begin_read().map_err(storage_error)?)
        })
    }

    /// Runs `change` and commits it durably. Blocks for as long as the medium takes.
    ///
    /// # Errors
    /// Nothing of the change can be relied upon, but it may be on the medium.
    pub(super) fn write<T>(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let mut database = self.database.lock();
        let written = self.transact(&mut database, |database| {
            let txn = database.begin_write().map_err(storage_error)?;
            let value = change(&txn)?;
            txn.commit().map_err(storage_error)?;
            Ok(value)
        })?;
        let mut trouble = self.trouble.lock();
        if trouble
            .as_ref()
            .is_some_and(|last| self.is_past(last.at + TROUBLE_HOLD))
        {
            tracing::info!(file = %self.path.display(), "Store is writable again");
            *trouble = None;
        }
        Ok(written)
    }

    /// Counts a row whose content cannot be read, and returns the error. The database stays open: it is intact.
    pub(super) fn damaged_row(&self, why: &str) -> StorageError {
        self.failures[CORRUPT].fetch_add(1, Ordering::Relaxed);
        StorageError::Corrupt(open::with_advice(&self.path, why))
    }

    /// Returns when no reader or writer uses the database. Blocks for as long as others take.
    pub(super) fn wait_until_free(&self) {
        drop(self.database.lock());
    }

    fn transact<T>(
        &self,
        slot: &mut Option<Database>,
        body: impl FnOnce(&Database) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let database = match slot {
            Some(database) => database,
            None => slot.insert(self.reopen()?),
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| body(database)));
        let outcome = outcome.unwrap_or_else(|panic| Err(StorageError::Corrupt(open::panic_text(&*panic))));
        outcome.map_err(|error| {
            // Dropping it may cause the same error again.
            let failed = slot.take();
            let _ = catch_unwind(AssertUnwindSafe(move || drop(failed)));
            self.failed(error)
        })
    }

    fn reopen(&self) -> Result<Database, StorageError> {
        if let Some(last) = &*self.trouble.lock()
            && !self.is_past(last.at + REOPEN_AFTER)
        {
            return Err(last.error.clone());
        }
        let backend = RedbBackend {
            medium: self.medium.clone(),
            meter: self.meter.clone(),
        };
        open::database(&self.path, backend).map_err(|error| self.failed(error.into_storage_error()))
    }

    fn is_past(&self, time: BootTime) -> bool {
        self.clock.boot() >= time
    }

    /// Records a failure; returns it with the file's name and the remedy.
    fn failed(&self, error: StorageError) -> StorageError {
        let path = self.path.display();
        let (kind, error) = match error {
            StorageError::Full(why) => (
                FULL,
                StorageError::Full(format!("{path}: {why}; writes resume as soon as there is space")),
            ),
            StorageError::Corrupt(why) => (CORRUPT, StorageError::Corrupt(open::with_advice(&self.path, &why))),
            StorageError::Unavailable(why) => (IO, StorageError::Unavailable(format!("{path}: {why}"))),
            other => (IO, other),
        };
        self.failures[kind].fetch_add(1, Ordering::Relaxed);
        let mut trouble = self.trouble.lock();
        if trouble.is_none() {
            tracing::error!(%error, "Failed to write the store; reads are served from memory");
        }
        *trouble = Some(Trouble {
            error: error.clone(),
            at: self.clock.boot(),
        });
        error
    }
}

/// Error of a file that the file system does not open.
fn unopened(path: &Path, error: &io::Error) -> OpenError {
    let (path, why) = (path.to_owned(), error.to_string());
    match error.kind() {
        _ if open::is_full(error) => OpenError::Full { path, why },
        io::ErrorKind::ReadOnlyFilesystem => OpenError::ReadOnly { path, why },
        _ => OpenError::Unusable { path, why },
    }
}
