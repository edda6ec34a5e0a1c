//! Replicas in a store that several coordinators share: one of them is fed and commits, all follow what was committed.
//!
//! ```text
//!   /~pool/<collection>/pointer            which folder, generation, C: what it says is there, and nothing else counts
//!   /~pool/<collection>/<folder>/o/<key>   object          …/t/<rv>/<key>  tombstone          …/r/<to>/<after>/<key>  range
//! ```
//! A small change is one transaction with the pointer, compared with the pointer it builds upon and with whatever the
//! caller guards (the election's record). A large one fills a new folder first; then the pointer flips, and the old
//! folder goes. Followers see both through the store's commits and apply up to the pointer only.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use yurt_apimachinery::{Object, ObjectKey, ResourceKind, ResourceVersion};

mod gained;

use gained::{Gained, apply_all, apply_step, is_ahead};

use super::Replica;
use crate::backend::{Action, Committed, Durability, Expect, Loaded, Op, Storage, StorageError, TXN_OPS_MAX};
use crate::collection::{Collection, Dirty, Gap, RangeTombstone, Recovered};
use crate::embedded::replicas::Meta;

/// Before every key of a replica. `~` keeps it apart from every collection of own objects.
pub const PREFIX: &str = "/~pool/";

/// Most objects and tombstones in one transaction, beside the pointer and the guard.
const BATCH_MAX: usize = TXN_OPS_MAX - 8;
/// Most bytes in one transaction; etcd takes 1.5 MiB by default. A single larger object goes alone.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// A commit that met another coordinator's is tried again this often.
const ATTEMPTS_MAX: usize = 4;

/// What counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pointer {
    folder: String,
    generation: u64,
    position: ResourceVersion,
    floor: ResourceVersion,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gaps: Vec<Gap>,
    #[serde(default)]
    high: ResourceVersion,
}

/// A collection as the store has it.
#[derive(Debug, Default)]
struct Known {
    /// The pointer, and the RV of the commit that wrote it.
    pointer: Option<(ResourceVersion, Pointer)>,
    /// The commit that what is held builds upon: what is not committed yet is the whole difference to it. Lists say what
    /// changed since one's own state only, so a difference to another commit means nothing.
    base: Option<ResourceVersion>,
    folders: BTreeMap<String, Folder>,
}

/// What is in a folder.
#[derive(Debug, Default)]
struct Folder {
    /// Values by key; of one allocation with the objects held, as far as those are the same.
    rows: BTreeMap<String, Bytes>,
    /// Keys that came since the pointer moved last.
    gained: BTreeSet<String>,
}

/// A row of a folder: key below it and value; `None` deletes.
type Row = (String, Option<Bytes>);

/// What a commit writes.
struct Change {
    meta: Meta,
    dirty: Dirty,
    /// The pointer this builds upon.
    stored: Option<(ResourceVersion, Pointer)>,
    /// See [`Known`].
    base: Option<ResourceVersion>,
    /// The whole content, when it goes into a new folder.
    whole: Option<Vec<Row>>,
}

/// The replicas' part of a shared store.
pub(super) struct Pooled {
    storage: Arc<dyn Storage>,
    // Lock order: this lock first, inside it that of the replicas' names or that of a collection.
    known: Mutex<BTreeMap<String, Known>>,
}

// === impl Pooled ===

impl Pooled {
    pub(super) fn new(storage: Arc<dyn Storage>) -> Self {
        Self {
            storage,
            known: Mutex::default(),
        }
    }

    /// Takes a state of the store: the first one, or the one after commits were missed.
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
            if let (Some(known), Some(pointer)) = (all.get_mut(name), decode(rest, value)) {
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
                }
            }
        }
        for (name, rest, value) in pointers {
            let mut all = self.known.lock();
            if let Some(pointer) = decode(rest, value) {
                let known = all.entry(name.to_owned()).or_default();
                known.moved(named(name).as_deref(), rv, pointer);
            }
        }
    }

    /// Fills a new replica with what the store has of it.
    pub(super) fn adopt(&self, replica: &Replica) {
        let mut all = self.known.lock();
        if let Some(known) = all.get_mut(&replica.name)
            && known.pointer.is_some()
        {
            known.restore(replica);
        }
    }

    /// Deletes everything of a replica that is given up: the pointer first, so that no half of it counts.
    ///
    /// # Errors
    /// [`StorageError`]; a part may be left, which no pointer names.
    pub(super) async fn forget(&self, name: &str) -> Result<(), StorageError> {
        let pointer = self.known.lock().get(name).and_then(|known| known.pointer.clone());
        if let Some((rv, _)) = pointer {
            let delete = Op {
                key: pointer_key(name),
                expect: Expect::At(rv),
                action: Action::Delete {
                    last: Bytes::new().into(),
                },
            };
            self.storage.write(vec![delete]).await?;
        }
        self.clean(name, "").await
    }

    /// Commits what changed in `replica`, in the same step as `guard` holds.
    ///
    /// # Errors
    /// [`StorageError`]; what was not committed stays pending, but for a collection that was started over: it is what the
    /// store has again.
    pub(super) async fn persist(&self, replica: &Replica, guard: Option<&Op>) -> Result<(), StorageError> {
        for _ in 0..ATTEMPTS_MAX {
            let Some(change) = self.take(replica) else {
                return Ok(());
            };
            let error = match self.commit(&replica.name, &change, guard).await {
                Ok(rv) => {
                    self.known.lock().entry(replica.name.clone()).or_default().base = Some(rv);
                    replica.mark_durable(&change.meta);
                    return Ok(());
                }
                Err(error) => error,
            };
            let is_moved = matches!(&error, StorageError::Conflict { key, .. } if *key == pointer_key(&replica.name));
            self.give_back(replica, change, is_moved);
            if !is_moved {
                return Err(error);
            }
            if let Some(reached) = self.storage.caught_up() {
                reached.await?;
            }
        }
        let name = &replica.name;
        Err(StorageError::Unavailable(format!(
            "{name} is being fed through several coordinators at once"
        )))
    }

    /// A change that was not committed.
    fn give_back(&self, replica: &Replica, change: Change, is_moved: bool) {
        let mut all = self.known.lock();
        let known = all.entry(replica.name.clone()).or_default();
        if change.dirty.wiped && !is_moved {
            // Nobody but the present leader may start a collection over.
            return known.restore(replica);
        }
        if known.pointer.as_ref().map(|(rv, _)| *rv) == change.base {
            known.base = change.base;
        }
        replica
            .collection
            .update_quietly(|held| held.restore_dirty(change.dirty));
    }

    /// What there is to commit. Nothing, when another coordinator's commit says as much or more.
    fn take(&self, replica: &Replica) -> Option<Change> {
        let mut all = self.known.lock();
        let known = all.entry(replica.name.clone()).or_default();
        let (stored, base) = (known.pointer.clone(), known.base);
        let named = stored.as_ref().map(|(_, stored)| (stored.generation, stored.position));
        let taken = replica.collection.update_quietly(|held| {
            let dirty = held.take_dirty()?;
            let meta = Meta::of(held);
            let rows = rows_of(&dirty);
            let bytes: usize = rows.iter().map(|(_, value)| value.as_ref().map_or(0, Bytes::len)).sum();
            let builds_upon = stored.is_some() && stored.as_ref().map(|(rv, _)| *rv) == base;
            let is_small = builds_upon && !dirty.replaces_all() && rows.len() <= BATCH_MAX && bytes <= BATCH_BYTES_MAX;
            let whole = (!is_small).then(|| whole(held));
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
        match named.map(|named| named.cmp(&(change.meta.generation(), change.meta.position()))) {
            None | Some(Ordering::Less) => {
                // While this is on its way, what is held is no commit's state.
                known.base = None;
                Some(change)
            }
            // A commit whose answer was lost, or the same facts told to another coordinator.
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
        let (rows, folder) = match (&change.whole, &change.stored) {
            (None, Some((_, stored))) => (small_ops(name, &stored.folder, &change.dirty), stored.folder.clone()),
            (whole, _) => {
                let folder = uuid::Uuid::new_v4().simple().to_string();
                self.fill(name, &folder, whole.as_deref().unwrap_or_default()).await?;
                (Vec::new(), folder)
            }
        };
        let pointer = Pointer {
            folder,
            generation: change.meta.generation(),
            position: change.meta.position(),
            floor: change.meta.floor(),
            gaps: change.meta.gaps().to_vec(),
            high: change.meta.high(),
        };
        let expect = change.stored.as_ref().map_or(Expect::Absent, |(rv, _)| Expect::At(*rv));
        let mut ops: Vec<Op> = guard.cloned().into_iter().chain(rows).collect();
        ops.push(put(pointer_key(name), encode(&pointer)?, expect));
        let rv = self.storage.write(ops).await?;
        if change.whole.is_some()
            && let Err(error) = self.clean(name, &pointer.folder).await
        {
            // The next one that flips the pointer cleans up.
            tracing::warn!(name, %error, "Old pool data is left in the store");
        }
        Ok(rv)
    }

    /// Writes a folder that no pointer names yet.
    async fn fill(&self, name: &str, folder: &str, rows: &[Row]) -> Result<(), StorageError> {
        let (mut ops, mut bytes) = (Vec::new(), 0);
        for (key, value) in rows {
            let Some(value) = value else { continue };
            if ops.len() >= BATCH_MAX || bytes + value.len() > BATCH_BYTES_MAX && !ops.is_empty() {
                self.storage.write(std::mem::take(&mut ops)).await?;
                bytes = 0;
            }
            bytes += value.len();
            ops.push(put(row_key(name, folder, key), value.clone(), Expect::Any));
        }
        if ops.is_empty() {
            return Ok(());
        }
        self.storage.write(ops).await.map(drop)
    }

    /// Deletes all folders but the one that counts. One that is being filled by another coordinator never will: the
    /// pointer it builds upon is gone.
    async fn clean(&self, name: &str, current: &str) -> Result<(), StorageError> {
        let stale: Vec<String> = {
            let all = self.known.lock();
            let folders = all.get(name).into_iter().flat_map(|known| &known.folders);
            let others = folders.filter(|(folder, _)| *folder != current);
            others
                .flat_map(|(folder, content)| content.rows.keys().map(|key| row_key(name, folder, key)))
                .collect()
        };
        for some in stale.chunks(BATCH_MAX) {
            let delete = |key: &String| Op {
                key: key.clone(),
                expect: Expect::Any,
                action: Action::Delete {
                    last: Bytes::new().into(),
                },
            };
            self.storage.write(some.iter().map(delete).collect()).await?;
        }
        Ok(())
    }
}

// === impl Known ===

impl Known {
    fn fill(&mut self, folder: &str, key: &str, value: Option<Bytes>) {
        if let Some(value) = value {
            let folder = self.folders.entry(folder.to_owned()).or_default();
            folder.rows.insert(key.to_owned(), value);
            folder.gained.insert(key.to_owned());
        } else if let Some(content) = self.folders.get_mut(folder) {
            content.rows.remove(key);
            content.gained.remove(key);
            if content.rows.is_empty() {
                self.folders.remove(folder);
            }
        }
    }

    /// The pointer says something else now. Without a replica it is kept for one that may come.
    fn moved(&mut self, replica: Option<&Replica>, rv: ResourceVersion, pointer: Pointer) {
        match replica {
            Some(replica) => self.follow(replica, rv, pointer),
            None => (self.pointer, self.base) = (Some((rv, pointer)), None),
        }
    }

    /// Applies what the folder has gained, up to the pointer.
    fn follow(&mut self, replica: &Replica, rv: ResourceVersion, pointer: Pointer) {
        let is_next = self
            .pointer
            .as_ref()
            .is_some_and(|(before, named)| named.folder == pointer.folder && self.base == Some(*before));
        let folder = self.folders.entry(pointer.folder.clone()).or_default();
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
            // What is held is what is stored.
            drop(held.take_dirty());
            Ok::<_, String>(true)
        });
        match applied {
            Ok(true) => {
                self.base = Some(rv);
                replica.mark_stored(pointer.generation, pointer.position);
            }
            Ok(false) => {}
            Err(why) => {
                tracing::error!(
                    replica = replica.name,
                    why,
                    "Stored pool data cannot be read and is not served"
                );
                replica.collection.update(Collection::distrust);
            }
        }
        replica.collection.read(|held| folder.share(&keys, held));
        self.pointer = Some((rv, pointer));
    }

    /// Drops what is held for what the store has.
    fn restore(&mut self, replica: &Replica) {
        let stored = self.stored(replica.collection.kind()).unwrap_or_default();
        let (generation, position, is_complete) = (stored.generation, stored.position, stored.complete);
        replica.collection.update(|held| {
            held.recover(stored);
            drop(held.take_dirty());
        });
        if is_complete {
            replica.mark_stored(generation, position);
            self.base = self.pointer.as_ref().map(|(rv, _)| *rv);
        }
    }

    /// Everything the pointer names.
    fn stored(&self, kind: &ResourceKind) -> Option<Recovered> {
        let (_, pointer) = self.pointer.as_ref()?;
        let rows = self.folders.get(&pointer.folder).map(|folder| &folder.rows);
        let rows = rows.into_iter().flatten().map(|(key, value)| (key.as_str(), value));
        Gained::read(rows, kind).ok().map(|all| all.at(pointer))
    }
}

// === impl Folder ===

impl Folder {
    /// Two copies of the same bytes become one: whoever was fed holds them already.
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

fn rows_of(dirty: &Dirty) -> Vec<Row> {
    let object = |(key, state): (&ObjectKey, &Option<Object>)| {
        (format!("o/{key}"), state.as_ref().map(|object| object.bytes().clone()))
    };
    let objects = dirty.objects.iter().map(object);
    objects
        .chain(dirty.tombstones.iter().map(tombstone_row))
        .chain(dirty.ranges.iter().map(range_row))
        .collect()
}

fn whole(held: &Collection) -> Vec<Row> {
    let object = |object: &Object| (format!("o/{}", object.key()), Some(object.bytes().clone()));
    let objects = held.objects().map(object);
    objects
        .chain(held.tombstones().map(tombstone_row))
        .chain(held.range_tombstones().iter().map(range_row).collect::<Vec<_>>())
        .collect()
}

fn tombstone_row(object: &Object) -> Row {
    let key = format!("t/{:020}/{}", object.resource_version().0, object.key());
    (key, Some(object.bytes().clone()))
}

fn range_row(range: &RangeTombstone) -> Row {
    let key = format!("r/{:020}/{:020}/{}", range.to.0, range.after.0, range.object.key());
    (key, Some(range.object.bytes().clone()))
}

fn small_ops(name: &str, folder: &str, dirty: &Dirty) -> Vec<Op> {
    let op = |(key, value): Row| {
        let key = row_key(name, folder, &key);
        match value {
            Some(value) => put(key, value, Expect::Any),
            None => Op {
                key,
                expect: Expect::Any,
                action: Action::Delete {
                    last: Bytes::new().into(),
                },
            },
        }
    };
    rows_of(dirty).into_iter().map(op).collect()
}

fn pointer_key(name: &str) -> String {
    format!("{PREFIX}{name}/pointer")
}

fn row_key(name: &str, folder: &str, key: &str) -> String {
    format!("{PREFIX}{name}/{folder}/{key}")
}

fn put(key: String, value: Bytes, expect: Expect) -> Op {
    Op {
        key,
        expect,
        action: Action::Put(value.into(), Durability::Durable),
    }
}

/// The collection of a key, and what is behind it.
fn split(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix(PREFIX)?.split_once('/')
}

fn decode(what: &str, value: &[u8]) -> Option<Pointer> {
    if what != "pointer" {
        return None;
    }
    serde_json::from_slice(value)
        .map_err(|error| tracing::error!(%error, "Pointer of pool data cannot be read, what it names is not followed"))
        .ok()
}

fn encode(pointer: &Pointer) -> Result<Bytes, StorageError> {
    let bytes = serde_json::to_vec(pointer).map_err(|error| StorageError::Corrupt(error.to_string()))?;
    Ok(bytes.into())
}
