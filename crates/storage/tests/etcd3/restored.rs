//! An etcd that was restored from a backup: no RV is shown for two states.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use yurt_apimachinery::{ResourceVersion, Space};
use yurt_storage::backend::{Action, Durability, Expect, Op};
use yurt_storage::{Storage as _, StorageError};
use yurt_test_support::etcd::EtcdMember;

use super::support::{self, Coordinator, config, eventually, write};

/// Every state shown to a reader, by its RV.
#[derive(Default)]
struct Shown(BTreeMap<ResourceVersion, Bytes>);

impl Shown {
    /// Records the state that `coordinator` serves.
    fn look(&mut self, coordinator: &Coordinator) {
        let objects: Vec<_> = coordinator.collection().read(|held| held.objects().cloned().collect());
        for object in objects {
            let (rv, state) = (object.resource_version(), object.bytes());
            let before = self.0.insert(rv, state.clone());
            assert!(
                before.is_none_or(|before| before == state),
                "{rv} is shown for two states"
            );
        }
    }

    fn last(&self) -> ResourceVersion {
        *self.0.last_key_value().expect("something was shown").0
    }
}

async fn start(etcd: &EtcdMember, mark: Option<&Path>) -> Coordinator {
    let mut config = config(&[etcd], Space::Own);
    config.mark = mark.map(Path::to_owned);
    let coordinator = Coordinator::connect(config).await;
    coordinator.attach().await;
    coordinator
}

/// An etcd restored to the state before `lost` writes, at a coordinator that stored its mark in `mark` and stopped.
async fn restored(mark: &Path, lost: usize, shown: &mut Shown) -> (EtcdMember, String) {
    let mut etcd = EtcdMember::single(None, &[]);
    let one = start(&etcd, Some(mark)).await;
    write(&one, "kept", "0").await;
    shown.look(&one);
    let backup = support::back_up(&mut etcd, &one).await;
    for n in 0..lost {
        write(&one, "lost", &n.to_string()).await;
        shown.look(&one);
    }
    let id = one.storage.id().to_owned();
    one.storage.close().await.expect("closed");
    drop(one);
    support::put_back(&mut etcd, &backup);
    (etcd, id)
}

/// The store's record names another cluster than etcd is, as after a restore into a new one.
async fn name_another_cluster(etcd: &EtcdMember) {
    let mut everything = config(&[etcd], Space::Own);
    everything.prefix = "/".into();
    let editor = Coordinator::connect(everything).await;
    let record = Op {
        key: "/yurt~store-id".into(),
        expect: Expect::Any,
        action: Action::Put(Bytes::from_static(b"the-store 7 0 c1").into(), Durability::Durable),
    };
    let check = Op {
        expect: Expect::Absent,
        action: Action::Check,
        ..record.clone()
    };
    let there = editor.storage.write(vec![check]).await;
    assert!(matches!(there, Err(StorageError::Conflict { .. })), "{there:?}");
    editor.storage.write(vec![record]).await.expect("written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn coordinator_without_a_mark_that_starts_first_repeats_no_number() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mark = folder.path().join("mark");
    let mut shown = Shown::default();
    let (etcd, id) = restored(&mark, 20, &mut shown).await;
    name_another_cluster(&etcd).await;
    let before = shown.last();
    let new = start(&etcd, None).await;
    assert_ne!(new.storage.id(), id);
    let at_lost = new.collection().read(|held| held.open(before).is_err());
    assert!(at_lost, "who read what is lost starts over");
    for n in 100..140 {
        assert!(write(&new, "lost", &n.to_string()).await > before);
        shown.look(&new);
    }
    // The others, with a mark and without, use the same numbers.
    let others = [start(&etcd, Some(&mark)).await, start(&etcd, None).await];
    for (n, other) in (200..).zip(&others) {
        assert_eq!(other.storage.id(), new.storage.id());
        let rv = write(other, "lost", &n.to_string()).await;
        eventually("all follow", || new.collection().read(|held| held.position()) >= rv).await;
        shown.look(other);
        shown.look(&new);
    }
}

/// A data folder that was copied back is the same cluster: only a coordinator with a mark can detect it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn coordinator_with_a_mark_notices_a_restore_that_others_have_written_over() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mark = folder.path().join("mark");
    let mut shown = Shown::default();
    let (etcd, id) = restored(&mark, 5, &mut shown).await;
    let before = shown.last();
    let new = start(&etcd, None).await;
    assert_eq!(new.storage.id(), id, "it cannot know");
    let mut last = ResourceVersion::ZERO;
    while last <= ResourceVersion(before.0 + 20) {
        last = write(&new, "other", "1").await;
    }
    let one = start(&etcd, Some(&mark)).await;
    assert_ne!(
        one.storage.id(),
        id,
        "its numbers alone would be above what it has seen"
    );
    let at = one.collection().read(|held| held.position());
    assert!(at > last && at > before, "{at}");
    assert!(one.collection().read(|held| held.open(before).is_err()));
    // The coordinator without a mark stops serving.
    let refused = new.storage.caught_up().expect("it is shared").await;
    assert!(matches!(refused, Err(StorageError::Unavailable(_))), "{refused:?}");
    let ended = tokio::time::timeout(yurt_test_support::PATIENCE, new.tasks.failed()).await;
    assert_eq!(ended, Ok("etcd-watch"));
    // After that, a restart is a normal one.
    one.storage.close().await.expect("closed");
    let again = start(&etcd, Some(&mark)).await;
    assert_eq!(again.storage.id(), one.storage.id());
}

/// An etcd that lost everything is a new store, and its numbers begin above those of the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn store_that_was_lost_as_a_whole_repeats_no_number() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut shown = Shown::default();
    let mut etcd = EtcdMember::single(None, &[]);
    let one = start(&etcd, Some(&folder.path().join("mark"))).await;
    for n in 0..20 {
        write(&one, "lost", &n.to_string()).await;
        shown.look(&one);
    }
    drop(one);
    etcd.kill();
    std::fs::remove_dir_all(etcd.data()).expect("the data folder");
    etcd.start();
    let new = start(&etcd, None).await;
    assert!(write(&new, "lost", "other").await > shown.last());
    shown.look(&new);
}
