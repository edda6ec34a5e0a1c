//! A pool collection of one coordinator process, with the whole receiving end of the feed, in memory.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use yurt_apimachinery::{ResourceKind, ResourceVersion, kind};
use yurt_collection::Recovered;
use yurt_runtime::{Clock, TaskGroup};
use yurt_storage::backend::Sink;
use yurt_storage::{OnlyWriter as _, Op, Replicas, SharedCollection, Storage, StorageError};

use crate::authn::{NODE_PREFIX, NODES, User};
use crate::feed::collection::{PoolCollection, PoolCollections};
use crate::feed::fence::Fence;
use crate::feed::members::{InitialMembers, Members, Policy};
use crate::feed::scope::Scope;
use crate::feed::void::Voids;
use crate::feed::{Feed, FeedError, FeedMetrics, Parts};

/// One collection and its feed.
pub struct Pool {
    feed: Feed,
    collection: Arc<PoolCollection>,
}

/// Store without own objects, which the simulation does not use.
struct NoStorage;

// === impl Pool ===

impl Pool {
    /// A process that found this epoch record and this copy of the collection of `kind` in the store called `store`. Members
    /// are the nodes in `nodes`.
    ///
    /// # Panics
    /// When the parts do not fit together, which is an error of the simulation.
    #[must_use]
    pub fn open(
        store: &str,
        nodes: &str,
        kind: &'static ResourceKind,
        record: Option<(ResourceVersion, &[u8])>,
        found: Option<Recovered>,
    ) -> Self {
        let fence = Arc::new(Fence::new(store));
        if let Some((rv, record)) = record {
            fence.published(rv, record);
        }
        let name = kind.group_resource().to_string();
        let replicas = Replicas::open(&[(name.clone(), kind)], None).expect("memory must open");
        let replica = replicas.named(&name).expect("the kind was given").clone();
        if let Some(found) = found {
            replica.collection().update(|held| held.recover(found));
        }
        let collections = PoolCollections::new(std::iter::once(replica));
        let collection = collections.named(&name).expect("it was just made");
        let collections = Arc::new(collections);
        let policy = Policy {
            initial: InitialMembers::parse(nodes),
            takes_leaders: false,
            trusts_first: false,
        };
        let initial = policy.initial.read().expect("a list of names");
        let leases = kind::find_kind("coordination.k8s.io", "leases").expect("leases are built in");
        let parts = Parts {
            fence,
            members: Arc::new(Members::new(policy, initial, collections.clone())),
            scope: Arc::new(Scope::new(std::slice::from_ref(&collection))),
            voids: Arc::new(Voids::new(collections.clone())),
            collections,
            replicas: Arc::new(replicas),
            storage: Arc::new(NoStorage),
            leases: Arc::new(SharedCollection::new(leases, false)),
            calls: TaskGroup::new(),
            bytes_max: crate::config::POOL_BYTES_MAX,
            folder: std::env::temp_dir(),
        };
        let metrics = FeedMetrics::new(&prometheus::Registry::new()).expect("names differ");
        let feed = Feed::new(parts, Clock::fake().0, metrics);
        let pool = Self { feed, collection };
        pool.mark_durable();
        pool
    }

    /// Marks the loaded copy as durable.
    fn mark_durable(&self) {
        let persisted = self.feed.replicas().persist(None).now_or_never();
        persisted.expect("memory does not wait").expect("memory does not fail");
    }

    /// Elects `holder`; returns the epoch and the record to keep.
    pub fn elect(&self, holder: &str, rv: ResourceVersion) -> (u64, Vec<u8>) {
        let next = self.feed.fence().election().next(holder, None);
        let record = next.encode();
        self.feed.fence().published(rv, &record);
        (next.epoch, record)
    }

    /// A feed call of `node`: `<resource>/events`, `<resource>/snapshot` or `<resource>/snapshot/bodies`.
    ///
    /// # Errors
    /// The body of the refusal.
    pub fn take(&self, node: &str, path: &str, body: &[u8]) -> Result<Value, Value> {
        let user = User::new(&format!("{NODE_PREFIX}{node}"), &[NODES]);
        let taken = self.feed.take_attached(&user, path, body).now_or_never();
        match taken {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(FeedError::Refused(refusal))) => Err(refusal.to_json()),
            Some(Err(FeedError::Status(status))) => Err(json!({ "reason": status.message() })),
            None => Err(json!({ "reason": "the call waits for something" })),
        }
    }

    /// The collection of the objects.
    #[must_use]
    pub fn objects(&self) -> &SharedCollection {
        self.collection.objects()
    }

    /// True if readers may have it.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.collection.is_served()
    }
}

impl Storage for NoStorage {
    fn id(&self) -> &str {
        "none"
    }

    fn attach(&self, _sink: Arc<dyn Sink>) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn write(&self, _ops: Vec<Op>) -> BoxFuture<'_, Result<ResourceVersion, StorageError>> {
        let refused = StorageError::Unavailable("own objects play no part here".to_owned());
        Box::pin(std::future::ready(Err(refused)))
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
