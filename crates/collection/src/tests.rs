//! Readers against a model: the last state and every deletion arrive, even after cuts, conflation and lists.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceVersion};
use yurt_codec::negotiation::{Shape, negotiate};

use super::*;

mod ahead;
mod derived;
mod dirty;
mod generations;
mod history;
mod limits;
mod marks;
mod unknown;

fn service(name: &str, uid: u64, rv: u64) -> Object {
    let kind = find_kind("", "services").expect("services must be built in");
    let json = format!(
        r#"{{"metadata":{{"namespace":"shop","name":"{name}","uid":"u{uid}","resourceVersion":"{rv}"}},"spec":{{}}}}"#
    );
    Object::parse(Bytes::from(json), kind).expect("fixture must parse")
}

fn rv(value: u64) -> ResourceVersion {
    ResourceVersion(value)
}

/// State of a client after applying deliveries: key → RV.
#[derive(Default, Debug)]
struct Client {
    known: BTreeMap<String, u64>,
    position: u64,
}

impl Client {
    fn start(collection: &Collection) -> (Self, Reader) {
        let Snapshot {
            objects,
            position,
            reader,
        } = collection.snapshot(None);
        let known = objects
            .iter()
            .map(|o| (o.key().to_string(), o.resource_version().0))
            .collect();
        (
            Self {
                known,
                position: position.0,
            },
            reader.for_client(),
        )
    }

    fn take(&mut self, deliveries: Vec<Delivery>) {
        for delivery in deliveries {
            let (object, deleted) = match &delivery {
                Delivery::Exact(change) => (change.object.clone(), change.kind == ChangeKind::Deleted),
                Delivery::Current { object, .. } => (object.clone(), false),
                Delivery::Gone(object) => (object.clone(), true),
                Delivery::DiffBegin(_) | Delivery::DiffEnd { .. } => continue,
            };
            let (key, rv) = (object.key().to_string(), object.resource_version().0);
            assert!(
                rv >= self.position,
                "position went back: {rv} < {} at {delivery:?}",
                self.position
            );
            self.position = rv;
            if deleted {
                self.known.remove(&key);
            } else if let Some(old) = self.known.insert(key, rv) {
                assert!(rv >= old, "an older state after a newer one");
            }
        }
    }
}

#[test]
fn reader_that_keeps_up_gets_exact_history() {
    let mut collection = Collection::new(false);
    collection.restart(0, vec![service("a", 1, 5)], rv(10));
    let mut reader = collection.snapshot(None).reader;
    collection.apply(EventType::Modified, service("a", 1, 11));
    collection.apply(EventType::Modified, service("a", 1, 12));
    collection.apply(EventType::Deleted, service("a", 1, 13));
    let kinds: Vec<_> = collection
        .read(&mut reader, 100)
        .expect("history must reach")
        .iter()
        .map(|delivery| match delivery {
            Delivery::Exact(change) => (change.kind, change.resource_version().0),
            other => panic!("not exact: {other:?}"),
        })
        .collect();
    assert_eq!(
        kinds,
        [
            (ChangeKind::Updated, 11),
            (ChangeKind::Updated, 12),
            (ChangeKind::Deleted, 13)
        ]
    );
}

/// Conformance: 7.50
#[test]
fn reader_that_resumes_within_the_tail_gets_exact_history() {
    let mut collection = Collection::new(false);
    collection.restart(0, vec![service("a", 1, 5)], rv(10));
    collection.apply(EventType::Modified, service("a", 1, 11));
    collection.advance(rv(12));
    collection.apply(EventType::Modified, service("a", 1, 13));
    collection.apply(EventType::Modified, service("a", 1, 14));
    for (from, expected) in [
        (10, vec![11, 13, 14]),
        (11, vec![13, 14]),
        (12, vec![13, 14]),
        (13, vec![14]),
        (14, vec![]),
    ] {
        let mut reader = collection.open(rv(from)).expect("within history");
        let deliveries = collection.read(&mut reader, 100).expect("within history");
        let exact = |delivery: &Delivery| match delivery {
            Delivery::Exact(change) => change.resource_version().0,
            other => panic!("not exact: {other:?}"),
        };
        assert_eq!(
            deliveries.iter().map(exact).collect::<Vec<_>>(),
            expected,
            "from {from}"
        );
    }
}

/// Conformance: 7.51
#[test]
fn reader_ahead_of_c_is_held_silently() {
    let mut collection = Collection::new(false);
    collection.restart(0, vec![], rv(10));
    let mut reader = collection
        .open(rv(20))
        .expect("a reader ahead must be held, not refused");
    collection.apply(EventType::Added, service("a", 1, 15));
    assert!(collection.read(&mut reader, 10).expect("held").is_empty());
    collection.apply(EventType::Modified, service("a", 1, 25));
    let mut client = Client {
        position: 20,
        ..Client::default()
    };
    client.take(collection.read(&mut reader, 10).expect("released"));
    assert_eq!(client.known["shop/a"], 25);
}

/// Conformance: 7.50
#[test]
fn reader_below_the_floor_is_expired() {
    let mut collection = Collection::new(false);
    collection.restart(0, vec![], rv(10));
    assert_eq!(
        collection.open(rv(9)),
        Err(Expired {
            position: rv(9),
            floor: rv(10)
        })
    );
}

/// Conformance: 7.53
#[test]
fn event_already_covered_changes_nothing() {
    let mut collection = Collection::new(false);
    collection.restart(0, vec![service("a", 1, 10)], rv(10));
    assert!(!collection.apply(EventType::Modified, service("a", 1, 9)));
    assert!(!collection.apply(EventType::Deleted, service("a", 1, 10)));
    assert_eq!(collection.len(), 1);
}

/// Conformance: 7.55
#[test]
fn older_list_is_refused() {
    let mut collection = Collection::new(false);
    collection.restart(0, vec![], rv(10));
    assert_eq!(
        collection.replace(vec![], rv(9)),
        Err(WriteError::Behind {
            at: rv(9),
            position: rv(10)
        })
    );
    collection.apply(EventType::Added, service("a", 1, 12));
    let back = collection.replace(vec![service("a", 1, 11)], rv(13));
    assert!(matches!(back, Err(WriteError::Backwards { .. })), "{back:?}");
}

/// Deleted in a stretch that the source has lost: it exists again, under an RV that was already covered.
///
/// Conformance: 7.55
#[test]
fn list_with_an_object_that_was_gone_already_is_refused() {
    let mut collection = Collection::new(false);
    collection.restart(0, vec![service("a", 1, 5), service("b", 2, 6)], rv(10));
    collection.apply(EventType::Deleted, service("b", 2, 12));
    let back = collection.replace(vec![service("a", 1, 5), service("b", 2, 6)], rv(20));
    assert!(matches!(back, Err(WriteError::CameBack { .. })), "{back:?}");
    assert_eq!(collection.position(), rv(12), "nothing was taken");
    let created = collection.replace(vec![service("a", 1, 5), service("b", 3, 13)], rv(20));
    assert_eq!(created, Ok(()));
}

/// Conformance: 7.54
#[test]
fn unwatched_deletion_reaches_readers_at_their_own_position() {
    let mut collection = Collection::new(false);
    collection.restart(0, vec![service("a", 1, 5), service("b", 2, 6)], rv(10));
    let mut live = collection.snapshot(None).reader;
    collection
        .replace(vec![service("a", 1, 15)], rv(20))
        .expect("a newer list must be taken");
    let deliveries = collection.read(&mut live, 100).expect("live");
    let seen: Vec<String> = deliveries
        .iter()
        .map(|delivery| match delivery {
            Delivery::Exact(change) => format!("{:?} {}", change.kind, change.resource_version().0),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(
        seen,
        [
            "DiffBegin(ResourceVersion(20))",
            "Deleted 10",
            "Updated 15",
            "DiffEnd { to: ResourceVersion(20), jumped: true }"
        ]
    );
    // Events inside the diff cannot be distinguished from those that others saw there: see `ahead`.
    assert!(collection.open(rv(15)).is_err(), "a reader cut in the middle");
    let mut cut = collection.open(rv(10)).expect("within history").without_tail();
    let again = collection.read(&mut cut, 100).expect("catch-up");
    assert!(
        matches!(&again[..], [Delivery::DiffBegin(_), Delivery::Gone(object), Delivery::Current { .. }, Delivery::DiffEnd { to, jumped: true }]
            if object.resource_version() == rv(10) && *to == rv(20)),
        "{again:?}"
    );
    assert_eq!(cut.position(), rv(20));
}

#[test]
fn recreated_under_another_uid_is_deleted_first() {
    let mut collection = Collection::new(false);
    collection.restart(0, vec![service("a", 1, 5)], rv(10));
    collection
        .replace(vec![service("a", 2, 15)], rv(20))
        .expect("newer list");
    let mut live = collection.open(rv(10)).expect("within the tail");
    let told = collection.read(&mut live, 100).expect("exact history");
    assert!(
        matches!(&told[..], [Delivery::DiffBegin(_), Delivery::Exact(gone), Delivery::Exact(new), Delivery::DiffEnd { jumped: true, .. }]
            if gone.kind == ChangeKind::Deleted && gone.object.uid() == "u1" && new.object.uid() == "u2"),
        "{told:?}"
    );
    // The same without the tail, as after a restart.
    let mut restarted = Collection::new(false);
    restarted.recover(Recovered {
        objects: collection.objects().cloned().collect(),
        ranges: collection.range_tombstones(),
        position: collection.position(),
        floor: collection.floor(),
        complete: true,
        ..Recovered::default()
    });
    let mut resumed = restarted.open(rv(10)).expect("within history");
    let told = restarted.read(&mut resumed, 100).expect("catch-up");
    assert!(
        matches!(&told[..], [Delivery::DiffBegin(_), Delivery::Gone(old), Delivery::Current { object, .. }, Delivery::DiffEnd { jumped: true, .. }]
            if old.uid() == "u1" && object.uid() == "u2"),
        "{told:?}"
    );
}

#[test]
fn forgotten_tombstones_raise_the_floor() {
    let mut collection = Collection::new(false);
    collection.restart(0, vec![], rv(1));
    for i in 0..(TOMBSTONES_MAX as u64 + 10) {
        collection.apply(EventType::Added, service("a", i, 10 + 2 * i));
        collection.apply(EventType::Deleted, service("a", i, 11 + 2 * i));
    }
    assert!(collection.floor() > rv(1));
    assert!(collection.open(rv(2)).is_err());
    assert!(collection.tombstones().count() <= TOMBSTONES_MAX);
}

#[test]
fn dirty_record_survives_a_failed_commit() {
    let mut collection = Collection::new(true);
    collection.restart(0, vec![service("a", 1, 5)], rv(10));
    let failed = collection.take_dirty().expect("a restart must be stored");
    collection.apply(EventType::Deleted, service("a", 1, 11));
    collection.restore_dirty(failed);
    let dirty = collection.take_dirty().expect("both changes must be pending");
    assert!(dirty.wiped);
    assert!(dirty.objects.values().all(Option::is_none), "the newer state must win");
    assert_eq!(dirty.tombstones.len(), 1);
}

/// An event at the source or at a client.
#[derive(Clone, Debug)]
enum Act {
    Put(u8),
    Delete(u8),
    Recreate(u8),
    Bookmark,
    /// The link is down from here …
    Cut,
    /// … to here, where a list finds what changed.
    Relist,
    /// Client `n` reads at most so many deliveries.
    Read(usize, usize),
    /// Client `n` loses its connection and resumes from its position.
    Resume(usize),
    /// The same when the tail does not reach back to it.
    ResumeByIndex(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => (0..6_u8).prop_map(Act::Put),
        3 => (0..6_u8).prop_map(Act::Delete),
        1 => (0..6_u8).prop_map(Act::Recreate),
        1 => Just(Act::Bookmark),
        1 => Just(Act::Cut),
        2 => Just(Act::Relist),
        3 => (0..3_usize, 1..4_usize).prop_map(|(n, max)| Act::Read(n, max)),
        2 => (0..3_usize).prop_map(Act::Resume),
        2 => (0..3_usize).prop_map(Act::ResumeByIndex),
    ]
}

/// The source: the truth, and whether the collection receives its events.
struct Source {
    truth: BTreeMap<String, (u64, u64)>,
    rv: u64,
    uids: u64,
    connected: bool,
}

impl Source {
    fn put(&mut self, collection: &mut Collection, name: &str) {
        self.rv += 1;
        let uid = self.truth.get(name).map_or_else(
            || {
                self.uids += 1;
                self.uids
            },
            |(uid, _)| *uid,
        );
        self.truth.insert(name.to_owned(), (uid, self.rv));
        if self.connected {
            collection.apply(EventType::Modified, service(name, uid, self.rv));
        }
    }

    fn delete(&mut self, collection: &mut Collection, name: &str) {
        let Some((uid, _)) = self.truth.remove(name) else {
            return;
        };
        self.rv += 1;
        if self.connected {
            collection.apply(EventType::Deleted, service(name, uid, self.rv));
        }
    }

    fn relist(&mut self, collection: &mut Collection) {
        let list = self
            .truth
            .iter()
            .map(|(name, (uid, rv))| service(name, *uid, *rv))
            .collect();
        collection
            .replace(list, rv(self.rv))
            .expect("the source never goes back");
        self.connected = true;
    }
}

impl Source {
    /// Applies `act` unless it is about clients.
    fn act(&mut self, collection: &mut Collection, act: &Act) {
        match act {
            Act::Put(n) => self.put(collection, &format!("s{n}")),
            Act::Delete(n) => self.delete(collection, &format!("s{n}")),
            Act::Recreate(n) => {
                self.delete(collection, &format!("s{n}"));
                self.put(collection, &format!("s{n}"));
            }
            Act::Bookmark if self.connected => {
                collection.advance(rv(self.rv));
            }
            Act::Cut => self.connected = false,
            Act::Relist => self.relist(collection),
            Act::Bookmark | Act::Read(..) | Act::Resume(_) | Act::ResumeByIndex(_) => {}
        }
    }

    fn now(&self) -> BTreeMap<String, u64> {
        let entries = self.truth.iter().map(|(name, (_, rv))| (format!("shop/{name}"), *rv));
        entries.collect()
    }
}

/// Resumes a client at its position. It starts over only if the history after that is no longer remembered.
fn resume(collection: &Collection, (client, reader): &mut (Client, Reader), how: impl Fn(Reader) -> Reader) {
    match collection.open(rv(client.position)) {
        Ok(opened) => *reader = how(opened.for_client()),
        Err(_) => {
            assert!(
                collection.is_in_gap(rv(client.position)) || rv(client.position) < collection.floor(),
                "what it asks for is remembered"
            );
            (*client, *reader) = Client::start(collection);
        }
    }
}

/// Reads for a client, which starts over only if it fell behind the remembered history. Returns true if it did.
fn read_on(collection: &Collection, (client, reader): &mut (Client, Reader), max: usize) -> bool {
    match collection.read(reader, max) {
        Ok(deliveries) => client.take(deliveries),
        Err(expired) => {
            assert!(
                expired.position < collection.floor() || collection.is_in_gap(reader.resumed_at()),
                "what it asks for is remembered"
            );
            (*client, *reader) = Client::start(collection);
            return true;
        }
    }
    false
}

/// The default limits, and some that are reached within a few acts.
fn limits() -> impl Strategy<Value = Limits> {
    let few = (300..3_000_usize, 1..6_usize, 1..4_usize);
    prop_oneof![
        Just(Limits::default()),
        Just(Limits::of_a_selection()),
        few.prop_map(|(bytes_min, tombstones, gaps)| Limits {
            bytes_min,
            times: None,
            tombstones,
            gaps
        })
    ]
}

/// The state at `at`, read in pages of `size`.
fn pages(collection: &Collection, at: u64, keys: &KeyRange, size: usize) -> Result<BTreeMap<String, u64>, Expired> {
    let (mut found, mut from) = (BTreeMap::new(), String::new());
    loop {
        let page: Vec<&Object> = collection.snapshot_at(rv(at), keys, &from)?.take(size).collect();
        let Some(last) = page.last() else {
            return Ok(found);
        };
        from = format!("{}\0", last.key());
        for object in page {
            let key = object.key().to_string();
            assert!(
                found.last_key_value().is_none_or(|(last, _)| *last < key),
                "out of order"
            );
            found.insert(key, object.resource_version().0);
        }
    }
}

#[test]
fn key_ranges_are_bytewise_and_confined() {
    let mut collection = Collection::new(false);
    let kind = find_kind("", "services").expect("services must be built in");
    let service = |namespace: &str, name: &str| {
        let json = format!(r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","resourceVersion":"1"}}}}"#);
        Object::parse(Bytes::from(json), kind).expect("fixture must parse")
    };
    let all = [("a", "x"), ("a-b", "y"), ("a", "xy"), ("b", "x")];
    let list = all.iter().map(|(namespace, name)| service(namespace, name)).collect();
    collection.restart(0, list, rv(5));
    let keys = |range: &KeyRange, from: &str| -> Vec<String> {
        let snapshot = collection.snapshot_at(rv(5), range, from).expect("the present state");
        snapshot.map(|object| object.key().to_string()).collect()
    };
    // "-" sorts before "/".
    assert_eq!(keys(&KeyRange::all(), ""), ["a-b/y", "a/x", "a/xy", "b/x"]);
    assert_eq!(keys(&KeyRange::all(), "a/x\0"), ["a/xy", "b/x"]);
    assert_eq!(keys(&KeyRange::namespace("a"), ""), ["a/x", "a/xy"]);
    assert_eq!(keys(&KeyRange::namespace("a"), "b"), [""; 0]);
    assert_eq!(keys(&KeyRange::one(&ObjectKey::parse("a/x")), ""), ["a/x"]);
    assert_eq!(keys(&KeyRange::one(&ObjectKey::parse("a/x")), "a/x\0"), [""; 0]);
}

#[test]
fn state_below_the_log_is_expired_and_one_within_it_is_not() {
    let mut collection = Collection::new(false);
    collection.restart(0, vec![service("a", 1, 5)], rv(10));
    collection.advance(rv(15));
    assert_eq!(
        pages(&collection, 12, &KeyRange::all(), 9).map(|state| state.len()),
        Ok(1),
        "nothing happened since the list"
    );
    for i in 0..10_000 {
        collection.apply(EventType::Modified, service("a", 1, 20 + i));
    }
    assert!(collection.snapshot_at(rv(12), &KeyRange::all(), "").is_err());
    let state = pages(&collection, 10_000, &KeyRange::all(), 9);
    assert_eq!(state, Ok(BTreeMap::from([("shop/a".to_owned(), 10_000)])));
}

#[test]
fn initial_state_goes_on_with_the_present_when_the_log_was_overrun_but_not_in_another_generation() {
    let mut collection = Collection::new(false);
    collection.restart(0, vec![service("a", 1, 5), service("b", 2, 6)], rv(10));
    let reader = collection.follow();
    for i in 0..10_000 {
        collection.apply(EventType::Modified, service("b", 2, 20 + i));
    }
    let rest = |collection: &Collection| -> Result<Vec<u64>, Expired> {
        let all = KeyRange::all();
        let snapshot = collection.initial(&reader, &all, "shop/a\0")?;
        Ok(snapshot.map(|object| object.resource_version().0).collect())
    };
    assert_eq!(rest(&collection), Ok(vec![10_019]));
    collection.restart(1, vec![service("b", 2, 6)], rv(10));
    assert!(rest(&collection).is_err());
}

proptest! {
    #[test]
    fn state_at_an_earlier_version_is_what_it_was(acts in prop::collection::vec(act(), 1..80), size in 1..5_usize) {
        let mut collection = Collection::new(false);
        collection.restart(0, vec![], rv(100));
        let mut source = Source { truth: BTreeMap::new(), rv: 100, uids: 0, connected: true };
        let mut history = BTreeMap::from([(100, source.now())]);
        let mut reached = vec![100];
        for act in &acts {
            source.act(&mut collection, act);
            history.insert(source.rv, source.now());
            if matches!(act, Act::Relist) {
                // Objects that came and went unseen are unknown, so no state before the list is shown.
                reached.clear();
            }
            if collection.position() == rv(source.rv) {
                reached.push(source.rv);
            }
            for (at, truth) in &history {
                match pages(&collection, *at, &KeyRange::all(), size) {
                    Ok(state) => prop_assert_eq!(&state, truth, "at {}", at),
                    Err(_) => prop_assert!(!reached.contains(at), "{} was here and is forgotten", at),
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Conformance: 7.50, 7.54
    #[test]
    fn every_reader_ends_with_the_truth(acts in prop::collection::vec(act(), 1..120), limits in limits()) {
        let mut collection = Collection::with_limits(false, limits);
        collection.restart(0, vec![], rv(100));
        let mut source = Source { truth: BTreeMap::new(), rv: 100, uids: 0, connected: true };
        let mut clients: Vec<(Client, Reader)> = (0..3).map(|_| Client::start(&collection)).collect();
        let mut expired = false;
        for act in acts {
            match act {
                Act::Read(n, max) => expired |= read_on(&collection, &mut clients[n], max),
                Act::Resume(n) => resume(&collection, &mut clients[n], |reader| reader),
                Act::ResumeByIndex(n) => resume(&collection, &mut clients[n], Reader::without_tail),
                act => source.act(&mut collection, &act),
            }
        }
        source.relist(&mut collection);
        let truth = source.now();
        for client in &mut clients {
            while client.1.position() < collection.position() {
                expired |= read_on(&collection, client, 2);
            }
            expired |= read_on(&collection, client, usize::MAX);
            prop_assert_eq!(&client.0.known, &truth);
        }
        prop_assert!(!expired || limits != Limits::default(), "nothing is forgotten within the limits of the programs");
    }
}

/// Conformance: 8.22
#[test]
fn frame_of_a_change_is_made_once_for_all_who_want_it_alike() {
    let kind = find_kind("", "services").unwrap();
    let how = |accept| negotiate(Some(accept), Shape::Watch, true, None, None).unwrap();
    let change = Change::new(ChangeKind::Updated, service("a", 1, 5), None, false);
    let frame = |event, accept| change.frame(event, how(accept), kind);
    let json = frame(EventType::Modified, "application/json");
    assert_eq!(frame(EventType::Modified, "application/json").as_ptr(), json.as_ptr());
    let others = [
        frame(EventType::Added, "application/json"),
        frame(EventType::Modified, "application/vnd.kubernetes.protobuf;stream=watch"),
    ];
    assert!(others.iter().all(|other| *other != json));
}
