//! The order in which a request passes the filters: this file is the order.
//!
//! | | stop | refuses with |
//! |---|---|---|
//! | 1 | [`headers`]: audit id, the client's or a new one | |
//! | 2 | [`health`]: answers `/healthz`, `/livez` and `/readyz` itself | 401, 403 |
//! | 3 | `request_info`: path and query, the resource, the format of failures | 400 |
//! | 4 | [`deadline`]: time limit of all stops below | 400, 504 |
//! | 5 | [`authentication`]: the caller | 401 |
//! | 6 | `audit`: begins the events of the request; a 400 of stop 4 and a 401 have one event | |
//! | 7 | [`impersonation`]: the user on whose behalf the caller asks | 400, 403 |
//! | 8 | [`pool_data`]: writes to data that the cloud owns | 405 |
//! | 9 | [`fair_queue`]: a permit among the requests in flight | 429 |
//! | 10 | [`open_answers`]: counts the answer until its last bytes are sent | 429 |
//! | 11 | [`authorization`] | 403 |
//! | 12 | [`dispatch`]: the handler of the path and verb | its own |
//!
//! On the way back: the failure in the client's format, the facts for the connection, metrics, the audit event, the
//! headers of every answer. The order is kube-apiserver's (`DefaultBuildHandlerChain`), stop 8 aside: it precedes
//! authorization, so that the caller gets the reason instead of a bare 403.

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use yurt_apimachinery::Status;
use yurt_runtime::http::server::Peer;
use yurt_runtime::http::{Body, status_response_as};

use super::audit::AuditContext;
use super::authentication::{self, ConnectionFacts};
use super::request_info::RequestHead;
use super::{authorization, deadline, fair_queue, headers, health, impersonation, open_answers, pool_data};
use crate::app::App;
use crate::authz::Attributes;
use crate::dispatch;
use crate::request::ParsedRequest;

/// Answers one request; never fails.
pub(crate) async fn answer(app: Arc<App>, mut request: Request<Incoming>, peer: Peer) -> Response<Body> {
    let audit_id = headers::audit_id(request.headers());
    let response = match health::answer(&app, &mut request, &peer) {
        Some(response) => response,
        None => answer_measured(&app, request, &peer, &audit_id).await,
    };
    headers::with_common_headers(response, &audit_id)
}

/// Answers, and leaves metrics, audit events and facts for the connection.
async fn answer_measured(app: &Arc<App>, request: Request<Incoming>, peer: &Peer, audit_id: &str) -> Response<Body> {
    let begun = app.clock.boot();
    let RequestHead {
        parsed,
        verb,
        labels,
        format,
    } = RequestHead::of(app, &request);
    let mut facts = ConnectionFacts::unauthenticated(peer);
    let mut audit = AuditContext::new(audit_id);
    let answer = match parsed {
        Ok(parsed) => match deadline::of(&parsed.info, parsed.query.as_deref()) {
            Ok(limit) => {
                // Boxed: this future is moved several times on its way to a task.
                let answer = Box::pin(answer_parsed(app, request, peer, parsed, &mut facts, &mut audit));
                deadline::within(limit, answer).await
            }
            Err(status) => {
                audit.begin(app, &parsed.info, &request, peer, Err(&status));
                Err(status)
            }
        },
        Err(status) => Err(status),
    };
    let mut response = answer.unwrap_or_else(|status| status_response_as(format, &status));
    facts.add_to(&mut response);
    app.metrics.answered(labels, &response, app.clock.boot().since(begun));
    audit.answered(verb, response)
}

/// Stops 5 to 12. A connection without a known caller ends with its answer: connections and HTTP/2 streams are too
/// cheap a weapon for strangers.
async fn answer_parsed(
    app: &Arc<App>,
    mut request: Request<Incoming>,
    peer: &Peer,
    parsed: ParsedRequest,
    facts: &mut ConnectionFacts,
    audit: &mut AuditContext<'_>,
) -> Result<Response<Body>, Status> {
    let info = &parsed.info;
    let caller = authentication::authenticate(app, request.headers_mut(), peer);
    *facts = ConnectionFacts::of(app, peer, caller.as_ref().ok());
    audit.begin(app, info, &request, peer, caller.as_ref());
    let attributes = Attributes::of(info).selecting(info, parsed.query.as_deref());
    let user = impersonation::impersonate(app, request.headers_mut(), caller?, &attributes, audit)?;
    pool_data::refuse_writes(parsed.resource.as_deref(), &user, info.verb)?;
    let _permit = fair_queue::enter(app, &user, info).await?;
    let open = open_answers::enter(app, &user, peer, info, request.headers_mut())?;
    authorization::authorize(app, &user, info, &attributes, audit)?;
    let response = dispatch::handle(app, request, peer, parsed, user).await?;
    Ok(open_answers::counted(response, open))
}
