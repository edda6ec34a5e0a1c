//! Changes of a few bytes of an object that keep all others.
//!
//! Everything here works on bytes, not on values. The input is meant to be checked JSON; on anything else the scanner
//! answers `None`, it never panics.

use bytes::Bytes;
use serde_json::Value;

use super::extract::TypeMeta;
use crate::kind::ResourceKind;
use crate::resource_version::ResourceVersion;

pub mod scan;

use scan::{Member, last_member, members};

/// Drops whitespace around the object, and all whitespace outside strings if it contains a line break.
pub(crate) fn single_line(bytes: Bytes) -> Bytes {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    let Some(start) = bytes.iter().position(|byte| !is_blank(byte)) else {
        return Bytes::new();
    };
    let end = bytes
        .iter()
        .rposition(|byte| !is_blank(byte))
        .map_or(0, |last| last + 1);
    let bytes = if (start, end) == (0, bytes.len()) {
        bytes
    } else {
        bytes.slice(start..end)
    };
    if memchr::memchr2(b'\n', b'\r', &bytes).is_some() {
        compact(&bytes).into()
    } else {
        bytes
    }
}

fn compact(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let (mut in_string, mut escaped) = (false, false);
    for &byte in bytes {
        if in_string {
            in_string = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
        } else if matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
            continue;
        } else {
            in_string = byte == b'"';
        }
        out.push(byte);
    }
    out
}

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
    let start = last_member(bytes, 0, "metadata")??.value.start;
    (bytes.get(start) == Some(&b'{')).then_some(start)
}

/// Replaces or inserts `resourceVersion` in the metadata that begins at `metadata`; `None` if no object begins there.
pub(super) fn set_resource_version(bytes: &[u8], metadata: usize, resource_version: ResourceVersion) -> Option<Bytes> {
    let version = quote(&resource_version.to_string());
    set_member_at(bytes, metadata, "resourceVersion", &version)
}

/// The bytes of the object's metadata, exactly as they are; `None` if there is none.
pub fn metadata(bytes: &Bytes) -> Option<Bytes> {
    member(bytes, "metadata")
}

/// The bytes of a member of the object; `None` if there is none.
pub(crate) fn member(bytes: &Bytes, name: &str) -> Option<Bytes> {
    let found = last_member(bytes, 0, name)??;
    Some(bytes.slice(found.value))
}

/// Replaces the value of the last member of that name in the object at `at`, or inserts the member in front.
fn set_member_at(bytes: &[u8], at: usize, name: &str, value: &str) -> Option<Bytes> {
    if let Some(Member { value: old, .. }) = last_member(bytes, at, name)? {
        return Some(splice(bytes, &old, value));
    }
    let is_empty = members(bytes, at)?.next().is_none();
    let comma = if is_empty { "" } else { "," };
    let inside = bytes.iter().skip(at).position(|byte| *byte == b'{')? + at + 1;
    Some(splice(
        bytes,
        &(inside..inside),
        &format!("{}:{value}{comma}", quote(name)),
    ))
}

fn splice(bytes: &[u8], range: &std::ops::Range<usize>, text: &str) -> Bytes {
    [&bytes[..range.start], text.as_bytes(), &bytes[range.end..]]
        .concat()
        .into()
}

/// A JSON string of a text, with escapes where needed.
pub fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests;
