//! Writes changed pool data to the store, and checks that the store accepts writes.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;
use yurt_storage::{Replicas, Storage};

use super::elapsed;
use crate::app::App;
use crate::feed::fence::guard;

/// Interval of commits of changed pool data: a crash costs a resend of what came since, a commit wears the disk.
const PERSIST_EVERY: Duration = Duration::from_secs(5);
/// Interval of checks that the store accepts writes.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// Makes changed pool data durable.
pub(super) async fn persist(app: Arc<App>, replicas: Arc<Replicas>, stop: CancellationToken) {
    while elapsed(PERSIST_EVERY, &stop).await {
        if let Err(error) = replicas.persist_due(guard(&app.feed.fence().election()).as_ref()).await {
            warn!(%error, "Failed to persist pool data, retrying");
        }
    }
}

/// Keeps readiness up to date, and lets a failed store recover while there are no writes.
pub(super) async fn check(storage: Arc<dyn Storage>, app: Arc<App>, stop: CancellationToken) {
    while elapsed(CHECK_EVERY, &stop).await {
        app.health.set_writable(storage.check().await.is_ok());
    }
}
