//! The source came back with another history: rules for clients that cannot name their generation.

use super::*;

fn names(objects: &[Object]) -> Vec<(&str, &str)> {
    objects.iter().map(|object| (object.name(), object.uid())).collect()
}

/// At 100, with the complete state that a client may know; then the source is back at 70.
fn rolled_back() -> Collection {
    let mut collection = Collection::new(true);
    collection.restart(
        0,
        vec![service("a", 1, 50), service("b", 2, 60), service("d", 4, 61)],
        rv(90),
    );
    collection.apply(EventType::Deleted, service("c", 3, 95));
    collection.advance(rv(100));
    collection.restart(1, vec![service("a", 1, 40), service("d", 5, 65)], rv(70));
    collection
}

/// Conformance: 7.55
#[test]
fn until_the_old_numbers_are_passed_nobody_is_resumed_by_one() {
    let collection = rolled_back();
    assert_eq!(collection.high(), rv(100));
    assert_eq!(names(collection.previous()), [("b", "u2"), ("c", "u3"), ("d", "u4")]);
    assert_eq!(collection.resumption(rv(70)), Ok(Resumption::Everything));
    for elsewhere in [69, 71, 100, 101] {
        assert!(collection.resumption(rv(elsewhere)).is_err(), "{elsewhere}");
    }
    // A copy knows its generation.
    assert!(collection.open(rv(70)).is_ok());
}

/// Holds also once `C` has passed these: the client may be of either generation.
#[test]
fn clients_at_old_numbers_are_told_everything_for_good() {
    let mut collection = rolled_back();
    collection.apply(EventType::Deleted, service("d", 5, 80));
    collection.apply(EventType::Added, service("e", 6, 99));
    collection.apply(EventType::Modified, service("a", 1, 101));
    assert_eq!(
        collection.resumption(rv(69)).map_err(|expired| expired.floor),
        Err(rv(70))
    );
    assert_eq!(collection.resumption(rv(100)), Ok(Resumption::Everything));
    assert_eq!(collection.resumption(rv(101)), Ok(Resumption::ByNumber));
    assert_eq!(collection.resumption(rv(102)), Ok(Resumption::ByNumber), "held");
    let (mut reader, gone) = collection
        .correction(ResourceVersion::ZERO)
        .expect("everything is remembered");
    assert_eq!(reader.position(), rv(100));
    assert_eq!(names(&gone), [("d", "u5"), ("b", "u2"), ("c", "u3"), ("d", "u4")]);
    let rest = collection.read(&mut reader, 10).expect("from there");
    assert!(
        matches!(&rest[..], [Delivery::Exact(change)] if change.resource_version() == rv(101)),
        "{rest:?}"
    );
}

/// The reader begins before the list, so the client never receives the list's RV before all other objects.
#[test]
fn client_receives_everything_if_a_later_list_jumped_over_the_highest_old_number() {
    let mut collection = rolled_back();
    collection.apply(EventType::Deleted, service("d", 5, 80));
    let list = vec![service("a", 1, 150), service("e", 6, 130)];
    collection.replace(list, rv(150)).expect("a later list");
    // A copy that took over another one's history has gaps that overlap.
    collection.add_gap(Gap {
        from: rv(72),
        to: rv(90),
    });
    assert_eq!(collection.resumption(rv(72)), Ok(Resumption::Everything));
    let (mut reader, gone) = collection.correction(rv(72)).expect("everything is remembered");
    assert_eq!(reader.position(), rv(72));
    assert_eq!(names(&gone), [("b", "u2"), ("c", "u3"), ("d", "u4")]);
    let mut versions = Vec::new();
    while reader.position() < collection.position() {
        let rest = collection.read(&mut reader, 1).expect("from there");
        let changes = rest.iter().filter(|delivery| matches!(delivery, Delivery::Exact(_)));
        versions.extend(changes.map(|_| reader.position().0));
    }
    assert_eq!(versions, [80, 130, 150]);
}

#[test]
fn old_numbers_outlive_a_restart() {
    let collection = rolled_back();
    let mut recovered = Collection::new(true);
    recovered.recover(collection.to_recovered());
    assert_eq!((recovered.high(), recovered.previous().len()), (rv(100), 3));
    assert_eq!(recovered.resumption(rv(70)), Ok(Resumption::Everything));
    // The same number again, after a list for another reason.
    recovered.distrust();
    recovered.replace(vec![], rv(80)).expect("taken as it is");
    assert_eq!((recovered.generation(), recovered.high()), (1, rv(100)));
}

/// A copy does not know the changes served after its commit.
#[test]
fn copy_from_a_commit_does_not_know_the_highest_number_it_served() {
    let mut committed = Collection::new(true);
    committed.restart(0, vec![service("a", 1, 50)], rv(100));
    let mut recovered = Collection::new(true);
    recovered.recover(committed.to_recovered());
    recovered.restart(1, vec![], rv(70));
    assert_eq!(recovered.high(), ahead_of(rv(100)));
    recovered.advance(rv(105));
    assert_eq!(
        recovered.resumption(rv(102)),
        Ok(Resumption::Everything),
        "it may have been served before"
    );
}

#[test]
fn first_list_takes_its_generation_from_elsewhere() {
    let mut fresh = Collection::new(true);
    fresh.restart(0, vec![service("a", 1, 50)], rv(70));
    fresh.adopt(0);
    assert_eq!(fresh.generation(), 0);
    fresh.adopt(2);
    assert_eq!((fresh.generation(), fresh.position(), fresh.len()), (2, rv(70), 1));
    fresh.advance(rv(71));
    assert_eq!(fresh.resumption(rv(71)), Ok(Resumption::ByNumber));
}

/// The client may be of the new generation, and hold the object: it must not receive its deletion.
#[test]
fn name_that_is_in_use_again_is_not_told_as_gone() {
    let mut collection = rolled_back();
    collection.apply(EventType::Added, service("b", 6, 99));
    collection.apply(EventType::Added, service("c", 7, 101));
    let (reader, gone) = collection
        .correction(ResourceVersion::ZERO)
        .expect("everything is remembered");
    assert_eq!(reader.position(), rv(100));
    assert_eq!(names(&gone), [("c", "u3")], "c follows the reader's first deliveries");
}

#[test]
fn what_cannot_follow_from_what_is_held_contradicts_it() {
    let mut collection = Collection::new(true);
    collection.restart(0, vec![service("a", 1, 50)], rv(90));
    let check = |event, object: Object| collection.check_follows(event, &object);
    assert_eq!(check(EventType::Modified, service("a", 1, 91)), Ok(()));
    assert_eq!(check(EventType::Deleted, service("a", 1, 91)), Ok(()));
    assert_eq!(check(EventType::Added, service("b", 2, 91)), Ok(()));
    assert_eq!(check(EventType::Modified, service("a", 2, 90)), Ok(()), "C covers it");
    for event in [EventType::Added, EventType::Modified, EventType::Deleted] {
        assert!(matches!(
            check(event, service("a", 2, 91)),
            Err(Contradiction::Replaced { .. })
        ));
    }
    let without_uid = r#"{"metadata":{"namespace":"shop","name":"a","resourceVersion":"91"}}"#;
    let without_uid = Object::parse(Bytes::from(without_uid), find_kind("", "services").unwrap()).unwrap();
    assert_eq!(check(EventType::Modified, without_uid), Ok(()), "who knows");
    for event in [EventType::Modified, EventType::Deleted] {
        assert!(matches!(
            check(event, service("b", 2, 91)),
            Err(Contradiction::NeverCame { .. })
        ));
    }
}

/// A hostile leader may feed one generation after the other, each with other objects.
#[test]
fn what_is_kept_of_older_generations_is_bounded_and_their_clients_start_over() {
    let mut collection = Collection::new(true);
    for generation in 0..40 {
        let list = (0..8).map(|n| {
            let metadata =
                format!(r#"{{"namespace":"shop","name":"s-{generation}-{n}","uid":"u","resourceVersion":"50"}}"#);
            let text = format!(r#"{{"metadata":{metadata},"data":"{}"}}"#, "x".repeat(64 << 10));
            Object::parse(Bytes::from(text), find_kind("", "services").unwrap()).unwrap()
        });
        collection.restart(generation, list.collect(), rv(100));
    }
    let kept = |collection: &Collection| collection.previous().iter().map(Object::size).sum::<usize>();
    assert!(
        kept(&collection) <= PREVIOUS_BYTES_MAX + (128 << 10),
        "{}",
        kept(&collection)
    );
    collection.advance(rv(120));
    assert_eq!(collection.high(), rv(100));
    let mut recovered = Collection::new(true);
    recovered.recover(collection.to_recovered());
    for collection in [&mut collection, &mut recovered] {
        assert!(collection.resumption(rv(100)).is_err(), "its deletions are forgotten");
        assert_eq!(collection.resumption(rv(101)), Ok(Resumption::ByNumber));
        assert!(collection.open(rv(100)).is_ok(), "a copy knows its generation");
    }
    collection.restart(40, Vec::new(), rv(90));
    assert_eq!(
        collection.resumption(rv(90)),
        Ok(Resumption::Everything),
        "no client loops"
    );
    collection.advance(rv(91));
    assert!(collection.resumption(rv(90)).is_err());
    assert!(kept(&collection) <= PREVIOUS_BYTES_MAX + (128 << 10));
}

/// A leader fed a position that no cloud reaches. Then the source is back at 10.
fn far_below_the_old_numbers() -> Collection {
    let mut collection = Collection::new(true);
    collection.restart(0, vec![service("a", 1, 5), service("b", 2, 6)], rv(10));
    collection.advance(rv(1 << 40));
    collection.restart(1, vec![service("a", 1, 5)], rv(10));
    collection
}

/// The last RV after the begin of [`far_below_the_old_numbers`] that counts as an old one, and the first one before H.
const NEAR: u64 = 10 + (1 << 26);
const FAR: u64 = (1 << 40) - (1 << 28) + 1;

#[test]
fn numbers_far_from_the_begin_and_from_the_old_ones_are_of_the_present_generation() {
    let mut collection = far_below_the_old_numbers();
    let everything = Ok(Resumption::Everything);
    assert_eq!(collection.resumption(rv(10)), everything);
    let old = [rv(11), rv(NEAR), rv(FAR), rv(1 << 40)];
    assert!(
        old.iter().all(|old| collection.resumption(*old).is_err()),
        "they are ahead"
    );
    collection.advance(rv(NEAR + 5));
    for _ in 0..2 {
        assert_eq!(collection.resumption(rv(NEAR)), everything);
        for settled in [NEAR + 1, NEAR + 5, NEAR + 5 + (1 << 20)] {
            assert_eq!(
                collection.resumption(rv(settled)),
                Ok(Resumption::ByNumber),
                "{settled}"
            );
        }
        for ahead in [NEAR + 6 + (1 << 20), FAR, 1 << 40, (1 << 40) + 1] {
            assert!(collection.resumption(rv(ahead)).is_err(), "{ahead}");
        }
        let recovered = collection.to_recovered();
        collection.recover(recovered);
    }
    collection.advance(rv((1 << 40) + 1));
    for (at, resumption) in [
        (NEAR, Resumption::Everything),
        (NEAR + 1, Resumption::ByNumber),
        (FAR - 1, Resumption::ByNumber),
        (FAR, Resumption::Everything),
        (1 << 40, Resumption::Everything),
        ((1 << 40) + 1, Resumption::ByNumber),
    ] {
        assert_eq!(collection.resumption(rv(at)), Ok(resumption), "{at}");
    }
}

#[test]
fn history_from_where_the_numbers_are_sure_is_given_to_a_copy() {
    let mut collection = far_below_the_old_numbers();
    collection.apply(EventType::Deleted, service("a", 1, NEAR));
    assert_eq!(collection.history(usize::MAX).floor, rv(NEAR), "it ends at C");
    collection.apply(EventType::Deleted, service("c", 3, NEAR + 5));
    let history = collection.history(usize::MAX);
    assert_eq!(history.floor, rv(NEAR + 1));
    assert_eq!(names(&history.tombstones), [("c", "u3")]);
}

#[test]
fn forgotten_deletions_of_older_generations_expire_no_client_at_a_sure_number() {
    let mut collection = Collection::new(true);
    let text = format!(
        r#"{{"metadata":{{"namespace":"shop","name":"s","uid":"u","resourceVersion":"5"}},"data":"{}"}}"#,
        "x".repeat(PREVIOUS_BYTES_MAX)
    );
    let large = Object::parse(Bytes::from(text), find_kind("", "services").unwrap()).unwrap();
    collection.restart(0, vec![large], rv(10));
    collection.advance(rv(1 << 40));
    collection.restart(1, Vec::new(), rv(10));
    collection.advance(rv(NEAR + 5));
    assert!(collection.resumption(rv(NEAR)).is_err());
    assert_eq!(collection.resumption(rv(NEAR + 1)), Ok(Resumption::ByNumber));
}

#[test]
fn view_resumes_by_sure_numbers_as_its_source_does() {
    let mut source = far_below_the_old_numbers();
    source.advance(rv(NEAR + 5));
    let mut view = Collection::derived(source.to_recovered(), source.shown_to(), Vec::new());
    view.advance(rv(NEAR + 9));
    assert_eq!(view.resumption(rv(NEAR)), Ok(Resumption::Everything));
    assert_eq!(
        view.resumption(rv(NEAR + 5)),
        Ok(Resumption::Everything),
        "another view may have shown it"
    );
    assert_eq!(view.resumption(rv(NEAR + 6)), Ok(Resumption::ByNumber));
    assert_eq!(view.resumption(rv(NEAR + 10)), Ok(Resumption::Later));
}
