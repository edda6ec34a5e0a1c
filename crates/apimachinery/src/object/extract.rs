//! One pass over the bytes of an object that picks out what [`super::Object`] keeps.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::json_text;
use crate::json_text::scan::first_member;
use crate::kind::SelectableField;
use crate::selector::Labels;

mod fields;

use fields::{FieldsSeed, Slots};

/// Result of one pass.
#[derive(Default)]
pub(super) struct Extract {
    pub(super) type_meta: TypeMeta,
    /// True if there is an apiVersion or kind member at all, be it null or empty.
    pub(super) has_type_members: bool,
    /// Number of metadata members; the last one counts.
    pub(super) metadata_members: usize,
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) labels: Labels,
    pub(super) is_deleting: bool,
    /// In the order of the kind's fields.
    pub(super) values: Box<[Option<Box<str>>]>,
}

/// The apiVersion and kind a body claims; empty if absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeMeta {
    /// `apiVersion`.
    pub api_version: String,
    /// `kind`.
    pub kind: String,
}

// === impl TypeMeta ===

impl TypeMeta {
    /// Reads the claim of a body.
    ///
    /// # Errors
    ///
    /// When the bytes are no JSON object, or the claim is no text.
    pub fn peek(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Peek {
            api_version: Option<String>,
            kind: Option<String>,
        }
        let Peek { api_version, kind } = crate::mapping::from_slice(bytes)?;
        Ok(Self {
            api_version: api_version.unwrap_or_default(),
            kind: kind.unwrap_or_default(),
        })
    }

    /// As [`Self::peek`] for valid JSON with one `apiVersion` and one `kind`: what follows them is not read. `None` if
    /// one is no text.
    #[must_use]
    pub fn first(json: &[u8]) -> Option<Self> {
        let text = |name| match first_member(json, 0, name) {
            Some(member) => serde_json::from_slice(json.get(member.value)?).ok(),
            None => Some(String::new()),
        };
        Some(Self {
            api_version: text("apiVersion")?,
            kind: text("kind")?,
        })
    }
}

// === impl Extract ===

impl Extract {
    pub(super) fn read(text: &str, fields: &'static [SelectableField]) -> Result<Self, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let extract = Self::visit(&mut deserializer, fields)?;
        deserializer.end()?;
        Ok(extract)
    }

    /// The same for a decoded value.
    pub(super) fn of_value(value: &Value, fields: &'static [SelectableField]) -> Result<Self, serde_json::Error> {
        Self::visit(value, fields)
    }

    fn visit<'de, D: Deserializer<'de>>(from: D, fields: &'static [SelectableField]) -> Result<Self, D::Error> {
        let mut slots = Slots::new(fields);
        let mut extract = from.deserialize_map(ObjectVisitor { slots: &mut slots })?;
        extract.values = slots.into_values();
        Ok(extract)
    }
}

/// A text, most often the name of a member; borrowed where it has no escapes.
pub(super) struct Name<'de>(pub(super) Cow<'de, str>);

struct NameVisitor;

struct ObjectVisitor<'a> {
    slots: &'a mut Slots,
}

/// Contents of `metadata`; a second `metadata` replaces the first, as in every JSON library.
#[derive(Default)]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Decoded>,
    labels: Option<LabelPairs>,
}

struct MetadataVisitor;

/// A value of which nothing is kept. It is decoded: [`IgnoredAny`] also accepts nesting, half characters and numbers
/// that a later reader could not decode.
struct Decoded;

struct DecodedVisitor;

struct LabelPairs(Labels);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(NameVisitor).map(Name)
    }
}

impl<'de> Visitor<'de> for NameVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

impl<'de> Visitor<'de> for ObjectVisitor<'_> {
    type Value = Extract;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Extract, A::Error> {
        let mut extract = Extract::default();
        let mut metadata = Metadata::default();
        while let Some(Name(name)) = members.next_key()? {
            extract.has_type_members |= matches!(&*name, "apiVersion" | "kind");
            match &*name {
                "apiVersion" => {
                    extract.type_meta.api_version = members.next_value::<Option<String>>()?.unwrap_or_default()
                }
                "kind" => extract.type_meta.kind = members.next_value::<Option<String>>()?.unwrap_or_default(),
                "metadata" => {
                    extract.metadata_members += 1;
                    metadata = members.next_value::<Option<Metadata>>()?.unwrap_or_default();
                }
                other => members.next_value_seed(FieldsSeed::root(self.slots, other))?,
            }
        }
        extract.name = metadata.name.unwrap_or_default();
        extract.namespace = metadata.namespace.unwrap_or_default();
        extract.uid = metadata.uid.unwrap_or_default();
        extract.resource_version = metadata.resource_version.unwrap_or_default();
        extract.is_deleting = metadata.deletion_timestamp.is_some();
        extract.labels = metadata.labels.map(|pairs| pairs.0).unwrap_or_default();
        Ok(extract)
    }
}

// === impl Metadata ===

impl Metadata {
    /// Members that are kept. Each may occur once, unlike other members.
    const KEPT: [&'static str; 6] = [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "deletionTimestamp",
        "labels",
    ];
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MetadataVisitor)
    }
}

impl<'de> Visitor<'de> for MetadataVisitor {
    type Value = Metadata;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Metadata, A::Error> {
        let mut metadata = Metadata::default();
        let mut seen = [false; Metadata::KEPT.len()];
        while let Some(Name(name)) = members.next_key()? {
            if let Some(at) = Metadata::KEPT.iter().position(|kept| *kept == name)
                && std::mem::replace(&mut seen[at], true)
            {
                return Err(A::Error::duplicate_field(Metadata::KEPT[at]));
            }
            match &*name {
                "name" => metadata.name = members.next_value()?,
                "namespace" => metadata.namespace = members.next_value()?,
                "uid" => metadata.uid = members.next_value()?,
                "resourceVersion" => metadata.resource_version = members.next_value()?,
                "deletionTimestamp" => metadata.deletion_timestamp = members.next_value()?,
                "labels" => metadata.labels = members.next_value()?,
                _ => members.next_value::<Decoded>().map(drop)?,
            }
        }
        Ok(metadata)
    }
}

impl<'de> Deserialize<'de> for Decoded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DecodedVisitor)
    }
}

impl<'de> Visitor<'de> for DecodedVisitor {
    type Value = Decoded;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Decoded, E> {
        Ok(Decoded)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Decoded, E> {
        Ok(Decoded)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Decoded, E> {
        Ok(Decoded)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Decoded, E> {
        Ok(Decoded)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Decoded, E> {
        Ok(Decoded)
    }

    fn visit_str<E>(self, _: &str) -> Result<Decoded, E> {
        Ok(Decoded)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Decoded, A::Error> {
        while items.next_element::<Decoded>()?.is_some() {}
        Ok(Decoded)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Decoded, A::Error> {
        while members.next_key::<Decoded>()?.is_some() {
            members.next_value::<Decoded>()?;
        }
        Ok(Decoded)
    }
}

impl<'de> Deserialize<'de> for LabelPairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = LabelPairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<LabelPairs, A::Error> {
                let mut pairs: Vec<(Cow<'de, str>, Cow<'de, str>)> = Vec::new();
                while let Some((Name(key), value)) = members.next_entry::<Name<'de>, Option<Name<'de>>>()? {
                    pairs.push((key, value.map_or(Cow::Borrowed(""), |Name(value)| value)));
                }
                Ok(LabelPairs(pairs.into_iter().collect()))
            }
        }
        deserializer.deserialize_map(PairsVisitor)
    }
}

/// One annotation of an object's bytes.
pub(super) fn annotation(bytes: &Bytes, key: &str) -> Option<String> {
    let annotations = json_text::member(&json_text::member(bytes, "metadata")?, "annotations")?;
    serde_json::Deserializer::from_slice(&annotations)
        .deserialize_map(AnnotationVisitor { key })
        .ok()?
}

struct AnnotationVisitor<'a> {
    key: &'a str,
}

impl<'de> Visitor<'de> for AnnotationVisitor<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(Name(name)) = members.next_key()? {
            if name == self.key {
                found = members.next_value::<Option<String>>()?;
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

impl<'de> DeserializeSeed<'de> for FieldsSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.is_empty() {
            Decoded::deserialize(deserializer).map(drop)
        } else {
            deserializer.deserialize_any(self)
        }
    }
}
