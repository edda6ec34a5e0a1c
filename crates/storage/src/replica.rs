//! Replicas of cloud collections: cloud resourceVersions, cloud bytes, a durable copy that is never ahead of itself.
//!
//! The same set of replicas stands in the leader hub (source: cloud), in the coordinator (source: the feed) and in
//! every hub (source: coordinator, else cloud, else none). Whoever owns the source applies to
//! [`SharedCollection::update`]; [`Replicas::persist`] commits what changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use yurt_apimachinery::{ResourceKind, ResourceVersion};

use crate::backend::{Committed, Loaded, Op, Storage, StorageError};
use crate::collection::Collection;
use crate::embedded::replicas::{Meta, Part, ReplicaStore};
use crate::shared::SharedCollection;

pub mod pooled;

use pooled::Pooled;

/// One replica and what of it is on the disk.
#[derive(Debug)]
pub struct Replica {
    name: String,
    collection: Arc<SharedCollection>,
    durable: Mutex<Durable>,
}

/// State of the last commit that succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durable {
    /// `C` of that commit.
    pub position: ResourceVersion,
    /// Whether the collection was complete then.
    pub complete: bool,
    /// Timeline of that commit.
    pub generation: u64,
}

/// Where only `C` moved, a file is written this often at most: a commit wears the medium by some 28 KB, and to start with
/// an older `C` costs a longer replay from the source, nothing else.
pub const POSITIONS_EVERY: Duration = Duration::from_secs(60);

/// All replicas of a process and the store they share.
pub struct Replicas {
    store: Store,
    replicas: BTreeMap<String, Arc<Replica>>,
    /// One commit at a time: dirty records of a failed commit go back before the next one is taken. When the last one that
    /// succeeded was. A commit to a file goes on when whoever waits for it is cancelled, and keeps this place until it is done.
    committing: Arc<tokio::sync::Mutex<Option<Instant>>>,
}

/// The place of the one who commits.
type Committing = tokio::sync::OwnedMutexGuard<Option<Instant>>;

/// Where replicas last.
enum Store {
    /// In memory only.
    Nowhere,
    /// In a file of this process.
    File(ReplicaStore),
    /// Beside the own objects of several coordinators.
    Pooled(Pooled),
}

// === impl Replica ===

impl Replica {
    /// Name of the collection: `<resource>` or `<resource>.<group>`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The collection itself.
    #[must_use]
    pub fn collection(&self) -> &Arc<SharedCollection> {
        &self.collection
    }

    /// Whether readers may have it: complete, and a commit knows of this generation, so that no crash goes back to serving
    /// the one before.
    #[must_use]
    pub fn is_served(&self) -> bool {
        let durable = self.durable();
        let (complete, generation) = self.collection.read(|held| (held.is_complete(), held.generation()));
        complete && durable.generation == generation
    }

    /// What the last commit held.
    #[must_use]
    pub fn durable(&self) -> Durable {
        *self.durable.lock()
    }
}

// === impl Replicas ===

impl Replicas {
    /// Replicas of `kinds` by name, filled from `store` where it has them; without a store they live in memory only.
    ///
    /// # Errors
    /// [`StorageError`] when the store cannot be read; the damaged row is named.
    pub fn open(kinds: &[(String, &'static ResourceKind)], store: Option<ReplicaStore>) -> Result<Self, StorageError> {
        let mut replicas = BTreeMap::new();
        for (name, kind) in kinds {
            let collection = Arc::new(SharedCollection::new(kind, store.is_some()));
            let mut durable = Durable::default();
            if let Some(recovered) = store
                .as_ref()
                .map(|store| store.load(name, kind))
                .transpose()?
                .flatten()
            {
                durable = Durable {
                    position: recovered.position,
                    complete: recovered.complete,
                    generation: recovered.generation,
                };
                collection.update(|collection| collection.recover(recovered));
            }
            let replica = Replica {
                name: name.clone(),
                collection,
                durable: Mutex::new(durable),
            };
            replicas.insert(name.clone(), Arc::new(replica));
        }
        Ok(Self {
            store: store.map_or(Store::Nowhere, Store::File),
            replicas,
            committing: Arc::default(),
        })
    }

    /// Replicas of `kinds` that several coordinators share in `storage`. They are filled by [`Self::load`] and
    /// [`Self::committed`], which the sink of that storage has to call.
    #[must_use]
    pub fn pooled(kinds: &[(String, &'static ResourceKind)], storage: Arc<dyn Storage>) -> Self {
        let replica = |(name, kind): &(String, &'static ResourceKind)| {
            let replica = Replica {
                name: name.clone(),
                collection: Arc::new(SharedCollection::new(kind, true)),
                durable: Mutex::default(),
            };
            (name.clone(), Arc::new(replica))
        };
        Self {
            store: Store::Pooled(Pooled::new(storage)),
            replicas: kinds.iter().map(replica).collect(),
            committing: Arc::default(),
        }
    }

    /// Whether other coordinators have the same replicas.
    #[must_use]
    pub fn is_pooled(&self) -> bool {
        matches!(self.store, Store::Pooled(_))
    }

    /// The storage's state, where replicas are pooled.
    pub fn load(&self, loaded: &Loaded) {
        if let Store::Pooled(pooled) = &self.store {
            pooled.load(&self.replicas, loaded);
        }
    }

    /// A commit of the storage, where replicas are pooled.
    pub fn committed(&self, rv: ResourceVersion, changes: &[Committed]) {
        if let Store::Pooled(pooled) = &self.store {
            pooled.committed(&self.replicas, rv, changes);
        }
    }

    /// The replica called `name`.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Arc<Replica>> {
        self.replicas.get(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Replica>> {
        self.replicas.values()
    }

    /// Commits everything that changed since the last call in one transaction; nothing to do is no write at all. Where
    /// replicas are pooled it is one transaction per replica, and only while `guard` holds; elsewhere `guard` is left to
    /// the caller.
    ///
    /// # Errors
    /// [`StorageError`]; the changes stay pending and go with the next call. A conflict names the key of the guard.
    pub async fn persist(&self, guard: Option<&Op>) -> Result<(), StorageError> {
        let committed = self.committing.clone().lock_owned().await;
        self.commit(guard, committed).await
    }

    /// As [`Self::persist`], for a call every few seconds: what a file loses least by waiting for, a `C` that moved alone,
    /// waits for other changes or for [`POSITIONS_EVERY`]. Where replicas are pooled, others follow the stored `C`, so it
    /// never waits.
    ///
    /// # Errors
    /// As [`Self::persist`].
    pub async fn persist_due(&self, guard: Option<&Op>) -> Result<(), StorageError> {
        let committed = self.committing.clone().lock_owned().await;
        let has_content = || {
            self.iter()
                .any(|replica| replica.collection.read(Collection::has_unsaved_content))
        };
        let waits = matches!(self.store, Store::File(_))
            && committed.is_some_and(|at| at.elapsed() < POSITIONS_EVERY)
            && !has_content();
        if waits {
            return Ok(());
        }
        self.commit(guard, committed).await
    }

    async fn commit(&self, guard: Option<&Op>, committed: Committing) -> Result<(), StorageError> {
        match &self.store {
            Store::Nowhere => {
                self.iter()
                    .for_each(|replica| replica.mark_durable(&replica.collection.read(Meta::of)));
                Ok(())
            }
            Store::File(store) => self.persist_to(store.clone(), committed).await,
            Store::Pooled(pooled) => {
                let mut outcome = Ok(());
                for replica in self.replicas.values() {
                    outcome = outcome.and(pooled.persist(replica, guard).await);
                }
                outcome
            }
        }
    }

    async fn persist_to(&self, store: ReplicaStore, mut committed: Committing) -> Result<(), StorageError> {
        let mut parts = Vec::new();
        for replica in self.replicas.values() {
            let taken = replica.collection.update_quietly(|collection| {
                let meta = Meta::of(collection);
                collection.take_dirty().map(|dirty| Part {
                    name: replica.name.clone(),
                    dirty,
                    meta,
                })
            });
            parts.extend(taken);
        }
        if parts.is_empty() {
            *committed = Some(Instant::now());
            return Ok(());
        }
        let written = tokio::task::spawn_blocking(move || {
            let outcome = store.commit(&parts);
            drop(store);
            if outcome.is_ok() {
                *committed = Some(Instant::now());
            }
            (outcome, parts, committed)
        });
        let interrupted = |error| StorageError::Unavailable(format!("the commit was interrupted: {error}"));
        let (outcome, parts, _committed) = written.await.map_err(interrupted)?;
        for part in parts {
            let Some(replica) = self.replicas.get(&part.name) else {
                continue;
            };
            match outcome {
                Ok(()) => replica.mark_durable(&part.meta),
                Err(_) => replica
                    .collection
                    .update_quietly(|collection| collection.restore_dirty(part.dirty)),
            }
        }
        outcome
    }
}

impl Replica {
    fn mark_durable(&self, meta: &Meta) {
        *self.durable.lock() = Durable {
            position: meta.position(),
            complete: meta.is_complete(),
            generation: meta.generation(),
        };
    }

    /// Another coordinator's commit, or ours, was seen in the store.
    fn mark_stored(&self, generation: u64, position: ResourceVersion) {
        *self.durable.lock() = Durable {
            position,
            complete: true,
            generation,
        };
    }
}
