//! Wait at a program's start until a certificate and its key match.
//!
//! A rotation replaces two files one after the other. A program that starts in between reads a pair that does not
//! match.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

/// Maximum time that a start waits for a certificate and key that match.
pub const PAIR_WAIT: Duration = Duration::from_secs(10);
/// Pause between two reads of a pair that does not match.
const PAIR_PAUSE: Duration = Duration::from_millis(200);

/// Calls `load` again while it fails with `is_mismatch`, for at most [`PAIR_WAIT`]. Logs the first such error.
///
/// # Errors
/// The last error of `load`; other errors are returned immediately.
pub async fn load_pair<T, E: Display>(
    mut load: impl FnMut() -> Result<T, E>,
    is_mismatch: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let started = Instant::now();
    let mut is_told = false;
    loop {
        let error = match load() {
            Err(error) if is_mismatch(&error) => error,
            done => return done,
        };
        let Some(pause) = pause(started.elapsed()) else {
            return Err(error);
        };
        if !std::mem::replace(&mut is_told, true) {
            warn!(%error, limit = ?PAIR_WAIT, "Waiting for a certificate and a key that match");
        }
        tokio::time::sleep(pause).await;
    }
}

/// Pause before the next read; `None` when the time is up.
fn pause(waited: Duration) -> Option<Duration> {
    let left = PAIR_WAIT.saturating_sub(waited);
    (!left.is_zero()).then(|| left.min(PAIR_PAUSE))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{PemIdentity, TlsError};
    use super::*;
    use crate::pki::CertificateAuthority;
    use crate::tls::PemPair;

    fn pair() -> PemPair {
        let authority = CertificateAuthority::generate("ca").unwrap();
        authority.issue_server("server", &["localhost"]).unwrap()
    }

    /// Files of `folder` with the certificate of one pair and the key of another.
    fn half_replaced(folder: &Path, new: &PemPair) -> PemIdentity {
        let (cert, key) = (folder.join("tls.crt"), folder.join("tls.key"));
        std::fs::write(&cert, &new.cert_pem).unwrap();
        std::fs::write(&key, &pair().key_pem).unwrap();
        PemIdentity::files(cert, key)
    }

    #[test]
    fn start_looks_again_until_the_limit_and_never_after_it() {
        let mut waited = Duration::ZERO;
        let mut readings = 1;
        while let Some(pause) = pause(waited) {
            assert!(!pause.is_zero() && pause <= PAIR_PAUSE, "{waited:?}: {pause:?}");
            waited += pause;
            readings += 1;
        }
        assert_eq!(waited, PAIR_WAIT);
        assert_eq!(readings, 51);
        assert_eq!(pause(PAIR_WAIT + Duration::from_secs(3600)), None, "after a suspend");
    }

    #[tokio::test(start_paused = true)]
    async fn start_between_two_renames_takes_the_pair_that_fits() {
        let folder = tempfile::tempdir().unwrap();
        let new = pair();
        let files = half_replaced(folder.path(), &new);
        let mut readings = 0;
        let load = || {
            readings += 1;
            if readings == 4 {
                std::fs::write(folder.path().join("tls.key"), &new.key_pem).unwrap();
            }
            files.load()
        };
        load_pair(load, TlsError::is_mismatch).await.unwrap();
        assert_eq!(readings, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn pair_that_never_fits_ends_the_start_after_the_limit_and_both_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let files = half_replaced(folder.path(), &pair());
        let started = Instant::now();
        let error = load_pair(|| files.load(), TlsError::is_mismatch).await.unwrap_err();
        assert!(started.elapsed() >= PAIR_WAIT, "{:?}", started.elapsed());
        let error = error.to_string();
        assert!(error.contains("tls.crt") && error.contains("tls.key"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn other_faults_end_the_start_at_once() {
        let started = Instant::now();
        let files = PemIdentity::files("/nowhere/tls.crt", "/nowhere/tls.key");
        assert!(load_pair(|| files.load(), TlsError::is_mismatch).await.is_err());
        assert_eq!(started.elapsed(), Duration::ZERO);
    }
}
