//! This node's copy of pool data: one replica per pool-scope resource, shared by all local clients.
//!
//! The rules are in `yurt-pool-protocol`: the source of a replica, how to resume when a source cannot, partial lists,
//! the proof of a history.
//!
//! * Data from a source: [`follower`] keeps one stream per replica open and switches sources without a gap.
//!   [`reflector`] lists and watches. [`partial_list_store`] keeps a partial list over broken connections; `listing`
//!   fetches it. `nodepool` reads the membership where the cloud has NodePools, [`host_network`] a value for a filter.
//!   `pool_label` reads the pool's name where no flag names it, `pool_flag` compares the flag with the label.
//! * State of the data: [`sources`] (freshness), [`membership`] (names of the members), [`scope`] (resources beyond
//!   [`POOL_SCOPE`]), [`budget`] (bytes of all replicas).
//! * Filtered views of the replicas: [`derived`].
//! * Disk: [`disk`] opens the file, [`durable_copy`] is what it is opened as, [`origin`] its pool and cluster.
//! * Cloud history: [`history_check`] asks whether the cloud still has it. [`ahead`] abandons a replica that is ahead
//!   of the leader's; [`lag`] detects one that is behind.
//! * Forgeries: [`verify`] compares samples with the cloud, [`truth`] (pure) judges them, [`alarm`] reacts, and
//!   [`distrust`] records them. [`warnings`] (pure) decides when a report of another member is checked.

pub mod ahead;
pub mod alarm;
pub mod budget;
pub mod derived;
pub mod disk;
pub mod distrust;
pub mod durable_copy;
pub mod follower;
pub mod history_check;
pub mod host_network;
pub mod lag;
pub(crate) mod listing;
pub mod membership;
mod nodepool;
pub mod origin;
pub mod partial_list_store;
pub(crate) mod pool_flag;
pub(crate) mod pool_label;
pub(crate) mod questions;
pub mod reflector;
mod roster;
pub mod scope;
pub mod sources;
pub mod truth;
pub mod verify;
pub mod warnings;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::{GroupResource, ResourceKind};
use yurt_pool_protocol::members;
use yurt_pool_protocol::source::Source;
use yurt_runtime::Clock;
use yurt_storage::embedded::{Disk, OpenError};
use yurt_storage::{Replica, Replicas};

use budget::Limits;
use disk::{DiskError, Opened};
use distrust::Distrust;
use durable_copy::DurableCopy;
use history_check::HistoryState;
use host_network::HostNetwork;
use membership::Membership;
use partial_list_store::PartialListStore;
use scope::Scope;
use sources::Sources;

use crate::failures::Failures;

/// Resources every pool shares, by collection name.
pub const POOL_SCOPE: [&str; 3] = ["services", "endpoints", "endpointslices.discovery.k8s.io"];

/// First character of the names of replicas of the cache. No resource name begins with it.
pub const CACHED: &str = "/";

/// True if this is the name of a replica of the cache: only this node reads it, and its source is always the cloud.
#[must_use]
pub fn is_cached(name: &str) -> bool {
    name.starts_with(CACHED)
}

/// Last part of the names of the cache's replicas that are filled with the rights of callers with tokens.
pub const OF_TOKENS: &str = "#tokens";

/// True if the cache's replica of this name is filled with the rights of callers with tokens, not with the node's.
#[must_use]
pub fn is_of_tokens(name: &str) -> bool {
    name.ends_with(OF_TOKENS)
}

/// All replicas of the hub and the state of their sources.
pub struct PoolData {
    replicas: Replicas,
    partial_lists: PartialListStore,
    scope: Scope,
    sources: Arc<Sources>,
    membership: Arc<Membership>,
    host_network: HostNetwork,
    copy: DurableCopy,
    /// Name of the pool.
    pool: String,
    history: HistoryState,
    distrust: Distrust,
    failures: Failures,
    /// Maximum bytes of the replicas.
    limits: Limits,
}

// === impl PoolData ===

impl PoolData {
    /// Opens the replicas of a hub in `pool` from `folder`, which also records the set of replicas. What exceeds
    /// `limits` is dropped and fetched again.
    ///
    /// # Errors
    /// [`DiskError`] if neither a new file nor running without one helps.
    pub fn open(folder: &Path, pool: &str, limits: impl Into<Limits>, clock: Clock) -> Result<Self, DiskError> {
        let disk = |file: &Path| Disk::open(file, clock.clone());
        Self::open_with(folder, pool, limits.into(), clock.clone(), &disk)
    }

    /// As [`Self::open`]; `disk` opens the file.
    pub(crate) fn open_with(
        folder: &Path,
        pool: &str,
        limits: Limits,
        clock: Clock,
        disk: &dyn Fn(&Path) -> Result<Arc<Disk>, OpenError>,
    ) -> Result<Self, DiskError> {
        let scope = Scope::open(folder.join(scope::FILE));
        let kinds: Vec<_> = pool_kinds().into_iter().chain(scope.named()).collect();
        let Opened {
            replicas,
            store,
            origin,
            failure,
            other_pool,
            oversized,
        } = disk::open(folder, pool, (&kinds, limits.pool), disk)?;
        let failures = Failures::new(clock.clone());
        let sources = Sources::new(clock);
        for (name, why) in oversized {
            failures.refused(&budget::failure(&name), &why);
            sources.rejected(&name);
        }
        if let Some(why) = failure {
            failures.unanswered(disk::COPY, &why);
        }
        Ok(Self {
            membership: Arc::new(Membership::new(&replicas)),
            host_network: HostNetwork::open(folder, pool),
            replicas,
            partial_lists: PartialListStore::new(store),
            scope,
            sources: Arc::new(sources),
            copy: DurableCopy::new(folder, origin, other_pool),
            pool: pool.to_owned(),
            history: HistoryState::default(),
            distrust: Distrust::default(),
            failures,
            limits,
        })
    }

    /// Logs the state in which the durable copy was found.
    pub fn log_opening(&self) {
        if let Some(why) = self.failures.why(disk::COPY) {
            tracing::error!(why, "The durable copy could not be opened unchanged");
        }
        if let Some(former) = self.copy.other_pool() {
            tracing::warn!(former, "Dropped the members of another pool from the durable copy");
        }
    }

    /// The durable copy on this node.
    #[must_use]
    pub fn copy(&self) -> &DurableCopy {
        &self.copy
    }

    /// The replicas.
    #[must_use]
    pub fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// The replicas of pool data and members, without those of the cache.
    pub fn pool_replicas(&self) -> impl Iterator<Item = Arc<Replica>> {
        self.replicas.iter().filter(|replica| !is_cached(replica.name()))
    }

    /// State of the check that the cloud still has the replicas' history.
    #[must_use]
    pub fn history(&self) -> &HistoryState {
        &self.history
    }

    /// State of the replicas' sources.
    #[must_use]
    pub fn sources(&self) -> &Arc<Sources> {
        &self.sources
    }

    /// Stores what changed, for a call every few seconds. A failure is recorded; the next call tries again.
    pub(crate) async fn persist_due(&self) {
        let stored = self.replicas.persist_due(None).await;
        self.failures
            .tell(disk::STORING, stored.err().map(|error| error.to_string()));
    }

    /// The pool's members.
    #[must_use]
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    /// `spec.hostNetwork` of the pool's NodePool.
    #[must_use]
    pub fn host_network(&self) -> &HostNetwork {
        &self.host_network
    }

    /// Collections in which the coordinator's data was forged.
    #[must_use]
    pub fn distrust(&self) -> &Distrust {
        &self.distrust
    }

    /// Current failures of the replicas and of the components that share them.
    #[must_use]
    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Partial lists.
    #[must_use]
    pub fn partial_lists(&self) -> &PartialListStore {
        &self.partial_lists
    }

    /// The replica that answers for `group`/`resource`, if it is pool-scope.
    #[must_use]
    pub fn serving(&self, group: &str, resource: &str) -> Option<Arc<Replica>> {
        let replica = self.replicas.named(&GroupResource::new(group, resource).to_string())?;
        // The members are not a resource of the API.
        let is_named = replica.collection().kind().group == group;
        is_named.then_some(replica)
    }

    /// True if the data of replica `name` is complete and its source is alive.
    #[must_use]
    pub fn is_fresh(&self, name: &str) -> bool {
        let complete = self
            .replicas
            .named(name)
            .is_some_and(|r| r.collection().read(|c| c.is_complete()));
        complete && self.sources.is_alive(name)
    }

    /// True if replica `name` is fresh and the cloud has confirmed it. A leader states only this: the coordinator's
    /// data is its own.
    #[must_use]
    pub fn is_fresh_from_cloud(&self, name: &str) -> bool {
        self.is_fresh(name) && self.sources.of(name).confirmed == Source::Cloud
    }

    /// Time since replica `name` was last known to be up to date; `None` if it has not been since the start.
    #[must_use]
    pub fn staleness(&self, name: &str) -> Option<Duration> {
        let complete = self.replicas.named(name)?.collection().read(|c| c.is_complete());
        self.sources.since_fresh(name).filter(|_| complete)
    }
}

/// Name and kind of every replica that each hub keeps.
#[must_use]
pub fn pool_kinds() -> Vec<(String, &'static ResourceKind)> {
    let builtin = POOL_SCOPE.iter().filter_map(|name| {
        let (plural, group) = name.split_once('.').unwrap_or((name, ""));
        find_kind(group, plural).map(|kind| ((*name).to_owned(), kind))
    });
    builtin
        .chain([(members::COLLECTION.to_owned(), members::kind())])
        .collect()
}
