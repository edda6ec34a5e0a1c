//! One handler per verb, over any resource of the registry.
//!
//! In reading order: `dispatch.rs` (the handler of a request), [`get`], [`list`], [`watch`], [`create`], [`update`],
//! [`patch`], [`apply`], [`delete`], [`review`].

use serde_json::Value;
use yurt_apimachinery::{Object, ResourceVersion, Status};

use crate::request::Call;

mod apply;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod patch;
pub(crate) mod reading;
pub(crate) mod review;
pub(crate) mod update;
pub(crate) mod watch;

/// The resourceVersion a body is based on, if it has one.
pub(crate) fn version_in(object: &Value) -> Option<String> {
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
