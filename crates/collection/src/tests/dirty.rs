//! Changes that wait for a failing store are bounded, and bring the store up to date when it works again.

use std::collections::BTreeSet;

use super::*;

/// A store that applies the records it receives.
#[derive(Default)]
struct Stored {
    objects: BTreeMap<String, u64>,
    tombstones: BTreeSet<(u64, String)>,
    ranges: BTreeSet<(u64, String)>,
}

impl Stored {
    fn commit(&mut self, dirty: Dirty, floor: ResourceVersion) {
        if dirty.replaces_all() {
            *self = Self::default();
        }
        for (key, state) in dirty.objects {
            match state {
                Some(object) => drop(self.objects.insert(key.to_string(), object.resource_version().0)),
                None => drop(self.objects.remove(&key.to_string())),
            }
        }
        let place = |object: &Object| (object.resource_version().0, object.key().to_string());
        self.tombstones.extend(dirty.tombstones.iter().map(place));
        let range = |range: &RangeTombstone| (range.to.0, range.object.key().to_string());
        self.ranges.extend(dirty.ranges.iter().map(range));
        self.tombstones.retain(|(rv, _)| *rv > floor.0);
        self.ranges.retain(|(to, _)| *to > floor.0);
    }

    fn of(held: &Collection) -> Self {
        let version = |object: &Object| object.resource_version().0;
        let objects = held.objects().map(|object| (object.key().to_string(), version(object)));
        let tombstones = held
            .tombstones()
            .map(|object| (version(object), object.key().to_string()));
        let ranges = held.range_tombstones();
        let ranges = ranges.iter().map(|range| (range.to.0, range.object.key().to_string()));
        let floor = held.floor().0;
        Self {
            objects: objects.collect(),
            tombstones: tombstones.filter(|(rv, _)| *rv > floor).collect(),
            ranges: ranges.filter(|(to, _)| *to > floor).collect(),
        }
    }

    fn is(&self, other: &Self) -> bool {
        (&self.objects, &self.tombstones, &self.ranges) == (&other.objects, &other.tombstones, &other.ranges)
    }
}

fn large(name: &str, version: u64, bytes: usize) -> Object {
    let kind = find_kind("", "services").expect("services must be built in");
    let json = format!(
        r#"{{"metadata":{{"namespace":"shop","name":"{name}","uid":"{name}","resourceVersion":"{version}"}},"data":"{}"}}"#,
        "x".repeat(bytes)
    );
    Object::parse(Bytes::from(json), kind).expect("fixture must parse")
}

fn waiting(dirty: &Dirty) -> usize {
    let ranges = dirty.ranges.iter().map(|range| range.object.size());
    dirty.tombstones.iter().map(Object::size).chain(ranges).sum()
}

/// Number of deletions that readers can receive.
fn told(floor: ResourceVersion, tombstones: &[Object], ranges: &[RangeTombstone]) -> usize {
    let exact = tombstones.iter().map(Object::resource_version);
    let all = exact.chain(ranges.iter().map(|range| range.to));
    all.filter(|rv| *rv > floor).count()
}

/// Objects come and go, `together` of them between two attempts of a failing store; by events, or found missing by
/// lists.
struct Churn {
    rounds: usize,
    together: usize,
    bytes: usize,
    by_lists: bool,
}

impl Churn {
    /// Returns the most bytes of deletions and the most keys that waited.
    fn run(&self, held: &mut Collection) -> (usize, usize) {
        let (mut most, mut keys) = (0, 0);
        for round in 0..self.rounds {
            for n in 0..self.together {
                let (at, name) = (held.position().0, format!("s{round}-{n}"));
                held.apply(EventType::Added, large(&name, at + 1, self.bytes));
                if self.by_lists {
                    let list = held.objects().filter(|object| object.name() != name).cloned().collect();
                    held.replace(list, rv(at + 2)).expect("a later list");
                } else {
                    held.apply(EventType::Deleted, large(&name, at + 2, self.bytes));
                }
            }
            let dirty = held.take_dirty().expect("changes");
            (most, keys) = (most.max(waiting(&dirty)), keys.max(dirty.objects.len()));
            let tombstones: Vec<Object> = held.tombstones().cloned().collect();
            let remembered = told(held.floor(), &tombstones, &held.range_tombstones());
            assert_eq!(told(held.floor(), &dirty.tombstones, &dirty.ranges), remembered);
            held.restore_dirty(dirty);
        }
        (most, keys)
    }
}

#[test]
fn what_waits_for_a_store_is_bounded_and_brings_it_to_the_present() {
    let large_ones = |by_lists| Churn {
        rounds: 60,
        together: 25,
        bytes: 8 << 10,
        by_lists,
    };
    let many = Churn {
        rounds: 30,
        together: 500,
        bytes: 10,
        by_lists: false,
    };
    for churn in [large_ones(false), large_ones(true), many] {
        let (mut held, mut stored) = (Collection::new(true), Stored::default());
        held.restart(0, vec![large("stays", 1, 100), large("goes", 2, 100)], rv(10));
        let dirty = held.take_dirty().expect("a first list");
        stored.commit(dirty, held.floor());
        held.apply(EventType::Deleted, large("goes", 11, 100));
        let (most, keys) = churn.run(&mut held);
        assert!(
            most <= 4 * HISTORY_BYTES_MIN,
            "{most} bytes of deletions wait for the store"
        );
        assert!(keys <= 12_000, "{keys} keys wait for the store");
        let dirty = held.take_dirty().expect("changes");
        stored.commit(dirty, held.floor());
        assert!(stored.is(&Stored::of(&held)), "by lists: {}", churn.by_lists);
    }
}

/// A long commit is in flight: in the meantime the record is neither taken nor given back.
#[test]
fn what_waits_for_a_commit_under_way_is_bounded() {
    let mut held = Collection::new(true);
    held.restart(0, Vec::new(), rv(10));
    drop(held.take_dirty());
    for n in 0..1_000 {
        let at = held.position().0;
        held.apply(EventType::Added, large(&format!("s{n}"), at + 1, 8 << 10));
        held.apply(EventType::Deleted, large(&format!("s{n}"), at + 2, 8 << 10));
    }
    let dirty = held.take_dirty().expect("changes");
    assert!(waiting(&dirty) <= 4 * HISTORY_BYTES_MIN, "{} bytes", waiting(&dirty));
}
