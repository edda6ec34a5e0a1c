//! Limits of the remembered history: one number below it a reader starts over, at the limit it misses nothing.

use super::*;

const FEW: Limits = Limits {
    bytes_min: HISTORY_BYTES_MIN,
    times: None,
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

/// A deletion that the source did not send has no RV: it belongs to the change that created the object again.
#[test]
fn unwatched_deletion_leaves_the_log_with_the_change_that_follows_it() {
    for bytes_min in (600..2_600).step_by(10) {
        let limits = Limits {
            bytes_min,
            ..Limits::default()
        };
        let mut held = Collection::with_limits(false, limits);
        held.restart(0, vec![service("a", 1, 5), service("b", 2, 6)], rv(10));
        held.apply(EventType::Added, service("a", 3, 15));
        for at in 21..30 {
            let mut reader = held.open(rv(10)).expect("within history").for_client();
            let told = held.read(&mut reader, usize::MAX).expect("within history");
            let is_gone = |delivery: &Delivery| match delivery {
                Delivery::Gone(object) => object.uid() == "u1",
                Delivery::Exact(change) => change.kind == ChangeKind::Deleted && change.object.uid() == "u1",
                _ => false,
            };
            assert!(
                told.iter().any(is_gone),
                "{bytes_min} bytes, C = {}: {told:?}",
                held.position()
            );
            let objects = held.snapshot_at(rv(10), &KeyRange::all(), "").map(Iterator::count);
            assert!(matches!(objects, Err(_) | Ok(2)), "{bytes_min} bytes: {objects:?}");
            held.apply(EventType::Modified, service("b", 2, at));
        }
    }
}

/// The position of a reader that fell behind by one change more than the log of a selection has, and the last one
/// within it.
#[test]
fn log_of_a_selection_is_a_multiple_of_its_objects() {
    let mut held = Collection::with_limits(false, Limits::of_a_selection());
    let others = (0..20).map(|n| service(&format!("s{n}"), 1, 5));
    held.restart(0, others.chain([service("a", 1, 5)]).collect(), rv(10));
    // The number of digits of an RV changes the size of an object.
    let budget = |held: &Collection| SELECTION_HISTORY_TIMES * (held.object_bytes() + 8) + SELECTION_LOG_MIN;
    for at in 11..200 {
        held.apply(EventType::Modified, service("a", 1, at));
        assert!(held.log_bytes <= budget(&held), "{} bytes at {at}", held.log_bytes);
    }
    assert!(held.log_bytes > budget(&held) * 3 / 4, "{} bytes", held.log_bytes);
    let told = |position: u64| {
        let mut reader = held.open(rv(position)).expect("within history");
        held.read(&mut reader, usize::MAX).expect("within history")
    };
    let within = told(held.log_from.0);
    assert!(
        within.iter().all(|delivery| matches!(delivery, Delivery::Exact(_))),
        "{within:?}"
    );
    assert_eq!(within.len() as u64, 199 - held.log_from.0, "every change");
    let behind = told(held.log_from.0 - 1);
    let [_, Delivery::Current { object, .. }, Delivery::DiffEnd { .. }] = &behind[..] else {
        panic!("more than the last state: {behind:?}");
    };
    assert_eq!((object.name(), object.resource_version()), ("a", rv(199)));
}

#[test]
fn selection_remembers_a_hundred_deletions_of_few_objects() {
    let mut held = Collection::with_limits(false, Limits::of_a_selection());
    held.restart(0, vec![service("a", 1, 5)], rv(10));
    for at in (11..8_000).step_by(2) {
        held.apply(EventType::Deleted, service("a", at, at));
        held.apply(EventType::Added, service("a", at + 1, at + 1));
    }
    let size = service("a", 1, 5_000).size();
    assert!(
        held.tombstone_bytes < SELECTION_TOMBSTONES_MIN + 5 * size,
        "{}",
        held.tombstone_bytes
    );
    let last = held.position().0;
    let again = restarted(&held, Limits::of_a_selection());
    assert_eq!(gone(&again, last - 2), names(&["a"]));
    // As many as happen while a link is cut.
    let deleted = gone(&again, last - 2 * 100).expect("it lists again for 100 deletions");
    assert_eq!(deleted.len(), 100);
}

/// Of all objects at once, before a reader has received the first deletion, or after a restart.
#[test]
fn deletion_of_a_whole_selection_expires_no_reader() {
    let mut held = Collection::with_limits(false, Limits::of_a_selection());
    let all: Vec<String> = (0..2_000).map(|n| format!("s{n:04}")).collect();
    let list = all.iter().map(|name| service(name, 1, 5)).collect();
    held.restart(0, list, rv(10));
    assert!(
        held.object_bytes > 4 * SELECTION_TOMBSTONES_MIN,
        "{}",
        held.object_bytes
    );
    for (at, name) in (11..).zip(&all) {
        held.apply(EventType::Deleted, service(name, 1, at));
    }
    let all = Some(all);
    assert_eq!(gone(&held, 10), all);
    assert_eq!(gone(&restarted(&held, Limits::default()), 10), all);
    // Later ones count as those of a selection with few objects.
    for at in (10_000..40_000).step_by(2) {
        held.apply(EventType::Added, service("a", at, at));
        held.apply(EventType::Deleted, service("a", at, at + 1));
    }
    assert!(
        held.tombstone_bytes < SELECTION_TOMBSTONES_MIN + SELECTION_LOG_MIN,
        "{}",
        held.tombstone_bytes
    );
    assert!(held.log_bytes < 2 * SELECTION_LOG_MIN, "{}", held.log_bytes);
}

/// A client has received the first part of a list's difference when the log forgets the rest of it.
#[test]
fn reader_within_a_difference_that_leaves_the_log_receives_the_rest() {
    let limits = Limits {
        bytes_min: 6_000,
        ..Limits::default()
    };
    let mut held = Collection::with_limits(false, limits);
    let names = ["a", "b", "c", "d"];
    held.restart(0, names.map(|name| service(name, 1, 5)).to_vec(), rv(10));
    let mut reader = held.follow().for_client();
    let mut later: Vec<_> = (12..).zip(names).map(|(at, name)| service(name, 1, at)).collect();
    later.insert(0, service("new", 1, 11));
    held.replace(later, rv(20)).expect("a later list");
    let first = held.read(&mut reader, 3).expect("the log has it");
    assert!(
        first.iter().any(|delivery| matches!(delivery, Delivery::Exact(_))),
        "{first:?}"
    );
    assert_eq!(reader.position(), rv(12), "new and a were delivered: {first:?}");
    held.apply(EventType::Deleted, service("new", 1, 21));
    for at in 22..60 {
        held.apply(EventType::Modified, service("b", 1, at));
    }
    assert!(held.log_from > rv(20), "the difference has left the log");
    let mut rest = Vec::new();
    while reader.position() < held.position() {
        let next = held.read(&mut reader, 1);
        rest.extend(next.expect("the client was at 10 before the difference"));
    }
    let told: Vec<_> = rest
        .iter()
        .filter_map(|delivery| match delivery {
            Delivery::Gone(object) => Some(format!("-{}", object.name())),
            Delivery::Current { object, .. } => Some(object.name().to_owned()),
            _ => None,
        })
        .collect();
    assert_eq!(told, ["c", "d", "-new", "b"]);
    assert!(
        matches!(rest.last(), Some(Delivery::DiffEnd { jumped: true, .. })),
        "{rest:?}"
    );
    assert!(held.read(&mut reader, 10).expect("up to date").is_empty());
}

#[test]
fn log_of_own_objects_has_a_minimum_however_few_they_are() {
    let mut held = Collection::new(false);
    held.restart(0, vec![service("a", 1, 5)], rv(10));
    for at in 11..200 {
        held.apply(EventType::Modified, service("a", 1, at));
    }
    assert_eq!(held.log_from, rv(10), "nothing is forgotten");
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

/// A collection whose objects were all replaced, each by another of its name: as many ranges as objects.
fn replaced(count: u64) -> Collection {
    let mut collection = Collection::new(false);
    let list = (0..count).map(|n| service(&format!("s{n}"), n, 1)).collect();
    collection.restart(0, list, rv(10));
    for n in 0..count {
        collection.apply(EventType::Added, service(&format!("s{n}"), n + count, 11 + n));
    }
    collection
}

#[test]
fn catch_up_looks_at_each_unwatched_deletion_once() {
    for count in [100, 400] {
        let collection = replaced(count);
        let mut reader = collection.open(rv(10)).expect("it is not old").without_tail();
        let mut looks = 0;
        let ranges = collection.ranges.iter().inspect(|_| looks += 1);
        let deliveries = collection.catch_up_by(&mut reader, usize::MAX, &KeyRange::all(), ranges);
        let gone = deliveries.iter().filter(|one| matches!(one, Delivery::Gone(_)));
        assert_eq!((gone.count() as u64, looks), (count, count));
    }
}

/// A leader or a file may give them in any order.
#[test]
fn unwatched_deletions_are_held_in_the_order_of_their_begins() {
    let range = |after: u64| RangeTombstone {
        after: rv(after),
        to: rv(after + 1),
        object: service(&format!("s{after}"), after, after),
    };
    let ranges: Vec<_> = [4, 2, 3, 1].map(range).into();
    let mut recovered = Collection::new(false);
    recovered.recover(Recovered {
        ranges: ranges.clone(),
        position: rv(10),
        complete: true,
        ..Recovered::default()
    });
    let mut copy = Collection::new(false);
    copy.restart(0, Vec::new(), rv(10));
    copy.remember(History {
        ranges,
        ..History::default()
    });
    for collection in [recovered, copy] {
        let begins: Vec<_> = collection.ranges.iter().map(|range| range.after.0).collect();
        assert_eq!(begins, [1, 2, 3, 4]);
    }
}
