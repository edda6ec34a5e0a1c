//! A commit settles itself when its caller has gone away, and does not delay other users of the disk.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceVersion, Space};
use yurt_collection::Collection;
use yurt_runtime::{Clock, FakeClock};
use yurt_storage::backend::{Committed, Durability, Loaded, Sink};
use yurt_storage::embedded::replicas::ReplicaStore;
use yurt_storage::embedded::{Disk, FileBackend};
use yurt_storage::{Action, Embedded, Expect, NotApplied, OnlyWriter as _, Op, Replicas, Storage, StorageError};

const LEASE: &str = "/leases.coordination.k8s.io/kube-system/yurthub";
/// Longer than any operation that does not wait takes on any machine.
const LONG: Duration = Duration::from_secs(60);

/// A medium whose changes wait while `gate` is held, and fail while `fails` is set.
#[derive(Debug, Default)]
struct Slow {
    bytes: Mutex<Vec<u8>>,
    gate: Mutex<()>,
    /// Changes that wait at the gate.
    waiting: AtomicUsize,
    fails: AtomicBool,
    /// Takes changes, and then reports that they failed.
    sync_fails: AtomicBool,
}

/// Replicas on a [`Slow`] medium.
struct Pool {
    medium: Arc<Slow>,
    time: FakeClock,
    clock: Clock,
    disk: Arc<Disk>,
    replicas: Arc<Replicas>,
}

struct Nobody;

/// Number of commits.
#[derive(Default)]
struct Counting(AtomicUsize);

// === impl Slow ===

impl Slow {
    fn pass(&self) -> io::Result<()> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        drop(self.gate.lock());
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        match self.fails.load(Ordering::SeqCst) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }

    /// Returns once a commit has come as far as the gate.
    fn wait_for_a_commit(&self) {
        while self.waiting.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    }

    /// The same bytes, as found by a process that starts after a kill.
    fn killed(&self) -> Arc<Self> {
        Arc::new(Self {
            bytes: Mutex::new(self.bytes.lock().clone()),
            ..Self::default()
        })
    }
}

impl FileBackend for Slow {
    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().len() as u64)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.bytes.lock();
        let from = usize::try_from(offset).expect("test media are small");
        out.copy_from_slice(bytes.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.pass()?;
        let from = usize::try_from(offset).expect("test media are small");
        let mut bytes = self.bytes.lock();
        let size = bytes.len().max(from + data.len());
        bytes.resize(size, 0);
        bytes[from..from + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.pass()?;
        self.bytes
            .lock()
            .resize(usize::try_from(size).expect("test media are small"), 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.pass()?;
        match self.sync_fails.load(Ordering::SeqCst) {
            true => Err(io::Error::other("the disk is broken")),
            false => Ok(()),
        }
    }
}

// === impl Nobody ===

impl Sink for Nobody {
    fn load(&self, _: Loaded) -> Result<(), StorageError> {
        Ok(())
    }

    fn committed(&self, _: ResourceVersion, _: &[Committed]) {}

    fn reloaded(&self, _: Loaded) {}
}

// === impl Counting ===

impl Sink for Counting {
    fn load(&self, _: Loaded) -> Result<(), StorageError> {
        Ok(())
    }

    fn committed(&self, _: ResourceVersion, _: &[Committed]) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn reloaded(&self, _: Loaded) {}
}

// === impl Pool ===

impl Pool {
    fn on(medium: Arc<Slow>) -> Self {
        let (clock, time) = Clock::fake();
        let disk = Disk::open_on(Path::new("slow"), medium.clone(), clock.clone()).expect("opens");
        let kinds = [("services".to_owned(), find_kind("", "services").expect("services"))];
        let store = ReplicaStore::open(disk.clone()).expect("tables");
        let replicas = Replicas::open(&kinds, Some(store)).expect("replicas");
        Self {
            medium,
            time,
            clock,
            disk,
            replicas: Arc::new(replicas),
        }
    }

    fn list(&self, generation: u64, names: &[&str], at: u64) {
        let list = names.iter().map(|name| service(name, at - 1)).collect();
        let services = self.replicas.named("services").expect("services");
        services
            .collection()
            .update(|held| held.restart(generation, list, ResourceVersion(at)));
    }

    fn names(&self) -> String {
        let services = self.replicas.named("services").expect("services");
        let names = |held: &Collection| {
            held.objects()
                .map(|object| object.name().to_owned())
                .collect::<Vec<_>>()
        };
        services.collection().read(names).join(",")
    }

    /// The pool of a process that starts after this one applied and stored a further object, and was killed.
    async fn restarted_after(&self, name: &str, version: u64) -> Self {
        let services = self.replicas.named("services").expect("services");
        services
            .collection()
            .update(|held| held.apply(EventType::Added, service(name, version)));
        self.replicas.persist(None).await.expect("the medium works again");
        Self::on(self.medium.killed())
    }
}

fn service(name: &str, version: u64) -> Object {
    let json =
        format!(r#"{{"metadata":{{"namespace":"x","name":"{name}","uid":"{name}","resourceVersion":"{version}"}}}}"#);
    Object::parse(Bytes::from(json), find_kind("", "services").expect("services")).expect("fixture")
}

fn put(key: &str, expect: Expect, durability: Durability) -> Op {
    let value = Bytes::from_static(br#"{"metadata":{"name":"n"}}"#);
    Op {
        key: key.to_owned(),
        expect,
        action: Action::Put(value.into(), durability),
    }
}

/// A feed call is dropped when its leader hangs up, a hub's list when its stream ends.
#[tokio::test]
async fn commit_that_fails_after_its_caller_left_is_part_of_the_next_one() {
    let pool = Pool::on(Arc::default());
    pool.list(0, &["a", "b"], 10);
    let held = pool.medium.gate.lock();
    let waited = pool.replicas.persist(None).now_or_never();
    assert!(waited.is_none(), "the medium does not answer, and the caller goes away");
    pool.medium.fails.store(true, Ordering::SeqCst);
    drop(held);
    let next = pool.replicas.persist(None).await;
    assert!(next.is_err(), "what failed is waiting still: {next:?}");
    pool.medium.fails.store(false, Ordering::SeqCst);
    pool.time.advance(Duration::from_secs(30));
    assert_eq!(
        pool.restarted_after("c", 11).await.names(),
        "a,b,c",
        "everything that is complete at C"
    );
}

#[tokio::test]
async fn commit_that_succeeds_after_its_caller_left_is_served() {
    let pool = Pool::on(Arc::default());
    pool.list(7, &["a"], 10);
    let held = pool.medium.gate.lock();
    let waited = pool.replicas.persist(None).now_or_never();
    assert!(waited.is_none(), "the medium does not answer, and the caller goes away");
    drop(held);
    pool.replicas.persist(None).await.expect("nothing is left to do");
    let services = pool.replicas.named("services").expect("services");
    assert!(services.is_served(), "it is on the disk: {:?}", services.durable());
}

/// A crash would go back to serving the previous generation.
#[tokio::test]
async fn generation_that_no_commit_knows_is_not_served() {
    let pool = Pool::on(Arc::default());
    pool.list(7, &["a"], 10);
    pool.replicas.persist(None).await.expect("stored");
    let services = pool.replicas.named("services").expect("services");
    assert!(services.is_served());
    pool.list(8, &["b"], 9);
    assert!(!services.is_served(), "generation 8 is in memory only");
    pool.medium.fails.store(true, Ordering::SeqCst);
    pool.replicas.persist(None).await.expect_err("the medium fails");
    assert!(!services.is_served(), "generation 8 could not be stored");
    pool.medium.fails.store(false, Ordering::SeqCst);
    pool.time.advance(Duration::from_secs(30));
    pool.replicas.persist(None).await.expect("stored");
    assert!(services.is_served());
}

/// Without a waiting caller, the data of a replica is deleted in the background: a later replica of its name is empty.
#[tokio::test]
async fn replica_that_comes_back_does_not_meet_its_own_deletion() {
    let pool = Pool::on(Arc::default());
    pool.list(0, &["a", "b"], 10);
    pool.replicas.persist(None).await.expect("stored");
    let held = pool.medium.gate.lock();
    let removed = pool.replicas.remove("services").now_or_never();
    assert!(
        removed.is_none(),
        "the medium does not answer, and the caller goes away"
    );
    let kind = find_kind("", "services").expect("services");
    let mut added = Box::pin(pool.replicas.add("services", kind));
    assert!(added.as_mut().now_or_never().is_none(), "the deletion is under way");
    drop(held);
    let added = added.await.expect("added");
    assert!(added.collection().read(|held| held.is_empty() && !held.is_complete()));
}

/// A full disk does not delete either. What it keeps would be loaded again.
#[tokio::test]
async fn deletion_that_fails_is_carried_out_by_its_repetition() {
    let pool = Pool::on(Arc::default());
    pool.list(0, &["a"], 10);
    pool.replicas.persist(None).await.expect("stored");
    let kept = pool.replicas.named("services").expect("services");
    pool.medium.fails.store(true, Ordering::SeqCst);
    pool.replicas.remove("services").await.expect_err("the medium fails");
    assert!(!kept.gone().is_cancelled() && pool.replicas.named("services").is_some());
    pool.medium.fails.store(false, Ordering::SeqCst);
    pool.time.advance(Duration::from_secs(30));
    pool.replicas.remove("services").await.expect("the medium works again");
    assert!(kept.gone().is_cancelled());
    let kind = find_kind("", "services").expect("services");
    let added = pool.replicas.add("services", kind).await.expect("added");
    assert!(added.collection().read(|held| held.is_empty() && !held.is_complete()));
}

/// A failed deletion may be on the medium all the same.
#[tokio::test]
async fn replica_whose_deletion_failed_is_stored_as_a_whole() {
    let pool = Pool::on(Arc::default());
    pool.list(0, &["a", "b"], 10);
    pool.replicas.persist(None).await.expect("stored");
    pool.medium.sync_fails.store(true, Ordering::SeqCst);
    pool.replicas.remove("services").await.expect_err("the medium fails");
    pool.medium.sync_fails.store(false, Ordering::SeqCst);
    pool.time.advance(Duration::from_secs(30));
    assert_eq!(
        pool.restarted_after("c", 11).await.names(),
        "a,b,c",
        "everything that is complete at C"
    );
}

/// After a crash the file may have no mark for the RVs that readers get.
#[tokio::test]
async fn replica_whose_deletion_failed_is_served_after_the_next_commit() {
    let pool = Pool::on(Arc::default());
    pool.list(0, &["a"], 10);
    pool.replicas.persist(None).await.expect("stored");
    let services = pool.replicas.named("services").expect("services");
    let covers = || services.collection().read(|held| held.covers(ResourceVersion(11)));
    assert_eq!((services.is_served(), covers()), (true, true));
    pool.medium.sync_fails.store(true, Ordering::SeqCst);
    pool.replicas.remove("services").await.expect_err("the medium fails");
    assert_eq!((services.is_served(), covers()), (false, false));
    pool.medium.sync_fails.store(false, Ordering::SeqCst);
    pool.time.advance(Duration::from_secs(30));
    pool.replicas.persist(None).await.expect("the medium works again");
    assert_eq!((services.is_served(), covers()), (true, true));
}

/// Every request reads the set of replicas.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_do_not_wait_for_the_disk_when_a_replica_comes() {
    let pool = Pool::on(Arc::default());
    pool.list(0, &["a"], 10);
    let held = pool.medium.gate.lock();
    let mut committing = Box::pin(pool.replicas.persist(None));
    assert!(committing.as_mut().now_or_never().is_none());
    pool.medium.wait_for_a_commit();
    let kind = find_kind("", "endpoints").expect("endpoints");
    let mut adding = Box::pin(pool.replicas.add("endpoints", kind));
    assert!(adding.as_mut().now_or_never().is_none(), "the disk is busy");
    let (done, asked) = std::sync::mpsc::channel();
    let replicas = pool.replicas.clone();
    let asking = std::thread::spawn(move || {
        let names: Vec<_> = replicas.iter().map(|replica| replica.name().to_owned()).collect();
        // The receiver is gone if this came too late.
        let _ = done.send(names);
    });
    let told = asked.recv_timeout(LONG);
    drop(held);
    asking.join().expect("it ends");
    assert_eq!(told.expect("a request waited for a commit to end"), ["services"]);
    committing.await.expect("stored");
    adding.await.expect("added");
    assert!(pool.replicas.named("endpoints").is_some());
}

/// A first snapshot, or a stalling card: commits of pool data and own objects take long.
#[tokio::test]
async fn renewals_do_not_wait_for_commits() {
    let pool = Pool::on(Arc::default());
    let store = Embedded::on(pool.disk.clone(), pool.clock.clone(), Space::Own).expect("tables");
    store.attach(Arc::new(Nobody)).await.expect("attached");
    let create = vec![put(LEASE, Expect::Absent, Durability::Durable)];
    let mut at = store.write(create).await.expect("created");
    for pool_first in [false, true] {
        // One commit right after another.
        pool.list(0, &["a"], 10);
        let held = pool.medium.gate.lock();
        let mut event = store.write(vec![put("/events/x/e", Expect::Any, Durability::Durable)]);
        let mut committing = Box::pin(pool.replicas.persist(None));
        if pool_first {
            assert!(committing.as_mut().now_or_never().is_none());
            pool.medium.wait_for_a_commit();
        }
        assert!(event.as_mut().now_or_never().is_none(), "it has to be durable");
        if !pool_first {
            pool.medium.wait_for_a_commit();
            assert!(committing.as_mut().now_or_never().is_none());
        }
        for round in 0..1000 {
            let renewal = vec![put(LEASE, Expect::At(at), Durability::Volatile)];
            let renewed = store.write(renewal).now_or_never();
            at = renewed
                .unwrap_or_else(|| panic!("renewal {round} waits for a commit"))
                .expect("renewed");
            std::thread::yield_now();
        }
        drop(held);
        assert!(event.await.expect("stored") > at, "RVs are published in order");
        committing.await.expect("stored");
    }
}

/// Clients whose writes time out at a disk that hangs repeat them.
#[tokio::test]
async fn abandoned_writes_are_bounded_by_their_bytes() {
    let pool = Pool::on(Arc::default());
    let store = Embedded::on(pool.disk.clone(), pool.clock.clone(), Space::Own).expect("tables");
    let commits = Arc::new(Counting::default());
    store.attach(commits.clone()).await.expect("attached");
    let held = pool.medium.gate.lock();
    let value = Bytes::from(vec![b'x'; 1 << 20]);
    for n in 0..100 {
        let large = Op {
            key: format!("/configmaps/x/{n}"),
            expect: Expect::Any,
            action: Action::Put(value.clone().into(), Durability::Durable),
        };
        let write = tokio::task::unconstrained(store.write(vec![large]));
        assert!(write.now_or_never().is_none(), "the disk hangs");
    }
    drop(held);
    let last = vec![put("/configmaps/x/last", Expect::Any, Durability::Durable)];
    store.write(last).await.expect("there is room again");
    // 64 MiB with their keys.
    assert_eq!(commits.0.load(Ordering::SeqCst), 63 + 1);
}

/// An operation with a fence: it must not become visible after a change of the object that it was compared with.
#[tokio::test]
async fn renewal_of_what_a_commit_relies_upon_waits_for_it() {
    let pool = Pool::on(Arc::default());
    let store = Embedded::on(pool.disk.clone(), pool.clock.clone(), Space::Own).expect("tables");
    store.attach(Arc::new(Nobody)).await.expect("attached");
    let create = vec![put(LEASE, Expect::Absent, Durability::Durable)];
    let at = store.write(create).await.expect("created");
    let held = pool.medium.gate.lock();
    let fenced = Op {
        action: Action::Check,
        ..put(LEASE, Expect::At(at), Durability::Durable)
    };
    let record = put("/~scope/x", Expect::Any, Durability::Durable);
    let mut fenced = store.write(vec![fenced, record]);
    assert!((&mut fenced).now_or_never().is_none(), "it has to be durable");
    pool.medium.wait_for_a_commit();
    let mut renewal = store.write(vec![put(LEASE, Expect::At(at), Durability::Volatile)]);
    assert!((&mut renewal).now_or_never().is_none(), "the record is not there yet");
    drop(held);
    let recorded = fenced.await.expect("the lease is what it was compared with");
    assert!(renewal.await.expect("renewed") > recorded);
}

/// A cloud that counts µs: minutes between two of its changes are many RVs.
#[tokio::test]
async fn crash_while_commits_fail_leaves_a_mark_above_everything_served() {
    let first = 1_760_000_000_000_000;
    let (pool, minutes) = (Pool::on(Arc::default()), 600_000_000);
    pool.list(0, &["a"], first);
    pool.replicas.persist(None).await.expect("stored");
    let services = pool.replicas.named("services").expect("services");
    let take = async |rv| {
        let rv = ResourceVersion(rv);
        pool.replicas.cover(&services, 0, rv, None).await?;
        let apply = |held: &mut Collection| held.apply(EventType::Modified, service("a", rv.0));
        services.collection().update_of(0, rv, apply).expect("it is covered");
        Ok::<_, StorageError>(rv.0)
    };
    let after_a_day = first + 144 * minutes;
    let mut served = take(after_a_day).await.expect("a mark is stored");
    pool.medium.fails.store(true, Ordering::SeqCst);
    for n in 1..144 {
        match take(after_a_day + n * minutes).await {
            Ok(rv) => served = rv,
            Err(_) => break,
        }
    }
    let end = after_a_day + 144 * minutes;
    assert!((after_a_day + 6 * minutes..end).contains(&served), "{served}");
    let beyond = ResourceVersion(end);
    let refused = services.collection().update_of(0, beyond, |held| held.advance(beyond));
    assert_eq!(refused, Err(NotApplied::Uncovered { to: beyond }));

    let next = Pool::on(pool.medium.killed());
    let services = next.replicas.named("services").expect("services");
    let is_behind = |held: &Collection| held.is_complete() && held.position().0 < served;
    assert!(services.collection().read(is_behind));
    next.list(7, &["a"], first + minutes);
    let high = services.collection().read(Collection::high);
    assert!(high.0 >= served, "{high} is below {served}, which was served");
}
