//! Polling for the effects of other tasks, instead of a fixed sleep.

use std::time::Duration;

/// Time limit for anything on one machine, however busy it is, unless it is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two polls.
const PAUSE: Duration = Duration::from_millis(10);

/// Polls until there is a value to return, for at most [`PATIENCE`].
///
/// # Panics
/// With `what` when no value came in time.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            match look().await {
                Some(found) => return found,
                None => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    match tokio::time::timeout(PATIENCE, looking).await {
        Ok(found) => found,
        Err(_) => panic!("not within {PATIENCE:?}: {what}"),
    }
}
