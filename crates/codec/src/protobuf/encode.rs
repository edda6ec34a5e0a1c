//! JSON to protobuf: one pass over the text, fields written in its order.

use crate::base64_text;

use super::cursor::{Cursor, string};
use super::wire::{begin, end, put_field, put_number};
use super::{MAX_DEPTH, TranscodeError};
use crate::schema::{Field, FieldType, Message};
use yurt_apimachinery::json_text;
use yurt_apimachinery::time::{MicroTime, Time};

/// A message encoded from an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The message, without envelope.
    pub bytes: Vec<u8>,
    /// True if a part of the object was left out: a field the table does not know, or a value of another type.
    pub is_partial: bool,
}

/// Go's zero time, which is an empty message in protobuf.
const ZERO_TIME: i64 = -62_135_596_800;

/// Writes a JSON object as a message.
///
/// # Errors
///
/// When the bytes are no JSON object, or nested above [`MAX_DEPTH`]. Checked JSON of a known kind never fails.
pub fn encode(message: Message, json: &[u8]) -> Result<Encoded, TranscodeError> {
    let encoder = Encoder::run(message, json)?;
    if !encoder.is_doubled {
        return Ok(encoder.finish());
    }
    // A member that occurs twice replaces the first; in protobuf it would be added to it.
    let value = json_text::parse(json).map_err(|_| TranscodeError::NotJson)?;
    Encoder::run(message, value.to_string().as_bytes()).map(Encoder::finish)
}

struct Encoder<'a> {
    json: Cursor<'a>,
    out: Vec<u8>,
    /// Lists, maps and messages seen in the messages being written, to detect duplicate members.
    seen: Vec<Field>,
    depth: usize,
    is_partial: bool,
    is_doubled: bool,
}

// === impl Encoder ===

impl<'a> Encoder<'a> {
    fn run(message: Message, json: &'a [u8]) -> Result<Self, TranscodeError> {
        let mut encoder = Self {
            json: Cursor::new(json),
            out: Vec::with_capacity(json.len() / 2),
            seen: Vec::new(),
            depth: 0,
            is_partial: false,
            is_doubled: false,
        };
        encoder.message(message, true)?;
        if encoder.json.peek() == 0 {
            Ok(encoder)
        } else {
            Err(TranscodeError::NotJson)
        }
    }

    fn finish(self) -> Encoded {
        Encoded {
            bytes: self.out,
            is_partial: self.is_partial,
        }
    }

    fn message(&mut self, message: Message, is_root: bool) -> Result<(), TranscodeError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(TranscodeError::TooDeep);
        }
        self.json.open(b'{')?;
        let (mut is_first, seen) = (true, self.seen.len());
        while self.json.more(&mut is_first, b'}')? {
            let name = self.json.name()?;
            if self.json.peek() == b'n' {
                self.json.value()?;
            } else if !self.member(message, &name, seen)? {
                self.json.value()?;
                self.is_partial |= !(is_root && matches!(&*name, b"apiVersion" | b"kind"));
            }
        }
        self.seen.truncate(seen);
        self.depth -= 1;
        Ok(())
    }

    /// The value of one member of a message, or of one inlined into it; false if there is no such field.
    fn member(&mut self, message: Message, name: &[u8], seen: usize) -> Result<bool, TranscodeError> {
        let is_named = |field: &Field| field.is_named(name) && !field.is_inline();
        if let Some(field) = message.fields().find(is_named) {
            self.field(field, seen)?;
            return Ok(true);
        }
        for field in message.fields().filter(|field| field.is_inline()) {
            let Some(inner) = field.message() else { continue };
            // Each member is a message of its own: a decoder merges them.
            let before = self.out.len();
            let start = begin(&mut self.out, field.number());
            if self.member(inner, name, seen)? {
                end(&mut self.out, start);
                return Ok(true);
            }
            self.out.truncate(before);
        }
        Ok(false)
    }

    fn field(&mut self, field: Field, seen: usize) -> Result<(), TranscodeError> {
        if field.is_list() || field.is_map() || field.ty() == FieldType::Message {
            self.is_doubled |= self.seen.get(seen..).is_some_and(|seen| seen.contains(&field));
            self.seen.push(field);
        }
        match (field.is_map(), field.is_list(), self.json.peek()) {
            (true, _, b'{') => self.map(field),
            (_, true, b'[') => self.list(field),
            (true, ..) | (_, true, _) => {
                self.is_partial = true;
                self.json.value().map(|_| ())
            }
            _ => self.value(field, field.number()),
        }
    }

    fn list(&mut self, field: Field) -> Result<(), TranscodeError> {
        self.json.open(b'[')?;
        let mut is_first = true;
        while self.json.more(&mut is_first, b']')? {
            self.value(field, field.number())?;
        }
        Ok(())
    }

    fn map(&mut self, field: Field) -> Result<(), TranscodeError> {
        self.json.open(b'{')?;
        let mut is_first = true;
        while self.json.more(&mut is_first, b'}')? {
            let start = begin(&mut self.out, field.number());
            let key = self.json.name()?;
            put_field(&mut self.out, 1, &key);
            self.value(field, 2)?;
            end(&mut self.out, start);
        }
        Ok(())
    }

    /// One value: of a field, an element of its list, or a value of its map.
    fn value(&mut self, field: Field, number: u32) -> Result<(), TranscodeError> {
        if let Some(inner) = field.message() {
            let start = begin(&mut self.out, number);
            if self.json.peek() == b'{' {
                self.message(inner, false)?;
            } else {
                // Null in a list or map is Go's zero value.
                self.is_partial |= self.json.value()? != b"null";
            }
            end(&mut self.out, start);
            return Ok(());
        }
        let is_element = field.is_list() || field.is_map();
        if field.ty() == FieldType::String
            && let Some(text) = self.json.plain_string()
        {
            if is_element || field.is_pointer() || !text.is_empty() {
                put_field(&mut self.out, number, text);
            }
            return Ok(());
        }
        let value = self.json.value()?;
        if !is_element && !field.is_pointer() && matches!(value, b"\"\"" | b"0" | b"false") && says_zero(field.ty()) {
            return Ok(());
        }
        let before = self.out.len();
        if scalar(&mut self.out, field.ty(), number, value).is_none() {
            self.out.truncate(before);
            self.is_partial |= value != b"null";
            // An element keeps its place.
            if is_element && field.ty() == FieldType::String {
                put_field(&mut self.out, number, b"");
            }
        }
        Ok(())
    }
}

/// Types whose zero value equals an absent one.
fn says_zero(ty: FieldType) -> bool {
    matches!(
        ty,
        FieldType::Bool | FieldType::Int32 | FieldType::Int64 | FieldType::String
    )
}

/// A value without fields of the table; `None` if it is of another type.
fn scalar(out: &mut Vec<u8>, ty: FieldType, number: u32, json: &[u8]) -> Option<()> {
    match ty {
        FieldType::Bool => put_number(out, number, u64::from(boolean(json)?)),
        FieldType::Int32 => put_number(out, number, i64::from(i32::try_from(integer(json)?).ok()?) as u64),
        FieldType::Int64 => put_number(out, number, integer(json)? as u64),
        FieldType::String => put_field(out, number, &string(json)?),
        FieldType::Bytes => {
            let text = string(json)?;
            put_field(
                out,
                number,
                &base64_text::decode(std::str::from_utf8(&text).ok()?).ok()?,
            );
        }
        FieldType::Time => {
            let time = Time::parse(std::str::from_utf8(&string(json)?).ok()?).ok()?;
            put_time(out, number, time.unix(), 0);
        }
        FieldType::MicroTime => {
            let time = MicroTime::parse(std::str::from_utf8(&string(json)?).ok()?).ok()?;
            let (secs, nanos) = time.unix();
            put_time(out, number, secs, nanos);
        }
        FieldType::Quantity => {
            let text = string(json).or_else(|| is_number(json).then_some(json.into()))?;
            nested(out, number, |out| put_field(out, 1, &text));
        }
        FieldType::IntOrString => match string(json) {
            Some(text) => nested(out, number, |out| {
                put_number(out, 1, 1);
                put_field(out, 3, &text);
            }),
            None => {
                let value = i32::try_from(integer(json)?).ok()?;
                nested(out, number, |out| put_number(out, 2, i64::from(value) as u64));
            }
        },
        FieldType::FieldsV1 | FieldType::RawExtension => nested(out, number, |out| put_field(out, 1, json)),
        FieldType::StringList => {
            let texts: Vec<String> = serde_json::from_slice(json).ok()?;
            nested(out, number, |out| {
                texts.iter().for_each(|text| put_field(out, 1, text.as_bytes()))
            });
        }
        // No field of the table has this type; messages are written by the caller.
        FieldType::Duration | FieldType::Message => return None,
    }
    Some(())
}

fn nested(out: &mut Vec<u8>, number: u32, write: impl FnOnce(&mut Vec<u8>)) {
    let start = begin(out, number);
    write(out);
    end(out, start);
}

fn put_time(out: &mut Vec<u8>, number: u32, secs: i64, nanos: u32) {
    nested(out, number, |out| {
        if (secs, nanos) != (ZERO_TIME, 0) {
            put_number(out, 1, secs as u64);
            put_number(out, 2, u64::from(nanos));
        }
    });
}

fn is_number(json: &[u8]) -> bool {
    json.first().is_some_and(|c| matches!(c, b'-' | b'0'..=b'9'))
}

fn boolean(json: &[u8]) -> Option<bool> {
    match json {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

fn integer(json: &[u8]) -> Option<i64> {
    std::str::from_utf8(json).ok().filter(|_| is_number(json))?.parse().ok()
}
