//! State of a collection in the shared store, as its commits show it: the pointer and the folders.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tokio::time::Instant;
use yurt_apimachinery::{ObjectKey, ResourceKind, ResourceVersion};
use yurt_collection::{Collection, Recovered};

use super::gained::{Gained, apply_all, apply_step, is_ahead};
use super::pointer::Pointer;
use crate::replica::{Durable, Replica};

/// State of a collection in the store.
#[derive(Debug, Default)]
pub(super) struct StoredState {
    /// The pointer, and the RV of the commit that wrote it.
    pub(super) pointer: Option<(ResourceVersion, Pointer)>,
    /// The commit that the held state builds upon: the uncommitted changes are the whole difference to it. Lists give
    /// differences to this coordinator's state only, so a difference to another commit means nothing.
    pub(super) base: Option<ResourceVersion>,
    pub(super) folders: BTreeMap<String, Folder>,
}

/// Contents of a folder.
#[derive(Debug)]
pub(super) struct Folder {
    /// Values by key. They share their allocation with the held objects if the bytes are equal.
    pub(super) rows: BTreeMap<String, Bytes>,
    /// Keys written since the last move of the pointer.
    gained: BTreeSet<String>,
    /// Time of the last new row.
    pub(super) grown: Instant,
}

// === impl StoredState ===

impl StoredState {
    pub(super) fn fill(&mut self, folder: &str, key: &str, value: Option<Bytes>) {
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
    pub(super) fn moved(&mut self, replica: Option<&Replica>, rv: ResourceVersion, pointer: Pointer) {
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
    pub(super) fn restore(&mut self, replica: &Replica) {
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
    pub(super) fn drop_deleted(&mut self, replica: &Replica) {
        if replica.durable().complete {
            self.restore(replica);
            replica.durable.send_replace(Durable::default());
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
                && object.bytes() == *value
            {
                *value = object.bytes();
            }
        }
    }
}
