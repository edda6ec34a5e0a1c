//! Lists: their metadata, and parsing them into items. Crate `yurt-codec` writes them.

use serde::Serialize;

use crate::resource_version::ResourceVersion;

mod parse;

pub use parse::{ListError, ParsedList};

/// `kind` of a list of objects that are reduced to their metadata.
pub const PARTIAL_LIST_KIND: &str = "PartialObjectMetadataList";

/// Metadata of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListMeta {
    /// Version of the whole collection; not below that of any item.
    pub resource_version: ResourceVersion,
    /// Token for the next page; `None` on the last one.
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

#[cfg(test)]
mod tests;
