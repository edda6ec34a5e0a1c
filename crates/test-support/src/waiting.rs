//! Waiting for what other tasks do: looking again until it is so, never a fixed sleep.

use std::time::Duration;

/// Everything on one machine happens within this time, however busy it is, unless it is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Looks until there is something to return, for at most [`PATIENCE`].
///
/// # Panics
/// With `what` when nothing ever came.
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
