//! Protobuf to JSON: fields in the order of the Go structs, zero values where Go's encoder writes them.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::wire::{Fields, Raw, take_varint};
use super::{MAX_DEPTH, MAX_JSON, TranscodeError};
use crate::schema::{Field, FieldType, Message};
use yurt_apimachinery::json_text::is_decodable;
use yurt_apimachinery::time::{MicroTime, Time};

/// Writes a message as one JSON object, without apiVersion and kind. Unknown fields are dropped.
///
/// # Errors
///
/// When the bytes are no message of that type, or bounds are exceeded. No input makes it panic.
pub fn decode(message: Message, bytes: &[u8]) -> Result<Vec<u8>, TranscodeError> {
    let mut decoder = Decoder {
        out: Vec::with_capacity(bytes.len() + bytes.len() / 4 + 2),
        depth: 0,
    };
    decoder.object(message, bytes)?;
    Ok(decoder.out)
}

/// Most known fields of one message, list elements included: each takes 8 bytes while it is read, and may take two
/// bytes of the body.
const MAX_FIELDS: usize = 1 << 17;
/// Most pairs of one map: far above what an object can be stored with.
const MAX_PAIRS: usize = 1 << 16;

/// True if the bytes can be decoded as a `serde_json::Value`. None is made: it may take many times their size.
fn is_value(json: &[u8]) -> bool {
    std::str::from_utf8(json)
        .is_ok_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() && is_decodable(text))
}

struct Decoder {
    out: Vec<u8>,
    depth: usize,
}

/// Positions of the known fields of one message, by number. Positions, not values: a body may consist of a million
/// empty ones.
struct Found<'a> {
    bytes: &'a [u8],
    places: Vec<(u32, u32)>,
}

/// The occurrences of one field.
#[derive(Clone, Copy)]
struct Entries<'a> {
    bytes: &'a [u8],
    places: &'a [(u32, u32)],
}

// === impl Found ===

impl<'a> Found<'a> {
    fn read(message: Message, bytes: &'a [u8]) -> Result<Self, TranscodeError> {
        let mut places = Vec::new();
        let mut fields = Fields::of(bytes);
        loop {
            let at = u32::try_from(bytes.len() - fields.rest_len()).map_err(|_| TranscodeError::TooLarge)?;
            let Some(entry) = fields.next() else { break };
            let (number, _) = entry?;
            if message.field_numbered(number).is_some() {
                if places.len() >= MAX_FIELDS {
                    return Err(TranscodeError::TooLarge);
                }
                places.push((number, at));
            }
        }
        // Encoders write in the order of numbers, so this is nearly always sorted already.
        places.sort_by_key(|(number, _)| *number);
        Ok(Self { bytes, places })
    }

    fn of(&self, field: Field) -> Entries<'_> {
        let number = field.number();
        let start = self.places.partition_point(|(found, _)| *found < number);
        let rest = self.places.get(start..).unwrap_or_default();
        let len = rest.partition_point(|(found, _)| *found == number);
        Entries {
            bytes: self.bytes,
            places: rest.get(..len).unwrap_or_default(),
        }
    }
}

// === impl Entries ===

impl<'a> Entries<'a> {
    fn iter(self) -> impl DoubleEndedIterator<Item = Raw<'a>> {
        let read = move |place: &(u32, u32)| {
            let rest = self.bytes.get(place.1 as usize..)?;
            Some(Fields::of(rest).next()?.ok()?.1)
        };
        self.places.iter().filter_map(read)
    }

    /// The bytes of all occurrences, one after the other: a message made of them is their merger.
    fn joined(self) -> Result<Cow<'a, [u8]>, TranscodeError> {
        let mut all = Cow::Borrowed(&[][..]);
        for raw in self.iter() {
            let Raw::Bytes(bytes) = raw else {
                return Err(wrong_type(self.places.first().map_or(0, |place| place.0)));
            };
            if all.is_empty() {
                all = Cow::Borrowed(bytes);
            } else {
                all.to_mut().extend_from_slice(bytes);
            }
        }
        Ok(all)
    }
}

// === impl Decoder ===

impl Decoder {
    fn object(&mut self, message: Message, bytes: &[u8]) -> Result<(), TranscodeError> {
        self.out.push(b'{');
        self.members(message, bytes, &mut true)?;
        self.out.push(b'}');
        Ok(())
    }

    /// The fields of a message, those of inlined messages in their place.
    fn members(&mut self, message: Message, bytes: &[u8], is_first: &mut bool) -> Result<(), TranscodeError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(TranscodeError::TooDeep);
        }
        let found = Found::read(message, bytes)?;
        for field in message.fields() {
            let entries = found.of(field);
            match field.message() {
                Some(inner) if field.is_inline() => self.members(inner, &entries.joined()?, is_first)?,
                _ => self.field(field, entries, is_first)?,
            }
            if self.out.len() > MAX_JSON {
                return Err(TranscodeError::TooLarge);
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn field(&mut self, field: Field, entries: Entries<'_>, is_first: &mut bool) -> Result<(), TranscodeError> {
        let (before, was_first) = (self.out.len(), *is_first);
        self.comma(is_first);
        self.string(field.name().as_bytes());
        self.out.push(b':');
        let is_written = if entries.places.is_empty() {
            self.absent(field)?
        } else if field.is_map() {
            self.map(field, entries)?;
            true
        } else if field.is_list() {
            self.list(field, entries)?;
            true
        } else {
            self.single(field, entries)?
        };
        if !is_written {
            self.out.truncate(before);
            *is_first = was_first;
        }
        Ok(())
    }

    /// Writes Go's output for a field that is not set; false if Go writes nothing.
    fn absent(&mut self, field: Field) -> Result<bool, TranscodeError> {
        if !field.emits_zero() {
            return Ok(false);
        }
        if field.is_pointer() || field.is_list() || field.is_map() {
            self.out.extend_from_slice(b"null");
        } else {
            self.zero(field)?;
        }
        Ok(true)
    }

    /// Go's zero value of the field's type.
    fn zero(&mut self, field: Field) -> Result<(), TranscodeError> {
        let text: &[u8] = match field.ty() {
            FieldType::Bool => b"false",
            FieldType::Int32 | FieldType::Int64 | FieldType::IntOrString => b"0",
            FieldType::String => b"\"\"",
            FieldType::Quantity => b"\"0\"",
            FieldType::Duration => b"\"0s\"",
            FieldType::Bytes
            | FieldType::Time
            | FieldType::MicroTime
            | FieldType::FieldsV1
            | FieldType::RawExtension
            | FieldType::StringList => b"null",
            FieldType::Message => {
                return field.message().map_or(Ok(()), |inner| self.object(inner, &[]));
            }
        };
        self.out.extend_from_slice(text);
        Ok(())
    }

    /// A field that is neither list nor map; the last occurrence counts, messages are merged. False if Go leaves the
    /// value out.
    fn single(&mut self, field: Field, entries: Entries<'_>) -> Result<bool, TranscodeError> {
        if field.ty() == FieldType::Message {
            self.value(field, Raw::Bytes(&entries.joined()?))?;
            return Ok(true);
        }
        let Some(raw) = entries.iter().next_back() else {
            return Ok(false);
        };
        let start = self.out.len();
        self.value(field, raw)?;
        let is_optional = !field.emits_zero() && !field.is_pointer();
        let is_zero = matches!(self.out.get(start..), Some(b"\"\"" | b"0" | b"false" | b"null"));
        Ok(!(is_optional && is_zero))
    }

    fn list(&mut self, field: Field, entries: Entries<'_>) -> Result<(), TranscodeError> {
        let is_number = matches!(field.ty(), FieldType::Bool | FieldType::Int32 | FieldType::Int64);
        self.out.push(b'[');
        let mut is_first = true;
        for raw in entries.iter() {
            match raw {
                // Packed: allowed for numbers by every decoder.
                Raw::Bytes(mut packed) if is_number => {
                    while !packed.is_empty() {
                        let value = take_varint(&mut packed)?;
                        self.comma(&mut is_first);
                        self.value(field, Raw::Varint(value))?;
                    }
                }
                raw => {
                    self.comma(&mut is_first);
                    self.value(field, raw)?;
                }
            }
            if self.out.len() > MAX_JSON {
                return Err(TranscodeError::TooLarge);
            }
        }
        self.out.push(b']');
        Ok(())
    }

    fn map(&mut self, field: Field, entries: Entries<'_>) -> Result<(), TranscodeError> {
        if entries.places.len() > MAX_PAIRS {
            return Err(TranscodeError::TooLarge);
        }
        let mut pairs: Vec<(Cow<'_, str>, Option<Raw<'_>>)> = Vec::with_capacity(entries.places.len());
        for raw in entries.iter() {
            let (mut key, mut value) = (Cow::Borrowed(""), None);
            for part in Fields::of(bytes_of(field, raw)?) {
                match part? {
                    (1, Raw::Bytes(text)) => key = String::from_utf8_lossy(text),
                    (2, raw) => value = Some(raw),
                    _ => {}
                }
            }
            pairs.push((key, value));
        }
        // Go writes maps sorted; of equal keys the last one counts.
        pairs.reverse();
        pairs.sort_by(|a, b| a.0.cmp(&b.0));
        pairs.dedup_by(|later, kept| later.0 == kept.0);
        self.out.push(b'{');
        let mut is_first = true;
        for (key, value) in pairs {
            self.comma(&mut is_first);
            self.string(key.as_bytes());
            self.out.push(b':');
            match value {
                Some(raw) => self.value(field, raw)?,
                // Go makes an empty slice, not none.
                None if field.ty() == FieldType::Bytes => self.string(b""),
                None => self.zero(field)?,
            }
            if self.out.len() > MAX_JSON {
                return Err(TranscodeError::TooLarge);
            }
        }
        self.out.push(b'}');
        Ok(())
    }

    fn comma(&mut self, is_first: &mut bool) {
        if !std::mem::take(is_first) {
            self.out.push(b',');
        }
    }

    /// One value of the field's type.
    fn value(&mut self, field: Field, raw: Raw<'_>) -> Result<(), TranscodeError> {
        match field.ty() {
            FieldType::Bool => {
                let text: &[u8] = if number_of(field, raw)? != 0 { b"true" } else { b"false" };
                self.out.extend_from_slice(text);
            }
            // Negative numbers travel as 64 bits, the upper half is dropped.
            FieldType::Int32 => self.text(number_of(field, raw)? as i32),
            FieldType::Int64 => self.text(number_of(field, raw)? as i64),
            FieldType::String => self.string(bytes_of(field, raw)?),
            FieldType::Bytes => {
                let text = STANDARD.encode(bytes_of(field, raw)?);
                self.string(text.as_bytes());
            }
            FieldType::Message => {
                let Some(inner) = field.message() else { return Ok(()) };
                self.object(inner, bytes_of(field, raw)?)?;
            }
            FieldType::Time | FieldType::MicroTime => self.time(field, raw)?,
            FieldType::Quantity => {
                let text = inner(bytes_of(field, raw)?, 1)?.unwrap_or(b"0");
                self.string(if text.is_empty() { b"0" } else { text });
            }
            FieldType::IntOrString => self.int_or_string(bytes_of(field, raw)?)?,
            FieldType::FieldsV1 | FieldType::RawExtension => {
                let json = inner(bytes_of(field, raw)?, 1)?.unwrap_or_default();
                // Text from an untrusted client: it must not break the document around it.
                self.out.extend_from_slice(if is_value(json) { json } else { b"null" });
            }
            FieldType::StringList => {
                self.out.push(b'[');
                let mut is_first = true;
                for entry in Fields::of(bytes_of(field, raw)?) {
                    if let (1, Raw::Bytes(text)) = entry? {
                        self.comma(&mut is_first);
                        self.string(text);
                    }
                }
                self.out.push(b']');
            }
            // No field of the table has this type.
            FieldType::Duration => self.zero(field)?,
        }
        Ok(())
    }

    fn time(&mut self, field: Field, raw: Raw<'_>) -> Result<(), TranscodeError> {
        let bytes = bytes_of(field, raw)?;
        if bytes.is_empty() {
            self.out.extend_from_slice(b"null");
            return Ok(());
        }
        let (mut secs, mut nanos) = (0_i64, 0_u32);
        for entry in Fields::of(bytes) {
            match entry? {
                (1, Raw::Varint(value)) => secs = value as i64,
                (2, Raw::Varint(value)) => nanos = value as u32,
                _ => {}
            }
        }
        self.out.push(b'"');
        if field.ty() == FieldType::Time {
            self.text(Time::from_unix(secs));
        } else {
            self.text(MicroTime::from_unix(secs, nanos));
        }
        self.out.push(b'"');
        Ok(())
    }

    fn int_or_string(&mut self, bytes: &[u8]) -> Result<(), TranscodeError> {
        let (mut is_text, mut number, mut text) = (false, 0_i32, &b""[..]);
        for entry in Fields::of(bytes) {
            match entry? {
                (1, Raw::Varint(kind)) => is_text = kind == 1,
                (2, Raw::Varint(value)) => number = value as i32,
                (3, Raw::Bytes(value)) => text = value,
                _ => {}
            }
        }
        if is_text {
            self.string(text);
        } else {
            self.text(number);
        }
        Ok(())
    }

    fn text(&mut self, value: impl std::fmt::Display) {
        self.out.extend_from_slice(value.to_string().as_bytes());
    }

    /// A JSON string; what is not UTF-8 is replaced, as Go's encoder does.
    fn string(&mut self, bytes: &[u8]) {
        let is_plain = |c: &u8| matches!(c, 0x20..=0x7e) && !matches!(c, b'"' | b'\\');
        if bytes.iter().all(is_plain) {
            self.out.push(b'"');
            self.out.extend_from_slice(bytes);
            self.out.push(b'"');
        } else {
            let text = String::from_utf8_lossy(bytes);
            self.out
                .extend_from_slice(yurt_apimachinery::json_text::quote(&text).as_bytes());
        }
    }
}

/// The last occurrence of a field of bytes.
fn inner(bytes: &[u8], number: u32) -> Result<Option<&[u8]>, TranscodeError> {
    let mut last = None;
    for entry in Fields::of(bytes) {
        match entry? {
            (found, Raw::Bytes(value)) if found == number => last = Some(value),
            _ => {}
        }
    }
    Ok(last)
}

fn bytes_of<'a>(field: Field, raw: Raw<'a>) -> Result<&'a [u8], TranscodeError> {
    match raw {
        Raw::Bytes(bytes) => Ok(bytes),
        _ => Err(wrong_type(field.number())),
    }
}

fn number_of(field: Field, raw: Raw<'_>) -> Result<u64, TranscodeError> {
    match raw {
        Raw::Varint(value) => Ok(value),
        _ => Err(wrong_type(field.number())),
    }
}

fn wrong_type(number: u32) -> TranscodeError {
    TranscodeError::Illegal(format!("wrong wireType for field {number}"))
}
