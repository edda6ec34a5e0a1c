//! The promises of [`Storage`], one function each; a backend is complete when it passes them all.
//!
//! Run by every backend's tests through [`Harness`]. A function panics when its promise is broken.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use yurt_apimachinery::ResourceVersion;

mod marks;

pub use marks::pool_data_is_served_up_to_a_stored_mark;

use crate::backend::{Action, Committed, Durability, Expect, Loaded, Op, Sink, Storage, StorageError};

/// Opens, closes and kills a backend for the contract tests.
pub trait Harness {
    /// Opens the store, with everything acknowledged before.
    fn open(&mut self) -> BoxFuture<'_, Arc<dyn Storage>>;
}

/// A sink that records its calls.
#[derive(Default)]
pub struct Recorder {
    loaded: Mutex<Option<Loaded>>,
    commits: Mutex<Vec<(ResourceVersion, Vec<Committed>)>>,
}

impl Sink for Recorder {
    fn load(&self, loaded: Loaded) -> Result<(), StorageError> {
        assert!(self.loaded.lock().replace(loaded).is_none(), "load is called once");
        Ok(())
    }

    fn committed(&self, rv: ResourceVersion, changes: &[Committed]) {
        self.commits.lock().push((rv, changes.to_vec()));
    }

    fn reloaded(&self, _loaded: Loaded) {
        panic!("nothing was lost sight of");
    }
}

impl Recorder {
    fn loaded(&self) -> Loaded {
        self.loaded.lock().clone().expect("attach must load first")
    }

    fn last_rv(&self) -> ResourceVersion {
        self.commits.lock().last().map_or(ResourceVersion::ZERO, |(rv, _)| *rv)
    }
}

async fn attach(storage: &Arc<dyn Storage>) -> Arc<Recorder> {
    let recorder = Arc::new(Recorder::default());
    storage
        .attach(recorder.clone())
        .await
        .expect("a fresh store must attach");
    recorder
}

/// A durable put of a small object at `name`.
#[must_use]
pub fn put(name: &str, expect: Expect, value: &str) -> Op {
    let value = Bytes::from(format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"x"}},"data":"{value}"}}"#
    ));
    Op {
        key: key(name),
        expect,
        action: Action::Put(value.into(), Durability::Durable),
    }
}

fn delete(name: &str, expect: Expect) -> Op {
    let last = Bytes::from(format!(r#"{{"metadata":{{"name":"{name}","namespace":"x"}}}}"#));
    Op {
        key: key(name),
        expect,
        action: Action::Delete { last: last.into() },
    }
}

fn key(name: &str) -> String {
    format!("/configmaps/x/{name}")
}

/// A key that must be absent conflicts when it exists, and the conflict names its RV.
pub async fn create_conflicts_with_an_existing_key(harness: &mut dyn Harness) {
    let storage = harness.open().await;
    attach(&storage).await;
    let rv = storage
        .write(vec![put("a", Expect::Absent, "1")])
        .await
        .expect("first create");
    let again = storage.write(vec![put("a", Expect::Absent, "2")]).await;
    assert_eq!(
        again,
        Err(StorageError::Conflict {
            key: key("a"),
            found: Some(rv)
        })
    );
}

/// Of a hundred writers with the same precondition exactly one wins.
pub async fn one_of_many_racers_wins(harness: &mut dyn Harness) {
    let storage = harness.open().await;
    attach(&storage).await;
    let rv = storage
        .write(vec![put("a", Expect::Absent, "0")])
        .await
        .expect("create");
    let race = (0..100).map(|n| storage.write(vec![put("a", Expect::At(rv), &n.to_string())]));
    let won = futures_util::future::join_all(race)
        .await
        .into_iter()
        .filter(Result::is_ok)
        .count();
    assert_eq!(won, 1);
}

/// One failed precondition undoes the whole transaction.
pub async fn transaction_is_all_or_nothing(harness: &mut dyn Harness) {
    let storage = harness.open().await;
    attach(&storage).await;
    let ops = vec![
        put("a", Expect::Absent, "1"),
        put("b", Expect::At(ResourceVersion(7)), "1"),
    ];
    assert_eq!(
        storage.write(ops).await,
        Err(StorageError::Conflict {
            key: key("b"),
            found: None
        })
    );
    storage
        .write(vec![put("a", Expect::Absent, "1")])
        .await
        .expect("nothing of the failed one may remain");
}

/// Commits are published in RV order, and before their writer is answered.
pub async fn commits_are_published_in_order_before_the_answer(harness: &mut dyn Harness) {
    let storage = harness.open().await;
    let recorder = attach(&storage).await;
    for n in 0..20 {
        let rv = storage
            .write(vec![put("a", Expect::Any, &n.to_string())])
            .await
            .expect("write");
        assert_eq!(recorder.last_rv(), rv);
    }
    let many = (0..50).map(|n| storage.write(vec![put(&format!("k{n}"), Expect::Absent, "1")]));
    futures_util::future::join_all(many).await;
    let rvs: Vec<_> = recorder.commits.lock().iter().map(|(rv, _)| *rv).collect();
    assert!(rvs.windows(2).all(|pair| pair[0] < pair[1]), "{rvs:?}");
}

/// A write that has begun completes, whether or not its caller waits for the answer.
pub async fn write_is_finished_when_its_caller_is_gone(harness: &mut dyn Harness) {
    let storage = harness.open().await;
    let recorder = attach(&storage).await;
    for n in 0..20 {
        let name = format!("k{n}");
        let abandoned = storage.write(vec![put(&name, Expect::Absent, "1")]);
        assert!(abandoned.now_or_never().is_none_or(|written| written.is_ok()));
        // It may take a while, in which others write.
        let mut rounds = 0;
        let is_there = || {
            let commits = recorder.commits.lock();
            commits
                .iter()
                .any(|(_, changes)| changes.iter().any(|change| change.key == key(&name)))
        };
        while !is_there() {
            rounds += 1;
            assert!(rounds < 1000, "write {n} never happened");
            storage
                .write(vec![put("other", Expect::Any, "1")])
                .await
                .expect("write");
        }
    }
}

/// Acknowledged durable writes survive a restart, deletions included, and RVs continue above the old ones.
pub async fn acknowledged_writes_survive_a_restart(harness: &mut dyn Harness) {
    let storage = harness.open().await;
    attach(&storage).await;
    let id = storage.id().to_owned();
    let kept = storage
        .write(vec![put("a", Expect::Absent, "1")])
        .await
        .expect("create");
    let gone = storage
        .write(vec![put("b", Expect::Absent, "1")])
        .await
        .expect("create");
    let deleted = storage
        .write(vec![delete("b", Expect::At(gone))])
        .await
        .expect("delete");
    storage.close().await.expect("clean stop");
    drop(storage);
    let storage = harness.open().await;
    let loaded = attach(&storage).await.loaded();
    assert_eq!(storage.id(), id);
    let live: Vec<_> = loaded
        .live
        .iter()
        .map(|stored| (stored.key.clone(), stored.rv))
        .collect();
    assert_eq!(live, [(key("a"), kept)]);
    assert!(
        loaded
            .tombstones
            .iter()
            .any(|stored| stored.key == key("b") && stored.rv == deleted)
    );
    assert!(loaded.at >= deleted);
    let next = storage
        .write(vec![put("c", Expect::Absent, "1")])
        .await
        .expect("write after restart");
    assert!(next > deleted && next > loaded.at);
}

/// A store that was never written has a position all the same. An empty list needs a resourceVersion, and "0" or ""
/// mean something else to clients.
pub async fn fresh_store_has_a_position(harness: &mut dyn Harness) {
    let storage = harness.open().await;
    let recorder = attach(&storage).await;
    let at = recorder.loaded().at;
    assert!(at > ResourceVersion::ZERO);
    let first = storage
        .write(vec![put("a", Expect::Absent, "1")])
        .await
        .expect("create");
    assert!(first > at);
}

/// A deleted key is absent for the next writer.
pub async fn deleted_key_can_be_created_again(harness: &mut dyn Harness) {
    let storage = harness.open().await;
    attach(&storage).await;
    let rv = storage
        .write(vec![put("a", Expect::Absent, "1")])
        .await
        .expect("create");
    storage.write(vec![delete("a", Expect::At(rv))]).await.expect("delete");
    storage
        .write(vec![put("a", Expect::Absent, "2")])
        .await
        .expect("create again");
}

/// A transaction above the limit is rejected, not cut.
pub async fn oversized_transaction_is_refused(harness: &mut dyn Harness) {
    let storage = harness.open().await;
    attach(&storage).await;
    let ops = |n: usize| {
        (0..n)
            .map(|i| put(&format!("k{i}"), Expect::Any, "1"))
            .collect::<Vec<_>>()
    };
    let max = crate::backend::TXN_OPS_MAX;
    storage.write(ops(max)).await.expect("exactly the limit");
    assert_eq!(storage.write(ops(max + 1)).await, Err(StorageError::TooLarge(max + 1)));
}
