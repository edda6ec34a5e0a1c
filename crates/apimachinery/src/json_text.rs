//! JSON as text: its parser, a shallow scanner, and changes of a few bytes that keep all others.
//!
//! The scanner and the changes work on bytes, not on values. Their input is meant to be checked JSON; on anything else
//! the scanner answers `None`, it never panics.

use bytes::Bytes;
use serde_json::{Map, Number, Value};

mod decodable;
pub mod scan;

pub use decodable::is_decodable;
pub(crate) use decodable::is_shallow;

use scan::{Member, last_member, members};

/// Parses JSON text.
///
/// serde_json's own functions are generic: every crate that calls them would add a copy of the parser to the programs.
///
/// # Errors
/// As serde_json.
#[inline(never)]
pub fn parse(text: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(text)
}

/// Parses a JSON object.
///
/// # Errors
/// As serde_json.
#[inline(never)]
pub fn parse_object(text: &[u8]) -> Result<Map<String, Value>, serde_json::Error> {
    serde_json::from_slice(text)
}

/// Parses a JSON array of objects.
///
/// # Errors
/// As serde_json.
#[inline(never)]
pub fn parse_objects(text: &[u8]) -> Result<Vec<Map<String, Value>>, serde_json::Error> {
    serde_json::from_slice(text)
}

/// A number as Go prints it: one without a fraction is an integer, if it has 64 bits. Go reads no other into an
/// integer.
pub fn number(value: f64) -> Value {
    let whole = value as i64;
    if whole as f64 == value && whole < i64::MAX {
        return whole.into();
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// Makes all numbers of a value those that Go prints.
pub fn settle_numbers(value: &mut Value) {
    match value {
        Value::Number(found) if found.is_f64() => *value = found.as_f64().map_or(Value::Null, number),
        Value::Array(items) => items.iter_mut().for_each(settle_numbers),
        Value::Object(members) => members.values_mut().for_each(settle_numbers),
        _ => {}
    }
}

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

/// The bytes of a member of the object, exactly as they are; `None` if there is none.
pub fn member(bytes: &Bytes, name: &str) -> Option<Bytes> {
    let found = last_member(bytes, 0, name)??;
    Some(bytes.slice(found.value))
}

/// Replaces the value of the last member of that name in the object at `at`, or inserts the member in front.
pub(crate) fn set_member_at(bytes: &[u8], at: usize, name: &str, value: &str) -> Option<Bytes> {
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

/// Replaces a range of the text.
pub(crate) fn splice(bytes: &[u8], range: &std::ops::Range<usize>, text: &str) -> Bytes {
    [&bytes[..range.start], text.as_bytes(), &bytes[range.end..]]
        .concat()
        .into()
}

/// A JSON string of a text, with escapes where needed.
pub fn quote(text: &str) -> String {
    Value::from(text).to_string()
}
