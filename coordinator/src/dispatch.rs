//! Passes an authorized request to the handler of its path and verb.
//!
//! In this order: paths that name no resource ([`paths`]), reviews, token requests, what kube-apiserver proxies to
//! other programs ([`unsupported_proxy`]), then one handler per verb. Bodies are read once the path is known to offer
//! the verb.

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use yurt_apimachinery::{Status, Verb};
use yurt_codec::negotiation::Negotiated;
use yurt_runtime::http::server::Peer;
use yurt_runtime::http::{self as web, Body};

use crate::app::App;
use crate::authn::{MASTERS, User};
use crate::bodies::{NODE_BODY_BYTES_MAX, Received, SMALL_BYTES_MAX, Work};
use crate::config::Profile;
use crate::handlers::review::Exchange;
use crate::handlers::{create, delete, get, list, patch, review, update, watch};
use crate::registry::{leases, reviews};
use crate::request::warnings::Warnings;
use crate::request::{Call, ParsedRequest};
use crate::standalone::{pods, token_request, unsupported_proxy};

mod offered;
mod paths;

/// Answers an authorized request.
///
/// # Errors
/// The failure of a request that reached no handler of a verb.
pub(crate) async fn handle(
    app: &Arc<App>,
    request: Request<Incoming>,
    peer: &Peer,
    parsed: ParsedRequest,
    user: User,
) -> Result<Response<Body>, Status> {
    let ParsedRequest {
        info,
        query,
        resource,
        format,
    } = parsed;
    if !info.is_resource {
        return paths::answer(app, request, peer, &info, &user).await;
    }
    if let Some(kind) = reviews::find(&info) {
        if info.name.is_some() {
            return Err(Status::unknown_resource());
        }
        if info.verb != Verb::Create {
            return Err(Status::method_not_allowed());
        }
        return exchange(app, &user, request, (format, query.as_deref()), |exchange| {
            review::handle(app, &user, kind, info.namespace.as_deref(), exchange)
        })
        .await;
    }
    let Some(resource) = resource else {
        return paths::not_found(app, &info);
    };
    if token_request::is_meant(app, &resource, &info) {
        return exchange(app, &user, request, (format, query.as_deref()), |exchange| {
            token_request::handle(app, &user, &info, exchange)
        })
        .await;
    }
    if let Some(answer) = unsupported_proxy::answer(app, &resource, &info).await? {
        return Ok(answer);
    }
    offered::check(&resource, &info, request.method())?;
    let warnings = Arc::new(Warnings::about(resource.kind));
    let (head, body) = request.into_parts();
    let body = if info.verb.is_read_only() {
        Received::none()
    } else {
        let bodies = &app.filters.bodies;
        bodies.read(&user.name, body, body_bytes_max(app, &user)).await?
    };
    let call = Call {
        app: app.clone(),
        resource,
        user,
        info,
        query,
        headers: head.headers,
        body,
        warnings: warnings.clone(),
        ends: peer.ends.clone(),
    };
    Ok(finished(Box::pin(by_verb(call)).await, format, &warnings))
}

/// Limit of the body of a write. Nodes write leases and events in a pool.
fn body_bytes_max(app: &App, user: &User) -> usize {
    let most = app.settings.body_bytes_max;
    let is_small = app.settings.profile == Profile::Pool && user.node_name().is_some() && !user.is_in(MASTERS);
    if is_small { most.min(NODE_BODY_BYTES_MAX) } else { most }
}

/// Answers a body with another one of its kind, and stores nothing. Every caller may send one, so its size is limited.
async fn exchange(
    app: &App,
    user: &User,
    request: Request<Incoming>,
    (format, query): (Negotiated, Option<&str>),
    answer: impl FnOnce(&Exchange<'_>) -> Result<Response<Body>, Status>,
) -> Result<Response<Body>, Status> {
    let (head, body) = request.into_parts();
    let limit = app.settings.body_bytes_max.min(SMALL_BYTES_MAX);
    let body = &*app.filters.bodies.read(&user.name, body, limit).await?;
    let (headers, warnings) = (&head.headers, &Warnings::default());
    let answer = answer(&Exchange {
        query,
        headers,
        body,
        warnings,
    });
    Ok(finished(answer, format, warnings))
}

/// The answer or its failure, with the warnings for the client.
fn finished(answer: Result<Response<Body>, Status>, format: Negotiated, warnings: &Warnings) -> Response<Body> {
    let is_unread = answer.as_ref().is_err_and(Status::is_of_router);
    let mut response = answer.unwrap_or_else(|status| web::status_response_as(format, &status));
    if !is_unread {
        warnings.add_to(&mut response);
    }
    response
}

/// Passes a request to the handler of its verb. Writes of several steps finish even when the client disconnects; the
/// store finishes a single step by itself.
async fn by_verb(call: Call) -> Result<Response<Body>, Status> {
    match call.info.verb {
        Verb::Get => Ok(web::gzip(&call.headers, get::handle(&call).await?)),
        Verb::List => Ok(web::gzip(&call.headers, list::handle(&call).await?)),
        Verb::Watch => watch::handle(&call).await,
        _ if call.body.is_large() => {
            let (writes, bodies) = (call.app.writes.clone(), call.app.filters.bodies.clone());
            let write = async move {
                bodies
                    .in_turn(Work::Calls, async move { handle_write(&call).await })
                    .await
            };
            let write = writes.detached("large write", write);
            write.await.map_err(|lost| Status::internal(&lost.to_string()))??
        }
        Verb::Create | Verb::Update | Verb::Patch if is_one_step(&call) => Box::pin(handle_write(&call)).await,
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => {
            let writes = call.app.writes.clone();
            let write = writes.detached("write", async move { handle_write(&call).await });
            write.await.map_err(|lost| Status::internal(&lost.to_string()))?
        }
        Verb::Proxy | Verb::Post | Verb::Put | Verb::Head | Verb::Options | Verb::Other => {
            Err(Status::method_not_allowed())
        }
    }
}

/// True if nothing has to follow the commit of a create or change. Two do: the guard of elections receives it, and an
/// evicted pod is deleted after it was marked.
fn is_one_step(call: &Call) -> bool {
    let is_eviction = call.info.subresource.as_deref() == Some("eviction");
    !is_eviction && !leases::may_be_guarded(&call.resource, call.info.namespace.as_deref())
}

async fn handle_write(call: &Call) -> Result<Response<Body>, Status> {
    match call.info.verb {
        Verb::Create => match pods::subresources::handle(call).await {
            Some(answer) => answer,
            None => create::handle(call).await,
        },
        Verb::Update => update::handle(call).await,
        Verb::Patch => patch::handle(call).await,
        Verb::Delete => delete::handle(call).await,
        _ => delete::handle_collection(call).await,
    }
}
