//! Copy of the mark in a file next to the store: a store that was restored from an older copy is behind it.
//!
//! The file is written after the store's own mark. So it is never ahead of the store it belongs to, however the process
//! ends. The mark moves with every start, and with the first write one minute or more after its last move. A restored
//! copy younger than that is not detected.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The file; it contains one decimal number.
#[derive(Debug)]
pub(super) struct MarkFile {
    path: PathBuf,
    is_safe: bool,
}

/// Contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// The file does not exist.
    Missing,
    /// Marks up to this one were stored; 0 when the file cannot be read as a number.
    Mark(u64),
}

// === impl MarkFile ===

impl MarkFile {
    /// The file that belongs to the store at `store`.
    pub(super) fn of(store: &Path) -> Self {
        Self {
            path: store.with_extension("mark"),
            is_safe: false,
        }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// The file exists and cannot be read; the text names it.
    pub(super) fn read(&self) -> Result<Noted, String> {
        let file = self.path.display();
        match std::fs::read(&self.path) {
            Ok(text) => {
                let number = str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
                Ok(Noted::Mark(number.unwrap_or_else(|| {
                    // A power loss can leave the file like this.
                    tracing::warn!(%file, "Invalid RV mark file; a store restored from a copy would go undetected");
                    0
                })))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Noted::Missing),
            Err(error) => Err(format!("{file}: {error}")),
        }
    }

    /// Replaces the file. Only the first write is flushed: after a power loss the file must exist, and an older number
    /// is good enough.
    pub(super) fn write(&mut self, mark: u64) {
        match self.replace(mark) {
            Ok(()) => self.is_safe = true,
            Err(error) => {
                let file = self.path.display();
                tracing::warn!(%file, %error, "Failed to write the RV mark file");
            }
        }
    }

    fn replace(&self, mark: u64) -> io::Result<()> {
        let temporary = self.path.with_extension("mark.new");
        let mut file = File::create(&temporary)?;
        file.write_all(format!("{mark}\n").as_bytes())?;
        if !self.is_safe {
            file.sync_data()?;
        }
        std::fs::rename(&temporary, &self.path)?;
        match self.path.parent().filter(|_| !self.is_safe) {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }
}
