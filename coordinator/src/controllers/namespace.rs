//! Namespace controller: empties namespaces that are being deleted and removes their finalizer.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use yurt_apimachinery::{DeleteOptions, Object, ObjectKey, Status};

use crate::app::App;
use crate::handlers::delete::delete;
use crate::handlers::update::settle;
use crate::registry::namespaces::{self, FINALIZER};
use crate::registry::own::{Change, Current, Intent};
use crate::registry::{Authority, Resource};

/// Retry interval for content that waits for another controller's finalizer.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Deletions in flight at a time; they share commits.
const AT_ONCE: usize = 64;

/// Runs until `stop`.
pub(super) async fn run(app: Arc<App>, intent: Intent, stop: CancellationToken) {
    let Some(namespaces) = app.served().registry.find("", namespaces::COLLECTION).cloned() else {
        return stop.cancelled().await;
    };
    let mut changes = namespaces.objects().subscribe();
    loop {
        changes.mark_unchanged();
        let is_done = stop
            .run_until_cancelled(empty_all(&app, &namespaces, &intent))
            .await
            .unwrap_or_default();
        let pause = async {
            if is_done {
                std::future::pending().await
            } else {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return stop.cancelled().await },
            () = pause => {}
        }
    }
}

/// Empties every terminating namespace. Returns true if none is left.
async fn empty_all(app: &App, namespaces: &Resource, intent: &Intent) -> bool {
    let waiting: Vec<Object> = namespaces.objects().read(|held| {
        let waits = |namespace: &&Object| namespace.is_deleting() && has_finalizer(namespace);
        held.objects().filter(waits).cloned().collect()
    });
    let mut is_done = true;
    for namespace in waiting {
        match empty(app, namespace.name(), intent).await {
            Ok(true) => match release(app, namespaces, namespace.key(), intent).await {
                Ok(()) => info!(namespace = namespace.name(), "Namespace emptied and finalized"),
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    warn!(namespace = namespace.name(), %error, "Failed to finalize namespace, retrying");
                    is_done = false;
                }
            },
            Ok(false) => is_done = false,
            Err(error) => {
                warn!(namespace = namespace.name(), %error, "Failed to empty namespace, retrying");
                is_done = false;
            }
        }
    }
    is_done
}

fn has_finalizer(namespace: &Object) -> bool {
    let finalizers = namespace.to_value()["spec"]["finalizers"].take();
    finalizers
        .as_array()
        .is_some_and(|list| list.iter().any(|held| held == FINALIZER))
}

/// Deletes the content of a namespace. Returns true if nothing is left.
async fn empty(app: &App, namespace: &str, intent: &Intent) -> Result<bool, Status> {
    let is_own =
        |resource: &&Arc<Resource>| resource.kind.namespaced && matches!(resource.authority, Authority::Own(_));
    let mut is_empty = true;
    let served = app.served();
    for resource in served.registry.collections().filter(is_own) {
        app.own.catch_up(resource).await?;
        let content = || resource.objects().read(|held| held.snapshot(Some(namespace)).objects);
        let options = DeleteOptions::default();
        for some in content().chunks(AT_ONCE) {
            let deletions = some
                .iter()
                .map(|object| delete(app, resource, object.key(), &options, intent, &|_| Ok(())));
            for outcome in futures_util::future::join_all(deletions).await {
                match outcome {
                    Ok(_) => {}
                    Err(status) if status.is_not_found() => {}
                    Err(status) => return Err(status),
                }
            }
        }
        is_empty &= content().is_empty();
    }
    Ok(is_empty)
}

/// Removes the finalizer; a namespace without other finalizers is deleted with it.
async fn release(app: &App, namespaces: &Resource, key: &ObjectKey, intent: &Intent) -> Result<(), Status> {
    let change = |current: &Current| {
        let mut new = current.stored().clone();
        if !current.is_deleting() {
            return Ok(Change::Keep);
        }
        if let Some(list) = new
            .pointer_mut("/spec/finalizers")
            .and_then(serde_json::Value::as_array_mut)
        {
            list.retain(|held| held != FINALIZER);
        }
        Ok(settle(namespaces, new, false))
    };
    app.own.update(namespaces, key, intent, change).await.map(drop)
}
