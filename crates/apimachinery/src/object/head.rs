//! Head of a row in a file: the metadata that an [`Object`] keeps, beside its deflated body. With it an object is made
//! without inflating and parsing the body, which is most of the work of a start.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Crc;
use serde::{Deserialize, Serialize};

use super::body::Body;
use super::cache_slot::CacheSlot;
use super::{Inner, Meta, Object, ObjectError, narrow, object_key};
use crate::kind::{ResourceKind, SelectableField};
use crate::packed;
use crate::resource_version::ResourceVersion;

/// As JSON. A member that is new or has another meaning needs a new first byte of the row ([`packed`]): an older
/// program would not miss it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Head<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    uid: Cow<'a, str>,
    resource_version: u64,
    metadata_at: u32,
    is_deleting: bool,
    labels: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// Checksum of the kind's fields: with others, the values would belong to the wrong ones.
    fields: u32,
    values: Vec<Option<Cow<'a, str>>>,
}

/// The row of `object` with the body `body`; `None` if that is not deflated, or has to be parsed at a start.
pub(super) fn row(object: &Object, body: &Bytes) -> Option<Bytes> {
    if !packed::is_packed(body) {
        return None;
    }
    let meta = &object.0.meta;
    let head = Head {
        name: object.name().into(),
        namespace: object.namespace().unwrap_or_default().into(),
        uid: object.uid().into(),
        resource_version: object.resource_version().0,
        metadata_at: object.0.metadata_at?.get(),
        is_deleting: meta.is_deleting,
        labels: meta
            .labels
            .iter()
            .map(|(key, value)| (key.into(), value.into()))
            .collect(),
        fields: checksum(meta.fields),
        values: meta
            .values
            .iter()
            .map(|value| value.as_deref().map(Cow::from))
            .collect(),
    };
    packed::with_head(&serde_json::to_vec(&head).ok()?, body)
}

/// The object with `head` and the deflated `body`; `None` if its fields are not those of the kind any more.
///
/// # Errors
/// The head is damaged.
pub(super) fn object(head: &[u8], body: &[u8], kind: &ResourceKind) -> Result<Option<Object>, ObjectError> {
    let head: Head<'_> = serde_json::from_slice(head)?;
    if head.fields != checksum(kind.fields) || head.values.len() != kind.fields.len() {
        return Ok(None);
    }
    let value = |value: Option<Cow<'_, str>>| value.map(Box::from);
    let meta = Meta {
        key: object_key(&head.name, &head.namespace, kind.namespaced)?,
        uid: head.uid.into(),
        labels: head.labels.into_iter().collect(),
        is_deleting: head.is_deleting,
        fields: kind.fields,
        values: head.values.into_iter().map(value).collect(),
    };
    Ok(Some(Object(Arc::new(Inner {
        body: Body::new(Bytes::copy_from_slice(body)),
        resource_version: ResourceVersion(head.resource_version),
        is_renumbered: false,
        metadata_at: narrow(head.metadata_at as usize),
        encoding_cache: CacheSlot::default(),
        meta: Arc::new(meta),
    }))))
}

fn checksum(fields: &[SelectableField]) -> u32 {
    let mut sum = Crc::new();
    for field in fields {
        for path in [&[field.label], field.path, field.alternative] {
            for name in path {
                sum.update(name.as_bytes());
                sum.update(&[0]);
            }
            sum.update(&[0]);
        }
    }
    sum.sum()
}
