//! Between the socket and the handlers: authentication, limits and authorization.
//!
//! The order is kube-apiserver's: identity, impersonation, a place among the requests in flight, authorization.

use std::num::NonZeroUsize;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, Response};
use tracing::{debug, info, warn};
use yurt_apimachinery::{RequestInfo, Status};
use yurt_runtime::Clock;
use yurt_runtime::http::Body;
use yurt_runtime::http::server::{CloseConnection, KnownCaller, Peer, Rank};

use crate::StartError;
use crate::app::App;
use crate::audit::{Log, Record};
use crate::authn::tokens::Tokens;
use crate::authn::{self, MASTERS, User, impersonation};
use crate::authz::rbac::files::Rbac;
use crate::authz::rbac::{Policy, bootstrap};
use crate::authz::{Attributes, Authorizer, Decision};
use crate::bodies::Bodies;
use crate::config::{Config, Profile};
use crate::feed;
use crate::lanes::{Lane, Place};
use crate::metrics::Metrics;

/// State of authentication, limits and authorization.
pub(crate) struct Gate {
    /// The rules of the profile.
    pub(crate) authorizer: Authorizer,
    /// Roles and bindings.
    pub(crate) rbac: Rbac,
    /// Keys and issuers of service account tokens.
    pub(crate) tokens: Tokens,
    /// The audit log, if enabled.
    pub(crate) log: Option<Log>,
    /// Requests that read.
    pub(crate) reads: Lane,
    /// Requests that write.
    pub(crate) writes: Lane,
    /// Bodies in memory.
    pub(crate) bodies: Arc<Bodies>,
}

/// Facts about a request, for the code that runs at its end.
pub(crate) struct Trail<'a> {
    audit_id: &'a str,
    /// True if the caller has not been authenticated.
    pub(crate) is_stranger: bool,
    /// Set when the caller is not the one that the connection's certificate names.
    pub(crate) known: Option<KnownCaller>,
    /// Events of the audit log.
    pub(crate) record: Option<Record>,
}

// === impl Trail ===

impl<'a> Trail<'a> {
    pub(crate) fn new(audit_id: &'a str) -> Self {
        Self {
            audit_id,
            is_stranger: false,
            known: None,
            record: None,
        }
    }

    /// Records the caller on the connection of `peer`.
    pub(crate) fn identified(&mut self, app: &App, peer: &Peer, user: Option<&User>) {
        let user = user.filter(|user| !user.is_anonymous());
        self.is_stranger = user.is_none();
        let is_named = peer
            .identity
            .as_ref()
            .is_some_and(|identity| !identity.common_name.is_empty());
        self.known = user.filter(|_| !is_named).map(|user| KnownCaller {
            // One service account may have many pods.
            name: format!("{} at {}", user.name, peer.addr.ip()),
            rank: rank(app, user),
        });
    }

    /// Hands the recorded facts to the connection.
    pub(crate) fn mark(&mut self, response: &mut Response<Body>) {
        if self.is_stranger {
            response.extensions_mut().insert(CloseConnection);
        }
        if let Some(known) = self.known.take() {
            response.extensions_mut().insert(known);
        }
    }

    /// Begins the audit of a request; one without a user failed authentication.
    pub(crate) fn begin<B>(
        &mut self,
        app: &App,
        info: &RequestInfo,
        request: &Request<B>,
        peer: &Peer,
        user: Option<&User>,
    ) {
        let Some(log) = &app.gate.log else { return };
        let uri = request.uri().path_and_query().map_or("", PathAndQuery::as_str);
        let record = log.audit.begin(info, uri, request.headers(), peer, user, self.audit_id);
        match user {
            Some(_) => self.record = Some(record),
            None => record.refused(),
        }
    }
}

/// Names of the lanes in metrics.
pub(crate) const READS: &str = "readOnly";
pub(crate) const WRITES: &str = "mutating";

// === impl Gate ===

impl Gate {
    /// Reads the files that the flags name.
    ///
    /// # Errors
    /// The flag, the file, and the fault.
    pub(crate) fn open(config: &Config, metrics: &Metrics, clock: Clock) -> Result<Self, StartError> {
        let base = match config.profile {
            Profile::Standalone => bootstrap::policy(),
            Profile::Pool => Policy::default(),
        };
        let rbac = Rbac::open(base, config.rbac_path.clone());
        let lane = |kind: &str, in_flight: NonZeroUsize| {
            let (queued_max, wait_max) = (config.max_queued_requests, config.max_queue_wait.0);
            Lane::new(in_flight.get(), queued_max, wait_max, Some(metrics.refusals(kind)))
        };
        Ok(Self {
            authorizer: Authorizer::new(),
            rbac: rbac.map_err(|error| StartError::new(format!("--rbac-path: {error}")))?,
            tokens: Tokens::open(config)?,
            log: Log::open(config, metrics.audit(), clock)?,
            reads: lane(READS, config.max_requests_inflight),
            writes: lane(WRITES, config.max_mutating_requests_inflight),
            bodies: Arc::default(),
        })
    }

    /// True if there are files to read again.
    pub(crate) fn is_reloadable(&self) -> bool {
        self.rbac.is_reloadable() || self.tokens.is_reloadable()
    }

    /// Reads the files again, and logs the result. Blocks for the reads.
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

    /// A place among the requests in flight, possibly after a wait. Leases, the feed and administrators need none.
    ///
    /// # Errors
    /// 429 when too many requests wait.
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

/// Authenticates the caller and removes the credentials from the headers: the code behind needs none.
///
/// # Errors
/// 401 for a token that identifies no user.
pub(crate) fn identify(app: &App, headers: &mut HeaderMap, peer: &Peer) -> Result<User, Status> {
    let authorization = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let tokens = &app.gate.tokens;
    let check = |token: &str| {
        let served = app.served();
        let checked = tokens.check(token, tokens.audiences(), app.clock.unix().secs, &served.registry);
        checked.ok().map(|found| found.user)
    };
    let user = authn::authenticate(peer.identity.as_deref(), peer.is_refused, authorization, check)?;
    headers.remove(AUTHORIZATION);
    Ok(user)
}

/// Rank of a caller among connections: those of a pool are reserved for its members.
pub(crate) fn rank(app: &App, user: &User) -> Rank {
    let is_member = |node| app.feed.members().contains(node);
    match app.settings.profile {
        Profile::Pool if app.feed.fence().leads(user) => Rank::Leader,
        Profile::Pool if user.node_name().is_some_and(is_member) => Rank::Member,
        _ if user.is_in(MASTERS) => Rank::Administrator,
        Profile::Pool => Rank::Other,
        Profile::Standalone => Rank::Member,
    }
}

/// The user on whose behalf `requestor` asks.
///
/// # Errors
/// 400 or 403 for a user it may not impersonate.
pub(crate) fn impersonate(
    app: &App,
    headers: &mut HeaderMap,
    requestor: User,
    attributes: &Attributes<'_>,
    trail: &mut Trail<'_>,
) -> Result<User, Status> {
    let wanted = impersonation::wanted(headers)?;
    impersonation::strip(headers);
    let Some(wanted) = wanted else {
        return Ok(requestor);
    };
    let authorize = |attributes: &Attributes<'_>| app.authorize(&requestor, attributes);
    let user = impersonation::permit(&requestor, &wanted, attributes, &authorize)?;
    debug!(requestor = requestor.name, user = user.name, "User impersonated");
    if let Some(record) = &mut trail.record {
        record.impersonated(&user);
    }
    Ok(user)
}

/// Authorizes the request.
///
/// # Errors
/// 403 with the authorizer's reason.
pub(crate) fn authorize(
    app: &App,
    user: &User,
    info: &RequestInfo,
    attributes: &Attributes<'_>,
    trail: &mut Trail<'_>,
) -> Result<(), Status> {
    let decision = app.authorize(user, attributes);
    if let Some(record) = &mut trail.record {
        record.decided(&decision);
    }
    match decision {
        Decision::Allowed(_) => Ok(()),
        Decision::Denied(why) => Err(Status::forbidden(&user.name, info, &why)),
    }
}
