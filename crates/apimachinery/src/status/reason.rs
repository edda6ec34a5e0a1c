//! The machine-readable reasons, and tests of a Status for them.

use super::Status;

/// 400.
pub const BAD_REQUEST: &str = "BadRequest";
/// 401.
pub const UNAUTHORIZED: &str = "Unauthorized";
/// 403.
pub const FORBIDDEN: &str = "Forbidden";
/// 404.
pub const NOT_FOUND: &str = "NotFound";
/// 405.
pub const METHOD_NOT_ALLOWED: &str = "MethodNotAllowed";
/// 406.
pub const NOT_ACCEPTABLE: &str = "NotAcceptable";
/// 409, on create.
pub const ALREADY_EXISTS: &str = "AlreadyExists";
/// 409, on everything else.
pub const CONFLICT: &str = "Conflict";
/// 410, only of servers older than 1.18.
pub const GONE: &str = "Gone";
/// 410.
pub const EXPIRED: &str = "Expired";
/// 413.
pub const REQUEST_ENTITY_TOO_LARGE: &str = "RequestEntityTooLarge";
/// 415.
pub const UNSUPPORTED_MEDIA_TYPE: &str = "UnsupportedMediaType";
/// 422.
pub const INVALID: &str = "Invalid";
/// 429.
pub const TOO_MANY_REQUESTS: &str = "TooManyRequests";
/// 500.
pub const INTERNAL_ERROR: &str = "InternalError";
/// 500, the storage did not answer.
pub const SERVER_TIMEOUT: &str = "ServerTimeout";
/// 503.
pub const SERVICE_UNAVAILABLE: &str = "ServiceUnavailable";
/// 504.
pub const TIMEOUT: &str = "Timeout";

/// Cause of a 504 for a resource version above what the server has.
pub const CAUSE_RESOURCE_VERSION_TOO_LARGE: &str = "ResourceVersionTooLarge";
/// Cause of a 403 for a create in a namespace that is being deleted.
pub const CAUSE_NAMESPACE_TERMINATING: &str = "NamespaceTerminating";
/// Cause of a rejected apply: another manager owns the field.
pub const CAUSE_FIELD_MANAGER_CONFLICT: &str = "FieldManagerConflict";

impl Status {
    fn has_reason(&self, reason: &str) -> bool {
        !self.is_success() && self.reason() == reason
    }

    /// True if the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.has_reason(NOT_FOUND)
    }

    /// True if the object exists already.
    pub fn is_already_exists(&self) -> bool {
        self.has_reason(ALREADY_EXISTS)
    }

    /// True if a precondition of a write failed.
    pub fn is_conflict(&self) -> bool {
        self.has_reason(CONFLICT)
    }

    /// True if the resource version is outside the history kept.
    pub fn is_expired(&self) -> bool {
        self.has_reason(EXPIRED) || self.has_reason(GONE)
    }

    /// True if validation failed.
    pub fn is_invalid(&self) -> bool {
        self.has_reason(INVALID)
    }

    /// True if the caller is not authorized.
    pub fn is_forbidden(&self) -> bool {
        self.has_reason(FORBIDDEN)
    }

    /// True if the caller is not authenticated.
    pub fn is_unauthorized(&self) -> bool {
        self.has_reason(UNAUTHORIZED)
    }

    /// True if the server asks the client to retry later.
    pub fn is_too_many_requests(&self) -> bool {
        self.has_reason(TOO_MANY_REQUESTS) || self.code() == 429
    }

    /// True if the server has not reached the resource version asked for.
    pub fn is_too_large_resource_version(&self) -> bool {
        self.has_reason(TIMEOUT)
            && self
                .causes()
                .iter()
                .any(|cause| cause.reason == CAUSE_RESOURCE_VERSION_TOO_LARGE)
    }
}
