//! Folder of records, bounded in number and bytes: the index is in memory, the bodies are files. It is divided into
//! shares, whose records evict only each other.
//!
//! A record is replaced by a rename, so a power cut leaves the old one or the new one. A disk that is full, or that
//! fails, costs the new record only: what is on the disk stays, and the caller continues. All functions block, unless
//! they say otherwise; the callers run them on threads for that.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use parking_lot::Mutex;
use yurt_runtime::pki::{make_folder, write_secret};

use super::record::{FileName, Record, sum};

/// Mode of the folder; its files have 0600.
const FOLDER_MODE: u32 = 0o700;
/// Bytes of a file that are read for its key, at the start.
const FRONT_MAX: u64 = 4 << 10;

/// Limits of a folder.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum bytes of one file; a longer one is damaged.
    pub file: u64,
    /// Returns the share of the record with a key.
    pub share_of: fn(&str) -> Share,
}

/// Records of a folder that evict only each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Distinguishes the shares of a folder.
    pub name: &'static str,
    /// Maximum number of records.
    pub records: usize,
    /// Maximum bytes of their files together.
    pub bytes: u64,
}

/// Records and bytes held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of records.
    pub records: usize,
    /// Bytes of their files.
    pub bytes: u64,
}

/// A record that does not fit, or a failure of the disk.
#[derive(Debug, thiserror::Error)]
pub enum ShelfError {
    /// The record is larger than a file may be.
    #[error("a record of {size} bytes is larger than the limit of {max}")]
    TooLarge {
        /// Bytes of the record.
        size: u64,
        /// The limit.
        max: u64,
    },
    /// The disk failed, or is full.
    #[error(transparent)]
    Disk(#[from] io::Error),
}

/// The folder.
#[derive(Debug)]
pub struct Shelf {
    folder: PathBuf,
    limits: Limits,
    // Leaf lock: never held during I/O.
    index: Mutex<Index>,
    /// Held during a write: a file has one writer at a time.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Index {
    rows: HashMap<FileName, Row>,
    /// By the names of the shares.
    totals: HashMap<&'static str, Totals>,
    /// Counts uses, for the order of eviction.
    uses: u64,
    /// Files of removed records that could not be deleted.
    left: HashSet<FileName>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    share: Share,
    size: u64,
    used: u64,
    /// Checksum of the file; `None` before it is first read.
    sum: Option<[u8; 32]>,
    /// False after a failed write: a power cut may undo what the file has.
    is_synced: bool,
}

// === impl Index ===

impl Index {
    fn insert(&mut self, name: FileName, share: Share, size: u64, sum: Option<[u8; 32]>) {
        self.remove(&name);
        self.left.remove(&name);
        self.uses += 1;
        let totals = self.totals.entry(share.name).or_default();
        totals.records += 1;
        totals.bytes += size;
        let row = Row {
            share,
            size,
            used: self.uses,
            sum,
            is_synced: true,
        };
        self.rows.insert(name, row);
    }

    fn remove(&mut self, name: &FileName) -> bool {
        let Some(gone) = self.rows.remove(name) else {
            return false;
        };
        if let Some(totals) = self.totals.get_mut(gone.share.name) {
            totals.records -= 1;
            totals.bytes -= gone.size;
        }
        true
    }

    fn used(&mut self, name: &FileName) -> Option<Row> {
        self.uses += 1;
        let row = self.rows.get_mut(name)?;
        row.used = self.uses;
        Some(*row)
    }

    /// The least recently used record of a share that exceeds its limits; never the `newest`.
    fn victim(&self, share: &Share, newest: &FileName) -> Option<FileName> {
        let totals = self.totals.get(share.name)?;
        if totals.records <= share.records && totals.bytes <= share.bytes {
            return None;
        }
        let others = self.rows.iter().filter(|(other, _)| *other != newest);
        let others = others.filter(|(_, row)| row.share == *share);
        others.min_by_key(|(_, row)| row.used).map(|(other, _)| *other)
    }
}

// === impl Shelf ===

impl Shelf {
    /// Opens the folder, which need not exist. An unreadable folder counts as empty, and is logged.
    #[must_use]
    pub fn open(folder: PathBuf, limits: Limits) -> Self {
        let shelf = Self {
            folder,
            limits,
            index: Mutex::default(),
            writing: Mutex::default(),
        };
        match shelf.load() {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let folder = shelf.folder.display();
                tracing::warn!(%folder, %error, "Failed to read kept records; starting without them");
            }
        }
        shelf
    }

    /// Reads names, sizes and keys only; the files are verified when they are used. The oldest come first, for the
    /// eviction.
    fn load(&self) -> io::Result<()> {
        let mut found = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            let file = file?;
            let name = file.file_name();
            let Some(name) = name.to_str().and_then(FileName::parse) else {
                // A file that was being written when the power failed.
                self.delete(&file.path());
                continue;
            };
            match file
                .metadata()
                .and_then(|about| Ok((about.modified()?, name, about.len())))
            {
                Ok(row) => found.push(row),
                // A bad sector, for example: the others count.
                Err(error) => {
                    let path = file.path();
                    tracing::warn!(path = %path.display(), %error, "Failed to read kept record");
                }
            }
        }
        found.sort();
        for (_, name, size) in found {
            if size > self.limits.file {
                self.delete(&self.path(&name));
                continue;
            }
            let share = self.share_in(&name);
            self.index.lock().insert(name, share, size, None);
            self.make_room(&share, &name);
        }
        Ok(())
    }

    /// Returns the record of `key`. A damaged file is deleted; one that cannot be read now stays for later.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Record> {
        let name = FileName::of(key);
        self.index.lock().used(&name)?;
        self.read(&name).filter(|record| record.key == key)
    }

    /// True if the file `name` has a record. Does not block.
    #[must_use]
    pub fn contains(&self, name: &FileName) -> bool {
        self.index.lock().rows.contains_key(name)
    }

    /// All intact records, each read when it is its turn; damaged files are deleted.
    pub fn all(&self) -> impl Iterator<Item = Record> {
        let names: Vec<FileName> = self.index.lock().rows.keys().copied().collect();
        names.into_iter().filter_map(|name| self.read(&name))
    }

    /// Writes a record if it differs from the one on the disk. Evicts the least recently used ones of its share for it.
    /// Returns true if it wrote.
    ///
    /// # Errors
    /// [`ShelfError`]; the former record of that key stays, or the new one is there, but a power cut may undo it.
    pub fn put(&self, record: &Record) -> Result<bool, ShelfError> {
        let _one = self.writing.lock();
        let (name, file) = (FileName::of(&record.key), Bytes::from(record.encode()));
        let size = file.len() as u64;
        let share = (self.limits.share_of)(&record.key);
        let max = self.limits.file.min(share.bytes);
        if size > max {
            return Err(ShelfError::TooLarge { size, max });
        }
        let new = sum(&file);
        let held = self.index.lock().used(&name);
        if let Some(row) = held
            && row.is_synced
            && row.size == size
            && row.sum.or_else(|| self.read_file(&name).ok().map(|held| sum(&held))) == Some(new)
        {
            self.index.lock().insert(name, share, size, Some(new));
            return Ok(false);
        }
        let written = self.write(&name, &file);
        match &written {
            Ok(()) => self.index.lock().insert(name, share, size, Some(new)),
            Err(_) => self.look_up(&name, share),
        }
        // Only now: a full disk must not cost the others.
        self.make_room(&share, &name);
        Ok(written.map(|()| true)?)
    }

    fn write(&self, name: &FileName, file: &[u8]) -> io::Result<()> {
        let path = self.path(name);
        match write_secret(&path, file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_folder(&self.folder, FOLDER_MODE)?;
                write_secret(&path, file)
            }
            written => written,
        }
    }

    /// Enters the file that a failed write left: the former one or the new one.
    fn look_up(&self, name: &FileName, share: Share) {
        let file = fs::metadata(self.path(name));
        let mut index = self.index.lock();
        if index.left.contains(name) {
            return;
        }
        if let Ok(file) = file {
            index.insert(*name, share, file.len(), None);
        }
        if let Some(row) = index.rows.get_mut(name) {
            row.is_synced = false;
        }
    }

    /// Deletes the record of `key`, durably.
    ///
    /// # Errors
    /// The file could not be deleted; the record is gone for this process. A further call tries again.
    pub fn remove(&self, key: &str) -> io::Result<()> {
        let _one = self.writing.lock();
        let name = FileName::of(key);
        {
            let mut index = self.index.lock();
            if !index.remove(&name) && !index.left.contains(&name) {
                return Ok(());
            }
            index.left.insert(name);
        }
        match fs::remove_file(self.path(&name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        File::open(&self.folder)?.sync_all()?;
        self.index.lock().left.remove(&name);
        Ok(())
    }

    /// Deletes all records, and the files of removed ones.
    pub fn clear(&self) {
        let _one = self.writing.lock();
        let Index { rows, left, .. } = std::mem::take(&mut *self.index.lock());
        for name in rows.into_keys().chain(left) {
            self.delete(&self.path(&name));
        }
    }

    /// Records and bytes held.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let index = self.index.lock();
        Totals {
            records: index.rows.len(),
            bytes: index.totals.values().map(|totals| totals.bytes).sum(),
        }
    }

    fn make_room(&self, share: &Share, newest: &FileName) {
        loop {
            let victim = self.index.lock().victim(share, newest);
            let Some(victim) = victim else { return };
            self.index.lock().remove(&victim);
            self.delete(&self.path(&victim));
        }
    }

    fn read(&self, name: &FileName) -> Option<Record> {
        let record = match self.read_file(name) {
            Ok(file) => Record::decode(&file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                // No file descriptor is left, for example.
                let path = self.path(name);
                tracing::warn!(path = %path.display(), %error, "Failed to read kept record");
                return None;
            }
        };
        if record.is_none() && self.index.lock().remove(name) {
            self.delete(&self.path(name));
        }
        record
    }

    /// Share of the record in a file. One whose key cannot be read now counts as one with an empty key.
    fn share_in(&self, name: &FileName) -> Share {
        let mut front = Vec::new();
        let read = File::open(self.path(name)).and_then(|file| file.take(FRONT_MAX).read_to_end(&mut front));
        let key = read.ok().and_then(|_| Record::key_in(&front));
        (self.limits.share_of)(&key.unwrap_or_default())
    }

    fn read_file(&self, name: &FileName) -> io::Result<Bytes> {
        let mut file = Vec::new();
        let max = self.limits.file + 1;
        File::open(self.path(name))?.take(max).read_to_end(&mut file)?;
        Ok(file.into())
    }

    fn path(&self, name: &FileName) -> PathBuf {
        self.folder.join(name.to_string())
    }

    fn delete(&self, path: &Path) {
        if let Err(error) = fs::remove_file(path) {
            tracing::debug!(path = %path.display(), %error, "Failed to delete kept record");
        }
    }
}

#[cfg(test)]
mod tests;
