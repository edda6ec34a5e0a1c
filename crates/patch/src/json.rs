//! JSON patches (RFC 6902), bounded so that no patch can exhaust memory or stack.

use json_patch::jsonptr::{Pointer, PointerBuf};
use json_patch::{AddOperation, MoveOperation, PatchOperation, RemoveOperation};
use serde_json::Value;

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

/// Applies a JSON patch (RFC 6902). A failed patch may leave the document partly changed; the caller must drop it.
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
    let mut bounds = Bounds {
        copied: 0,
        copied_decoded: 0,
        moved: 0,
        depth: depth(document),
    };
    for mut operation in operations {
        let text = |name: &str| operation.get(name).and_then(Value::as_str).unwrap_or_default();
        if matches!(text("op"), "add" | "replace" | "test") && !text("path").is_empty() {
            operation.entry("value").or_insert(Value::Null);
        }
        let operation: PatchOperation =
            serde_json::from_value(Value::Object(operation)).map_err(|_| Status::patch_failed())?;
        match operation {
            PatchOperation::Move(moved) if has_negative_index(&moved.path) => {
                move_from_the_end(document, &mut bounds, &moved)?;
            }
            operation => apply(document, &mut bounds, operation)?,
        }
    }
    Ok(())
}

/// Applies a `move` to an index that counts from the end, of the list without the element that moves. Copies nothing.
fn move_from_the_end(document: &mut Value, bounds: &mut Bounds, moved: &MoveOperation) -> Result<(), Status> {
    let from = with_positive_indexes(document, &moved.from, Place::Present);
    let value = document.pointer_mut(from.as_str()).map(Value::take);
    let value = value.ok_or_else(Status::patch_failed)?;
    let path = from.clone();
    patched(document, PatchOperation::Remove(RemoveOperation { path }))?;
    let path = with_positive_indexes(document, &moved.path, Place::New);
    let there = path.clone();
    bounds.admit(document, &PatchOperation::Move(MoveOperation { from, path: there }))?;
    patched(document, PatchOperation::Add(AddOperation { path, value }))
}

/// Applies one operation.
fn apply(document: &mut Value, bounds: &mut Bounds, operation: PatchOperation) -> Result<(), Status> {
    let Some(operation) = by_the_rfc(document, operation) else {
        return Ok(());
    };
    bounds.admit(document, &operation)?;
    patched(document, operation)
}

/// Applies one operation of the RFC. The variant without undo: the caller drops a failed document, and the undo of the
/// crate may panic.
fn patched(document: &mut Value, operation: PatchOperation) -> Result<(), Status> {
    json_patch::patch_unsafe(document, &[operation]).map_err(|_| Status::patch_failed())
}

/// Returns the operation of RFC 6902 with the effect that kube-apiserver gives to this one; `None` for no effect. Its
/// library (`evanphx/json-patch`) goes beyond the RFC in four points, and clients rely on them:
///
/// * A value that is not given is null ([`apply_json_patch`]).
/// * A negative index counts from the end of a list.
/// * Replacing a member of an object that is not there adds it.
/// * A member of an object that is not there equals null.
fn by_the_rfc(document: &Value, mut operation: PatchOperation) -> Option<PatchOperation> {
    let positive = |path: &mut PointerBuf, place| {
        if has_negative_index(path) {
            *path = with_positive_indexes(document, path, place);
        }
    };
    match &mut operation {
        PatchOperation::Add(add) => positive(&mut add.path, Place::New),
        PatchOperation::Remove(remove) => positive(&mut remove.path, Place::Present),
        PatchOperation::Replace(replace) => positive(&mut replace.path, Place::Present),
        PatchOperation::Test(test) => positive(&mut test.path, Place::Present),
        PatchOperation::Copy(copy) => {
            positive(&mut copy.from, Place::Present);
            positive(&mut copy.path, Place::New);
        }
        PatchOperation::Move(moved) => positive(&mut moved.from, Place::Present),
    }
    let lacks = |path: &Pointer| {
        let parent = path.parent().and_then(|parent| document.pointer(parent.as_str()));
        parent.is_some_and(Value::is_object) && document.pointer(path.as_str()).is_none()
    };
    match operation {
        PatchOperation::Replace(replace) if lacks(&replace.path) => Some(PatchOperation::Add(AddOperation {
            path: replace.path,
            value: replace.value,
        })),
        PatchOperation::Test(test) if test.value.is_null() && lacks(&test.path) => None,
        operation => Some(operation),
    }
}

/// Use of the last token of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It names what is there.
    Present,
    /// It names what is to be added: -1 is the place behind the last element.
    New,
}

fn has_negative_index(path: &Pointer) -> bool {
    path.tokens().any(|token| negative(token.encoded()).is_some())
}

/// The distance from the end that a token names if its place is in a list.
fn negative(token: &str) -> Option<usize> {
    token.strip_prefix('-')?.parse().ok().filter(|distance| *distance > 0)
}

/// Replaces the negative indexes of lists that are long enough.
fn with_positive_indexes(document: &Value, path: &Pointer, place: Place) -> PointerBuf {
    let mut positive = PointerBuf::new();
    let mut left = path.count();
    for token in path.tokens() {
        left -= 1;
        let list = document.pointer(positive.as_str()).and_then(Value::as_array);
        let end = |list: &Vec<Value>| list.len() + usize::from(left == 0 && place == Place::New);
        let index = list.zip(negative(token.encoded()));
        match index.and_then(|(list, distance)| end(list).checked_sub(distance)) {
            Some(index) => positive.push_back(index),
            None => positive.push_back(token),
        }
    }
    positive
}

/// Upper bounds on the result of the operations so far.
struct Bounds {
    copied: usize,
    copied_decoded: usize,
    /// Elements of lists that have moved.
    moved: usize,
    /// The document is nested no deeper than this.
    depth: usize,
}

impl Bounds {
    /// Counts an operation.
    ///
    /// # Errors
    /// 413 when too many elements would move, 422 when it may go beyond another bound.
    fn admit(&mut self, document: &Value, operation: &PatchOperation) -> Result<(), Status> {
        self.moved += match operation {
            PatchOperation::Add(add) => behind(document, &add.path),
            PatchOperation::Remove(remove) => behind(document, &remove.path),
            PatchOperation::Copy(copy) => behind(document, &copy.path),
            PatchOperation::Move(moved) => behind(document, &moved.from) + behind(document, &moved.path),
            PatchOperation::Replace(_) | PatchOperation::Test(_) => 0,
        };
        if self.moved > MAX_MOVED {
            return Err(Status::too_large(&format!(
                "the operations of the JSON patch move more than {MAX_MOVED} elements of lists; replace the list instead"
            )));
        }
        self.build(document, operation).ok_or_else(Status::patch_failed)
    }

    fn build(&mut self, document: &Value, operation: &PatchOperation) -> Option<()> {
        let built = match operation {
            PatchOperation::Add(add) => add.path.count() + depth(&add.value),
            PatchOperation::Replace(replace) => replace.path.count() + depth(&replace.value),
            PatchOperation::Copy(copy) => {
                let source = document.pointer(copy.from.as_str())?;
                self.copied += encoded_len(source);
                self.copied_decoded += decoded::size(source);
                copy.path.count() + depth(source)
            }
            // What moves is nested no deeper than the document below its old place.
            PatchOperation::Move(moved) => moved.path.count() + self.depth.saturating_sub(moved.from.count()),
            PatchOperation::Remove(_) | PatchOperation::Test(_) => 0,
        };
        self.depth = self.depth.max(built);
        let fits = self.copied <= MAX_COPIED && self.copied_decoded <= MAX_COPIED_DECODED;
        (fits && self.depth <= MAX_DEPTH).then_some(())
    }
}

/// Elements of a list that an insertion or removal at this place moves; 0 elsewhere.
fn behind(document: &Value, path: &Pointer) -> usize {
    let Some((parent, last)) = path.split_back() else {
        return 0;
    };
    let Some(list) = document.pointer(parent.as_str()).and_then(Value::as_array) else {
        return 0;
    };
    let at = last.encoded().parse().unwrap_or(list.len());
    list.len().saturating_sub(at)
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
