//! Serves the resources that the pool shares.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::app::App;

/// Applies the resources to share that the leader has sent to another coordinator.
pub(super) async fn follow(app: Arc<App>, stop: CancellationToken) {
    let mut changes = app.feed.scope().changes();
    while let Some(Ok(())) = stop.run_until_cancelled(changes.changed()).await {
        changes.mark_unchanged();
        app.follow_scope().await;
    }
}
