//! Serves the resources that the pool shares.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::app::App;

/// Time after which a resource whose sharing the store did not let begin or end is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Applies the resources to share that the leader has sent, also to another coordinator, and repeats what failed.
pub(super) async fn follow(app: Arc<App>, stop: CancellationToken) {
    let mut changes = app.feed.scope().changes();
    let mut failure = None;
    loop {
        changes.mark_unchanged();
        let present = app.follow_scope().await.err();
        // A disk may fail for hours: log that once.
        if present != failure {
            match &present {
                Some(why) => error!(why, "Failed to share resources; retrying every 5 s"),
                None => info!("Resources shared again"),
            }
        }
        failure = present;
        let again = async {
            match failure {
                Some(_) => tokio::time::sleep(AGAIN).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = again => {}
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}
