//! Opening of replicas with their state in a file, within a bound of bytes.

use std::sync::Arc;

use yurt_apimachinery::ResourceKind;
use yurt_collection::Recovered;

use super::{ByName, Durable, Replica, Replicas, Store};
use crate::backend::StorageError;
use crate::embedded::replicas::{ReplicaStore, Stored};

/// A replica that was deleted because of its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oversized {
    /// Its name.
    pub name: String,
    /// Its plain bytes.
    pub bytes: usize,
    /// Plain bytes of those loaded before it.
    pub loaded: usize,
}

// === impl Replica ===

impl Replica {
    /// As [`Self::new`], with its state in `store`.
    pub(super) fn load(name: &str, kind: &'static ResourceKind, store: &ReplicaStore) -> Result<Self, StorageError> {
        let replica = Self::new(name, kind, true);
        if let Some(recovered) = store.load(name, kind)? {
            replica.recover(recovered);
        }
        Ok(replica)
    }

    fn recover(&self, recovered: Recovered) {
        self.durable.send_replace(Durable {
            position: recovered.position,
            complete: recovered.complete,
            generation: recovered.generation,
        });
        self.collection.update(|collection| collection.recover(recovered));
    }
}

// === impl Replicas ===

impl Replicas {
    /// Replicas of `kinds` by name, filled from `store` if it has them; without a store they live in memory only.
    ///
    /// # Errors
    /// [`StorageError`] when the store cannot be read; the damaged row is named.
    pub fn open(kinds: &[(String, &'static ResourceKind)], store: Option<ReplicaStore>) -> Result<Self, StorageError> {
        if let Some(store) = store {
            return Self::open_within(kinds, store, usize::MAX).map(|(replicas, _)| replicas);
        }
        let new =
            |(name, kind): &(String, &'static ResourceKind)| (name.clone(), Arc::new(Replica::new(name, kind, false)));
        Ok(Self::of(kinds.iter().map(new).collect(), Store::Nowhere))
    }

    /// Replicas of `kinds` by name, filled from `store` up to `max` plain bytes in total. A replica that is beyond them
    /// is deleted there and begins empty; returned with it.
    ///
    /// # Errors
    /// [`StorageError`] when the store cannot be read; the damaged row is named.
    pub fn open_within(
        kinds: &[(String, &'static ResourceKind)],
        store: ReplicaStore,
        max: usize,
    ) -> Result<(Self, Vec<Oversized>), StorageError> {
        let (mut replicas, mut oversized, mut loaded) = (ByName::default(), Vec::new(), 0_usize);
        for (name, kind) in kinds {
            let replica = Replica::new(name, kind, true);
            match store.load_within(name, kind, max.saturating_sub(loaded))? {
                Stored::Nothing => {}
                Stored::State(recovered, bytes) => {
                    replica.recover(*recovered);
                    loaded = loaded.saturating_add(bytes);
                }
                Stored::TooLarge(bytes) => {
                    store.forget(name)?;
                    let name = name.clone();
                    oversized.push(Oversized { name, bytes, loaded });
                }
            }
            replicas.insert(name.clone(), Arc::new(replica));
        }
        Ok((Self::of(replicas, Store::File(store)), oversized))
    }
}
