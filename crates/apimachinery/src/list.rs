//! Lists: stitched together from stored bytes on the way out, sliced apart on the way in.

use bytes::Bytes;
use serde::Serialize;

use crate::kind::ResourceKind;
use crate::object::Object;
use crate::partial;
use crate::resource_version::ResourceVersion;

mod parse;

pub use parse::{ListError, ParsedList};

/// Metadata of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListMeta {
    /// Version of the whole collection; not below that of any item.
    pub resource_version: ResourceVersion,
    /// Where the next page starts; `None` on the last one.
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    pub continue_token: Option<String>,
    /// Estimate of the items after this page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining_item_count: Option<u64>,
}

// === impl ListMeta ===

impl ListMeta {
    /// Metadata of a list that is complete.
    pub fn at(resource_version: ResourceVersion) -> Self {
        Self {
            resource_version,
            ..Self::default()
        }
    }
}

/// A list of whole objects, as chunks to be sent one after the other. Items are the stored bytes, not copies.
pub fn encode_list<'a>(
    kind: &ResourceKind,
    meta: &ListMeta,
    items: impl IntoIterator<Item = &'a Object>,
) -> Vec<Bytes> {
    stitch(
        &kind.list_kind,
        &kind.api_version(),
        meta,
        items.into_iter().map(|item| item.bytes().clone()),
    )
}

/// A `PartialObjectMetadataList`: the same items reduced to their metadata.
pub fn encode_partial_list<'a>(meta: &ListMeta, items: impl IntoIterator<Item = &'a Object>) -> Vec<Bytes> {
    let items = items.into_iter().map(partial::partial_object_metadata);
    stitch(partial::LIST_KIND, partial::API_VERSION, meta, items)
}

fn stitch(list_kind: &str, api_version: &str, meta: &ListMeta, items: impl Iterator<Item = Bytes>) -> Vec<Bytes> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Head<'a> {
        kind: &'a str,
        api_version: &'a str,
        metadata: &'a ListMeta,
    }
    let head = Head {
        kind: list_kind,
        api_version,
        metadata: meta,
    };
    let mut head = serde_json::to_vec(&head).expect("a list head has string keys only, so it must serialize");
    // The closing brace comes after the items.
    head.pop();
    head.extend_from_slice(b",\"items\":[");
    let mut chunks = vec![Bytes::from(head)];
    for (at, item) in items.enumerate() {
        if at > 0 {
            chunks.push(Bytes::from_static(b","));
        }
        chunks.push(item);
    }
    // kube-apiserver ends every body with a line break.
    chunks.push(Bytes::from_static(b"]}\n"));
    chunks
}

#[cfg(test)]
mod tests;
