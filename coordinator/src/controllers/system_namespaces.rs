//! Creates the initial namespaces.

use std::time::Duration;

use yurt_apimachinery::Status;
use yurt_apimachinery::time::Time;
use yurt_runtime::Clock;

use crate::StartError;
use crate::app::App;
use crate::registry::own::{self, Intent, OwnStore};
use crate::registry::prepare::{self, Account};
use crate::registry::{Resource, namespaces};

/// Pause between attempts over etcd.
const PAUSE: Duration = Duration::from_secs(1);

/// Creates the initial namespaces that do not exist. Waits without a limit for an etcd that does not answer.
///
/// # Errors
/// The error of the store.
pub(crate) async fn create(app: &App) -> Result<(), StartError> {
    let served = app.served();
    match served.registry.find("", "namespaces") {
        Some(resource) => create_all(&app.own, resource, &app.clock).await,
        None => Ok(()),
    }
}

async fn create_all(own: &OwnStore, resource: &Resource, clock: &Clock) -> Result<(), StartError> {
    let flag = if own.is_shared() {
        "--etcd-servers"
    } else {
        "--data-dir"
    };
    let create = async |name: &str| {
        loop {
            let Err(status) = create_one(own, resource, name, clock).await else {
                return Ok(());
            };
            // 503: not written. 504: the next attempt finds the namespace if it was written.
            if !own.is_shared() || !matches!(status.code(), 503 | 504) {
                return Err(StartError::new(format!(
                    "{flag}: cannot create namespace {name}: {status}"
                )));
            }
            tracing::warn!(name, %status, "Failed to create namespace; waiting for etcd");
            tokio::time::sleep(PAUSE).await;
        }
    };
    // In parallel: they share a commit.
    futures_util::future::try_join_all(namespaces::INITIAL.map(create)).await?;
    Ok(())
}

async fn create_one(own: &OwnStore, resource: &Resource, name: &str, clock: &Clock) -> Result<(), Status> {
    let body = serde_json::json!({ "metadata": { "name": name } });
    let now = Time::from_unix(clock.unix().secs);
    let uid = uuid::Uuid::new_v4().to_string();
    let object = prepare::created(resource, body, None, now, &uid, Account::Settled)?;
    let object = own::object(object, resource)?;
    let in_none = || std::future::ready(Ok(None));
    let created = own.create(resource, &object, &Intent::of_coordinator(), in_none).await;
    created.map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use yurt_apimachinery::ResourceVersion;
    use yurt_storage::StorageError;

    use super::*;
    use crate::registry::own::fake_storage::{FakeStorage, Outcome};

    /// Creates the namespaces over an etcd that fails a write with each of `failures`. Returns the number of writes,
    /// too.
    async fn created(failures: Vec<StorageError>) -> (Result<(), StartError>, usize) {
        let writes = Arc::new(AtomicUsize::new(0));
        let counted = writes.clone();
        let storage = FakeStorage {
            write: Box::new(move |_| {
                let failure = failures.get(counted.fetch_add(1, Ordering::SeqCst)).cloned();
                let outcome: Outcome = failure.map_or(Ok(ResourceVersion(1)), Err);
                Box::pin(std::future::ready(outcome))
            }),
            caught_up: Box::new(|| Ok(ResourceVersion(1))),
        };
        let (own, registry) = storage.open();
        let resource = registry.find("", "namespaces").expect("a built-in kind");
        let created = create_all(&own, resource, &Clock::system()).await;
        (created, writes.load(Ordering::SeqCst))
    }

    #[tokio::test(start_paused = true)]
    async fn namespaces_wait_for_an_etcd_that_does_not_answer() {
        let away = || StorageError::Unavailable("etcdserver: no leader".into());
        let unknown = StorageError::Unknown("etcdserver: leader changed".into());
        let (done, writes) = created(vec![away(), away(), unknown]).await;
        assert!(done.is_ok(), "{done:?}");
        assert_eq!(writes, namespaces::INITIAL.len() + 3);
    }

    #[tokio::test(start_paused = true)]
    async fn fault_of_etcd_names_its_flag() {
        let (failed, _) = created(vec![StorageError::Corrupt("page 7".into())]).await;
        let error = failed.expect_err("waiting does not help").to_string();
        assert!(
            error.starts_with("--etcd-servers: cannot create namespace default"),
            "{error}"
        );
    }
}
