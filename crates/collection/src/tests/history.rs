//! An empty copy takes over the history that another one remembers.

use super::*;

/// A leader's copy: listed at 10, then a was changed, b deleted, c came and went, d was found missing by a list at 40.
fn leader() -> Collection {
    let mut held = Collection::new(false);
    let list = [("a", 1), ("b", 2), ("d", 4)].map(|(name, uid)| service(name, uid, uid));
    held.restart(0, list.into(), rv(10));
    held.apply(EventType::Modified, service("a", 1, 12));
    held.apply(EventType::Deleted, service("b", 2, 14));
    held.apply(EventType::Added, service("c", 3, 16));
    held.apply(EventType::Deleted, service("c", 3, 18));
    held.advance(rv(20));
    held.replace(vec![service("a", 1, 12)], rv(40)).expect("a later list");
    held.apply(EventType::Modified, service("a", 1, 44));
    held.advance(rv(50));
    held
}

/// A copy made as the coordinator applies a snapshot.
fn taken(from: &Collection, history: Option<History>) -> Collection {
    let mut held = Collection::new(true);
    held.replace(from.objects().cloned().collect(), from.position())
        .expect("a first list");
    if let Some(history) = history {
        held.remember(history);
    }
    held
}

/// Deliveries to a reader at `position`, and whether they cross a list.
fn told(held: &Collection, position: u64) -> Option<(Vec<String>, bool)> {
    let mut reader = held.open(rv(position)).ok()?;
    let deliveries = held.read(&mut reader, 100).ok()?;
    let jumped = |delivery: &Delivery| matches!(delivery, Delivery::DiffEnd { jumped: true, .. });
    let text = |delivery: &Delivery| match delivery {
        Delivery::Current { object, .. } => Some(format!("{} at {}", object.key().name(), object.resource_version())),
        Delivery::Gone(object) => Some(format!("no {} at {}", object.key().name(), object.resource_version())),
        Delivery::Exact(change) => panic!("no exact history is handed over: {change:?}"),
        Delivery::DiffBegin(_) | Delivery::DiffEnd { .. } => None,
    };
    let told = deliveries.iter().filter_map(text).collect();
    Some((told, deliveries.iter().any(jumped)))
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn readers_go_on_at_a_copy_that_took_over_what_another_remembers() {
    let leader = leader();
    let without = taken(&leader, None);
    assert_eq!(told(&without, 44), None, "it knows nothing of the time before its list");

    let held = taken(&leader, Some(leader.history(usize::MAX)));
    assert_eq!(
        told(&held, 9),
        None,
        "nor does any reader of the time before the first list"
    );
    let all = ["no b at 14", "no c at 18", "no d at 20", "a at 44"];
    assert_eq!(told(&held, 10), Some((texts(&all), true)));
    assert_eq!(told(&held, 14), Some((texts(&all[1..]), true)));
    assert_eq!(told(&held, 20), Some((texts(&all[2..]), true)));
    assert_eq!(told(&held, 30), None, "inside a list's jump");
    assert_eq!(
        told(&held, 40),
        Some((texts(&all[3..]), false)),
        "no reader missed anything"
    );
    assert_eq!(told(&held, 44), Some((vec![], false)));
    assert!(held.open(rv(60)).is_ok(), "a reader ahead waits");
}

#[test]
fn what_was_taken_over_is_stored_with_the_list() {
    let leader = leader();
    let mut held = taken(&leader, Some(leader.history(usize::MAX)));
    let dirty = held.take_dirty().expect("a first list");
    let exact: Vec<_> = dirty.tombstones.iter().map(|o| o.resource_version().0).collect();
    let ranges: Vec<_> = dirty.ranges.iter().map(|range| (range.after.0, range.to.0)).collect();
    assert_eq!((dirty.wiped, exact, ranges), (true, vec![14, 18], vec![(20, 40)]));
    assert_eq!((held.floor(), held.gaps()), (rv(10), leader.gaps()));

    let mut again = Collection::new(true);
    again.recover(held.to_recovered());
    assert_eq!(told(&again, 14), told(&held, 14));
}

#[test]
fn history_is_bounded_by_bytes_and_says_where_it_begins() {
    let leader = leader();
    let one = service("c", 3, 18).size();
    let history = leader.history(2 * one + one / 2);
    let exact: Vec<_> = history.tombstones.iter().map(|o| o.resource_version().0).collect();
    assert_eq!((history.floor, exact, history.ranges.len()), (rv(14), vec![18], 1));
    let held = taken(&leader, Some(history));
    assert_eq!(told(&held, 13), None);
    assert!(told(&held, 14).is_some());

    let none = leader.history(0);
    assert_eq!((none.floor, none.gaps, none.tombstones.len()), (rv(40), vec![], 0));
}

#[test]
fn history_does_not_reach_back_into_an_older_generation() {
    let mut leader = leader();
    // The cloud came back from a backup and has not yet passed the RVs served before.
    leader.restart(1, vec![service("a", 1, 12)], rv(30));
    leader.apply(EventType::Deleted, service("a", 1, 32));
    let history = leader.history(usize::MAX);
    assert_eq!((history.floor, history.tombstones.len()), (rv(32), 0));
    // Now it has: RVs above cannot be of the past.
    leader.apply(EventType::Added, service("b", 5, 60));
    leader.apply(EventType::Deleted, service("b", 5, 62));
    leader.advance(rv(70));
    let history = leader.history(usize::MAX);
    assert_eq!((history.floor, history.tombstones.len()), (rv(51), 1));
}
