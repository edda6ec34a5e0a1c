//! Readers ahead of a replica, which restarted from its last commit or follows a source that lags. They know more than
//! the replica does.

use super::*;

/// An object known only to a reader may be gone, too.
#[test]
fn deletion_of_what_only_a_reader_ahead_knows_reaches_it() {
    for events in [
        vec![(EventType::Deleted, 25)],
        vec![(EventType::Deleted, 25), (EventType::Added, 28)],
    ] {
        let mut collection = Collection::new(true);
        collection.restart(0, vec![], rv(10));
        let mut held = collection.open(rv(20)).expect("held");
        let client = || Client {
            known: BTreeMap::from([("shop/a".into(), 15)]),
            position: 20,
        };
        let (mut first, mut later) = (client(), client());
        // The source sends the last state of each key, as it does when the replica resumes.
        for (event, at) in &events {
            collection.apply(*event, service("a", *at, *at));
        }
        collection.advance(rv(30));
        first.take(collection.read(&mut held, 10).expect("released"));
        let mut resumed = collection.open(rv(20)).expect("resumed");
        later.take(collection.read(&mut resumed, 10).expect("from the tail"));
        let mut conflated = collection.open(rv(20)).expect("resumed").without_tail();
        let deliveries = collection.read(&mut conflated, 10).expect("from the index");
        let gone = |delivery: &Delivery| matches!(delivery, Delivery::Gone(_));
        assert!(deliveries.iter().any(gone), "{deliveries:?}");
        let last: BTreeMap<String, u64> = events.iter().skip(1).map(|(_, at)| ("shop/a".into(), *at)).collect();
        assert_eq!((&first.known, &later.known), (&last, &last));
        let dirty = collection.take_dirty().expect("changes");
        assert_eq!(dirty.tombstones.len(), 1, "it outlives a restart");
    }
}

/// Between two lists objects may have come and gone. Only a reader positioned there may know them.
#[test]
fn reader_inside_a_stretch_that_a_list_jumped_over_starts_over() {
    let mut collection = Collection::new(true);
    collection.restart(0, vec![service("b", 1, 5)], rv(10));
    let mut held = collection.open(rv(20)).expect("held");
    let mut live = collection.follow();
    collection
        .replace(vec![service("b", 1, 5)], rv(30))
        .expect("not behind");
    assert!(collection.read(&mut held, 10).is_err());
    assert!(collection.read(&mut live, 10).is_ok());
    let mut recovered = Collection::new(false);
    recovered.recover(collection.to_recovered());
    for collection in [&collection, &recovered] {
        assert!(collection.open(rv(11)).is_err() && collection.open(rv(29)).is_err());
        assert!(collection.open(rv(10)).is_ok() && collection.open(rv(30)).is_ok());
    }
}

/// Its own readers may be positioned there too.
#[test]
fn follower_is_told_of_a_stretch_that_a_list_jumped_over() {
    let mut source = Collection::new(false);
    source.restart(0, vec![], rv(10));
    let live = source.follow();
    let late = live.clone().without_tail();
    source.replace(vec![], rv(20)).expect("not behind");
    for mut reader in [live, late] {
        let deliveries = source.read(&mut reader, 10).expect("within history");
        assert!(
            matches!(&deliveries[..], [Delivery::DiffBegin(_), Delivery::DiffEnd { to, jumped: true }] if *to == rv(20)),
            "{deliveries:?}"
        );
    }
    let mut follower = Collection::new(false);
    follower.restart(0, vec![], rv(10));
    follower.apply_step(rv(20), vec![]);
    assert_eq!(follower.gaps(), source.gaps());
}

#[test]
fn forgotten_gaps_raise_the_floor() {
    let mut collection = Collection::new(false);
    collection.restart(0, vec![], rv(1));
    for jump in 1..=40 {
        collection.replace(vec![], rv(10 * jump)).expect("not behind");
    }
    assert_eq!(collection.gaps().len(), GAPS_MAX);
    let floor = collection.floor();
    assert!(floor > rv(1) && collection.gaps().iter().all(|gap| gap.from >= floor));
}

#[test]
fn unwatched_deletion_does_not_take_a_reader_back() {
    let mut collection = Collection::new(false);
    collection.restart(0, vec![service("a", 1, 5)], rv(10));
    let mut held = collection.open(rv(20)).expect("held");
    collection.apply(EventType::Added, service("a", 2, 30));
    let mut resumed = collection.open(rv(20)).expect("resumed");
    for reader in [&mut held, &mut resumed] {
        let mut client = Client {
            position: 20,
            ..Client::default()
        };
        client.take(collection.read(reader, 10).expect("released"));
        assert_eq!(client.known["shop/a"], 30);
    }
}

/// Return of a replica after a crash.
#[derive(Clone, Copy, Debug)]
enum Back {
    /// A list of the source.
    Listed,
    /// A step from another replica, which saw everything, at a resume.
    Resumed,
    /// The same, cut after so many deliveries; then a list.
    Cut(usize),
}

/// A replica's life until it crashes: events before its last commit, after it, and while it is away.
#[derive(Clone, Debug)]
struct Life {
    committed: Vec<Act>,
    lost: Vec<Act>,
    away: Vec<Act>,
    back: Back,
    after_cut: Vec<Act>,
}

fn life() -> impl Strategy<Value = Life> {
    let acts = |most| prop::collection::vec(act(), 0..most);
    let back = prop_oneof![
        Just(Back::Listed),
        Just(Back::Resumed),
        (1..4_usize).prop_map(Back::Cut)
    ];
    let changes = prop::collection::vec(act().prop_filter("changes", is_change), 0..6);
    (acts(20), acts(20), acts(6), back, changes).prop_map(|(committed, lost, away, back, after_cut)| Life {
        committed,
        lost,
        away,
        back,
        after_cut,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Crashes lose uncommitted changes, clients keep their state. All end with the truth.
    #[test]
    fn crashes_lose_nothing_that_clients_know(lives in prop::collection::vec(life(), 1..5)) {
        let (mut replica, mut other) = (Collection::new(false), Collection::new(false));
        replica.restart(0, vec![], rv(100));
        other.restart(0, vec![], rv(100));
        let mut source = Source { truth: BTreeMap::new(), rv: 100, uids: 0, connected: true };
        let mut clients: Vec<(Client, Reader)> = (0..3).map(|_| Client::start(&replica)).collect();
        for life in lives {
            live(&life.committed, &mut source, [&mut replica, &mut other], &mut clients);
            let commit = replica.to_recovered();
            live(&life.lost, &mut source, [&mut replica, &mut other], &mut clients);
            replica.recover(commit);
            for act in life.away.iter().filter(|act| is_change(act)) {
                source.act(&mut other, act);
            }
            clients.iter_mut().for_each(|client| resume(&replica, client, |reader| reader));
            match life.back {
                Back::Listed => source.relist(&mut replica),
                Back::Resumed => follow(&mut replica, &other, usize::MAX),
                Back::Cut(after) => {
                    follow(&mut replica, &other, after);
                    for act in &life.after_cut {
                        source.act(&mut other, act);
                    }
                    source.relist(&mut replica);
                }
            }
            for (client, reader) in &mut clients {
                loop {
                    match replica.read(reader, usize::MAX) {
                        Ok(deliveries) if deliveries.is_empty() => break,
                        Ok(deliveries) => client.take(deliveries),
                        Err(_) => {
                            prop_assert!(replica.is_in_gap(rv(client.position)));
                            (*client, *reader) = Client::start(&replica);
                        }
                    }
                }
            }
            let truth = source.now();
            prop_assert!(clients.iter().all(|(client, _)| client.known == truth), "{:?}", &clients);
        }
    }
}

/// Another property covers links that break.
fn is_change(act: &Act) -> bool {
    matches!(act, Act::Put(_) | Act::Delete(_) | Act::Recreate(_) | Act::Bookmark)
}

/// Changes the source; both replicas follow and clients read.
fn live(acts: &[Act], source: &mut Source, [replica, other]: [&mut Collection; 2], clients: &mut [(Client, Reader)]) {
    for act in acts {
        if let Act::Read(n, max) = act {
            let (client, reader) = &mut clients[*n];
            client.take(replica.read(reader, *max).expect("nothing is forgotten in this test"));
        }
        if is_change(act) {
            let mut again = Source {
                truth: source.truth.clone(),
                ..*source
            };
            source.act(replica, act);
            again.act(other, act);
        }
    }
}

/// Applies a replica's stream from `other`: the last state of each key, and every deletion. If it is cut before its
/// end, nothing counts.
fn follow(replica: &mut Collection, other: &Collection, deliveries: usize) {
    let opened = other
        .open(replica.position())
        .expect("nothing is forgotten in this test");
    let mut reader = opened.without_tail();
    let told = other
        .read(&mut reader, usize::MAX)
        .expect("nothing is forgotten in this test");
    let mut step = Vec::new();
    for delivery in told.into_iter().take(deliveries) {
        match delivery {
            Delivery::Current { object, .. } => step.push((EventType::Modified, object)),
            Delivery::Gone(object) => step.push((EventType::Deleted, object)),
            Delivery::DiffBegin(_) => {}
            Delivery::DiffEnd { to, jumped: false } => replica.catch_up_to(to, std::mem::take(&mut step)),
            other => panic!("no list was involved: {other:?}"),
        }
    }
}

/// A replica continues with its former source until the new one has sent its first message. The new source's events of
/// the time before are covered.
#[test]
fn deletion_told_late_does_not_take_what_was_created_again() {
    let mut collection = Collection::new(false);
    collection.restart(0, vec![service("a", 1, 5)], rv(10));
    collection.apply(EventType::Deleted, service("a", 1, 12));
    collection.apply(EventType::Added, service("a", 2, 15));
    let told = vec![
        (EventType::Deleted, service("a", 1, 12)),
        (EventType::Added, service("a", 2, 15)),
        (EventType::Added, service("b", 3, 18)),
    ];
    assert_eq!(collection.follow_step((rv(10), rv(20)), told, false), Ok(()));
    let held: Vec<_> = collection
        .objects()
        .map(|o| (o.name(), o.resource_version().0))
        .collect();
    assert_eq!(held, [("a", 15), ("b", 18)]);
}

/// Its new source cannot revoke changes in a stretch that this source jumped over.
#[test]
fn replica_inside_a_jump_of_its_source_has_to_list() {
    let mut collection = Collection::new(false);
    collection.restart(0, vec![], rv(10));
    collection.apply(EventType::Added, service("a", 1, 15));
    let told = || vec![(EventType::Added, service("b", 2, 18))];
    assert!(collection.follow_step((rv(10), rv(20)), told(), true).is_err());
    assert_eq!((collection.position(), collection.len()), (rv(15), 1));
    assert_eq!(collection.follow_step((rv(15), rv(20)), told(), true), Ok(()));
    assert_eq!(
        collection.follow_step((rv(10), rv(19)), told(), true),
        Ok(()),
        "covered"
    );
    assert_eq!((collection.position(), collection.len()), (rv(20), 2));
}
