//! Calls of the feed, from a leader or from a caller that pretends to be one.

use yurt_apimachinery::{ResourceVersion, kind};
use yurt_collection::Collection;
use yurt_pool_protocol::feed::{EventsCall, decode, events};

/// Parses and applies a body of the feed's `events` call to a collection at position 100, as the coordinator does
/// behind its fence.
pub(crate) fn batch(data: &[u8]) {
    let services = kind::find_kind("", "services").expect("services must be built in");
    let mut held = Collection::new(false);
    held.restart(0, Vec::new(), ResourceVersion(100));
    for _ in 0..2 {
        let before = held.position();
        let applied = decode::<EventsCall<'_>>(data).is_ok_and(|call| {
            let read = events::read_events(&call, services);
            read.is_ok_and(|read| events::apply(&mut held, &call, read, |_, _| Ok(())).is_ok())
        });
        assert!(applied || held.position() == before, "a refused batch moved C");
        assert!(held.position() >= before, "C went back");
    }
    let at = held.position();
    assert!(
        held.objects().all(|object| object.resource_version() <= at),
        "an object is newer than C"
    );
    let snapshot = held.snapshot(None);
    assert_eq!(snapshot.objects.len(), held.len());
}
