//! A store that fails or stalls under a snapshot.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use yurt_apimachinery::kind::find_kind;
use yurt_pool_protocol::fence::Fence;
use yurt_runtime::{Clock, FakeClock, TaskGroup};
use yurt_storage::backend::{Committed, Loaded, Sink};
use yurt_storage::embedded::replicas::ReplicaStore;
use yurt_storage::embedded::{Disk, FileBackend, LockedFile};
use yurt_storage::kinds::Kinds;
use yurt_storage::{Action, Embedded, Expect, Replicas, SharedCollection, StorageError};

use futures_util::FutureExt as _;
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;
use yurt_test_support::eventually;

use super::*;
use crate::authn::{NODE_PREFIX, NODES};
use crate::feed::collection::{PoolCollections, SinceVoid};
use crate::feed::members::{InitialMembers, Members, Policy};
use crate::feed::scope::{SCOPE_KEY, Scope};
use crate::feed::void::Voids;
use crate::feed::{FeedMetrics, Parts};

/// A file whose writes fail on request, and wait while its gate is held.
#[derive(Debug)]
struct Faulty {
    file: LockedFile,
    fails: AtomicBool,
    is_held: Mutex<bool>,
    let_go: Condvar,
    /// Gets a permit for each write that reaches the gate.
    reached: Notify,
}

impl Faulty {
    fn open(path: &std::path::Path) -> Arc<Self> {
        Arc::new(Self {
            file: LockedFile::open(path).unwrap(),
            fails: AtomicBool::new(false),
            is_held: Mutex::default(),
            let_go: Condvar::new(),
            reached: Notify::new(),
        })
    }

    fn hold(&self, held: bool) {
        *self.is_held.lock() = held;
        self.let_go.notify_all();
    }

    fn check(&self) -> io::Result<()> {
        self.reached.notify_one();
        self.let_go.wait_while(&mut self.is_held.lock(), |held| *held);
        let fails = self.fails.load(Ordering::Relaxed);
        if fails {
            Err(io::Error::other("the disk is broken"))
        } else {
            Ok(())
        }
    }
}

impl FileBackend for Faulty {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.file.write_at(offset, data)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.check()?;
        self.file.set_size(size)
    }

    fn sync(&self) -> io::Result<()> {
        self.check()?;
        self.file.sync()
    }
}

/// Publishes nothing.
struct Nobody;

impl Sink for Nobody {
    fn load(&self, _: Loaded) -> Result<(), StorageError> {
        Ok(())
    }

    fn committed(&self, _: ResourceVersion, _: &[Committed]) {}

    fn reloaded(&self, _: Loaded) {}
}

/// Breaks the disk after each commit.
struct Breaking(Arc<Faulty>);

impl Sink for Breaking {
    fn load(&self, _: Loaded) -> Result<(), StorageError> {
        Ok(())
    }

    fn committed(&self, _: ResourceVersion, _: &[Committed]) {
        self.0.fails.store(true, Ordering::Relaxed);
    }

    fn reloaded(&self, _: Loaded) {}
}

/// A disk that fails on demand, over a file of its own.
struct FaultyDisk {
    _folder: tempfile::TempDir,
    medium: Arc<Faulty>,
    hand: FakeClock,
    disk: Arc<Disk>,
}

impl FaultyDisk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.redb");
        let medium = Faulty::open(&path);
        let (clock, hand) = Clock::fake();
        Self {
            disk: Disk::open_on(&path, medium.clone(), clock).unwrap(),
            _folder: folder,
            medium,
            hand,
        }
    }

    fn fail(&self) {
        self.medium.fails.store(true, Ordering::Relaxed);
    }

    /// The disk works again, and its next write is due: a failed disk is not retried for a while.
    fn recover(&self) {
        self.medium.fails.store(false, Ordering::Relaxed);
        self.hand.advance(std::time::Duration::from_secs(60));
    }
}

/// The feed of Services and Endpoints over `disk`, with node n1 as the leader.
fn feed_on(disk: &Arc<Disk>) -> (Arc<Feed>, Arc<PoolCollection>) {
    feed_of(disk, crate::config::POOL_BYTES_MAX)
}

/// As [`feed_on`], with this limit of its bytes.
fn feed_of(disk: &Arc<Disk>, bytes_max: usize) -> (Arc<Feed>, Arc<PoolCollection>) {
    let [services, endpoints, leases] =
        [("", "services"), ("", "endpoints"), ("coordination.k8s.io", "leases")].map(|(g, r)| find_kind(g, r).unwrap());
    let store = ReplicaStore::open(disk.clone()).unwrap();
    let kinds = [("services".to_owned(), services), ("endpoints".to_owned(), endpoints)];
    let replicas = Replicas::open(&kinds, Some(store)).unwrap();
    let collections = PoolCollections::new(replicas.iter());
    let collection = collections.named("services").unwrap();
    let fence = Arc::new(Fence::new("s"));
    let record = fence.election().next("n1_1", None).encode();
    fence.published(ResourceVersion(1), &record).unwrap();
    let policy = Policy {
        initial: InitialMembers::parse("n1"),
        takes_leaders: false,
        trusts_first: false,
    };
    let initial = policy.initial.read().unwrap();
    let collections = Arc::new(collections);
    let (clock, _) = Clock::fake();
    let own = Embedded::on(disk.clone(), clock.clone(), yurt_apimachinery::Space::Own).unwrap();
    let parts = Parts {
        fence,
        members: Arc::new(Members::new(policy, initial, collections.clone())),
        scope: Arc::new(Scope::new(std::slice::from_ref(&collection))),
        voids: Arc::new(Voids::new(collections.clone())),
        collections,
        replicas: Arc::new(replicas),
        storage: Arc::new(own),
        leases: Arc::new(SharedCollection::new(leases, false)),
        calls: TaskGroup::new(),
        bytes_max,
        folder: std::env::temp_dir(),
    };
    let metrics = FeedMetrics::new(&prometheus::Registry::new()).unwrap();
    (Arc::new(Feed::new(parts, clock, metrics)), collection)
}

async fn take(feed: &Arc<Feed>, path: &str, mut body: Value) -> Result<Value, FeedError> {
    body["store"] = json!("s");
    body["epoch"] = json!(feed.fence.election().epoch);
    if body.get("generation").is_none() {
        body["generation"] = json!(0);
    }
    body["fresh"] = json!(true);
    let user = User::new(&format!("{NODE_PREFIX}n1"), &[NODES]);
    feed.take(
        &user,
        path,
        bytes::Bytes::from(body.to_string()).into(),
        &Arc::default(),
    )
    .await
}

/// The first list of a pool in `generation`, as its leader feeds it.
async fn feed_list(feed: &Arc<Feed>, generation: u64) -> Result<Value, FeedError> {
    let service = json!({"metadata": {"namespace": "x", "name": "a", "uid": "u", "resourceVersion": "5"}});
    let index = json!({"generation": generation, "after": "0", "at": "7", "index": [["x/a", "5"]]});
    let answer = take(feed, "services/snapshot", index).await?;
    if answer["missing"] == json!([]) {
        return Ok(answer);
    }
    let bodies = json!({"generation": generation, "at": "7", "objects": [service], "last": true});
    take(feed, "services/snapshot/bodies", bodies).await
}

/// The lease may change hands between the arrival of a call and the fence. The one that the fence admits has fed.
#[tokio::test]
async fn call_that_the_fence_admits_is_recorded_as_its_nodes() {
    let disk = FaultyDisk::new();
    let (feed, _) = feed_on(&disk.disk);
    let voided = || {
        let replica = feed.replicas.named("services").unwrap();
        feed.collections
            .insert(PoolCollection::new(replica).with_feeders(Some(SinceVoid::default())));
        feed.collections.named("services").unwrap()
    };
    let [leader, other] = ["n1", "n2"].map(|node| User::new(&format!("{NODE_PREFIX}{node}"), &[NODES]));
    let list = br#"{"store": "s", "epoch": 1, "generation": 0, "at": "7", "index": []}"#;
    let collection = voided();
    assert!(feed.take_snapshot(&collection, &other, list).await.is_err());
    assert_eq!(collection.sole_feeder(), None);
    feed.take_snapshot(&collection, &leader, list).await.unwrap();
    assert_eq!(collection.sole_feeder().as_deref(), Some("n1"));
    let events =
        br#"{"store": "s", "epoch": 1, "generation": 0, "after": "7", "upTo": "8", "events": [], "fresh": true}"#;
    let collection = voided();
    feed.take_events(&collection, &leader, events).await.unwrap();
    assert_eq!(collection.sole_feeder().as_deref(), Some("n1"));
}

#[tokio::test]
async fn store_that_fails_under_the_first_list_leaves_it_unserved_until_it_is_stored() {
    let disk = FaultyDisk::new();
    let (feed, collection) = feed_on(&disk.disk);
    disk.fail();
    for _ in 0..2 {
        assert!(
            matches!(feed_list(&feed, 0).await, Err(FeedError::Status(_))),
            "the leader gets the error"
        );
        assert!(!collection.is_served(), "data that a crash would undo is not served");
        let events = json!({"after": "7", "events": [], "upTo": "7"});
        // A later fresh call does not make it ready either.
        let _ = take(&feed, "services/events", events).await;
        assert!(!collection.is_served());
    }
    assert!(!feed.state().collections["services"].complete);
    disk.recover();
    feed_list(&feed, 0).await.unwrap();
    assert!(collection.is_served());
    assert_eq!(collection.objects().read(Collection::len), 1);
}

/// A crash would go back to serving the generation before.
#[tokio::test]
async fn store_that_fails_under_a_new_generation_leaves_it_unserved_until_it_is_stored() {
    let disk = FaultyDisk::new();
    let (feed, collection) = feed_on(&disk.disk);
    feed_list(&feed, 0).await.unwrap();
    assert!(collection.is_served());
    disk.fail();
    assert!(matches!(feed_list(&feed, 9).await, Err(FeedError::Status(_))));
    assert!(!collection.is_served(), "data that a crash would undo is not served");
    disk.recover();
    feed_list(&feed, 9).await.unwrap();
    assert!(collection.is_served());
}

/// The cloud counts µs. After a crash nothing but the mark shows which RVs readers know.
#[tokio::test]
async fn changes_above_the_mark_wait_for_the_disk() {
    let disk = FaultyDisk::new();
    let (feed, collection) = feed_on(&disk.disk);
    let (first, hour) = (1_760_000_000_000_000_u64, 3_600_000_000);
    let index = json!({"after": "0", "at": first.to_string(), "index": []});
    take(&feed, "services/snapshot", index).await.unwrap();
    disk.fail();
    let events = |after: u64, to: u64| {
        let body = json!({"after": after.to_string(), "events": [], "upTo": to.to_string()});
        take(&feed, "services/events", body)
    };
    let position = || collection.objects().read(Collection::position).0;
    events(first, first + hour).await.expect("the mark is further ahead");
    let refused = events(first + hour, first + 24 * hour).await;
    assert!(matches!(refused, Err(FeedError::Status(_))), "{refused:?}");
    let listed = json!({"at": (first + 24 * hour).to_string(), "index": []});
    let refused = take(&feed, "services/snapshot", listed.clone()).await;
    assert!(matches!(refused, Err(FeedError::Status(_))), "{refused:?}");
    assert_eq!(
        (position(), collection.is_served()),
        (first + hour, true),
        "held data is served"
    );
    disk.recover();
    take(&feed, "services/snapshot", listed).await.unwrap();
    events(first + 24 * hour, first + 48 * hour).await.unwrap();
    assert_eq!(position(), first + 48 * hour);
    disk.fail();
    events(first + 48 * hour, first + 49 * hour)
        .await
        .expect("a mark was stored");
}

/// The leader's call is dropped during the commit: by its time-out, a reset, or the end of its leadership.
#[tokio::test]
async fn call_whose_leader_hangs_up_during_the_commit_is_finished_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let medium = Faulty::open(&path);
    let (clock, _) = Clock::fake();
    let disk = Disk::open_on(&path, medium.clone(), clock.clone()).unwrap();
    let (feed, collection) = feed_on(&disk);
    let service = json!({"metadata": {"namespace": "x", "name": "a", "uid": "u", "resourceVersion": "5"}});
    let index = json!({"after": "0", "at": "7", "index": [["x/a", "5"]]});
    take(&feed, "services/snapshot", index).await.unwrap();
    let bodies = json!({"at": "7", "objects": [service], "last": true});
    // Permits of earlier writes.
    while medium.reached.notified().now_or_never().is_some() {}
    medium.hold(true);
    tokio::select! {
        biased;
        answer = take(&feed, "services/snapshot/bodies", bodies) => panic!("the disk is blocked: {answer:?}"),
        () = medium.reached.notified() => {}
    }
    medium.hold(false);
    eventually("the snapshot is stored and shown", async || {
        collection.is_served().then_some(())
    })
    .await;
    eventually("the leader's word counts", async || {
        collection.is_fresh(clock.boot()).then_some(())
    })
    .await;
}

/// Another hub was elected, and the store has the new record before the fence does.
#[tokio::test]
async fn scope_of_a_leader_that_the_store_has_replaced_is_not_stored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let disk = Disk::open_on(&path, Faulty::open(&path), Clock::fake().0).unwrap();
    let (feed, _) = feed_on(&disk);
    feed.storage.attach(Arc::new(Nobody)).await.unwrap();
    let user = User::new(&format!("{NODE_PREFIX}n1"), &[NODES]);
    let body = json!({"store": "s", "epoch": 1, "resources": []}).to_string();
    // The fixture's record is only in the fence: the store does not have the record of the leader's
    // election.
    let refused = feed.take_scope(&user, body.as_bytes(), |_| Ok(())).await;
    assert!(matches!(refused, Err(FeedError::Refused(Refusal::Fenced { .. }))));
    let absent = Op {
        key: SCOPE_KEY.to_owned(),
        expect: Expect::Absent,
        action: Action::Check,
    };
    feed.storage.write(vec![absent]).await.expect("no record was written");
}

#[tokio::test]
async fn answer_names_a_bounded_number_of_missing_bodies() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let disk = Disk::open_on(&path, Faulty::open(&path), Clock::fake().0).unwrap();
    let (feed, _) = feed_on(&disk);
    let rows: Vec<Value> = (0..=MISSING_MAX).map(|n| json!([format!("x/{n:06}"), "5"])).collect();
    let named = take(&feed, "services/snapshot", json!({"at": "7", "index": rows}))
        .await
        .unwrap();
    assert_eq!(named["missing"].as_array().unwrap().len(), MISSING_MAX);
    let first = json!({"metadata": {"namespace": "x", "name": "000000", "uid": "u", "resourceVersion": "5"}});
    let left = take(
        &feed,
        "services/snapshot/bodies",
        json!({"at": "7", "objects": [first]}),
    )
    .await
    .unwrap();
    assert_eq!(left["missing"], MISSING_MAX);
}

fn is_too_large(answer: &Result<Value, FeedError>) -> bool {
    matches!(answer, Err(FeedError::Status(status)) if status.code() == 413)
}

/// Keys and RVs of a list with a history of one deletion that has `bytes`.
fn index_with_deletion(bytes: usize) -> Value {
    let metadata = json!({"namespace": "x", "name": "b", "uid": "v", "resourceVersion": "6"});
    let gone = json!({"metadata": metadata, "data": "x".repeat(bytes)});
    let history = json!({"floor": "1", "gaps": [], "tombstones": [gone], "ranges": []});
    json!({"at": "7", "index": [["x/a", "5"]], "history": history})
}

/// Announces a snapshot of Services. Returns the bytes that arrive for them then.
async fn arriving_after(index: Value, (feed, collection): &(Arc<Feed>, Arc<PoolCollection>)) -> usize {
    take(feed, "services/snapshot", index).await.unwrap();
    collection.arriving().bytes()
}

/// A history arrives with its index, and is held until the last body has come.
#[tokio::test]
async fn history_of_a_snapshot_counts_among_the_bytes_that_arrive() {
    let disk = FaultyDisk::new();
    let feed = feed_of(&disk.disk, 20_000);
    let refused = take(&feed.0, "services/snapshot", index_with_deletion(30_000)).await;
    assert!(is_too_large(&refused), "{refused:?}");
    let arriving = arriving_after(index_with_deletion(9_000), &feed).await;
    assert!((9_000..20_000).contains(&arriving), "{arriving}");
}

/// A snapshot that waits for bodies has each missing key twice: in its index, and among those that are to come.
#[tokio::test]
async fn missing_keys_of_a_snapshot_count_among_the_bytes_that_arrive() {
    let disk = FaultyDisk::new();
    let index = json!({"at": "7", "index": [[format!("x/{}", "x".repeat(9_000)), "5"]]});
    let arriving = arriving_after(index, &feed_of(&disk.disk, 60_000)).await;
    assert!((18_000..20_000).contains(&arriving), "{arriving}");
}

#[tokio::test]
async fn snapshot_needs_no_room_beside_the_one_that_it_replaces() {
    let disk = FaultyDisk::new();
    let feed = feed_of(&disk.disk, 20_000);
    for bytes in [12_000, 13_000] {
        assert!(arriving_after(index_with_deletion(bytes), &feed).await > bytes);
    }
}

/// The bytes of the last part are known only when no more parts follow.
#[tokio::test]
async fn last_part_of_an_index_counts_and_a_refused_one_leaves_nothing() {
    let disk = FaultyDisk::new();
    let (feed, collection) = feed_of(&disk.disk, 30_000);
    let part = |from: usize, more: bool| {
        let key = format!("x/{from}{}", "k".repeat(12_000));
        json!({"at": "7", "from": from, "more": more, "index": [[key, "5"]]})
    };
    take(&feed, "services/snapshot", part(0, true)).await.unwrap();
    let refused = take(&feed, "services/snapshot", part(1, false)).await;
    assert!(is_too_large(&refused), "{refused:?}");
    assert_eq!(collection.arriving().bytes(), 0);
    take(&feed, "endpoints/snapshot", part(0, false)).await.unwrap();
}

#[tokio::test]
async fn what_a_former_leader_left_unfinished_gives_way_to_its_successor() {
    let disk = FaultyDisk::new();
    let (feed, collection) = feed_of(&disk.disk, 20_000);
    let index = json!({"at": "7", "more": true, "index": [["k".repeat(4_000), "5"]]});
    take(&feed, "endpoints/snapshot", index).await.unwrap();
    take(&feed, "services/snapshot", index_with_deletion(12_000))
        .await
        .unwrap();
    let refused = take(&feed, "endpoints/snapshot", index_with_deletion(13_000)).await;
    assert!(
        is_too_large(&refused),
        "what its own leader announced stays: {refused:?}"
    );
    let record = feed.fence.election().next("n1_1", None).encode();
    feed.fence.published(ResourceVersion(2), &record).unwrap();
    let small = json!({"at": "7", "index": [["x/a", "5"]]});
    take(&feed, "endpoints/snapshot", small).await.unwrap();
    assert!(
        collection.arriving().bytes() > 12_000,
        "it may be used again while there is room"
    );
    take(&feed, "endpoints/snapshot", index_with_deletion(13_000))
        .await
        .unwrap();
    assert_eq!(collection.arriving().bytes(), 0);
}

/// The leader takes a resource out of the scope while a call about it runs. What came with that call holds no room that
/// nothing would free.
#[tokio::test]
async fn what_arrives_goes_with_its_collection() {
    let disk = FaultyDisk::new();
    let (feed, _) = feed_of(&disk.disk, 20_000);
    let leader = User::new(&format!("{NODE_PREFIX}n1"), &[NODES]);
    let endpoints = feed.collections.named("endpoints").unwrap();
    feed.collections.remove("endpoints");
    let index = json!({"store": "s", "epoch": 1, "generation": 0, "at": "7", "index": [["x".repeat(15_000), "5"]]});
    feed.take_snapshot(&endpoints, &leader, index.to_string().as_bytes())
        .await
        .unwrap();
    let metadata = json!({"namespace": "x", "name": "a", "uid": "u", "resourceVersion": "5"});
    let service = json!({"metadata": metadata, "data": "x".repeat(9_000)});
    take(&feed, "services/snapshot", json!({"at": "7", "index": [["x/a", "5"]]}))
        .await
        .unwrap();
    take(
        &feed,
        "services/snapshot/bodies",
        json!({"at": "7", "objects": [service]}),
    )
    .await
    .unwrap();
}

/// A void replaces the collection while a call waits for its turn.
#[tokio::test]
async fn call_that_waited_takes_its_turn_at_the_present_collection() {
    let disk = FaultyDisk::new();
    let (feed, voided) = feed_on(&disk.disk);
    let voids = voided.turn().await;
    let mut call = std::pin::pin!(take(&feed, "services/snapshot", json!({"at": "7", "index": []})));
    assert!(call.as_mut().now_or_never().is_none());
    let replica = feed.replicas.named("services").unwrap();
    feed.collections.insert(PoolCollection::new(replica));
    let present = feed.collections.named("services").unwrap();
    let other_call = present.turn().await;
    drop(voids);
    for _ in 0..1_000 {
        assert!(call.as_mut().now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    assert_eq!(present.objects().read(Collection::position).0, 0, "another call runs");
    drop(other_call);
    call.await.unwrap();
}

/// Another void, or a change of the scope, replaces the collection while a void waits for its turn.
#[tokio::test]
async fn void_that_waited_takes_its_turn_at_the_present_collection() {
    let disk = FaultyDisk::new();
    let (feed, former) = feed_on(&disk.disk);
    feed.storage.attach(Arc::new(Nobody)).await.unwrap();
    let call = former.turn().await;
    let mut void = std::pin::pin!(feed.void("services", || ()));
    assert!(void.as_mut().now_or_never().is_none());
    let replica = feed.replicas.named("services").unwrap();
    feed.collections.insert(PoolCollection::new(replica));
    let present = feed.collections.named("services").unwrap();
    let other_call = present.turn().await;
    drop(call);
    assert!(void.as_mut().now_or_never().is_none());
    assert!(feed.scope.changing().now_or_never().is_some(), "the void has not begun");
    drop(other_call);
    void.await.unwrap();
    let empty = feed.collections.named("services").unwrap();
    assert!(!Arc::ptr_eq(&empty, &present));
}

#[tokio::test]
async fn void_that_waited_brings_no_removed_collection_back() {
    let disk = FaultyDisk::new();
    let (feed, former) = feed_on(&disk.disk);
    feed.storage.attach(Arc::new(Nobody)).await.unwrap();
    let call = former.turn().await;
    let mut void = std::pin::pin!(feed.void("services", || ()));
    assert!(void.as_mut().now_or_never().is_none());
    feed.collections.remove("services");
    drop(call);
    assert_eq!(void.await.unwrap_err().code(), 404);
    assert!(feed.collections.named("services").is_none());
}

/// The record of the void is stored, the data of the former leader is not deleted.
#[tokio::test]
async fn collection_whose_void_failed_is_served_once_it_is_fed_again() {
    let disk = FaultyDisk::new();
    let (feed, collection) = feed_on(&disk.disk);
    feed.storage
        .attach(Arc::new(Breaking(disk.medium.clone())))
        .await
        .unwrap();
    feed_list(&feed, 0).await.unwrap();
    feed.void("services", || ()).await.unwrap_err();
    disk.recover();
    feed_list(&feed, 9_000_000).await.unwrap();
    let fed = feed.collections.named("services").unwrap();
    assert!(fed.is_served() && Arc::ptr_eq(&fed, &collection));
}

#[tokio::test]
async fn members_whose_void_failed_are_void_after_its_repetition() {
    let disk = FaultyDisk::new();
    let (feed, _) = feed_on(&disk.disk);
    feed_list(&feed, 0).await.unwrap();
    let members = feed.replicas.add(members::COLLECTION, members::kind()).await.unwrap();
    let list = |held: &mut Collection| held.restart(0, Vec::new(), ResourceVersion(7));
    members.collection().update(list);
    feed.replicas.persist(None).await.unwrap();
    feed.collections.insert(PoolCollection::new(members));
    disk.fail();
    for _ in 0..2 {
        feed.void(members::COLLECTION, || ()).await.unwrap_err();
    }
    disk.recover();
    feed.void(members::COLLECTION, || ()).await.unwrap();
    let members = feed.collections.named(members::COLLECTION).unwrap();
    assert!(!members.is_served() && members.objects().read(|held| !held.is_complete()));
}

#[tokio::test]
async fn resource_whose_sharing_the_store_did_not_let_begin_or_end_is_tried_again() {
    let disk = FaultyDisk::new();
    let (feed, _) = feed_on(&disk.disk);
    let widgets = json!([{
        "group": "example.com", "version": "v1", "resource": "widgets", "singular": "widget",
        "kind": "Widget", "listKind": "WidgetList", "namespaced": true,
    }]);
    let kinds = Kinds::default();
    let is_shared = || feed.collections.named("widgets.example.com").is_some();
    for (generation, told, is_wanted) in [(1, widgets, true), (2, json!([]), false)] {
        feed.scope.published(Some(told.to_string().as_bytes()));
        disk.fail();
        assert!(feed_list(&feed, generation).await.is_err());
        assert!(feed.follow_scope(&kinds, || ()).await.is_err());
        assert_eq!(is_shared(), !is_wanted);
        disk.recover();
        assert_eq!(feed.follow_scope(&kinds, || ()).await, Ok(()));
        assert_eq!(is_shared(), is_wanted);
    }
}
