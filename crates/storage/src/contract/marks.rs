//! Pool data of a process that dies while its commits fail.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceVersion};
use yurt_collection::{Collection, Resumption};

use super::Harness;
use crate::backend::{Committed, Loaded, Op, Sink, Storage, StorageError};
use crate::replica::{Replica, Replicas};

const NAME: &str = "services";
/// RV of a cloud that counts µs since 1970.
const FIRST: u64 = 1_760_000_000_000_000;
/// Distance between two changes in the cloud: 10 minutes.
const STEP: u64 = 600_000_000;
/// Number of changes, a day of them.
const CHANGES: u64 = 144;

/// A store that can stop to take writes.
struct Failing {
    store: Arc<dyn Storage>,
    fails: AtomicBool,
}

/// Passes everything on to replicas. They own the store, which owns this.
#[derive(Default)]
struct Follow(OnceLock<Weak<Replicas>>);

/// The coordinator under test.
struct Process {
    storage: Arc<Failing>,
    replicas: Arc<Replicas>,
}

// === impl Failing, Follow ===

impl Storage for Failing {
    fn id(&self) -> &str {
        self.store.id()
    }

    fn attach(&self, sink: Arc<dyn Sink>) -> BoxFuture<'_, Result<(), StorageError>> {
        self.store.attach(sink)
    }

    fn write(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<ResourceVersion, StorageError>> {
        if self.fails.load(Ordering::SeqCst) {
            let failed = StorageError::Unavailable("the disk does not answer".into());
            return Box::pin(std::future::ready(Err(failed)));
        }
        self.store.write(ops)
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StorageError>> {
        self.store.close()
    }
}

impl Follow {
    fn replicas(&self) -> Option<Arc<Replicas>> {
        self.0.get().and_then(Weak::upgrade)
    }
}

impl Sink for Follow {
    fn load(&self, loaded: Loaded) -> Result<(), StorageError> {
        self.reloaded(loaded);
        Ok(())
    }

    fn committed(&self, rv: ResourceVersion, changes: &[Committed]) {
        self.replicas().inspect(|replicas| replicas.committed(rv, changes));
    }

    fn reloaded(&self, loaded: Loaded) {
        self.replicas().inspect(|replicas| replicas.load(&loaded));
    }
}

// === impl Process ===

impl Process {
    async fn start(harness: &mut dyn Harness) -> Self {
        let (store, fails) = (harness.open().await, AtomicBool::new(false));
        let storage = Arc::new(Failing { store, fails });
        let kinds = [(NAME.to_owned(), find_kind("", NAME).expect("services are built in"))];
        let replicas = Arc::new(Replicas::shared(&kinds, storage.clone()));
        let sink = Follow::default();
        assert!(sink.0.set(Arc::downgrade(&replicas)).is_ok(), "it is new");
        storage.attach(Arc::new(sink)).await.expect("a fresh store must attach");
        Self { storage, replicas }
    }

    fn services(&self) -> Arc<Replica> {
        self.replicas.named(NAME).expect("services are replicated")
    }

    /// Applies a change in the cloud at `rv` as a source does.
    async fn take(&self, rv: u64) -> Result<(), StorageError> {
        let (services, rv) = (self.services(), ResourceVersion(rv));
        self.replicas.cover(&services, 0, rv, None).await?;
        let apply = |held: &mut Collection| held.apply(EventType::Modified, service(rv));
        let applied = services.collection().update_of(0, rv, apply);
        applied.expect("covered changes of the generation are applied");
        Ok(())
    }
}

fn service(rv: ResourceVersion) -> Object {
    let json = format!(r#"{{"metadata":{{"namespace":"x","name":"a","uid":"a","resourceVersion":"{rv}"}}}}"#);
    Object::parse(Bytes::from(json), find_kind("", NAME).expect("services are built in")).expect("fixture must parse")
}

/// While commits fail, pool data is served up to the stored mark. So a process that continues after a crash knows the
/// highest RV that was served, also where the cloud counts µs.
pub async fn pool_data_is_served_up_to_a_stored_mark(harness: &mut dyn Harness) {
    let first = ResourceVersion(FIRST);
    let one = Process::start(harness).await;
    let list = |held: &mut Collection| held.restart(0, vec![service(first)], first);
    let listed = one.services().collection().update_of(0, first, list);
    listed.expect("the first data needs no mark");
    one.replicas.persist(None).await.expect("stored");
    assert!(one.services().is_served());
    one.storage.fails.store(true, Ordering::SeqCst);
    let mut served = FIRST;
    for rv in (1..=CHANGES).map(|n| FIRST + n * STEP) {
        match one.take(rv).await {
            Ok(()) => served = rv,
            Err(_) => break,
        }
    }
    assert!(served >= FIRST + 6 * STEP, "serving goes on for an hour: {served}");
    assert!(served < FIRST + CHANGES * STEP, "and ends at the mark");
    // The disk works again: the next change is a day later.
    one.storage.fails.store(false, Ordering::SeqCst);
    served = FIRST + CHANGES * STEP;
    one.take(served).await.expect("a mark is stored");
    one.storage.fails.store(true, Ordering::SeqCst);
    served += STEP;
    one.take(served).await.expect("the mark covers it");
    drop(one);
    let next = Process::start(harness).await;
    let services = next.services();
    assert!(services.is_served() && services.collection().read(Collection::position).0 < served);
    // The cloud comes back from a backup.
    let back = ResourceVersion(FIRST + STEP);
    let restart = |held: &mut Collection| held.restart(7, vec![service(back)], back);
    services
        .collection()
        .update_of(0, back, restart)
        .expect("it is covered");
    let after = ResourceVersion(served + 1);
    let resumed = services.collection().read(|held| {
        assert!(held.high().0 >= served, "{} of {served}", held.high());
        held.resumption(ResourceVersion(served))
    });
    assert!(
        resumed.is_err(),
        "a client at {served} is of the lost history: {resumed:?}"
    );
    next.replicas.persist(None).await.expect("stored");
    next.replicas.cover(&services, 7, after, None).await.expect("stored");
    let advanced = services.collection().update_of(7, after, |held| held.advance(after));
    assert_eq!(advanced, Ok(true));
    let resumed = services
        .collection()
        .read(|held| held.resumption(ResourceVersion(served)));
    assert_eq!(
        resumed,
        Ok(Resumption::Everything),
        "also when the numbers have passed it"
    );
}
