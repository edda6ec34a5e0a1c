//! Authorization of the request.

use yurt_apimachinery::{RequestInfo, Status};

use super::audit::AuditContext;
use crate::app::App;
use crate::authn::User;
use crate::authz::{Attributes, Decision};

/// Authorizes the request.
///
/// # Errors
/// 403 with the authorizer's reason.
pub(super) fn authorize(
    app: &App,
    user: &User,
    info: &RequestInfo,
    attributes: &Attributes<'_>,
    audit: &mut AuditContext<'_>,
) -> Result<(), Status> {
    let decision = app.authorize(user, attributes);
    audit.decided(&decision);
    match decision {
        Decision::Allowed(_) => Ok(()),
        Decision::Denied(why) => Err(info.forbidden(&user.name, &why)),
    }
}
