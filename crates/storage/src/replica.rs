//! Replicas of cloud collections: cloud resourceVersions, cloud bytes, a durable copy that is never ahead of itself.
//!
//! The same set of replicas stands in the leader hub (source: cloud), in the coordinator (source: the feed) and in
//! every hub (source: coordinator, else cloud, else none). Whoever owns the source applies to
//! [`SharedCollection::update`]; [`Replicas::persist`] commits what changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use yurt_apimachinery::{ResourceKind, ResourceVersion};

use crate::backend::StorageError;
use crate::embedded::replicas::{Meta, Part, ReplicaStore};
use crate::shared::SharedCollection;

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
}

/// All replicas of a process and the store they share.
pub struct Replicas {
    store: Option<ReplicaStore>,
    replicas: BTreeMap<String, Arc<Replica>>,
    /// One commit at a time: dirty records of a failed commit go back before the next one is taken.
    committing: tokio::sync::Mutex<()>,
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
            store,
            replicas,
            committing: tokio::sync::Mutex::new(()),
        })
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

    /// Commits everything that changed since the last call in one transaction; nothing to do is no write at all.
    ///
    /// # Errors
    /// [`StorageError`]; the changes stay pending and go with the next call.
    pub async fn persist(&self) -> Result<(), StorageError> {
        let Some(store) = self.store.clone() else {
            self.iter()
                .for_each(|replica| replica.mark_durable(replica.collection.read(Meta::of)));
            return Ok(());
        };
        let _turn = self.committing.lock().await;
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
            return Ok(());
        }
        let committed = tokio::task::spawn_blocking(move || (store.commit(&parts), parts)).await;
        let (outcome, parts) =
            committed.map_err(|error| StorageError::Unavailable(format!("the commit was interrupted: {error}")))?;
        for part in parts {
            let Some(replica) = self.replicas.get(&part.name) else {
                continue;
            };
            match outcome {
                Ok(()) => replica.mark_durable(part.meta),
                Err(_) => replica
                    .collection
                    .update_quietly(|collection| collection.restore_dirty(part.dirty)),
            }
        }
        outcome
    }
}

impl Replica {
    fn mark_durable(&self, meta: Meta) {
        *self.durable.lock() = Durable {
            position: meta.position(),
            complete: meta.is_complete(),
        };
    }
}
