//! Reads the operator's files again: initial members, roles, keys and custom resources.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use yurt_runtime::files;

use super::elapsed;
use crate::app::App;

/// Interval of reading the files again.
const RELOAD_EVERY: Duration = Duration::from_secs(10);

/// Reloads the initial members.
pub(super) async fn members(app: Arc<App>, stop: CancellationToken) {
    repeat(stop, move || app.feed.members().reload()).await;
}

/// Reloads the declarations of custom resources.
pub(super) async fn custom_resources(app: Arc<App>, stop: CancellationToken) {
    repeat(stop, move || app.reload_custom()).await;
}

/// Reloads the roles, and the keys of service account tokens.
pub(super) async fn filters(app: Arc<App>, stop: CancellationToken) {
    repeat(stop, move || app.filters.reload()).await;
}

async fn repeat(stop: CancellationToken, reload: impl Fn() + Clone + Send + 'static) {
    while elapsed(RELOAD_EVERY, &stop).await {
        // To its end: what it changes must not outlive the stop.
        files::access(reload.clone()).await;
    }
}

#[cfg(test)]
mod tests {
    use yurt_runtime::TaskGroup;
    use yurt_test_support::{TestDir, hang, runs_while_reading};

    use super::*;

    #[test]
    fn file_that_hangs_holds_no_thread_of_the_runtime() {
        let folder = TestDir::new();
        let path = folder.write("rbac.yaml", "");
        hang(&path);
        let read = path.clone();
        runs_while_reading(&path, async move || {
            let tasks = TaskGroup::new();
            tasks.spawn("reload", repeat(tasks.token(), move || drop(std::fs::read(&read))));
            tasks
        });
    }
}
