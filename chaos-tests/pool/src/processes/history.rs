//! Events of a recording client, converted to the checker's types.

use serde_json::Value;
use yurt_chaos_validate::history::HistoryItem;
use yurt_testbed::api::key_and_version;
use yurt_testbed::client::Received;

/// Annotation that every write of the traffic changes.
pub(crate) const MARK: &str = "chaos.openyurt.io/mark";

/// Converts one event.
pub(crate) fn seen(told: &Received<'_>) -> HistoryItem {
    let event = match told {
        Received::List(listing) => return HistoryItem::List(listing.resource_version, listing.objects.clone()),
        Received::Watch(version) => return HistoryItem::Watch(*version),
        Received::Event(event) => event,
    };
    let object = &event["object"];
    let (key, version) = key_and_version(object);
    match event["type"].as_str() {
        Some("DELETED") => HistoryItem::Gone { key, version },
        Some("BOOKMARK") => HistoryItem::Bookmark(version),
        Some("ERROR") => HistoryItem::Error(object["code"].as_u64().unwrap_or_default()),
        _ => HistoryItem::Put {
            key,
            version,
            mark: mark_of(object),
        },
    }
}

/// The mark of an object; empty if the traffic never wrote it.
fn mark_of(object: &Value) -> String {
    let mark = object["metadata"]["annotations"][MARK].as_str();
    mark.unwrap_or_default().to_owned()
}
