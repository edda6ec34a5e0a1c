//! How far this coordinator has seen the store, in a file of its own: etcd cannot be asked what it has forgotten.
//!
//! Written now and then, it lies up to [`EVERY`] behind; a store put back by less than that is taken for the one it was.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Shared;

/// The file is written this often at most: each time wears the medium by a page or two.
const EVERY: Duration = Duration::from_secs(60);

/// The file; one decimal number in it.
#[derive(Clone, Debug)]
pub(super) struct Mark(PathBuf);

// === impl Mark ===

impl Mark {
    pub(super) fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Highest number that was shown, without its tag; 0 when there is no file. What cannot be read is no number.
    ///
    /// # Errors
    /// The file is there and cannot be read, naming it.
    pub(super) fn read(&self) -> Result<u64, String> {
        match std::fs::read_to_string(&self.0) {
            Ok(text) => Ok(text.trim().parse().unwrap_or_else(|_| {
                tracing::warn!(file = %self.0.display(), "No number in it; an etcd that went back would not be noticed");
                0
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(format!("{}: {error}", self.0.display())),
        }
    }

    /// Replaces the file. Without a flush: after a power failure the number before it is as good.
    pub(super) fn write(&self, number: u64) {
        let temporary = self.0.with_extension("new");
        let written = std::fs::write(&temporary, format!("{number}\n"));
        if let Err(error) = written.and_then(|()| std::fs::rename(&temporary, &self.0)) {
            tracing::warn!(file = %self.0.display(), %error, "Cannot note how far etcd is");
        }
    }
}

/// Notes what has been published, until asked to stop.
pub(super) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let mut noted = 0;
    while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        let published = *shared.published.borrow();
        if published > noted {
            shared.note_mark();
            noted = published;
        }
    }
}
