//! Replicas that several coordinators share: whoever is fed, all end with the same, and nobody but the guarded one writes.
//!
//! The store here is the embedded one with several sinks; what counts is transactions and the order of commits.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use proptest::prelude::*;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceVersion, Space};
use yurt_runtime::Clock;
use yurt_storage::backend::{Committed, Loaded, Sink};
use yurt_storage::contract::put;
use yurt_storage::{
    Action, Collection, Delivery, Embedded, Expect, OnlyWriter as _, Op, Reader, Replicas, Storage, StorageError,
};

const NAME: &str = "services";

/// Passes commits on to every coordinator, and keeps what a new one would read.
#[derive(Default)]
struct Everybody {
    coordinators: Mutex<Vec<Arc<Replicas>>>,
    live: Mutex<BTreeMap<String, (ResourceVersion, Bytes)>>,
}

impl Sink for Everybody {
    fn load(&self, _loaded: Loaded) -> Result<(), StorageError> {
        Ok(())
    }

    fn committed(&self, rv: ResourceVersion, changes: &[Committed]) {
        let mut live = self.live.lock();
        for change in changes {
            if change.deleted {
                live.remove(&change.key);
            } else {
                live.insert(change.key.clone(), (rv, change.value.bytes().clone()));
            }
        }
        for replicas in &*self.coordinators.lock() {
            replicas.committed(rv, changes);
        }
    }

    fn reloaded(&self, _loaded: Loaded) {}
}

struct Pool {
    _folder: tempfile::TempDir,
    storage: Arc<dyn Storage>,
    everybody: Arc<Everybody>,
}

impl Pool {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let storage = Embedded::open(&folder.path().join("store.redb"), Clock::system(), Space::Own).expect("open");
        let everybody = Arc::new(Everybody::default());
        storage.attach(everybody.clone()).await.expect("attach");
        Self {
            _folder: folder,
            storage: Arc::new(storage),
            everybody,
        }
    }

    /// A coordinator that starts now.
    fn join(&self) -> Arc<Replicas> {
        let kinds = [(NAME.to_owned(), find_kind("", NAME).expect("services are built in"))];
        let replicas = Arc::new(Replicas::pooled(&kinds, self.storage.clone()));
        let live = self.everybody.live.lock();
        let stored = live.iter().map(|(key, (rv, value))| yurt_storage::backend::Stored {
            key: key.clone(),
            rv: *rv,
            value: value.clone(),
        });
        replicas.load(&Loaded {
            live: stored.collect(),
            ..Loaded::default()
        });
        self.everybody.coordinators.lock().push(replicas.clone());
        replicas
    }
}

fn update<T>(replicas: &Replicas, change: impl FnOnce(&mut Collection) -> T) -> T {
    replicas.named(NAME).expect("services").collection().update(change)
}

fn read<T>(replicas: &Replicas, look: impl FnOnce(&Collection) -> T) -> T {
    replicas.named(NAME).expect("services").collection().read(look)
}

fn service(name: &str, rv: u64) -> Object {
    let json = format!(r#"{{"metadata":{{"namespace":"x","name":"{name}","uid":"{name}","resourceVersion":"{rv}"}}}}"#);
    Object::parse(Bytes::from(json), find_kind("", NAME).expect("services")).expect("fixture")
}

fn shown(replicas: &Replicas) -> Vec<String> {
    read(replicas, |held| {
        held.objects()
            .map(|object| format!("{}@{}", object.name(), object.resource_version()))
            .collect()
    })
}

#[tokio::test]
async fn guard_that_does_not_hold_writes_nothing() {
    let pool = Pool::new().await;
    let (one, other) = (pool.join(), pool.join());
    let first = pool
        .storage
        .write(vec![put("epoch", Expect::Absent, "1")])
        .await
        .expect("election");
    let guard = |rv| Op {
        action: Action::Check,
        ..put("epoch", Expect::At(rv), "")
    };
    update(&one, |held| held.restart(0, vec![service("a", 5)], ResourceVersion(10)));
    one.persist(Some(&guard(first))).await.expect("the leader writes");
    assert_eq!(shown(&other), ["a@5"]);
    let second = pool
        .storage
        .write(vec![put("epoch", Expect::At(first), "2")])
        .await
        .expect("election");
    update(&one, |held| held.apply(EventType::Added, service("b", 11)));
    let refused = one.persist(Some(&guard(first))).await;
    assert!(
        matches!(&refused, Err(StorageError::Conflict { key, .. }) if key.ends_with("/epoch")),
        "{refused:?}"
    );
    assert_eq!(shown(&other), ["a@5"]);
    // A fact stays one: the next leader that feeds here stores it.
    one.persist(Some(&guard(second))).await.expect("the new leader writes");
    assert_eq!(shown(&other), ["a@5", "b@11"]);
    // A new timeline does not: only the leader that began it may.
    update(&one, |held| held.restart(1, vec![], ResourceVersion(3)));
    assert!(one.persist(Some(&guard(first))).await.is_err());
    assert_eq!((shown(&one), read(&one, Collection::generation)), (shown(&other), 0));
    one.persist(Some(&guard(second))).await.expect("nothing is left of it");
    assert_eq!(
        (shown(&other), read(&other, Collection::generation)),
        (vec!["a@5".to_owned(), "b@11".to_owned()], 0)
    );
}

/// What the cloud did: at RV n+1 the key of step n was put, or deleted.
type Log = Vec<(u8, bool)>;

/// The truth at `at`.
fn truth(log: &Log, at: usize) -> BTreeMap<String, u64> {
    let mut live = BTreeMap::new();
    for (rv, (key, is_put)) in (1..).zip(&log[..at]) {
        if *is_put {
            live.insert(format!("k{key}"), rv);
        } else {
            live.remove(&format!("k{key}"));
        }
    }
    live
}

fn event(log: &Log, at: usize) -> (EventType, Object) {
    let (key, is_put) = log[at];
    let object = service(&format!("k{key}"), at as u64 + 1);
    (
        if is_put {
            EventType::Modified
        } else {
            EventType::Deleted
        },
        object,
    )
}

#[derive(Clone, Debug)]
enum Act {
    /// This coordinator is told so many events.
    Feed(usize, usize),
    /// This coordinator is told everything there is now, by a list.
    List(usize, usize),
    /// This coordinator stores what it has.
    Store(usize),
    /// A reader at this coordinator reads on.
    Read(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0..2_usize, 1..20_usize).prop_map(|(who, some)| Act::Feed(who, some)),
        (0..2_usize, 1..200_usize).prop_map(|(who, some)| Act::List(who, some)),
        (0..2_usize).prop_map(Act::Store),
        (0..2_usize).prop_map(Act::Read),
    ]
}

/// What a client makes of what it is told.
fn follow(seen: &mut BTreeMap<String, u64>, delivery: &Delivery) {
    let (object, gone) = match delivery {
        Delivery::Exact(change) => (
            &change.object,
            change.kind == yurt_storage::collection::ChangeKind::Deleted,
        ),
        Delivery::Current { object, .. } => (object, false),
        Delivery::Gone(object) => (object, true),
        Delivery::DiffBegin(_) | Delivery::DiffEnd { .. } => return,
    };
    if gone {
        seen.remove(object.name());
    } else {
        seen.insert(object.name().to_owned(), object.resource_version().0);
    }
}

fn read_on(replicas: &Replicas, client: &mut (Option<Reader>, BTreeMap<String, u64>)) {
    // Nothing is served that no store has.
    if !replicas.named(NAME).expect("services").durable().complete {
        return;
    }
    let (reader, seen) = client;
    let reader = reader.get_or_insert_with(|| {
        let snapshot = read(replicas, |held| held.snapshot(None));
        *seen = snapshot
            .objects
            .iter()
            .map(|object| (object.name().to_owned(), object.resource_version().0))
            .collect();
        snapshot.reader
    });
    loop {
        let told = read(replicas, |held| held.read(reader, 16)).expect("nobody has to start over");
        if told.is_empty() {
            return;
        }
        told.iter().for_each(|delivery| follow(seen, delivery));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 100, ..ProptestConfig::default() })]
    #[test]
    fn whoever_is_fed_all_end_with_the_truth(
        log in prop::collection::vec((0..180_u8, prop::bool::weighted(0.8)), 400),
        acts in prop::collection::vec(act(), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let pool = Pool::new().await;
            let coordinators = [pool.join(), pool.join()];
            let mut clients = [(None, BTreeMap::new()), (None, BTreeMap::new())];
            let list = |at: usize| truth(&log, at).iter().map(|(name, rv)| service(name, *rv)).collect::<Vec<_>>();
            let mut head = 0;
            for act in acts.iter().chain(&[Act::List(0, 400), Act::Store(0), Act::Store(1), Act::Read(0), Act::Read(1)]) {
                match *act {
                    Act::Feed(who, some) => update(&coordinators[who], |held| {
                        if !held.is_complete() {
                            return;
                        }
                        let at = usize::try_from(held.position().0).expect("small");
                        for at in at..log.len().min(at + some) {
                            let (event, object) = event(&log, at);
                            held.apply(event, object);
                        }
                    }),
                    Act::List(who, some) => {
                        head = log.len().min(head + some);
                        let at = ResourceVersion(head as u64);
                        // A list behind what is held is refused, and changes nothing.
                        drop(update(&coordinators[who], |held| held.replace(list(head), at)));
                    }
                    // Refused when the other one was fed more: then this one follows.
                    Act::Store(who) => drop(coordinators[who].persist(None).await),
                    Act::Read(who) => read_on(&coordinators[who], &mut clients[who]),
                }
            }
            let wanted: Vec<String> = truth(&log, 400).iter().map(|(name, rv)| format!("{name}@{rv}")).collect();
            for replicas in [&coordinators[0], &coordinators[1], &pool.join()] {
                assert_eq!(shown(replicas), wanted);
                assert_eq!(read(replicas, Collection::position), ResourceVersion(400));
            }
            for (_, seen) in &clients {
                assert_eq!(seen, &truth(&log, 400));
            }
        });
    }
}

#[tokio::test]
async fn replica_comes_and_goes_at_every_coordinator() {
    const LATE: &str = "late";
    let pool = Pool::new().await;
    let (one, other) = (pool.join(), pool.join());
    let kind = find_kind("", NAME).expect("services");
    let fed = one.add(LATE, kind).await.expect("added");
    fed.collection()
        .update(|held| held.restart(0, vec![service("a", 5), service("b", 6)], ResourceVersion(10)));
    one.persist(None).await.expect("stored");
    fed.collection()
        .update(|held| held.apply(EventType::Modified, service("a", 11)));
    one.persist(None).await.expect("stored");
    // The other was told before it had a place for it.
    let late = other.add(LATE, kind).await.expect("added");
    let held = |replica: &yurt_storage::Replica| replica.collection().read(|held| (held.position(), held.len()));
    assert_eq!((held(&late), late.durable().complete), ((ResourceVersion(11), 2), true));
    fed.collection()
        .update(|held| held.apply(EventType::Deleted, service("b", 12)));
    one.persist(None).await.expect("stored");
    assert_eq!(held(&late), (ResourceVersion(12), 1));

    one.remove(LATE).await.expect("given up");
    other.remove(LATE).await.expect("given up");
    one.forget(LATE).await.expect("deleted");
    let left: Vec<String> = pool
        .everybody
        .live
        .lock()
        .keys()
        .filter(|key| key.contains(LATE))
        .cloned()
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let again = other.add(LATE, kind).await.expect("added");
    assert_eq!(
        (held(&again), again.durable().complete),
        ((ResourceVersion(0), 0), false)
    );
}

/// One that holds what it could not store, while the other one stored more: it is brought forward by all that is stored.
#[tokio::test]
async fn coordinator_that_could_not_store_is_brought_forward_without_a_jump() {
    let pool = Pool::new().await;
    let (one, other) = (pool.join(), pool.join());
    let first = || vec![service("a", 5), service("b", 6)];
    update(&one, |held| held.restart(0, first(), ResourceVersion(10)));
    one.persist(None).await.expect("stored");
    for replicas in [&one, &other] {
        update(replicas, |held| held.apply(EventType::Modified, service("b", 11)));
    }
    update(&one, |held| held.apply(EventType::Added, service("c", 12)));
    update(&one, |held| held.apply(EventType::Deleted, service("a", 13)));
    one.persist(None).await.expect("stored");
    assert_eq!(shown(&other), ["b@11", "c@12"]);
    // A client that read at the other one knows more than was held here.
    let mut reader = read(&other, |held| held.open(ResourceVersion(12))).expect("nothing was jumped over");
    let told = read(&other, |held| held.read(&mut reader, 16)).expect("it goes on");
    let gone = |delivery: &Delivery| matches!(delivery, Delivery::Gone(object) if object.name() == "a");
    assert!(told.iter().any(gone), "{told:?}");
}
