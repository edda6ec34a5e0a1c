//! Changes of a few bytes of an object that keep all others.

use bytes::Bytes;
use serde_json::Value;

use super::extract::TypeMeta;
use crate::json_text::scan::{Member, first_member, last_member};
use crate::json_text::{quote, set_member_at, splice};
use crate::kind::ResourceKind;
use crate::resource_version::ResourceVersion;

/// Fills in apiVersion and kind where they are absent, null or empty.
pub(super) fn complete_type_meta(bytes: &Bytes, found: &TypeMeta, has_members: bool, kind: &ResourceKind) -> Bytes {
    let mut bytes = bytes.clone();
    if !found.kind.is_empty() && !found.api_version.is_empty() {
        return bytes;
    }
    let (api_version, kind) = (quote(&kind.api_version()), quote(&kind.kind));
    if !has_members {
        // Items of a list lack both members: one copy inserts them. An Object has metadata, so a comma must follow.
        return splice(
            &bytes,
            &(1..1),
            &format!("\"apiVersion\":{api_version},\"kind\":{kind},"),
        );
    }
    if found.kind.is_empty() {
        bytes = set_member_at(&bytes, 0, "kind", &kind).unwrap_or(bytes);
    }
    if found.api_version.is_empty() {
        bytes = set_member_at(&bytes, 0, "apiVersion", &api_version).unwrap_or(bytes);
    }
    bytes
}

/// Encodes a value; where the metadata begins if it is an object that has them.
///
/// # Errors
/// As serde_json.
pub(super) fn encode(value: &Value, out: &mut Vec<u8>) -> Result<Option<usize>, serde_json::Error> {
    let Value::Object(members) = value else {
        serde_json::to_writer(out, value)?;
        return Ok(None);
    };
    let mut metadata = None;
    out.push(b'{');
    for (at, (name, value)) in members.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        serde_json::to_writer(&mut *out, name)?;
        out.push(b':');
        if name == "metadata" && value.is_object() {
            metadata = Some(out.len());
        }
        serde_json::to_writer(&mut *out, value)?;
    }
    out.push(b'}');
    Ok(metadata)
}

/// Position of the object's metadata; `None` if it has none that is an object.
pub(super) fn metadata_at(bytes: &[u8]) -> Option<usize> {
    object_at(bytes, last_member(bytes, 0, "metadata")??)
}

/// As [`metadata_at`], for an object with one such member: what follows it is not scanned.
pub(super) fn only_metadata_at(bytes: &[u8]) -> Option<usize> {
    object_at(bytes, first_member(bytes, 0, "metadata")?)
}

fn object_at(bytes: &[u8], member: Member) -> Option<usize> {
    let start = member.value.start;
    (bytes.get(start) == Some(&b'{')).then_some(start)
}

/// Replaces or inserts `resourceVersion` in the metadata that begins at `metadata`; `None` if no object begins there.
pub(super) fn set_resource_version(bytes: &[u8], metadata: usize, resource_version: ResourceVersion) -> Option<Bytes> {
    let version = quote(&resource_version.to_string());
    set_member_at(bytes, metadata, "resourceVersion", &version)
}

#[cfg(test)]
mod tests;
