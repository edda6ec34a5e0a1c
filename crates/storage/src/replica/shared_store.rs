//! Replicas in a store that several coordinators share: one of them is fed and commits, all follow its commits.
//!
//! ```text
//!   /~pool/<collection>/pointer            folder, generation, C: only the state that it names is valid
//!   /~pool/<collection>/<folder>/o/<key>   object          …/t/<rv>/<key>  tombstone          …/r/<to>/<after>/<key>  range
//! ```
//! A small change is one transaction with the pointer. The transaction compares the pointer that it builds upon, and
//! the caller's guards (the election's record). Where it has room, it also deletes rows of deletions that are
//! forgotten. A large change fills a new folder first; then the pointer flips, and the old folder is deleted
//! (`folders`). Followers see both through the store's commits and apply up to the pointer only.
//!
//! A commit ends as a whole, with everything that follows from its outcome, also when its caller is gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use yurt_apimachinery::ResourceVersion;
use yurt_runtime::TaskGroup;

mod commit;
mod folders;
mod gained;
mod pointer;
mod rows;
mod stored_state;

use folders::RefusedSize;
use pointer::Pointer;
use rows::{delete, pointer_key, split};
use stored_state::StoredState;

use super::{ByName, Committing, Replica};
use crate::backend::{Committed, Expect, Loaded, Op, Storage, StorageError, TXN_OPS_MAX};

/// Prefix of every key of a replica. `~` separates it from the collections of own objects.
pub const PREFIX: &str = "/~pool/";

/// Maximum number of objects and tombstones in one transaction, in addition to the pointer and the guard.
const BATCH_MAX: usize = TXN_OPS_MAX - 8;
/// Maximum bytes of values in one transaction; etcd accepts 1.5 MiB by default. A single larger object goes alone.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// The replicas' part of a shared store.
pub(super) struct SharedStore {
    storage: Arc<dyn Storage>,
    // Lock order: this lock first, inside it that of the replicas' names or that of a collection.
    known: Mutex<BTreeMap<String, StoredState>>,
    refused: Mutex<Option<RefusedSize>>,
    /// Owns the commit in flight. It is a group of its own, because the last commit comes after all other tasks have
    /// ended.
    tasks: TaskGroup,
}

// === impl SharedStore ===

impl SharedStore {
    pub(super) fn new(storage: Arc<dyn Storage>) -> Self {
        Self {
            storage,
            known: Mutex::default(),
            refused: Mutex::default(),
            tasks: TaskGroup::new(),
        }
    }

    /// Takes a state of the store: the first one, or a later one after missed commits.
    pub(super) fn load(&self, named: impl Fn(&str) -> Option<Arc<Replica>>, loaded: &Loaded) {
        let mut all = self.known.lock();
        all.clear();
        let mut pointers = Vec::new();
        for stored in &loaded.live {
            if let Some((name, rest)) = split(&stored.key) {
                let known = all.entry(name.to_owned()).or_default();
                match rest.split_once('/') {
                    Some((folder, key)) => known.fill(folder, key, Some(stored.value.clone())),
                    None => pointers.push((name, rest, stored.rv, &stored.value)),
                }
            }
        }
        for (name, rest, rv, value) in pointers {
            if let (Some(known), Some(pointer)) = (all.get_mut(name), Pointer::decode(rest, value)) {
                known.moved(named(name).as_deref(), rv, pointer);
            }
        }
    }

    /// Takes a commit.
    pub(super) fn committed(
        &self,
        named: impl Fn(&str) -> Option<Arc<Replica>>,
        rv: ResourceVersion,
        changes: &[Committed],
    ) {
        let mut pointers = Vec::new();
        for change in changes {
            let Some((name, rest)) = split(&change.key) else {
                continue;
            };
            match rest.split_once('/') {
                Some((folder, key)) => {
                    let value = (!change.deleted).then(|| change.value.bytes().clone());
                    let mut all = self.known.lock();
                    all.entry(name.to_owned()).or_default().fill(folder, key, value);
                }
                None if !change.deleted => pointers.push((name, rest, change.value.bytes())),
                None => {
                    let mut all = self.known.lock();
                    let known = all.entry(name.to_owned()).or_default();
                    (known.pointer, known.base) = (None, None);
                    named(name).inspect(|replica| known.drop_deleted(replica));
                }
            }
        }
        for (name, rest, value) in pointers {
            let mut all = self.known.lock();
            if let Some(pointer) = Pointer::decode(rest, value) {
                let known = all.entry(name.to_owned()).or_default();
                known.moved(named(name).as_deref(), rv, pointer);
            }
        }
    }

    /// Fills a new replica with its state in the store.
    pub(super) fn adopt(&self, replica: &Replica) {
        let mut all = self.known.lock();
        if let Some(known) = all.get_mut(&replica.name)
            && known.pointer.is_some()
        {
            known.restore(replica);
        }
    }

    /// Deletion of the pointer: no remaining part counts after it.
    pub(super) fn deletion(&self, name: &str) -> Option<Op> {
        let all = self.known.lock();
        let (rv, _) = all.get(name)?.pointer.as_ref()?;
        Some(delete(pointer_key(name), Expect::At(*rv)))
    }

    /// Deletes everything of a replica. The pointer goes first, with `with`, so that no remaining part counts.
    ///
    /// # Errors
    /// [`StorageError`]; a part may be left that no pointer names.
    pub(super) async fn forget(&self, name: &str, with: Option<Op>) -> Result<(), StorageError> {
        let ops: Vec<Op> = self.deletion(name).into_iter().chain(with).collect();
        if !ops.is_empty() {
            self.storage.write(ops).await?;
        }
        self.clean(name, None).await
    }

    /// Drops the data of `replica` if another coordinator deleted it while this one missed commits.
    pub(super) fn drop_deleted(&self, replica: &Replica) {
        let mut all = self.known.lock();
        let known = all.entry(replica.name.clone()).or_default();
        if known.pointer.is_none() {
            known.drop_deleted(replica);
        }
    }

    /// Commits the changes of `replicas`, one after the other, in the same step as `guard` holds. Continues when the
    /// caller is dropped, and keeps `place` until it is done. A call in the meantime waits for this one, and finds its
    /// outcome.
    ///
    /// # Errors
    /// [`StorageError`] of the first replica that failed. Uncommitted changes stay pending, with two exceptions: a
    /// collection that was started over, and one with an object that the store rejects. These return to the store's
    /// state.
    pub(super) async fn persist_all(
        self: &Arc<Self>,
        replicas: Arc<ByName>,
        guard: Option<Op>,
        place: Committing,
    ) -> Result<(), StorageError> {
        let shared = self.clone();
        let committing = async move {
            let mut outcome = Ok(());
            for replica in replicas.values() {
                outcome = outcome.and(shared.persist(replica, guard.as_ref()).await);
            }
            if let Err(error) = shared.sweep().await {
                tracing::debug!(%error, "Failed to delete abandoned pool data");
            }
            drop(place);
            outcome
        };
        let finished = self.tasks.detached("commit-pool-data", committing).await;
        finished.unwrap_or_else(|lost| Err(StorageError::Unavailable(lost.to_string())))
    }
}
