//! The storage part of a coordinator, and access to the events it received.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt as _;
use tempfile::TempDir;
use yurt_apimachinery::kind::builtin_kinds;
use yurt_apimachinery::{ResourceVersion, Space};
use yurt_collection::Delivery;
use yurt_runtime::TaskGroup;
use yurt_storage::backend::{Committed, Expect, Loaded, Sink};
use yurt_storage::contract::put;
use yurt_storage::etcd3::{Config, MAX_REQUEST_BYTES};
use yurt_storage::{Cacher, Etcd, SharedCollection, Storage as _, StorageError};
use yurt_test_support::etcd::EtcdMember;

/// One process' view of the store. Its tasks end when it is dropped.
pub(crate) struct Coordinator {
    pub(crate) storage: Arc<Etcd>,
    pub(crate) tasks: TaskGroup,
    cacher: Arc<Counting>,
}

struct Counting {
    cacher: Cacher,
    reloads: AtomicUsize,
}

// === impl Coordinator ===

impl Coordinator {
    pub(crate) async fn connect(config: Config) -> Self {
        let tasks = TaskGroup::new();
        let storage = Etcd::connect(config, &tasks).await.expect("etcd must be reached");
        Self {
            storage: Arc::new(storage),
            tasks,
            cacher: Arc::new(Counting {
                cacher: Cacher::new(builtin_kinds()),
                reloads: AtomicUsize::new(0),
            }),
        }
    }

    pub(crate) async fn attach(&self) {
        self.storage.attach(self.cacher.clone()).await.expect("attach");
    }

    pub(crate) async fn start(members: &[&EtcdMember]) -> Self {
        let coordinator = Self::connect(config(members, Space::Own)).await;
        coordinator.attach().await;
        coordinator
    }

    pub(crate) fn collection(&self) -> Arc<SharedCollection> {
        self.cacher.cacher.collection("configmaps").expect("it is built in")
    }

    pub(crate) fn is_in_trouble(&self) -> bool {
        self.storage.check().now_or_never().expect("it never waits").is_err()
    }

    pub(crate) fn reloads(&self) -> usize {
        self.cacher.reloads.load(Ordering::SeqCst)
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

impl Sink for Counting {
    fn load(&self, loaded: Loaded) -> Result<(), StorageError> {
        self.cacher.load(loaded)
    }

    fn committed(&self, rv: ResourceVersion, changes: &[Committed]) {
        self.cacher.committed(rv, changes);
    }

    fn reloaded(&self, loaded: Loaded) {
        self.cacher.reloaded(loaded);
        self.reloads.fetch_add(1, Ordering::SeqCst);
    }
}

/// The members without TLS and without compaction.
pub(crate) fn config(members: &[&EtcdMember], space: Space) -> Config {
    Config {
        servers: members.iter().map(|member| member.url()).collect(),
        tls: None,
        prefix: "/yurt".into(),
        space,
        compaction_interval: None,
        mark: None,
        max_request_bytes: MAX_REQUEST_BYTES,
    }
}

/// Waits for an event that must happen.
pub(crate) async fn eventually(what: &str, holds: impl Fn() -> bool) {
    yurt_test_support::eventually(what, async || holds().then_some(())).await;
}

pub(crate) fn version_of(delivery: &Delivery) -> ResourceVersion {
    match delivery {
        Delivery::Exact(change) => change.resource_version(),
        other => panic!("nothing is conflated here: {other:?}"),
    }
}

/// Delivery of one object to a reader, as text.
pub(crate) fn told(delivery: &Delivery) -> Option<String> {
    match delivery {
        Delivery::Exact(change) => Some(format!("{:?} {}", change.kind, change.object.name())),
        _ => None,
    }
}

/// Writes as soon as etcd answers.
pub(crate) async fn write(coordinator: &Coordinator, name: &str, value: &str) -> ResourceVersion {
    loop {
        match coordinator.storage.write(vec![put(name, Expect::Any, value)]).await {
            Ok(rv) => return rv,
            // It was away a moment ago.
            Err(StorageError::Unavailable(_) | StorageError::Unknown(_)) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A copy of etcd's data, from a moment without etcd.
pub(crate) async fn back_up(etcd: &mut EtcdMember, one: &Coordinator) -> TempDir {
    etcd.kill();
    let backup = tempfile::tempdir().expect("a temporary folder");
    copy(&etcd.data(), backup.path());
    etcd.start();
    eventually("it goes on", || !one.is_in_trouble()).await;
    backup
}

/// Starts etcd with the data of a copy.
pub(crate) fn put_back(etcd: &mut EtcdMember, backup: &TempDir) {
    etcd.kill();
    std::fs::remove_dir_all(etcd.data()).expect("the data folder");
    copy(backup.path(), &etcd.data());
    etcd.start();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("a copy");
        }
    }
}
