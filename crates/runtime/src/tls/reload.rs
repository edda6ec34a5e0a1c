//! Detection of changed PEM files, by comparing their contents.
//!
//! Polling instead of inotify: a mounted Secret changes by swapping a symlink two directories up, and the files are
//! small.

use std::time::Duration;

use parking_lot::Mutex;

use super::{PemSource, TlsError};

/// Interval between reads of the files; a rotated certificate is in use after at most this time.
pub const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// The files behind a configuration, with their contents when it was built.
#[derive(Debug)]
pub(super) struct WatchedFiles {
    sources: Vec<PemSource>,
    // Contents of `sources`, in their order, at the last build or attempt. Never held while reading files.
    seen: Mutex<Vec<Vec<u8>>>,
}

// === impl WatchedFiles ===

impl WatchedFiles {
    /// Reads the files once. Inline sources are dropped: they cannot change.
    pub(super) fn new<'a>(sources: impl IntoIterator<Item = &'a PemSource>) -> Result<Self, TlsError> {
        let sources: Vec<_> = sources
            .into_iter()
            .filter(|source| matches!(source, PemSource::File(_)))
            .cloned()
            .collect();
        let seen = Mutex::new(read(&sources)?);
        Ok(WatchedFiles { sources, seen })
    }

    /// True if a file differs from the last call. An unreadable file is an error on every call.
    pub(super) fn changed(&self) -> Result<bool, TlsError> {
        let now = read(&self.sources)?;
        let mut seen = self.seen.lock();
        if *seen == now {
            return Ok(false);
        }
        *seen = now;
        Ok(true)
    }

    /// True if there is nothing to poll.
    pub(super) fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }
}

fn read(sources: &[PemSource]) -> Result<Vec<Vec<u8>>, TlsError> {
    sources
        .iter()
        .map(|source| source.read().map(std::borrow::Cow::into_owned))
        .collect()
}
