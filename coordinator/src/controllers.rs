//! Background controllers: each keeps one thing as it should be until the server stops.
//!
//! * [`namespace`] empties deleted namespaces, [`system_namespaces`] creates the initial ones;
//! * [`node_lease_gc`] deletes leases of former members, [`event_ttl`] old events;
//! * [`file_reload`] reads the operator's files again;
//! * [`pool_scope`] follows the resources that the pool shares;
//! * [`storage_health`] writes pool data to the store and checks the store.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use yurt_runtime::TaskGroup;
use yurt_storage::serve;

use crate::app::App;
use crate::audit::AuditLog;
use crate::registry::own::Intent;
use crate::store::Stores;

mod event_ttl;
mod file_reload;
mod namespace;
mod node_lease_gc;
mod pool_scope;
mod storage_health;
pub(crate) mod system_namespaces;

/// Starts every controller, and the writer of the audit log, in `tasks`.
pub(crate) fn start(app: &Arc<App>, stores: &Stores, tasks: &TaskGroup) {
    let (stop, intent) = (|| tasks.token(), Intent::of_coordinator);
    let persist = storage_health::persist(app.clone(), stores.replicas().clone(), stop());
    tasks.spawn_critical("persist-pool-data", persist);
    let check = storage_health::check(stores.storage().clone(), app.clone(), stop());
    tasks.spawn_critical("check-storage", check);
    tasks.spawn_critical("follow-scope", pool_scope::follow(app.clone(), stop()));
    if app.feed.members().is_reloadable() {
        tasks.spawn_critical("reload-members", file_reload::members(app.clone(), stop()));
    }
    if let Some(writer) = app.filters.audit_log.as_ref().and_then(AuditLog::take_writer) {
        tasks.spawn_critical("audit-log", writer.run(stop()));
    }
    if app.custom.is_reloadable() {
        tasks.spawn_critical(
            "reload-custom-resources",
            file_reload::custom_resources(app.clone(), stop()),
        );
    }
    if app.filters.is_reloadable() {
        tasks.spawn_critical("reload-gate", file_reload::filters(app.clone(), stop()));
    }
    tasks.spawn_critical("empty-namespaces", namespace::run(app.clone(), intent(), stop()));
    tasks.spawn_critical("expire-events", event_ttl::run(app.clone(), intent(), stop()));
    let node_lease_gc = node_lease_gc::run(app.clone(), intent(), stop());
    tasks.spawn_critical("delete-departed-leases", node_lease_gc);
    tasks.spawn_critical("release-encodings", serve::release_encodings(stop()));
}

/// Waits for `time`; false if the server stops.
async fn elapsed(time: Duration, stop: &CancellationToken) -> bool {
    stop.run_until_cancelled(tokio::time::sleep(time)).await.is_some()
}
