//! Bodies: objects, lists, patches, streams of events.

use bytes::Bytes;
use serde_json::Value;
use yurt_apimachinery::list::ParsedList;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::watch::WatchDecoder;
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion, kind};
use yurt_patch::apply::Write;
use yurt_patch::{apply_json_patch, apply_merge_patch};

fn pods() -> &'static ResourceKind {
    kind::find_kind("", "pods").expect("pods must be built in")
}

/// A parsed object is one line, parses again to itself, and accepts a new resourceVersion.
pub(crate) fn object(data: &[u8]) {
    let Ok(object) = Object::parse(Bytes::copy_from_slice(data), pods()) else {
        return;
    };
    assert!(!object.bytes().contains(&b'\n'));
    let again = Object::parse(object.bytes(), pods()).expect("what was read must be readable");
    assert_eq!(object, again);
    let moved = object.with_resource_version(ResourceVersion(77));
    assert_eq!(moved.to_value()["metadata"]["resourceVersion"], "77");
    assert_eq!((moved.key(), moved.uid()), (object.key(), object.uid()));
}

/// Items of a parsed list are objects with a type, and parse again to themselves.
pub(crate) fn list(data: &[u8]) {
    let Ok(list) = ParsedList::parse(Bytes::copy_from_slice(data), pods()) else {
        return;
    };
    for item in &list.items {
        let value = item.to_value();
        assert!(value["kind"].is_string() && value["apiVersion"].is_string(), "{value}");
        let again = Object::parse(item.bytes(), pods()).expect("what was read must be readable");
        assert_eq!(*item, again);
    }
}

/// The first half is a document, the second a patch.
pub(crate) fn json_patch(data: &[u8]) {
    patch(data, |document, patch| apply_json_patch(document, patch).is_ok());
}

/// As [`json_patch`].
pub(crate) fn merge_patch(data: &[u8]) {
    patch(data, |document, patch| apply_merge_patch(document, patch).is_ok());
}

/// A rejected patch leaves a document that its callers drop: they work on a copy, so only panics count.
fn patch(data: &[u8], apply: impl Fn(&mut Value, &[u8]) -> bool) {
    let (document, patch) = super::halves(data);
    let Ok(before) = serde_json::from_slice::<Value>(document) else {
        return;
    };
    let (mut first, mut second) = (before.clone(), before);
    let outcomes = (apply(&mut first, patch), apply(&mut second, patch));
    assert_eq!(outcomes.0, outcomes.1);
    if outcomes.0 {
        assert_eq!(first, second, "the same patch of the same document");
    }
}

/// The first half is the live object, the second the applied configuration. With force everything that fits the kind
/// can be applied. An update without changes afterwards leaves the managed fields as they are.
pub(crate) fn apply(data: &[u8]) {
    let (live, config) = super::halves(data);
    let (Ok(live), Ok(config)) = (
        serde_json::from_slice::<Value>(live),
        serde_json::from_slice::<Value>(config),
    ) else {
        return;
    };
    let claimed = |name: &str| config.get(name).and_then(Value::as_str).unwrap_or_default();
    let mut kinds = kind::builtin_kinds().iter();
    let kind = kinds.find(|kind| kind.api_version() == claimed("apiVersion") && kind.kind == claimed("kind"));
    let write = Write {
        kind: kind.unwrap_or(pods()),
        subresource: "",
        schema: None,
        ignored: &[],
        manager: "kubectl",
        now: Time::from_unix(1_800_000_000),
    };
    let empty = serde_json::json!({"apiVersion": write.kind.api_version(), "kind": &*write.kind.kind});
    let _ = write.apply(&live, &empty, &config, false);
    let Ok(applied) = write.apply(&live, &empty, &config, true) else {
        return;
    };
    let mut same = applied.clone();
    write.update(&applied, &mut same);
    assert_eq!(applied, same);
}

/// A stream gives the same events for any cuts.
pub(crate) fn watch_frames(data: &[u8]) {
    let read = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut decoder = WatchDecoder::new();
        let mut events = Vec::new();
        for piece in pieces {
            decoder.push(piece);
            for event in decoder.by_ref() {
                match event {
                    Ok(event) => events.push(Some(event)),
                    Err(_) => events.push(None),
                }
            }
        }
        events
    };
    assert_eq!(read(&mut std::iter::once(data)), read(&mut data.chunks(7)));
}
