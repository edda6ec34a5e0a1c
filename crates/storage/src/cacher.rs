//! Own collections in memory, fed by a backend's commits in order; reads never touch the backend.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion};

use crate::backend::{Committed, Loaded, Sink};
use crate::collection::Recovered;
use crate::shared::SharedCollection;

/// All own collections of a coordinator.
#[derive(Debug)]
pub struct Cacher {
    collections: BTreeMap<String, Arc<SharedCollection>>,
}

type Events = Vec<(EventType, Object)>;

// === impl Cacher ===

impl Cacher {
    /// Empty collections of `kinds`; they become complete when a backend loads them.
    #[must_use]
    pub fn new(kinds: impl IntoIterator<Item = &'static ResourceKind>) -> Self {
        let named = |kind: &'static ResourceKind| {
            (
                kind.group_resource().to_string(),
                Arc::new(SharedCollection::new(kind, false)),
            )
        };
        Self {
            collections: kinds.into_iter().map(named).collect(),
        }
    }

    /// The collection `<resource>[.<group>]`.
    #[must_use]
    pub fn collection(&self, name: &str) -> Option<&Arc<SharedCollection>> {
        self.collections.get(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Arc<SharedCollection>)> {
        self.collections.iter()
    }

    fn at_key<'a>(&self, key: &'a str) -> Option<(&'a str, &Arc<SharedCollection>)> {
        let (name, _) = key.strip_prefix('/')?.split_once('/')?;
        Some((name, self.collections.get(name)?))
    }
}

impl Sink for Cacher {
    fn load(&self, loaded: Loaded) {
        let mut recovered: BTreeMap<&str, Recovered> = BTreeMap::new();
        for (name, shared) in &self.collections {
            let prefix = format!("/{name}/");
            let parse = |(key, rv, value): (&str, ResourceVersion, &Bytes)| decode(key, rv, value, shared.kind());
            let inside = |stored: &&crate::backend::Stored| stored.key.starts_with(&prefix);
            let state = Recovered {
                objects: loaded
                    .live
                    .iter()
                    .filter(inside)
                    .filter_map(|s| parse((&s.key, s.rv, &s.value)))
                    .collect(),
                tombstones: loaded
                    .tombstones
                    .iter()
                    .filter(inside)
                    .filter_map(|s| parse((&s.key, s.rv, &s.value)))
                    .collect(),
                ranges: Vec::new(),
                position: loaded.at,
                floor: loaded.floor,
                complete: true,
                generation: 0,
            };
            recovered.insert(name, state);
        }
        for (name, state) in recovered {
            if let Some(shared) = self.collections.get(name) {
                shared.update(|collection| collection.recover(state));
            }
        }
    }

    fn committed(&self, rv: ResourceVersion, changes: &[Committed]) {
        let mut by_collection: BTreeMap<&str, (&SharedCollection, Events)> = BTreeMap::new();
        for change in changes {
            let Some((name, shared)) = self.at_key(&change.key) else {
                continue;
            };
            let Some(object) = decode(&change.key, rv, &change.value, shared.kind()) else {
                continue;
            };
            let event = if change.deleted {
                EventType::Deleted
            } else {
                EventType::Modified
            };
            by_collection
                .entry(name)
                .or_insert((shared, Vec::new()))
                .1
                .push((event, object));
        }
        for (shared, events) in by_collection.into_values() {
            shared.update(|collection| collection.apply_all(rv, events));
        }
    }
}

/// A stored value as an object carrying its RV. A value that cannot be read is reported and left out: it can only be
/// damage, since nothing is stored that was not parsed before.
fn decode(key: &str, rv: ResourceVersion, value: &Bytes, kind: &ResourceKind) -> Option<Object> {
    match Object::parse(value.clone(), kind) {
        Ok(object) => Some(object.with_resource_version(rv)),
        Err(error) => {
            tracing::error!(key, %error, "Stored object cannot be read and is not served");
            None
        }
    }
}
