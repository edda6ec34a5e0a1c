//! This node's copy of pool data: one replica per pool-scope resource, shared by all local clients.
//!
//! [`source`] (pure) decides where the data comes from, [`follow`] keeps one stream per replica open and moves it from
//! source to source without a gap, [`detour`] (pure) says how to go on where a source cannot, [`stream`] speaks list and
//! watch, [`draft`] (pure) is a list that is still coming, kept over cuts by [`drafts`] and fetched by `listing`, [`members`]
//! is the pool's membership (`nodepool` where the cloud has NodePools), [`scope`] says what there is beside [`POOL_SCOPE`].
//! [`proof`] asks the cloud whether it still has the history they come from, [`timeline`] (pure) decides it.

pub mod detour;
pub mod draft;
pub mod drafts;
pub mod follow;
pub mod lag;
mod listing;
pub mod members;
mod nodepool;
pub mod proof;
pub mod scope;
pub mod source;
pub mod steer;
pub mod stream;
pub mod timeline;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::{GroupResource, ResourceKind};
use yurt_runtime::{BootTime, Clock};
use yurt_storage::embedded::replicas::ReplicaStore;
use yurt_storage::{Replica, Replicas, StorageError};

use drafts::Drafts;
use proof::Timeline;
use scope::Scope;
use source::Source;

use crate::troubles::Troubles;

/// Resources every pool shares, by collection name.
pub const POOL_SCOPE: [&str; 3] = ["services", "endpoints", "endpointslices.discovery.k8s.io"];

/// A cloud stream is stale when nothing, bookmarks included, was heard for this long (bookmarks come every minute).
const CLOUD_SILENCE: Duration = Duration::from_secs(150);
/// The coordinator gives a sign of life every 10 s.
const COORDINATOR_SILENCE: Duration = Duration::from_secs(30);

/// What is known of a replica's source.
#[derive(Clone, Copy, Debug)]
pub struct SourceState {
    /// Where the data comes from at present.
    pub source: Source,
    /// When the source last said anything.
    pub heard: BootTime,
    /// The coordinator said that its own source is away.
    pub stale: bool,
    /// When the source last said anything without calling itself stale.
    pub fresh_at: Option<BootTime>,
    /// The source whose stream was confirmed last.
    pub confirmed: Source,
    /// How often another source was confirmed than the one before.
    pub switches: u64,
}

/// All replicas of the hub and the state of their sources.
pub struct PoolData {
    replicas: Replicas,
    drafts: Drafts,
    scope: Scope,
    states: Mutex<BTreeMap<String, SourceState>>,
    /// Names of the pool's members, kept beside the collection so that filters need not gather them per object.
    members: watch::Sender<Arc<BTreeSet<String>>>,
    /// Counts changes of `members`, for the views that depend on them.
    members_version: watch::Sender<u64>,
    timeline: Timeline,
    troubles: Troubles,
    clock: Clock,
}

// === impl PoolData ===

impl PoolData {
    /// Opens the replicas with what `store` has of them; `folder` remembers which there are.
    ///
    /// # Errors
    /// [`StorageError`] when the store is damaged.
    pub fn open(store: ReplicaStore, folder: &Path, clock: Clock) -> Result<Self, StorageError> {
        let scope = Scope::open(folder.join(scope::FILE));
        let kinds: Vec<_> = pool_kinds().into_iter().chain(scope.named()).collect();
        let replicas = Replicas::open(&kinds, Some(store.clone()))?;
        Ok(Self {
            replicas,
            drafts: Drafts::new(store),
            scope,
            states: Mutex::default(),
            members: watch::Sender::default(),
            members_version: watch::Sender::default(),
            timeline: Timeline::default(),
            troubles: Troubles::new(clock.clone()),
            clock,
        })
    }

    /// The replicas.
    #[must_use]
    pub fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// Whether the cloud has the history the replicas come from.
    #[must_use]
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// What does not work, of the data and of whatever shares them.
    #[must_use]
    pub fn troubles(&self) -> &Troubles {
        &self.troubles
    }

    /// The lists that are still coming.
    #[must_use]
    pub fn drafts(&self) -> &Drafts {
        &self.drafts
    }

    /// The replica that answers for `group`/`resource`, if it is pool-scope.
    #[must_use]
    pub fn serving(&self, group: &str, resource: &str) -> Option<Arc<Replica>> {
        let replica = self.replicas.named(&GroupResource::new(group, resource).to_string())?;
        // The members are nobody's resource.
        let is_named = replica.collection().kind().group == group;
        is_named.then_some(replica)
    }

    /// The pool's members; `None` while they are not known.
    #[must_use]
    pub fn members(&self) -> Option<Arc<BTreeSet<String>>> {
        let known = self
            .replicas
            .named(members::COLLECTION)?
            .collection()
            .read(|c| c.is_complete());
        known.then(|| self.members.borrow().clone())
    }

    /// Replaces the members' names.
    pub fn set_members(&self, names: BTreeSet<String>) {
        self.members.send_replace(Arc::new(names));
        self.members_version.send_modify(|version| *version += 1);
    }

    /// Ticks after every change of the members.
    #[must_use]
    pub fn members_changes(&self) -> watch::Receiver<u64> {
        self.members_version.subscribe()
    }

    /// Notes that `source` of replica `name` said something.
    pub fn heard(&self, name: &str, source: Source, stale: bool) {
        let now = self.clock.boot();
        let mut states = self.states.lock();
        let state = states.entry(name.to_owned()).or_insert(SourceState::unknown(now));
        (state.source, state.heard, state.stale) = (source, now, stale);
        if !stale {
            state.fresh_at = Some(now);
        }
    }

    /// Notes that replica `name` follows `source` from now on.
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

    /// Notes that replica `name` has no source now.
    pub fn lost(&self, name: &str) {
        if let Some(state) = self.states.lock().get_mut(name) {
            state.source = Source::None;
        }
    }

    /// Whether the data of replica `name` is complete and its source alive.
    #[must_use]
    pub fn is_fresh(&self, name: &str) -> bool {
        let complete = self
            .replicas
            .named(name)
            .is_some_and(|r| r.collection().read(|c| c.is_complete()));
        complete && self.states.lock().get(name).is_some_and(|state| self.is_alive(state))
    }

    fn is_alive(&self, state: &SourceState) -> bool {
        let silence = match state.source {
            Source::None => return false,
            Source::Cloud => CLOUD_SILENCE,
            Source::Coordinator => COORDINATOR_SILENCE,
        };
        !state.stale && self.clock.boot().since(state.heard) < silence
    }

    /// What is known of the source of replica `name`.
    #[must_use]
    pub fn source(&self, name: &str) -> SourceState {
        let known = self.states.lock().get(name).copied();
        known.unwrap_or(SourceState::unknown(self.clock.boot()))
    }

    /// How long ago replica `name` was last known to be up to date; `None` when it never was since the start.
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
            let value = replica.collection().read(|c| {
                json!({
                    "source": state.source.as_str(),
                    "complete": c.is_complete(),
                    "fresh": false,
                    "rv": c.position().to_string(),
                    "generation": c.generation(),
                    "objects": c.len(),
                    "bytes": c.size(),
                    "durableRv": replica.durable().position.to_string(),
                    "stalenessSeconds": staleness,
                    "sourceSwitches": state.switches,
                    "relistsForced": replica.collection().relists_forced(),
                })
            });
            described.insert(name.to_owned(), value);
            described[name]["fresh"] = self.is_fresh(name).into();
            if let Some((objects, bytes, stuck)) = self.drafts.progress(name) {
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
