//! Events of a recording client, converted to the checker's types.

use serde_json::Value;
use yurt_chaos_validate::history::Seen;
use yurt_testbed::api::key_and_version;
use yurt_testbed::client::Told;

/// Annotation that every write of the traffic changes.
pub(crate) const MARK: &str = "chaos.openyurt.io/mark";

/// Converts one event.
pub(crate) fn seen(told: &Told<'_>) -> Seen {
    let event = match told {
        Told::List(listing) => return Seen::List(listing.resource_version, listing.objects.clone()),
        Told::Watch(version) => return Seen::Watch(*version),
        Told::Event(event) => event,
    };
    let object = &event["object"];
    let (key, version) = key_and_version(object);
    match event["type"].as_str() {
        Some("DELETED") => Seen::Gone { key, version },
        Some("BOOKMARK") => Seen::Bookmark(version),
        Some("ERROR") => Seen::Error(object["code"].as_u64().unwrap_or_default()),
        _ => Seen::Put {
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
