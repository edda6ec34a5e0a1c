//! Reads the operator's files again: initial members, roles, keys and custom resources.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::elapsed;
use crate::app::App;

/// Interval of reading the files again.
const RELOAD_EVERY: Duration = Duration::from_secs(10);

/// Reloads the initial members.
pub(super) async fn members(app: Arc<App>, stop: CancellationToken) {
    while elapsed(RELOAD_EVERY, &stop).await {
        app.feed.members().reload();
    }
}

/// Reloads the declarations of custom resources.
pub(super) async fn custom_resources(app: Arc<App>, stop: CancellationToken) {
    while elapsed(RELOAD_EVERY, &stop).await {
        app.reload_custom();
    }
}

/// Reloads the roles, and the keys of service account tokens.
pub(super) async fn filters(app: Arc<App>, stop: CancellationToken) {
    while elapsed(RELOAD_EVERY, &stop).await {
        app.filters.reload();
    }
}
