//! Opening of a database: an interrupted creation starts over, everything else is verified before a byte is served.
//!
//! redb verifies checksums only when it recovers from a kill, never while it reads. So a cleanly closed database is
//! checked here; any other has been checked by the recovery.

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;

use redb::{Database, DatabaseError};

use super::OpenError;
use super::file_backend::{RedbBackend, is_unreadable};
use super::format;

/// redb's page cache in bytes. Objects are held in memory anyway.
const PAGE_CACHE_BYTES: usize = 1 << 20;
/// redb writes its header here, the magic number last of all when it creates a database.
const HEADER_BYTES: usize = 4096;
/// Length of redb's magic number, at the start of the header.
const MAGIC_BYTES: usize = 9;
/// redb reports this progress of a recovery when the last commit was rolled back, and no other below it but 0.
const ROLLED_BACK_PROGRESS: f64 = 0.3;

/// Result of a recovery.
#[derive(Clone, Copy, Debug, Default)]
struct Recovery {
    happened: bool,
    rolled_back: bool,
}

/// Opens, creates or recovers the database on `backend`'s medium.
///
/// # Errors
/// [`OpenError`] naming `path`.
pub(super) fn database(path: &Path, backend: RedbBackend) -> Result<Database, OpenError> {
    let unusable = |why: String| OpenError::Unusable {
        path: path.to_owned(),
        why,
    };
    let unreadable = |why: String| OpenError::Unreadable {
        path: path.to_owned(),
        why,
    };
    discard_interrupted_creation(&backend).map_err(|error| match is_unreadable(&error) {
        true => unreadable(error.to_string()),
        false => unusable(error.to_string()),
    })?;
    let opened = catch_unwind(AssertUnwindSafe(|| open_and_verify(backend)));
    let damaged = |why: &str| OpenError::Corrupt {
        path: path.to_owned(),
        why: why.to_owned(),
    };
    let (database, recovery) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(DatabaseError::Storage(redb::StorageError::Corrupted(why)))) => return Err(damaged(&why)),
        Ok(Err(DatabaseError::Storage(redb::StorageError::Io(error)))) if is_damage(&error) => {
            return Err(damaged(&error.to_string()));
        }
        Ok(Err(DatabaseError::Storage(redb::StorageError::Io(error)))) if is_unreadable(&error) => {
            return Err(unreadable(error.to_string()));
        }
        Ok(Err(DatabaseError::Storage(redb::StorageError::Io(error)))) if is_full(&error) => {
            return Err(OpenError::Full {
                path: path.to_owned(),
                why: error.to_string(),
            });
        }
        Ok(Err(DatabaseError::UpgradeRequired(version))) => {
            return Err(damaged(&format!(
                "its format {version} was never written by this program"
            )));
        }
        Ok(Err(error)) => return Err(unusable(error.to_string())),
        Err(panic) => return Err(damaged(&panic_text(&*panic))),
    };
    format::settle(path, &database)?;
    if recovery.rolled_back {
        tracing::warn!(file = %path.display(), "Last commit is incomplete or damaged; using the one before it");
    }
    Ok(database)
}

fn open_and_verify(backend: RedbBackend) -> Result<(Database, Recovery), DatabaseError> {
    let is_new = backend.medium.size()? == 0;
    let recovery = Rc::new(Cell::new(Recovery::default()));
    let noted = recovery.clone();
    let mut builder = Database::builder();
    builder
        .set_cache_size(PAGE_CACHE_BYTES)
        .set_repair_callback(move |session| {
            let rolled_back = (session.progress() - ROLLED_BACK_PROGRESS).abs() < f64::EPSILON;
            noted.set(Recovery {
                happened: true,
                rolled_back: noted.get().rolled_back || rolled_back,
            });
        });
    let mut database = builder.create_with_backend(backend)?;
    if !is_new && !recovery.get().happened && !database.check_integrity()? {
        tracing::warn!("Repaired the store's free-space accounting");
    }
    Ok((database, recovery.get()))
}

/// Removes an interrupted creation: cut before the magic number was written, it leaves a file that redb always rejects.
/// Such a file has a header without magic and nothing behind it, and never held anything.
fn discard_interrupted_creation(backend: &RedbBackend) -> io::Result<()> {
    let size = backend.medium.size()?;
    if size == 0 {
        return Ok(());
    }
    let mut page = vec![0; HEADER_BYTES];
    let mut offset = 0;
    while offset < size {
        let length = HEADER_BYTES.min(usize::try_from(size - offset).unwrap_or(HEADER_BYTES));
        let page = &mut page[..length];
        redb::StorageBackend::read(backend, offset, page)?;
        let looked_at = if offset == 0 { MAGIC_BYTES.min(length) } else { length };
        if page[..looked_at].iter().any(|byte| *byte != 0) {
            return Ok(());
        }
        offset += length as u64;
    }
    tracing::info!("Creation of the store was interrupted; starting over");
    backend.medium.set_size(0)
}

/// True if the file is shorter than it claims, or is not a database.
fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput
    )
}

/// True if there is no space, or none for this user.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Text of a panic of redb.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("its pages are inconsistent ({})", text.unwrap_or("no details"))
}

/// Description of the fault in the file at `path`, with the remedy.
pub(super) fn with_advice(path: &Path, why: &str) -> String {
    format!(
        "{}: {why}; stop this process, then restore the file from a copy, or delete it: pool data comes back from the \
         cloud, objects of the coordinator's own are lost",
        path.display()
    )
}
