//! Reading bookmarks, which have no name and so are no [`crate::object::Object`].

use std::collections::BTreeMap;

use serde::Deserialize;

use super::INITIAL_EVENTS_END;
use crate::mapping::Mapping;
use crate::resource_version::ResourceVersion;

/// Contents of a bookmark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bookmark {
    /// Everything up to this version has been sent.
    pub resource_version: ResourceVersion,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Outer {
    metadata: Mapping<Inner>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Inner {
    resource_version: ResourceVersion,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

// === impl Bookmark ===

impl Bookmark {
    /// Reads the object of a bookmark event.
    ///
    /// # Errors
    ///
    /// When it has no resource version, or one that is no decimal number.
    pub fn parse(object: &[u8]) -> Result<Self, serde_json::Error> {
        let Outer {
            metadata: Mapping(metadata),
        } = crate::mapping::from_slice(object)?;
        Ok(Self {
            resource_version: metadata.resource_version,
            annotations: metadata.annotations.unwrap_or_default(),
        })
    }

    /// True for the bookmark that ends the initial events.
    pub fn ends_initial_events(&self) -> bool {
        self.annotations
            .get(INITIAL_EVENTS_END)
            .is_some_and(|value| value == "true")
    }
}
