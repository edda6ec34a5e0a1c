//! JSON patches (RFC 6902), with the effect that kube-apiserver's library (`evanphx/json-patch`) gives to them, and
//! bounded so that no patch can exhaust memory or stack.
//!
//! The library goes beyond the RFC, and clients rely on it:
//!
//! * A value that is not given is null.
//! * An index may have a sign and leading zeros. A negative one counts from the end of the list.
//! * A member of an object that is not there equals null: `replace` adds it, `copy` copies a null.
//! * Text before the first slash of a path is not looked at. The whole document, path ``, can be replaced by another
//!   object or list, and tested; no other operation applies to it.

use std::borrow::Cow;

use serde_json::{Map, Value};

use yurt_apimachinery::json_text;
use yurt_apimachinery::status::Status;
use yurt_codec::decoded;

/// kube-apiserver's limit of operations in a JSON patch.
pub const MAX_OPERATIONS: usize = 10_000;
/// Most bytes that the `copy` operations of one patch may add.
const MAX_COPIED: usize = 3 * 1024 * 1024;
/// Most bytes of memory that they may add.
const MAX_COPIED_DECODED: usize = decoded::DECODED_BYTES_MAX / 2;
/// Most elements of lists that the operations of one patch may move. An insertion or removal moves all elements behind
/// it: the work of a small patch grows with its operations times the length of the list.
const MAX_MOVED: usize = 10_000_000;
/// Deepest nesting that operations may build. Documents come in with at most 128 levels, and no object above that can
/// be stored. The limit only keeps recursion over the intermediate document shallow.
const MAX_DEPTH: usize = 512;

/// Applies a JSON patch. A failed patch may leave the document partly changed; the caller must drop it.
///
/// # Errors
///
/// 400 if the bytes are no patch. 413 if it has too many operations or they move too many elements of lists. 422 if an
/// operation or test fails.
pub fn apply_json_patch(document: &mut Value, patch: &[u8]) -> Result<(), Status> {
    let operations = json_text::parse_objects(patch)
        .map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))?;
    if operations.len() > MAX_OPERATIONS {
        let count = operations.len();
        return Err(Status::too_large(&format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {count}"
        )));
    }
    let mut patched = Patched {
        copied: 0,
        copied_decoded: 0,
        moved: 0,
        depth: depth(document),
        document,
    };
    for operation in operations {
        patched.apply(operation).ok_or_else(Status::patch_failed)?;
        patched.check_moved()?;
    }
    Ok(())
}

/// The document, and upper bounds on the result of the operations so far.
struct Patched<'a> {
    document: &'a mut Value,
    copied: usize,
    copied_decoded: usize,
    /// Elements of lists that have moved.
    moved: usize,
    /// The document is nested no deeper than this.
    depth: usize,
}

// === impl Patched ===

impl Patched<'_> {
    /// Applies one operation; `None` if it fails or goes beyond a bound.
    fn apply(&mut self, mut operation: Map<String, Value>) -> Option<()> {
        let value = operation.remove("value").unwrap_or_default();
        let text = |name: &str| operation.get(name).and_then(Value::as_str);
        let path = text("path")?;
        match text("op")? {
            "add" => {
                self.deepen(levels(path) + depth(&value))?;
                self.add(path, value)
            }
            "remove" => self.remove(path).map(drop),
            "replace" => {
                self.deepen(levels(path) + depth(&value))?;
                self.replace(path, value)
            }
            "move" => {
                let from = text("from")?;
                // A value has no more levels than the document has below it.
                self.deepen(levels(path) + self.depth.saturating_sub(levels(from)))?;
                let value = self.remove(from)?;
                self.add(path, value)
            }
            "copy" => {
                let value = self.copied(path, text("from")?)?;
                self.add(path, value)
            }
            "test" => self.test(path, &value),
            _ => None,
        }
    }

    fn add(&mut self, path: &str, value: Value) -> Option<()> {
        let (container, key) = find(self.document, path)?;
        match container {
            Value::Object(members) => drop(members.insert(key.into_owned(), value)),
            Value::Array(items) => {
                let end = items.len();
                let at = if key == "-" { end } else { index(&key, end + 1)? };
                self.moved += end - at;
                items.insert(at, value);
            }
            _ => return None,
        }
        Some(())
    }

    fn remove(&mut self, path: &str) -> Option<Value> {
        let (container, key) = find(self.document, path)?;
        match container {
            Value::Object(members) => members.remove(&*key),
            Value::Array(items) => {
                let at = index(&key, items.len())?;
                self.moved += items.len() - at;
                Some(items.remove(at))
            }
            _ => None,
        }
    }

    fn replace(&mut self, path: &str, value: Value) -> Option<()> {
        if path.is_empty() {
            *self.document = Some(value).filter(|value| value.is_object() || value.is_array())?;
            return Some(());
        }
        let (container, key) = find(self.document, path)?;
        match container {
            Value::Object(members) => drop(members.insert(key.into_owned(), value)),
            Value::Array(items) => {
                let at = index(&key, items.len())?;
                items[at] = value;
            }
            _ => return None,
        }
        Some(())
    }

    fn test(&mut self, path: &str, value: &Value) -> Option<()> {
        let found = if path.is_empty() {
            &*self.document
        } else {
            get(self.document, path)?
        };
        (*found == *value).then_some(())
    }

    /// A copy of what is at `from`, to be added at `path`.
    fn copied(&mut self, path: &str, from: &str) -> Option<Value> {
        let source = get(self.document, from)?;
        self.copied += encoded_len(source);
        self.copied_decoded += decoded::size(source);
        let fits = self.copied <= MAX_COPIED && self.copied_decoded <= MAX_COPIED_DECODED;
        let built = levels(path) + depth(source);
        let copy = fits.then(|| source.clone())?;
        self.deepen(built)?;
        Some(copy)
    }

    /// Counts levels that an operation builds; `None` beyond the bound.
    fn deepen(&mut self, built: usize) -> Option<()> {
        self.depth = self.depth.max(built);
        (self.depth <= MAX_DEPTH).then_some(())
    }

    /// 413 when too many elements have moved.
    fn check_moved(&self) -> Result<(), Status> {
        if self.moved > MAX_MOVED {
            return Err(Status::too_large(&format!(
                "the operations of the JSON patch move more than {MAX_MOVED} elements of lists; replace the list instead"
            )));
        }
        Ok(())
    }
}

/// Stands for members that are not there.
static NULL: Value = Value::Null;

/// The value at a path; null for a member that an object lacks.
fn get<'a>(document: &'a mut Value, path: &str) -> Option<&'a Value> {
    let (container, key) = find(document, path)?;
    match container {
        Value::Object(members) => Some(members.get(&*key).unwrap_or(&NULL)),
        Value::Array(items) => items.get(index(&key, items.len())?),
        _ => None,
    }
}

/// The object or list that holds the last place of a path, and the key of that place.
fn find<'a, 'p>(document: &'a mut Value, path: &'p str) -> Option<(&'a mut Value, Cow<'p, str>)> {
    let (_, path) = path.split_once('/')?;
    let (above, last) = path
        .rsplit_once('/')
        .map_or((None, path), |(above, last)| (Some(above), last));
    let mut container = document;
    for token in above.into_iter().flat_map(|above| above.split('/')) {
        container = match container {
            Value::Object(members) => members.get_mut(&*key(token))?,
            Value::Array(items) => {
                let at = index(token, items.len())?;
                &mut items[at]
            }
            _ => return None,
        };
    }
    Some((container, key(last)))
}

/// The key that a token of a path means.
fn key(token: &str) -> Cow<'_, str> {
    if token.contains('~') {
        token.replace("~1", "/").replace("~0", "~").into()
    } else {
        token.into()
    }
}

/// The place below `end` that a token names.
fn index(token: &str, end: usize) -> Option<usize> {
    let at: isize = token.parse().ok()?;
    let at = match usize::try_from(at) {
        Ok(at) => at,
        Err(_) => end.checked_sub(at.unsigned_abs())?,
    };
    (at < end).then_some(at)
}

/// Number of the tokens of a path.
fn levels(path: &str) -> usize {
    path.matches('/').count()
}

/// Levels of nesting; a scalar has one. Recursion is bounded by [`MAX_DEPTH`].
fn depth(value: &Value) -> usize {
    let below = match value {
        Value::Array(items) => items.iter().map(depth).max(),
        Value::Object(members) => members.values().map(depth).max(),
        _ => None,
    };
    1 + below.unwrap_or_default()
}

fn encoded_len(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    match serde_json::to_writer(&mut count, value) {
        Ok(()) => count.0,
        Err(_) => usize::MAX,
    }
}

#[cfg(test)]
mod tests;
