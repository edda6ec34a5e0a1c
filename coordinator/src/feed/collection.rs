//! One collection of pool data as readers may see it: complete or not, fresh or stale.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};
use yurt_apimachinery::collecting::inserted;
use yurt_apimachinery::time::BootTime;
use yurt_pool_protocol::feed::snapshot::Arriving;
use yurt_storage::{OnlyWriter as _, Replica, SharedCollection};

use super::bodies::Bodies;

/// A replica of a cloud collection, with the completeness and freshness that the feed reported.
#[derive(Debug)]
pub(crate) struct PoolCollection {
    replica: Arc<Replica>,
    is_from_leader: bool,
    /// Feeders since the collection was voided; `None` if it was not since the start.
    since_void: Option<SinceVoid>,
    /// Serializes feed calls.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Snapshots that are still arriving. Lock order: fence, this, objects.
    arriving: Mutex<Arriving<Bodies>>,
    // Never locked while the collection's lock is acquired.
    promise: Mutex<Promise>,
}

/// All collections of a pool by name, the members among them.
// Guards the pointer only.
#[derive(Debug)]
pub(crate) struct PoolCollections(RwLock<Arc<BTreeMap<String, Arc<PoolCollection>>>>);

/// Nodes that fed a collection since it was voided. It outlives the collection, whose resource may leave the pool's
/// scope and return.
// A leaf.
#[derive(Clone, Debug, Default)]
pub(super) struct SinceVoid(Arc<Mutex<Feeders>>);

/// Nodes whose feed calls came.
#[derive(Debug, Default)]
enum Feeders {
    #[default]
    None,
    One(String),
    Several,
}

#[derive(Debug, Default)]
struct Promise {
    /// Freshness in the last feed call, and its time.
    heard: Option<(bool, BootTime)>,
    /// Time of the last feed call that reported fresh data.
    fresh_at: Option<BootTime>,
}

/// Maximum time since the last feed call; afterwards the collection is stale, even if that call reported it
/// fresh.
pub(crate) const FRESH_FOR: Duration = Duration::from_secs(30);

// === impl PoolCollections ===

impl PoolCollections {
    /// The collections of `replicas`.
    pub(crate) fn new(replicas: impl Iterator<Item = Arc<Replica>>) -> Self {
        let named = |replica: Arc<Replica>| (replica.name().to_owned(), Arc::new(PoolCollection::new(replica)));
        Self(RwLock::new(Arc::new(inserted(replicas.map(named)))))
    }

    /// The collection called `name`.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<PoolCollection>> {
        self.0.read().get(name).cloned()
    }

    /// All present collections, by name.
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
    /// A replica as loaded from the disk; if it is complete, it is served immediately.
    pub(crate) fn new(replica: Arc<Replica>) -> Self {
        Self {
            replica,
            is_from_leader: false,
            since_void: None,
            turn: Arc::default(),
            arriving: Mutex::default(),
            promise: Mutex::default(),
        }
    }

    /// A collection that the leader added, not the command line.
    pub(crate) fn from_leader(replica: Arc<Replica>) -> Self {
        Self {
            is_from_leader: true,
            ..Self::new(replica)
        }
    }

    /// True if the leader added it: it may be removed again.
    pub(crate) fn is_from_leader(&self) -> bool {
        self.is_from_leader
    }

    /// Resolves when no other feed call of this collection runs.
    ///
    /// # Cancel safety
    /// Safe: a dropped future loses only its place in the queue.
    pub(super) async fn turn(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// Snapshots that are still arriving.
    pub(super) fn arriving(&self) -> MutexGuard<'_, Arriving<Bodies>> {
        self.arriving.lock()
    }

    /// The same with the record of its feeders, if it was voided.
    pub(super) fn with_feeders(self, since_void: Option<SinceVoid>) -> Self {
        Self { since_void, ..self }
    }

    /// Records that a feed call comes from `node`; `None` for an unknown node.
    pub(super) fn fed_by(&self, node: Option<&str>) {
        let Some(feeders) = &self.since_void else { return };
        let mut feeders = feeders.0.lock();
        *feeders = match (std::mem::take(&mut *feeders), node) {
            (Feeders::None, Some(node)) => Feeders::One(node.to_owned()),
            (Feeders::One(one), Some(node)) if one == node => Feeders::One(one),
            _ => Feeders::Several,
        };
    }

    /// The node that alone has fed everything since the collection was voided.
    pub(super) fn sole_feeder(&self) -> Option<String> {
        match &*self.since_void.as_ref()?.0.lock() {
            Feeders::One(node) => Some(node.clone()),
            Feeders::None | Feeders::Several => None,
        }
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

    /// True if readers may have it: complete, and its completeness is durable.
    pub(crate) fn is_served(&self) -> bool {
        self.replica.is_served()
    }

    /// Wakes waiting readers after a complete snapshot has become durable.
    pub(crate) fn announce(&self) {
        self.objects().update(|_| ());
    }

    /// Records the source's freshness from a feed call.
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

    /// True if the cloud's changes are known to arrive.
    pub(crate) fn is_fresh(&self, now: BootTime) -> bool {
        self.promise
            .lock()
            .heard
            .is_some_and(|(fresh, at)| fresh && now.since(at) < FRESH_FOR)
    }
    /// Time since the cloud's changes were last known to arrive; `None` if they have not been since the start.
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
        assert!(!collection.is_fresh(at(1)), "no call has reported it");
        collection.heard(true, at(10));
        let silent_from = at(10) + FRESH_FOR;
        assert!(collection.is_fresh(at(39)) && silent_from == at(40));
        assert!(!collection.is_fresh(silent_from));
        collection.heard(true, at(41));
        assert!(collection.is_fresh(at(41)));
        collection.heard(false, at(42));
        assert!(!collection.is_fresh(at(42)));
    }

    #[test]
    fn feeder_is_known_after_a_void_while_it_is_one() {
        let services = find_kind("", "services").expect("services are built in");
        let replicas = Replicas::open(&[("services".to_owned(), services)], None).expect("memory must open");
        let collection = || PoolCollection::new(replicas.named("services").expect("it was just made"));
        let first = collection();
        first.fed_by(Some("n1"));
        assert_eq!(first.sole_feeder(), None);
        let voided = collection().with_feeders(Some(SinceVoid::default()));
        assert_eq!(voided.sole_feeder(), None);
        for _ in 0..2 {
            voided.fed_by(Some("n1"));
            assert_eq!(voided.sole_feeder().as_deref(), Some("n1"));
        }
        for node in ["n2", "n1"] {
            voided.fed_by(Some(node));
            assert_eq!(voided.sole_feeder(), None, "{node}");
        }
    }
}
