//! Own collections in memory, fed by a backend's commits in order; reads never touch the backend.
//!
//! Kinds may be declared, changed and removed while the program runs. A collection of custom resources is kept up to
//! date even while its kind is not declared. So its objects are available immediately when the kind is declared again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;
use yurt_apimachinery::collecting::inserted;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{GroupResource, Object, ObjectKey, ResourceKind, ResourceVersion};
use yurt_collection::{Collection, Recovered};

use crate::backend::{Committed, Loaded, Sink, StorageError, Stored};
use crate::shared::{Progress, SharedCollection};

mod declare;

/// All own collections of a coordinator.
#[derive(Debug)]
pub struct Cacher {
    // Held while a commit is published, so a collection that is replaced misses no commit. Never taken while a
    // collection is locked.
    collections: RwLock<Collections>,
    /// One sequence of RVs for all of them.
    progress: Progress,
    /// Lower bound of complete knowledge: everything stored after this RV is in a collection, live or as a tombstone. A
    /// missing collection had no objects since then.
    known_from: AtomicU64,
}

type Collections = BTreeMap<String, Arc<SharedCollection>>;
type Events = Vec<(EventType, Object)>;

// === impl Cacher ===

impl Cacher {
    /// Empty collections of `kinds`; they become complete when a backend loads them.
    #[must_use]
    pub fn new(kinds: impl IntoIterator<Item = &'static ResourceKind>) -> Self {
        let progress = Progress::default();
        let named = |kind: &'static ResourceKind| {
            let collection = SharedCollection::within(kind, progress.clone());
            (kind.group_resource().to_string(), Arc::new(collection))
        };
        Self {
            collections: RwLock::new(inserted(kinds.into_iter().map(named))),
            progress,
            known_from: AtomicU64::new(u64::MAX),
        }
    }

    /// The collection `<resource>[.<group>]`.
    #[must_use]
    pub fn collection(&self, name: &str) -> Option<Arc<SharedCollection>> {
        self.collections.read().get(name).cloned()
    }

    /// All collections, by name, as they are now.
    #[must_use]
    pub fn all(&self) -> Vec<(String, Arc<SharedCollection>)> {
        let held = self.collections.read();
        held.iter()
            .map(|(name, shared)| (name.clone(), shared.clone()))
            .collect()
    }

    fn known_from(&self) -> ResourceVersion {
        ResourceVersion(self.known_from.load(Ordering::Relaxed))
    }

    /// Creates a collection for every custom resource that is stored and has none. It held nothing up to `before`.
    fn admit<'a>(&self, keys: impl Iterator<Item = &'a str>, before: Option<ResourceVersion>) {
        let mut unknown: Vec<&str> = {
            let held = self.collections.read();
            let names = keys.filter_map(name_of);
            names
                .filter(|name| !held.contains_key(*name) && is_custom(name))
                .collect()
        };
        unknown.dedup();
        if unknown.is_empty() {
            return;
        }
        let mut held = self.collections.write();
        for name in unknown {
            let shared = Arc::new(SharedCollection::within(declare::undeclared(), self.progress.clone()));
            if let Some(before) = before {
                shared.update(|collection| collection.recover(declare::empty_at(before, self.known_from())));
            }
            held.insert(name.to_owned(), shared);
        }
    }
}

/// The name of a key's collection.
fn name_of(key: &str) -> Option<&str> {
    key.strip_prefix('/')?.split_once('/').map(|(name, _)| name)
}

/// True if a collection may hold custom resources. Names with a tilde are the program's own.
fn is_custom(name: &str) -> bool {
    let GroupResource { group, resource } = GroupResource::parse(name);
    !name.starts_with('~') && !group.is_empty() && find_kind(&group, &resource).is_none()
}

fn at_key<'a>(collections: &'a Collections, key: &str) -> Option<(&'a str, &'a Arc<SharedCollection>)> {
    let (name, shared) = collections.get_key_value(name_of(key)?)?;
    Some((name, shared))
}

/// Reads a stored value with its collection; `None` if it belongs to none of these collections.
fn read<'a>(collections: &'a Collections, stored: &Stored) -> Result<Option<(&'a str, Object)>, StorageError> {
    let Some((name, shared)) = at_key(collections, &stored.key) else {
        return Ok(None);
    };
    let object = decode(&stored.key, stored.rv, &stored.value, shared.kind())?;
    Ok(Some((name, object)))
}

impl Sink for Cacher {
    /// Reads everything first: if one value cannot be read, nothing is served.
    fn load(&self, loaded: Loaded) -> Result<(), StorageError> {
        self.admit(keys(&loaded), None);
        self.known_from.store(loaded.floor.0, Ordering::Relaxed);
        let collections = self.collections.read();
        let mut states: BTreeMap<&str, Recovered> = BTreeMap::new();
        for name in collections.keys() {
            let state = Recovered {
                position: loaded.at,
                floor: loaded.floor,
                complete: true,
                ..Recovered::default()
            };
            states.insert(name, state);
        }
        for stored in loaded.live {
            if let Some((name, object)) = read(&collections, &stored)? {
                states.entry(name).or_default().objects.push(object);
            }
        }
        for stored in loaded.tombstones {
            match read(&collections, &stored) {
                Ok(Some((name, object))) => states.entry(name).or_default().tombstones.push(object),
                Ok(None) => {}
                // Deleted while the kind had another scope: readers that may have missed it start over.
                Err(_) if name_of(&stored.key).is_some_and(is_custom) => {
                    if let Some((name, _)) = at_key(&collections, &stored.key) {
                        states.entry(name).or_default().floor = loaded.at;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        for (name, state) in states {
            if let Some(shared) = collections.get(name) {
                shared.update(|collection| collection.recover(state));
            }
        }
        self.progress.reached(loaded.at);
        Ok(())
    }

    fn committed(&self, rv: ResourceVersion, changes: &[Committed]) {
        let keys = changes.iter().map(|change| change.key.as_str());
        self.admit(keys, Some(ResourceVersion(rv.0.saturating_sub(1))));
        let collections = self.collections.read();
        let mut by_collection: BTreeMap<&str, (&SharedCollection, Events)> = BTreeMap::new();
        for change in changes {
            let Some((name, shared)) = at_key(&collections, &change.key) else {
                continue;
            };
            let object = if change.deleted && change.value.bytes().is_empty() {
                last_state(&change.key, rv, shared)
            } else {
                // A custom resource may have been written by the kind's previous definition a moment ago.
                match change.value.object().filter(|_| !declare::is_custom(shared.kind())) {
                    Some(object) => Some(object.with_resource_version(rv)),
                    None => trusted(decode(&change.key, rv, change.value.bytes(), shared.kind()), shared),
                }
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
        self.progress.begin(rv);
        for (shared, events) in by_collection.into_values() {
            shared.update(|collection| collection.apply_all(rv, events));
        }
        self.progress.reached(rv);
    }

    fn reloaded(&self, loaded: Loaded) {
        self.admit(keys(&loaded), None);
        self.known_from.store(loaded.at.0, Ordering::Relaxed);
        self.progress.begin(loaded.at);
        for (name, shared) in self.collections.read().iter() {
            let prefix = format!("/{name}/");
            let inside = loaded.live.iter().filter(|stored| stored.key.starts_with(&prefix));
            let objects = inside.map(|stored| decode(&stored.key, stored.rv, &stored.value, shared.kind()));
            let Some(objects) = trusted(objects.collect::<Result<Vec<_>, _>>(), shared) else {
                continue;
            };
            if let Err(error) = shared.update(|collection| collection.replace(objects, loaded.at)) {
                // The backend reloads only what is newer than all it published.
                tracing::error!(name, %error, "Failed to load the reloaded state; serving the previous one");
            }
        }
        self.progress.reached(loaded.at);
    }
}

fn keys(loaded: &Loaded) -> impl Iterator<Item = &str> {
    let stored = loaded.live.iter().chain(&loaded.tombstones);
    stored.map(|stored| stored.key.as_str())
}

/// Marks a collection as incomplete if a part of it could not be read.
fn trusted<T>(read: Result<T, StorageError>, shared: &SharedCollection) -> Option<T> {
    read.inspect_err(|error| {
        tracing::error!(%error, "Failed to read a stored object; its collection is no longer served");
        shared.update(Collection::distrust);
    })
    .ok()
}

/// The last published state of the object, for a deletion without a value.
fn last_state(key: &str, rv: ResourceVersion, shared: &SharedCollection) -> Option<Object> {
    let (_, key) = key.strip_prefix('/')?.split_once('/')?;
    let held = shared.read(|collection| collection.object(&ObjectKey::parse(key)).cloned());
    held.map(|object| object.with_resource_version(rv))
}

/// A stored value as an object carrying its RV. Only parsed values are stored, so one that cannot be read is damaged.
fn decode(key: &str, rv: ResourceVersion, value: &Bytes, kind: &ResourceKind) -> Result<Object, StorageError> {
    let read = if declare::is_custom(kind) {
        declare::read(key, value, kind)
    } else {
        Object::parse(value.clone(), kind).map_err(|error| error.to_string())
    };
    match read {
        Ok(object) => Ok(object.with_resource_version(rv)),
        Err(error) => Err(StorageError::Corrupt(format!(
            "stored object {key} cannot be read: {error}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use yurt_apimachinery::kind::find_kind;
    use yurt_collection::{Delivery, Reader};

    use super::*;

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
        cacher.load(state(live, at)).expect("all can be read");
        let shared = cacher.collection("configmaps").expect("it was requested").clone();
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
            value: Bytes::new().into(),
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

    /// Conformance: 3.E13
    #[tokio::test]
    async fn number_issued_in_another_collection_is_no_future_one() {
        let kinds = find_kind("", "configmaps").into_iter().chain(find_kind("", "secrets"));
        let cacher = Cacher::new(kinds);
        cacher.load(state(vec![stored("a", 3)], 5)).expect("all can be read");
        let secrets = cacher.collection("secrets").expect("it was requested").clone();
        let woken = secrets.subscribe();
        let write = |rv| {
            let Stored { key, value, .. } = stored("a", rv);
            let change = Committed {
                key,
                value: value.into(),
                deleted: false,
            };
            cacher.committed(ResourceVersion(rv), &[change]);
        };
        write(8);
        let held = || secrets.read(Collection::position);
        assert_eq!(held(), ResourceVersion(5), "a write costs its own collection only");
        secrets.reached(ResourceVersion(8)).await;
        assert_eq!(held(), ResourceVersion(8));

        let mut waiting = Box::pin(secrets.reached(ResourceVersion(9)));
        assert_eq!(waiting.as_mut().now_or_never(), None);
        write(9);
        waiting.await;
        assert!(
            !woken.has_changed().expect("it is there"),
            "nothing happened to its watchers"
        );
    }

    #[test]
    fn most_recent_state_is_not_below_what_another_collection_has_shown() {
        let kinds = find_kind("", "configmaps").into_iter().chain(find_kind("", "secrets"));
        let cacher = Cacher::new(kinds);
        cacher.load(state(vec![stored("a", 3)], 5)).expect("all can be read");
        let secrets = cacher.collection("secrets").expect("it was requested").clone();
        let held = || secrets.read(Collection::position);
        secrets.catch_up().now_or_never().expect("nothing is on its way");
        let Stored { key, value, .. } = stored("a", 8);
        let change = Committed {
            key,
            value: value.into(),
            deleted: false,
        };
        cacher.committed(ResourceVersion(8), &[change]);
        secrets.catch_up().now_or_never().expect("all is published");
        assert_eq!(held(), ResourceVersion(8));

        cacher.progress.begin(ResourceVersion(9));
        let mut waiting = Box::pin(secrets.catch_up());
        assert_eq!(waiting.as_mut().now_or_never(), None, "others may have seen 9");
        cacher.progress.reached(ResourceVersion(9));
        waiting.now_or_never().expect("all is published");
        assert_eq!(held(), ResourceVersion(9));
    }

    /// A commit reaches one collection after the other. A reader may wait for its RV in a collection that the commit
    /// has not reached yet. It then gets the event, not an empty collection that claims this position.
    #[test]
    fn number_is_not_reached_before_the_commit_is_in_all_its_collections() {
        let kinds = find_kind("", "configmaps").into_iter().chain(find_kind("", "secrets"));
        let cacher = Arc::new(Cacher::new(kinds));
        cacher.load(state(vec![stored("a", 3)], 5)).expect("all can be read");
        let [maps, secrets] = ["configmaps", "secrets"].map(|name| cacher.collection(name).expect("it was requested"));
        let change = |collection: &str| Committed {
            key: format!("/{collection}/x/b"),
            value: stored("b", 8).value.into(),
            deleted: false,
        };
        let mut reader = secrets.read(|held| held.snapshot(None).reader);
        let changes = [change("configmaps"), change("secrets")];
        let publishing = secrets.read(|_| {
            // Holding this lock stops the commit between the two.
            let publisher = cacher.clone();
            let publishing = std::thread::spawn(move || publisher.committed(ResourceVersion(8), &changes));
            while maps.read(Collection::position) < ResourceVersion(8) {
                std::thread::yield_now();
            }
            assert_eq!(cacher.progress.now(), ResourceVersion(5));
            publishing
        });
        // Now the reader and the commit race for the lock.
        secrets.reached(ResourceVersion(8)).now_or_never();
        publishing.join().expect("it is published");
        let told = secrets.read(|held| held.read(&mut reader, 10)).expect("readers go on");
        assert!(
            matches!(&told[..], [Delivery::Exact(change)] if change.object.name() == "b"),
            "{told:?}"
        );
    }

    fn garbled(name: &str, rv: u64) -> Stored {
        let mut stored = stored(name, rv);
        stored.value = Bytes::from_static(b"{\"metadata\":{\"na");
        stored
    }

    #[test]
    fn value_that_cannot_be_read_stops_the_start_and_is_named() {
        let cacher = Cacher::new(find_kind("", "configmaps"));
        let error = cacher.load(state(vec![stored("a", 3), garbled("b", 4)], 5));
        let error = error.expect_err("what is left is not the collection");
        assert!(error.to_string().contains("/configmaps/x/b"), "{error}");
        let shared = cacher.collection("configmaps").expect("it was requested");
        assert!(!shared.read(Collection::is_complete));
    }

    #[test]
    fn collection_with_a_value_that_cannot_be_read_is_complete_no_longer() {
        let is_complete = |shared: &SharedCollection| shared.read(Collection::is_complete);
        let (cacher, shared, _) = loaded(vec![stored("a", 3)], 5);
        let damage = Committed {
            key: "/configmaps/x/b".to_owned(),
            value: garbled("b", 7).value.into(),
            deleted: false,
        };
        cacher.committed(ResourceVersion(7), &[damage]);
        assert!(!is_complete(&shared));
        cacher.reloaded(state(vec![stored("a", 3), garbled("b", 7)], 8));
        assert!(!is_complete(&shared));
        cacher.reloaded(state(vec![stored("a", 3), stored("b", 9)], 9));
        assert!(is_complete(&shared));
    }
}
