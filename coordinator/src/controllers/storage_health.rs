//! Writes changed pool data to the store, and checks that the store accepts writes.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use yurt_storage::{Replicas, Storage};

use super::elapsed;
use crate::app::App;
use crate::feed::fence::guard;

/// Interval of commits of changed pool data: a crash costs a resend of what came since, a commit wears the disk.
const PERSIST_EVERY: Duration = Duration::from_secs(5);
/// Interval of checks that the store accepts writes.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Maximum time of a check. A store that takes longer is not writable.
const CHECK_MAX: Duration = Duration::from_secs(5);

/// Makes changed pool data durable.
pub(super) async fn persist(app: Arc<App>, replicas: Arc<Replicas>, stop: CancellationToken) {
    let mut failure = None;
    while elapsed(PERSIST_EVERY, &stop).await {
        let persisted = replicas.persist_due(guard(&app.feed.fence().election()).as_ref()).await;
        let present = persisted.err().map(|error| error.to_string());
        // A disk may be full for hours: log that once.
        if present != failure {
            match &present {
                Some(error) => warn!(error, "Failed to persist pool data; retrying every 5 s"),
                None => info!("Persisted pool data again"),
            }
        }
        failure = present;
    }
}

/// Keeps readiness up to date, and lets a failed store recover while there are no writes.
pub(super) async fn check(storage: Arc<dyn Storage>, app: Arc<App>, stop: CancellationToken) {
    while elapsed(CHECK_EVERY, &stop).await {
        app.health.set_writable(is_writable(&*storage).await);
    }
}

/// True if the store accepts writes now. A disk that hangs answers no check.
async fn is_writable(storage: &dyn Storage) -> bool {
    tokio::time::timeout(CHECK_MAX, storage.check())
        .await
        .is_ok_and(|checked| checked.is_ok())
}

#[cfg(test)]
mod tests {
    use futures_util::future::BoxFuture;
    use yurt_apimachinery::ResourceVersion;
    use yurt_storage::backend::Sink;
    use yurt_storage::{Op, StorageError};

    use super::*;

    /// A store whose disk hangs.
    struct Hanging;

    impl Storage for Hanging {
        fn id(&self) -> &str {
            "hanging"
        }

        fn attach(&self, _: Arc<dyn Sink>) -> BoxFuture<'_, Result<(), StorageError>> {
            Box::pin(std::future::pending())
        }

        fn write(&self, _: Vec<Op>) -> BoxFuture<'_, Result<ResourceVersion, StorageError>> {
            Box::pin(std::future::pending())
        }

        fn check(&self) -> BoxFuture<'_, Result<(), StorageError>> {
            Box::pin(std::future::pending())
        }

        fn close(&self) -> BoxFuture<'_, Result<(), StorageError>> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn store_that_answers_no_check_is_not_writable() {
        let checked = tokio::time::timeout(2 * CHECK_MAX, is_writable(&Hanging)).await;
        assert_eq!(checked, Ok(false));
    }
}
