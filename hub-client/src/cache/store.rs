//! The cached selections of this node: made on first use, loaded at a start (`loading.rs`), dropped when they are idle,
//! bounded in number and bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::{ObjectKey, RequestInfo};
use yurt_collection::Collection;
use yurt_runtime::TaskGroup;
use yurt_storage::StorageError;

use super::described::Described;
use super::entry::{Entry, Reader, StreamState};
use super::follow::{FollowEnd, Following, Turns};
use super::key::{Cover, Key};
use super::limits::{Counts, Limit};
use super::references::References;
use crate::health::CloudReach;
use crate::replicas::{PoolData, budget};
use crate::upstream::Cloud;

mod loading;

/// Time without a reader after which a selection is dropped. Time without the cloud does not count. One that a pod of
/// this node may need is kept for the same time again.
pub const IDLE_MAX: Duration = Duration::from_secs(3600);
/// The same for a selection that was never complete.
const INCOMPLETE_IDLE_MAX: Duration = Duration::from_secs(300);
/// Interval between looks for idle selections.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Pause before the deletion of a selection whose kind has changed is repeated.
const DROP_AGAIN: Duration = Duration::from_secs(5);
/// Name of the failure while selections on the disk could not be read and were not made again.
pub const UNREAD: &str = "stored selections";

/// The cache. Cheap to clone; clones share the state.
#[derive(Clone)]
pub struct Cache(Arc<CacheState>);

/// Dependencies of the cache.
pub struct Means {
    /// The replicas, and the state of their sources.
    pub data: Arc<PoolData>,
    /// The cloud.
    pub cloud: Arc<Cloud>,
    /// Reachability of the cloud.
    pub reach: watch::Receiver<CloudReach>,
    /// Wakes the cloud's prober.
    pub wake: Arc<Notify>,
    /// Owner of the streams.
    pub tasks: TaskGroup,
    /// Name of this Node.
    pub node: String,
}

struct CacheState {
    means: Means,
    described: Arc<Described>,
    /// By the text of the key. Only collections and failures are locked inside of it.
    entries: Mutex<BTreeMap<String, Arc<Entry>>>,
    /// Names of those that the start could not read. Only failures are locked inside of it.
    unread: Mutex<BTreeSet<String>>,
    /// Names of those that the start dropped because of their size and that no reader made since, and the time from
    /// which they are idle. Only the state of data is locked inside of it.
    dropped: Mutex<BTreeMap<String, Instant>>,
    turns: Turns,
    /// Wakes those that wait for a selection.
    made: Notify,
}

fn counts(entries: &BTreeMap<String, Arc<Entry>>) -> Counts {
    Counts {
        all: entries.len(),
        of_tokens: entries.values().filter(|entry| !entry.is_of_node()).count(),
    }
}

// === impl Cache ===

impl Cache {
    /// Creates a cache without selections.
    #[must_use]
    pub fn new(means: Means) -> Self {
        Self(Arc::new(CacheState {
            described: Arc::new(Described::new(means.cloud.clone())),
            means,
            entries: Mutex::default(),
            unread: Mutex::default(),
            dropped: Mutex::default(),
            turns: Turns::default(),
            made: Notify::new(),
        }))
    }

    /// The selection of `key`, if it is cached. Counts as a read.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        let entry = self.0.entries.lock().get(&key.text()).cloned()?;
        entry.note_read();
        Some(entry).filter(|entry| !entry.is_gone())
    }

    /// As [`Self::get`], for a read with the rights of `reader`: a token needs a selection of its own if the cloud
    /// denies this one to the node.
    #[must_use]
    pub fn get_for(&self, key: &Key, reader: Option<&Reader>) -> Option<Arc<Entry>> {
        self.get(key).filter(|entry| !self.is_replaced(entry, reader))
    }

    /// Waits until the selection of `key` is cached.
    ///
    /// # Cancel safety
    /// Holds nothing; may be dropped at any point.
    pub async fn wait_for(&self, key: &Key) -> Arc<Entry> {
        loop {
            let made = self.0.made.notified();
            if let Some(entry) = self.get(key) {
                return entry;
            }
            made.await;
        }
    }

    /// The selection of `key`, made for `reader` if it is not cached yet. What keeps the node running is filled with
    /// the node's rights, whichever reader comes first.
    ///
    /// # Errors
    /// Reason why it is not cached.
    pub async fn get_or_create(&self, key: &Key, reader: &Reader) -> Result<Arc<Entry>, String> {
        if let Some(entry) = self.get_for(key, Some(reader)) {
            return Ok(entry);
        }
        let about = self.0.described.of(key, reader).await?;
        let is_of_node = *reader == Reader::Node || key.is_essential(&self.0.means.node);
        let text = key.text();
        let name = key.name(about.as_ref(), is_of_node).ok_or("its name is too long")?;
        let kind = self.0.described.kind(key, about.as_ref())?;
        self.drop_replaced(&text, reader).await?;
        let (entry, is_new) = {
            let mut entries = self.0.entries.lock();
            match entries.get(&text) {
                Some(entry) if !entry.is_gone() => (entry.clone(), false),
                _ => {
                    self.require_place(&entries, is_of_node)?;
                    let replica = self.0.means.data.replicas().create(&name, kind);
                    let entry = Arc::new(Entry::new(key.clone(), replica, is_of_node));
                    entries.insert(text, entry.clone());
                    (entry, true)
                }
            }
        };
        if is_new {
            tracing::debug!(collection = name, "Caching a selection");
            self.note_made(&name);
            self.follow(entry.clone());
        }
        Ok(entry)
    }

    /// The complete selection that knows most about one object. Of several the one at the highest position; of those
    /// with the same the first by name. For the node only those that are filled with its rights: it may have no right
    /// to the others. Counts as a read if a stream keeps it up to date: no other one may stay for gets, which the cloud
    /// answers.
    #[must_use]
    pub fn covering(&self, info: &RequestInfo, name: &str, for_node: bool) -> Option<Arc<Entry>> {
        let (gvr, entries) = (info.gvr(), self.0.entries.lock());
        let mut best: Option<(_, &Arc<Entry>)> = None;
        let may_read = |entry: &&Arc<Entry>| entry.replica().is_served() && (entry.is_of_node() || !for_node);
        for entry in entries.values().filter(may_read) {
            let held = entry.replica().collection();
            let namespace = info.namespace.as_deref().filter(|_| held.kind().namespaced);
            let cover = entry.key().cover(&gvr, namespace, name);
            if cover == Cover::No {
                continue;
            }
            let key = ObjectKey::new(namespace, name);
            let (position, is_held) = held.read(|held| (held.position(), held.object(&key).is_some()));
            let is_later = best.as_ref().is_none_or(|(best, _)| position > *best);
            if is_later && (is_held || cover == Cover::Whole) {
                best = Some((position, entry));
            }
        }
        let entry = best.map(|(_, entry)| entry.clone())?;
        if entry.is_followed() {
            entry.note_read();
        }
        Some(entry)
    }

    /// Selections that a write of the described object may change. A create names no object, and may change any
    /// selection of its namespace.
    #[must_use]
    pub fn touched_by(&self, info: &RequestInfo) -> Vec<Arc<Entry>> {
        let (gvr, entries) = (info.gvr(), self.0.entries.lock());
        let may_change = |entry: &&Arc<Entry>| {
            let is_namespaced = entry.replica().collection().kind().namespaced;
            let namespace = info.namespace.as_deref().filter(|_| is_namespaced);
            match &info.name {
                Some(name) => entry.key().cover(&gvr, namespace, name) != Cover::No,
                None => entry.key().reaches(&gvr, namespace),
            }
        };
        entries.values().filter(may_change).cloned().collect()
    }

    /// Drops idle selections until `token` is cancelled. Follows what the pods reference once they are known.
    pub async fn run(self, token: CancellationToken) {
        let mut is_followed = false;
        while token
            .run_until_cancelled(tokio::time::sleep(SWEEP_EVERY))
            .await
            .is_some()
        {
            is_followed = is_followed || self.follow_referenced();
            self.sweep().await;
        }
    }

    /// Follows the selections that a pod of this node may reference; false while the pods are not known. After a start
    /// the kubelet reads none whose watch it has ended, until the container or the node restarts.
    fn follow_referenced(&self) -> bool {
        let Some(references) = self.references() else {
            return false;
        };
        let all: Vec<_> = self.0.entries.lock().values().cloned().collect();
        for entry in all {
            let reference = entry.key().pod_reference();
            if reference.is_some_and(|(namespace, name)| references.has(namespace, name)) {
                entry.follow_for_pods();
            }
        }
        true
    }

    /// Drops selections without a reader for a long time, except what the node itself needs.
    pub(crate) async fn sweep(&self) {
        let all: Vec<_> = self.0.entries.lock().values().cloned().collect();
        let mut references = None;
        for entry in all {
            // Judged right before its own deletion: those before it take time.
            if !self.is_idle(&entry) {
                continue;
            }
            if let Some((namespace, name)) = entry.key().pod_reference() {
                // Read at most once, and only if such a selection is idle: pods may be long.
                let references = references.get_or_insert_with(|| self.references());
                let is_referenced = references.as_ref().map(|known| known.has(namespace, name));
                if is_referenced == Some(true) {
                    entry.follow_for_pods();
                }
                if is_referenced != Some(false) {
                    entry.touch();
                    continue;
                }
            }
            tracing::debug!(collection = entry.replica().name(), "Dropping an idle selection");
            if let Err(error) = self.drop_entry(&entry).await {
                // The others would not be deleted either. The next look repeats it.
                return tracing::debug!(collection = entry.replica().name(), %error, "Failed to delete a cached selection");
            }
        }
        self.forget_dropped();
        self.note_room();
    }

    /// Ends the failures of selections that the start dropped and that had no reader since then for a long time.
    fn forget_dropped(&self) {
        let (data, is_up) = (&self.0.means.data, self.0.means.reach.borrow().is_up());
        self.0.dropped.lock().retain(|name, since| {
            if !is_up {
                *since = Instant::now();
            }
            let is_idle = since.elapsed() >= IDLE_MAX;
            if is_idle {
                data.sources().remove(name);
                data.failures().forget(&budget::failure(name));
            }
            !is_idle
        });
    }

    /// True if a selection had no reader for a long time.
    fn is_idle(&self, entry: &Entry) -> bool {
        let is_up = self.0.means.reach.borrow().is_up();
        // A view holds what the cloud denies for a while, although its watches have ended.
        let is_in_use = entry.is_in_use() && entry.state() != StreamState::Denied;
        if !is_up || is_in_use || entry.key().is_essential(&self.0.means.node) {
            entry.touch();
            return false;
        }
        let is_complete = entry.replica().collection().read(Collection::is_complete);
        let max = if is_complete { IDLE_MAX } else { INCOMPLETE_IDLE_MAX };
        entry.used().elapsed() >= max
    }

    /// Names that the pods of this node may reference; `None` while the hub does not know the pods.
    fn references(&self) -> Option<References> {
        let own = self.get(&Key::pods_of(&self.0.means.node));
        let own = own.filter(|own| own.is_followed() && own.replica().is_served())?;
        let pods: Vec<_> = own
            .replica()
            .collection()
            .read(|held| held.objects().cloned().collect());
        Some(References::of(&pods))
    }

    async fn drop_entry(&self, entry: &Arc<Entry>) -> Result<(), StorageError> {
        let (data, name) = (&self.0.means.data, entry.replica().name());
        let removed = data.replicas().remove(name).await;
        // A failed removal may have deleted rows of a partial list: a later save would not repeat them.
        data.partial_lists().remove(name).await;
        removed?;
        data.sources().remove(name);
        data.failures().forget(name);
        data.failures().forget(&budget::failure(name));
        // Its kind may be another one by the time of the next selection.
        self.0.described.forget(entry.key().gvr()).await;
        // A request in between may have made it again.
        self.0.entries.lock().retain(|_, held| !Arc::ptr_eq(held, entry));
        Ok(())
    }

    /// True if a token's own selection replaces this one of the node: the cloud answers, and denies it to the node.
    /// Objects that a pod may reference stay: the cloud may deny them to the kubelet for a moment.
    fn is_replaced(&self, entry: &Entry, reader: Option<&Reader>) -> bool {
        let is_for_token = matches!(reader, Some(Reader::Token(_)));
        let is_denied = entry.is_of_node() && entry.state() == StreamState::Denied;
        let key = entry.key();
        let is_needed = key.is_essential(&self.0.means.node) || key.pod_reference().is_some();
        is_for_token && is_denied && !is_needed && self.0.means.reach.borrow().is_up()
    }

    /// Drops the selection that one of `reader` replaces, if there is one.
    ///
    /// # Errors
    /// Reason why it stays.
    async fn drop_replaced(&self, text: &str, reader: &Reader) -> Result<(), String> {
        let replaced = {
            let entries = self.0.entries.lock();
            let replaced = entries.get(text).filter(|entry| self.is_replaced(entry, Some(reader)));
            if replaced.is_some() {
                self.require_place(&entries, false)?;
            }
            replaced.cloned()
        };
        match replaced {
            Some(entry) => self.drop_entry(&entry).await.map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    /// Drops a selection whose kind the cloud now describes in another way, and all others of that kind. Their clients
    /// make them again.
    async fn drop_redefined(&self, entry: &Arc<Entry>) {
        let all: Vec<_> = self.0.entries.lock().values().cloned().collect();
        let mut redefined = Vec::new();
        for other in all.into_iter().filter(|other| other.key().gvr() == entry.key().gvr()) {
            if Arc::ptr_eq(&other, entry) || self.0.described.is_of_another(&other).await {
                redefined.push(other);
            }
        }
        for entry in redefined {
            tracing::info!(
                collection = entry.replica().name(),
                "Dropped a selection whose kind has changed"
            );
            // Nothing follows it any more.
            entry.set_state(StreamState::Refused);
            entry.end_watches();
            while let Err(error) = self.drop_entry(&entry).await {
                tracing::debug!(collection = entry.replica().name(), %error, "Failed to delete a cached selection");
                tokio::time::sleep(DROP_AGAIN).await;
            }
        }
    }

    fn require_place(&self, entries: &BTreeMap<String, Arc<Entry>>, is_of_node: bool) -> Result<(), String> {
        let Some(limit) = counts(entries).limit(is_of_node) else {
            return Ok(());
        };
        self.0.means.data.failures().refused(limit.failure(), &limit.why());
        Err(limit.why())
    }

    /// Ends the failures of limits that leave room again.
    fn note_room(&self) {
        let counts = counts(&self.0.entries.lock());
        for limit in Limit::EVERY.into_iter().filter(|limit| !limit.is_reached(counts)) {
            self.0.means.data.failures().works(limit.failure());
        }
    }

    /// Ends the failure of the start once everything that it could not read is made again.
    fn note_made(&self, name: &str) {
        self.0.dropped.lock().remove(name);
        let mut unread = self.0.unread.lock();
        if unread.remove(name) && unread.is_empty() {
            self.0.means.data.failures().works(UNREAD);
        }
    }

    fn follow(&self, entry: Arc<Entry>) {
        self.0.made.notify_waiters();
        let means = &self.0.means;
        let gone = entry.replica().gone().clone();
        let is_essential = entry.key().is_essential(&means.node);
        let following = Following {
            entry: entry.clone(),
            described: self.0.described.clone(),
            data: means.data.clone(),
            cloud: means.cloud.clone(),
            reach: means.reach.clone(),
            wake: means.wake.clone(),
            turns: (!is_essential).then(|| self.0.turns.clone()),
        };
        let (token, cache) = (means.tasks.token(), self.clone());
        means.tasks.spawn("follow-selection", async move {
            let ended = tokio::select! {
                () = token.cancelled() => return,
                () = gone.cancelled() => return,
                ended = following.run() => ended,
            };
            if matches!(ended, FollowEnd::Redefined) {
                token.run_until_cancelled(cache.drop_redefined(&entry)).await;
            }
        });
    }

    /// The `cache` part of `/debug/state.json`.
    #[must_use]
    pub fn describe(&self) -> Value {
        let entries: Vec<_> = self.0.entries.lock().values().cloned().collect();
        let data = &self.0.means.data;
        let described = entries.iter().map(|entry| {
            let replica = entry.replica();
            let is_served = replica.is_served();
            let value = replica.collection().read(|held| {
                json!({
                    "complete": is_served,
                    "live": entry.state() == StreamState::Live,
                    "rv": held.position().to_string(),
                    "objects": held.len(),
                    "bytes": held.size(),
                })
            });
            (replica.name().to_owned(), value)
        });
        json!({
            "selections": described.collect::<serde_json::Map<_, _>>(),
            "bytes": data.bytes(true, ""),
            "maxBytes": data.limits().cache,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

    use futures_util::FutureExt as _;
    use http::HeaderValue;
    use yurt_apimachinery::watch::EventType;
    use yurt_apimachinery::{Object, ResourceVersion};
    use yurt_runtime::Clock;
    use yurt_storage::OnlyWriter as _;
    use yurt_storage::embedded::{Disk, OpenError};
    use yurt_test_support::TestDir;

    use super::super::limits::{SELECTIONS, SELECTIONS_MAX, SELECTIONS_OF_TOKENS, SELECTIONS_OF_TOKENS_MAX};
    use super::*;
    use crate::replicas::CACHED;
    use crate::replicas::disk::failing_reads::FailingReads;
    use crate::replicas::disk::tests::filling;

    struct Held {
        cache: Cache,
        reach: watch::Sender<CloudReach>,
        _folder: TestDir,
    }

    impl Held {
        fn new() -> Self {
            let (folder, reach) = (TestDir::new(), watch::Sender::default());
            let data = PoolData::open(folder.path(), "", usize::MAX, Clock::system()).unwrap();
            let cache = Cache::new(Means {
                data: Arc::new(data),
                cloud: Arc::new(Cloud::for_test("http://127.0.0.1:9")),
                reach: reach.subscribe(),
                wake: Arc::default(),
                tasks: TaskGroup::new(),
                node: "n1".to_owned(),
            });
            let held = Self {
                cache,
                reach,
                _folder: folder,
            };
            held.set_failed(0);
            held
        }

        /// The same disk after a restart, before it is loaded.
        fn restarted(&self) -> Self {
            let clock = Clock::system();
            self.restarted_on(clock.clone(), &|path| Disk::open(path, clock.clone()))
        }

        fn restarted_on(&self, clock: Clock, disk: &dyn Fn(&Path) -> Result<Arc<Disk>, OpenError>) -> Self {
            self.restarted_within(usize::MAX, clock, disk)
        }

        /// The same with this limit of the cache, bytes.
        fn restarted_within(
            &self,
            max: usize,
            clock: Clock,
            disk: &dyn Fn(&Path) -> Result<Arc<Disk>, OpenError>,
        ) -> Self {
            let folder = TestDir::new();
            let file = crate::replicas::disk::FILE;
            std::fs::copy(self._folder.path().join(file), folder.path().join(file)).unwrap();
            let data = PoolData::open_with(folder.path(), "", (usize::MAX, max).into(), clock, disk).unwrap();
            Self {
                cache: Cache::new(Means {
                    data: Arc::new(data),
                    cloud: Arc::new(Cloud::for_test("http://127.0.0.1:9")),
                    reach: self.reach.subscribe(),
                    wake: Arc::default(),
                    tasks: TaskGroup::new(),
                    node: "n1".to_owned(),
                }),
                reach: self.reach.clone(),
                _folder: folder,
            }
        }

        fn set_failed(&self, failed: u32) {
            self.reach.send_replace(CloudReach {
                failed_probes: Some(failed),
            });
        }

        /// Makes a selection that is complete and stored.
        async fn complete(&self, name: &str) -> Arc<Entry> {
            let (key, _) = Key::parse(name).unwrap();
            let entry = self.cache.get_or_create(&key, &Reader::Node).await.unwrap();
            let restart = |held: &mut Collection| held.restart(0, Vec::new(), ResourceVersion(10));
            entry.replica().collection().update(restart);
            self.cache.0.means.data.replicas().persist(None).await.unwrap();
            entry
        }

        /// Makes the selection of this node's pods, and its stream.
        async fn own_pods(&self, pods: &[Value]) -> Arc<Entry> {
            let own = self.complete(OWN_PODS).await;
            for (rv, pod) in (11..).zip(pods) {
                let mut pod = pod.clone();
                pod["metadata"]["resourceVersion"] = rv.to_string().into();
                let pod = Object::from_value(pod, own.key().built_in().unwrap()).unwrap();
                let collection = own.replica().collection();
                collection.update(|held| held.apply(EventType::Added, pod));
            }
            self.cache.0.means.data.replicas().persist(None).await.unwrap();
            own.set_state(StreamState::Live);
            own
        }

        /// Names of the selections, which are those on the disk.
        fn names(&self) -> Vec<String> {
            let entries: Vec<_> = self.cache.0.entries.lock().keys().cloned().collect();
            let stored = self.cache.0.means.data.replicas().stored(CACHED).unwrap();
            let stored: Vec<_> = stored.into_iter().map(|(name, _)| name).collect();
            let stored_texts: Vec<_> = stored.iter().map(|name| name.trim_end_matches("#tokens")).collect();
            assert_eq!(entries, stored_texts);
            entries
        }

        async fn after(&self, minutes: u64) {
            tokio::time::advance(Duration::from_secs(60 * minutes)).await;
            self.cache.sweep().await;
        }
    }

    const MAPS: &str = "/api/v1/namespaces/shop/configmaps";
    const OWN_PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
    const OWN_NODE: &str = "/api/v1/nodes?fieldSelector=metadata.name%3Dn1";

    /// A selection as the kubelet reads each Secret and ConfigMap.
    fn one(namespace: &str, resource: &str, name: &str) -> String {
        format!("/api/v1/namespaces/{namespace}/{resource}?fieldSelector=metadata.name%3D{name}")
    }

    /// A pod that has ended, and reads the Secret `db` into a variable.
    fn pod_with_a_secret() -> Value {
        let variable = json!({"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "a"}}});
        json!({
            "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"nodeName": "n1", "containers": [{"name": "web", "env": [variable]}]},
            "status": {"phase": "Succeeded"},
        })
    }

    #[tokio::test(start_paused = true)]
    async fn selection_remembers_few_changes_of_few_objects() {
        let held = Held::new();
        let entry = held.complete(MAPS).await;
        let collection = entry.replica().collection();
        for rv in 11..500 {
            let map = format!(
                r#"{{"metadata":{{"namespace":"shop","name":"a","resourceVersion":"{rv}"}},"data":{{"a":"{}"}}}}"#,
                "x".repeat(1_000)
            );
            let map = Object::parse(map.into(), collection.kind()).unwrap();
            collection.update(|held| held.apply(EventType::Modified, map));
        }
        let size = collection.read(Collection::size);
        assert!((4_000..20_000).contains(&size), "{size} bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn write_touches_no_selection_of_another_namespace() {
        let held = Held::new();
        let all = [
            "/api/v1/configmaps",
            MAPS,
            OWN_PODS,
            "/api/v1/namespaces/bank/configmaps",
        ];
        for name in all {
            held.complete(name).await;
        }
        for (method, path) in [("POST", MAPS), ("DELETE", MAPS), ("PUT", &format!("{MAPS}/a"))] {
            let info = RequestInfo::parse(method, path, None).unwrap();
            let touched = held.cache.touched_by(&info);
            let names: Vec<_> = touched.iter().map(|entry| entry.replica().name()).collect();
            assert_eq!(names, all[..2], "{method} {path}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn selection_without_readers_is_dropped_after_an_hour() {
        let held = Held::new();
        held.complete(MAPS).await;
        held.after(59).await;
        assert_eq!(held.names(), [MAPS]);
        assert!(held.cache.get(&Key::parse(MAPS).unwrap().0).is_some(), "this is a use");
        held.after(59).await;
        assert_eq!(held.names(), [MAPS]);
        held.after(2).await;
        assert_eq!(held.names(), Vec::<String>::new());
        held.complete(MAPS).await;
        assert_eq!(held.names(), [MAPS], "and made again");
    }

    #[tokio::test(start_paused = true)]
    async fn read_keeps_no_selection_that_the_cloud_denies() {
        let (held, needed) = (Held::new(), one("shop", "secrets", "db"));
        held.own_pods(&[pod_with_a_secret()]).await;
        for name in [MAPS, &needed] {
            held.complete(name).await;
        }
        let entry = |name: &str| held.cache.get(&Key::parse(name).unwrap().0);
        // As a view of it, which outlives its watches.
        let _view = entry(MAPS).unwrap().replica().collection().clone();
        for refused in [StreamState::Refused, StreamState::Denied] {
            for name in [MAPS, &needed] {
                entry(name).unwrap().set_state(refused);
            }
            for _ in 0..2 {
                held.after(31).await;
                assert!(entry(MAPS).is_some() || refused == StreamState::Denied);
            }
        }
        assert_eq!(
            held.names(),
            [&needed, OWN_PODS],
            "a pod of this node references the other one"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn token_replaces_what_the_cloud_denies_the_node_unless_a_pod_may_need_it() {
        let (held, needed) = (Held::new(), one("shop", "secrets", "db"));
        for name in [MAPS, &needed, OWN_PODS] {
            held.complete(name).await.set_state(StreamState::Denied);
        }
        let token = Reader::Token(HeaderValue::from_static("Bearer a"));
        let is_of_node = async |name: &str| {
            let key = Key::parse(name).unwrap().0;
            held.cache.get_or_create(&key, &token).await.unwrap().is_of_node()
        };
        held.set_failed(1);
        assert!(is_of_node(MAPS).await, "without the cloud it is all that there is");
        held.set_failed(0);
        assert!(is_of_node(&needed).await && is_of_node(OWN_PODS).await);
        assert!(!is_of_node(MAPS).await);
        assert!(held.cache.0.means.data.replicas().named(MAPS).is_none());
    }

    /// A get of one object may find a selection that no stream keeps up to date: its own reader is gone.
    #[tokio::test(start_paused = true)]
    async fn gets_keep_only_a_selection_with_a_stream() {
        for (state, stays) in [(StreamState::Live, true), (StreamState::Refused, false)] {
            let held = Held::new();
            held.complete(MAPS).await.set_state(state);
            let get = RequestInfo::parse("GET", &format!("{MAPS}/a"), None).unwrap();
            for _ in 0..60 {
                assert!(held.cache.covering(&get, "a", false).is_some());
                held.after(1).await;
            }
            assert_eq!(!held.names().is_empty(), stays, "{state:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn watches_of_a_kind_that_has_changed_end_although_the_disk_does_not_delete_its_copy() {
        let (is_full, (clock, _hand)) = (Arc::new(AtomicBool::new(false)), Clock::fake());
        let stored = Held::new();
        stored.complete(MAPS).await;
        let held = stored.restarted_on(clock.clone(), &filling(is_full.clone(), clock));
        held.cache.load().await;
        is_full.store(true, Ordering::Relaxed);
        let entry = held.cache.get(&Key::parse(MAPS).unwrap().0).unwrap();
        let refusal = entry.refusal();
        let dropping = held.cache.drop_redefined(&entry);
        assert!(
            tokio::time::timeout(DROP_AGAIN * 2, dropping).await.is_err(),
            "the disk is full"
        );
        assert!(refusal.is_cancelled() && entry.state().is_refused());
    }

    #[tokio::test(start_paused = true)]
    async fn return_of_the_cloud_ends_watches_of_a_selection_that_it_gives_to_no_known_reader() {
        let moment = || tokio::time::sleep(Duration::from_millis(1));
        let stored = Held::new();
        stored.complete(MAPS).await;
        let held = stored.restarted();
        held.cache.load().await;
        let entry = held.cache.get(&Key::parse(MAPS).unwrap().0).unwrap();
        let refusal = entry.refusal();
        held.set_failed(2);
        moment().await;
        assert!(!refusal.is_cancelled(), "its loss ends none");
        held.set_failed(0);
        moment().await;
        assert!(refusal.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn selection_that_is_read_or_keeps_the_node_running_stays() {
        let held = Held::new();
        let read = held.complete(MAPS).await;
        held.complete(OWN_PODS).await;
        let reader = read.replica().collection().clone();
        for _ in 0..3 {
            held.after(61).await;
            assert_eq!(held.names(), [MAPS, OWN_PODS]);
        }
        drop(reader);
        held.after(61).await;
        assert_eq!(held.names(), [OWN_PODS]);
    }

    /// The kubelet ends the watch of an object that only variables name, or that is immutable.
    #[tokio::test(start_paused = true)]
    async fn what_a_pod_of_this_node_references_stays_as_long_as_the_pod() {
        let held = Held::new();
        let own = held.own_pods(&[pod_with_a_secret()]).await;
        let needed = one("shop", "secrets", "db");
        for other in [&needed, &one("shop", "secrets", "old"), &one("bank", "secrets", "db")] {
            held.complete(other).await;
        }
        for _ in 0..3 {
            held.after(61).await;
            assert_eq!(held.names(), [&needed, OWN_PODS]);
        }
        let restart = |held: &mut Collection| held.restart(0, Vec::new(), ResourceVersion(20));
        own.replica().collection().update(restart);
        held.after(61).await;
        assert_eq!(held.names(), [OWN_PODS]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_pod_of_this_node_references_is_followed_without_a_read() {
        let (held, needed, other) = (Held::new(), one("shop", "secrets", "db"), one("shop", "secrets", "old"));
        held.own_pods(&[pod_with_a_secret()]).await;
        for name in [&needed, &other] {
            held.complete(name).await;
        }
        let again = held.restarted();
        again.cache.load().await;
        let entry = |name: &str| again.cache.get(&Key::parse(name).unwrap().0).unwrap();
        let is_followed = |name: &str| entry(name).reader().now_or_never() == Some(Reader::Node);
        assert!(!again.cache.follow_referenced(), "no pods are read");
        entry(OWN_PODS).set_state(StreamState::Live);
        assert!(again.cache.follow_referenced());
        assert!(is_followed(&needed) && !is_followed(&other));
        entry(&needed).refuse(&Reader::Node);
        again.after(61).await;
        assert!(is_followed(&needed), "the Node authorizer may refuse for a moment");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_pod_may_reference_stays_while_the_pods_are_not_known() {
        let held = Held::new();
        let needed = one("shop", "secrets", "db");
        held.complete(&needed).await;
        held.after(61).await;
        assert_eq!(held.names(), [needed.as_str()], "no pods are read");
        let own = held.own_pods(&[]).await;
        own.set_state(StreamState::Refused);
        held.after(61).await;
        assert_eq!(held.names(), [&needed, OWN_PODS], "there may be later pods");
        own.set_state(StreamState::Live);
        held.after(61).await;
        assert_eq!(held.names(), [OWN_PODS]);
    }

    /// Dropped without that, it would have two followers once it is made again.
    #[tokio::test(start_paused = true)]
    async fn selection_that_the_disk_does_not_delete_stays_until_it_does() {
        let (is_full, (clock, hand)) = (Arc::new(AtomicBool::new(false)), Clock::fake());
        let stored = Held::new();
        stored.complete(MAPS).await;
        let held = stored.restarted_on(clock.clone(), &filling(is_full.clone(), clock));
        held.cache.load().await;
        is_full.store(true, Ordering::Relaxed);
        held.after(61).await;
        is_full.store(false, Ordering::Relaxed);
        hand.advance(Duration::from_secs(30));
        assert_eq!(held.names(), [MAPS]);
        held.after(1).await;
        assert_eq!(held.names(), Vec::<String>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_dropped_while_the_cloud_is_away() {
        let held = Held::new();
        held.complete(MAPS).await;
        held.set_failed(2);
        held.after(60 * 24).await;
        held.set_failed(0);
        held.after(59).await;
        assert_eq!(held.names(), [MAPS], "its readers have an hour to return");
        held.after(2).await;
        assert_eq!(held.names(), Vec::<String>::new());
    }

    #[test]
    fn loss_of_the_cloud_during_a_sweep_keeps_what_is_not_dropped_yet() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // The one thread for the disk can be kept busy.
        let runtime = runtime.enable_all().start_paused(true).max_blocking_threads(1).build();
        runtime.unwrap().block_on(async {
            let held = Held::new();
            held.complete(MAPS).await;
            held.complete("/api/v1/pods").await;
            tokio::time::advance(IDLE_MAX).await;
            let (release, busy) = std::sync::mpsc::channel::<()>();
            let disk = tokio::task::spawn_blocking(move || busy.recv());
            let mut sweep = std::pin::pin!(held.cache.sweep());
            assert!(sweep.as_mut().now_or_never().is_none(), "the first deletion waits");
            held.set_failed(2);
            release.send(()).unwrap();
            disk.await.unwrap().unwrap();
            sweep.await;
            assert_eq!(held.names(), ["/api/v1/pods"]);
        });
    }

    #[tokio::test]
    async fn callers_with_tokens_leave_places_for_the_node() {
        let held = Held::new();
        let token = Reader::Token(HeaderValue::from_static("Bearer a"));
        let key = |number: usize| Key::parse(&format!("/api/v1/namespaces/n{number}/pods")).unwrap().0;
        for number in 0..SELECTIONS_OF_TOKENS_MAX {
            assert!(held.cache.get_or_create(&key(number), &token).await.is_ok(), "{number}");
        }
        let next = key(SELECTIONS_OF_TOKENS_MAX);
        assert!(held.cache.get_or_create(&next, &token).await.is_err());
        let failures = held.cache.0.means.data.failures();
        assert!(failures.why(SELECTIONS_OF_TOKENS).is_some());
        assert!(held.cache.get_or_create(&next, &Reader::Node).await.is_ok());
        assert_eq!(failures.why(SELECTIONS), None, "the node's data is complete");
        for number in SELECTIONS_OF_TOKENS_MAX + 1..SELECTIONS_MAX {
            assert!(
                held.cache.get_or_create(&key(number), &Reader::Node).await.is_ok(),
                "{number}"
            );
        }
        assert!(
            held.cache
                .get_or_create(&key(SELECTIONS_MAX), &Reader::Node)
                .await
                .is_err()
        );
        assert!(
            held.cache.get_or_create(&key(7), &Reader::Node).await.is_ok(),
            "it is cached"
        );
        for limit in Limit::EVERY {
            assert!(failures.why(limit.failure()).is_some(), "{limit:?}");
        }
    }

    /// The Node authorizer lets the kubelet read these two with their selectors only, and a review names none.
    #[tokio::test]
    async fn what_keeps_the_node_running_has_its_rights_although_a_token_reads_first() {
        let held = Held::new();
        let token = Reader::Token(HeaderValue::from_static("Bearer a"));
        for (name, is_of_node) in [(OWN_PODS, true), (OWN_NODE, true), (MAPS, false)] {
            let key = Key::parse(name).unwrap().0;
            let entry = held.cache.get_or_create(&key, &token).await.unwrap();
            assert_eq!(entry.is_of_node(), is_of_node, "{name}");
            assert_eq!(Key::is_of_node(entry.replica().name()), is_of_node, "{name}");
            entry.accept(&token, false);
            let reader = entry.reader().now_or_never();
            assert!(
                reader == Some(if is_of_node { Reader::Node } else { token.clone() }),
                "{name}"
            );
        }
    }

    #[tokio::test]
    async fn start_loads_nothing_of_tokens_that_keeps_the_node_running() {
        let held = Held::new();
        let data = &held.cache.0.means.data;
        for name in [OWN_PODS, OWN_NODE, MAPS] {
            let kind = Key::parse(name).unwrap().0.built_in().unwrap();
            let replica = data.replicas().create(&format!("{name}#tokens"), kind);
            let restart = |held: &mut Collection| held.restart(0, Vec::new(), ResourceVersion(10));
            replica.collection().update(restart);
        }
        data.replicas().persist(None).await.unwrap();
        let again = held.restarted();
        again.cache.load().await;
        let loaded: Vec<_> = again.cache.0.entries.lock().keys().cloned().collect();
        assert_eq!(loaded, [MAPS]);
        let stored = again.cache.0.means.data.replicas().stored(CACHED).unwrap();
        assert_eq!(stored.len(), 1, "{stored:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn limit_is_no_failure_once_there_is_room_again() {
        let held = Held::new();
        let token = Reader::Token(HeaderValue::from_static("Bearer a"));
        let key = |number: usize| Key::parse(&format!("/api/v1/namespaces/n{number}/pods")).unwrap().0;
        for number in 0..=SELECTIONS_OF_TOKENS_MAX {
            let made = held.cache.get_or_create(&key(number), &token).await;
            assert_eq!(made.is_ok(), number < SELECTIONS_OF_TOKENS_MAX, "{number}");
        }
        held.after(3).await;
        let failures = held.cache.0.means.data.failures();
        assert!(failures.why(SELECTIONS_OF_TOKENS).is_some());
        for number in 1..SELECTIONS_OF_TOKENS_MAX {
            assert!(held.cache.get(&key(number)).is_some(), "{number}");
        }
        held.after(3).await;
        assert!(held.cache.get(&key(0)).is_none(), "it was never complete");
        assert_eq!(failures.why(SELECTIONS_OF_TOKENS), None);
    }

    #[tokio::test]
    async fn start_loads_what_fits_and_what_this_version_understands() {
        let held = Held::new();
        held.complete(MAPS).await;
        held.complete("/api/v1/pods").await;
        let data = &held.cache.0.means.data;
        let services = yurt_apimachinery::kind::find_kind("", "services").unwrap();
        let strange = data.replicas().create("/not-a-selection", services);
        strange
            .collection()
            .update(|held| held.restart(0, Vec::new(), ResourceVersion(10)));
        data.replicas().persist(None).await.unwrap();
        let again = held.restarted();
        again.cache.load().await;
        assert_eq!(again.names(), [MAPS, "/api/v1/pods"]);
        let entry = again.cache.get(&Key::parse(MAPS).unwrap().0).expect("it is loaded");
        assert!(entry.replica().is_served());
    }

    #[tokio::test]
    async fn start_that_does_not_load_all_keeps_what_the_node_runs_on_and_reports_the_rest_of_its_data() {
        const OF_TOKENS: [&str; 2] = ["/api/v1/configmaps", "/api/v1/namespaces/a/pods"];
        let held = Held::new();
        let data = &held.cache.0.means.data;
        for name in [OF_TOKENS[0], OF_TOKENS[1], MAPS, OWN_PODS] {
            let kind = Key::parse(name).unwrap().0.built_in().unwrap();
            let mark = if OF_TOKENS.contains(&name) { "#tokens" } else { "" };
            let metadata = json!({"namespace": "shop", "name": "a", "uid": "a", "resourceVersion": "5"});
            let object = Object::from_value(json!({"metadata": metadata, "noise": "x".repeat(1_000)}), kind).unwrap();
            let collection = data.replicas().create(&format!("{name}{mark}"), kind);
            let restart = |held: &mut Collection| held.restart(0, vec![object], ResourceVersion(10));
            collection.collection().update(restart);
        }
        data.replicas().persist(None).await.unwrap();
        let stored = data.replicas().stored(CACHED).unwrap();
        let one = stored.iter().map(|(_, bytes)| *bytes).max().unwrap();
        let loaded_within = async |max: usize| {
            let clock = Clock::system();
            let again = held.restarted_within(max, clock.clone(), &|path| Disk::open(path, clock.clone()));
            again.cache.load().await;
            let failures = again.cache.0.means.data.failures();
            let why = [MAPS, "/api/v1/configmaps#tokens"].map(|name| failures.why(&budget::failure(name)));
            assert_eq!(why[1], None, "its pod may be gone");
            (again.names(), why[0].is_some())
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(loaded_within(one).await, (names(&[OWN_PODS]), true));
        assert_eq!(loaded_within(2 * one).await, (names(&[MAPS, OWN_PODS]), false));
        let with_one = loaded_within(3 * one).await;
        assert_eq!(with_one, (names(&["/api/v1/configmaps", MAPS, OWN_PODS]), false));
    }

    #[tokio::test(start_paused = true)]
    async fn failure_of_a_selection_that_a_start_dropped_ends_if_it_has_no_reader() {
        let held = Held::new();
        for name in [MAPS, LARGE[0], OWN_PODS] {
            let restart = |held: &mut Collection| held.restart(0, vec![large_pod()], ResourceVersion(10));
            held.complete(name).await.replica().collection().update(restart);
        }
        held.cache.0.means.data.replicas().persist(None).await.unwrap();
        let clock = Clock::system();
        let again = held.restarted_within(1, clock.clone(), &|path| Disk::open(path, clock.clone()));
        again.cache.load().await;
        let failures = again.cache.0.means.data.failures();
        let reported = || [MAPS, LARGE[0], OWN_PODS].map(|name| failures.why(&budget::failure(name)).is_some());
        let maps = Key::parse(MAPS).unwrap().0;
        again.cache.get_or_create(&maps, &Reader::Node).await.unwrap();
        again.set_failed(2);
        tokio::time::advance(2 * IDLE_MAX).await;
        again.cache.sweep().await;
        assert_eq!(reported(), [true; 3], "nothing could be read");
        again.set_failed(0);
        tokio::time::advance(IDLE_MAX).await;
        assert!(again.cache.get(&maps).is_some());
        again.cache.sweep().await;
        assert_eq!(
            reported(),
            [true, false, true],
            "one is read, and one keeps the node running"
        );
    }

    /// More than the database holds in memory, so a start reads it from the disk again.
    fn large_pod() -> Object {
        let mut state = 1_u64;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b'a' + u8::try_from(state >> 33 & 15).unwrap())
        });
        let noise: String = noise.take(2 << 20).collect();
        let pod =
            json!({"metadata": {"namespace": "a", "name": "p", "uid": "p", "resourceVersion": "5"}, "noise": noise});
        Object::from_value(pod, yurt_apimachinery::kind::find_kind("", "pods").unwrap()).unwrap()
    }

    const LARGE: [&str; 3] = ["/api/v1/namespaces/a/pods", "/api/v1/namespaces/b/pods", "/api/v1/pods"];

    /// A disk whose selections a start reads one by one.
    async fn large_selections() -> Held {
        let held = Held::new();
        for name in LARGE {
            let entry = held.complete(name).await;
            let restart = |held: &mut Collection| held.restart(0, vec![large_pod()], ResourceVersion(10));
            entry.replica().collection().update(restart);
        }
        held.cache.0.means.data.replicas().persist(None).await.unwrap();
        held
    }

    /// The same disk after a start. A read fails if `fails` says so of the number of those before it. Returns the names
    /// of what it loaded, and true if a read failed.
    async fn started_on(disk: &Held, fails: impl Fn(i64) -> bool + Send + Sync + 'static) -> (Held, Vec<String>, bool) {
        let (clock, hand) = Clock::fake();
        let (reads, has_failed) = (Arc::new(AtomicI64::new(i64::MIN)), Arc::new(AtomicBool::new(false)));
        let fails = Arc::new(fails);
        let held = disk.restarted_on(clock.clone(), &|path| {
            let (reads, has_failed, fails) = (reads.clone(), has_failed.clone(), fails.clone());
            let failing = move |_| {
                let read = reads.fetch_add(1, Ordering::SeqCst);
                (read >= 0 && fails(read)).then(|| {
                    has_failed.store(true, Ordering::SeqCst);
                    io::Error::other("the bus was reset")
                })
            };
            Disk::open_on(path, FailingReads::open(path, failing), clock.clone())
        });
        reads.store(0, Ordering::SeqCst);
        let advancing = async {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                hand.advance(Duration::from_millis(100));
            }
        };
        tokio::select! {
            () = held.cache.load() => {}
            () = advancing => {}
        }
        reads.store(i64::MIN, Ordering::SeqCst);
        let loaded = held.cache.0.entries.lock().keys().cloned().collect();
        (held, loaded, has_failed.load(Ordering::SeqCst))
    }

    #[tokio::test(start_paused = true)]
    async fn read_that_fails_once_costs_a_start_no_selection() {
        let disk = large_selections().await;
        let mut failures = 0;
        for fails_at in 0..8 {
            let (_, loaded, has_failed) = started_on(&disk, move |read| read == fails_at).await;
            assert_eq!(loaded, LARGE, "read {fails_at} fails");
            failures += usize::from(has_failed);
        }
        assert!(failures > 3, "{failures} reads failed");
    }

    #[tokio::test(start_paused = true)]
    async fn selection_that_a_start_could_not_read_is_a_failure_until_it_is_made_again() {
        let disk = large_selections().await;
        let mut missing = 0;
        for fails_from in 0.. {
            let (held, loaded, has_failed) = started_on(&disk, move |read| read >= fails_from).await;
            if !has_failed {
                break;
            }
            let failures = held.cache.0.means.data.failures();
            let has_names = !held.cache.0.unread.lock().is_empty();
            let make = async |name: &str| {
                assert!(failures.why(UNREAD).is_some(), "{name}");
                let (key, _) = Key::parse(name).unwrap();
                held.cache.get_or_create(&key, &Reader::Node).await.unwrap();
            };
            make(MAPS).await;
            for name in LARGE.iter().filter(|name| !loaded.iter().any(|loaded| loaded == *name)) {
                make(name).await;
                missing += usize::from(has_names);
            }
            assert_eq!(failures.why(UNREAD).is_some(), !has_names, "read {fails_from}");
        }
        assert!(missing > 0);
    }

    #[tokio::test]
    async fn row_that_cannot_be_read_costs_a_start_its_own_selection_alone() {
        const DAMAGED: &str = "/api/v1/namespaces/a/pods";
        const LATER: [&str; 2] = ["/api/v1/namespaces/b/pods", "/api/v1/pods"];
        let held = Held::new();
        for name in LATER {
            held.complete(name).await;
        }
        let replicas = held.cache.0.means.data.replicas();
        let nodes = yurt_apimachinery::kind::find_kind("", "nodes").unwrap();
        let node = json!({"metadata": {"name": "n1", "uid": "n1", "resourceVersion": "5"}});
        let node = Object::from_value(node, nodes).unwrap();
        let damaged = replicas.create(DAMAGED, nodes);
        let restart = |held: &mut Collection| held.restart(0, vec![node], ResourceVersion(10));
        damaged.collection().update(restart);
        replicas.persist(None).await.unwrap();

        let again = held.restarted();
        again.cache.load().await;
        assert_eq!(again.names(), LATER);
        let stored = again.cache.0.means.data.replicas().stored(CACHED).unwrap();
        assert!(stored.iter().all(|(name, _)| name != DAMAGED), "it is deleted");
        for name in LATER {
            let entry = again.cache.get(&Key::parse(name).unwrap().0).unwrap();
            assert!(entry.replica().is_served(), "{name}");
        }
    }
}
