//! The folder behind the file system, and the health of its disk.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Health of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// Normal operation.
    #[default]
    Works,
    /// No answer until it works or fails again.
    Stalls,
    /// Input/output errors.
    Fails,
}

/// The health of a disk, which its owner sets and every request reads.
#[derive(Debug, Default)]
pub(super) struct Switch {
    health: Mutex<Health>,
    changed: Condvar,
}

/// The folder, as the kernel addresses it: by numbers.
pub(super) struct Behind {
    switch: Arc<Switch>,
    paths: HashMap<u64, PathBuf>,
    open: HashMap<u64, File>,
    next: u64,
}

/// A file or folder: its number and metadata.
pub(super) type Entry = (u64, Metadata);

/// The number of the folder itself.
pub(super) const ROOT: u64 = 1;
/// Input/output error.
const EIO: i32 = 5;

// === impl Switch ===

impl Switch {
    pub(super) fn set(&self, health: Health) {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = health;
        self.changed.notify_all();
    }

    /// The health once the disk does not stall.
    fn settled(&self) -> Health {
        let health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let settled = self.changed.wait_while(health, |health| *health == Health::Stalls);
        *settled.unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Behind ===

impl Behind {
    pub(super) fn new(folder: PathBuf, switch: Arc<Switch>) -> Self {
        Self {
            switch,
            paths: HashMap::from([(ROOT, folder)]),
            open: HashMap::new(),
            next: ROOT + 1,
        }
    }

    /// Waits while the disk stalls; an error while it fails.
    pub(super) fn works(&self) -> io::Result<()> {
        match self.switch.settled() {
            Health::Fails => Err(io::Error::from_raw_os_error(EIO)),
            Health::Works | Health::Stalls => Ok(()),
        }
    }

    pub(super) fn lookup(&mut self, parent: u64, name: &OsStr) -> io::Result<Entry> {
        let path = self.path(parent)?.join(name);
        let metadata = fs::symlink_metadata(&path)?;
        Ok((self.number(path), metadata))
    }

    pub(super) fn metadata(&self, number: u64) -> io::Result<Entry> {
        Ok((number, fs::symlink_metadata(self.path(number)?)?))
    }

    pub(super) fn resize(&mut self, number: u64, size: u64) -> io::Result<()> {
        self.works()?;
        OpenOptions::new().write(true).open(self.path(number)?)?.set_len(size)
    }

    pub(super) fn make_folder(&mut self, parent: u64, name: &OsStr) -> io::Result<Entry> {
        self.works()?;
        fs::create_dir(self.path(parent)?.join(name))?;
        self.lookup(parent, name)
    }

    pub(super) fn remove(&mut self, parent: u64, name: &OsStr, is_folder: bool) -> io::Result<()> {
        self.works()?;
        let path = self.path(parent)?.join(name);
        if is_folder {
            fs::remove_dir(&path)?;
        } else {
            fs::remove_file(&path)?;
        }
        self.paths.retain(|_, known| *known != path);
        Ok(())
    }

    /// A replaced entry is gone; the moved one keeps its number.
    pub(super) fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr)) -> io::Result<()> {
        self.works()?;
        let (from, to) = (self.path(from.0)?.join(from.1), self.path(to.0)?.join(to.1));
        fs::rename(&from, &to)?;
        self.paths.retain(|_, path| *path != to);
        for path in self.paths.values_mut() {
            let rest = path.strip_prefix(&from).map(Path::to_path_buf);
            match rest {
                Ok(rest) if rest.as_os_str().is_empty() => path.clone_from(&to),
                Ok(rest) => *path = to.join(rest),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Opens a file; returns its handle.
    pub(super) fn open(&mut self, number: u64) -> io::Result<u64> {
        self.works()?;
        let file = OpenOptions::new().read(true).write(true).open(self.path(number)?)?;
        Ok(self.keep(file))
    }

    pub(super) fn create(&mut self, parent: u64, name: &OsStr) -> io::Result<(Entry, u64)> {
        self.works()?;
        let path = self.path(parent)?.join(name);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        Ok((self.lookup(parent, name)?, self.keep(file)))
    }

    pub(super) fn close(&mut self, handle: u64) {
        self.open.remove(&handle);
    }

    pub(super) fn read(&self, handle: u64, offset: u64, size: usize) -> io::Result<Vec<u8>> {
        let file = self.file(handle)?;
        let (mut bytes, mut filled) = (vec![0; size], 0);
        while filled < size {
            match file.read_at(&mut bytes[filled..], offset + filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    pub(super) fn write(&self, handle: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(handle)?.write_all_at(bytes, offset)
    }

    pub(super) fn sync(&self, handle: u64) -> io::Result<()> {
        self.file(handle)?.sync_data()
    }

    /// The folder's entries: number, name, whether it is a folder.
    pub(super) fn entries(&mut self, number: u64) -> io::Result<Vec<(u64, OsString, bool)>> {
        self.works()?;
        let entries: Vec<fs::DirEntry> = fs::read_dir(self.path(number)?)?.collect::<io::Result<_>>()?;
        let entry = |entry: fs::DirEntry| {
            let is_folder = entry.file_type()?.is_dir();
            Ok((self.number(entry.path()), entry.file_name(), is_folder))
        };
        entries.into_iter().map(entry).collect()
    }

    fn path(&self, number: u64) -> io::Result<&PathBuf> {
        self.paths.get(&number).ok_or_else(|| io::Error::from_raw_os_error(2))
    }

    fn number(&mut self, path: PathBuf) -> u64 {
        let known = self.paths.iter().find(|(_, known)| **known == path);
        if let Some((number, _)) = known {
            return *number;
        }
        self.next += 1;
        self.paths.insert(self.next, path);
        self.next
    }

    fn keep(&mut self, file: File) -> u64 {
        self.next += 1;
        self.open.insert(self.next, file);
        self.next
    }

    fn file(&self, handle: u64) -> io::Result<&File> {
        self.works()?;
        self.open.get(&handle).ok_or_else(|| io::Error::from_raw_os_error(9))
    }
}
