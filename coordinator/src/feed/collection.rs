//! One collection of pool data as readers may see it: when it counts as complete, and whether it is fresh.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use yurt_runtime::BootTime;
use yurt_storage::{OnlyWriter as _, Replica, SharedCollection};

/// A replica of a cloud collection, with what the feed has promised about it.
#[derive(Debug)]
pub(crate) struct PoolCollection {
    replica: Arc<Replica>,
    is_told: bool,
    /// One feed call at a time.
    turn: Arc<tokio::sync::Mutex<()>>,
    // Never held while the collection's lock is taken.
    promise: Mutex<Promise>,
}

/// All collections of a pool by name, the members among them.
// Guards the pointer only.
#[derive(Debug)]
pub(crate) struct PoolCollections(RwLock<Arc<BTreeMap<String, Arc<PoolCollection>>>>);

#[derive(Debug, Default)]
struct Promise {
    /// What the last feed call said of freshness, and when.
    heard: Option<(bool, BootTime)>,
    /// When a feed call last said that it is fresh.
    fresh_at: Option<BootTime>,
}

/// Without a feed call for this long a collection is stale, whatever the last one said.
pub(crate) const FRESH_FOR: Duration = Duration::from_secs(30);

// === impl PoolCollections ===

impl PoolCollections {
    /// Those of `replicas`.
    pub(crate) fn new(replicas: impl Iterator<Item = Arc<Replica>>) -> Self {
        let named = |replica: Arc<Replica>| (replica.name().to_owned(), Arc::new(PoolCollection::new(replica)));
        Self(RwLock::new(Arc::new(replicas.map(named).collect())))
    }

    /// The one called `name`.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<PoolCollection>> {
        self.0.read().get(name).cloned()
    }

    /// All there are now, by name.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<PoolCollection>> + use<> {
        let all: Vec<_> = self.0.read().values().cloned().collect();
        all.into_iter()
    }

    pub(super) fn insert(&self, collection: PoolCollection) {
        Arc::make_mut(&mut self.0.write()).insert(collection.name().to_owned(), Arc::new(collection));
    }

    pub(super) fn remove(&self, name: &str) {
        Arc::make_mut(&mut self.0.write()).remove(name);
    }
}

// === impl PoolCollection ===

impl PoolCollection {
    /// A replica as it came from the disk: what is complete there is served at once.
    pub(crate) fn new(replica: Arc<Replica>) -> Self {
        Self {
            replica,
            is_told: false,
            turn: Arc::default(),
            promise: Mutex::default(),
        }
    }

    /// One that is there because the leader said so, not by the command line.
    pub(crate) fn told(replica: Arc<Replica>) -> Self {
        Self {
            is_told: true,
            ..Self::new(replica)
        }
    }

    /// Whether the leader said that the pool shares it: it may come and go.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told
    }

    /// Resolves when no other feed call is at work here.
    ///
    /// # Cancel safety
    /// Safe: who stops waiting loses its place only.
    pub(super) async fn turn(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// Name of the collection, `resource.group`.
    pub(crate) fn name(&self) -> &str {
        self.replica.name()
    }

    /// The objects.
    pub(crate) fn objects(&self) -> &Arc<SharedCollection> {
        self.replica.collection()
    }

    /// The durable copy.
    pub(crate) fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Whether readers may have it: complete, and its completeness is durable.
    pub(crate) fn is_served(&self) -> bool {
        self.replica.durable().complete && self.replica.is_served()
    }

    /// A complete snapshot has become durable: wakes those who wait for it.
    pub(crate) fn announce(&self) {
        self.objects().update(|_| ());
    }

    /// A feed call said whether the source is fresh.
    pub(crate) fn heard(&self, fresh: bool, now: BootTime) {
        let before = {
            let mut promise = self.promise.lock();
            if fresh {
                promise.fresh_at = Some(now);
            }
            promise.heard.replace((fresh, now))
        };
        if before.map(|(fresh, _)| fresh) != Some(fresh) {
            self.objects().update(|_| ());
        }
    }

    /// Whether the cloud's changes are known to arrive.
    pub(crate) fn is_fresh(&self, now: BootTime) -> bool {
        self.promise
            .lock()
            .heard
            .is_some_and(|(fresh, at)| fresh && now.since(at) < FRESH_FOR)
    }
    /// How long ago the cloud's changes were last known to arrive; `None` when they never were since the start.
    pub(crate) fn staleness(&self, now: BootTime) -> Option<Duration> {
        self.promise.lock().fresh_at.map(|at| now.since(at))
    }
}

#[cfg(test)]
mod tests {
    use yurt_apimachinery::kind::find_kind;
    use yurt_storage::Replicas;

    use super::*;

    #[test]
    fn silence_makes_data_stale() {
        let services = find_kind("", "services").expect("services are built in");
        let replicas = Replicas::open(&[("services".to_owned(), services)], None).expect("memory must open");
        let collection = PoolCollection::new(replicas.named("services").expect("it was just made"));
        let at = |secs| BootTime::from_boot(Duration::from_secs(secs));
        assert!(!collection.is_fresh(at(1)), "nobody has said so");
        collection.heard(true, at(10));
        let silent_from = at(10) + FRESH_FOR;
        assert!(collection.is_fresh(at(39)) && silent_from == at(40));
        assert!(!collection.is_fresh(silent_from));
        collection.heard(true, at(41));
        assert!(collection.is_fresh(at(41)));
        collection.heard(false, at(42));
        assert!(!collection.is_fresh(at(42)));
    }
}
