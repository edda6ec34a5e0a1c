//! Own collections in memory, fed by a backend's commits in order; reads never touch the backend.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ObjectKey, ResourceKind, ResourceVersion};

use crate::backend::{Committed, Loaded, Sink, Stored};
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
        for (name, shared) in &self.collections {
            let state = Recovered {
                objects: decode_all(&loaded.live, name, shared.kind()),
                tombstones: decode_all(&loaded.tombstones, name, shared.kind()),
                ranges: Vec::new(),
                position: loaded.at,
                floor: loaded.floor,
                complete: true,
                generation: 0,
            };
            shared.update(|collection| collection.recover(state));
        }
    }

    fn committed(&self, rv: ResourceVersion, changes: &[Committed]) {
        let mut by_collection: BTreeMap<&str, (&SharedCollection, Events)> = BTreeMap::new();
        for change in changes {
            let Some((name, shared)) = self.at_key(&change.key) else {
                continue;
            };
            let object = if change.deleted && change.value.is_empty() {
                last_state(&change.key, rv, shared)
            } else {
                decode(&change.key, rv, &change.value, shared.kind())
            };
            let Some(object) = object else {
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

    fn reloaded(&self, loaded: Loaded) {
        for (name, shared) in &self.collections {
            let objects = decode_all(&loaded.live, name, shared.kind());
            if let Err(error) = shared.update(|collection| collection.replace(objects, loaded.at)) {
                // The backend reloads only what is newer than all it published.
                tracing::error!(name, %error, "Reloaded state is refused, the old one is served");
            }
        }
    }
}

/// The objects of the collection `name` among `stored`.
fn decode_all(stored: &[Stored], name: &str, kind: &ResourceKind) -> Vec<Object> {
    let prefix = format!("/{name}/");
    let inside = stored.iter().filter(|stored| stored.key.starts_with(&prefix));
    inside
        .filter_map(|stored| decode(&stored.key, stored.rv, &stored.value, kind))
        .collect()
}

/// The object a deletion without a value is about, as it was published last.
fn last_state(key: &str, rv: ResourceVersion, shared: &SharedCollection) -> Option<Object> {
    let (_, key) = key.strip_prefix('/')?.split_once('/')?;
    let held = shared.read(|collection| collection.object(&ObjectKey::parse(key)).cloned());
    held.map(|object| object.with_resource_version(rv))
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

#[cfg(test)]
mod tests {
    use yurt_apimachinery::kind::find_kind;

    use super::*;
    use crate::collection::{Collection, Delivery, Reader};

    fn stored(name: &str, rv: u64) -> Stored {
        let value = format!(r#"{{"metadata":{{"name":"{name}","namespace":"x"}}}}"#);
        Stored {
            key: format!("/configmaps/x/{name}"),
            rv: ResourceVersion(rv),
            value: value.into(),
        }
    }

    fn state(live: Vec<Stored>, at: u64) -> Loaded {
        Loaded {
            live,
            at: ResourceVersion(at),
            ..Loaded::default()
        }
    }

    fn loaded(live: Vec<Stored>, at: u64) -> (Cacher, Arc<SharedCollection>, Reader) {
        let cacher = Cacher::new(find_kind("", "configmaps"));
        cacher.load(state(live, at));
        let shared = cacher.collection("configmaps").expect("it was asked for").clone();
        let reader = shared.read(|held| held.snapshot(None).reader);
        (cacher, shared, reader)
    }

    #[test]
    fn reload_tells_differences_only() {
        let (cacher, shared, mut reader) = loaded(vec![stored("a", 3), stored("b", 4), stored("c", 5)], 5);
        cacher.reloaded(state(vec![stored("a", 3), stored("b", 8)], 9));
        let told: Vec<String> = shared
            .read(|held| held.read(&mut reader, 10))
            .expect("readers go on")
            .iter()
            .filter_map(|delivery| match delivery {
                Delivery::Exact(change) => Some(change.object.name().to_owned()),
                _ => None,
            })
            .collect();
        assert_eq!(told, ["c", "b"]);
        assert_eq!(shared.read(Collection::position), ResourceVersion(9));
    }

    #[test]
    fn deletion_without_a_value_carries_the_last_state() {
        let (cacher, shared, mut reader) = loaded(vec![stored("a", 3)], 5);
        let deletion = Committed {
            key: "/configmaps/x/a".to_owned(),
            value: Bytes::new(),
            deleted: true,
        };
        cacher.committed(ResourceVersion(7), &[deletion]);
        let told = shared.read(|held| held.read(&mut reader, 10)).expect("readers go on");
        let [Delivery::Exact(change)] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!(
            (change.object.name(), change.object.resource_version()),
            ("a", ResourceVersion(7))
        );
    }
}
