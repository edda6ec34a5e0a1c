//! The pool's API, below `/yurt/v1`: the feed, the members, reports of forged data, and barred nodes.
//!
//! In reading order: this file (the paths), [`scope`] (shared resources), [`membership`], [`reports`].

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use yurt_apimachinery::{RequestInfo, Status};
use yurt_pool_protocol::feed::check_version;
use yurt_pool_protocol::names::{BARS_PATH, FEED_PATH, MEMBERS_PATH, REPORTS_PATH, SCOPE_CALL};
use yurt_runtime::http::{self as web, Body};

use crate::app::App;
use crate::authn::User;
use crate::bodies::SMALL_BYTES_MAX;
use crate::feed::{self, FeedError};

mod membership;
mod reports;
mod scope;

/// Path of the pool, with a part below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolPath<'a> {
    Feed,
    /// A collection, with the name of the call, or the scope.
    InFeed(&'a str),
    Members,
    Reports,
    Bars,
    /// The bar of a node.
    Bar(&'a str),
}

// === impl PoolPath ===

impl<'a> PoolPath<'a> {
    fn of(path: &'a str) -> Option<Self> {
        let below = |prefix| {
            path.strip_prefix(prefix)?
                .strip_prefix('/')
                .filter(|rest| !rest.is_empty())
        };
        match path {
            FEED_PATH => Some(Self::Feed),
            MEMBERS_PATH => Some(Self::Members),
            REPORTS_PATH => Some(Self::Reports),
            BARS_PATH => Some(Self::Bars),
            _ => {
                let node = || below(BARS_PATH).filter(|node| !node.contains('/'));
                let in_feed = below(FEED_PATH).map(Self::InFeed);
                in_feed.or_else(|| node().map(Self::Bar))
            }
        }
    }
}

/// True for a path of the pool.
pub(crate) fn is_meant(path: &str) -> bool {
    PoolPath::of(path).is_some()
}

/// Answers a path of the pool; `None` if there is nothing to read at it.
///
/// # Errors
/// The refusal: 405 for a method that the path does not have.
pub(crate) async fn answer(
    app: &Arc<App>,
    request: Request<Incoming>,
    info: &RequestInfo,
    user: &User,
) -> Result<Option<Response<Body>>, Status> {
    let shown = |value: Value| Ok(Some(web::json(StatusCode::OK, value.to_string())));
    match (request.method(), PoolPath::of(&info.path)) {
        (&Method::GET, Some(PoolPath::Feed)) => shown(json!(app.pool_state(user))),
        (&Method::GET, Some(PoolPath::Members)) => shown(app.feed.member_names()),
        (&Method::GET, Some(PoolPath::Bars)) => shown(json!({ "barred": app.barred() })),
        (&Method::GET, _) | (_, None) => Ok(None),
        (&Method::POST, Some(PoolPath::InFeed(call))) => feed_call(app, request, call, user).await.map(Some),
        (&Method::POST, Some(PoolPath::Reports)) => shown(app.take_report(user, request).await?),
        (&Method::DELETE, Some(PoolPath::Members)) => {
            app.void_members(user).await?;
            shown(app.feed.member_names())
        }
        (&Method::DELETE, Some(PoolPath::InFeed(collection))) => {
            app.void_collection(user, collection).await?;
            shown(json!(app.pool_state(user)))
        }
        (&Method::DELETE, Some(PoolPath::Bars)) => {
            app.lift_bars(user, None)?;
            shown(json!({ "barred": app.barred() }))
        }
        (&Method::DELETE, Some(PoolPath::Bar(node))) => {
            app.lift_bars(user, Some(node))?;
            shown(json!({ "barred": app.barred() }))
        }
        _ => Err(Status::method_not_allowed()),
    }
}

/// Takes a call of the leader.
async fn feed_call(
    app: &Arc<App>,
    request: Request<Incoming>,
    call: &str,
    user: &User,
) -> Result<Response<Body>, Status> {
    let allowed = check_version(request.uri().query()).and_then(|()| app.feed.check_leader(user));
    if let Err(refusal) = allowed {
        app.feed.refused(&refusal);
        return Ok(respond_feed(&refusal.into()));
    }
    let bodies = &app.filters.bodies;
    let taken = match call {
        SCOPE_CALL => {
            let body = feed::read_call(bodies, request, SMALL_BYTES_MAX).await?;
            app.take_scope(user, Bytes::clone(&body)).await
        }
        _ => {
            let body = feed::read_call(bodies, request, feed::BODY_BYTES_MAX).await?;
            app.feed.take(user, call, body, bodies).await
        }
    };
    Ok(match taken {
        Ok(answer) => web::json(StatusCode::OK, answer.to_string()),
        Err(error) => respond_feed(&error),
    })
}

/// The HTTP answer for a failed feed call.
fn respond_feed(error: &FeedError) -> Response<Body> {
    match error {
        FeedError::Refused(refusal) => web::json(StatusCode::CONFLICT, refusal.to_json().to_string()),
        FeedError::Status(status) => web::status_response(status),
    }
}
