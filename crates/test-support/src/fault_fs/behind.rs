//! The folder behind the file system, and the health of its disk.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::power::{Change, Recording};

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
    /// No space for anything new; what is there can be read, overwritten and deleted.
    Full,
    /// No change; everything that is there can be read.
    ReadOnly,
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
    recording: Recording,
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
/// No space left on the device.
const ENOSPC: i32 = 28;
/// The file system is read-only.
const EROFS: i32 = 30;

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
    pub(super) fn new(folder: PathBuf, switch: Arc<Switch>, recording: Recording) -> Self {
        Self {
            switch,
            recording,
            paths: HashMap::from([(ROOT, folder)]),
            open: HashMap::new(),
            next: ROOT + 1,
        }
    }

    /// Waits while the disk stalls; an error while it fails.
    pub(super) fn works(&self) -> io::Result<()> {
        match self.switch.settled() {
            Health::Fails => Err(io::Error::from_raw_os_error(EIO)),
            Health::Works | Health::Stalls | Health::Full | Health::ReadOnly => Ok(()),
        }
    }

    /// As [`Self::works`], for a change; an error if it `needs` space while there is none.
    fn may_change(&self, needs: bool) -> io::Result<()> {
        match self.switch.settled() {
            Health::Full if needs => Err(io::Error::from_raw_os_error(ENOSPC)),
            Health::ReadOnly => Err(io::Error::from_raw_os_error(EROFS)),
            _ => self.works(),
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
        let file = OpenOptions::new().write(true).open(self.path(number)?)?;
        self.may_change(size > file.metadata()?.len())?;
        file.set_len(size)?;
        self.recording.push(|| Change::Resize { file: number, size });
        Ok(())
    }

    /// Sets the mode of a file; a recording does not have it.
    pub(super) fn set_mode(&self, number: u64, mode: u32) -> io::Result<()> {
        self.may_change(false)?;
        fs::set_permissions(self.path(number)?, fs::Permissions::from_mode(mode & 0o7777))
    }

    pub(super) fn make_folder(&mut self, parent: u64, name: &OsStr) -> io::Result<Entry> {
        self.may_change(true)?;
        fs::create_dir(self.path(parent)?.join(name))?;
        let entry = self.lookup(parent, name)?;
        self.recording.push(|| Change::MakeFolder {
            at: (parent, name.to_owned()),
            number: entry.0,
        });
        Ok(entry)
    }

    pub(super) fn remove(&mut self, parent: u64, name: &OsStr, is_folder: bool) -> io::Result<()> {
        self.may_change(false)?;
        let path = self.path(parent)?.join(name);
        if is_folder {
            fs::remove_dir(&path)?;
        } else {
            fs::remove_file(&path)?;
        }
        self.paths.retain(|_, known| *known != path);
        self.recording.push(|| Change::Remove {
            at: (parent, name.to_owned()),
        });
        Ok(())
    }

    /// A replaced entry is gone; the moved one keeps its number.
    pub(super) fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr)) -> io::Result<()> {
        self.may_change(false)?;
        let change = Change::Rename {
            from: (from.0, from.1.to_owned()),
            to: (to.0, to.1.to_owned()),
        };
        let (from, to) = (self.path(from.0)?.join(from.1), self.path(to.0)?.join(to.1));
        fs::rename(&from, &to)?;
        self.recording.push(|| change);
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

    /// Opens a file, perhaps to change it; returns its handle.
    pub(super) fn open(&mut self, number: u64, is_to_change: bool) -> io::Result<u64> {
        match is_to_change {
            true => self.may_change(false)?,
            false => self.works()?,
        }
        let file = OpenOptions::new().read(true).write(true).open(self.path(number)?)?;
        Ok(self.keep(file))
    }

    pub(super) fn create(&mut self, parent: u64, name: &OsStr) -> io::Result<(Entry, u64)> {
        let path = self.path(parent)?.join(name);
        let is_new = !path.exists();
        self.may_change(is_new)?;
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        let entry = self.lookup(parent, name)?;
        if is_new {
            self.recording.push(|| Change::Create {
                at: (parent, name.to_owned()),
                number: entry.0,
            });
        }
        Ok((entry, self.keep(file)))
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

    pub(super) fn write(&self, (number, handle): (u64, u64), offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.file(handle)?;
        self.may_change(offset + bytes.len() as u64 > file.metadata()?.len())?;
        file.write_all_at(bytes, offset)?;
        self.recording.push(|| Change::Write {
            file: number,
            offset,
            bytes: bytes.to_vec(),
        });
        Ok(())
    }

    pub(super) fn sync(&self, (number, handle): (u64, u64)) -> io::Result<()> {
        // Nothing behind has to survive a power cut.
        self.file(handle)?;
        self.recording.push(|| Change::Sync { file: number });
        Ok(())
    }

    pub(super) fn sync_folder(&self, number: u64) -> io::Result<()> {
        self.works()?;
        self.recording.push(|| Change::SyncFolder { folder: number });
        Ok(())
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
