//! A store restored from an older copy: clients that saw later RVs start over, and no RV is issued twice.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use yurt_apimachinery::kind::builtin_kinds;
use yurt_apimachinery::{ResourceVersion, Space};
use yurt_runtime::{Clock, FakeClock, UnixTime};
use yurt_storage::backend::{Action, Durability, Expect, Op};
use yurt_storage::{Cacher, Embedded, SharedCollection, Storage};

struct Folder {
    folder: tempfile::TempDir,
    clock: Clock,
    hand: FakeClock,
}

struct Running {
    store: Embedded,
    config_maps: Arc<SharedCollection>,
}

// === impl Folder ===

impl Folder {
    fn new() -> Self {
        let (clock, hand) = Clock::fake();
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { folder, clock, hand }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn start(&self) -> Running {
        start(&self.file("store.redb"), &self.clock).await
    }

    /// Copies a file, like an operator while nothing runs.
    fn copy(&self, from: &str, to: &str) {
        self.wait_until_closed();
        std::fs::copy(self.file(from), self.file(to)).expect("copied");
    }

    /// The writer thread of a store that was stopped closes the file a moment later.
    fn wait_until_closed(&self) {
        let file = std::fs::File::open(self.file("store.redb")).expect("the store is there");
        file.lock().expect("no other process keeps it");
    }
}

async fn start(path: &Path, clock: &Clock) -> Running {
    let store = loop {
        // The writer thread of a dropped store releases the file a moment later.
        match Embedded::open(path, clock.clone(), Space::Own) {
            Ok(store) => break store,
            Err(error) if error.to_string().contains("another process") => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    let cacher = Arc::new(Cacher::new(builtin_kinds()));
    store.attach(cacher.clone()).await.expect("attached");
    let config_maps = cacher.collection("configmaps").expect("configmaps are built in");
    Running { store, config_maps }
}

// === impl Running ===

impl Running {
    async fn create(&self, name: &str) -> ResourceVersion {
        let value = Bytes::from(format!(r#"{{"metadata":{{"name":"{name}","namespace":"x"}}}}"#));
        let op = Op {
            key: format!("/configmaps/x/{name}"),
            expect: Expect::Absent,
            action: Action::Put(value.into(), Durability::Durable),
        };
        self.store.write(vec![op]).await.expect("created")
    }

    fn names(&self) -> Vec<String> {
        let names =
            |held: &yurt_collection::Collection| held.objects().map(|object| object.name().to_owned()).collect();
        self.config_maps.read(names)
    }

    fn resumes(&self, at: ResourceVersion) -> bool {
        self.config_maps.read(|held| held.open(at).is_ok())
    }

    async fn stop(self) -> String {
        self.store.close().await.expect("closed");
        self.store.id().to_owned()
    }
}

#[tokio::test]
async fn store_put_back_from_a_copy_begins_a_new_timeline() {
    let folder = Folder::new();
    let running = folder.start().await;
    let kept = running.create("kept").await;
    let id = running.stop().await;
    folder.copy("store.redb", "copy");
    let running = folder.start().await;
    let lost = running.create("lost").await;
    assert!(running.resumes(kept), "an ordinary restart goes on");
    assert_eq!(running.stop().await, id);
    folder.copy("copy", "store.redb");
    // The clock does not help.
    folder.hand.set_unix(UnixTime { secs: 0, nanos: 0 });

    let running = folder.start().await;
    assert_ne!(running.store.id(), id);
    assert_eq!(running.names(), ["kept"]);
    assert!(!running.resumes(lost) && !running.resumes(kept), "watches list again");
    let next = running.create("next").await;
    assert!(next > lost);
    let id = running.stop().await;

    let running = folder.start().await;
    assert!(running.resumes(next) && !running.resumes(lost));
    assert_eq!(running.stop().await, id, "the new timeline goes on");
}

#[tokio::test]
async fn copy_in_a_new_folder_begins_a_new_timeline() {
    let folder = Folder::new();
    let running = folder.start().await;
    let created = running.create("a").await;
    let id = running.stop().await;
    folder.wait_until_closed();
    let other = Folder::new();
    std::fs::copy(folder.file("store.redb"), other.file("store.redb")).expect("copied");
    let running = other.start().await;
    assert!(!running.resumes(created));
    assert_ne!(running.stop().await, id);
}

#[tokio::test]
async fn numbers_go_on_above_those_of_a_store_that_was_deleted() {
    let folder = Folder::new();
    let running = folder.start().await;
    let created = running.create("a").await;
    running.stop().await;
    folder.wait_until_closed();
    std::fs::remove_file(folder.file("store.redb")).expect("deleted");
    folder.hand.set_unix(UnixTime { secs: 0, nanos: 0 });
    let running = folder.start().await;
    assert!(!running.resumes(created));
    assert!(running.create("a").await > created);
}

/// A kill, and the possible states of the mark file after a power loss.
#[tokio::test]
async fn crash_begins_no_new_timeline() {
    let folder = Folder::new();
    let running = folder.start().await;
    let created = running.create("a").await;
    let id = running.store.id().to_owned();
    drop(running);
    let older = std::fs::read(folder.file("store.mark")).expect("the mark is noted");
    let running = folder.start().await;
    assert!(running.resumes(created) && running.store.id() == id);
    drop(running);
    for left in [&older[..], b""] {
        std::fs::write(folder.file("store.mark"), left).expect("written");
        let running = folder.start().await;
        assert!(running.resumes(created) && running.store.id() == id);
        drop(running);
    }
}
