//! A folder that lives as long as its test, and a file that hangs.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;
use tokio::sync::oneshot;

use crate::PATIENCE;

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

/// Makes a pipe at `path`, in place of a file that may be there. A reader waits as on a disk that hangs.
///
/// # Panics
/// When the folder is not writable.
pub fn hang(path: &Path) {
    let _ = std::fs::remove_file(path);
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
}

/// Runs `start` on a runtime with one thread, whose time passes at once while it is idle. When one of its tasks reads
/// the pipe at `path` ([`hang`]), other tasks must run. The pipe is removed.
///
/// # Panics
/// When the read holds the thread.
pub fn runs_while_reading<T>(path: &Path, start: impl AsyncFnOnce() -> T + Send + 'static) {
    let (reading, is_reading) = oneshot::channel();
    let (running, runs) = mpsc::channel();
    let runtime = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let _running = start().await;
            is_reading.await.expect("the test waits");
            let _ = running.send(());
        });
    });
    let pipe = opened_for_writing(path);
    reading.send(()).expect("the runtime waits");
    let ran = runs.recv_timeout(PATIENCE / 4);
    // Another read must not wait again.
    std::fs::remove_file(path).expect("a pipe");
    drop(pipe);
    assert!(
        ran.is_ok(),
        "a read of {} holds a thread of the runtime",
        path.display()
    );
    runtime.join().expect("no panic");
}

/// Opens a pipe once it has a reader.
fn opened_for_writing(path: &Path) -> File {
    let (opened, pipe) = mpsc::channel();
    let path = path.to_owned();
    thread::spawn(move || opened.send(File::options().write(true).open(path)));
    let pipe = pipe.recv_timeout(PATIENCE).expect("a reader of the pipe");
    pipe.expect("a pipe")
}

impl Default for TestDir {
    fn default() -> Self {
        Self::new()
    }
}
