//! Replicas in a store that several coordinators share: one of them is fed and commits, all follow its commits.
//!
//! ```text
//!   /~pool/<collection>/pointer            folder, generation, C: only the state that it names is valid
//!   /~pool/<collection>/<folder>/o/<key>   object          …/t/<rv>/<key>  tombstone          …/r/<to>/<after>/<key>  range
//! ```
//! A small change is one transaction with the pointer. The transaction compares the pointer that it builds upon, and
//! the caller's guards (the election's record). A large change fills a new folder first; then the pointer flips, and
//! the old folder is deleted (`folders`). Followers see both through the store's commits and apply up to the pointer
//! only.
//!
//! A commit ends as a whole, with everything that follows from its outcome, also when its caller is gone.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;
use yurt_apimachinery::{ObjectKey, ResourceKind, ResourceVersion};
use yurt_runtime::TaskGroup;

mod folders;
mod gained;
mod pointer;
mod rows;

use folders::RefusedSize;
use gained::{Gained, apply_all, apply_step, is_ahead};
use pointer::Pointer;
use rows::{check, delete, is_of, pointer_key, put, rows_of, small_ops, split, whole};
use yurt_collection::{Collection, Dirty, Recovered};

use super::{ByName, Committing, Durable, Replica};
use crate::backend::{Committed, Expect, Loaded, Op, Storage, StorageError, TXN_OPS_MAX};
use crate::embedded::replicas::Meta;

/// Prefix of every key of a replica. `~` separates it from the collections of own objects.
pub const PREFIX: &str = "/~pool/";

/// Maximum number of objects and tombstones in one transaction, in addition to the pointer and the guard.
const BATCH_MAX: usize = TXN_OPS_MAX - 8;
/// Maximum bytes of values in one transaction; etcd accepts 1.5 MiB by default. A single larger object goes alone.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Maximum number of attempts of a commit that conflicts with another coordinator's.
const ATTEMPTS_MAX: usize = 4;

/// State of a collection in the store.
#[derive(Debug, Default)]
struct Known {
    /// The pointer, and the RV of the commit that wrote it.
    pointer: Option<(ResourceVersion, Pointer)>,
    /// The commit that the held state builds upon: the uncommitted changes are the whole difference to it. Lists give
    /// differences to this coordinator's state only, so a difference to another commit means nothing.
    base: Option<ResourceVersion>,
    folders: BTreeMap<String, Folder>,
}

/// Contents of a folder.
#[derive(Debug)]
struct Folder {
    /// Values by key. They share their allocation with the held objects if the bytes are equal.
    rows: BTreeMap<String, Bytes>,
    /// Keys written since the last move of the pointer.
    gained: BTreeSet<String>,
    /// Time of the last new row.
    grown: Instant,
}

/// Contents of a commit.
struct Change {
    meta: Meta,
    dirty: Dirty,
    /// The pointer this builds upon.
    stored: Option<(ResourceVersion, Pointer)>,
    /// See [`Known`].
    base: Option<ResourceVersion>,
    /// The whole content, when it goes into a new folder.
    whole: Option<Vec<(String, Bytes)>>,
}

/// The replicas' part of a shared store.
pub(super) struct Pooled {
    storage: Arc<dyn Storage>,
    // Lock order: this lock first, inside it that of the replicas' names or that of a collection.
    known: Mutex<BTreeMap<String, Known>>,
    refused: Mutex<Option<RefusedSize>>,
    /// Owns the commit in flight. It is a group of its own, because the last commit comes after all other tasks have
    /// ended.
    tasks: TaskGroup,
}

// === impl Pooled ===

impl Pooled {
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

    /// Deletes everything of a replica. The pointer goes first, with `with`, so that no remaining part counts.
    ///
    /// # Errors
    /// [`StorageError`]; a part may be left that no pointer names.
    pub(super) async fn forget(&self, name: &str, with: Option<Op>) -> Result<(), StorageError> {
        let pointer = self.known.lock().get(name).and_then(|known| known.pointer.clone());
        let deletion = pointer.map(|(rv, _)| delete(pointer_key(name), Expect::At(rv)));
        let ops: Vec<Op> = deletion.into_iter().chain(with).collect();
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
        let pooled = self.clone();
        let committing = async move {
            let mut outcome = Ok(());
            for replica in replicas.values() {
                outcome = outcome.and(pooled.persist(replica, guard.as_ref()).await);
            }
            if let Err(error) = pooled.sweep().await {
                tracing::debug!(%error, "Failed to delete abandoned pool data");
            }
            drop(place);
            outcome
        };
        let finished = self.tasks.detached("commit-pool-data", committing).await;
        finished.unwrap_or_else(|lost| Err(StorageError::Unavailable(lost.to_string())))
    }

    async fn persist(&self, replica: &Replica, guard: Option<&Op>) -> Result<(), StorageError> {
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
            let is_small = builds_upon && !dirty.replaces_all() && rows.len() <= BATCH_MAX && bytes <= BATCH_BYTES_MAX;
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
        let rows = small_ops(name, &pointer.folder, &change.dirty);
        let mut ops: Vec<Op> = guard.cloned().into_iter().chain(rows).collect();
        ops.push(put(pointer_key(name), pointer.encode()?, change.expected()));
        self.storage.write(ops).await
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

// === impl Known ===

impl Known {
    fn fill(&mut self, folder: &str, key: &str, value: Option<Bytes>) {
        if let Some(value) = value {
            let folder = self.folders.entry(folder.to_owned()).or_insert_with(Folder::new);
            folder.rows.insert(key.to_owned(), value);
            folder.gained.insert(key.to_owned());
            folder.grown = Instant::now();
        } else if let Some(content) = self.folders.get_mut(folder) {
            content.rows.remove(key);
            content.gained.remove(key);
            if content.rows.is_empty() {
                self.folders.remove(folder);
            }
        }
    }

    /// Follows a change of the pointer. Without a replica the pointer is kept for a later one.
    fn moved(&mut self, replica: Option<&Replica>, rv: ResourceVersion, pointer: Pointer) {
        match replica {
            Some(replica) => self.follow(replica, rv, pointer),
            None => (self.pointer, self.base) = (Some((rv, pointer)), None),
        }
    }

    /// Applies the new rows of the folder, up to the pointer.
    fn follow(&mut self, replica: &Replica, rv: ResourceVersion, pointer: Pointer) {
        let is_next = self
            .pointer
            .as_ref()
            .is_some_and(|(before, named)| named.folder == pointer.folder && self.base == Some(*before));
        let moves_mark = is_next
            && self
                .pointer
                .as_ref()
                .is_some_and(|(_, before)| before.place() == pointer.place());
        let folder = self.folders.entry(pointer.folder.clone()).or_insert_with(Folder::new);
        let keys = std::mem::take(&mut folder.gained);
        let kind = replica.collection.kind();
        let applied = replica.collection.update(|held| {
            if is_ahead(held, &pointer) {
                return Ok(false);
            }
            if held.take_dirty().is_none() && is_next && held.is_complete() {
                let gained = keys
                    .iter()
                    .filter_map(|key| Some((key.as_str(), folder.rows.get(key)?)));
                apply_step(held, pointer.position, Gained::read(gained, kind)?);
            } else {
                let all = folder.rows.iter().map(|(key, value)| (key.as_str(), value));
                apply_all(held, &pointer, Gained::read(all, kind)?)?;
            }
            pointer.gaps.iter().for_each(|gap| held.add_gap(*gap));
            // The held state is the stored one.
            drop(held.take_dirty());
            Ok::<_, String>(true)
        });
        replica.mark_shared(pointer.generation, pointer.mark);
        match applied {
            Ok(true) => {
                self.base = Some(rv);
                replica.mark_followed(pointer.generation, pointer.position);
            }
            // The held state still builds upon the rows.
            Ok(false) if moves_mark => self.base = Some(rv),
            Ok(false) => {}
            Err(why) => {
                tracing::error!(
                    replica = replica.name,
                    why,
                    "Failed to read stored pool data; it is not served"
                );
                replica.collection.update(Collection::distrust);
            }
        }
        replica.collection.read(|held| folder.share(&keys, held));
        self.pointer = Some((rv, pointer));
    }

    /// Replaces the held state with the stored one.
    fn restore(&mut self, replica: &Replica) {
        let stored = self.stored(replica.collection.kind()).unwrap_or_default();
        let (generation, position, is_complete) = (stored.generation, stored.position, stored.complete);
        replica.collection.update(|held| {
            held.recover(stored);
            drop(held.take_dirty());
        });
        if is_complete {
            replica.mark_followed(generation, position);
            self.base = self.pointer.as_ref().map(|(rv, _)| *rv);
        }
    }

    /// Drops what `replica` holds of a state that was deleted. Data that is not stored yet stays.
    fn drop_deleted(&mut self, replica: &Replica) {
        if replica.durable().complete {
            self.restore(replica);
            *replica.durable.lock() = Durable::default();
        }
    }

    /// Everything that the pointer names.
    fn stored(&self, kind: &ResourceKind) -> Option<Recovered> {
        let (_, pointer) = self.pointer.as_ref()?;
        let rows = self.folders.get(&pointer.folder).map(|folder| &folder.rows);
        let rows = rows.into_iter().flatten().map(|(key, value)| (key.as_str(), value));
        Gained::read(rows, kind).ok().map(|all| all.at(pointer))
    }
}

// === impl Folder ===

impl Folder {
    fn new() -> Self {
        Self {
            rows: BTreeMap::new(),
            gained: BTreeSet::new(),
            grown: Instant::now(),
        }
    }

    /// Merges two copies of the same bytes: the coordinator that was fed holds them already.
    fn share(&mut self, keys: &BTreeSet<String>, held: &Collection) {
        for key in keys {
            let object = key
                .strip_prefix("o/")
                .and_then(|key| held.object(&ObjectKey::parse(key)));
            if let (Some(object), Some(value)) = (object, self.rows.get_mut(key))
                && object.bytes() == value
            {
                *value = object.bytes().clone();
            }
        }
    }
}
