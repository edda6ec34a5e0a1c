//! A file of which some reads fail, for tests.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use yurt_storage::embedded::{FileBackend, LockedFile};

/// A file whose reads fail with the error that `fails` returns for their range.
pub(crate) struct FailingReads<F> {
    file: LockedFile,
    fails: F,
}

// === impl FailingReads ===

impl<F> FailingReads<F> {
    pub(crate) fn open(path: &Path, fails: F) -> Arc<Self> {
        let file = LockedFile::open(path).expect("a file");
        Arc::new(Self { file, fails })
    }
}

impl<F> fmt::Debug for FailingReads<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl<F: Fn(Range<u64>) -> Option<io::Error> + Send + Sync + 'static> FileBackend for FailingReads<F> {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match (self.fails)(offset..offset + out.len() as u64) {
            Some(error) => Err(error),
            None => self.file.read_at(offset, out),
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, data)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.file.set_size(size)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}
