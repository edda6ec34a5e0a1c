//! Small files that the hub creates at its start, and that a disk does not take that is full or read-only: kept in
//! memory, and written once it does.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use yurt_runtime::pki::{make_folder, write_public, write_secret};

use crate::FOLDER_MODE;
use crate::failures::Failures;
use crate::replicas::disk::takes_nothing;

/// Time between attempts to write the files.
const RETRY_EVERY: Duration = Duration::from_secs(10);

/// Files that are only in memory, in the order in which they are written.
#[derive(Default)]
pub(crate) struct Unwritten(Vec<Unstored>);

/// Readers of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// The owner.
    Owner,
    /// Every user.
    All,
}

/// A file that the disk did not take. `Debug` is left out: it may hold a secret.
#[derive(Clone)]
struct Unstored {
    /// Name below the root folder; also the name of the failure.
    name: &'static str,
    path: PathBuf,
    content: String,
    readers: Readers,
    why: String,
}

// === impl Unwritten ===

impl Unwritten {
    /// Writes the file `name` below `root`, atomically and durably. If the disk takes nothing it is kept here for
    /// later.
    ///
    /// # Errors
    /// All others than of a disk that is full or read-only; the message names the file.
    pub(crate) fn write(&mut self, root: &Path, name: &'static str, content: &str, readers: Readers) -> io::Result<()> {
        let mut file = Unstored {
            name,
            path: root.join(name),
            content: content.to_owned(),
            readers,
            why: String::new(),
        };
        match file.write() {
            Err(error) if takes_nothing(&error) => {
                tracing::warn!(%error, "Failed to write file; it is in memory until the disk takes it");
                file.why = error.to_string();
                self.0.push(file);
                Ok(())
            }
            written => written,
        }
    }

    /// Content of the file `name`, if it is only in memory.
    pub(crate) fn content(&self, name: &str) -> Option<&str> {
        let file = self.0.iter().find(|file| file.name == name)?;
        Some(&file.content)
    }

    /// Writes the files once the disk takes them, until `stop`. Those that are missing are in `failures`.
    pub(crate) async fn store(mut self, failures: Failures, stop: CancellationToken) {
        for file in &self.0 {
            failures.unanswered(file.name, &file.why);
        }
        while !self.0.is_empty() {
            let waited = stop.run_until_cancelled(tokio::time::sleep(RETRY_EVERY)).await;
            if waited.is_none() {
                return;
            }
            let unstored = self.0.clone();
            let tried = tokio::task::spawn_blocking(move || unstored.iter().map(Unstored::write).collect::<Vec<_>>());
            let mut outcomes = tried.await.unwrap_or_default().into_iter();
            self.0.retain(|file| match outcomes.next() {
                Some(Ok(())) => {
                    tracing::info!(path = %file.path.display(), "File written");
                    failures.works(file.name);
                    false
                }
                Some(Err(error)) => {
                    failures.unanswered(file.name, &error.to_string());
                    true
                }
                None => true,
            });
        }
    }
}

// === impl Unstored ===

impl Unstored {
    fn write(&self) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            make_folder(folder, FOLDER_MODE)?;
        }
        match self.readers {
            Readers::Owner => write_secret(&self.path, &self.content),
            Readers::All => write_public(&self.path, &self.content),
        }
    }
}
