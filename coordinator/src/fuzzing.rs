//! Doors for the fuzz targets: what a client's bytes reach behind the fence, without a server around it.

use yurt_apimachinery::{ResourceVersion, kind};
use yurt_storage::Collection;

use crate::feed::events;

/// A body of the feed's `events` call, applied to a collection that stands at 100.
///
/// # Panics
/// When the collection breaks a promise.
pub fn feed_call(body: &[u8]) {
    let services = kind::find_kind("", "services").expect("services must be built in");
    let start = ResourceVersion(100);
    let mut held = Collection::new(false);
    held.restart(0, Vec::new(), start);
    for _ in 0..2 {
        let before = held.position();
        let applied = events::apply_unfenced(&mut held, services, body);
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
