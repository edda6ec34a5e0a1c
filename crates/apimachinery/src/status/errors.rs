//! Constructors for every failure the API knows, with kube-apiserver's own texts.

use super::{ErrorList, FieldError, Status, StatusDetails, reason};
use crate::gvr::{GroupKind, GroupResource};
use crate::resource_version::ResourceVersion;
use crate::text::{go_quote, html_escape};

/// Reason for the rejection of a write with an old resource version.
pub const OPTIMISTIC_LOCK_MESSAGE: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// A request that an authorizer rejected.
#[derive(Clone, Copy, Debug, Default)]
pub struct Denial<'a> {
    /// User of the request.
    pub user: &'a str,
    /// Verb, of the API or of HTTP for paths.
    pub verb: &'a str,
    /// Path of a request that names no resource.
    pub path: Option<&'a str>,
    /// API group, empty for core.
    pub group: &'a str,
    /// Plural resource.
    pub resource: &'a str,
    /// Subresource, empty for none.
    pub subresource: &'a str,
    /// Namespace, empty for the cluster scope.
    pub namespace: &'a str,
    /// Name, empty when unknown.
    pub name: &'a str,
    /// The authorizer's reason; may be empty.
    pub why: &'a str,
}

// === impl Denial ===

impl Denial<'_> {
    fn describe(&self) -> String {
        let (user, verb) = (go_quote(self.user), self.verb);
        if let Some(path) = self.path {
            return format!("User {user} cannot {verb} path {}", go_quote(path));
        }
        let resource = if self.subresource.is_empty() {
            go_quote(self.resource)
        } else {
            go_quote(&format!("{}/{}", self.resource, self.subresource))
        };
        let scope = if self.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {}", go_quote(self.namespace))
        };
        format!(
            "User {user} cannot {verb} resource {resource} in API group {} {scope}",
            go_quote(self.group)
        )
    }
}

fn details(resource: &GroupResource, name: &str) -> StatusDetails {
    StatusDetails {
        name: name.to_owned(),
        group: resource.group.clone(),
        kind: resource.resource.clone(),
        ..StatusDetails::default()
    }
}

// === impl Status ===

impl Status {
    /// 400: the request cannot be parsed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::failure(400, reason::BAD_REQUEST, message)
    }

    /// 401: the caller is not authenticated.
    pub fn unauthorized() -> Self {
        Self::failure(401, reason::UNAUTHORIZED, "Unauthorized")
    }

    /// 401 with its reason, for a caller that may learn it.
    pub fn unauthorized_because(why: &str) -> Self {
        Self::failure(401, reason::UNAUTHORIZED, format!("Unauthorized: {why}"))
    }

    /// 421: the request was meant for another host.
    pub fn misdirected(message: impl Into<String>) -> Self {
        Self::failure(421, "", message)
    }

    /// 403: an authorizer rejected what is described, which need not be a request.
    pub fn denied(denial: &Denial<'_>) -> Self {
        let mut message = html_escape(&denial.describe());
        if !denial.why.is_empty() {
            message.push_str(": ");
            message.push_str(denial.why);
        }
        let resource = GroupResource::new(denial.group, denial.resource);
        let mut status = Self::forbidden_because(&resource, denial.name, &message);
        status.is_denial = true;
        status
    }

    /// 403: a rule of the server rejected the request; `name` may be empty.
    pub fn forbidden_because(resource: &GroupResource, name: &str, why: &str) -> Self {
        let message = match (resource.resource.is_empty(), name.is_empty()) {
            (true, _) => format!("forbidden: {why}"),
            (false, true) => format!("{resource} is forbidden: {why}"),
            (false, false) => format!("{resource} {} is forbidden: {why}", go_quote(name)),
        };
        Self::failure(403, reason::FORBIDDEN, message).with_details(details(resource, name))
    }

    /// 404: the object does not exist.
    pub fn not_found(resource: &GroupResource, name: &str) -> Self {
        let message = format!("{resource} {} not found", go_quote(name));
        Self::failure(404, reason::NOT_FOUND, message).with_details(details(resource, name))
    }

    /// 404: a served version has no such resource.
    pub fn unknown_resource() -> Self {
        Self::failure(
            404,
            reason::NOT_FOUND,
            "the server could not find the requested resource",
        )
        .with_details(StatusDetails::default())
    }

    /// 405: the path does not offer this method.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::failure(405, reason::METHOD_NOT_ALLOWED, message).with_details(StatusDetails::default())
    }

    /// 406: a known media type with parameters that cannot be served.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", accepted.join(", "));
        Self::failure(406, reason::NOT_ACCEPTABLE, message)
    }

    /// 406: no media type of the request is known at all.
    pub fn not_acceptable_unknown(available: &[&str]) -> Self {
        let message = format!(
            "406: Not Acceptable\n\nAvailable representations: {}",
            available.join(", ")
        );
        Self::failure(406, reason::NOT_ACCEPTABLE, message).with_details(StatusDetails::default())
    }

    /// 406: the representation asked for does not fit what was found.
    pub fn not_acceptable_transform(message: impl Into<String>) -> Self {
        Self::failure(406, reason::NOT_ACCEPTABLE, message)
    }

    /// 409: create of an object that exists.
    pub fn already_exists(resource: &GroupResource, name: &str) -> Self {
        let message = format!("{resource} {} already exists", go_quote(name));
        Self::failure(409, reason::ALREADY_EXISTS, message).with_details(details(resource, name))
    }

    /// 409: create of an object that exists and is being deleted.
    pub fn already_exists_deleting(resource: &GroupResource, name: &str) -> Self {
        let mut status = Self::already_exists(resource, name);
        status.message.insert_str(0, "object is being deleted: ");
        status
    }

    /// 409: every name generated for a create was taken.
    pub fn generate_name_conflict(resource: &GroupResource, name: &str) -> Self {
        let mut status = Self::already_exists(resource, name).with_retry_after(1);
        status
            .message
            .push_str(", the server was not able to generate a unique name for the object");
        status
    }

    /// 409: a precondition of a write failed.
    pub fn conflict(resource: &GroupResource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {}: {why}", go_quote(name));
        Self::failure(409, reason::CONFLICT, message).with_details(details(resource, name))
    }

    /// 409: a write with an old resource version.
    pub fn conflict_modified(resource: &GroupResource, name: &str) -> Self {
        Self::conflict(resource, name, OPTIMISTIC_LOCK_MESSAGE)
    }

    /// 410: the history asked for is not kept.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::failure(410, reason::EXPIRED, message)
    }

    /// 410 of a watch: `oldest` is the oldest resource version a watch may start from.
    pub fn too_old_resource_version(requested: ResourceVersion, oldest: ResourceVersion) -> Self {
        Self::expired(format!("too old resource version: {requested} ({oldest})"))
    }

    /// 410 of a list with an exact resource version that is not kept.
    pub fn list_expired() -> Self {
        Self::expired("The resourceVersion for the provided list is too old.")
    }

    /// 410 of a continue token; `fresh` lists the rest at the latest version, which may be inconsistent.
    pub fn continue_expired(fresh: Option<&str>) -> Self {
        let status = Self::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list \
             without the continue parameter, or use the continue token in this response to retrieve the remainder of \
             the results. Continuing with the provided token results in an inconsistent list - objects that were \
             created, modified, or deleted between the time the first chunk was returned and now may show up in the \
             list.",
        );
        fresh.map_or(status.clone(), |token| status.with_continue(token))
    }

    /// 413 with the given text.
    pub fn too_large(message: &str) -> Self {
        Self::failure(
            413,
            reason::REQUEST_ENTITY_TOO_LARGE,
            format!("Request entity too large: {message}"),
        )
    }

    /// 413: the body is above `limit` bytes.
    pub fn too_large_body(limit: usize) -> Self {
        Self::too_large(&format!("limit is {limit}"))
    }

    /// 415: the body has a media type the server does not read.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::failure(415, reason::UNSUPPORTED_MEDIA_TYPE, message)
    }

    /// 415: the patch has a media type the server does not read.
    pub fn unsupported_patch_type() -> Self {
        Self::failure(415, reason::UNSUPPORTED_MEDIA_TYPE, "415: Unsupported Media Type")
            .with_details(StatusDetails::default())
    }

    /// 422: validation failed.
    pub fn invalid(kind: &GroupKind, name: &str, errors: &ErrorList) -> Self {
        let mut message = format!("{kind} {} is invalid", go_quote(name));
        if !errors.is_empty() {
            message.push_str(": ");
            message.push_str(&errors.joined());
        }
        Self::failure(422, reason::INVALID, message).with_details(StatusDetails {
            name: name.to_owned(),
            group: kind.group.clone(),
            kind: kind.kind.clone(),
            causes: errors.iter().map(FieldError::to_cause).collect(),
            ..StatusDetails::default()
        })
    }

    /// 422: an update of a kind that wants a resource version came without one.
    pub fn resource_version_required(resource: &GroupResource, name: &str) -> Self {
        let error = FieldError::invalid("metadata.resourceVersion", 0, "must be specified for an update");
        Self::invalid(
            &GroupKind::new(resource.group.clone(), resource.resource.clone()),
            name,
            &error.into(),
        )
    }

    /// 422: a JSON patch that does not apply.
    pub fn patch_failed() -> Self {
        Self::failure(
            422,
            reason::INVALID,
            "the server rejected our request due to an error in our request",
        )
        .with_details(StatusDetails::default())
    }

    /// 422: a patch that can be read but not applied.
    pub fn unprocessable(message: impl Into<String>) -> Self {
        Self::failure(422, reason::INVALID, message)
    }

    /// 429: retry after `seconds`.
    pub fn too_many_requests(message: impl Into<String>, seconds: u32) -> Self {
        Self::failure(429, reason::TOO_MANY_REQUESTS, message).with_retry_after(seconds)
    }

    /// 500: a fault of the server.
    pub fn internal(cause: &str) -> Self {
        Self::failure(500, reason::INTERNAL_ERROR, format!("Internal error occurred: {cause}"))
            .with_cause("", cause, "")
    }

    /// 500: the storage did not answer.
    pub fn server_timeout(resource: &GroupResource, operation: &str) -> Self {
        let message = format!(
            "The {operation} operation against {resource} could not be completed at this time, please try again."
        );
        Self::failure(500, reason::SERVER_TIMEOUT, message)
            .with_details(details(resource, ""))
            .with_retry_after(2)
    }

    /// 503: retry after `seconds`; with 0 clients do not retry by themselves.
    pub fn service_unavailable(message: impl Into<String>, seconds: u32) -> Self {
        let status = Self::failure(503, reason::SERVICE_UNAVAILABLE, message);
        if seconds == 0 {
            status
        } else {
            status.with_retry_after(seconds)
        }
    }

    /// 504: the deadline of the request passed.
    pub fn timeout() -> Self {
        let message = "Timeout: request did not complete within the allotted timeout";
        Self::failure(504, reason::TIMEOUT, message).with_details(StatusDetails::default())
    }

    /// 504: the server has not reached the resource version asked for.
    pub fn too_large_resource_version(want: ResourceVersion, have: ResourceVersion) -> Self {
        let message = format!("Timeout: Too large resource version: {want}, current: {have}");
        Self::failure(504, reason::TIMEOUT, message)
            .with_cause(
                reason::CAUSE_RESOURCE_VERSION_TOO_LARGE,
                "Too large resource version",
                "",
            )
            .with_retry_after(1)
    }

    /// 201: the operation succeeded, and there is nothing to return.
    pub fn success_created() -> Self {
        let mut status = Self::failure(201, "", "");
        status.success = true;
        status
    }

    /// 200: the object was deleted and is not returned.
    pub fn success_deleted(resource: &GroupResource, name: &str, uid: &str) -> Self {
        let mut status = Self::failure(200, "", "");
        status.success = true;
        status.with_details(StatusDetails {
            uid: uid.to_owned(),
            ..details(resource, name)
        })
    }
}
