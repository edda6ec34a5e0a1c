//! Decoding a body by the types of its kind. Unknown and duplicate fields are reported and dropped, values of another
//! type are rejected, with the texts of Go's JSON decoder, which clients know.
//!
//! ```
//! use yurt_codec::{schema, typed};
//!
//! let lease = schema::find("coordination.k8s.io", "v1", "Lease").unwrap();
//! let read = typed::read(br#"{"spec":{"holder":"a","holderIdentity":"b"}}"#, lease).unwrap();
//! assert_eq!(read.object["spec"], serde_json::json!({"holderIdentity": "b"}));
//! assert_eq!(read.faults, [r#"unknown field "spec.holder""#]);
//! ```

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Value};

use crate::schema::{self, Field, FieldType, Message};
use yurt_apimachinery::nesting;
use yurt_apimachinery::text::{cut, go_quote};

mod conforms;
mod expected;
mod repeated;
mod scalars;

pub use conforms::conforms;
use expected::{Expected, short};
pub use repeated::{operation_faults, repeated_fields};
use scalars::{number_fits, takes_text, text_fault};

/// Most faults that are kept of one body, as upstream; further ones add no information.
const ERRORS_MAX: usize = 100;
/// Most fields at fault that are looked at. A field may occur as often as a body has room, and its text is made again
/// each time, to find that it is known.
const SEEN_MAX: usize = 1000;
/// Most bytes of a path, and of the name below it, that a fault shows.
const SHOWN_BYTES_MAX: usize = 1024;

/// Result of decoding a body.
#[derive(Clone, Debug, PartialEq)]
pub struct Typed {
    /// The object without the fields its type does not know.
    pub object: Value,
    /// `unknown field "…"` and `duplicate field "…"`, each once, in the order of the body.
    pub faults: Vec<String>,
}

/// Reason why a body is no object of its kind.
#[derive(Debug, thiserror::Error)]
pub enum TypedError {
    /// It is not JSON.
    #[error(transparent)]
    Syntax(serde_json::Error),
    /// A value has another type; the first one is named.
    #[error("{0}")]
    Type(String),
}

/// Reads a JSON object as `message`.
///
/// # Errors
///
/// Text that is not JSON, or a value of another type than its field has.
pub fn read(text: &[u8], message: Message) -> Result<Typed, TypedError> {
    nesting::check(text).map_err(|error| TypedError::Syntax(serde::de::Error::custom(error)))?;
    let mut reader = Reader::default();
    // Validating UTF-8 of the whole text costs a tenth of validating it string by string. The slow path reports the
    // place of invalid text.
    let read = match std::str::from_utf8(text) {
        Ok(text) => reader.read(serde_json::Deserializer::from_str(text), message),
        Err(_) => reader.read(serde_json::Deserializer::from_slice(text), message),
    };
    let object = read.map_err(TypedError::Syntax)?;
    reader.typed(object)
}

/// Reads the metadata of an object whose other members have no types here. Paths of faults begin with `metadata`.
///
/// # Errors
///
/// A value of another type than its field has.
pub fn read_metadata(metadata: &Value) -> Result<Typed, TypedError> {
    read_metadata_at("metadata", metadata)
}

/// As [`read_metadata`], of an object within another one: paths of faults begin with `path`.
///
/// # Errors
///
/// As there.
pub fn read_metadata_at(path: &str, metadata: &Value) -> Result<Typed, TypedError> {
    let mut reader = Reader {
        path: path.to_owned(),
        ..Reader::default()
    };
    let slot = Slot {
        reader: &mut reader,
        expected: Expected::Element(schema::metadata()),
    };
    let object = slot.deserialize(metadata).map_err(TypedError::Syntax)?;
    reader.typed(object)
}

/// Metadata without unknown fields and without fields of another type, as kube-apiserver reads stored objects. `None`
/// if nothing has to change, and for a value that is no object.
#[must_use]
pub fn repaired_metadata(metadata: &Value) -> Option<Value> {
    let repaired = match read_metadata(metadata) {
        Ok(read) => read.object,
        Err(_) => {
            let alone = |(name, value): (&String, &Value)| {
                let alone = Map::from_iter([(name.clone(), value.clone())]);
                read_metadata(&alone.into()).ok()?.object.as_object().cloned()
            };
            metadata.as_object()?.iter().filter_map(alone).flatten().collect()
        }
    };
    (repaired != *metadata && repaired.is_object()).then_some(repaired)
}

/// Position of the reader, and its findings.
#[derive(Default)]
struct Reader {
    faults: Vec<String>,
    /// Fields at fault that were looked at, those known before included.
    seen: usize,
    mistake: Option<String>,
    /// The path with keys and indices, as in faults.
    path: String,
    /// The fields of the path, as in Go's mistakes.
    fields: Vec<Field>,
    /// The structure the innermost field belongs to.
    owner: Option<Message>,
}

/// One step of a path.
#[derive(Clone, Copy)]
enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

/// One place of the body.
struct Slot<'a> {
    reader: &'a mut Reader,
    expected: Expected,
}

/// Result of a JSON null: nothing in a structure, the zero value in a list or map.
fn zero(field: Field) -> Value {
    match field.ty() {
        FieldType::String => "".into(),
        FieldType::Message => Value::Object(Map::new()),
        FieldType::Bool => false.into(),
        FieldType::Int32 | FieldType::Int64 => 0.into(),
        _ => Value::Null,
    }
}

// === impl Reader ===

impl Reader {
    fn read<'de, R: serde_json::de::Read<'de>>(
        &mut self,
        mut text: serde_json::Deserializer<R>,
        message: Message,
    ) -> serde_json::Result<Value> {
        let slot = Slot {
            reader: self,
            expected: Expected::Root(message),
        };
        let object = slot.deserialize(&mut text)?;
        text.end()?;
        Ok(object)
    }

    fn typed(self, object: Value) -> Result<Typed, TypedError> {
        match self.mistake {
            Some(mistake) => Err(TypedError::Type(mistake)),
            None => Ok(Typed {
                object,
                faults: self.faults,
            }),
        }
    }

    fn fault(&mut self, what: &str, name: &str) {
        if self.faults.len() >= ERRORS_MAX || self.seen >= SEEN_MAX {
            return;
        }
        self.seen += 1;
        let fault = format!("{what} field {}", go_quote(&self.shown_below(name)));
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    /// The path of a member, cut where it is too long. Names may be as long as a body, with many faults below them.
    fn shown_below(&self, name: &str) -> String {
        let name = cut(name, SHOWN_BYTES_MAX);
        if self.path.is_empty() {
            name.into_owned()
        } else {
            format!("{}.{name}", cut(&self.path, SHOWN_BYTES_MAX))
        }
    }

    fn mistake(&mut self, why: impl FnOnce() -> String) {
        if self.mistake.is_none() {
            self.mistake = Some(why());
        }
    }

    /// Reads the value below a key or index.
    fn at<T>(&mut self, step: Step<'_>, read: impl FnOnce(&mut Self) -> T) -> T {
        use fmt::Write as _;
        let outer = self.path.len();
        match step {
            Step::Key(name) => {
                if outer > 0 {
                    self.path.push('.');
                }
                self.path.push_str(name);
            }
            // Writing to a String does not fail.
            Step::Index(index) => drop(write!(self.path, "[{index}]")),
        }
        let value = read(self);
        self.path.truncate(outer);
        value
    }
}

// === impl Slot ===

impl Slot<'_> {
    /// Go's text for a value of another type.
    fn mismatch(self, found: &str) -> Value {
        let Self { reader, expected } = self;
        let ty = expected.go_type();
        let owner = reader.owner.map(short).unwrap_or_default();
        let fields = reader
            .fields
            .iter()
            .map(|field| field.name())
            .collect::<Vec<_>>()
            .join(".");
        // Types with a decoder of their own do not know the field they are in.
        let is_own_reader = matches!(
            expected.scalar(),
            Some(FieldType::Time | FieldType::MicroTime | FieldType::Duration | FieldType::IntOrString)
        );
        reader.mistake(|| {
            if is_own_reader || fields.is_empty() {
                format!("json: cannot unmarshal {found} into Go value of type {ty}")
            } else {
                format!("json: cannot unmarshal {found} into Go struct field {owner}.{fields} of type {ty}")
            }
        });
        Value::Null
    }

    fn text(self, text: String) -> Value {
        match self.expected.scalar().filter(|ty| takes_text(*ty)) {
            None => return self.mismatch("string"),
            Some(ty) => {
                if let Some(why) = text_fault(ty, &text) {
                    self.reader.mistake(|| why);
                }
            }
        }
        Value::String(text)
    }

    fn number(self, number: serde_json::Number) -> Value {
        match self.expected.scalar() {
            Some(ty) if number_fits(ty, &number) => Value::Number(number),
            Some(FieldType::Int32 | FieldType::Int64 | FieldType::IntOrString) => {
                self.mismatch(&format!("number {number}"))
            }
            _ => self.mismatch("number"),
        }
    }

    fn members<'de, A: MapAccess<'de>>(self, message: Message, mut members: A) -> Result<Value, A::Error> {
        let reader = self.reader;
        let is_root = matches!(self.expected, Expected::Root(_));
        let outer = reader.owner.replace(message);
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let place = object.entry(name);
            let name = place.key().as_str();
            if matches!(place, Entry::Occupied(_)) {
                reader.fault("duplicate", name);
            }
            let Some(field) = message.field(name) else {
                if is_root && matches!(name, "kind" | "apiVersion") {
                    let value = members.next_value()?;
                    *place.or_insert(Value::Null) = value;
                } else {
                    reader.fault("unknown", name);
                    members.next_value::<IgnoredAny>()?;
                }
                continue;
            };
            reader.fields.push(field);
            let value = reader.at(Step::Key(name), |reader| {
                members.next_value_seed(Slot {
                    reader,
                    expected: Expected::Field(field),
                })
            })?;
            reader.fields.pop();
            match place {
                Entry::Vacant(place) => drop(place.insert(value)),
                Entry::Occupied(mut place) => {
                    let before = place.insert(Value::Null);
                    place.insert(read_over(before, value, field));
                }
            }
        }
        reader.owner = outer;
        Ok(Value::Object(object))
    }

    fn entries<'de, A: MapAccess<'de>>(self, field: Field, mut entries: A) -> Result<Value, A::Error> {
        let reader = self.reader;
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let place = object.entry(key);
            let key = place.key();
            if matches!(place, Entry::Occupied(_)) {
                reader.fault("duplicate", key);
            }
            let value = reader.at(Step::Key(key), |reader| {
                entries.next_value_seed(Slot {
                    reader,
                    expected: Expected::Element(field),
                })
            })?;
            let value = if value.is_null() { zero(field) } else { value };
            *place.or_insert(Value::Null) = value;
        }
        Ok(Value::Object(object))
    }
}

/// Result of a member that occurs twice. Go reads the second value into the first: structures and maps are merged, and
/// null keeps a value that cannot be null.
fn read_over(before: Value, value: Value, field: Field) -> Value {
    let is_nullable = field.is_pointer() || field.is_list() || field.is_map();
    match (before, value) {
        (before, Value::Null) if !is_nullable => before,
        (mut before @ Value::Object(_), value @ Value::Object(_)) => {
            merge_objects(&mut before, value);
            before
        }
        (_, value) => value,
    }
}

fn merge_objects(before: &mut Value, value: Value) {
    match (before, value) {
        (Value::Object(before), Value::Object(members)) => {
            for (name, member) in members {
                merge_objects(before.entry(name).or_insert(Value::Null), member);
            }
        }
        (before, value) => *before = value,
    }
}

impl<'de> DeserializeSeed<'de> for Slot<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.expected.is_free() {
            return Value::deserialize(deserializer);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Slot<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.expected.go_type())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        match self.expected.scalar() {
            Some(FieldType::Bool) => Ok(value.into()),
            _ => Ok(self.mismatch("bool")),
        }
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(self.number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(self.number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        let number = serde_json::Number::from_f64(value).ok_or_else(|| E::custom("number out of range"))?;
        Ok(self.number(number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(self.text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let (expected, null) = match self.expected.list() {
            Some(field) => (Expected::Element(field), zero(field)),
            None if self.expected.scalar() == Some(FieldType::StringList) => (Expected::Text, "".into()),
            None => {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(self.mismatch("array"));
            }
        };
        let reader = self.reader;
        let mut list = Vec::new();
        loop {
            let item = reader.at(Step::Index(list.len()), |reader| {
                items.next_element_seed(Slot { reader, expected })
            })?;
            match item {
                None => return Ok(Value::Array(list)),
                Some(item) => list.push(if item.is_null() { null.clone() } else { item }),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        if let Some(message) = self.expected.message() {
            return self.members(message, members);
        }
        if let Some(field) = self.expected.map() {
            return self.entries(field, members);
        }
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(self.mismatch("object"))
    }
}

#[cfg(test)]
mod tests;
