//! Dispatches the store's commits: to the fence first, then to the collections that readers see.

use std::sync::Arc;

use yurt_apimachinery::ResourceVersion;
use yurt_pool_protocol::fence::Fence;
use yurt_pool_protocol::guard::Guard;
use yurt_pool_protocol::names::ELECTION_KEY;
use yurt_runtime::Clock;
use yurt_storage::backend::{Committed, Loaded, Sink};
use yurt_storage::{Cacher, Replicas, StorageError};

use crate::feed;
use crate::feed::collection::PoolCollections;
use crate::feed::fence::EPOCH_KEY;
use crate::feed::scope::{SCOPE_KEY, Scope};
use crate::feed::void::Voids;
use crate::lease_objects;
use crate::store::Stores;

/// Dispatches commits, in order, on the store's own thread.
pub(crate) struct CommitDispatcher {
    cacher: Arc<Cacher>,
    fence: Arc<Fence>,
    scope: Arc<Scope>,
    voids: Arc<Voids>,
    /// Receivers of other coordinators' changes, if the store is shared.
    shared: Option<SharedStoreReceivers>,
}

/// State that other coordinators change here.
struct SharedStoreReceivers {
    guard: Arc<Guard>,
    replicas: Arc<Replicas>,
    pool: Arc<PoolCollections>,
    clock: Clock,
}

// === impl CommitDispatcher ===

impl CommitDispatcher {
    /// Publishes to the collections, the fence, the scope and the voids.
    pub(crate) fn new(cacher: Arc<Cacher>, fence: Arc<Fence>, scope: Arc<Scope>, voids: Arc<Voids>) -> Self {
        Self {
            cacher,
            fence,
            scope,
            voids,
            shared: None,
        }
    }

    /// Adds receivers if the store is shared: `guard` gets every lease write, `stores` the pool data fed through other
    /// coordinators.
    pub(crate) fn with_shared_store(self, guard: Arc<Guard>, clock: Clock, stores: &Stores) -> Self {
        if !stores.is_shared() {
            return self;
        }
        let shared = SharedStoreReceivers {
            guard,
            replicas: stores.replicas().clone(),
            pool: stores.collections().clone(),
            clock,
        };
        Self {
            shared: Some(shared),
            ..self
        }
    }

    /// Informs the guard before the lease is published, as the fence: a client that may replace a holder has seen
    /// its last renewal.
    fn inform_guard(&self, key: &str, value: &[u8], deleted: bool) {
        let Some(shared) = &self.shared else { return };
        let Some(lease) = lease_objects::guarded(key) else {
            return;
        };
        let holder = if deleted {
            String::new()
        } else {
            lease_objects::holder(value)
        };
        shared.guard.observed(lease, &holder, shared.clock.boot());
    }

    fn load_pool(&self, loaded: &Loaded) {
        if let Some(shared) = &self.shared {
            shared.replicas.load(loaded);
        }
    }

    /// Records the owner of the election in the guard.
    fn inform_guard_of_owner(&self) {
        if let Some(SharedStoreReceivers { guard, .. }) = &self.shared {
            let election = self.fence.election();
            if let Some(owner) = election.owner {
                guard.restore(ELECTION_KEY, &election.holder, owner);
            }
        }
    }

    fn publish_record(&self, rv: ResourceVersion, record: &[u8]) {
        if let Err(error) = self.fence.published(rv, record) {
            tracing::error!(%error, "Failed to read the epoch record, refusing all feed calls");
        }
    }

    fn publish_epoch(&self, loaded: &Loaded) {
        if let Some(record) = loaded.live.iter().find(|stored| stored.key == EPOCH_KEY) {
            self.publish_record(record.rv, &record.value);
        }
    }

    fn publish_scope(&self, loaded: &Loaded) {
        let record = loaded.live.iter().find(|stored| stored.key == SCOPE_KEY);
        self.scope.published(record.map(|record| &record.value[..]));
    }
}

// === impl SharedStoreReceivers ===

impl SharedStoreReceivers {
    fn record_freshness(&self, change: &Committed) {
        let name = change.key.strip_prefix(feed::FRESH_PREFIX);
        if let Some(collection) = name.and_then(|name| self.pool.named(name)) {
            collection.heard(&change.value.bytes()[..] == b"true", self.clock.boot());
        }
    }
}

impl Sink for CommitDispatcher {
    fn load(&self, loaded: Loaded) -> Result<(), StorageError> {
        self.load_pool(&loaded);
        self.voids.load(&loaded);
        self.publish_epoch(&loaded);
        self.publish_scope(&loaded);
        self.cacher.load(loaded)
    }

    /// Updates the fence before the lease is published: a reader that sees the new holder finds the old one
    /// already fenced.
    fn committed(&self, rv: ResourceVersion, changes: &[Committed]) {
        for change in changes {
            self.inform_guard(&change.key, change.value.bytes(), change.deleted);
        }
        if let Some(record) = changes.iter().find(|change| change.key == EPOCH_KEY && !change.deleted) {
            self.publish_record(rv, record.value.bytes());
            self.inform_guard_of_owner();
        }
        if let Some(record) = changes.iter().find(|change| change.key == SCOPE_KEY && !change.deleted) {
            self.scope.published(Some(record.value.bytes()));
        }
        if let Some(shared) = &self.shared {
            shared.replicas.committed(rv, changes);
            changes.iter().for_each(|change| shared.record_freshness(change));
        }
        self.voids.committed(changes);
        self.cacher.committed(rv, changes);
    }

    fn reloaded(&self, loaded: Loaded) {
        for stored in &loaded.live {
            self.inform_guard(&stored.key, &stored.value, false);
        }
        self.publish_epoch(&loaded);
        self.publish_scope(&loaded);
        self.inform_guard_of_owner();
        self.load_pool(&loaded);
        self.voids.load(&loaded);
        self.cacher.reloaded(loaded);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::OnceLock;
    use std::task::{Context, Wake, Waker};

    use bytes::Bytes;
    use serde_json::json;

    use super::*;
    use crate::config::Profile;
    use crate::registry;

    /// Checks the fence at the moment in which readers of the lease are woken.
    struct Woken {
        fence: Arc<Fence>,
        holder: OnceLock<String>,
    }

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            let _ = self.holder.set(self.fence.election().holder);
        }
    }

    #[test]
    fn who_sees_the_new_holder_finds_the_old_one_shut_out() {
        let cacher = Arc::new(Cacher::new(registry::stored_kinds(Profile::Pool)));
        let fence = Arc::new(Fence::new("s"));
        let voids = Arc::new(Voids::new(Arc::new(PoolCollections::new(std::iter::empty()))));
        let dispatcher = CommitDispatcher::new(cacher.clone(), fence.clone(), Arc::new(Scope::new(&[])), voids);
        dispatcher.load(Loaded::default()).expect("an empty store");
        let lease = json!({
            "metadata": {"name": "yurthub", "namespace": "kube-system", "uid": "u"},
            "spec": {"holderIdentity": "n1_1"},
        });
        let record = json!({"epoch": 1, "holder": "n1_1"});
        let commit = |key: &str, value: serde_json::Value| Committed {
            key: key.to_owned(),
            value: Bytes::from(value.to_string()).into(),
            deleted: false,
        };
        let rv = ResourceVersion(1 << 62);
        let lease_objects = cacher
            .collection(lease_objects::COLLECTION)
            .expect("leases are built in");
        let woken = Arc::new(Woken {
            fence,
            holder: OnceLock::new(),
        });
        let waker = Waker::from(woken.clone());
        let mut seen = pin!(lease_objects.reached(rv));
        assert!(seen.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let key = format!("/{}/{}", lease_objects::COLLECTION, ELECTION_KEY);
        dispatcher.committed(rv, &[commit(&key, lease), commit(EPOCH_KEY, record)]);
        assert_eq!(woken.holder.get().map(String::as_str), Some("n1_1"));
    }
}
