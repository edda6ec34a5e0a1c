//! The representation of request bodies.

use bytes::Bytes;

use super::{Format, MEDIA_TYPES};
use crate::decoded;
use crate::protobuf::{self, Envelope, TranscodeError};
use crate::type_meta::of_another_kind;
use crate::yaml;
use yurt_apimachinery::json_text::quote;
use yurt_apimachinery::status::Status;
use yurt_apimachinery::text::go_quote;

/// Kind of a patch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// RFC 6902.
    Json,
    /// RFC 7396.
    Merge,
    /// Kubernetes' own, which uses the schema of the types.
    StrategicMerge,
    /// Server-side apply.
    Apply,
}

/// Format of a body about a kind from header `Content-Type`; JSON if there is none.
///
/// # Errors
///
/// 415 for an unsupported media type.
pub fn body_format(content_type: Option<&str>) -> Result<Format, Status> {
    match base_type(content_type.unwrap_or_default()).as_str() {
        "" | "application/json" => Ok(Format::Json),
        "application/yaml" => Ok(Format::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Format::Protobuf),
        _ => Err(Status::unsupported_media_type(&MEDIA_TYPES)),
    }
}

/// Converts a body of any format to JSON. `api_version` and `kind` are those of the endpoint: a protobuf body may leave
/// them out. An empty body of text, and JSON, stay as they are: their readers report the error.
///
/// # Errors
///
/// 400 if the bytes are not of that format, with kube-apiserver's text, and for protobuf of an unknown kind. 413 for
/// more values than [`decoded`] allows; 415 for protobuf about a kind that has none.
pub fn body_json(format: Format, api_version: &str, kind: &str, body: &Bytes) -> Result<Bytes, Status> {
    match format {
        Format::Json => {
            decoded::check(body)?;
            Ok(body.clone())
        }
        Format::Yaml if body.is_empty() => Ok(body.clone()),
        Format::Yaml => yaml::to_json(body).map_err(|error| {
            error.into_status("couldn't get version/kind; json parse error: error converting YAML to JSON: ")
        }),
        Format::Protobuf => {
            let json = from_protobuf(api_version, kind, body)?;
            decoded::check(&json)?;
            Ok(json)
        }
    }
}

fn from_protobuf(api_version: &str, kind: &str, body: &[u8]) -> Result<Bytes, Status> {
    let unrecognized = |error: TranscodeError| {
        let why = format!(
            "the object provided is unrecognized (must be of type {kind}): {error} ({})",
            summary(body)
        );
        Status::bad_request(why)
    };
    if protobuf::message(api_version, kind).is_none() {
        return Err(Status::unsupported_media_type(&MEDIA_TYPES));
    }
    let envelope = Envelope::parse(body).map_err(unrecognized)?;
    let or = |claimed: &str, default: &str| {
        if claimed.is_empty() {
            default.to_owned()
        } else {
            claimed.to_owned()
        }
    };
    let (found_version, found_kind) = (or(envelope.api_version, api_version), or(envelope.kind, kind));
    let Some(message) = protobuf::message(&found_version, &found_kind) else {
        return Err(of_another_kind(&found_version, &found_kind, api_version, kind));
    };
    let object = protobuf::decode(message, envelope.raw).map_err(|error| {
        if error == TranscodeError::TooLarge {
            return Status::too_large(&error.to_string());
        }
        let version = found_version.rsplit('/').next().unwrap_or_default();
        let why = format!(
            "{found_kind} in version {} cannot be handled as a {kind}: {error}",
            go_quote(version)
        );
        Status::bad_request(why)
    })?;
    let head = format!(
        "{{\"kind\":{},\"apiVersion\":{}",
        quote(&found_kind),
        quote(&found_version)
    );
    let comma: &[u8] = if object == b"{}" { b"" } else { b"," };
    let members = object.strip_prefix(b"{").unwrap_or(b"}");
    Ok([head.as_bytes(), comma, members].concat().into())
}

/// The beginning of a body that is not JSON, for people.
fn summary(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let hex: String = body.iter().take(SHOWN).map(|byte| format!("{byte:02x}")).collect();
    match (body.first(), body.len() > SHOWN) {
        (None, _) => "<empty>".to_owned(),
        (Some(b'{'), true) => format!("{} ...", String::from_utf8_lossy(&body[..SHOWN])),
        (Some(b'{'), false) => String::from_utf8_lossy(body).into_owned(),
        (_, true) => hex + " ...",
        (_, false) => hex,
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
