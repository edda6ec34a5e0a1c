//! One handler per verb, over any resource of the registry.
//!
//! In reading order: [`dispatch`] (the handler of a request), [`offered`] (the verbs of a path), [`get`], [`list`],
//! [`watch`], [`create`], [`update`], [`patch`], [`apply`], [`delete`], [`review`], [`token_request`], and [`paths`] (what
//! names no resource).

use serde_json::Value;
use yurt_apimachinery::{Object, ResourceVersion, Status};

use crate::request::Call;

mod apply;
mod create;
pub(crate) mod delete;
pub(crate) mod dispatch;
mod get;
mod kubelets;
mod list;
mod offered;
mod patch;
mod paths;
mod pods;
pub(crate) mod reading;
pub(crate) mod review;
mod token_request;
pub(crate) mod update;
mod watch;

/// The resourceVersion a body is based on, if it has one.
fn version_in(object: &Value) -> Option<String> {
    let version = yurt_apimachinery::meta::text(object, "resourceVersion");
    (!matches!(version, "" | "0")).then(|| version.to_owned())
}

/// Refuses a write that is based on another state than the current one.
fn check_version(call: &Call, current: &Object, wanted: Option<&str>) -> Result<(), Status> {
    match wanted {
        Some(wanted) => {
            let wanted = ResourceVersion::parse(wanted).map_err(|error| Status::bad_request(error.to_string()))?;
            if wanted == current.resource_version() {
                return Ok(());
            }
            let resource = call.resource.kind.group_resource();
            Err(Status::conflict_modified(&resource, current.name()))
        }
        None => Ok(()),
    }
}
