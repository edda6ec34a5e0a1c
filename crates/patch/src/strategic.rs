//! Strategic merge patches: merge patches that use the schema of the types, so that lists are merged element by
//! element.
//!
//! The facts are those of Kubernetes' `strategicpatch` package. One intended difference: errors that the package
//! reports as a fault of the server (500) are a fault of the patch here (422).
//!
//! | directive | place | meaning |
//! |---|---|---|
//! | `$patch: replace` | object | take the rest of the object as it is |
//! | `$patch: delete` | object | leave nothing; in a list, delete the element with this key |
//! | `$patch: replace` | element of a list | drop all elements there were |
//! | `$setElementOrder/<field>` | next to a list | the order of the merged list |
//! | `$deleteFromPrimitiveList/<field>` | next to a list | scalars to take out |
//! | `$retainKeys` | object | fields not named go |

mod lists;

use std::collections::HashSet;

use serde_json::{Map, Value};

use yurt_apimachinery::collecting::inserted;
use yurt_apimachinery::json_text;
use yurt_apimachinery::status::Status;
use yurt_apimachinery::text::{go_quote, go_value};
use yurt_codec::schema::{Field, Message};

use crate::without_nulls;

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";
const SET_ORDER: &str = "$setElementOrder";

/// Knowledge about the members of an object.
#[derive(Clone, Copy)]
enum Level {
    /// A structure: its fields are known.
    Structure(Message),
    /// A map with free keys, or content without a type.
    Free(Option<Message>),
}

/// Merge rule of a member.
#[derive(Clone, Copy, Default)]
struct Rule {
    /// A list is merged, not replaced.
    is_merged: bool,
    /// An object is replaced, not merged.
    is_replaced: bool,
    /// Member that identifies the elements of a list.
    key: Option<&'static str>,
}

/// Most bytes of lists that one patch may merge. A list is counted each time it is merged: the patch may name one
/// element of an outer list many times, and each time merge the inner one.
const MERGED_BYTES_MAX: usize = 64 << 20;

/// Bytes merged so far.
#[derive(Default)]
struct Work {
    bytes: usize,
}

/// Applies a strategic merge patch to an object of a type. A failed patch leaves `document` empty; the caller must drop
/// it.
///
/// # Errors
///
/// 400 for a directive in a form that cannot be read. 413 for a patch that merges a large list again and again. 422 for
/// a patch that does not fit the type.
pub fn apply_strategic_merge_patch(
    document: &mut Value,
    patch: Map<String, Value>,
    schema: Message,
) -> Result<(), Status> {
    let original = match document.take() {
        Value::Object(members) => members,
        _ => Map::new(),
    };
    *document = merge_objects(original, patch, Level::Structure(schema), &mut Work::default())?.into();
    Ok(())
}

/// Reads a strategic merge patch; `null` is one that changes nothing.
///
/// # Errors
///
/// 400 with Go's words when the bytes are no JSON object.
pub fn read_strategic_merge_patch(patch: &[u8]) -> Result<serde_json::Map<String, Value>, Status> {
    let value = json_text::parse(patch).map_err(|error| {
        Status::bad_request(if error.is_eof() {
            "unexpected end of JSON input".to_owned()
        } else {
            error.to_string()
        })
    })?;
    let found = match value {
        Value::Object(patch) => return Ok(patch),
        Value::Null => return Ok(serde_json::Map::new()),
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
    };
    Err(Status::bad_request(format!(
        "json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
    )))
}

/// A patch as messages show it: as Go prints a map.
pub fn show_patch(patch: &Value) -> String {
    go_value(patch)
}

fn merge_objects(
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
    level: Level,
    work: &mut Work,
) -> Result<Map<String, Value>, Status> {
    if let Some(directive) = patch.remove(PATCH) {
        return match directive.as_str() {
            Some("replace") => Ok(patch),
            Some("delete") => Ok(Map::new()),
            _ => Err(unknown_directive(&directive, patch)),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    lists::set_orders(&mut original, &mut patch, level, work)?;
    // Directives sort before fields: scalars are taken out of a list before others are added.
    for (key, value) in patch {
        let (name, is_deletion) = if key.starts_with(DELETE_FROM_LIST) {
            let name = directive_field(&key, DELETE_FROM_LIST);
            (
                name.ok_or_else(|| Status::bad_request("invalid patch format of primitive list"))?,
                true,
            )
        } else {
            (key.as_str(), false)
        };
        if value.is_null() {
            original.remove(name);
            continue;
        }
        let merged = match original.remove(name) {
            None if is_deletion => continue,
            Some(old) if is_deletion && !is_same_type(&old, &value) => Some(old),
            Some(old) if is_same_type(&old, &value) => {
                let rest = (level, name, is_deletion);
                merge_values(old, value, rest, work)?
            }
            _ => without_directives(without_nulls(value)),
        };
        if let Some(merged) = merged {
            original.insert(name.to_owned(), merged);
        }
    }
    Ok(original)
}

/// Merges two values of one JSON type.
fn merge_values(
    old: Value,
    new: Value,
    (level, name, is_deletion): (Level, &str, bool),
    work: &mut Work,
) -> Result<Option<Value>, Status> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let (inner, rule) = level.member(name)?;
            let merged = if rule.is_replaced {
                new
            } else {
                merge_objects(old, new, inner, work)?
            };
            Ok(Some(merged.into()))
        }
        (Value::Array(old), Value::Array(new)) => {
            let (inner, rule) = level.member(name)?;
            let merged = if rule.is_merged || is_deletion {
                lists::merge(old, new, (inner, rule.key), is_deletion, work)?.items
            } else {
                new
            };
            Ok(Some(merged.into()))
        }
        (_, new) => Ok(Some(new)),
    }
}

/// Drops what `$retainKeys` does not name.
fn retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), Status> {
    let Some(retained) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let refusal = || Status::bad_request("invalid patch format of retainKeys");
    let retained = retained.as_array().ok_or_else(refusal)?;
    let retained: HashSet<&str> = retained.iter().filter_map(Value::as_str).collect();
    let is_retained = |key: &str| retained.contains(key);
    let is_contradiction = |(key, value): (&String, &Value)| {
        let is_directive = key.starts_with(DELETE_FROM_LIST) || key.starts_with(SET_ORDER);
        !value.is_null() && !is_directive && !is_retained(key)
    };
    if patch.iter().any(is_contradiction) {
        return Err(refusal());
    }
    original.retain(|key, _| is_retained(key));
    Ok(())
}

// === impl Work ===

impl Work {
    /// Counts lists that are about to be merged.
    ///
    /// # Errors
    /// 413 above the limit.
    fn count(&mut self, lists: &[&[Value]]) -> Result<(), Status> {
        self.bytes += lists.iter().copied().flatten().map(weight).sum::<usize>();
        if self.bytes > MERGED_BYTES_MAX {
            return Err(Status::too_large(&format!(
                "the strategic merge patch merges more than {MERGED_BYTES_MAX} bytes of lists; name each element once"
            )));
        }
        Ok(())
    }
}

/// Bytes of a copy of a value.
fn weight(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(weight).sum(),
            Value::Object(members) => members.iter().map(|(key, value)| key.len() + weight(value)).sum(),
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

// === impl Level ===

impl Level {
    /// The level below a member, and the rule by which the member is merged.
    fn member(self, name: &str) -> Result<(Self, Rule), Status> {
        match self {
            Self::Structure(message) => {
                let field = message.field(name).ok_or_else(|| {
                    let (_, structure) = message.name().rsplit_once('.').unwrap_or_default();
                    refused(format!(
                        "unable to find api field in struct {structure} for the json field {}",
                        go_quote(name)
                    ))
                })?;
                Ok((Self::below(field), Rule::of(field)))
            }
            Self::Free(Some(message)) => Ok((Self::Structure(message), Rule::default())),
            Self::Free(None) => Ok((self, Rule::default())),
        }
    }

    fn below(field: Field) -> Self {
        match field.message() {
            Some(message) if !field.is_map() => Self::Structure(message),
            message => Self::Free(message),
        }
    }
}

// === impl Rule ===

impl Rule {
    fn of(field: Field) -> Self {
        Self {
            is_merged: field.is_patch_merged(),
            is_replaced: field.is_patch_replaced(),
            key: field.merge_key(),
        }
    }
}

/// The field a directive such as `$setElementOrder/ports` is about.
fn directive_field<'a>(key: &'a str, directive: &str) -> Option<&'a str> {
    key.split_once('/')
        .filter(|(prefix, _)| *prefix == directive)
        .map(|(_, field)| field)
}

fn is_same_type(a: &Value, b: &Value) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

/// Removes objects with `$patch`: a value that is new to the document has nothing to direct.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(members) if members.contains_key(PATCH) => None,
        Value::Object(members) => {
            let kept = members
                .into_iter()
                .filter_map(|(key, value)| Some((key, without_directives(value)?)));
            Some(Value::Object(inserted(kept)))
        }
        Value::Array(items) => Some(items.into_iter().filter_map(without_directives).collect()),
        scalar => Some(scalar),
    }
}

fn unknown_directive(directive: &Value, mut patch: Map<String, Value>) -> Status {
    patch.insert(PATCH.to_owned(), directive.clone());
    refused(format!(
        "unknown patch type: {} in map: {}",
        go_value(directive),
        go_value(&patch.into())
    ))
}

fn refused(why: String) -> Status {
    Status::unprocessable(why)
}

#[cfg(test)]
mod tests;
