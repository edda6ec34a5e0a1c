//! Encoding of objects, lists, events and failures for one client: the only place that turns objects into bodies.
//!
//! The input is always the JSON bytes of an object. JSON is sent unchanged; YAML, protobuf, tables and bare metadata
//! are made from it. Lists are written item by item, so that no answer is ever held as a whole.

use bytes::Bytes;

use crate::negotiation::{Format, Negotiated, Shape, Transform};
use crate::schema::Message;
use crate::table::Printer;
use crate::{partial, protobuf, yaml};
use yurt_apimachinery::json_text;
use yurt_apimachinery::kind::ResourceKind;
use yurt_apimachinery::list::ListMeta;
use yurt_apimachinery::object::{Object, TypeMeta};
use yurt_apimachinery::resource_version::ResourceVersion;
use yurt_apimachinery::status::Status;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::watch::{self, EventType};

mod bookmark;
mod list;

use list::Item;
pub use list::{GzipList, ListBody};

// === impl Negotiated ===

impl Negotiated {
    /// One object as a body. Ages in tables are relative to `now`.
    pub fn object(&self, kind: &ResourceKind, object: &Object, now: Time) -> Bytes {
        let json = self.transformed(kind, &object.bytes(), now, true);
        document(self.format, self.pretty, &json)
    }

    /// Checks that an answer of the kind can have the requested representation. Called once there is an answer: not
    /// found comes first.
    ///
    /// # Errors
    ///
    /// 406 for the metadata of a list if there is one object, or the other way round.
    pub fn check(&self, kind: &ResourceKind, shape: Shape) -> Result<(), Status> {
        if !self.is_misfit {
            return Ok(());
        }
        let list = if shape == Shape::List { "List" } else { "" };
        // kube-apiserver names its own types.
        let found = match &*kind.group {
            "" | "events.k8s.io" => format!("*core.{}{list}", kind.kind),
            "coordination.k8s.io" => format!("*coordination.{}{list}", kind.kind),
            "discovery.k8s.io" => format!("*discovery.{}{list}", kind.kind),
            _ => format!("*unstructured.Unstructured{list}"),
        };
        Err(Status::not_acceptable_transform(match shape {
            Shape::List => format!("you requested PartialObjectMetadata, but the requested object is a list ({found})"),
            _ => format!("you requested PartialObjectMetadataList, but the requested object is not a list ({found})"),
        }))
    }

    /// A list as a body, piece by piece, in the order of `objects`.
    pub fn list(&self, kind: &ResourceKind, meta: &ListMeta, objects: Vec<Object>, now: Time) -> ListBody {
        let items_len = self.items_len(kind, &objects, now);
        self.measured_list(kind, meta, objects, items_len, now)
    }

    /// As [`Self::list`], for objects with the known sum of [`Self::items_len`].
    pub fn measured_list(
        &self,
        kind: &ResourceKind,
        meta: &ListMeta,
        objects: Vec<Object>,
        items_len: usize,
        now: Time,
    ) -> ListBody {
        let item = Item::of(*self, kind, now);
        ListBody::new(*self, kind, meta, objects, (item, items_len))
    }

    /// Bytes of `objects` as items of a list, which encodes those that are not cached. 0 if the list does not begin
    /// with its length.
    pub fn items_len(&self, kind: &ResourceKind, objects: &[Object], now: Time) -> usize {
        let item = Item::of(*self, kind, now);
        objects.iter().map(|object| item.len(object)).sum()
    }

    /// Message of the items that [`Self::list`] caches with their objects; `None` if it encodes items for each list.
    pub fn cached_message(&self, kind: &ResourceKind) -> Option<Message> {
        let is_cached = (self.format, self.transform) == (Format::Protobuf, Transform::None);
        let message = || protobuf::message(&kind.api_version(), &kind.kind);
        is_cached.then(message).flatten()
    }

    /// A Status as a body; it is never transformed.
    pub fn status(&self, status: &Status) -> Bytes {
        document(self.format, self.pretty, &status.to_json())
    }

    /// One event of a watch; `object` is the JSON of an object or bookmark of the kind. `is_first` on the first event
    /// of a stream: tables name their columns in it.
    pub fn frame(&self, event: EventType, kind: &ResourceKind, object: &Bytes, now: Time, is_first: bool) -> Bytes {
        let json = self.transformed(kind, object, now, is_first);
        match self.format {
            Format::Protobuf => protobuf::frame(event, &document(Format::Protobuf, false, &json)).into(),
            Format::Json | Format::Yaml => watch::frame(event, &json),
        }
    }

    /// A bookmark as an event.
    pub fn bookmark(
        &self,
        kind: &ResourceKind,
        version: ResourceVersion,
        annotations: &[(&str, &str)],
        now: Time,
        is_first: bool,
    ) -> Bytes {
        let object = bookmark::object(&kind.kind, &kind.api_version(), version, annotations);
        let object = with_zero_values(kind, &object).unwrap_or(object);
        self.frame(EventType::Bookmark, kind, &object, now, is_first)
    }

    /// The last event of a stream that failed.
    pub fn error_frame(&self, status: &Status) -> Bytes {
        match self.format {
            Format::Protobuf => {
                let body = document(Format::Protobuf, false, &status.to_json());
                protobuf::frame(EventType::Error, &body).into()
            }
            Format::Json | Format::Yaml => watch::error_frame(status),
        }
    }

    /// True if every client with this representation gets the same bytes for the same event.
    pub fn is_shared(&self) -> bool {
        self.transform == Transform::None
    }

    fn transformed(&self, kind: &ResourceKind, object: &Bytes, now: Time, is_first: bool) -> Bytes {
        match self.transform {
            Transform::None => object.clone(),
            Transform::Table(options) => Printer::of(kind).table(options, object, now, is_first),
            Transform::PartialObjectMetadata(version) => {
                partial::reduce(object, version).unwrap_or_else(|| object.clone())
            }
        }
    }
}

/// A JSON object with apiVersion and kind as a body. Protobuf is possible for kinds of the table only; others stay
/// JSON.
pub fn document(format: Format, pretty: bool, json: &Bytes) -> Bytes {
    match format {
        Format::Json if pretty => pretty_text(json).map_or_else(|| line(json), Bytes::from),
        Format::Json => line(json),
        Format::Yaml => yaml::from_json(json),
        Format::Protobuf => to_protobuf(json).unwrap_or_else(|| line(json)),
    }
}

fn to_protobuf(json: &Bytes) -> Option<Bytes> {
    let TypeMeta { api_version, kind } = TypeMeta::first(json)?;
    let message = protobuf::message(&api_version, &kind)?;
    let encoded = protobuf::encode(message, json).ok()?;
    Some(protobuf::envelope(&api_version, &kind, &encoded.bytes).into())
}

/// An object of a built-in kind with the fields that Go writes even if they are unset.
fn with_zero_values(kind: &ResourceKind, json: &Bytes) -> Option<Bytes> {
    let message = protobuf::message(&kind.api_version(), &kind.kind)?;
    let encoded = protobuf::encode(message, json).ok()?;
    let members = protobuf::decode(message, &encoded.bytes).ok()?;
    let head = bookmark::head(&kind.kind, &kind.api_version());
    Some([head.as_bytes(), b",", members.strip_prefix(b"{")?].concat().into())
}

/// The text with a line break after it, as kube-apiserver ends every body that is not indented.
fn line(text: &[u8]) -> Bytes {
    let mut body = Vec::with_capacity(text.len() + 1);
    body.extend_from_slice(text);
    body.push(b'\n');
    body.into()
}

fn pretty_text(json: &[u8]) -> Option<String> {
    let value = json_text::parse(json).ok()?;
    serde_json::to_string_pretty(&value).ok()
}

#[cfg(test)]
mod tests;
