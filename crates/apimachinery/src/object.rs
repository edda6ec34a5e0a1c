//! An object: its wire bytes and the little of its metadata that every request needs.
//!
//! Objects are never decoded into typed structs. Output equals input byte for byte, unknown fields included, and
//! parsing takes one pass over the bytes.

use std::any::Any;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use serde_json::Value;

use crate::json_text;
use crate::kind::{ResourceKind, SelectableField};
use crate::packed::{self, Packer};
use crate::resource_version::{InvalidResourceVersion, ResourceVersion};
use crate::selector::{FieldSource, Labels};

mod body;
mod cache_slot;
mod edit;
mod extract;
mod head;
mod key;

pub use extract::TypeMeta;
pub use key::ObjectKey;

use body::Body;
use cache_slot::CacheSlot;
use extract::Extract;

/// An immutable object. Cheap to clone. Once a store has packed it ([`Object::pack`]), a long one is held deflated.
#[derive(Clone)]
pub struct Object(Arc<Inner>);

/// Identity of an object in memory. It does not keep the object alive, and no other object has it while it exists.
#[derive(Clone)]
pub struct ObjectIdentity(Weak<Inner>);

struct Inner {
    /// One line of JSON with apiVersion and kind, decodable as a [`Value`].
    body: Body,
    resource_version: ResourceVersion,
    /// True if the body is deflated and has another resource version with as many digits. It stays so.
    is_renumbered: bool,
    /// Position of the metadata in the bytes, if it is known.
    metadata_at: Option<NonZeroU32>,
    encoding_cache: CacheSlot,
    meta: Arc<Meta>,
}

/// Fields that stay the same when only the resource version changes.
struct Meta {
    key: ObjectKey,
    uid: Box<str>,
    labels: Labels,
    is_deleting: bool,
    /// Selectable fields of the kind; their values follow in the same order.
    fields: &'static [SelectableField],
    values: Box<[Option<Box<str>>]>,
}

/// Bytes that are no object of the kind.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// A deflated body that is damaged.
    #[error("{0}")]
    Packed(String),
    /// Not UTF-8.
    #[error("the object is not UTF-8: {0}")]
    Utf8(#[from] std::str::Utf8Error),
    /// Not JSON, or a metadata field of the wrong type; or nested too deeply, half a character, a number out of range.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// A resource version that is no decimal number.
    #[error("{0}")]
    ResourceVersion(#[from] InvalidResourceVersion),
    /// No name, or one that cannot be in a path.
    #[error("metadata.name {0:?} is not usable")]
    Name(String),
    /// A namespaced kind without a namespace, or with one that cannot be in a path.
    #[error("metadata.namespace {0:?} is not usable")]
    Namespace(String),
}

/// Memory of an object in addition to its bytes: structs, reference counts, allocator overhead.
const OVERHEAD: usize = 320;
/// Room for a small object while it is encoded.
const ENCODED: usize = 1024;

// === impl Object ===

impl Object {
    /// Parses one object of a kind. Missing apiVersion and kind are filled in, as list items lack them. Whitespace is
    /// dropped if it contains line breaks, as an object must fit on one line of a watch. All else stays byte for byte.
    ///
    /// # Errors
    ///
    /// When the bytes are no JSON object with a usable name.
    pub fn parse(bytes: Bytes, kind: &ResourceKind) -> Result<Self, ObjectError> {
        let bytes = json_text::single_line(bytes);
        let text = std::str::from_utf8(&bytes)?;
        let extract = Extract::read(text, kind.fields)?;
        Self::assemble(bytes, None, extract, kind)
    }

    /// Parses an object from a row of a file ([`crate::packed`]); see [`Self::parse`]. It stays deflated in memory as
    /// after [`Self::pack`].
    ///
    /// # Errors
    ///
    /// As [`Object::parse`], and when the row is damaged.
    pub fn parse_packed(row: &Bytes, kind: &ResourceKind) -> Result<Self, ObjectError> {
        let headed = match packed::split_head(row).map_err(ObjectError::Packed)? {
            Some((head, body)) => head::object(head, body, kind)?,
            None => None,
        };
        if let Some(object) = headed {
            return Ok(object);
        }
        let text = packed::unpack(row).map_err(ObjectError::Packed)?;
        let object = Self::parse(text.clone(), kind)?;
        if object.bytes() == text {
            object.0.body.hold(&packed::without_head(row));
        }
        Ok(object)
    }

    fn assemble(
        given: Bytes,
        metadata_at: Option<usize>,
        extract: Extract,
        kind: &ResourceKind,
    ) -> Result<Self, ObjectError> {
        let resource_version = ResourceVersion::parse(&extract.resource_version)?;
        let key = object_key(&extract.name, &extract.namespace, kind.namespaced)?;
        let bytes = edit::complete_type_meta(&given, &extract.type_meta, extract.has_type_members, kind);
        let known = metadata_at.filter(|_| bytes.len() == given.len());
        let find = || edit::only_metadata_at(&bytes);
        let metadata_at = known.or_else(|| (extract.metadata_members == 1).then(find).flatten());
        let meta = Meta {
            key,
            uid: extract.uid.into(),
            labels: extract.labels,
            is_deleting: extract.is_deleting,
            fields: kind.fields,
            values: extract.values,
        };
        Ok(Self(Arc::new(Inner {
            body: Body::new(bytes),
            resource_version,
            is_renumbered: false,
            metadata_at: metadata_at.and_then(narrow),
            encoding_cache: CacheSlot::default(),
            meta: Arc::new(meta),
        })))
    }

    /// Encodes a value as an object of a kind. The metadata is taken from the value: the bytes are not parsed again.
    ///
    /// # Errors
    ///
    /// As [`Object::parse`].
    pub fn from_value(value: Value, kind: &ResourceKind) -> Result<Self, ObjectError> {
        let mut bytes = Vec::with_capacity(ENCODED);
        let metadata_at = edit::encode(&value, &mut bytes)?;
        // Stored without spare capacity. The buffer of a small object is freed whole, for reuse: shrinking it costs the
        // allocator much more than the copy.
        let bytes = match bytes.len() {
            ..=ENCODED => Bytes::copy_from_slice(&bytes),
            _ => Bytes::from(bytes.into_boxed_slice()),
        };
        match Extract::of_value(&value, kind.fields) {
            Ok(extract) if json_text::is_shallow(&value) => Self::assemble(bytes, metadata_at, extract, kind),
            _ => Self::parse(bytes, kind),
        }
    }

    /// The same object with another resource version; every other byte is the same. One that is held deflated shares
    /// its body with this one, where the length allows it.
    #[must_use]
    pub fn with_resource_version(&self, resource_version: ResourceVersion) -> Self {
        let known = self.0.metadata_at.map(|at| at.get() as usize);
        let before = digits(self.resource_version());
        let can_share = known.is_some() && before.is_some() && before == digits(resource_version);
        let shared = can_share.then(|| self.0.body.shared()).flatten();
        let is_renumbered = shared.is_some();
        let (body, metadata_at) = match shared {
            Some(shared) => (shared, known),
            None => {
                let text = self.bytes();
                let metadata_at = known.or_else(|| edit::metadata_at(&text));
                (Body::new(renumbered(&text, metadata_at, resource_version)), metadata_at)
            }
        };
        Self(Arc::new(Inner {
            body,
            resource_version,
            is_renumbered,
            // Everything before it stays unchanged.
            metadata_at: metadata_at.and_then(narrow),
            encoding_cache: CacheSlot::default(),
            meta: Arc::clone(&self.0.meta),
        }))
    }

    /// The object as one line of JSON, without a line break at the end. Inflates an object that is held deflated.
    pub fn bytes(&self) -> Bytes {
        let text = self.0.body.text();
        if !self.0.is_renumbered {
            return text;
        }
        let metadata_at = self.0.metadata_at.map(|at| at.get() as usize);
        renumbered(&text, metadata_at, self.0.resource_version)
    }

    /// Length of [`Self::bytes`]. A resource version with escapes or leading zeros may count as it came.
    pub fn bytes_len(&self) -> usize {
        self.0.body.len()
    }

    /// Holds the body deflated from now on if it has 2 KiB or more, in all clones. Returns the bytes of memory that
    /// this freed.
    pub fn pack(&self, packer: &mut Packer) -> usize {
        self.packed(packer).1
    }

    /// The object as a row of a file ([`crate::packed`]): deflated if it is long, with a head if that spares inflating
    /// it ([`Self::parse_packed`]). Also holds it as [`Self::pack`] does, and returns the bytes that this freed.
    pub fn row(&self, packer: &mut Packer) -> (Bytes, usize) {
        let (body, freed) = self.packed(packer);
        (head::row(self, &body).unwrap_or(body), freed)
    }

    fn packed(&self, packer: &mut Packer) -> (Bytes, usize) {
        match self.0.is_renumbered {
            true => (packer.row(&self.bytes()), 0),
            false => self.0.body.pack(packer),
        }
    }

    /// True if [`Self::pack`] may free memory.
    pub fn is_long(&self) -> bool {
        self.0.body.is_long()
    }

    /// True if the object is held deflated.
    pub fn is_packed(&self) -> bool {
        self.0.body.is_packed()
    }

    /// Its place in the collection.
    pub fn key(&self) -> &ObjectKey {
        &self.0.meta.key
    }

    /// `metadata.name`.
    pub fn name(&self) -> &str {
        self.0.meta.key.name()
    }

    /// `metadata.namespace`; `None` for cluster-scoped kinds.
    pub fn namespace(&self) -> Option<&str> {
        self.0.meta.key.namespace()
    }

    /// `metadata.uid`, empty if unset.
    pub fn uid(&self) -> &str {
        &self.0.meta.uid
    }

    /// `metadata.resourceVersion`, zero if unset.
    pub fn resource_version(&self) -> ResourceVersion {
        self.0.resource_version
    }

    /// `metadata.labels`.
    pub fn labels(&self) -> &Labels {
        &self.0.meta.labels
    }

    /// One of `metadata.annotations`. Scans the bytes again: annotations are not kept separately.
    pub fn annotation(&self, key: &str) -> Option<String> {
        extract::annotation(&self.bytes(), key)
    }

    /// Value of a field that selectors of the kind may name, its default if it is unset; `None` for other fields.
    pub fn field(&self, label: &str) -> Option<&str> {
        match label {
            "metadata.name" => return Some(self.name()),
            "metadata.namespace" => return Some(self.namespace().unwrap_or_default()),
            _ => {}
        }
        let meta = &self.0.meta;
        let at = meta.fields.iter().position(|field| field.label == label)?;
        let value = meta.values.get(at).and_then(Option::as_deref);
        Some(value.unwrap_or(meta.fields[at].default))
    }

    /// True if `metadata.deletionTimestamp` is set.
    pub fn is_deleting(&self) -> bool {
        self.0.meta.is_deleting
    }

    /// The object as a value.
    pub fn to_value(&self) -> Value {
        json_text::parse(&self.bytes()).expect("the bytes of an Object must have been checked to be a JSON value")
    }

    /// The cache of encodings of this object, made on first use and dropped with the object. Its contents belong to the
    /// crate that encodes objects. `None` if it was made as another type.
    pub fn encoding_cache<T: Any + Default + Send + Sync>(&self) -> Option<&T> {
        self.0.encoding_cache.get_or_default()
    }

    /// True once [`Self::encoding_cache`] was called.
    pub fn has_encoding_cache(&self) -> bool {
        self.0.encoding_cache.is_made()
    }

    /// Identity of this value in memory, which its clones share.
    pub fn identity(&self) -> ObjectIdentity {
        ObjectIdentity(Arc::downgrade(&self.0))
    }

    /// Approximate memory of the object while it is not held deflated, in bytes.
    pub fn size(&self) -> usize {
        let meta = &self.0.meta;
        let values: usize = meta.values.iter().flatten().map(|value| value.len()).sum();
        self.bytes_len() + meta.labels.text_len() + values + OVERHEAD
    }
}

impl FieldSource for Object {
    fn field(&self, label: &str) -> Option<&str> {
        Self::field(self, label)
    }
}

/// Equal bytes, hence equal in everything.
impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        if Arc::ptr_eq(&self.0, &other.0) {
            return true;
        }
        if self.0.resource_version != other.0.resource_version {
            return false;
        }
        match self.0.is_renumbered || other.0.is_renumbered {
            true => self.bytes() == other.bytes(),
            false => self.0.body == other.0.body,
        }
    }
}

impl Eq for Object {}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({} @{})", self.key(), self.resource_version())
    }
}

// === impl ObjectIdentity ===

impl ObjectIdentity {
    /// True if `object` is the one whose identity this is.
    pub fn is(&self, object: &Object) -> bool {
        self.0.as_ptr() == Arc::as_ptr(&object.0)
    }

    /// The object, while it exists.
    pub fn object(&self) -> Option<Object> {
        self.0.upgrade().map(Object)
    }
}

/// `text` with another resource version in the metadata at `metadata_at`.
fn renumbered(text: &[u8], metadata_at: Option<usize>, resource_version: ResourceVersion) -> Bytes {
    let bytes = metadata_at.and_then(|at| edit::set_resource_version(text, at, resource_version));
    bytes.expect("the bytes of an Object must have been checked to have metadata")
}

/// Decimal digits of a resource version; `None` for zero, which a text may lack.
fn digits(resource_version: ResourceVersion) -> Option<u32> {
    resource_version.0.checked_ilog10()
}

/// The metadata never begins at offset 0. Offsets beyond 4 GiB are not stored and are found again.
fn narrow(metadata_at: usize) -> Option<NonZeroU32> {
    NonZeroU32::new(u32::try_from(metadata_at).ok()?)
}

fn object_key(name: &str, namespace: &str, namespaced: bool) -> Result<ObjectKey, ObjectError> {
    let is_usable = |text: &str| !text.is_empty() && !text.contains('/');
    if !is_usable(name) {
        return Err(ObjectError::Name(name.to_owned()));
    }
    if !namespaced {
        return Ok(ObjectKey::new(None, name));
    }
    if !is_usable(namespace) {
        return Err(ObjectError::Namespace(namespace.to_owned()));
    }
    Ok(ObjectKey::new(Some(namespace), name))
}

#[cfg(test)]
mod tests;
