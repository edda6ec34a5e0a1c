//! Revisions of a derived collection, which have no RV of their own.

use yurt_apimachinery::ObjectKey;

use super::*;

/// A view at C = 10 of a (5) and b (6).
fn view() -> Collection {
    view_after(0)
}

/// As [`view`], while readers up to `shown_to` may hold another one.
fn view_after(shown_to: u64) -> Collection {
    let recovered = Recovered {
        objects: vec![service("a", 1, 5), service("b", 2, 6)],
        position: rv(10),
        complete: true,
        ..Recovered::default()
    };
    Collection::derived(recovered, rv(shown_to), Vec::new())
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(Some("shop"), name)
}

fn changed(name: &str, uid: u64) -> (ObjectKey, Option<Object>) {
    (key(name), Some(service(name, uid, 1)))
}

fn told(deliveries: &[Delivery]) -> Vec<String> {
    let one = |delivery: &Delivery| match delivery {
        Delivery::Exact(change) => Some(format!("{:?} {:?}", change.kind, change.object)),
        Delivery::Current { object, .. } => Some(format!("Current {object:?}")),
        Delivery::Gone(object) => Some(format!("Gone {object:?}")),
        Delivery::DiffBegin(_) | Delivery::DiffEnd { .. } => None,
    };
    deliveries.iter().filter_map(one).collect()
}

#[test]
fn revision_is_a_change_at_the_present_position() {
    let mut view = view();
    let mut reader = view.follow().for_client();
    view.revise(vec![changed("a", 1), (key("b"), None), changed("c", 3)]);
    assert_eq!(view.position(), rv(10));
    let deliveries = view.read(&mut reader, 10).expect("it keeps up");
    assert_eq!(
        told(&deliveries),
        [
            "Updated Object(shop/a @10)",
            "Deleted Object(shop/b @10)",
            "Created Object(shop/c @10)"
        ]
    );
    assert_eq!(reader.position(), rv(10));
}

/// The reader was at `C` when the revision came, and then the tail was dropped.
#[test]
fn reader_that_fell_behind_at_the_position_of_a_revision_receives_it() {
    let mut view = view();
    let mut reader = view.follow().for_client();
    view.revise(vec![changed("a", 1), (key("b"), None)]);
    reader = reader.without_tail();
    let deliveries = view.read(&mut reader, 1).expect("nothing is forgotten");
    let mut all = told(&deliveries);
    all.extend(told(&view.read(&mut reader, 10).expect("nothing is forgotten")));
    assert_eq!(all, ["Gone Object(shop/b @10)", "Current Object(shop/a @10)"]);
    assert!(view.read(&mut reader, 10).expect("up to date").is_empty());
}

#[test]
fn hidden_objects_outlive_the_limits_of_tombstones() {
    let limits = Limits {
        bytes_min: 1,
        times: None,
        tombstones: 0,
        gaps: 1,
    };
    let mut view = view();
    view.set_limits(limits);
    view.revise(vec![(key("a"), None), (key("b"), None)]);
    assert_eq!(view.resumption(rv(9)), Ok(Resumption::Everything));
    let (_, gone) = view.correction(rv(9)).expect("nothing is forgotten");
    assert_eq!(gone.len(), 2);
}

#[test]
fn number_that_was_used_is_left_for_the_next_one() {
    let mut view = view();
    view.apply(EventType::Modified, service("a", 1, 11));
    view.revise(vec![changed("a", 1), changed("b", 2)]);
    let mut reader = view.follow();
    view.apply(EventType::Added, service("c", 3, 12));
    let deliveries = view.read(&mut reader, 10).expect("it keeps up");
    assert_eq!(
        told(&deliveries),
        ["Created Object(shop/c @12)", "Updated Object(shop/a @12)"]
    );
    // The client may have been cut between the two.
    assert_eq!(view.resumption(rv(12)), Ok(Resumption::Everything));
    view.advance(rv(13));
    assert!(view.read(&mut reader, 10).expect("it keeps up").is_empty());
}

#[test]
fn event_of_the_object_itself_takes_the_place_of_the_repetition() {
    let mut view = view();
    view.apply(EventType::Modified, service("a", 1, 11));
    view.revise(vec![changed("a", 1)]);
    let mut reader = view.follow();
    view.apply(EventType::Modified, service("a", 1, 12));
    assert_eq!(view.read(&mut reader, 10).expect("it keeps up").len(), 1);
}

#[test]
fn view_of_an_earlier_process_is_corrected_under_new_numbers() {
    let mut view = view();
    view.restamp(vec![key("a")]);
    let mut reader = view.follow();
    assert_eq!(view.object(&key("a")).map(Object::resource_version), Some(rv(10)));
    assert_eq!(view.object(&key("b")).map(Object::resource_version), Some(rv(6)));
    view.advance(rv(11));
    let deliveries = view.read(&mut reader, 10).expect("it keeps up");
    assert_eq!(
        told(&deliveries),
        ["Updated Object(shop/a @11)"],
        "10 may have been used"
    );
}

#[test]
fn deletion_of_a_hidden_object_reaches_only_readers_that_may_know_it() {
    let mut view = view_after(11);
    view.withhold(service("h", 9, 7));
    let mut reader = view.follow().for_client();
    let kind = find_kind("", "services").expect("services must be built in");
    let deleted = Change::new(ChangeKind::Deleted, service("h", 9, 11), None, false);
    let deleted = Filtered::new(Delivery::Exact(deleted), |_| None);
    view.project(vec![deleted], kind, rv(11));
    assert!(view.read(&mut reader, 10).expect("it keeps up").is_empty());
    assert_eq!((reader.position(), view.position()), (rv(11), rv(11)));
    let (_, gone) = view.correction(rv(9)).expect("nothing is forgotten");
    assert_eq!(gone.len(), 1);
}

/// A step of the source from the view's position to `to`, found by a list, that deletes `object` unwatched.
fn unwatched(view: &Collection, object: Object, to: u64) -> Vec<Filtered> {
    let gone = Delivery::Gone(object.with_resource_version(view.position()));
    let end = Delivery::DiffEnd {
        to: rv(to),
        jumped: true,
    };
    let step = [Delivery::DiffBegin(rv(to)), gone, end];
    step.map(|delivery| Filtered::new(delivery, |_| None)).into()
}

/// `a` was shown and hidden, `h` was never shown; then lists show that both are gone.
fn view_without_its_hidden_objects() -> Collection {
    let kind = find_kind("", "services").expect("services must be built in");
    let mut view = view_after(11);
    view.revise(vec![(key("a"), None)]);
    view.withhold(service("h", 9, 7));
    view.advance(rv(15));
    for (object, to) in [(service("a", 1, 5), 20), (service("h", 9, 7), 30)] {
        let step = unwatched(&view, object, to);
        view.project(step, kind, rv(to));
    }
    view
}

#[test]
fn hidden_object_that_a_list_lacks_is_hidden_no_longer() {
    let view = view_without_its_hidden_objects();
    assert_eq!((view.withheld().count(), view.range_tombstones().len()), (0, 2));
}

#[test]
fn unwatched_deletion_of_a_hidden_object_reaches_readers_that_may_know_it() {
    let view = view_without_its_hidden_objects();
    // Cut between the revision and the list, it may have missed the revision.
    let client = view.open(rv(15)).expect("within history").for_client();
    for mut client in [client.clone(), client.without_tail()] {
        let mut all = Vec::new();
        while client.position() < view.position() {
            all.extend(view.read(&mut client, 10).expect("nothing is forgotten"));
        }
        let gone = |delivery: &Delivery| match delivery {
            Delivery::Exact(change) => Some(change.object.key().name().to_owned()),
            Delivery::Gone(object) => Some(object.name().to_owned()),
            _ => None,
        };
        let gone: Vec<String> = all.iter().filter_map(gone).collect();
        assert_eq!(gone, ["a"], "h was never shown");
    }
}

#[test]
fn unwatched_deletion_of_a_hidden_object_reaches_clients_of_an_earlier_view() {
    let view = view_without_its_hidden_objects();
    assert_eq!(view.resumption(rv(10)), Ok(Resumption::Everything));
    let (mut reader, gone) = view.correction(rv(10)).expect("nothing is forgotten");
    let mut names: Vec<String> = gone.iter().map(|object| object.name().to_owned()).collect();
    while reader.position() < view.position() {
        let deliveries = view.read(&mut reader, 10).expect("nothing is forgotten");
        let deleted = deliveries.iter().filter_map(|delivery| match delivery {
            Delivery::Exact(change) => Some(change.object.name().to_owned()),
            _ => None,
        });
        names.extend(deleted);
    }
    assert_eq!(names, ["h", "a"]);
}

#[test]
fn another_object_of_that_name_stays_hidden() {
    let kind = find_kind("", "services").expect("services must be built in");
    let mut view = view();
    view.withhold(service("h", 9, 7));
    let step = unwatched(&view, service("h", 8, 4), 20);
    view.project(step, kind, rv(20));
    assert_eq!(view.withheld().count(), 1);
}
