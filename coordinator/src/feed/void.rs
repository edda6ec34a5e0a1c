//! Voids a collection: its fed data is deleted, and the next leader feeds it from the start.
//!
//! A void is a record of the store: the generation of the void data, and the lowest one that may follow. It outlives a
//! restart and reaches the other coordinators of an etcd. Data that the record covers is dropped wherever it is found.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use yurt_apimachinery::Status;
use yurt_collection::{Collection, Recovered, generation};
use yurt_pool_protocol::members;
use yurt_storage::backend::{Committed, Loaded};
// Void data is dropped whichever generation the collection has.
use yurt_storage::{Action, Durability, Expect, OnlyWriter as _, Op, StorageError};

use super::Feed;
use super::collection::{PoolCollection, PoolCollections, SinceVoid};
use crate::status_error;

/// Prefix of the records' storage keys; the collection's name follows. `~` keeps them apart from every collection.
pub(crate) const VOID_PREFIX: &str = "/~void/";

/// Record of the last void of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Void {
    /// Generation of the void data.
    of: u64,
    /// Lowest generation of the data that may follow.
    least: u64,
}

/// Voids of the collections as the store records them.
#[derive(Debug)]
pub(crate) struct Voids {
    records: Mutex<BTreeMap<String, Void>>,
    /// Feeders since the last void of a collection; of those alone that were voided since the start.
    feeders: Mutex<BTreeMap<String, SinceVoid>>,
    collections: Arc<PoolCollections>,
}

// === impl Void ===

impl Void {
    /// The void of data of generation `of`. Numbers start over after the last one.
    fn new(of: u64, random: u64) -> Option<Self> {
        let least = generation::next(of, random).or_else(|| generation::next(0, random))?;
        Some(Self { of, least })
    }

    /// True if data of `generation` is void.
    fn covers(self, generation: u64) -> bool {
        match self.least > self.of {
            true => generation < self.least,
            false => !(self.least..self.of).contains(&generation),
        }
    }

    /// Drops void data that `held` has, and what waits to be stored of it. Until other data arrives, an earlier
    /// generation is rejected.
    fn apply(self, held: &mut Collection) {
        if held.is_complete() && self.covers(held.generation()) {
            held.recover(Recovered::default());
            drop(held.take_dirty());
        }
        held.require(self.least);
    }

    fn op(self, name: &str) -> Result<Op, StorageError> {
        let record = serde_json::to_vec(&self).map_err(|error| StorageError::Corrupt(error.to_string()))?;
        Ok(Op {
            key: format!("{VOID_PREFIX}{name}"),
            expect: Expect::Any,
            action: Action::Put(Bytes::from(record).into(), Durability::Durable),
        })
    }
}

// === impl Voids ===

impl Voids {
    /// No voids of `collections`, before the store is read.
    pub(crate) fn new(collections: Arc<PoolCollections>) -> Self {
        Self {
            records: Mutex::default(),
            feeders: Mutex::default(),
            collections,
        }
    }

    /// Takes the records of a store, after its pool data.
    pub(crate) fn load(&self, loaded: &Loaded) {
        loaded
            .live
            .iter()
            .for_each(|stored| self.take(&stored.key, &stored.value));
    }

    /// Takes the records of a commit, after its pool data.
    pub(crate) fn committed(&self, changes: &[Committed]) {
        let written = changes.iter().filter(|change| !change.deleted);
        written.for_each(|change| self.take(&change.key, change.value.bytes()));
    }

    fn take(&self, key: &str, record: &[u8]) {
        let Some(name) = key.strip_prefix(VOID_PREFIX) else {
            return;
        };
        match serde_json::from_slice(record) {
            Ok(void) => {
                self.records.lock().insert(name.to_owned(), void);
                self.collections
                    .named(name)
                    .inspect(|collection| self.apply(collection));
            }
            Err(error) => {
                tracing::error!(%error, collection = name, "Failed to read the record of a void, ignoring it")
            }
        }
    }

    /// Lowest generation of the collection `name` that is not void.
    fn least(&self, name: &str) -> u64 {
        self.records.lock().get(name).map_or(0, |void| void.least)
    }

    /// Feeders since the last void of the collection `name`; `None` if it was not voided since the start.
    pub(super) fn feeders(&self, name: &str) -> Option<SinceVoid> {
        self.feeders.lock().get(name).cloned()
    }

    /// Begins the record of the feeders of the collection `name`, which has been voided.
    fn begin_feeders(&self, name: &str) -> SinceVoid {
        let since_void = SinceVoid::default();
        self.feeders.lock().insert(name.to_owned(), since_void.clone());
        since_void
    }

    /// Applies the record of `collection`, if it has one.
    pub(super) fn apply(&self, collection: &PoolCollection) {
        let void = self.records.lock().get(collection.name()).copied();
        if let Some(void) = void {
            collection.objects().update(|held| void.apply(held));
        }
    }
}

// === impl Feed ===

impl Feed {
    /// Deletes the fed data of the collection `name`, in the store as well, and ends its readers. `serve` shows readers
    /// the empty one in its place. Except for the members, it is fed again under a later generation only, so that hubs
    /// drop their copies. Other coordinators of the store do the same.
    ///
    /// # Errors
    /// 404 for a collection that does not exist; errors of the store, after which a repetition continues.
    pub(crate) async fn void(&self, name: &str, serve: impl Fn()) -> Result<(), Status> {
        let missing = || Status::failure(404, "NotFound", format!("{name} is not a collection of this pool"));
        let present = || self.collections.named(name).ok_or_else(missing);
        let (old, _turn, _one) = loop {
            let old = present()?;
            // No running call may apply its data to the collection that is dropped.
            let turn = old.turn().await;
            let one = self.scope.changing().await;
            // Another void or a change of the scope may have replaced it.
            if Arc::ptr_eq(&old, &present()?) {
                break (old, turn, one);
            }
        };
        let empty = self.replace_with_nothing(&old).await;
        let empty = empty.map_err(|error| status_error::of_storage(&error))?;
        let feeders = self.voids.begin_feeders(name);
        self.collections.insert(empty.with_feeders(Some(feeders)));
        self.metrics.voided(name);
        serve();
        Ok(())
    }

    /// Lowest generation of the collection `name` that is not void; `None` if there is no such collection.
    pub(crate) fn required_generation(&self, name: &str) -> Option<u64> {
        self.collections.named(name).map(|_| self.voids.least(name))
    }

    /// The node that alone has fed everything since the collection `name` was voided. `None` over a shared etcd, where
    /// others feed through other coordinators.
    pub(crate) fn sole_feeder(&self, name: &str) -> Option<String> {
        let collection = self.collections.named(name)?;
        collection.sole_feeder().filter(|_| !self.replicas.is_shared())
    }

    async fn replace_with_nothing(&self, old: &PoolCollection) -> Result<PoolCollection, StorageError> {
        let name = old.name();
        let random = uuid::Uuid::new_v4().as_u64_pair().0;
        let last = old.objects().read(Collection::generation);
        let void = Void::new(last, random).filter(|_| name != members::COLLECTION);
        let record = void.map(|void| void.op(name)).transpose()?;
        if self.replicas.is_shared() {
            self.replicas.forget(name, record).await?;
        } else if let Some(record) = record {
            // Once it is stored, a start drops data that is still there.
            self.storage.write(vec![record]).await?;
        }
        self.replicas.remove(name).await?;
        let replica = self.replicas.add(name, old.objects().kind()).await?;
        replica.collection().count_relists_on(old.objects());
        let new = match old.is_from_leader() {
            true => PoolCollection::from_leader(replica),
            false => PoolCollection::new(replica),
        };
        self.voids.apply(&new);
        Ok(new)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use yurt_apimachinery::ResourceVersion;
    use yurt_collection::generation::GENERATION_END;

    use super::*;

    proptest! {
        #[test]
        fn void_data_stays_void_and_what_may_follow_does_not(of in 0..GENERATION_END, random: u64) {
            let void = Void::new(of, random).expect("numbers start over");
            prop_assert!(void.covers(of) && !void.covers(void.least));
            prop_assert!(generation::may_follow(void.least, void.least));
            let later = generation::next(void.least, random).filter(|_| void.least > of);
            prop_assert!(later.is_none_or(|later| !void.covers(later)));
        }
    }

    #[test]
    fn collection_without_data_requires_the_generation_until_it_has_some() {
        let void = Void {
            of: 7,
            least: 1_000_003,
        };
        let mut held = Collection::new(true);
        held.restart(7, Vec::new(), ResourceVersion(50));
        void.apply(&mut held);
        let state = |held: &Collection| (held.is_complete(), held.generation(), held.position().0);
        assert_eq!(state(&held), (false, 1_000_003, 0));
        assert!(held.take_dirty().is_none(), "nothing of it is stored any more");
        // A first commit that failed.
        held.restart(1_000_004, Vec::new(), ResourceVersion(40));
        held.recover(Recovered::default());
        assert_eq!(state(&held), (false, 1_000_003, 0));
        held.restart(1_000_004, Vec::new(), ResourceVersion(40));
        void.apply(&mut held);
        assert_eq!(state(&held), (true, 1_000_004, 40), "it is not void");
    }
}
