//! The mark once more, in a file beside the store: a store that was put back from an older copy lies behind it.
//!
//! The file is written after the store's own mark, so it is never ahead of the store it belongs to, however the process
//! ends. The mark moves with every start, and with the first write a minute after it moved last: a copy that is younger
//! than that is taken for the store itself.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The file; one decimal number in it.
#[derive(Debug)]
pub(super) struct MarkFile {
    path: PathBuf,
    is_safe: bool,
}

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// There is none.
    Missing,
    /// Marks up to this one were stored; 0 when it cannot be read.
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

    /// What is in it.
    ///
    /// # Errors
    /// The file is there and cannot be read, naming it.
    pub(super) fn read(&self) -> Result<Noted, String> {
        let file = self.path.display();
        match std::fs::read(&self.path) {
            Ok(text) => {
                let number = str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
                Ok(Noted::Mark(number.unwrap_or_else(|| {
                    // As a power loss leaves it.
                    tracing::warn!(%file, "No number in it; a store put back from a copy would not be noticed");
                    0
                })))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Noted::Missing),
            Err(error) => Err(format!("{file}: {error}")),
        }
    }

    /// Replaces it. Only the first time with a flush: after a power loss it has to be there, and an older number is as good.
    pub(super) fn write(&mut self, mark: u64) {
        match self.replace(mark) {
            Ok(()) => self.is_safe = true,
            Err(error) => {
                let file = self.path.display();
                tracing::warn!(%file, %error, "Cannot note how far the store is");
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
