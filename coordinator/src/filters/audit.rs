//! The audit events of one request, on its way through the filters. [`crate::audit`] writes them.

use http::uri::PathAndQuery;
use http::{Request, Response};
use yurt_apimachinery::{RequestInfo, Status, Verb};
use yurt_runtime::http::Body;
use yurt_runtime::http::server::Peer;

use crate::app::App;
use crate::audit::AuditRecord;
use crate::authn::User;
use crate::authz::Decision;

/// The audit events of a request: none before [`AuditContext::begin`], or without an audit log.
pub(super) struct AuditContext<'a> {
    audit_id: &'a str,
    record: Option<AuditRecord>,
}

// === impl AuditContext ===

impl<'a> AuditContext<'a> {
    /// Records nothing yet.
    pub(super) fn new(audit_id: &'a str) -> Self {
        Self { audit_id, record: None }
    }

    /// Begins the audit of a request. One that was refused before its caller was known has a single event.
    pub(super) fn begin<B>(
        &mut self,
        app: &App,
        info: &RequestInfo,
        request: &Request<B>,
        peer: &Peer,
        caller: Result<&User, &Status>,
    ) {
        let Some(log) = &app.filters.audit_log else { return };
        let uri = request.uri().path_and_query().map_or("", PathAndQuery::as_str);
        let user = caller.ok();
        let record = log.audit.begin(info, uri, request.headers(), peer, user, self.audit_id);
        match caller {
            Ok(_) => self.record = Some(record),
            Err(status) => record.refused(status),
        }
    }

    /// Records the user on whose behalf the request is answered, and the verb of the constrained mode that permits it.
    pub(super) fn impersonated(&mut self, user: &User, constraint: Option<&str>) {
        if let Some(record) = &mut self.record {
            record.impersonated(user, constraint);
        }
    }

    /// Records the decision of the authorizer.
    pub(super) fn decided(&mut self, decision: &Decision) {
        if let Some(record) = &mut self.record {
            record.decided(decision);
        }
    }

    /// Records the answer, and returns it. The events of a watch end with its body.
    pub(super) fn answered(self, verb: Option<Verb>, response: Response<Body>) -> Response<Body> {
        match self.record {
            Some(record) => record.answered(verb, response),
            None => response,
        }
    }
}
