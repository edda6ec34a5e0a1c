//! Between the socket and the handlers: who asks, whether there is room, and whether it is allowed.
//!
//! The order is kube-apiserver's: identity, impersonation, a place among the requests being answered, authorization.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use tracing::{debug, info, warn};
use yurt_apimachinery::{RequestInfo, Status};
use yurt_runtime::http::server::Peer;

use crate::StartError;
use crate::app::App;
use crate::authn::tokens::Tokens;
use crate::authn::{self, MASTERS, User, impersonation};
use crate::authz::rbac::files::Rbac;
use crate::authz::rbac::{Policy, bootstrap};
use crate::authz::{Attributes, Authorizer, Decision};
use crate::config::{Config, Profile};
use crate::feed;
use crate::lanes::{Lane, Place};

/// What decides who gets through.
pub(crate) struct Gate {
    /// The rules of the profile.
    pub(crate) authorizer: Authorizer,
    /// Roles and bindings.
    pub(crate) rbac: Rbac,
    /// Keys and issuers of service account tokens.
    pub(crate) tokens: Tokens,
    /// Requests that read.
    pub(crate) reads: Lane,
    /// Requests that write.
    pub(crate) writes: Lane,
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
            tokens: Tokens::open(config)?,
            reads: Lane::new(config.max_requests_inflight.get(), config.max_queued_requests),
            writes: Lane::new(config.max_mutating_requests_inflight.get(), config.max_queued_requests),
        })
    }

    /// Whether there are files to read again.
    pub(crate) fn is_reloadable(&self) -> bool {
        self.rbac.is_reloadable() || self.tokens.is_reloadable()
    }

    /// Reads the files again, and says in the log what came of it. Blocks for the reads.
    pub(crate) fn reload(&self) {
        match self.rbac.reload() {
            Ok(false) => {}
            Ok(true) => {
                let (roles, bindings) = self.rbac.current().len();
                info!(roles, bindings, "Roles and bindings reloaded");
            }
            Err(error) => warn!(%error, "Keeping the previous roles and bindings"),
        }
        match self.tokens.reload() {
            Ok(false) => {}
            Ok(true) => info!("Keys of service account tokens reloaded"),
            Err(error) => warn!(%error, "Keeping the previous keys of service account tokens"),
        }
    }

    /// A place among the requests being answered, perhaps after a wait. Leases, the feed and administrators need none.
    ///
    /// # Errors
    /// 429 when too many wait.
    pub(crate) async fn enter(&self, user: &User, info: &RequestInfo) -> Result<Option<Place>, Status> {
        let is_lease = info.is_resource && info.group == "coordination.k8s.io" && info.resource == "leases";
        let is_feed = info.path.starts_with(feed::PATH);
        if is_lease || is_feed || user.is_in(MASTERS) {
            return Ok(None);
        }
        let lane = if info.verb.is_read_only() {
            &self.reads
        } else {
            &self.writes
        };
        lane.enter(&user.name).await.map(Some)
    }
}

/// Finds out who asks, and takes the credentials out of the headers: nothing behind has a use for them.
///
/// # Errors
/// 401 for a token that is nobody's.
pub(crate) fn identify(app: &App, headers: &mut HeaderMap, peer: &Peer) -> Result<User, Status> {
    let authorization = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let tokens = &app.gate.tokens;
    let check = |token: &str| {
        let checked = tokens.check(token, tokens.audiences(), app.clock.unix().secs, &app.registry);
        checked.ok().map(|found| found.user)
    };
    let user = authn::authenticate(peer.identity.as_deref(), authorization, check)?;
    headers.remove(AUTHORIZATION);
    Ok(user)
}

/// On whose behalf `requestor` asks.
///
/// # Errors
/// 400 or 403 for somebody it may not impersonate.
pub(crate) fn impersonate(
    app: &App,
    headers: &mut HeaderMap,
    requestor: User,
    attributes: &Attributes<'_>,
) -> Result<User, Status> {
    let wanted = impersonation::wanted(headers)?;
    impersonation::strip(headers);
    let Some(wanted) = wanted else {
        return Ok(requestor);
    };
    let authorize = |attributes: &Attributes<'_>| app.authorize(&requestor, attributes);
    let user = impersonation::permit(&requestor, &wanted, attributes, &authorize)?;
    debug!(requestor = requestor.name, user = user.name, "Impersonation");
    Ok(user)
}

/// Whether the caller may.
///
/// # Errors
/// 403 with the authorizer's reason.
pub(crate) fn authorize(app: &App, user: &User, info: &RequestInfo, attributes: &Attributes<'_>) -> Result<(), Status> {
    match app.authorize(user, attributes) {
        Decision::Allowed(_) => Ok(()),
        Decision::Denied(why) => Err(Status::forbidden(&user.name, info, &why)),
    }
}
