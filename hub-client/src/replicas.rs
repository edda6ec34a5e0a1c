//! This node's copy of pool data: one replica per pool-scope resource, shared by all local clients.
//!
//! The rules are in `yurt-pool-protocol`: the source of a replica, how to resume when a source cannot, partial lists, the
//! proof of a history. [`follower`] keeps one stream per replica open and switches sources without a gap. [`reflector`]
//! speaks list and watch. [`partial_list_store`] keeps a partial list across broken connections, and `listing` fetches it.
//! `nodepool` reads the membership when the cloud has NodePools. [`scope`] adds resources to [`POOL_SCOPE`]. [`budget`] bounds
//! the bytes of all replicas. [`disk`] opens the durable copy; [`origin`] records its pool and cluster. [`verify`] compares
//! samples of the coordinator's data with the cloud, [`truth`] (pure) judges them, [`alarm`] reacts to forgeries, and [`distrust`] records them.
//! [`warnings`] (pure) decides when a report of another member is checked.
//! [`ahead`] abandons a replica that is ahead of the leader's; [`lag`] detects one that is behind. [`history_check`] asks the cloud
//! whether it still has the history of the replicas.

pub mod ahead;
pub mod alarm;
pub mod budget;
mod cluster;
pub mod disk;
pub mod distrust;
pub mod follower;
pub mod history_check;
pub mod lag;
mod listing;
mod nodepool;
pub mod origin;
pub mod partial_list_store;
pub(crate) mod questions;
pub mod reflector;
mod roster;
pub mod scope;
pub mod truth;
pub mod verify;
pub mod warnings;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::time::BootTime;
use yurt_apimachinery::{GroupResource, ResourceKind, ResourceVersion};
use yurt_pool_protocol::members;
use yurt_pool_protocol::source::Source;
use yurt_runtime::Clock;
use yurt_storage::embedded::Disk;
use yurt_storage::{Replica, Replicas};

use disk::{DiskError, Opened};
use distrust::Distrust;
use history_check::HistoryState;
use origin::Origin;
use partial_list_store::PartialListStore;
use scope::Scope;

use crate::failures::Failures;

/// Resources every pool shares, by collection name.
pub const POOL_SCOPE: [&str; 3] = ["services", "endpoints", "endpointslices.discovery.k8s.io"];

/// Maximum silence of a cloud stream, bookmarks included, before it is stale. Bookmarks come every minute.
const CLOUD_SILENCE: Duration = Duration::from_secs(150);
/// Maximum silence of the coordinator, which sends a sign of life every 10 s.
const COORDINATOR_SILENCE: Duration = Duration::from_secs(30);

/// State of a replica's source.
#[derive(Clone, Copy, Debug)]
pub struct SourceState {
    /// Current source.
    pub source: Source,
    /// Time of the source's last message.
    pub heard: BootTime,
    /// True if the coordinator reported that its own source is away.
    pub stale: bool,
    /// Time of the source's last message that did not report stale data.
    pub fresh_at: Option<BootTime>,
    /// Source whose stream was confirmed last.
    pub confirmed: Source,
    /// Number of changes from one confirmed source to another.
    pub switches: u64,
    /// Updates rejected because of --max-pool-bytes: in total, and in a row.
    pub oversized: (u64, u32),
}

/// All replicas of the hub and the state of their sources.
pub struct PoolData {
    replicas: Replicas,
    partial_lists: PartialListStore,
    scope: Scope,
    states: Mutex<BTreeMap<String, SourceState>>,
    /// Names of the pool's members as last read, cached so that filters need not gather them per object.
    members: Mutex<Option<Members>>,
    /// Counts membership changes, for the views that depend on them.
    members_version: watch::Sender<u64>,
    folder: PathBuf,
    /// Name of the pool.
    pool: String,
    origin: Origin,
    is_foreign: CancellationToken,
    /// Pool whose members were dropped at the start.
    other_pool: Option<String>,
    history: HistoryState,
    distrust: Distrust,
    failures: Failures,
    /// Maximum bytes of all replicas together.
    max_bytes: usize,
    clock: Clock,
}

/// Names of the members at one position.
#[derive(Clone)]
struct Members {
    /// Generation and `C` of the collection.
    at: (u64, ResourceVersion),
    names: Arc<BTreeSet<String>>,
}

/// Returns the maximum silence, bookmarks included, before `source` counts as away.
const fn silence_of(source: Source) -> Duration {
    match source {
        Source::None => Duration::ZERO,
        Source::Cloud => CLOUD_SILENCE,
        Source::Coordinator => COORDINATOR_SILENCE,
    }
}

// === impl PoolData ===

impl PoolData {
    /// Opens the replicas of a hub in `pool` from `folder`, which also records the set of replicas. Together they may have
    /// `max_bytes`: a larger durable copy is dropped and fetched again.
    ///
    /// # Errors
    /// [`DiskError`] if neither a new file nor running without one helps.
    pub fn open(folder: &Path, pool: &str, max_bytes: usize, clock: Clock) -> Result<Self, DiskError> {
        let scope = Scope::open(folder.join(scope::FILE));
        let kinds: Vec<_> = pool_kinds().into_iter().chain(scope.named()).collect();
        let Opened {
            replicas,
            store,
            origin,
            failure,
            other_pool,
            oversized,
        } = disk::open(folder, pool, (&kinds, max_bytes), &|file| {
            Disk::open(file, clock.clone())
        })?;
        let failures = Failures::new(clock.clone());
        let mut states = BTreeMap::new();
        for (name, why) in oversized {
            failures.refused(&budget::failure(&name), &why);
            let dropped = SourceState {
                oversized: (1, 1),
                ..SourceState::unknown(clock.boot())
            };
            states.insert(name, dropped);
        }
        if let Some(why) = failure {
            failures.unanswered(disk::COPY, &why);
        }
        Ok(Self {
            replicas,
            partial_lists: PartialListStore::new(store),
            scope,
            states: Mutex::new(states),
            members: Mutex::default(),
            members_version: watch::Sender::default(),
            folder: folder.to_owned(),
            pool: pool.to_owned(),
            origin,
            is_foreign: CancellationToken::new(),
            other_pool,
            history: HistoryState::default(),
            distrust: Distrust::default(),
            failures,
            max_bytes,
            clock,
        })
    }

    /// Logs the state in which the durable copy was found.
    pub fn log_opening(&self) {
        if let Some(why) = self.failures.why(disk::COPY) {
            tracing::error!(why, "The durable copy could not be opened unchanged");
        }
        if let Some(former) = &self.other_pool {
            tracing::warn!(former, "Dropped the members of another pool from the durable copy");
        }
    }

    /// Pool and cluster of the replicas.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Token that is cancelled when this node's replicas turn out to be of another cluster and must be dropped.
    #[must_use]
    pub fn is_foreign(&self) -> &CancellationToken {
        &self.is_foreign
    }

    /// Drops the replicas of another cluster, and all state derived from them, before the next start.
    ///
    /// # Errors
    /// Path of the file that could not be deleted.
    pub fn drop_copies(&self) -> Result<(), String> {
        self.is_foreign.cancel();
        let removed = disk::remove(&self.folder);
        removed.map_err(|error| format!("{}: {error}", self.folder.join(disk::FILE).display()))?;
        self.scope.forget();
        Ok(())
    }

    /// The replicas.
    #[must_use]
    pub fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// State of the check that the cloud still has the replicas' history.
    #[must_use]
    pub fn history(&self) -> &HistoryState {
        &self.history
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

    /// The pool's members; `None` while they are unknown. The names and the check for completeness are of one snapshot.
    #[must_use]
    pub fn members(&self) -> Option<Arc<BTreeSet<String>>> {
        let replica = self.replicas.named(members::COLLECTION)?;
        let known = self.members.lock().clone();
        let read = replica.collection().read(|held| {
            let at = (held.generation(), held.position());
            held.is_complete().then(|| {
                known.filter(|known| known.at == at).unwrap_or_else(|| Members {
                    at,
                    names: Arc::new(members::names(held.objects())),
                })
            })
        });
        self.members.lock().clone_from(&read);
        read.map(|read| read.names)
    }

    /// Notifies the views that depend on the members of a change.
    pub fn members_changed(&self) {
        self.members_version.send_modify(|version| *version += 1);
    }

    /// Receiver that ticks after every membership change.
    #[must_use]
    pub fn members_changes(&self) -> watch::Receiver<u64> {
        self.members_version.subscribe()
    }

    /// Records a message of `source` for replica `name`.
    pub fn heard(&self, name: &str, source: Source, stale: bool) {
        let now = self.clock.boot();
        let mut states = self.states.lock();
        let state = states.entry(name.to_owned()).or_insert(SourceState::unknown(now));
        (state.source, state.heard, state.stale) = (source, now, stale);
        if !stale {
            state.fresh_at = Some(now);
        }
    }

    /// Records that replica `name` follows `source` from now on.
    pub fn confirmed(&self, name: &str, source: Source) {
        let mut states = self.states.lock();
        let state = states
            .entry(name.to_owned())
            .or_insert(SourceState::unknown(self.clock.boot()));
        state.source = source;
        let before = std::mem::replace(&mut state.confirmed, source);
        if before != source && before != Source::None {
            state.switches += 1;
        }
    }

    /// Records that replica `name` rejected an update because of its size. Returns the number of rejections in a row.
    pub fn does_not_fit(&self, name: &str, why: &budget::Oversized) -> u32 {
        self.failures.refused(&budget::failure(name), &why.to_string());
        let now = self.clock.boot();
        let mut states = self.states.lock();
        let state = states.entry(name.to_owned()).or_insert(SourceState::unknown(now));
        let (total, row) = state.oversized;
        state.oversized = (total + 1, row.saturating_add(1));
        state.oversized.1
    }

    /// Records that replica `name` applied an update.
    pub fn fits(&self, name: &str) {
        let did_not = self
            .states
            .lock()
            .get_mut(name)
            .map(|state| std::mem::take(&mut state.oversized.1));
        if did_not.is_some_and(|row| row > 0) {
            self.failures.works(&budget::failure(name));
        }
    }

    /// Records that replica `name` has no source now.
    pub fn lost(&self, name: &str) {
        if let Some(state) = self.states.lock().get_mut(name) {
            state.source = Source::None;
        }
    }

    /// True if the data of replica `name` is complete and its source is alive.
    #[must_use]
    pub fn is_fresh(&self, name: &str) -> bool {
        let complete = self
            .replicas
            .named(name)
            .is_some_and(|r| r.collection().read(|c| c.is_complete()));
        complete && self.states.lock().get(name).is_some_and(|state| self.is_alive(state))
    }

    fn is_alive(&self, state: &SourceState) -> bool {
        !state.stale && self.clock.boot().since(state.heard) < silence_of(state.source)
    }

    /// State of the source of replica `name`.
    #[must_use]
    pub fn source(&self, name: &str) -> SourceState {
        let known = self.states.lock().get(name).copied();
        known.unwrap_or(SourceState::unknown(self.clock.boot()))
    }

    /// Time since replica `name` was last known to be up to date; `None` if it has not been since the start.
    #[must_use]
    pub fn staleness(&self, name: &str) -> Option<Duration> {
        let complete = self.replicas.named(name)?.collection().read(|c| c.is_complete());
        let fresh_at = self.source(name).fresh_at.filter(|_| complete)?;
        Some(self.clock.boot().since(fresh_at))
    }

    /// The `collections` part of `/debug/state.json`.
    #[must_use]
    pub fn describe(&self) -> Value {
        let mut described = serde_json::Map::new();
        for replica in self.replicas.iter() {
            let name = replica.name();
            let state = self.source(name);
            let staleness = self.staleness(name).map(|time| time.as_secs());
            let is_served = replica.is_served();
            let value = replica.collection().read(|c| {
                json!({
                    "source": state.source.as_str(),
                    "complete": is_served,
                    "fresh": false,
                    "rv": c.position().to_string(),
                    "generation": c.generation(),
                    "objects": c.len(),
                    "bytes": c.size(),
                    "durableRv": replica.durable().position.to_string(),
                    "stalenessSeconds": staleness,
                    "oversized": state.oversized.0,
                    "sourceSwitches": state.switches,
                    "relistsForced": replica.collection().relists_forced(),
                })
            });
            described.insert(name.to_owned(), value);
            described[name]["fresh"] = self.is_fresh(name).into();
            if let Some((objects, bytes, stuck)) = self.partial_lists.progress(name) {
                described[name]["listing"] = json!({ "objects": objects, "bytes": bytes, "stuck": stuck });
            }
        }
        Value::Object(described)
    }
}

// === impl SourceState ===

impl SourceState {
    fn unknown(now: BootTime) -> Self {
        Self {
            source: Source::None,
            heard: now,
            stale: false,
            fresh_at: None,
            confirmed: Source::None,
            switches: 0,
            oversized: (0, 0),
        }
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

#[cfg(test)]
mod tests {
    use yurt_apimachinery::Object;
    use yurt_collection::Collection;
    use yurt_storage::OnlyWriter as _;
    use yurt_test_support::TestDir;

    use super::*;

    fn member(name: &str) -> Object {
        let metadata = json!({"name": name, "uid": name, "resourceVersion": "5"});
        let member =
            json!({"apiVersion": members::kind().api_version(), "kind": members::kind().kind, "metadata": metadata});
        Object::from_value(member, members::kind()).unwrap()
    }

    #[test]
    fn members_are_those_of_the_collection_at_every_moment() {
        let folder = TestDir::new();
        let data = PoolData::open(folder.path(), "p", usize::MAX, Clock::system()).unwrap();
        let told = || {
            data.members()
                .map(|names| names.iter().cloned().collect::<Vec<_>>().join(","))
        };
        assert_eq!(told(), None, "not known");
        let copy = data.replicas().named(members::COLLECTION).unwrap();
        let list = |names: &[&str], generation, at| {
            let list = names.iter().map(|name| member(name)).collect();
            copy.collection()
                .update(|held| held.restart(generation, list, ResourceVersion(at)));
        };
        list(&["n1"], 0, 5);
        assert_eq!(told().as_deref(), Some("n1"));
        list(&["n1", "n2"], 0, 6);
        assert_eq!(told().as_deref(), Some("n1,n2"));
        list(&["n3"], 7, 6);
        assert_eq!(told().as_deref(), Some("n3"), "another generation at the same number");
        copy.collection().update(Collection::distrust);
        assert_eq!(told(), None, "not known any more");
    }
}
