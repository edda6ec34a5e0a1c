//! Contents of a disk after a kill or a power cut at any point of a recording.
//!
//! The model is POSIX without the promises of one file system. Only what was synced is certain: the bytes of a file
//! with the file, its name with the folder. Each other change may have arrived or not.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::behind::ROOT;

/// A name in the folder of this number.
pub type At = (u64, OsString);

/// One change of the disk. Files and folders have numbers, the root has 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new, empty folder.
    MakeFolder {
        /// Its place.
        at: At,
        /// Its number.
        number: u64,
    },
    /// A new, empty file.
    Create {
        /// Its place.
        at: At,
        /// Its number.
        number: u64,
    },
    /// Bytes of a file.
    Write {
        /// Its number.
        file: u64,
        /// Their place.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Size of a file.
    Resize {
        /// Its number.
        file: u64,
        /// The size in bytes.
        size: u64,
    },
    /// Another name; what had it is gone.
    Rename {
        /// The former place.
        from: At,
        /// The new place.
        to: At,
    },
    /// A file or folder is gone.
    Remove {
        /// Its place.
        at: At,
    },
    /// The bytes of a file are certain.
    Sync {
        /// Its number.
        file: u64,
    },
    /// The names in a folder are certain.
    SyncFolder {
        /// Its number.
        folder: u64,
    },
    /// Something was acknowledged, see [`super::FaultFs::note`].
    Note(usize),
}

/// The recording of one file system; off at first.
#[derive(Clone, Debug, Default)]
pub(super) struct Recording(Arc<Mutex<Option<Vec<Change>>>>);

/// Loss of a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// None: the process was killed.
    Killed,
    /// Everything that was not synced.
    All,
    /// All bytes that were not synced; names arrived.
    Bytes,
    /// Each change on its own; of a write, each sector of 512 bytes.
    Some,
}

/// All files and folders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    folders: BTreeMap<u64, BTreeMap<OsString, u64>>,
    files: BTreeMap<u64, Vec<u8>>,
}

/// A disk that is followed from change to change.
#[derive(Clone, Debug)]
pub struct Followed {
    /// Content without a power cut.
    cached: Tree,
    /// Content that is certain.
    stable: Tree,
    /// Changes that are not certain.
    pending: Vec<Change>,
}

/// Mode of all files: a recording has none.
const FILE_MODE: u32 = 0o600;
/// Bytes that a disk writes as a whole.
const SECTOR: usize = 512;

// === impl Recording ===

impl Recording {
    pub(super) fn start(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
    }

    pub(super) fn push(&self, change: impl FnOnce() -> Change) {
        let mut recording = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(changes) = &mut *recording {
            changes.push(change());
        }
    }

    pub(super) fn stop(&self) -> Vec<Change> {
        let mut recording = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recording.take().unwrap_or_default()
    }
}

// === impl Tree ===

impl Tree {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::MakeFolder { at, number } => {
                self.folders.entry(*number).or_default();
                self.link(at, *number);
            }
            Change::Create { at, number } => {
                self.files.entry(*number).or_default();
                self.link(at, *number);
            }
            Change::Write { file, offset, bytes } => {
                let offset = usize::try_from(*offset).unwrap_or(usize::MAX);
                let content = self.files.entry(*file).or_default();
                content.resize(content.len().max(offset + bytes.len()), 0);
                content[offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            Change::Resize { file, size } => {
                let size = usize::try_from(*size).unwrap_or(usize::MAX);
                self.files.entry(*file).or_default().resize(size, 0);
            }
            Change::Rename { from, to } => {
                let number = self.folders.entry(from.0).or_default().remove(&from.1);
                if let Some(number) = number {
                    self.link(to, number);
                }
            }
            Change::Remove { at } => {
                self.folders.entry(at.0).or_default().remove(&at.1);
            }
            Change::Sync { .. } | Change::SyncFolder { .. } | Change::Note(_) => {}
        }
    }

    fn link(&mut self, at: &At, number: u64) {
        self.folders.entry(at.0).or_default().insert(at.1.clone(), number);
    }

    /// Writes everything below the folder `place`, which exists.
    ///
    /// # Errors
    /// Of the file system.
    pub fn write_to(&self, place: &Path) -> io::Result<()> {
        self.write_folder(ROOT, place)
    }

    fn write_folder(&self, number: u64, place: &Path) -> io::Result<()> {
        for (name, number) in self.folders.get(&number).into_iter().flatten() {
            let place = place.join(name);
            if self.folders.contains_key(number) {
                std::fs::create_dir_all(&place)?;
                self.write_folder(*number, &place)?;
            } else {
                std::fs::write(&place, self.files.get(number).map_or(&[][..], Vec::as_slice))?;
                std::fs::set_permissions(&place, Permissions::from_mode(FILE_MODE))?;
            }
        }
        Ok(())
    }
}

// === impl Followed ===

impl Followed {
    /// The disk after `before`, all of which is certain.
    #[must_use]
    pub fn after(before: &[Change]) -> Self {
        let mut cached = Tree::default();
        before.iter().for_each(|change| cached.apply(change));
        Self {
            stable: cached.clone(),
            cached,
            pending: Vec::new(),
        }
    }

    /// Applies the next change.
    pub fn apply(&mut self, change: &Change) {
        self.cached.apply(change);
        match change {
            Change::Sync { file } => {
                let content = self.cached.files.get(file).cloned().unwrap_or_default();
                self.stable.files.insert(*file, content);
                self.pending.retain(|change| data_of(change) != Some(*file));
            }
            Change::SyncFolder { folder } => {
                let names = self.cached.folders.get(folder).cloned().unwrap_or_default();
                for number in names.values().filter(|number| self.cached.folders.contains_key(number)) {
                    self.stable.folders.entry(*number).or_default();
                }
                self.stable.folders.insert(*folder, names);
                self.pending.retain(|change| !names_of(change).contains(&Some(*folder)));
            }
            Change::Note(_) => {}
            change => self.pending.push(change.clone()),
        }
    }

    /// Content that a crash at this point leaves; `flip` decides about single changes.
    #[must_use]
    pub fn image(&self, loss: Loss, mut flip: impl FnMut() -> bool) -> Tree {
        let is_killed = loss == Loss::Killed;
        let mut tree = if is_killed {
            self.cached.clone()
        } else {
            self.stable.clone()
        };
        for change in self.pending.iter().filter(|_| !is_killed) {
            match (loss, change) {
                (Loss::Bytes, change) if data_of(change).is_none() => tree.apply(change),
                (Loss::Some, Change::Write { file, offset, bytes }) => {
                    for (sector, part) in bytes.chunks(SECTOR).enumerate().filter(|_| flip()) {
                        tree.apply(&Change::Write {
                            file: *file,
                            offset: offset + (sector * SECTOR) as u64,
                            bytes: part.to_vec(),
                        });
                    }
                }
                (Loss::Some, change) if flip() => tree.apply(change),
                _ => {}
            }
        }
        tree
    }
}

/// Number of the file whose bytes change.
fn data_of(change: &Change) -> Option<u64> {
    match change {
        Change::Write { file, .. } | Change::Resize { file, .. } => Some(*file),
        _ => None,
    }
}

/// Numbers of the folders whose names change.
fn names_of(change: &Change) -> [Option<u64>; 2] {
    match change {
        Change::MakeFolder { at, .. } | Change::Create { at, .. } | Change::Remove { at } => [Some(at.0), None],
        Change::Rename { from, to } => [Some(from.0), Some(to.0)],
        _ => [None, None],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str) -> At {
        (ROOT, name.into())
    }

    fn write(file: u64, bytes: &[u8]) -> Change {
        Change::Write {
            file,
            offset: 0,
            bytes: bytes.to_vec(),
        }
    }

    /// Files of the root with their contents.
    fn files(tree: &Tree) -> Vec<(String, String)> {
        let folder = crate::TestDir::new();
        tree.write_to(folder.path()).unwrap();
        let mut files: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|file| {
                let path = file.unwrap().path();
                let content = std::fs::read_to_string(&path).unwrap();
                (path.file_name().unwrap().to_string_lossy().into_owned(), content)
            })
            .collect();
        files.sort();
        files
    }

    fn after(changes: &[Change], loss: Loss) -> Vec<(String, String)> {
        let mut disk = Followed::after(&[Change::Create { at: at("a"), number: 2 }, write(2, b"old")]);
        changes.iter().for_each(|change| disk.apply(change));
        files(&disk.image(loss, || false))
    }

    #[test]
    fn only_what_was_synced_is_certain() {
        let new = [Change::Create { at: at("t"), number: 3 }, write(3, b"new")];
        let named = Change::Rename {
            from: at("t"),
            to: at("a"),
        };
        let careless = [&new[..], std::slice::from_ref(&named)].concat();
        let is = |name: &str, content: &str| vec![(name.to_owned(), content.to_owned())];
        assert_eq!(after(&careless, Loss::Killed), is("a", "new"));
        assert_eq!(after(&careless, Loss::All), is("a", "old"));
        assert_eq!(after(&careless, Loss::Some), is("a", "old"));
        assert_eq!(after(&careless, Loss::Bytes), is("a", ""), "a name without its bytes");
        let synced = [&new[..], &[Change::Sync { file: 3 }, named]].concat();
        assert_eq!(after(&synced, Loss::Bytes), is("a", "new"));
        assert_eq!(after(&synced, Loss::All), is("a", "old"));
        let certain = [&synced[..], &[Change::SyncFolder { folder: ROOT }]].concat();
        assert_eq!(after(&certain, Loss::All), is("a", "new"));
    }
}
