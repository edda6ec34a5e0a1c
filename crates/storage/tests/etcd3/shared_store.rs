//! Pool data in a real etcd: its limits, and its remains.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceVersion, Space};
use yurt_collection::Collection;
use yurt_runtime::TaskGroup;
use yurt_storage::backend::{Committed, Loaded, Sink};
use yurt_storage::etcd3::Config;
use yurt_storage::{Etcd, OnlyWriter as _, Replicas, Storage, StorageError};
use yurt_test_support::etcd::EtcdMember;

use super::support::config;

const NAME: &str = "services";

/// The copies of pool data of one coordinator.
struct Copies {
    storage: Arc<Etcd>,
    replicas: Arc<Replicas>,
    sink: Arc<Follow>,
    tasks: TaskGroup,
}

#[derive(Default)]
struct Follow {
    replicas: OnceLock<Arc<Replicas>>,
    keys: Mutex<BTreeSet<String>>,
}

impl Follow {
    fn replicas(&self) -> &Replicas {
        self.replicas.get().expect("it is set before the storage is attached")
    }
}

impl Sink for Follow {
    fn load(&self, loaded: Loaded) -> Result<(), StorageError> {
        self.keys
            .lock()
            .extend(loaded.live.iter().map(|stored| stored.key.clone()));
        self.replicas().load(&loaded);
        Ok(())
    }

    fn committed(&self, rv: ResourceVersion, changes: &[Committed]) {
        for change in changes {
            if change.deleted {
                self.keys.lock().remove(&change.key);
            } else {
                self.keys.lock().insert(change.key.clone());
            }
        }
        self.replicas().committed(rv, changes);
    }

    fn reloaded(&self, _loaded: Loaded) {
        panic!("nothing is compacted here");
    }
}

impl Copies {
    async fn start(etcd: &EtcdMember, more: impl FnOnce(&mut Config)) -> Self {
        let tasks = TaskGroup::new();
        let mut config = config(&[etcd], Space::Own);
        more(&mut config);
        let storage = Arc::new(Etcd::connect(config, &tasks).await.expect("etcd must be reached"));
        let kinds = [(NAME.to_owned(), find_kind("", NAME).expect("services are built in"))];
        let replicas = Arc::new(Replicas::shared(&kinds, storage.clone()));
        let sink = Arc::new(Follow::default());
        assert!(sink.replicas.set(replicas.clone()).is_ok());
        storage.attach(sink.clone()).await.expect("attach");
        Self {
            storage,
            replicas,
            sink,
            tasks,
        }
    }

    fn update<T>(&self, change: impl FnOnce(&mut Collection) -> T) -> T {
        self.replicas.named(NAME).expect("services").collection().update(change)
    }

    fn shown(&self) -> Vec<String> {
        let shown = |held: &Collection| held.objects().map(|object| object.name().to_owned()).collect();
        self.replicas.named(NAME).expect("services").collection().read(shown)
    }

    /// Number of keys of pool data that the watch has delivered.
    fn keys(&self) -> usize {
        self.sink
            .keys
            .lock()
            .iter()
            .filter(|key| key.starts_with("/~pool/"))
            .count()
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

fn service(name: &str, rv: u64, bytes: usize) -> Object {
    let padding = "x".repeat(bytes);
    let json = format!(
        r#"{{"metadata":{{"namespace":"x","name":"{name}","uid":"{name}","resourceVersion":"{rv}"}},"data":"{padding}"}}"#
    );
    Object::parse(Bytes::from(json), find_kind("", NAME).expect("services")).expect("fixture")
}

fn many(rv: u64, bytes: usize) -> Vec<Object> {
    (0..300).map(|n| service(&format!("s{n:03}"), rv + n, bytes)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn largest_value_that_is_admitted_is_taken_by_an_etcd_at_its_defaults() {
    let etcd = EtcdMember::single(None, &[]);
    let one = Copies::start(&etcd, |config| config.prefix = format!("/{}", "p".repeat(500))).await;
    one.update(|held| held.restart(0, many(5, 100), ResourceVersion(1000)));
    one.replicas.persist(None).await.expect("all of it fits");
    let longest = "n".repeat(250);
    let sized = |bytes: usize| service(&longest, 1001, bytes);
    let limit = one.storage.value_bytes_max().expect("etcd has one");
    let largest = limit - sized(0).bytes().len();
    assert!(
        one.replicas.admit(NAME, &sized(largest)).is_ok() && one.replicas.admit(NAME, &sized(largest + 1)).is_err()
    );
    one.update(|held| held.apply(EventType::Added, sized(largest)));
    one.replicas.persist(None).await.expect("what is admitted is taken");
    // A small change does not write it again.
    one.update(|held| held.apply(EventType::Added, service("z", 1002, 10)));
    one.replicas.persist(None).await.expect("stored");
    assert_eq!(
        Copies::start(&etcd, |config| config.prefix = format!("/{}", "p".repeat(500)))
            .await
            .shown(),
        one.shown()
    );
}

/// An object that etcd rejects leaves nothing behind, even if the configured limit is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn object_that_etcd_refuses_is_named_and_leaves_nothing_behind() {
    let etcd = EtcdMember::single(None, &["--max-request-bytes=65536"]);
    let (one, other) = (Copies::start(&etcd, |_| {}).await, Copies::start(&etcd, |_| {}).await);
    // More than one request may hold.
    one.update(|held| held.restart(0, many(5, 3000), ResourceVersion(1000)));
    one.replicas.persist(None).await.expect("every one of them fits");
    let stored = one.keys();
    assert_eq!(stored, 301);
    let large = service("zz", 1001, 100_000);
    assert_eq!(one.replicas.admit(NAME, &large), Ok(()), "etcd cannot be asked");
    for _ in 0..3 {
        one.update(|held| held.apply(EventType::Added, large.clone()));
        let refused = one.replicas.persist(None).await;
        assert!(
            matches!(&refused, Err(StorageError::Oversized { key, .. }) if key == "x/zz"),
            "{refused:?}"
        );
        assert_eq!((one.keys(), one.shown().len()), (stored, 300));
        let named = one.replicas.admit(NAME, &large);
        assert!(matches!(named, Err(StorageError::Oversized { .. })), "{named:?}");
    }
    one.update(|held| held.apply(EventType::Added, service("zz", 1002, 10_000)));
    one.replicas.persist(None).await.expect("it fits");
    assert_eq!(one.keys(), stored + 1);
    super::support::eventually("the other one follows", || {
        other.shown() == one.shown() && other.keys() == stored + 1
    })
    .await;
}
