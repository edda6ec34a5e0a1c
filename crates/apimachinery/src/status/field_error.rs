//! One fault of one field, worded like kube-apiserver's `field.Error`.

use std::fmt;

use serde_json::Value;

use super::StatusCause;
use crate::text::{cut, go_quote, json_up_to};

/// Most bytes that a fault shows of a value, and of the path of its field. What is longer ends with `...`.
const SHOWN_BYTES_MAX: usize = 1024;
/// Maximum length of a quoted text, as a multiple of the text.
const QUOTED_GROWTH: usize = 4;
/// Most bytes of a fault's detail: it may list the allowed values, which the schema of a kind defines.
const DETAIL_BYTES_MAX: usize = 4096;

/// A fault of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Category of the fault.
    pub reason: CauseReason,
    /// Path of the field, such as `metadata.name`.
    pub field: String,
    /// The whole text after the path, such as `Invalid value: 0: must be greater than 0`.
    pub message: String,
}

/// Machine-readable kinds of field errors.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum CauseReason {
    /// A value that refers to nothing.
    NotFound,
    /// A value that must be given.
    Required,
    /// A value that must be unique.
    Duplicate,
    /// A value that breaks a rule.
    Invalid,
    /// A value outside an enumeration.
    NotSupported,
    /// A value that may not be given here.
    Forbidden,
    /// A value above its size limit.
    TooLong,
    /// A list above its size limit.
    TooMany,
    /// A value of the wrong JSON type.
    TypeInvalid,
    /// A fault of the server.
    InternalError,
}

// === impl FieldError ===

impl FieldError {
    /// `Invalid value: <value>: <detail>`.
    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: &str) -> Self {
        Self::with_value(CauseReason::Invalid, field, &value.into(), detail)
    }

    /// The same with the value in Go's notation, which differs from JSON.
    pub fn invalid_shown(field: impl Into<String>, shown: &str, detail: &str) -> Self {
        Self::with_shown(CauseReason::Invalid, field, shown, detail)
    }

    /// `Required value: <detail>`.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::without_value(CauseReason::Required, field, detail)
    }

    /// `Forbidden: <detail>`.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::without_value(CauseReason::Forbidden, field, detail)
    }

    /// `Duplicate value: <value>`.
    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::with_value(CauseReason::Duplicate, field, &value.into(), "")
    }

    /// The same with the value in Go's notation.
    pub fn duplicate_shown(field: impl Into<String>, shown: &str, detail: &str) -> Self {
        Self::with_shown(CauseReason::Duplicate, field, shown, detail)
    }

    /// `Not found: <value>`.
    pub fn not_found(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::with_value(CauseReason::NotFound, field, &value.into(), "")
    }

    /// `Unsupported value: <value>: supported values: "a", "b"`.
    pub fn not_supported(field: impl Into<String>, value: impl Into<Value>, supported: &[&str]) -> Self {
        let quoted: Vec<String> = supported.iter().map(|value| go_quote(value)).collect();
        let detail = format!("supported values: {}", quoted.join(", "));
        Self::with_value(CauseReason::NotSupported, field, &value.into(), &detail)
    }

    /// `Too long: may not be more than <limit> bytes`.
    pub fn too_long(field: impl Into<String>, limit: usize) -> Self {
        Self::without_value(
            CauseReason::TooLong,
            field,
            &format!("may not be more than {limit} bytes"),
        )
    }

    /// `Too many: <count>: must have at most <limit> items`.
    pub fn too_many(field: impl Into<String>, count: usize, limit: usize) -> Self {
        let items = if limit == 1 { "item" } else { "items" };
        let detail = format!("must have at most {limit} {items}");
        Self::with_value(CauseReason::TooMany, field, &count.into(), &detail)
    }

    /// `Invalid value: <value>: <detail>`, for a value of the wrong JSON type.
    pub fn type_invalid(field: impl Into<String>, value: impl Into<Value>, detail: &str) -> Self {
        Self::with_value(CauseReason::TypeInvalid, field, &value.into(), detail)
    }

    fn with_value(reason: CauseReason, field: impl Into<String>, value: &Value, detail: &str) -> Self {
        let shown = match value {
            Value::String(text) => go_quote(&cut(text, SHOWN_BYTES_MAX)),
            other => json_up_to(other, SHOWN_BYTES_MAX),
        };
        Self::with_shown(reason, field, &shown, detail)
    }

    fn with_shown(reason: CauseReason, field: impl Into<String>, shown: &str, detail: &str) -> Self {
        let shown = cut(shown, SHOWN_BYTES_MAX * QUOTED_GROWTH);
        Self::build(reason, field.into(), format!("{}: {shown}", reason.text()), detail)
    }

    fn without_value(reason: CauseReason, field: impl Into<String>, detail: &str) -> Self {
        Self::build(reason, field.into(), reason.text().to_owned(), detail)
    }

    fn build(reason: CauseReason, field: String, mut message: String, detail: &str) -> Self {
        if !detail.is_empty() {
            message.push_str(": ");
            message.push_str(&cut(detail, DETAIL_BYTES_MAX));
        }
        let field = cut(&field, SHOWN_BYTES_MAX).into_owned();
        Self { reason, field, message }
    }

    pub(crate) fn to_cause(&self) -> StatusCause {
        StatusCause {
            reason: self.reason.as_str().to_owned(),
            message: self.message.clone(),
            field: self.field.clone(),
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

// === impl CauseReason ===

impl CauseReason {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::InternalError => "InternalError",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::InternalError => "Internal error",
        }
    }
}
