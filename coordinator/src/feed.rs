//! How the pool's leader fills the coordinator with the cloud's data.
//!
//! In reading order: [`fence`] (who may), [`members`] (which nodes belong), [`collection`] (what readers see of a
//! collection), [`scope`] (which collections there are), [`events`] (facts of the log, batch by batch), [`snapshot`]
//! (everything there is, by difference; [`pending`] and [`bodies`]: what of it has come), [`wire`] (the messages).
//!
//! Invariant: nothing of an older epoch is applied after something of a newer one; `C` never decreases within a
//! generation; a collection is served only after its completeness is durable.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Value, json};
use yurt_apimachinery::query::Query;
use yurt_apimachinery::{Object, ObjectKey, Status, nesting};
use yurt_runtime::http::{Inflate, inflate_for};
use yurt_runtime::{BootTime, Clock, TaskGroup};
use yurt_storage::{Action, Durability, Expect, Op, Replicas, SharedCollection, Storage, StorageError};

use crate::authn::User;
use crate::bodies::{Bodies, Received, Work};
use crate::metrics::FeedMetrics;
use crate::registry::leases;
use crate::status_error;

mod bodies;
mod budget;
pub(crate) mod collection;
pub(crate) mod events;
pub(crate) mod fence;
pub(crate) mod members;
mod pending;
pub(crate) mod scope;
mod snapshot;
mod void;
mod wire;

use collection::{PoolCollection, PoolCollections};
use fence::Fence;
use members::Members;
use pending::Arriving;
use scope::Scope;
pub(crate) use wire::Refusal;

/// Path of the feed.
pub(crate) const PATH: &str = "/yurt/v1/feed";
/// Path of the members' names.
pub(crate) const MEMBERS_PATH: &str = "/yurt/v1/members";
/// What is posted below [`PATH`] to say which collections there are.
pub(crate) const SCOPE: &str = "scope";
/// Largest body of one feed call.
pub(crate) const BODY_BYTES_MAX: usize = 8 << 20;
/// Versions of the feed's calls that this coordinator speaks.
const VERSIONS: [u64; 1] = [1];
/// How bodies of the feed may be compressed.
const ENCODINGS: [&str; 1] = ["gzip"];
/// Before the name of a collection: the storage key that says whether it is fresh.
pub(crate) const FRESH_PREFIX: &str = "/~fresh/";
/// Other coordinators take a collection for stale after [`collection::FRESH_FOR`] without news.
const TELL_FRESHNESS_EVERY: Duration = Duration::from_secs(10);

/// The receiving end of the feed.
pub(crate) struct Feed {
    fence: Arc<Fence>,
    members: Arc<Members>,
    scope: Arc<Scope>,
    /// Pool-scope collections and `members`, by name.
    collections: Arc<PoolCollections>,
    replicas: Arc<Replicas>,
    /// Where freshness is told to other coordinators.
    storage: Arc<dyn Storage>,
    /// What they were told last of each collection, and when.
    told: Mutex<BTreeMap<String, (bool, BootTime)>>,
    /// Snapshots that are still arriving. Lock order: fence, this, collection.
    pending: Mutex<BTreeMap<String, Arriving>>,
    /// Bytes of objects that may be held, and arrive.
    bytes_max: usize,
    /// Where bodies of a large snapshot wait.
    folder: PathBuf,
    /// Where the election lease is, to look over the fence's shoulder.
    leases: Arc<SharedCollection>,
    /// Owner of calls, which finish when their leader hangs up.
    calls: TaskGroup,
    clock: Clock,
    metrics: FeedMetrics,
}

/// What a feed is made of.
pub(crate) struct Parts {
    /// Who may feed.
    pub(crate) fence: Arc<Fence>,
    /// Which nodes belong to the pool.
    pub(crate) members: Arc<Members>,
    /// Which resources the pool shares.
    pub(crate) scope: Arc<Scope>,
    /// Pool-scope collections and `members`, by name.
    pub(crate) collections: Arc<PoolCollections>,
    /// Their durable copies.
    pub(crate) replicas: Arc<Replicas>,
    /// The store they may be in.
    pub(crate) storage: Arc<dyn Storage>,
    /// The collection with the election lease.
    pub(crate) leases: Arc<SharedCollection>,
    /// Owner of calls, which finish when their leader hangs up.
    pub(crate) calls: TaskGroup,
    /// Bytes of objects that may be held, and arrive.
    pub(crate) bytes_max: usize,
    /// Where bodies of a large snapshot wait.
    pub(crate) folder: PathBuf,
}

/// Why a feed call changed nothing.
#[derive(Debug)]
pub(crate) enum FeedError {
    /// 409 in the feed's own words.
    Refused(Refusal),
    /// Anything else.
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
            collections,
            replicas,
            storage,
            told: Mutex::default(),
            pending: Mutex::default(),
            bytes_max,
            folder,
            leases,
            calls,
            clock,
            metrics,
        }
    }

    /// Who may feed.
    pub(crate) fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Node leases whose heartbeats another hub has to carry to the cloud.
    pub(crate) fn delegated_leases(&self) -> usize {
        self.leases.read(|held| {
            let delegated = |lease: &&Object| leases::is_delegated(lease);
            held.objects().filter(delegated).count()
        })
    }

    /// Which nodes belong to the pool.
    pub(crate) fn members(&self) -> &Members {
        &self.members
    }

    /// The durable copies.
    pub(crate) fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// The collections fed, `members` included.
    pub(crate) fn collections(&self) -> impl Iterator<Item = Arc<PoolCollection>> + use<> {
        self.collections.all()
    }

    /// `GET`: where everything stands.
    pub(crate) fn state(&self) -> Value {
        let election = self.fence.election();
        let now = self.clock.boot();
        let state_of = |collection: Arc<PoolCollection>| {
            let (generation, applied) = collection.objects().read(|held| (held.generation(), held.position()));
            let durable = collection.replica().durable();
            let state = json!({
                "generation": generation,
                "appliedUpTo": applied,
                "durableUpTo": durable.position,
                "complete": collection.is_served(),
                "fresh": collection.is_fresh(now),
                "stalenessSeconds": collection.staleness(now).map(|time| time.as_secs()),
            });
            (collection.name().to_owned(), state)
        };
        json!({
            "store": self.fence.store(),
            "epoch": election.epoch,
            "holder": election.holder,
            "versions": VERSIONS,
            "members": self.members.count(),
            "membersFrom": self.members.basis().as_str(),
            "encodings": ENCODINGS,
            "scope": self.scope.state(),
            "collections": self.collections().map(state_of).collect::<serde_json::Map<_, _>>(),
        })
    }

    /// `POST <collection>/<what>`: takes what the leader sends. A call that was begun finishes even when its leader hangs up:
    /// what is applied must become durable and shown. One call of a collection at a time, so that a leader that repeats
    /// itself before a slow disk waits instead of piling up.
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
        let turn = self.collection_of(path)?.0.turn().await;
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

    /// As [`Self::take`], for a caller that neither goes away nor calls twice at a time.
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

    /// Whether the caller leads. Asked before its body is read; the fence asks again when data changes.
    ///
    /// # Errors
    /// 409 `fenced`.
    pub(crate) fn check_leader(&self, user: &User) -> Result<(), Refusal> {
        if self.fence.leads(user) {
            return Ok(());
        }
        Err(self.fenced())
    }

    /// Counts a call that was refused.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        self.metrics.refused(refusal);
    }

    /// The collection that a call is about, and what of it.
    fn collection_of<'a>(&self, path: &'a str) -> Result<(Arc<PoolCollection>, &'a str), Status> {
        let (name, what) = path.split_once('/').unwrap_or((path, ""));
        let message = || format!("{name} is not a collection of this pool; see --pool-scope-resources");
        let collection = self.collections.named(name);
        let collection = collection.ok_or_else(|| Status::failure(404, "NotFound", message()))?;
        Ok((collection, what))
    }

    /// `GET` of [`MEMBERS_PATH`]: for people. What every hub asks every few seconds has their number only.
    pub(crate) fn member_names(&self) -> Value {
        json!({ "members": self.members.names(), "membersFrom": self.members.basis().as_str() })
    }

    /// Makes pool data durable, while nobody else is elected where that is part of it.
    async fn persist(&self, guard: Option<&Op>) -> Result<(), FeedError> {
        match self.replicas.persist(guard).await {
            Ok(()) => Ok(()),
            Err(StorageError::Conflict { key, .. }) if key == fence::EPOCH_KEY => Err(self.fenced().into()),
            Err(error) => Err(status_error::of_storage(&error).into()),
        }
    }

    /// Tells other coordinators whether the cloud's changes arrive: at once when that turns, else now and then.
    async fn tell_freshness(&self, collection: &PoolCollection, fresh: bool) {
        if !self.replicas.is_pooled() {
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
            Err(error) => tracing::debug!(%error, "Freshness could not be told to other coordinators"),
        }
    }

    /// Whether the election lease names another holder than the one let in. Asked while the fence is held, so it never
    /// does; counted to prove it.
    fn is_late(&self, holder: &str) -> bool {
        let lease = self
            .leases
            .read(|held| held.object(&ObjectKey::parse(leases::ELECTION_KEY)).cloned());
        leases::standing(lease.as_ref()).0 != holder
    }

    /// Refuses objects that the store would refuse, before anything of the call is applied.
    fn admit<'a>(
        &self,
        collection: &PoolCollection,
        mut objects: impl Iterator<Item = &'a Object>,
    ) -> Result<(), Status> {
        let admitted = objects.try_for_each(|object| self.replicas.admit(collection.name(), object));
        admitted.map_err(|error| {
            tracing::warn!(%error, "Refused the leader's data: the collection stays as it is until the object fits");
            status_error::of_storage(&error)
        })
    }

    /// Until the membership is known nothing else is taken: it decides who may read the rest.
    fn require_members(&self, collection: &PoolCollection) -> Result<(), Refusal> {
        if collection.name() == members::COLLECTION || !self.members.on_trust() {
            return Ok(());
        }
        Err(Refusal::Members {
            message: "the first feed must be a snapshot of members".to_owned(),
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

/// The body of a feed call; neither it nor what it unfolds to may exceed `limit` bytes.
///
/// # Errors
/// 413 above the limit, 415 for an unknown encoding, 400 for what cannot be read, 504 for one that does not come.
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

/// Whether a call with this query is in a version that is spoken here. Asked before its body is read: in another version it
/// may mean something else.
///
/// # Errors
/// 409 `version`: what each side speaks, and which has to be upgraded.
pub(crate) fn check_version(query: Option<&str>) -> Result<(), Refusal> {
    let asked = Query::parse(query).get("version").map(str::to_owned);
    let version = asked.as_deref().and_then(|text| text.parse::<u64>().ok());
    if version.is_some_and(|version| VERSIONS.contains(&version)) {
        return Ok(());
    }
    let caller = asked.map_or_else(|| "none at all".to_owned(), |asked| format!("version {asked:?}"));
    let is_newer = version.is_some_and(|version| VERSIONS.iter().all(|ours| *ours < version));
    let older = if is_newer {
        "this coordinator"
    } else {
        "the hub that called"
    };
    let message = format!(
        "this coordinator speaks {VERSIONS:?} of the feed's versions, the hub that called {caller}; upgrade {older}"
    );
    Err(Refusal::Version { message })
}

/// Reads a feed message.
fn decode<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, Status> {
    let refused = |error: &dyn std::fmt::Display| Status::bad_request(format!("not a feed message: {error}"));
    nesting::check(body).map_err(|error| refused(&error))?;
    serde_json::from_slice(body).map_err(|error| refused(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_another_version_are_refused_and_told_which_side_to_upgrade() {
        assert_eq!(check_version(Some("version=1")), Ok(()));
        let refused = |query| check_version(query).unwrap_err().to_json();
        for (query, older) in [
            (None, "upgrade the hub"),
            (Some("version=0"), "upgrade the hub"),
            (Some("version=x"), "upgrade the hub"),
            (Some("version=2"), "upgrade this coordinator"),
        ] {
            let refusal = refused(query);
            assert_eq!(
                (&refusal["reason"], &refusal["versions"]),
                (&json!("version"), &json!([1]))
            );
            let message = refusal["message"].as_str().unwrap();
            assert!(message.contains(older) && message.contains("speaks [1]"), "{message}");
        }
    }
}
