//! Serves, and the order in which everything stops.

use std::time::Duration;

use tracing::{info, warn};

use crate::feed::fence::guard;
use crate::{Coordinator, StartError, controllers};

/// Time for connections to finish after their watches have ended.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves until `stop`, then: not ready, stop accepting, end watches, flush, close.
///
/// # Errors
/// When a task died, or the store could not be flushed.
pub(crate) async fn run(coordinator: Coordinator, stop: impl Future<Output = ()>) -> Result<(), StartError> {
    let Coordinator {
        app,
        port,
        stores,
        tasks,
        address: _,
        files: _,
    } = coordinator;
    app.tell_membership();
    let serving = port.serve(&tasks, app.clone());
    controllers::start(&app, &stores, &tasks);
    app.health.set_serving(true);
    info!(address = %serving.local_addr(), profile = ?app.settings.profile, store = stores.id(), "Coordinator is ready");
    let failed = tokio::select! {
        () = stop => None,
        name = tasks.failed() => Some(name),
    };
    app.health.set_serving(false);
    let (drained, ()) = tokio::join!(serving.shutdown(DRAIN), async { app.end_watches.cancel() });
    if let Err(error) = drained {
        warn!(%error, "Some connections were closed before they finished");
    }
    if let Err(error) = tasks.shutdown(DRAIN).await {
        warn!(%error, "Some tasks were cancelled");
    }
    let flushed = stores
        .replicas()
        .persist(guard(&app.feed.fence().election()).as_ref())
        .await;
    let closed = stores.storage().close().await;
    flushed
        .and(closed)
        .map_err(|error| StartError::new(format!("failed to flush the store: {error}")))?;
    match failed {
        None => {
            info!("Coordinator stopped");
            Ok(())
        }
        Some(name) => Err(StartError::new(format!("task {name} ended unexpectedly"))),
    }
}
