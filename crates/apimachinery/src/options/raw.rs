//! List options as they are decoded, before any rule is applied.

use crate::query::Query;
use crate::selector::{FieldSelector, LabelSelector};
use crate::text::parse_int;

/// The decoded parameters of a list or watch.
pub(super) struct RawListOptions<'a> {
    pub(super) label_selector: LabelSelector,
    pub(super) field_selector: FieldSelector,
    pub(super) resource_version: &'a str,
    pub(super) resource_version_match: &'a str,
    pub(super) limit: i64,
    pub(super) continue_token: &'a str,
    pub(super) timeout_seconds: Option<i64>,
    pub(super) allow_watch_bookmarks: bool,
    pub(super) send_initial_events: Option<bool>,
}

impl<'a> RawListOptions<'a> {
    /// Decodes the query; the error is the text of a 400.
    pub(super) fn decode(query: &'a Query) -> Result<Self, String> {
        let text = |key| query.get(key).unwrap_or_default();
        let int = |key| query.get(key).map(parse_int).transpose();
        Ok(Self {
            label_selector: LabelSelector::parse(text("labelSelector")).map_err(|error| error.to_string())?,
            field_selector: FieldSelector::parse(text("fieldSelector")).map_err(|error| error.to_string())?,
            resource_version: text("resourceVersion"),
            resource_version_match: text("resourceVersionMatch"),
            limit: int("limit")?.unwrap_or_default(),
            continue_token: text("continue"),
            timeout_seconds: int("timeoutSeconds")?,
            allow_watch_bookmarks: query.get_bool("allowWatchBookmarks").unwrap_or_default(),
            send_initial_events: query.get_bool("sendInitialEvents"),
        })
    }
}

/// Returns the name that the field selector of a list or watch requires; `None` also if any option cannot be decoded.
pub(crate) fn required_name(query: &Query) -> Option<String> {
    let selector = RawListOptions::decode(query).ok()?.field_selector;
    selector
        .requires("metadata.name")
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
}
