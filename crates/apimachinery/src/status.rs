//! The `Status` body: the one answer of the API for everything that is not an object.
//!
//! The constructors in `status/errors.rs` make a [`Status`], with kube-apiserver's own texts. [`Status::code`],
//! [`Status::retry_after`] and [`Status::to_json`] turn it into an HTTP answer.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

mod error_list;
mod errors;
mod field_error;
pub mod reason;

pub use error_list::{ERRORS_MAX, ErrorList};
pub use errors::{Denial, OPTIMISTIC_LOCK_MESSAGE};
pub use field_error::{CauseReason, FieldError};

/// A `v1` Status. Fields that the API omits when empty are omitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "wire::Wire", into = "wire::Wire")]
pub struct Status {
    /// True for the answer to a delete; everything else is a failure.
    success: bool,
    /// HTTP status code; 200 for success.
    code: u16,
    reason: String,
    message: String,
    /// A fresh token, only in the answer to an expired one.
    continue_token: Option<Box<str>>,
    details: Option<Box<StatusDetails>>,
    /// True if an authorizer made it; known to this process only.
    is_denial: bool,
}

/// Object of a failure, and its causes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusDetails {
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// API group, empty for core.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Plural resource, or the Kind in validation errors.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Uid of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The single errors behind a failure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<StatusCause>,
    /// Seconds a client shall wait; also sent as header `Retry-After`. Zero is absent.
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

/// One fault behind a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusCause {
    /// Machine-readable, such as `FieldValueInvalid`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Text for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Path of the field, such as `spec.leaseDurationSeconds`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

// === impl Status ===

impl Status {
    /// A failure without details.
    pub fn failure(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self {
            success: false,
            code,
            reason: reason.to_owned(),
            message: message.into(),
            continue_token: None,
            details: None,
            is_denial: false,
        }
    }

    /// The same with details; empty ones appear as `{}`.
    #[must_use]
    pub fn with_details(mut self, details: StatusDetails) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// The same with a request to retry after so many seconds.
    #[must_use]
    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// The same with one more cause.
    #[must_use]
    pub fn with_cause(mut self, reason: &str, message: &str, field: &str) -> Self {
        let cause = StatusCause {
            reason: reason.to_owned(),
            message: message.to_owned(),
            field: field.to_owned(),
        };
        self.details.get_or_insert_default().causes.push(cause);
        self
    }

    /// The same with a fresh continue token in its metadata.
    #[must_use]
    pub fn with_continue(mut self, token: &str) -> Self {
        self.continue_token = Some(token.into());
        self
    }

    /// Reads a Status body of another server; `None` if the bytes are anything else.
    pub fn from_json(bytes: &[u8]) -> Option<Self> {
        let wire: wire::Wire = crate::mapping::from_slice(bytes).ok()?;
        wire.is_status().then(|| wire.into())
    }

    /// The body, in kube-apiserver's field order and with Go's escapes for `<`, `>` and `&`. No newline at the end.
    pub fn to_json(&self) -> Bytes {
        let json = serde_json::to_string(self).expect("a Status has string keys only, so it must serialize");
        if !json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            return json.into();
        }
        // These characters only occur inside strings, where the escape means the same.
        let escaped = json
            .replace('<', "\\u003c")
            .replace('>', "\\u003e")
            .replace('&', "\\u0026");
        escaped
            .replace('\u{2028}', "\\u2028")
            .replace('\u{2029}', "\\u2029")
            .into()
    }

    /// HTTP status code.
    pub fn code(&self) -> u16 {
        self.code
    }

    /// Machine-readable reason, one of [`reason`].
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Text for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Object of the failure, and its causes.
    pub fn details(&self) -> Option<&StatusDetails> {
        self.details.as_deref()
    }

    /// The causes, if any.
    pub fn causes(&self) -> &[StatusCause] {
        self.details.as_ref().map_or(&[], |details| &details.causes)
    }

    /// The fresh token of an expired continue token.
    pub fn continue_token(&self) -> Option<&str> {
        self.continue_token.as_deref()
    }

    /// Value of header `Retry-After`, in seconds.
    pub fn retry_after(&self) -> Option<u32> {
        self.details
            .as_ref()
            .map(|details| details.retry_after_seconds)
            .filter(|seconds| *seconds > 0)
    }

    /// True if an authorizer rejected the request, rather than a rule about its content.
    pub fn is_denial(&self) -> bool {
        self.is_denial
    }

    /// True for rejections of kube-apiserver's router, before any other code reads the request: a media type it does
    /// not know.
    pub fn is_of_router(&self) -> bool {
        matches!(self.code, 406 | 415) && self.details.is_some()
    }

    /// True for the answer to a delete.
    pub fn is_success(&self) -> bool {
        self.success
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.message.is_empty() {
            &self.reason
        } else {
            &self.message
        })
    }
}

impl std::error::Error for Status {}

mod wire;

#[cfg(test)]
mod tests;
