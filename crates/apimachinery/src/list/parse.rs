//! Slicing a list into its items.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ListMeta, PARTIAL_LIST_KIND};
use crate::kind::ResourceKind;
use crate::mapping::Mapping;
use crate::object::{Object, ObjectError};
use crate::resource_version::{InvalidResourceVersion, ResourceVersion};

/// A list of another server.
#[derive(Clone, Debug)]
pub struct ParsedList {
    /// Metadata of the list.
    pub meta: ListMeta,
    /// The items in the order of the list, unknown fields included.
    pub items: Vec<Object>,
}

/// A body that is no list of the kind. None of these may be treated as an empty collection.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// Not JSON.
    #[error("the list cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// A list of something else, or no list at all.
    #[error("the body is a {found:?}, not a {want}")]
    WrongKind {
        /// The kind of the body.
        found: String,
        /// The kind wanted.
        want: String,
    },
    /// `items` is missing or null, which says nothing about the collection.
    #[error("the list has no items array")]
    NoItems,
    /// A resource version that is no decimal number.
    #[error("the list's {0}")]
    ResourceVersion(#[from] InvalidResourceVersion),
    /// An item that is no object of the kind.
    #[error("item {index}: {source}")]
    Item {
        /// Its index in the list.
        index: usize,
        /// Cause of the rejection.
        source: ObjectError,
    },
}

#[derive(Deserialize)]
struct RawList<'a> {
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    metadata: Option<Mapping<RawMeta>>,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawMeta {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    continue_token: Option<String>,
    remaining_item_count: Option<i64>,
}

// === impl ParsedList ===

impl ParsedList {
    /// Reads a list of a kind, or a `PartialObjectMetadataList` of it. Items that carry apiVersion and kind are slices
    /// of the body and keep all of it in memory; others are copies of their own.
    ///
    /// # Errors
    ///
    /// When the body is anything else, or any item cannot be read.
    pub fn parse(body: Bytes, kind: &ResourceKind) -> Result<Self, ListError> {
        let raw: RawList<'_> = crate::mapping::from_slice(&body)?;
        let found = raw.kind.unwrap_or_default();
        let is_partial = found == PARTIAL_LIST_KIND;
        if found != kind.list_kind && !is_partial {
            return Err(ListError::WrongKind {
                found,
                want: kind.list_kind.to_string(),
            });
        }
        let raw_items = match raw.items {
            Some(items) => items,
            // The one list kube-apiserver encodes with null items when it is empty.
            None if is_partial && has_items_member(&body) => Vec::new(),
            None => return Err(ListError::NoItems),
        };
        let mut items = Vec::with_capacity(raw_items.len());
        for (index, item) in raw_items.into_iter().enumerate() {
            let bytes = body.slice_ref(item.get().as_bytes());
            items.push(Object::parse(bytes, kind).map_err(|source| ListError::Item { index, source })?);
        }
        Ok(Self {
            meta: raw.metadata.unwrap_or_default().0.checked()?,
            items,
        })
    }
}

// === impl RawMeta ===

impl RawMeta {
    fn checked(self) -> Result<ListMeta, InvalidResourceVersion> {
        Ok(ListMeta {
            resource_version: ResourceVersion::parse(&self.resource_version.unwrap_or_default())?,
            continue_token: self.continue_token.filter(|token| !token.is_empty()),
            remaining_item_count: self.remaining_item_count.and_then(|count| u64::try_from(count).ok()),
        })
    }
}

fn has_items_member(body: &Bytes) -> bool {
    crate::json_text::member(body, "items").is_some()
}
