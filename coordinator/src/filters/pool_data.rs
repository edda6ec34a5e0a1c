//! Writes to pool data, whose only author is the cloud.

use yurt_apimachinery::status::reason;
use yurt_apimachinery::{Status, Verb};

use crate::authn::User;
use crate::registry::{Authority, Resource};

/// Refuses writes to pool data. Runs before authorization, so that the caller gets the reason instead of a bare 403.
///
/// # Errors
/// 405 with the reason.
pub(super) fn refuse_writes(resource: Option<&Resource>, user: &User, verb: Verb) -> Result<(), Status> {
    let Some(resource) = resource else { return Ok(()) };
    if verb.is_read_only() || user.is_anonymous() || matches!(resource.authority, Authority::Own(_)) {
        return Ok(());
    }
    let name = &resource.name;
    let message = format!(
        "{name} cannot be written here: pool data comes from the cloud through the pool's leader; write to the cloud instead"
    );
    Err(Status::failure(405, reason::METHOD_NOT_ALLOWED, message))
}
