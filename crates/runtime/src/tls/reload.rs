//! Detection of changed PEM files, by comparing their contents.
//!
//! Polling instead of inotify: a mounted Secret changes by swapping a symlink two directories up, and the files are
//! small.

use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{PemSource, TlsError};
use crate::files;

/// Interval between reads of the files; a rotated certificate is in use after at most this time.
pub const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Calls `poll` every [`POLL_INTERVAL`] on a thread apart from the runtime's, because a disk may hang, and passes its
/// result to `take`. Ends when `token` is cancelled.
pub(super) async fn repeat<T: Send + 'static>(
    token: CancellationToken,
    poll: impl Fn() -> T + Clone + Send + 'static,
    take: impl Fn(T),
) {
    let next = async || {
        tokio::time::sleep(POLL_INTERVAL).await;
        files::access(poll.clone()).await
    };
    while let Some(polled) = token.run_until_cancelled(next()).await {
        take(polled);
    }
}

/// The files behind a configuration, with their contents when it was built.
#[derive(Debug)]
pub(super) struct WatchedFiles {
    sources: Vec<PemSource>,
    // Contents of `sources`, in their order, before the last build. Never held while reading files.
    seen: Mutex<Vec<Vec<u8>>>,
}

// === impl WatchedFiles ===

impl WatchedFiles {
    /// Reads the files once. Inline sources are dropped: they cannot change.
    pub(super) fn new<'a>(sources: impl IntoIterator<Item = &'a PemSource>) -> Result<Self, TlsError> {
        let sources: Vec<_> = sources
            .into_iter()
            .filter(|source| !matches!(source, PemSource::Inline { .. }))
            .cloned()
            .collect();
        let seen = Mutex::new(read(&sources)?);
        Ok(WatchedFiles { sources, seen })
    }

    /// Builds a new configuration if a file changed since the last one. An unreadable file or a failed build is an
    /// error on every call.
    pub(super) fn rebuilt<T>(&self, build: impl FnOnce() -> Result<T, TlsError>) -> Result<Option<T>, TlsError> {
        let now = read(&self.sources)?;
        if *self.seen.lock() == now {
            return Ok(None);
        }
        let built = build()?;
        *self.seen.lock() = now;
        Ok(Some(built))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_is_built_again_until_a_build_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        std::fs::write(&file, "one").unwrap();
        let files = WatchedFiles::new([&PemSource::File(file.clone())]).unwrap();
        let build = || Ok("built");
        assert_eq!(files.rebuilt(build).unwrap(), None);
        std::fs::write(&file, "two").unwrap();
        // A file may be unreadable for a moment.
        let fails = || PemSource::File(folder.path().join("none")).read().map(drop);
        assert!(files.rebuilt(fails).is_err());
        assert_eq!(files.rebuilt(build).unwrap(), Some("built"));
        assert_eq!(files.rebuilt(build).unwrap(), None);
    }
}
