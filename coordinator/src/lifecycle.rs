//! Background tasks, and the order in which everything stops.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use yurt_apimachinery::Object;
use yurt_apimachinery::time::Time;
use yurt_storage::{Replicas, Storage};

use crate::app::App;
use crate::audit::Log;
use crate::registry::own::Intent;
use crate::registry::prepare::{self, Account};
use crate::registry::{events, namespaces};
use crate::{Coordinator, StartError, departed, emptier};

/// Interval of commits of changed pool data: a crash costs a resend of what came since, a commit wears the disk.
const PERSIST_EVERY: Duration = Duration::from_secs(5);
/// Interval of checks that the store accepts writes.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Interval of reading the files of initial members, roles and custom resources again.
const RELOAD_EVERY: Duration = Duration::from_secs(10);
/// Bounds of the interval between searches for expired events, which is a quarter of their time to live.
const EXPIRE_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Maximum number of deletions of expired events in flight; they share commits.
const EXPIRE_AT_ONCE: usize = 64;
/// Time for connections to finish after their watches have ended.
const DRAIN: Duration = Duration::from_secs(5);

/// Creates the initial namespaces.
///
/// # Errors
/// The error of the store.
pub(crate) async fn create_namespaces(app: &App) -> Result<(), StartError> {
    let served = app.served();
    let Some(resource) = served.registry.find("", "namespaces") else {
        return Ok(());
    };
    let intent = Intent::of_coordinator();
    let create = async |name: &str| {
        let body = serde_json::json!({ "metadata": { "name": name } });
        let now = Time::from_unix(app.clock.unix().secs);
        let uid = uuid::Uuid::new_v4().to_string();
        let failed = |status: yurt_apimachinery::Status| {
            StartError::new(format!("--data-dir: cannot create namespace {name}: {status}"))
        };
        let object = prepare::created(resource, body, None, now, &uid, Account::Settled).map_err(failed)?;
        app.own.create(resource, object, &intent).await.map_err(failed)
    };
    // In parallel: they share a commit.
    futures_util::future::try_join_all(namespaces::INITIAL.map(create)).await?;
    Ok(())
}

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
    tasks.spawn_critical(
        "persist-pool-data",
        persist(app.clone(), stores.replicas().clone(), tasks.token()),
    );
    let storage = stores.storage().clone();
    tasks.spawn_critical("check-storage", check_storage(storage, app.clone(), tasks.token()));
    tasks.spawn_critical("follow-scope", follow_scope(app.clone(), tasks.token()));
    if app.feed.members().is_reloadable() {
        tasks.spawn_critical("reload-members", reload_members(app.clone(), tasks.token()));
    }
    if let Some(writer) = app.filters.audit_log.as_ref().and_then(Log::take_writer) {
        tasks.spawn_critical("audit-log", writer.run(tasks.token()));
    }
    if app.custom.is_reloadable() {
        tasks.spawn_critical("reload-custom-resources", reload_custom(app.clone(), tasks.token()));
    }
    if app.filters.is_reloadable() {
        tasks.spawn_critical("reload-gate", reload_gate(app.clone(), tasks.token()));
    }
    let emptier = emptier::run(app.clone(), Intent::of_coordinator(), tasks.token());
    tasks.spawn_critical("empty-namespaces", emptier);
    tasks.spawn_critical("expire-events", expire_events(app.clone(), tasks.token()));
    let departed = departed::run(app.clone(), Intent::of_coordinator(), tasks.token());
    tasks.spawn_critical("delete-departed-leases", departed);
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
    let flushed = stores.replicas().persist(app.feed.fence().guard().as_ref()).await;
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

async fn persist(app: Arc<App>, replicas: Arc<Replicas>, stop: CancellationToken) {
    while stop
        .run_until_cancelled(tokio::time::sleep(PERSIST_EVERY))
        .await
        .is_some()
    {
        if let Err(error) = replicas.persist_due(app.feed.fence().guard().as_ref()).await {
            warn!(%error, "Failed to persist pool data, retrying");
        }
    }
}

/// Keeps readiness up to date, and lets a failed store recover while there are no writes.
async fn check_storage(storage: Arc<dyn Storage>, app: Arc<App>, stop: CancellationToken) {
    while stop
        .run_until_cancelled(tokio::time::sleep(CHECK_EVERY))
        .await
        .is_some()
    {
        app.health.set_writable(storage.check().await.is_ok());
    }
}

/// Deletes expired events; watchers get an event for each deletion.
async fn expire_events(app: Arc<App>, stop: CancellationToken) {
    let Some(resource) = app.served().registry.find("", "events").cloned() else {
        return stop.cancelled().await;
    };
    let every = (app.settings.event_ttl / 4).clamp(EXPIRE_EVERY.0, EXPIRE_EVERY.1);
    while stop.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
        let now = app.clock.unix();
        let expired: Vec<Object> = resource.objects().read(|held| {
            held.objects()
                .filter(|event| events::is_expired(event, now, app.settings.event_ttl))
                .cloned()
                .collect()
        });
        let intent = Intent::of_coordinator();
        for some in expired.chunks(EXPIRE_AT_ONCE) {
            let delete = |event: &Object| app.own.delete_unchanged(&resource, event.clone(), &intent);
            // An event that changed since the search lives on; a failed deletion is tried again.
            futures_util::future::join_all(some.iter().map(delete)).await;
        }
    }
}

/// Applies the resources to share that the leader has sent to another coordinator.
async fn follow_scope(app: Arc<App>, stop: CancellationToken) {
    let mut changes = app.feed.scope().changes();
    while let Some(Ok(())) = stop.run_until_cancelled(changes.changed()).await {
        changes.mark_unchanged();
        app.follow_scope().await;
    }
}

async fn reload_members(app: Arc<App>, stop: CancellationToken) {
    while stop
        .run_until_cancelled(tokio::time::sleep(RELOAD_EVERY))
        .await
        .is_some()
    {
        app.feed.members().reload();
    }
}

async fn reload_custom(app: Arc<App>, stop: CancellationToken) {
    while stop
        .run_until_cancelled(tokio::time::sleep(RELOAD_EVERY))
        .await
        .is_some()
    {
        app.reload_custom();
    }
}

async fn reload_gate(app: Arc<App>, stop: tokio_util::sync::CancellationToken) {
    while stop
        .run_until_cancelled(tokio::time::sleep(RELOAD_EVERY))
        .await
        .is_some()
    {
        app.filters.reload();
    }
}
