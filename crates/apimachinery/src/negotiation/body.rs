//! The representation of request bodies.

use super::{Format, MEDIA_TYPES};
use crate::status::Status;

/// How a patch is meant.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// RFC 6902.
    Json,
    /// RFC 7396.
    Merge,
    /// Kubernetes' own, which knows the types.
    StrategicMerge,
    /// Server-side apply.
    Apply,
}

/// Format of a body from header `Content-Type`; JSON if there is none.
///
/// # Errors
///
/// 415 for a media type that is not read.
pub fn body_format(content_type: Option<&str>) -> Result<Format, Status> {
    match base_type(content_type.unwrap_or_default()).as_str() {
        "" | "application/json" => Ok(Format::Json),
        _ => Err(Status::unsupported_media_type(&MEDIA_TYPES)),
    }
}

/// Kind of a patch from header `Content-Type`.
///
/// # Errors
///
/// 415 for anything that is no patch.
pub fn patch_type(content_type: Option<&str>) -> Result<PatchType, Status> {
    match base_type(content_type.unwrap_or_default()).as_str() {
        "application/json-patch+json" => Ok(PatchType::Json),
        "application/merge-patch+json" => Ok(PatchType::Merge),
        "application/strategic-merge-patch+json" => Ok(PatchType::StrategicMerge),
        "application/apply-patch+yaml" => Ok(PatchType::Apply),
        _ => Err(Status::unsupported_patch_type()),
    }
}

fn base_type(content_type: &str) -> String {
    content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}
