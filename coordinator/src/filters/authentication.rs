//! Authentication of the caller, and what its connection learns about it.

use std::borrow::Cow;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Response};
use yurt_apimachinery::Status;
use yurt_runtime::http::Body;
use yurt_runtime::http::server::{CloseConnection, KnownCaller, Peer, Rank};

use crate::app::App;
use crate::authn::{self, MASTERS, User};
use crate::config::Profile;

/// Facts about the caller, for its connection.
pub(super) struct ConnectionFacts {
    /// True if the caller has not been authenticated.
    is_stranger: bool,
    /// Set when the caller is not the one that the connection's certificate names.
    known: Option<KnownCaller>,
}

/// Authenticates the caller and removes the credentials from the headers: the code behind needs none.
///
/// # Errors
/// 401 for a token that identifies no user.
pub(super) fn authenticate(app: &App, headers: &mut HeaderMap, peer: &Peer) -> Result<User, Status> {
    let authorization = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let tokens = &app.filters.tokens;
    let check = |token: &str| {
        let served = app.served();
        let objects = |plural: &str, namespace: Option<&str>, name: &str| served.bound_object(plural, namespace, name);
        let checked = tokens.check(token, tokens.audiences(), app.clock.unix().secs, &objects);
        checked.ok().map(|found| found.user)
    };
    let user = authn::authenticate(peer.identity.as_deref(), peer.is_refused, authorization, check)?;
    headers.remove(AUTHORIZATION);
    Ok(user)
}

/// Rank of a caller among connections: those of a pool are reserved for its members.
pub(super) fn rank(app: &App, user: &User) -> Rank {
    let is_member = |node| app.feed.members().contains(node);
    match app.settings.profile {
        Profile::Pool if app.feed.fence().leads(user.node_name()) => Rank::Leader,
        Profile::Pool if user.node_name().is_some_and(is_member) => Rank::Member,
        _ if user.is_in(MASTERS) => Rank::Administrator,
        Profile::Pool => Rank::Other,
        Profile::Standalone => Rank::Member,
    }
}

/// Name of a caller for limits. A token also counts by its address, because one service account may have many pods.
pub(super) fn identity<'a>(user: &'a User, peer: &Peer) -> Cow<'a, str> {
    match is_named(peer) {
        true => Cow::Borrowed(&user.name),
        false => Cow::Owned(format!("{} at {}", user.name, peer.addr.ip())),
    }
}

/// True if the certificate of `peer` names a user.
fn is_named(peer: &Peer) -> bool {
    let identity = peer.identity.as_ref();
    identity.is_some_and(|identity| !identity.common_name.is_empty())
}

// === impl ConnectionFacts ===

impl ConnectionFacts {
    /// Facts before the caller is authenticated: a request may be refused before that. Only the certificate of `peer`
    /// proves a caller then.
    pub(super) fn unauthenticated(peer: &Peer) -> Self {
        Self {
            is_stranger: !is_named(peer),
            known: None,
        }
    }

    /// Facts about the caller on the connection of `peer`; `user` is `None` if authentication failed.
    pub(super) fn of(app: &App, peer: &Peer, user: Option<&User>) -> Self {
        let user = user.filter(|user| !user.is_anonymous());
        Self {
            is_stranger: user.is_none(),
            known: user.filter(|_| !is_named(peer)).map(|user| KnownCaller {
                name: identity(user, peer).into_owned(),
                rank: rank(app, user),
            }),
        }
    }

    /// Hands the facts to the connection.
    pub(super) fn add_to(&mut self, response: &mut Response<Body>) {
        if self.is_stranger {
            response.extensions_mut().insert(CloseConnection);
        }
        if let Some(known) = self.known.take() {
            response.extensions_mut().insert(known);
        }
    }
}
