//! Commits: what has changed since the last one goes to the store, and returns to its collection if it is not stored.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use yurt_apimachinery::ResourceVersion;
use yurt_collection::{Collection, Dirty};

use super::{Committing, Replica, Replicas, Store};
use crate::backend::{Op, StorageError};
use crate::embedded::replicas::{Meta, Part, ReplicaStore};

/// Minimum interval between writes of a file if only `C` moved. A commit wears the medium by about 28 KB. A start with
/// an older `C` only costs a longer replay from the source.
pub const POSITIONS_EVERY: Duration = Duration::from_secs(60);

/// Changes on their way to the disk. If it is dropped before they are known to be stored, they return to their
/// collection, and the next commit takes them.
struct Taken {
    replica: Arc<Replica>,
    part: Part,
}

// === impl Replicas ===

impl Replicas {
    /// Commits everything that changed since the last call in one transaction; without changes there is no write. Where
    /// replicas are shared it is one transaction per replica, and only while `guard` holds. Elsewhere the caller checks
    /// `guard`.
    ///
    /// # Errors
    /// [`StorageError`]; the changes stay pending and go with the next call. A conflict names the key of the guard.
    pub async fn persist(&self, guard: Option<&Op>) -> Result<(), StorageError> {
        let committed = self.committing.clone().lock_owned().await;
        self.commit(guard, committed).await
    }

    /// Makes sure that a stored mark covers `to`, so that a change of `generation` up to there may be applied to
    /// `replica` ([`update_of`](crate::shared::SharedCollection::update_of)). Commits everything as [`Self::persist`]
    /// if none does. Ignored when the replica has another generation.
    ///
    /// # Errors
    /// As [`Self::persist`]; readers may not see `to` yet.
    pub async fn cover(
        &self,
        replica: &Replica,
        generation: u64,
        to: ResourceVersion,
        guard: Option<&Op>,
    ) -> Result<(), StorageError> {
        let is_covered = |held: &Collection| held.generation() != generation || held.covers(to);
        if replica.collection.read(is_covered) {
            return Ok(());
        }
        replica.collection.update_quietly(|held| held.want_mark(generation, to));
        self.persist(guard).await
    }

    /// As [`Self::persist`], for a call every few seconds. In a file, a move of `C` alone waits for other changes or
    /// for [`POSITIONS_EVERY`], since its loss costs least. Where replicas are shared, other coordinators follow the
    /// stored `C`, so it never waits.
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
            Store::Shared(shared) => shared.persist_all(self.all(), guard.cloned(), committed).await,
        }
    }

    async fn persist_to(&self, store: ReplicaStore, mut committed: Committing) -> Result<(), StorageError> {
        let taken: Vec<Taken> = self.iter().filter_map(Taken::of).collect();
        if taken.is_empty() {
            *committed = Some(Instant::now());
            return Ok(());
        }
        // The commit settles itself: its caller may be gone before it ends.
        let written = tokio::task::spawn_blocking(move || {
            store.commit(taken.iter().map(|one| &one.part))?;
            taken.into_iter().for_each(Taken::stored);
            *committed = Some(Instant::now());
            Ok(())
        });
        let interrupted = |error| StorageError::Unavailable(format!("the commit was interrupted: {error}"));
        written.await.map_err(interrupted)?
    }
}

// === impl Taken ===

impl Taken {
    /// Takes the changes of `replica`; `None` when there are none.
    fn of(replica: Arc<Replica>) -> Option<Self> {
        let part = replica.collection.update_quietly(|collection| {
            let meta = Meta::of(collection);
            collection.take_dirty().map(|dirty| Part {
                name: replica.name.clone(),
                dirty,
                meta,
            })
        })?;
        Some(Self { replica, part })
    }

    /// Marks the changes as stored.
    fn stored(mut self) {
        self.part.dirty = Dirty::default();
        self.replica.mark_durable(&self.part.meta);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let dirty = std::mem::take(&mut self.part.dirty);
        if !dirty.is_empty() {
            self.replica
                .collection
                .update_quietly(|collection| collection.restore_dirty(dirty));
        }
    }
}
