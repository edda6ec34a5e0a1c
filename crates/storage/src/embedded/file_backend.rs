//! Storage medium of a store: a locked file, or a replacement in tests. Counts reads and writes.
//!
//! The file is locked for as long as its [`LockedFile`] lives, also while the database in it is closed and opened
//! again. It grows by allocation. So a full disk is detected when the file has to grow, and data that fits into it can
//! still be written.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::Errno;

/// Random-access bytes that survive the process. Equals redb's storage backend without its locks.
pub trait FileBackend: std::fmt::Debug + Send + Sync + 'static {
    /// Number of bytes.
    ///
    /// # Errors
    /// Of the device.
    fn size(&self) -> io::Result<u64>;

    /// Fills `out` from `offset` on.
    ///
    /// # Errors
    /// Of the device; also when the medium is too short.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// Of the device; any part of `data` may have been written then.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Truncates, or grows with zeros.
    ///
    /// # Errors
    /// Of the device; [`io::ErrorKind::StorageFull`] when there is no room.
    fn set_size(&self, size: u64) -> io::Result<()>;

    /// Returns when everything written so far survives a power loss.
    ///
    /// # Errors
    /// Of the device; which writes survive is then unknown.
    fn sync(&self) -> io::Result<()>;
}

/// A file that no other process has open as a store.
#[derive(Debug)]
pub struct LockedFile {
    file: File,
}

/// Counters of a medium.
#[derive(Debug, Default)]
pub(super) struct Meter {
    pub(super) bytes: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) syncs: AtomicU64,
}

/// A medium as redb's storage backend. It needs no locks: no other process uses the medium.
#[derive(Debug)]
pub(super) struct RedbBackend {
    pub(super) medium: Arc<dyn FileBackend>,
    pub(super) meter: Arc<Meter>,
}

/// A read that failed because the medium lost the bytes, or returned others than were written.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct LostBytes(io::Error);

/// Maximum wait for the lock of a file: a predecessor may still be ending, and a process that it just started has its
/// files until it executes its program.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Maximum number of files that are opened at one path because the one before was deleted.
const OPENS_MAX: usize = 4;

/// True if the medium did not return bytes that were read.
pub(super) fn is_unreadable(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<LostBytes>())
}

// === impl LockedFile ===

impl LockedFile {
    /// Opens or creates `path`, readable by its owner only, and locks it. A new file's name survives a power loss.
    ///
    /// # Errors
    /// Of the file system; [`io::ErrorKind::ResourceBusy`] when another process still holds the lock after two seconds.
    pub fn open(path: &Path) -> io::Result<Self> {
        for _ in 0..OPENS_MAX {
            let is_new = !path.exists();
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).mode(0o600).open(path)?;
            lock(&file, LOCK_WAIT)?;
            // A predecessor may have deleted the file while this process waited for its lock.
            if !is_at(&file, path)? {
                continue;
            }
            if is_new && let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                File::open(folder)?.sync_all()?;
            }
            return Ok(Self { file });
        }
        Err(busy())
    }
}

/// True if `path` names this very file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    match fs::metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (held.dev(), held.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn busy() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "another process has it open")
}

/// Locks the file for this process.
///
/// # Errors
/// Of the file system; [`io::ErrorKind::ResourceBusy`] when another process still holds the lock after `wait`.
pub(super) fn lock(file: &File, wait: Duration) -> io::Result<()> {
    match file.try_lock() {
        Ok(()) => return Ok(()),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let (done, locked) = mpsc::sync_channel(1);
    let same = file.try_clone()?;
    // The thread ends with the process that holds the lock, or with this one.
    thread::Builder::new().spawn(move || done.send(same.lock()))?;
    locked.recv_timeout(wait).unwrap_or_else(|_| Err(busy()))
}

impl FileBackend for LockedFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        let now = self.size()?;
        if size > now {
            match fallocate(&self.file, FallocateFlags::empty(), now, size - now) {
                Ok(()) => return Ok(()),
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.file.set_len(size)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data().inspect_err(|_| {
            // The kernel may mark pages clean that it could not write. So the next read must come from the medium, not
            // from its cache.
            let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
        })
    }
}

// === impl RedbBackend ===

impl redb::StorageBackend for RedbBackend {
    fn len(&self) -> io::Result<u64> {
        self.medium.size()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let read = self.medium.read_at(offset, out);
        read.map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::IO | Errno::UCLEAN | Errno::BADMSG) => io::Error::new(error.kind(), LostBytes(error)),
            _ => error,
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.medium.set_size(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.meter.syncs.fetch_add(1, Ordering::Relaxed);
        self.medium.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.meter.writes.fetch_add(1, Ordering::Relaxed);
        self.meter.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.medium.write_at(offset, data)
    }
}

#[cfg(test)]
mod tests {
    use yurt_test_support::TestDir;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(100);

    #[test]
    fn file_of_a_process_that_is_ending_is_opened_after_its_end() {
        let folder = TestDir::new();
        let path = folder.path().join("file");
        let predecessor = LockedFile::open(&path).unwrap();
        let error = lock(&File::open(&path).unwrap(), MOMENT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        let (result, results) = mpsc::sync_channel(1);
        thread::scope(|scope| {
            scope.spawn(|| result.send(LockedFile::open(&path).map(drop)));
            let early = results.recv_timeout(MOMENT);
            assert!(early.is_err(), "it waits: {early:?}");
            drop(predecessor);
            results.recv().unwrap().unwrap();
        });
    }

    #[test]
    fn file_that_its_holder_deletes_is_not_opened() {
        let folder = TestDir::new();
        let path = folder.path().join("file");
        let predecessor = LockedFile::open(&path).unwrap();
        thread::scope(|scope| {
            let (result, results) = mpsc::sync_channel(1);
            let of_thread = &path;
            scope.spawn(move || result.send(LockedFile::open(of_thread)));
            let early = results.recv_timeout(MOMENT);
            assert!(early.is_err(), "it waits: {early:?}");
            fs::remove_file(&path).unwrap();
            drop(predecessor);
            let opened = results.recv().unwrap().unwrap();
            opened.write_at(0, b"kept").unwrap();
        });
        assert_eq!(fs::read(&path).unwrap(), b"kept");
    }
}
