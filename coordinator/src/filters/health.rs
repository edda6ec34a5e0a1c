//! Health paths, answered before everything else.

use http::{Request, Response};
use hyper::body::Incoming;
use yurt_apimachinery::{RequestInfo, Status};
use yurt_runtime::http::server::Peer;
use yurt_runtime::http::{Body, status_response_as};

use super::audit::AuditContext;
use super::authentication::{self, ConnectionFacts};
use super::{authorization, request_info};
use crate::app::App;
use crate::authz::Attributes;
use crate::health::{Health, HealthScope};

/// Answers `/healthz`, `/livez` and `/readyz` to every caller, single checks to authorized callers only. Refuses an
/// unknown token, as everywhere. `None` for any other path.
pub(super) fn answer(app: &App, request: &mut Request<Incoming>, peer: &Peer) -> Option<Response<Body>> {
    let scope = Health::scope_of(request.uri().path())?;
    let user = authentication::authenticate(app, request.headers_mut(), peer);
    let mut facts = ConnectionFacts::of(app, peer, user.as_ref().ok());
    let permitted = user.and_then(|user| match scope {
        HealthScope::All => Ok(()),
        HealthScope::One => {
            let (method, uri) = (request.method().as_str(), request.uri());
            let info = RequestInfo::parse(method, uri.path(), uri.query())?;
            let attributes = Attributes::of(&info);
            authorization::authorize(app, &user, &info, &attributes, &mut AuditContext::new(""))
        }
    });
    let mut response = match permitted {
        Err(status) => refused(request, &status),
        Ok(()) => {
            app.health.set_has_members(!app.lacks_members());
            app.health.answer(request.uri().path(), request.uri().query())?
        }
    };
    facts.add_to(&mut response);
    Some(response)
}

fn refused(request: &Request<Incoming>, status: &Status) -> Response<Body> {
    status_response_as(request_info::error_format(request, None), status)
}
