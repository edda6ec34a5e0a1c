//! A client receives no deletion of an object it cannot know; a copy receives all deletions.

use super::*;

/// Deliveries to a reader: `name@rv`, with `new` before unknown objects, and `no` before deleted ones.
fn told(held: &Collection, reader: &mut Reader, max: usize) -> Vec<String> {
    let deliveries = held.read(reader, max).expect("within history");
    let text = |delivery: &Delivery| {
        let (what, object) = match delivery {
            Delivery::Exact(change) => match change.kind {
                ChangeKind::Created => ("new ", &change.object),
                ChangeKind::Updated => ("", &change.object),
                ChangeKind::Deleted => ("no ", &change.object),
            },
            Delivery::Current {
                object, created: true, ..
            } => ("new ", object),
            Delivery::Current { object, .. } => ("", object),
            Delivery::Gone(object) => ("no ", object),
            Delivery::DiffBegin(_) | Delivery::DiffEnd { .. } => return None,
        };
        Some(format!("{what}{}@{}", object.name(), object.resource_version()))
    };
    deliveries.iter().filter_map(text).collect()
}

fn at(held: &Collection, position: u64) -> Reader {
    held.open(rv(position)).expect("within history")
}

/// At 20: `a` was changed, `n` came at 12 and went at 16.
fn watched() -> Collection {
    let mut held = Collection::new(false);
    held.restart(0, vec![service("a", 1, 5)], rv(10));
    held.apply(EventType::Added, service("n", 2, 12));
    held.apply(EventType::Modified, service("a", 1, 14));
    held.apply(EventType::Deleted, service("n", 2, 16));
    held.advance(rv(20));
    held
}

#[test]
fn client_is_told_of_no_deletion_of_what_came_and_went_behind_its_back() {
    let held = watched();
    for (position, to_client) in [
        (10, &["a@14"][..]),
        (11, &["a@14"]),
        (12, &["a@14", "no n@16"]),
        (14, &["no n@16"]),
        (16, &[]),
    ] {
        let mut client = at(&held, position).without_tail().for_client();
        assert_eq!(told(&held, &mut client, 9), to_client, "at {position}");
    }
    let mut copy = at(&held, 10).without_tail();
    assert_eq!(
        told(&held, &mut copy, 9),
        ["a@14", "no n@16"],
        "it has readers of its own"
    );
    let mut exact = at(&held, 10).for_client();
    assert_eq!(
        told(&held, &mut exact, 9),
        ["new n@12", "a@14", "no n@16"],
        "it receives both"
    );
}

#[test]
fn what_a_client_was_told_while_it_caught_up_is_deleted_for_it_when_it_goes() {
    let mut held = Collection::new(false);
    held.restart(0, vec![service("a", 1, 5)], rv(10));
    held.apply(EventType::Added, service("gone", 2, 11));
    held.apply(EventType::Added, service("told", 3, 12));
    held.apply(EventType::Added, service("not-yet", 4, 13));
    held.apply(EventType::Modified, service("not-yet", 4, 15));
    held.apply(EventType::Deleted, service("gone", 2, 16));
    let mut client = at(&held, 10).without_tail().for_client();
    assert_eq!(
        told(&held, &mut client, 2),
        ["new told@12"],
        "one delivery is the begin of the step"
    );
    held.apply(EventType::Deleted, service("told", 3, 17));
    held.apply(EventType::Deleted, service("not-yet", 4, 18));
    assert_eq!(told(&held, &mut client, 9), ["no told@17"]);
}

#[test]
fn deletion_that_nobody_watched_is_told_to_who_may_know_the_object() {
    let mut held = Collection::new(false);
    held.restart(0, vec![service("a", 1, 5)], rv(10));
    held.apply(EventType::Added, service("n", 2, 12));
    held.advance(rv(20));
    held.replace(vec![service("a", 1, 5)], rv(40)).expect("a later list");
    for (position, gone) in [(10, &[][..]), (12, &["no n@20"]), (20, &["no n@20"]), (40, &[])] {
        let mut client = at(&held, position).without_tail().for_client();
        assert_eq!(told(&held, &mut client, 9), gone, "at {position}");
    }
}

/// The copy received (10, 20] as one step, from a source that remembers more than it holds.
#[test]
fn what_came_and_went_inside_a_step_is_deleted_for_readers_ahead_alone() {
    let mut held = Collection::new(false);
    held.restart(0, vec![service("a", 1, 5)], rv(10));
    let mut live = held.follow().for_client();
    let mut ahead = at(&held, 13).for_client();
    let step = vec![
        (EventType::Deleted, service("n", 2, 16)),
        (EventType::Modified, service("a", 1, 14)),
        (EventType::Modified, service("b", 3, 18)),
    ];
    held.catch_up_to(rv(20), step);
    assert_eq!(told(&held, &mut live, 9), ["a@14", "new b@18"]);
    let mut behind = at(&held, 10).without_tail().for_client();
    assert_eq!(told(&held, &mut behind, 9), ["a@14", "new b@18"]);
    // Another source sent it everything up to 13: perhaps n and an earlier state of b.
    assert_eq!(told(&held, &mut ahead, 9), ["a@14", "no n@16", "b@18"]);
    let state = pages(&held, 20, &KeyRange::all(), 9).expect("the present state");
    assert_eq!(state.len(), 2);
}

#[test]
fn object_that_was_not_held_is_not_in_the_state_before_its_deletion() {
    let mut held = Collection::new(false);
    held.restart(0, vec![service("a", 1, 5)], rv(10));
    held.apply(EventType::Deleted, service("n", 2, 12));
    let state = pages(&held, 10, &KeyRange::all(), 9).expect("within the log");
    assert_eq!(state.into_keys().collect::<Vec<_>>(), ["shop/a"]);
}

/// Names of the objects in a catch-up of which the client may hold a state.
fn known(deliveries: &[Delivery]) -> Vec<&str> {
    let name = |delivery| match delivery {
        &Delivery::Current { ref object, known, .. } => known.then(|| object.name()),
        _ => None,
    };
    deliveries.iter().filter_map(name).collect()
}

#[test]
fn object_that_an_earlier_batch_of_a_catch_up_sent_is_known() {
    let mut held = Collection::new(false);
    held.restart(0, vec![service("old", 1, 5)], rv(10));
    held.apply(EventType::Added, service("sent", 2, 11));
    held.apply(EventType::Added, service("later", 3, 12));
    held.apply(EventType::Modified, service("old", 1, 14));
    let mut client = at(&held, 10).without_tail().for_client();
    let first = held.read(&mut client, 2).expect("within history");
    assert_eq!(known(&first), [""; 0], "sent was created after 10");
    held.apply(EventType::Modified, service("sent", 2, 15));
    held.apply(EventType::Added, service("new", 4, 16));
    let rest = held.read(&mut client, 9).expect("within history");
    assert_eq!(known(&rest), ["old", "sent"]);
}

#[test]
fn object_of_a_step_that_left_the_log_half_sent_is_known() {
    let limits = Limits {
        bytes_min: 6_000,
        ..Limits::default()
    };
    let mut held = Collection::with_limits(false, limits);
    held.restart(0, vec![service("busy", 1, 5)], rv(10));
    let mut client = held.follow().for_client();
    let list = vec![service("busy", 1, 5), service("sent", 2, 11), service("later", 3, 13)];
    held.replace(list, rv(20)).expect("a later list");
    assert_eq!(told(&held, &mut client, 2), ["new sent@11"]);
    held.apply(EventType::Modified, service("sent", 2, 21));
    for at in 22..60 {
        held.apply(EventType::Modified, service("busy", 1, at));
    }
    assert!(held.log_from > rv(20), "the step has left the log");
    let rest = held.read(&mut client, 9).expect("the client was at 10 before the step");
    assert!(known(&rest).contains(&"sent"), "{rest:?}");
}

/// It may have received later states elsewhere, or an initial state that is newer than its position.
#[test]
fn reader_that_is_no_settled_client_may_hold_every_object() {
    let mut held = watched();
    held.apply(EventType::Added, service("new", 3, 21));
    let mut copy = at(&held, 10).without_tail();
    let told = held.read(&mut copy, 9).expect("within history");
    assert_eq!(known(&told), ["a", "new"]);
}
