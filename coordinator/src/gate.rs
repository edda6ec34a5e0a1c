//! Between the socket and the handlers: who asks, whether there is room, and whether it is allowed.
//!
//! The order is kube-apiserver's: identity, then a place among the requests being answered, then authorization.

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use yurt_apimachinery::{RequestInfo, Status, Verb};
use yurt_runtime::http::server::Peer;

use crate::StartError;
use crate::app::App;
use crate::authn::{self, MASTERS, User};
use crate::authz::rbac::files::Rbac;
use crate::authz::rbac::{Policy, bootstrap};
use crate::authz::{Attributes, Authorizer, Decision};
use crate::config::{Config, Profile};
use crate::feed;
use crate::registry::leases;

/// Reads being answered at a time, watches and leases aside; further ones get 429.
pub(crate) const READS_IN_FLIGHT_MAX: usize = 400;
/// Writes being answered at a time, leases and the feed aside; further ones get 429.
pub(crate) const WRITES_IN_FLIGHT_MAX: usize = 200;

/// What decides who gets through.
pub(crate) struct Gate {
    /// The rules of the profile.
    pub(crate) authorizer: Authorizer,
    /// Roles and bindings.
    pub(crate) rbac: Rbac,
    reads: Arc<Semaphore>,
    writes: Arc<Semaphore>,
}

/// A request that may be answered; its place is free again when this is dropped.
pub(crate) struct Admitted {
    /// Who asks.
    pub(crate) user: User,
    _place: Option<OwnedSemaphorePermit>,
}

// === impl Gate ===

impl Gate {
    /// Reads what the flags name.
    ///
    /// # Errors
    /// Which flag and file, and what is wrong.
    pub(crate) fn open(config: &Config) -> Result<Self, StartError> {
        let base = match config.profile {
            Profile::Standalone => bootstrap::policy(),
            Profile::Pool => Policy::default(),
        };
        let rbac = Rbac::open(base, config.rbac_path.clone());
        Ok(Self {
            authorizer: Authorizer::new(),
            rbac: rbac.map_err(|error| StartError::new(format!("--rbac-path: {error}")))?,
            reads: Arc::new(Semaphore::new(READS_IN_FLIGHT_MAX)),
            writes: Arc::new(Semaphore::new(WRITES_IN_FLIGHT_MAX)),
        })
    }

    /// A place among the requests being answered. Watches, leases, the feed and administrators need none.
    fn enter(&self, user: &User, info: &RequestInfo) -> Result<Option<OwnedSemaphorePermit>, Status> {
        let is_lease = info.is_resource && format!("{}.{}", info.resource, info.group) == leases::COLLECTION;
        let is_feed = info.path.starts_with(feed::PATH);
        if info.verb == Verb::Watch || is_lease || is_feed || user.is_in(MASTERS) {
            return Ok(None);
        }
        let lane = if info.verb.is_read_only() {
            &self.reads
        } else {
            &self.writes
        };
        let busy = |_| Status::too_many_requests("Too many requests, please try again later.", 1);
        lane.clone().try_acquire_owned().map(Some).map_err(busy)
    }
}

/// Lets a request in; `refuse` is asked once the caller is known, before anything else.
///
/// # Errors
/// The answer to give: 401, 403, 429, or what `refuse` says.
pub(crate) fn admit(
    app: &App,
    headers: &HeaderMap,
    peer: &Peer,
    info: &RequestInfo,
    query: Option<&str>,
    refuse: impl FnOnce(&User) -> Result<(), Status>,
) -> Result<Admitted, Status> {
    let authorization = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let user = authn::authenticate(peer.identity.as_deref(), authorization)?;
    refuse(&user)?;
    let place = app.gate.enter(&user, info)?;
    let attributes = Attributes::of(info).selecting(info, query);
    if let Decision::Denied(why) = app.authorize(&user, &attributes) {
        return Err(Status::forbidden(&user.name, info, &why));
    }
    Ok(Admitted { user, _place: place })
}
