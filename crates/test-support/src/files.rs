//! A folder that lives as long as its test.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// An empty folder, removed when dropped.
#[derive(Debug)]
pub struct TestDir(TempDir);

// === impl TestDir ===

impl TestDir {
    /// Creates the folder.
    ///
    /// # Panics
    /// When the temporary folder of the system is not writable.
    #[must_use]
    pub fn new() -> Self {
        TestDir(tempfile::tempdir().expect("the temporary folder must be writable"))
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file of this name in the folder, replacing it, and returns its path.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, content).expect("a test folder must be writable");
        path
    }
}

impl Default for TestDir {
    fn default() -> Self {
        Self::new()
    }
}
