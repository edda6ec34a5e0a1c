//! Limits of the remembered history: one number below it a reader starts over, at the limit it misses nothing.

use super::*;

const FEW: Limits = Limits {
    bytes_min: HISTORY_BYTES_MIN,
    tombstones: 3,
    gaps: 2,
};

/// `held` without its log, as after a restart: only the remembered deletions are left.
fn restarted(held: &Collection, limits: Limits) -> Collection {
    let mut again = Collection::with_limits(false, limits);
    again.recover(held.to_recovered());
    again
}

/// Names of the objects whose deletion a reader at `position` receives; `None` if it has to start over.
fn gone(held: &Collection, position: u64) -> Option<Vec<String>> {
    let mut reader = held.open(rv(position)).ok()?;
    let deliveries = held.read(&mut reader, usize::MAX).ok()?;
    let name = |delivery: &Delivery| match delivery {
        Delivery::Gone(object) => Some(object.name().to_owned()),
        Delivery::Exact(change) if change.kind == ChangeKind::Deleted => Some(change.object.name().to_owned()),
        _ => None,
    };
    Some(deliveries.iter().filter_map(name).collect())
}

fn names(names: &[&str]) -> Option<Vec<String>> {
    Some(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn floor_is_the_last_deletion_that_was_forgotten() {
    let mut held = Collection::with_limits(false, FEW);
    let all = ["a", "b", "c", "d", "e"];
    let list = all.iter().map(|name| service(name, 1, 5)).collect();
    held.restart(0, list, rv(10));
    for (at, name) in (11..).zip(all) {
        held.apply(EventType::Deleted, service(name, 1, at));
    }
    assert_eq!(held.floor(), rv(12), "that of b");
    let held = restarted(&held, FEW);
    assert_eq!(gone(&held, 11), None, "it would miss the deletion of b");
    assert_eq!(gone(&held, 12), names(&["c", "d", "e"]));
}

#[test]
fn floor_is_the_end_of_the_last_range_that_was_forgotten() {
    let mut held = Collection::with_limits(false, FEW);
    let list = ["a", "b", "c", "d"].map(|name| service(name, 1, 5));
    held.restart(0, list.to_vec(), rv(10));
    held.replace(list[1..].to_vec(), rv(20)).expect("a later list");
    for (at, object) in (21..).zip(&list[1..]) {
        held.apply(EventType::Deleted, object.with_resource_version(rv(at)));
    }
    assert_eq!(held.floor(), rv(20), "a was gone somewhere up to here");
    let held = restarted(&held, FEW);
    for position in [10, 15, 19] {
        assert_eq!(gone(&held, position), None, "at {position} it would miss a's deletion");
    }
    assert_eq!(gone(&held, 20), names(&["b", "c", "d"]));
}

#[test]
fn floor_is_the_end_of_the_last_gap_that_was_forgotten() {
    let mut held = Collection::with_limits(false, FEW);
    held.restart(0, vec![service("a", 1, 5)], rv(10));
    for at in [20, 30, 40] {
        held.replace(vec![service("a", 1, 5)], rv(at)).expect("a later list");
    }
    assert_eq!((held.floor(), held.gaps().len()), (rv(20), 2));
}

/// A difference may consist of deletions alone, which have no number of their own. The log's limit decides which
/// step is the first one in it.
#[test]
fn reader_at_a_difference_that_left_the_log_is_told_its_deletions() {
    for bytes_min in (1_000..2_000).step_by(20) {
        let limits = Limits {
            bytes_min,
            ..Limits::default()
        };
        let mut held = Collection::with_limits(false, limits);
        held.restart(0, vec![service("a", 1, 5), service("b", 2, 6)], rv(10));
        held.replace(vec![service("a", 1, 5)], rv(20)).expect("a later list");
        for at in 21..30 {
            let told = gone(&held, 10);
            assert_eq!(told, names(&["b"]), "{bytes_min} bytes, C = {}", held.position());
            held.apply(EventType::Modified, service("a", 1, at));
        }
        assert!(held.log_from > rv(20), "the difference has left the log");
    }
}

#[test]
fn object_that_was_created_at_a_readers_very_position_is_known_to_it() {
    let mut held = Collection::new(false);
    held.restart(0, vec![], rv(10));
    held.apply(EventType::Added, service("a", 1, 11));
    held.apply(EventType::Modified, service("a", 1, 13));
    let is_new = |position: u64| {
        let mut reader = held.open(rv(position)).expect("within history").without_tail();
        let told = held.read(&mut reader, usize::MAX).expect("within history");
        told.iter()
            .find_map(|delivery| match delivery {
                Delivery::Current { created, .. } => Some(*created),
                _ => None,
            })
            .expect("a changed after it")
    };
    assert_eq!([10, 11, 12].map(is_new), [true, false, false]);
}
