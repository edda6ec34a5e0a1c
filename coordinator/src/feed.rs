//! Feed: the pool's leader fills the coordinator with the cloud's data.
//!
//! In reading order: [`fence`] (record of the right to feed), [`members`] (nodes of the pool), [`collection`] (readers'
//! view of a collection), [`scope`] (set of collections), [`void`] (deletion of fed data). Then [`events`] (events of
//! the log, in batches), [`snapshot`] (the whole state, by difference), [`bodies`] (parts of it that have arrived). The
//! messages and the rules are in `yurt_pool_protocol::{fence, feed}`.
//!
//! Invariant: no call of an older epoch is applied after one of a newer epoch; `C` never decreases within a generation;
//! a collection is served only after its completeness is durable.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use hyper::body::Incoming;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use yurt_apimachinery::time::BootTime;
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion, Status};
use yurt_pool_protocol::feed::{CollectionStatus, ENCODINGS, PoolStatus, Refusal, VERSIONS};
use yurt_pool_protocol::fence::{Claim, Election, Fence};
use yurt_pool_protocol::members::COLLECTION;
use yurt_pool_protocol::names::ELECTION_KEY;
use yurt_runtime::http::{Inflate, inflate_for};
use yurt_runtime::{Clock, TaskGroup};
use yurt_storage::{Action, Durability, Expect, Op, Replicas, SharedCollection, Storage, StorageError};

use crate::authn::User;
use crate::bodies::{Bodies, Received, Work};
use crate::lease_objects;
use crate::status_error;

mod bodies;
mod budget;
pub(crate) mod collection;
pub(crate) mod events;
pub(crate) mod fence;
pub(crate) mod members;
mod metrics;
pub(crate) mod scope;
mod snapshot;
pub(crate) mod void;

use collection::{PoolCollection, PoolCollections};
use members::Members;
pub(crate) use metrics::FeedMetrics;
use scope::Scope;
use void::Voids;

/// Largest body of one feed call, in bytes.
pub(crate) const BODY_BYTES_MAX: usize = 8 << 20;
/// Prefix of the storage keys that hold a collection's freshness; the collection's name follows.
pub(crate) const FRESH_PREFIX: &str = "/~fresh/";
/// Interval of freshness reports: other coordinators take a collection for stale after [`collection::FRESH_FOR`]
/// without one.
const TELL_FRESHNESS_EVERY: Duration = Duration::from_secs(10);

/// The receiving end of the feed.
pub(crate) struct Feed {
    fence: Arc<Fence>,
    members: Arc<Members>,
    scope: Arc<Scope>,
    voids: Arc<Voids>,
    /// Pool-scope collections and `members`, by name.
    collections: Arc<PoolCollections>,
    replicas: Arc<Replicas>,
    /// Store through which freshness reaches other coordinators.
    storage: Arc<dyn Storage>,
    /// Last reported freshness of each collection, with its time.
    told: Mutex<BTreeMap<String, (bool, BootTime)>>,
    /// Limit on the bytes of objects that are held, and of those that arrive.
    bytes_max: usize,
    /// Folder for bodies of a large snapshot.
    folder: PathBuf,
    /// Collection with the election lease, to verify the fence.
    leases: Arc<SharedCollection>,
    /// Owner of calls, which finish when their leader disconnects.
    calls: TaskGroup,
    clock: Clock,
    metrics: FeedMetrics,
}

/// The election, which does not change before this is dropped.
type Entered<'a> = MutexGuard<'a, Election>;

/// Parts of a feed.
pub(crate) struct Parts {
    /// Right to feed.
    pub(crate) fence: Arc<Fence>,
    /// Nodes that belong to the pool.
    pub(crate) members: Arc<Members>,
    /// Resources that the pool shares.
    pub(crate) scope: Arc<Scope>,
    /// Voids of their collections.
    pub(crate) voids: Arc<Voids>,
    /// Pool-scope collections and `members`, by name.
    pub(crate) collections: Arc<PoolCollections>,
    /// Their durable copies.
    pub(crate) replicas: Arc<Replicas>,
    /// The store of freshness reports and, if it is shared, of the copies.
    pub(crate) storage: Arc<dyn Storage>,
    /// The collection with the election lease.
    pub(crate) leases: Arc<SharedCollection>,
    /// Owner of calls, which finish when their leader disconnects.
    pub(crate) calls: TaskGroup,
    /// Limit on the bytes of objects that are held, and of those that arrive.
    pub(crate) bytes_max: usize,
    /// Folder for bodies of a large snapshot.
    pub(crate) folder: PathBuf,
}

/// Reason for which a feed call changed nothing.
#[derive(Debug)]
pub(crate) enum FeedError {
    /// 409 with a reason of the feed.
    Refused(Refusal),
    /// Any other failure.
    Status(Status),
}

// === impl Feed ===

impl Feed {
    /// A feed of these parts.
    pub(crate) fn new(parts: Parts, clock: Clock, metrics: FeedMetrics) -> Self {
        let Parts {
            fence,
            members,
            scope,
            voids,
            collections,
            replicas,
            storage,
            leases,
            calls,
            bytes_max,
            folder,
        } = parts;
        Self {
            fence,
            members,
            scope,
            voids,
            collections,
            replicas,
            storage,
            told: Mutex::default(),
            bytes_max,
            folder,
            leases,
            calls,
            clock,
            metrics,
        }
    }

    /// Counters of the feed.
    pub(crate) fn metrics(&self) -> &FeedMetrics {
        &self.metrics
    }

    /// Right to feed.
    pub(crate) fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Number of node leases whose heartbeats the leader has to forward to the cloud.
    pub(crate) fn delegated_leases(&self) -> usize {
        self.leases.read(|held| {
            let delegated = |lease: &&Object| lease_objects::is_delegated(lease);
            held.objects().filter(delegated).count()
        })
    }

    /// Nodes that belong to the pool.
    pub(crate) fn members(&self) -> &Members {
        &self.members
    }

    /// The durable copies.
    #[cfg(test)]
    pub(crate) fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// The fed collections, `members` included.
    pub(crate) fn collections(&self) -> impl Iterator<Item = Arc<PoolCollection>> + use<> {
        self.collections.all()
    }

    /// State of the feed and of every collection, without reports and bars.
    pub(crate) fn state(&self) -> PoolStatus {
        let election = self.fence.election();
        let now = self.clock.boot();
        let state_of = |collection: Arc<PoolCollection>| {
            let (generation, applied) = collection.objects().read(|held| (held.generation(), held.position()));
            let state = CollectionStatus {
                generation,
                applied_up_to: applied.to_string(),
                durable_up_to: collection.replica().durable().position.to_string(),
                complete: collection.is_served(),
                fresh: collection.is_fresh(now),
                staleness_seconds: collection.staleness(now).map(|time| time.as_secs()),
            };
            (collection.name().to_owned(), state)
        };
        PoolStatus {
            store: self.fence.store().to_owned(),
            epoch: election.epoch,
            holder: election.holder,
            versions: VERSIONS.into(),
            members: self.members.count(),
            members_from: self.members.basis().as_str().to_owned(),
            encodings: ENCODINGS.map(str::to_owned).into(),
            collections: self.collections().map(state_of).collect(),
            scope: Some(self.scope.state()),
            ..PoolStatus::default()
        }
    }

    /// `POST <collection>/<call>`: applies a call of the leader. A call that has begun finishes even when its leader
    /// disconnects: what is applied must become durable and visible. One call of a collection runs at a time, so that
    /// the retries of a leader wait for a slow disk instead of piling up.
    ///
    /// # Errors
    /// [`FeedError`]; nothing was applied.
    pub(crate) async fn take(
        self: &Arc<Self>,
        user: &User,
        path: &str,
        body: Received,
        bodies: &Arc<Bodies>,
    ) -> Result<Value, FeedError> {
        let turn = self.turn(path).await?;
        let (feed, user, path) = (self.clone(), user.clone(), path.to_owned());
        let (is_large, bodies) = (body.is_large(), bodies.clone());
        let call = async move {
            let _turn = turn;
            feed.take_attached(&user, &path, &body).await
        };
        let call = async move {
            if is_large {
                bodies.in_turn(Work::Feed, call).await?
            } else {
                call.await
            }
        };
        let taken = self.calls.detached("feed", call).await;
        taken.map_err(|lost| Status::internal(&lost.to_string()))?
    }

    /// Resolves when no other call of the collection in `path` runs. A void may replace it in between.
    async fn turn(&self, path: &str) -> Result<tokio::sync::OwnedMutexGuard<()>, Status> {
        loop {
            let (collection, _) = self.collection_of(path)?;
            let turn = collection.turn().await;
            if Arc::ptr_eq(&collection, &self.collection_of(path)?.0) {
                return Ok(turn);
            }
        }
    }

    /// As [`Self::take`], for a caller that neither disconnects nor calls twice at a time.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn take_attached(&self, user: &User, path: &str, body: &[u8]) -> Result<Value, FeedError> {
        let (collection, what) = self.collection_of(path)?;
        let taken = match what {
            "events" => self.take_events(&collection, user, body).await,
            "snapshot" => self.take_snapshot(&collection, user, body).await,
            "snapshot/bodies" => self.take_bodies(&collection, user, body).await,
            _ => Err(Status::failure(404, "NotFound", format!("the feed has no {what}")).into()),
        };
        if let Err(FeedError::Refused(refusal)) = &taken {
            self.metrics.refused(refusal);
            tracing::debug!(
                collection = collection.name(),
                user = user.name,
                ?refusal,
                "Feed call refused"
            );
        }
        taken
    }

    /// Checks that the caller leads, before its body is read; the fence checks again when data changes.
    ///
    /// # Errors
    /// 409 `fenced`.
    pub(crate) fn check_leader(&self, user: &User) -> Result<(), Refusal> {
        if self.fence.leads(user.node_name()) {
            return Ok(());
        }
        Err(self.fenced())
    }

    /// Enters the fence for a call about `collection`, and records the caller's node as one that feeds it.
    ///
    /// # Errors
    /// [`Refusal::Fenced`].
    fn enter(&self, collection: &PoolCollection, claim: &Claim, user: &User) -> Result<Entered<'_>, Refusal> {
        let entered = self.fence.enter(claim, user.node_name());
        let entered = entered.map_err(|_| self.fenced())?;
        collection.fed_by(user.node_name());
        Ok(entered)
    }

    /// Counts a refused call.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        self.metrics.refused(refusal);
    }

    /// The collection of a call, and the rest of its path.
    fn collection_of<'a>(&self, path: &'a str) -> Result<(Arc<PoolCollection>, &'a str), Status> {
        let (name, what) = path.split_once('/').unwrap_or((path, ""));
        let message = || format!("{name} is not a collection of this pool; see --pool-scope-resources");
        let collection = self.collections.named(name);
        let collection = collection.ok_or_else(|| Status::failure(404, "NotFound", message()))?;
        Ok((collection, what))
    }

    /// `GET` of `MEMBERS_PATH`, for administrators. The state that every hub polls contains only their number.
    pub(crate) fn member_names(&self) -> Value {
        json!({ "members": self.members.names(), "membersFrom": self.members.basis().as_str() })
    }

    /// Makes pool data durable; with `guard`, only while no other node is elected.
    async fn persist(&self, guard: Option<&Op>) -> Result<(), FeedError> {
        self.stored(self.replicas.persist(guard).await)
    }

    /// Makes sure that `collection` may be changed up to `to`: a stored mark is ahead of everything that readers get.
    async fn cover(&self, collection: &PoolCollection, generation: u64, to: ResourceVersion) -> Result<(), FeedError> {
        let (replica, guard) = (collection.replica(), fence::guard(&self.fence.election()));
        self.stored(self.replicas.cover(replica, generation, to, guard.as_ref()).await)
    }

    fn stored(&self, outcome: Result<(), StorageError>) -> Result<(), FeedError> {
        match outcome {
            Ok(()) => Ok(()),
            Err(StorageError::Conflict { key, .. }) if key == fence::EPOCH_KEY => Err(self.fenced().into()),
            Err(error) => Err(status_error::of_storage(&error).into()),
        }
    }

    /// Reports to other coordinators whether the cloud's changes arrive: immediately when that changes, else once per
    /// [`TELL_FRESHNESS_EVERY`].
    async fn tell_freshness(&self, collection: &PoolCollection, fresh: bool) {
        if !self.replicas.is_shared() {
            return;
        }
        let now = self.clock.boot();
        let before = self.told.lock().get(collection.name()).copied();
        if before.is_some_and(|(told, at)| told == fresh && now.since(at) < TELL_FRESHNESS_EVERY) {
            return;
        }
        let value = if fresh { "true" } else { "false" };
        let op = Op {
            key: format!("{FRESH_PREFIX}{}", collection.name()),
            expect: Expect::Any,
            action: Action::Put(bytes::Bytes::from_static(value.as_bytes()).into(), Durability::Volatile),
        };
        match self.storage.write(vec![op]).await {
            Ok(_) => drop(self.told.lock().insert(collection.name().to_owned(), (fresh, now))),
            Err(error) => tracing::debug!(%error, "Failed to report freshness to other coordinators"),
        }
    }

    /// True if the election lease names another holder than the admitted one. Checked while the fence is held, so it is
    /// never true; counted to prove it.
    fn is_late(&self, holder: &str) -> bool {
        self.election_lease().0 != holder
    }

    /// Holder and duration of the election lease; no holder when there is no lease.
    pub(crate) fn election_lease(&self) -> (String, Duration) {
        let lease = self
            .leases
            .read(|held| held.object(&ObjectKey::parse(ELECTION_KEY)).cloned());
        lease_objects::standing(lease.as_ref())
    }

    /// Refuses objects that the store would reject, before anything of the call is applied.
    fn admit<'a>(
        &self,
        collection: &PoolCollection,
        mut objects: impl Iterator<Item = &'a Object>,
    ) -> Result<(), Status> {
        let admitted = objects.try_for_each(|object| self.replicas.admit(collection.name(), object));
        admitted.map_err(|error| {
            tracing::warn!(%error, "Leader's data refused; the collection stays unchanged until the object fits");
            status_error::of_storage(&error)
        })
    }

    /// Refuses other collections until the membership is known: it decides who may read them.
    fn require_members(&self, collection: &PoolCollection) -> Result<(), Refusal> {
        if collection.name() == COLLECTION || !self.members.on_trust() {
            return Ok(());
        }
        Err(Refusal::Members {
            message: "the first feed call must be a snapshot of members".to_owned(),
        })
    }
}

impl From<Status> for FeedError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<Refusal> for FeedError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Reads the body of a feed call; neither it nor its decompressed form may exceed `limit` bytes.
///
/// # Errors
/// 413 above the limit, 415 for an unknown encoding, 400 for a body that cannot be read, 504 for a late one.
pub(crate) async fn read_call(bodies: &Bodies, request: Request<Incoming>, limit: usize) -> Result<Received, Status> {
    let inflate = inflate_for(request.headers());
    let inflate = inflate.map_err(|error| Status::failure(415, "UnsupportedMediaType", error.to_string()))?;
    let body = bodies.read_feed(request.into_body(), limit).await?;
    if inflate.is_none() {
        return Ok(body);
    }
    let unfold = |folded: &Bytes, limit: usize| {
        let plain = Inflate::default().whole(folded.clone(), limit);
        plain.map_err(|error| Status::bad_request(format!("not a gzip stream: {error}")))
    };
    bodies.unfold_feed(body, limit, unfold).await
}
