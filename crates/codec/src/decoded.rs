//! Limit on the memory that a body takes once it is decoded.
//!
//! A [`Value`] takes far more bytes than its text: an object with one member is a tree node of 640 bytes. Three MiB of
//! small values would become hundreds of MiB. The scan counts before anything is decoded; it overestimates slightly:
//!
//! | text | bytes of the value |
//! |---|---|
//! | object, or `{}` in a list, where defaults follow | one node per 11 members, later ones at least half full |
//! | list | 128, and 64 per element above 4 |
//! | string that is not empty | its length, and 32 |
//!
//! The largest objects of Kubernetes stay below the limit: an EndpointSlice with 1,000 endpoints takes 6 MiB, a
//! ConfigMap with 80,000 keys 15 MiB.

use serde_json::Value;

use yurt_apimachinery::nesting::{MAX_NESTING, end_of_string};
use yurt_apimachinery::status::Status;

/// Most bytes of one decoded body.
pub const DECODED_BYTES_MAX: usize = 16 << 20;
/// Bytes that every body may take, however small.
const BASE: usize = 1 << 20;
/// Bytes that a small body may take for each of its own, in addition to [`BASE`].
const PER_BYTE: usize = 64;
/// Most bytes that one byte of text can take: elements `{},`.
const RATIO_MAX: usize = 256;

/// Bytes of a node with [`NODE_MEMBERS`] keys and values, and of the allocator.
const NODE: usize = NODE_MEMBERS * (size_of::<String>() + size_of::<Value>()) + 40;
/// Members of a node of `BTreeMap`.
const NODE_MEMBERS: usize = 11;
/// Bytes of a further member: nodes that were split are at least half full.
const MEMBER: usize = NODE / 6;
/// Elements of the first allocation of a list.
const LIST_ITEMS: usize = 4;
/// Bytes of that allocation.
const LIST: usize = LIST_ITEMS * size_of::<Value>() + 16;
/// Bytes of a further element: a list doubles its room.
const ITEM: usize = 2 * size_of::<Value>();
/// Bytes of a string in addition to its text.
const TEXT: usize = 32;

/// A body that takes too much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the body has so many fields and list elements that it would take more than {0} bytes of memory; send fewer of them"
)]
pub struct TooManyValues(usize);

/// Bytes that values may still take.
#[derive(Debug)]
pub(crate) struct Allowance {
    limit: usize,
    left: usize,
}

/// An object or list that is being counted.
#[derive(Clone, Copy)]
struct Container {
    is_object: bool,
    /// Members or elements so far.
    len: usize,
}

/// Most bytes that a body of `len` bytes may take once it is decoded.
fn limit(len: usize) -> usize {
    DECODED_BYTES_MAX.min(len.saturating_mul(PER_BYTE).saturating_add(BASE))
}

/// Rejects JSON that would take too much memory. Other faults are left to the parser, which stops at the first one.
///
/// # Errors
/// [`TooManyValues`] above [`DECODED_BYTES_MAX`], for small bodies above a lower limit.
pub fn check(json: &[u8]) -> Result<(), TooManyValues> {
    let mut allowance = Allowance::of(json.len());
    if json.len().saturating_mul(RATIO_MAX) <= allowance.left {
        return Ok(());
    }
    count(json, &mut allowance)
}

fn count(json: &[u8], allowance: &mut Allowance) -> Result<(), TooManyValues> {
    let mut open: Vec<Container> = Vec::new();
    let mut at = 0;
    while let Some(&byte) = json.get(at) {
        at += 1;
        match byte {
            // No parser goes deeper.
            b'{' | b'[' if open.len() >= MAX_NESTING => return Ok(()),
            b'{' | b'[' => {
                let is_object = byte == b'{';
                let in_list = open.last().is_some_and(|outer| !outer.is_object);
                let is_empty = is_closed(json.get(at..).unwrap_or_default());
                allowance.take(container(is_object, is_empty, in_list))?;
                open.push(Container { is_object, len: 1 });
            }
            b'}' | b']' => drop(open.pop()),
            b',' => {
                if let Some(container) = open.last_mut() {
                    container.len += 1;
                    allowance.take(container.grown())?;
                }
            }
            b'"' => {
                let end = end_of_string(json, at).min(json.len());
                allowance.take(text(end.saturating_sub(at + 1)))?;
                at = end;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Bytes that a value takes, counted as [`check`] does.
pub fn size(value: &Value) -> usize {
    size_in(value, false)
}

fn size_in(value: &Value, in_list: bool) -> usize {
    let further =
        |is_object: bool, count: usize| -> usize { (2..=count).map(|len| Container { is_object, len }.grown()).sum() };
    match value {
        Value::String(content) => text(content.len()),
        Value::Array(items) => {
            let own = container(false, items.is_empty(), in_list) + further(false, items.len());
            own + items.iter().map(|item| size_in(item, true)).sum::<usize>()
        }
        Value::Object(members) => {
            let own = container(true, members.is_empty(), in_list) + further(true, members.len());
            let content = members
                .iter()
                .map(|(key, member)| text(key.len()) + size_in(member, false));
            own + content.sum::<usize>()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// Rejects a value, such as the result of a patch, that takes more than [`DECODED_BYTES_MAX`].
///
/// # Errors
/// [`TooManyValues`].
pub fn check_value(value: &Value) -> Result<(), TooManyValues> {
    match size(value) {
        ..=DECODED_BYTES_MAX => Ok(()),
        _ => Err(TooManyValues(DECODED_BYTES_MAX)),
    }
}

/// Bytes of an object or list without its content.
pub(crate) fn container(is_object: bool, is_empty: bool, in_list: bool) -> usize {
    match (is_object, is_empty) {
        (true, true) if in_list => NODE,
        (_, true) => 0,
        (true, false) => NODE,
        (false, false) => LIST,
    }
}

/// Bytes of a string.
pub(crate) fn text(len: usize) -> usize {
    if len == 0 { 0 } else { len + TEXT }
}

fn is_closed(rest: &[u8]) -> bool {
    let next = rest.iter().find(|byte| !byte.is_ascii_whitespace());
    matches!(next, Some(b'}' | b']'))
}

// === impl Container ===

impl Container {
    /// Bytes of the last member or element.
    fn grown(self) -> usize {
        match self.is_object {
            true if self.len > NODE_MEMBERS => MEMBER,
            false if self.len > LIST_ITEMS => ITEM,
            _ => 0,
        }
    }
}

// === impl Allowance ===

impl Allowance {
    /// The allowance of a body of `len` bytes.
    pub(crate) fn of(len: usize) -> Self {
        let limit = limit(len);
        Self { limit, left: limit }
    }

    /// Counts bytes.
    ///
    /// # Errors
    /// [`TooManyValues`] when the allowance is used up; it stays so.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), TooManyValues> {
        let left = self.left.checked_sub(bytes);
        self.left = left.unwrap_or_default();
        left.map(drop).ok_or(TooManyValues(self.limit))
    }

    /// Counts the last one of `len` members or elements.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub(crate) fn take_further(&mut self, is_object: bool, len: usize) -> Result<(), TooManyValues> {
        self.take(Container { is_object, len }.grown())
    }
}

// === impl TooManyValues ===

/// 413, with the limit.
impl From<TooManyValues> for Status {
    fn from(refused: TooManyValues) -> Self {
        Self::too_large(&refused.to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn repeated(head: &str, piece: &str, tail: &str, bytes: usize) -> String {
        format!("{head}{}{tail}", piece.repeat(bytes / piece.len()))
    }

    #[test]
    fn many_small_values_are_refused_before_they_are_decoded() {
        let large = 2_400_000;
        for piece in ["{},", "{\"\":0},", "[0],", "[\"a\"],", "{\"a\":{\"a\":[]}},"] {
            let refused = check(repeated("[", piece, "0]", large).as_bytes()).expect_err(piece);
            assert!(refused.to_string().contains("more than 16777216 bytes"), "{refused}");
        }
        let text = repeated("[", "{},", "0]", 30_000);
        let small = check(text.as_bytes()).expect_err("a small body");
        assert_eq!(small, TooManyValues(BASE + PER_BYTE * text.len()));
    }

    #[test]
    fn large_objects_of_kubernetes_pass() {
        let endpoint = |at: usize| {
            json!({
                "addresses": [format!("10.1.{}.{}", at / 250, at % 250)], "nodeName": format!("node-{at}"), "zone": "z-1",
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "hints": {"forZones": [{"name": "z-1"}]},
                "targetRef": {"kind": "Pod", "namespace": "shop", "name": format!("web-{at}"),
                    "uid": "00000000-0000-4000-8000-000000000000"},
            })
        };
        let slice = json!({"metadata": {"name": "s"}, "endpoints": (0..1_000).map(endpoint).collect::<Value>()});
        let keys = |n: usize| {
            (0..n)
                .map(|at| (format!("k{at:05}"), json!("v")))
                .collect::<serde_json::Map<_, _>>()
        };
        let map = json!({"metadata": {"name": "m"}, "data": keys(80_000)});
        let text = json!({"data": {"k": "x".repeat(3_000_000)}});
        let schema = json!({"type": "string", "description": "d".repeat(60)});
        let schemas: Value = keys(8_000)
            .into_iter()
            .map(|(key, _)| (key, schema.clone()))
            .collect::<serde_json::Map<_, _>>()
            .into();
        for object in [slice, map, text, json!({"properties": schemas})] {
            let text = object.to_string();
            assert_eq!(
                check(text.as_bytes()),
                Ok(()),
                "{} bytes take {}",
                text.len(),
                size(&object)
            );
        }
    }

    #[test]
    fn text_and_value_are_counted_alike() {
        let wide: serde_json::Map<_, _> = (0..30).map(|at| (format!("k{at}"), json!(vec![at; 9]))).collect();
        let value = json!({"a": [], "b": [[], {}, "[{,", "", null, 1.5], "c": {"d": {}}, "e": wide});
        for text in [value.to_string(), serde_json::to_string_pretty(&value).expect("JSON")] {
            let mut allowance = Allowance::of(usize::MAX);
            count(text.as_bytes(), &mut allowance).expect("it is small");
            assert_eq!(allowance.limit - allowance.left, size(&value), "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_left_to_the_parser() {
        let deep = "[".repeat(4 << 20);
        for text in [deep.as_str(), "\"", "}", "]],,", "{\"a", "\"\\", &"x".repeat(300_000)] {
            let mut allowance = Allowance::of(usize::MAX);
            assert_eq!(count(text.as_bytes(), &mut allowance), Ok(()));
        }
    }
}
