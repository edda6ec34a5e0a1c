//! Commits of a collection to the shared store: a small change in one transaction, a large one through a new folder.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use bytes::Bytes;
use yurt_apimachinery::ResourceVersion;
use yurt_collection::Dirty;

use super::pointer::Pointer;
use super::rows::{check, is_of, pointer_key, put, rows_of, small_ops, whole};
use super::{BATCH_BYTES_MAX, BATCH_MAX, SharedStore};
use crate::backend::{Expect, Op, StorageError};
use crate::embedded::replicas::Meta;
use crate::replica::Replica;

/// Maximum number of attempts of a commit that conflicts with another coordinator's.
const ATTEMPTS_MAX: usize = 4;

/// Contents of a commit.
struct Change {
    meta: Meta,
    dirty: Dirty,
    /// The pointer this builds upon.
    stored: Option<(ResourceVersion, Pointer)>,
    /// See [`StoredState`](super::stored_state::StoredState).
    base: Option<ResourceVersion>,
    /// The whole content, when it goes into a new folder.
    whole: Option<Vec<(String, Bytes)>>,
}

// === impl SharedStore ===

impl SharedStore {
    pub(super) async fn persist(&self, replica: &Replica, guard: Option<&Op>) -> Result<(), StorageError> {
        let name = &replica.name;
        let mut into_folder = false;
        for _ in 0..ATTEMPTS_MAX {
            let Some(change) = self.take(replica, into_folder) else {
                return Ok(());
            };
            match self.commit(name, &change, guard).await {
                Ok(rv) => {
                    self.settle(replica, rv, &change);
                    return Ok(());
                }
                Err(StorageError::Conflict { key, .. }) if is_of(&key, name) => {
                    self.give_back(replica, change, true);
                    if let Some(reached) = self.storage.caught_up() {
                        reached.await?;
                    }
                }
                // In a folder every row may be written alone.
                Err(StorageError::TooManyBytes(_)) if change.whole.is_none() => {
                    self.give_back(replica, change, true);
                    into_folder = true;
                }
                Err(error @ StorageError::Oversized { .. }) => {
                    // If kept, it would be tried again and again.
                    tracing::error!(%error, "Failed to store pool data; the previous state is kept");
                    self.known.lock().entry(name.clone()).or_default().restore(replica);
                    return Err(error);
                }
                Err(error) => {
                    self.give_back(replica, change, false);
                    return Err(error);
                }
            }
        }
        Err(StorageError::Unavailable(format!(
            "{name} is being fed through several coordinators at the same time"
        )))
    }

    /// Settles a change that was committed at `rv`.
    fn settle(&self, replica: &Replica, rv: ResourceVersion, change: &Change) {
        let mut all = self.known.lock();
        let known = all.entry(replica.name.clone()).or_default();
        // Another coordinator's commit may have arrived already.
        if known.pointer.as_ref().is_none_or(|(at, _)| *at <= rv) {
            known.base = Some(rv);
            replica.mark_durable(&change.meta);
            replica.mark_shared(change.meta.generation(), change.meta.mark());
        }
    }

    /// Settles a change that was not committed.
    fn give_back(&self, replica: &Replica, change: Change, is_moved: bool) {
        let mut all = self.known.lock();
        let known = all.entry(replica.name.clone()).or_default();
        if change.dirty.wiped && !is_moved {
            // Only the present leader may start a collection over.
            return known.restore(replica);
        }
        if known.pointer.as_ref().map(|(rv, _)| *rv) == change.base {
            known.base = change.base;
        }
        replica
            .collection
            .update_quietly(|held| held.restore_dirty(change.dirty));
    }

    /// Takes the changes to commit. Returns none if another coordinator's commit contains as much or more.
    fn take(&self, replica: &Replica, into_folder: bool) -> Option<Change> {
        let mut all = self.known.lock();
        let known = all.entry(replica.name.clone()).or_default();
        let (stored, base) = (known.pointer.clone(), known.base);
        let taken = replica.collection.update_quietly(|held| {
            let dirty = held.take_dirty().filter(|_| held.is_complete())?;
            let meta = Meta::of(held);
            let rows = rows_of(&dirty);
            let bytes: usize = rows.iter().map(|(_, value)| value.as_ref().map_or(0, Bytes::len)).sum();
            let builds_upon = stored.is_some() && stored.as_ref().map(|(rv, _)| *rv) == base;
            // Coordinators that follow learn of a deletion by its tombstone.
            let is_whole = dirty.replaces_all() || dirty.lacks_deletions();
            let is_small = builds_upon && !is_whole && rows.len() <= BATCH_MAX && bytes <= BATCH_BYTES_MAX;
            let whole = (into_folder || !is_small).then(|| whole(held));
            let stored = stored.clone();
            Some(Change {
                meta,
                dirty,
                stored,
                base,
                whole,
            })
        });
        let change = taken?;
        match stored.as_ref().map(|(_, stored)| stored.compare(&change.meta)) {
            None | Some(Ordering::Less) => {
                // While this is in flight, the held state is not that of any commit.
                known.base = None;
                Some(change)
            }
            // A commit whose answer was lost, or the same events fed to another coordinator.
            Some(Ordering::Equal) => {
                known.base = stored.map(|(rv, _)| rv);
                replica.mark_durable(&change.meta);
                None
            }
            Some(Ordering::Greater) => {
                known.restore(replica);
                None
            }
        }
    }

    async fn commit(&self, name: &str, change: &Change, guard: Option<&Op>) -> Result<ResourceVersion, StorageError> {
        let (Some((_, stored)), None) = (&change.stored, &change.whole) else {
            return self.commit_whole(name, change, guard).await;
        };
        let pointer = change.pointer(stored.folder.clone());
        let rows = self.small_ops(name, &pointer, &change.dirty);
        let mut ops: Vec<Op> = guard.cloned().into_iter().chain(rows).collect();
        ops.push(put(pointer_key(name), pointer.encode()?, change.expected()));
        self.storage.write(ops).await
    }

    fn small_ops(&self, name: &str, pointer: &Pointer, dirty: &Dirty) -> Vec<Op> {
        let all = self.known.lock();
        let folder = all.get(name).and_then(|known| known.folders.get(&pointer.folder));
        let none = BTreeMap::new();
        let stored = folder.map_or(&none, |folder| &folder.rows);
        small_ops(name, &pointer.folder, dirty, stored, pointer.floor)
    }

    /// Fills a new folder and flips the pointer. When that fails, the folder is deleted.
    async fn commit_whole(
        &self,
        name: &str,
        change: &Change,
        guard: Option<&Op>,
    ) -> Result<ResourceVersion, StorageError> {
        let folder = uuid::Uuid::new_v4().simple().to_string();
        let committed = self.fill_and_flip(name, &folder, change, guard).await;
        let cleaned = match &committed {
            Ok(rv) => self.clean(name, Some((*rv, &folder))).await,
            Err(_) => {
                let stored = change.stored.as_ref().map(|(rv, _)| *rv);
                self.delete_folder(name, &folder, stored, usize::MAX).await
            }
        };
        if let Err(error) = cleaned {
            // It is abandoned from now on.
            tracing::warn!(name, %error, "Failed to delete old pool data; trying again later");
        }
        committed
    }

    async fn fill_and_flip(
        &self,
        name: &str,
        folder: &str,
        change: &Change,
        guard: Option<&Op>,
    ) -> Result<ResourceVersion, StorageError> {
        let guards = guard.cloned().into_iter();
        let while_filling = guards.clone().chain([check(pointer_key(name), change.expected())]);
        let rows = change.whole.as_deref().unwrap_or_default();
        let first_row = self
            .fill(name, folder, rows, &while_filling.collect::<Vec<_>>())
            .await?;
        let pointer = change.pointer(folder.to_owned()).encode()?;
        let flip = put(pointer_key(name), pointer, change.expected());
        self.storage
            .write(guards.chain(first_row).chain([flip]).collect())
            .await
    }
}

// === impl Change ===

impl Change {
    /// The pointer afterwards.
    fn pointer(&self, folder: String) -> Pointer {
        Pointer::of(&self.meta, folder)
    }

    /// The expected pointer, as a precondition of this change.
    fn expected(&self) -> Expect {
        self.stored.as_ref().map_or(Expect::Absent, |(rv, _)| Expect::At(*rv))
    }
}
