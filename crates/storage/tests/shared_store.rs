//! Replicas that several coordinators share. All end with the same state, whichever of them is fed, and only the
//! guarded one writes.
//!
//! The store here is the embedded one with several sinks; the tests depend on transactions and the order of commits
//! only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use proptest::prelude::*;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceVersion, Space};
use yurt_collection::{Collection, Delivery, Limits, Reader};
use yurt_runtime::Clock;
use yurt_storage::backend::{Committed, Loaded, Sink};
use yurt_storage::contract::put;
use yurt_storage::{Action, Embedded, Expect, OnlyWriter as _, Op, Replicas, Storage, StorageError};

const NAME: &str = "services";

/// Passes commits on to every coordinator, and keeps the state that a new one would read.
#[derive(Default)]
struct Everybody {
    coordinators: Mutex<Vec<Arc<Replicas>>>,
    live: Mutex<BTreeMap<String, (ResourceVersion, Bytes)>>,
    /// A coordinator that receives nothing for now, and the commits held back.
    late: Mutex<Option<(Arc<Replicas>, Vec<Commit>)>>,
}

type Commit = (ResourceVersion, Vec<Committed>);

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
        let mut late = self.late.lock();
        for replicas in &*self.coordinators.lock() {
            match &mut *late {
                Some((late, missed)) if Arc::ptr_eq(late, replicas) => missed.push((rv, changes.to_vec())),
                _ => replicas.committed(rv, changes),
            }
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
        self.join_over(self.storage.clone())
    }

    /// A coordinator with a link of its own to the store.
    fn join_by_link(&self) -> (Arc<Replicas>, Arc<Link>) {
        let link = Arc::new(Link::to(self.storage.clone()));
        (self.join_over(link.clone()), link)
    }

    /// Rows of pool data in the store, pointers aside, by folder.
    fn folders(&self) -> BTreeMap<String, usize> {
        let mut folders = BTreeMap::new();
        for key in self.everybody.live.lock().keys() {
            if let [_, "~pool", NAME, folder, _, ..] = key.split('/').collect::<Vec<_>>()[..] {
                *folders.entry(folder.to_owned()).or_default() += 1;
            }
        }
        folders
    }

    /// Holds back the commits for `replicas` until [`Self::catch_up`].
    fn hold_back(&self, replicas: &Arc<Replicas>) {
        *self.everybody.late.lock() = Some((replicas.clone(), Vec::new()));
    }

    fn catch_up(&self) {
        let late = self.everybody.late.lock().take();
        let (replicas, missed) = late.expect("a coordinator was held back");
        missed.iter().for_each(|(rv, changes)| replicas.committed(*rv, changes));
    }

    fn join_over(&self, storage: Arc<dyn Storage>) -> Arc<Replicas> {
        let kinds = [(NAME.to_owned(), find_kind("", NAME).expect("services are built in"))];
        let replicas = Arc::new(Replicas::shared(&kinds, storage));
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

/// The store as seen by one coordinator: with limits, with late answers, or with none.
struct Link {
    store: Arc<dyn Storage>,
    /// Maximum bytes of the values of one transaction; above it the store rejects it, like etcd.
    request_bytes_max: AtomicUsize,
    /// Limit of a value that is known beforehand.
    value_bytes_max: Option<usize>,
    fails: AtomicBool,
    /// Number of transactions requested, and those that are still held back.
    asked: AtomicUsize,
    waiting: AtomicUsize,
    /// Transactions that write a key containing this text have to wait.
    held: tokio::sync::watch::Sender<Option<&'static str>>,
}

impl Link {
    fn to(store: Arc<dyn Storage>) -> Self {
        Self {
            store,
            request_bytes_max: AtomicUsize::new(usize::MAX),
            value_bytes_max: None,
            fails: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            held: tokio::sync::watch::Sender::new(None),
        }
    }

    fn hold(&self, key: &'static str) {
        self.held.send_replace(Some(key));
    }

    fn let_go(&self) {
        self.held.send_replace(None);
    }

    /// Resolves when a transaction waits here.
    async fn is_waited_for(&self) {
        while self.waiting.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    }
}

impl Storage for Link {
    fn id(&self) -> &str {
        self.store.id()
    }

    fn attach(&self, sink: Arc<dyn Sink>) -> BoxFuture<'_, Result<(), StorageError>> {
        self.store.attach(sink)
    }

    fn write(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<ResourceVersion, StorageError>> {
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let written = |op: &Op| !matches!(op.action, Action::Check);
            let is_held = |held: &Option<&str>| {
                held.is_some_and(|held| ops.iter().any(|op| written(op) && op.key.contains(held)))
            };
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let let_through = self.held.subscribe().wait_for(|held| !is_held(held)).await.is_ok();
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            assert!(let_through, "the sender is here");
            if self.fails.load(Ordering::SeqCst) {
                return Err(StorageError::Unavailable("the link is down".into()));
            }
            let size = |op: &Op| match &op.action {
                Action::Put(value, _) => value.bytes().len(),
                Action::Delete { .. } | Action::Check => 0,
            };
            if ops.iter().map(size).sum::<usize>() > self.request_bytes_max.load(Ordering::SeqCst) {
                return Err(StorageError::TooManyBytes("etcdserver: request is too large".into()));
            }
            self.store.write(ops).await
        })
    }

    fn value_bytes_max(&self) -> Option<usize> {
        self.value_bytes_max
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StorageError>> {
        self.store.close()
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

/// A service of about so many bytes.
fn large(name: &str, rv: u64, bytes: usize) -> Object {
    let padding = "x".repeat(bytes);
    let json = format!(
        r#"{{"metadata":{{"namespace":"x","name":"{name}","uid":"{name}","resourceVersion":"{rv}"}},"data":"{padding}"}}"#
    );
    Object::parse(Bytes::from(json), find_kind("", NAME).expect("services")).expect("fixture")
}

/// A call whose caller goes away after its first step.
fn abandon(call: impl Future) {
    assert!(call.now_or_never().is_none(), "it has to wait for the store");
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
    // A fact remains valid: the next leader that feeds here stores it.
    one.persist(Some(&guard(second))).await.expect("the new leader writes");
    assert_eq!(shown(&other), ["a@5", "b@11"]);
    // A new timeline does not: only the leader that began it may store it.
    update(&one, |held| held.restart(1, vec![], ResourceVersion(3)));
    assert!(one.persist(Some(&guard(first))).await.is_err());
    assert_eq!((shown(&one), read(&one, Collection::generation)), (shown(&other), 0));
    one.persist(Some(&guard(second))).await.expect("nothing is left of it");
    assert_eq!(
        (shown(&other), read(&other, Collection::generation)),
        (vec!["a@5".to_owned(), "b@11".to_owned()], 0)
    );
}

/// Changes in the cloud: at RV n+1 the key of step n was put, or deleted.
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
    /// This coordinator receives so many events.
    Feed(usize, usize),
    /// This coordinator receives the present state, by a list.
    List(usize, usize),
    /// This coordinator stores its state.
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

/// Applies a delivery to a client's state.
fn follow(seen: &mut BTreeMap<String, u64>, delivery: &Delivery) {
    let (object, gone) = match delivery {
        Delivery::Exact(change) => (&change.object, change.kind == yurt_collection::ChangeKind::Deleted),
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
    // Nothing is served that is not stored.
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
        let told = read(replicas, |held| held.read(reader, 16)).expect("no reader has to start over");
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
                        // A list older than the held state is rejected, and changes nothing.
                        drop(update(&coordinators[who], |held| held.replace(list(head), at)));
                    }
                    // Rejected if the other one was fed more: then this one follows.
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
    // The other received it before it had the replica.
    let late = other.add(LATE, kind).await.expect("added");
    let held = |replica: &yurt_storage::Replica| replica.collection().read(|held| (held.position(), held.len()));
    assert_eq!((held(&late), late.durable().complete), ((ResourceVersion(11), 2), true));
    fed.collection()
        .update(|held| held.apply(EventType::Deleted, service("b", 12)));
    one.persist(None).await.expect("stored");
    assert_eq!(held(&late), (ResourceVersion(12), 1));

    one.remove(LATE).await.expect("given up");
    other.remove(LATE).await.expect("given up");
    one.forget(LATE, None).await.expect("deleted");
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

/// A coordinator that could not store its state, while the other one stored more, catches up with the stored rows.
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

/// The store's own limit may differ from the one that is known here.
#[tokio::test]
async fn object_that_the_store_refuses_is_named_leaves_nothing_and_is_not_tried_again() {
    let pool = Pool::new().await;
    let (one, link) = pool.join_by_link();
    let other = pool.join();
    let list = (0..300).map(|n| service(&format!("s{n:03}"), 5 + n)).collect();
    update(&one, |held| held.restart(0, list, ResourceVersion(1000)));
    one.persist(None).await.expect("all of it fits");
    let before = pool.folders();
    link.request_bytes_max.store(3 << 19, Ordering::SeqCst);
    let huge = large("zz", 1001, 2 << 20);
    assert_eq!(one.admit(NAME, &huge), Ok(()), "nothing is known of a limit yet");
    update(&one, |held| held.apply(EventType::Added, huge.clone()));
    let refused = one.persist(None).await;
    let Err(StorageError::Oversized {
        collection, key, bytes, ..
    }) = &refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(
        (collection.as_str(), key.as_str(), *bytes),
        (NAME, "x/zz", huge.bytes().len())
    );
    assert_eq!(pool.folders(), before, "what was filled in vain is gone");
    assert_eq!(shown(&one), shown(&other), "unstored state is dropped everywhere");
    assert_eq!(read(&one, Collection::position), ResourceVersion(1000));
    let asked = link.asked.load(Ordering::SeqCst);
    one.persist(None).await.expect("there is nothing to do");
    assert_eq!(link.asked.load(Ordering::SeqCst), asked, "the store is not asked again");
    let named = one.admit(NAME, &huge);
    assert!(matches!(named, Err(StorageError::Oversized { .. })), "{named:?}");
    assert_eq!(one.admit(NAME, &large("zz", 1002, 1 << 20)), Ok(()));
    // A smaller object is stored, and so is everything after it.
    update(&one, |held| held.apply(EventType::Added, large("zz", 1002, 1 << 20)));
    one.persist(None).await.expect("it fits");
    assert_eq!(shown(&other).last().map(String::as_str), Some("zz@1002"));
    assert_eq!(pool.folders().len(), 1);
}

#[tokio::test]
async fn known_limit_is_told_before_anything_is_applied() {
    let pool = Pool::new().await;
    let link = Link {
        value_bytes_max: Some(1000),
        ..Link::to(pool.storage.clone())
    };
    let one = pool.join_over(Arc::new(link));
    let huge = large("a", 5, 1000);
    let text = one.admit(NAME, &huge).expect_err("it is too large").to_string();
    let said = format!("services x/a has {} bytes", huge.bytes().len());
    assert!(text.contains(&said) && text.contains("limit is 1000 bytes"), "{text}");
    assert_eq!(one.admit(NAME, &large("a", 5, 800)), Ok(()));
}

#[tokio::test]
async fn store_that_takes_less_at_a_time_gets_it_in_smaller_pieces() {
    let pool = Pool::new().await;
    let (one, link) = pool.join_by_link();
    link.request_bytes_max.store(10_000, Ordering::SeqCst);
    let list = (0..100).map(|n| large(&format!("s{n:03}"), 5 + n, 3000)).collect();
    update(&one, |held| held.restart(0, list, ResourceVersion(1000)));
    one.persist(None).await.expect("every one of them fits");
    // A change that would be one transaction elsewhere.
    for n in 0..100 {
        update(&one, |held| {
            held.apply(EventType::Modified, large(&format!("s{n:03}"), 1001 + n, 3000))
        });
    }
    one.persist(None).await.expect("every one of them fits");
    assert_eq!(shown(&pool.join()), shown(&one));
    assert_eq!(pool.folders().values().collect::<Vec<_>>(), [&100]);
}

/// The leader aborts a call after a while, and repeats it.
#[tokio::test]
async fn commit_that_nobody_waits_for_is_finished_and_found_by_its_repetition() {
    let pool = Pool::new().await;
    let (one, link) = pool.join_by_link();
    update(&one, |held| held.restart(0, vec![service("a", 5)], ResourceVersion(10)));
    link.hold("/o/");
    abandon(one.persist(None));
    link.is_waited_for().await;
    // The repetition, aborted like the first call; a change has happened in between.
    update(&one, |held| held.apply(EventType::Added, service("b", 11)));
    abandon(one.persist(None));
    link.let_go();
    one.persist(None).await.expect("stored");
    assert_eq!(
        link.asked.load(Ordering::SeqCst),
        3,
        "one row, the pointer, and what came since"
    );
    let services = one.named(NAME).expect("services");
    assert!(services.is_served());
    assert_eq!(services.durable().position, ResourceVersion(11));
    assert_eq!(shown(&pool.join()), ["a@5", "b@11"]);
    assert_eq!(pool.folders().len(), 1);
}

#[tokio::test]
async fn commit_that_fails_when_nobody_waits_any_more_loses_nothing() {
    let pool = Pool::new().await;
    let (one, link) = pool.join_by_link();
    update(&one, |held| held.restart(0, vec![service("a", 5)], ResourceVersion(10)));
    one.persist(None).await.expect("stored");
    for (rv, held_key) in [(11, "/o/"), (13, "/pointer")] {
        update(&one, |held| {
            held.apply(EventType::Added, service(&format!("b{rv}"), rv))
        });
        link.hold(held_key);
        abandon(one.persist(None));
        link.is_waited_for().await;
        link.fails.store(true, Ordering::SeqCst);
        link.let_go();
        assert!(one.persist(None).await.is_err(), "the store is still away");
        link.fails.store(false, Ordering::SeqCst);
        update(&one, |held| {
            held.apply(EventType::Added, service(&format!("c{rv}"), rv + 1))
        });
        one.persist(None).await.expect("it is back");
    }
    assert_eq!(shown(&pool.join()), ["a@5", "b11@11", "b13@13", "c11@12", "c13@14"]);
    assert_eq!(pool.folders().len(), 1);
}

#[tokio::test]
async fn commit_that_another_one_overtakes_leaves_nothing() {
    let pool = Pool::new().await;
    let (one, link) = pool.join_by_link();
    let guard = Op {
        action: Action::Check,
        ..put("epoch", Expect::At(ResourceVersion(7)), "")
    };
    update(&one, |held| held.restart(0, vec![service("a", 5)], ResourceVersion(10)));
    assert!(one.persist(Some(&guard)).await.is_err(), "another leader is elected");
    assert_eq!(
        link.asked.load(Ordering::SeqCst),
        1,
        "not one row is written for a leader of before"
    );

    let list = (0..300).map(|n| service(&format!("s{n:03}"), 5 + n)).collect();
    update(&one, |held| held.restart(0, list, ResourceVersion(1000)));
    link.hold("s299");
    let failing = async {
        link.is_waited_for().await;
        while pool.folders().is_empty() {
            tokio::task::yield_now().await;
        }
        link.is_waited_for().await;
        // Another coordinator stores something in the meantime.
        let other = pool.join();
        update(&other, |held| {
            held.restart(1, vec![service("b", 3)], ResourceVersion(4))
        });
        other.persist(None).await.expect("stored");
        link.let_go();
    };
    let (stored, ()) = tokio::join!(one.persist(None), failing);
    stored.expect("the other one has more to say");
    assert_eq!(shown(&one), ["b@3"]);
    assert_eq!(pool.folders().values().collect::<Vec<_>>(), [&1]);
}

/// The election is compared again with the pointer: by then the folder is complete, but useless.
#[tokio::test]
async fn folder_of_a_leader_that_was_replaced_meanwhile_is_deleted_at_once() {
    let pool = Pool::new().await;
    let (one, link) = pool.join_by_link();
    let elect = async |before, epoch| {
        let elected = pool.storage.write(vec![put("epoch", before, epoch)]).await;
        elected.expect("election")
    };
    let first = elect(Expect::Absent, "1").await;
    let guard = Op {
        action: Action::Check,
        ..put("epoch", Expect::At(first), "")
    };
    let list = (0..300).map(|n| service(&format!("s{n:03}"), 5 + n)).collect();
    update(&one, |held| held.restart(0, list, ResourceVersion(1000)));
    link.hold("/pointer");
    let replaced = async {
        while pool.folders().values().sum::<usize>() < 300 {
            tokio::task::yield_now().await;
        }
        elect(Expect::At(first), "2").await;
        link.let_go();
    };
    let (refused, ()) = tokio::join!(one.persist(Some(&guard)), replaced);
    assert!(
        matches!(&refused, Err(StorageError::Conflict { key, .. }) if key.ends_with("/epoch")),
        "{refused:?}"
    );
    assert_eq!(pool.folders(), BTreeMap::new());
}

#[tokio::test]
async fn folders_of_a_coordinator_that_died_are_deleted_once_nothing_comes_into_them() {
    let pool = Pool::new().await;
    let fill = async |folder: &str, name: &str| {
        let row = Op {
            key: format!("/~pool/{NAME}/{folder}/o/x/{name}"),
            ..put("", Expect::Any, "")
        };
        pool.storage.write(vec![row]).await.expect("a row");
    };
    tokio::time::pause();
    fill("dead", "a").await;
    fill("alive", "a").await;
    let one = pool.join();
    update(&one, |held| held.restart(0, vec![service("a", 5)], ResourceVersion(10)));
    let left = || pool.folders().into_keys().collect::<BTreeSet<_>>();
    one.persist_due(None).await.expect("nothing is wrong");
    // The first commit of a collection deletes what is not part of it.
    assert_eq!(left().len(), 1);
    fill("dead", "a").await;
    fill("alive", "a").await;
    tokio::time::advance(Duration::from_secs(59)).await;
    // Delivered in the test's own thread, where the clock is the paused one.
    pool.hold_back(&one);
    fill("alive", "b").await;
    pool.catch_up();
    one.persist_due(None).await.expect("nothing is wrong");
    assert!(left().contains("dead"), "another coordinator may be filling it");
    tokio::time::advance(Duration::from_secs(2)).await;
    one.persist_due(None).await.expect("nothing is wrong");
    assert!(!left().contains("dead") && left().contains("alive"), "{:?}", left());
    // Also one that starts, and has nothing to store, cleans up.
    let other = pool.join();
    tokio::time::advance(Duration::from_secs(61)).await;
    other.persist_due(None).await.expect("nothing is wrong");
    assert_eq!(left().len(), 1);
    assert_eq!(shown(&pool.join()), ["a@5"]);
}

/// The pointer must not name a folder that was filled for too long and deleted in the meantime.
#[tokio::test]
async fn pointer_never_names_a_folder_of_which_a_part_is_gone() {
    let pool = Pool::new().await;
    let (slow, link) = pool.join_by_link();
    let other = pool.join();
    let list = (0..300).map(|n| service(&format!("s{n:03}"), 5 + n)).collect();
    update(&slow, |held| held.restart(0, list, ResourceVersion(1000)));
    link.hold("/pointer");
    let sweep = async {
        link.is_waited_for().await;
        while pool.folders().values().sum::<usize>() < 300 {
            tokio::task::yield_now().await;
        }
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(61)).await;
        other.persist_due(None).await.expect("nothing is wrong");
        assert!(pool.folders().is_empty());
        link.let_go();
    };
    let (stored, ()) = tokio::join!(slow.persist(None), sweep);
    stored.expect("it fills another one");
    assert_eq!(shown(&pool.join()).len(), 300);
}

/// Each builds upon the same commit, and the second has not received the first commit.
#[tokio::test]
async fn commit_upon_a_pointer_that_has_moved_is_refused() {
    let pool = Pool::new().await;
    let (one, other) = (pool.join(), pool.join());
    update(&one, |held| held.restart(0, vec![service("a", 5)], ResourceVersion(10)));
    one.persist(None).await.expect("stored");
    pool.hold_back(&other);
    update(&one, |held| held.apply(EventType::Added, service("b", 11)));
    update(&one, |held| held.apply(EventType::Added, service("c", 13)));
    one.persist(None).await.expect("stored");
    update(&other, |held| held.apply(EventType::Added, service("b", 11)));
    let refused = other.persist(None).await;
    assert!(matches!(refused, Err(StorageError::Unavailable(_))), "{refused:?}");
    assert_eq!(shown(&pool.join()), ["a@5", "b@11", "c@13"]);
    pool.catch_up();
    other.persist(None).await.expect("the store has more");
    assert_eq!(shown(&other), ["a@5", "b@11", "c@13"]);
}

/// A list's result at one coordinator is the difference from its own state, not from that of another one.
#[tokio::test]
async fn step_is_applied_to_the_state_it_builds_upon_only() {
    let pool = Pool::new().await;
    let (other, link) = pool.join_by_link();
    let one = pool.join();
    update(&one, |held| held.restart(0, vec![service("a", 5)], ResourceVersion(10)));
    one.persist(None).await.expect("stored");
    assert_eq!(shown(&other), ["a@5"]);
    // It holds more than any commit, and is about to store it.
    update(&other, |held| held.apply(EventType::Added, service("gone", 11)));
    link.hold("/pointer");
    abandon(other.persist(None));
    link.is_waited_for().await;
    // This one never received the object that came and went, so its commit contains no deletion of it.
    update(&one, |held| {
        held.replace(vec![service("a", 5), service("b", 12)], ResourceVersion(15))
    })
    .expect("a list");
    one.persist(None).await.expect("stored");
    assert_eq!(shown(&other), ["a@5", "b@12"]);
    link.let_go();
    other.persist(None).await.expect("the store has more");
    assert_eq!(shown(&other), ["a@5", "b@12"]);
}

/// The followers have received every deletion, and a coordinator that starts needs those after the floor alone.
#[tokio::test]
async fn rows_of_forgotten_deletions_leave_the_store() {
    let pool = Pool::new().await;
    let (one, other) = (pool.join(), pool.join());
    let limits = Limits {
        tombstones: 3,
        ..Limits::default()
    };
    update(&one, |held| held.set_limits(limits));
    update(&one, |held| held.restart(0, vec![service("a", 5)], ResourceVersion(10)));
    for n in 0..20 {
        let name = format!("b{n}");
        update(&one, |held| held.apply(EventType::Added, service(&name, 11 + 2 * n)));
        one.persist(None).await.expect("stored");
        update(&one, |held| held.apply(EventType::Deleted, service(&name, 12 + 2 * n)));
        one.persist(None).await.expect("stored");
        assert_eq!(shown(&other), ["a@5"]);
    }
    let rows: Vec<usize> = pool.folders().into_values().collect();
    assert_eq!(rows, [4], "the object and three deletions");
    let late = pool.join();
    let floor = read(&one, Collection::floor);
    assert_eq!((read(&late, Collection::floor), shown(&late)), (floor, shown(&one)));
    let mut reader = read(&late, |held| held.open(floor)).expect("it is within history");
    let told = read(&late, |held| held.read(&mut reader, 16)).expect("it goes on");
    let gone = told.iter().filter(|delivery| matches!(delivery, Delivery::Gone(_)));
    assert_eq!(gone.count(), 3, "{told:?}");
}

/// More is deleted at once than the history holds: the oldest deletions are forgotten before they are stored.
#[tokio::test]
async fn deletion_that_is_forgotten_before_it_is_stored_reaches_the_other_coordinators() {
    let pool = Pool::new().await;
    let (one, other) = (pool.join(), pool.join());
    let bytes_min = 4 * service("b0", 5).size();
    let limits = Limits {
        bytes_min,
        ..Limits::default()
    };
    update(&one, |held| held.set_limits(limits));
    let all: Vec<_> = (0..20).map(|n| service(&format!("b{n}"), 5 + n)).collect();
    update(&one, |held| held.restart(0, all, ResourceVersion(30)));
    one.persist(None).await.expect("stored");
    assert_eq!(shown(&other).len(), 20);
    for n in 0..19 {
        update(&one, |held| {
            held.apply(EventType::Deleted, service(&format!("b{n}"), 31 + n));
        });
    }
    one.persist(None).await.expect("stored");
    assert_eq!((shown(&one), shown(&other)), (shown(&other), vec!["b19@24".to_owned()]));
}

/// An administrator voids it: no coordinator may serve what it holds in memory, or store it again.
#[tokio::test]
async fn deleted_data_is_dropped_by_every_coordinator() {
    let pool = Pool::new().await;
    let (one, other, late) = (pool.join(), pool.join(), pool.join());
    update(&one, |held| held.restart(7, vec![service("a", 5)], ResourceVersion(10)));
    one.persist(None).await.expect("stored");
    assert_eq!(shown(&other), ["a@5"]);
    // Fed there, and not stored yet.
    update(&other, |held| held.apply(EventType::Added, service("b", 11)));
    pool.hold_back(&late);
    let record = put("void", Expect::Absent, "1");
    one.forget(NAME, Some(record.clone())).await.expect("deleted");
    assert!(pool.everybody.live.lock().contains_key(&record.key), "in the same step");
    for coordinator in [&one, &other] {
        let services = coordinator.named(NAME).expect("services");
        assert!(!services.is_served() && shown(coordinator).is_empty());
        coordinator.persist(None).await.expect("there is nothing to store");
    }
    assert!(!pool.everybody.live.lock().keys().any(|key| key.starts_with("/~pool/")));
    // One that missed the commits reads everything again.
    assert_eq!(shown(&late), ["a@5"]);
    late.load(&Loaded::default());
    assert!(shown(&late).is_empty());
}
