//! Creates the initial namespaces.

use yurt_apimachinery::Status;
use yurt_apimachinery::time::Time;

use crate::StartError;
use crate::app::App;
use crate::registry::namespaces;
use crate::registry::own::{self, Intent};
use crate::registry::prepare::{self, Account};

/// Creates the initial namespaces that do not exist.
///
/// # Errors
/// The error of the store.
pub(crate) async fn create(app: &App) -> Result<(), StartError> {
    let served = app.served();
    let Some(resource) = served.registry.find("", "namespaces") else {
        return Ok(());
    };
    let intent = Intent::of_coordinator();
    let create = async |name: &str| {
        let body = serde_json::json!({ "metadata": { "name": name } });
        let now = Time::from_unix(app.clock.unix().secs);
        let uid = uuid::Uuid::new_v4().to_string();
        let failed = |status: Status| StartError::new(format!("--data-dir: cannot create namespace {name}: {status}"));
        let object = prepare::created(resource, body, None, now, &uid, Account::Settled).map_err(failed)?;
        let object = own::object(object, resource).map_err(failed)?;
        let in_none = || std::future::ready(Ok(None));
        app.own
            .create(resource, &object, &intent, in_none)
            .await
            .map_err(failed)
    };
    // In parallel: they share a commit.
    futures_util::future::try_join_all(namespaces::INITIAL.map(create)).await?;
    Ok(())
}
