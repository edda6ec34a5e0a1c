//! Events have two views, core and `events.k8s.io`: the same objects under other names of fields.
//!
//! Stored is the core form. Both directions keep what they do not know.

use serde_json::Value;

/// Names of the fields that differ: `events.k8s.io`, core.
const NAMES: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("reportingController", "reportingComponent"),
];

/// Turns an event of `events.k8s.io/v1` into a core event.
pub fn to_core(event: &mut Value) {
    rename(event, "v1", NAMES);
}

/// Turns a core event into one of `events.k8s.io/v1`.
pub fn to_events_v1(event: &mut Value) {
    rename(event, "events.k8s.io/v1", NAMES.map(|(new, core)| (core, new)));
}

/// The core name of a field that selectors of `events.k8s.io` use.
pub fn core_field(label: &str) -> String {
    match label.strip_prefix("regarding.") {
        Some(rest) => format!("involvedObject.{rest}"),
        None if label == "reportingController" => "reportingComponent".to_owned(),
        None => label.to_owned(),
    }
}

fn rename(event: &mut Value, api_version: &str, names: [(&str, &str); 7]) {
    let Some(members) = event.as_object_mut() else { return };
    members.insert("apiVersion".to_owned(), api_version.into());
    for (from, to) in names {
        // A field of the other view is unknown in this one.
        members.remove(to);
        if let Some(value) = members.remove(from) {
            members.insert(to.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Conformance: 5.13
    #[test]
    fn both_views_hold_the_same() {
        let new = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "a"},
            "regarding": {"name": "p"}, "note": "n", "deprecatedSource": {"component": "c"}, "deprecatedCount": 2,
            "deprecatedFirstTimestamp": "f", "deprecatedLastTimestamp": "l", "reportingController": "r",
            "reportingInstance": "i", "series": {"count": 2}, "type": "Normal", "own": 1});
        let core = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "a"},
            "involvedObject": {"name": "p"}, "message": "n", "source": {"component": "c"}, "count": 2,
            "firstTimestamp": "f", "lastTimestamp": "l", "reportingComponent": "r",
            "reportingInstance": "i", "series": {"count": 2}, "type": "Normal", "own": 1});
        let mut event = new.clone();
        to_core(&mut event);
        assert_eq!(event, core);
        to_events_v1(&mut event);
        assert_eq!(event, new);
        let mut odd = json!([1]);
        to_core(&mut odd);
        let mut stray = json!({"message": "unknown there"});
        to_core(&mut stray);
        assert_eq!(stray, json!({"apiVersion": "v1"}));
    }

    #[test]
    fn selectors_are_translated() {
        let translated = ["regarding.name", "reportingController", "reason", "regarding"].map(core_field);
        assert_eq!(
            translated,
            ["involvedObject.name", "reportingComponent", "reason", "regarding"]
        );
    }
}
