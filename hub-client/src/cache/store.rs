//! The cached selections of this node: made on first use, loaded at a start, dropped when they are idle, bounded in number
//! and bytes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION};
use http::{Request, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::{GroupVersionResource, ObjectKey, RequestInfo, ResourceKind};
use yurt_collection::Collection;
use yurt_pool_protocol::pool_scope::SharedResource;
use yurt_runtime::TaskGroup;
use yurt_runtime::http::{APPLICATION_JSON, empty};
use yurt_storage::StorageError;
use yurt_storage::kinds::Kinds;

use super::entry::{Entry, Reader, StreamState};
use super::follow::{Following, Turns};
use super::key::{Cover, Key};
use super::references::References;
use crate::health::CloudReach;
use crate::pool::scope::discover::{discovered, group_path};
use crate::replicas::{CACHED, PoolData, budget};
use crate::upstream::{Cloud, describe_answer};

/// Maximum number of selections. A kubelet with 110 pods has 300 to 700: each Secret and ConfigMap of its pods is one.
pub const SELECTIONS_MAX: usize = 2_000;
/// Maximum number of selections that only callers with a token of their own use. The others are the node's.
pub const SELECTIONS_OF_TOKENS_MAX: usize = 640;
/// Time without a reader after which a selection is dropped. Time without the cloud does not count. One that a pod of
/// this node may need is kept for the same time again.
pub const IDLE_MAX: Duration = Duration::from_secs(3600);
/// The same for a selection that was never complete.
const INCOMPLETE_IDLE_MAX: Duration = Duration::from_secs(300);
/// Interval between looks for idle selections.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Maximum time of a discovery request.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of a discovery document.
const DOCUMENT_MAX: usize = 4 << 20;
/// Pause of a start before it repeats a read that failed: the store does not open its file again before.
const REREAD_AFTER: Duration = Duration::from_millis(1_500);
/// Maximum number of such pauses of a start.
const REREADS_MAX: usize = 4;
/// Name of the failure while no further selection is cached.
pub const CACHE: &str = "cache";

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
    kinds: Kinds,
    /// By the text of the key. Only collections and failures are locked inside of it.
    entries: Mutex<BTreeMap<String, Arc<Entry>>>,
    /// Descriptions of the kinds that are not built in. Held during a request, so that each is requested once.
    described: tokio::sync::Mutex<HashMap<GroupVersionResource, SharedResource>>,
    turns: Turns,
    /// Wakes those that wait for a selection.
    made: Notify,
}

/// Reason why a stored selection is not loaded.
enum Unloaded {
    /// No start can use it.
    Useless(String),
    /// The disk does not give it now.
    Unread(StorageError),
}

// === impl Unloaded ===

impl<T: Into<String>> From<T> for Unloaded {
    fn from(why: T) -> Self {
        Self::Useless(why.into())
    }
}

/// Waits until a read may be repeated; false if a start has waited often enough.
async fn may_reread(rereads: &mut Range<usize>) -> bool {
    let may_reread = rereads.next().is_some();
    if may_reread {
        tokio::time::sleep(REREAD_AFTER).await;
    }
    may_reread
}

// === impl Cache ===

impl Cache {
    /// Creates a cache without selections.
    #[must_use]
    pub fn new(means: Means) -> Self {
        Self(Arc::new(CacheState {
            means,
            kinds: Kinds::default(),
            entries: Mutex::default(),
            described: tokio::sync::Mutex::default(),
            turns: Turns::default(),
            made: Notify::new(),
        }))
    }

    /// Loads the selections on the disk. What is damaged, or exceeds the limits, is dropped. A read that fails is
    /// repeated; what the disk does not give then stays there for the next start.
    pub async fn load(&self) {
        let data = &self.0.means.data;
        let mut rereads = 0..REREADS_MAX;
        let mut stored = self.stored().await;
        if stored.is_err() && may_reread(&mut rereads).await {
            stored = self.stored().await;
        }
        let stored = match stored {
            Ok(stored) => stored,
            Err(error) => return data.failures().refused(CACHE, &format!("the stored names: {error}")),
        };
        let (mut loaded, max) = (0_usize, data.limits().cache);
        for (name, bytes) in stored {
            let fits = loaded.saturating_add(bytes) <= max;
            let mut outcome = self.load_one(&name, fits).await;
            if matches!(outcome, Err(Unloaded::Unread(_))) && may_reread(&mut rereads).await {
                outcome = self.load_one(&name, fits).await;
            }
            let why = match outcome {
                Ok(()) => {
                    loaded += bytes;
                    continue;
                }
                Err(Unloaded::Unread(error)) => {
                    data.failures().refused(CACHE, &format!("selection {name}: {error}"));
                    continue;
                }
                Err(Unloaded::Useless(why)) => why,
            };
            tracing::warn!(collection = name, why, "Dropped a cached selection");
            let (of_disk, of) = (data.clone(), name.clone());
            let forgotten = tokio::task::spawn_blocking(move || of_disk.replicas().forget_stored(&of)).await;
            if let Ok(Err(error)) = forgotten {
                tracing::warn!(collection = name, %error, "Failed to delete a cached selection");
            }
        }
    }

    /// Names and bytes of the selections on the disk.
    async fn stored(&self) -> Result<Vec<(String, usize)>, StorageError> {
        let data = self.0.means.data.clone();
        let read = tokio::task::spawn_blocking(move || data.replicas().stored(CACHED)).await;
        read.map_err(|error| StorageError::Unavailable(error.to_string()))?
    }

    async fn load_one(&self, name: &str, fits: bool) -> Result<(), Unloaded> {
        let (key, about) = Key::parse(name).ok_or("its name is not one of this version")?;
        if !fits {
            return Err("it does not fit into --max-cache-bytes".into());
        }
        let text = key.text();
        if self.0.entries.lock().len() >= SELECTIONS_MAX || self.0.entries.lock().contains_key(&text) {
            return Err("there are too many".into());
        }
        let kind = self.kind(&key, about.as_ref())?;
        let added = self.0.means.data.replicas().add(name, kind).await;
        let replica = added.map_err(|error| match error {
            StorageError::Corrupt(why) => Unloaded::Useless(why),
            other => Unloaded::Unread(other),
        })?;
        if let Some(about) = about {
            self.0.described.lock().await.insert(key.gvr().clone(), about);
        }
        let entry = Arc::new(Entry::new(key, replica, Key::is_of_node(name)));
        self.0.entries.lock().insert(text, entry.clone());
        self.follow(entry);
        Ok(())
    }

    /// The selection of `key`, if it is cached. Counts as a use.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        let entry = self.0.entries.lock().get(&key.text()).cloned()?;
        entry.touch();
        Some(entry).filter(|entry| !entry.is_gone())
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

    /// The selection of `key`, made for `reader` if it is not cached yet.
    ///
    /// # Errors
    /// Reason why it is not cached.
    pub async fn get_or_create(&self, key: &Key, reader: &Reader) -> Result<Arc<Entry>, String> {
        if let Some(entry) = self.get(key) {
            return Ok(entry);
        }
        let about = self.describe_kind(key, reader).await?;
        let (text, is_of_node) = (key.text(), *reader == Reader::Node);
        let name = key.name(about.as_ref(), is_of_node).ok_or("its name is too long")?;
        let kind = self.kind(key, about.as_ref())?;
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
            self.follow(entry.clone());
        }
        Ok(entry)
    }

    /// The complete selection that knows most about one object. Of several the one at the highest position; of those with
    /// the same the first by name. For the node only those that are filled with its rights: it may have no right to the
    /// others.
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
        entry.touch();
        Some(entry)
    }

    /// Selections that a write of the described object may change.
    #[must_use]
    pub fn touched_by(&self, info: &RequestInfo) -> Vec<Arc<Entry>> {
        let (gvr, entries) = (info.gvr(), self.0.entries.lock());
        let may_change = |entry: &&Arc<Entry>| {
            let namespace = info
                .namespace
                .as_deref()
                .filter(|_| entry.replica().collection().kind().namespaced);
            let name = info.name.as_deref();
            name.is_none_or(|name| entry.key().cover(&gvr, namespace, name) != Cover::No) && *entry.key().gvr() == gvr
        };
        entries.values().filter(may_change).cloned().collect()
    }

    /// Drops idle selections until `token` is cancelled.
    pub async fn run(self, token: CancellationToken) {
        while token
            .run_until_cancelled(tokio::time::sleep(SWEEP_EVERY))
            .await
            .is_some()
        {
            self.sweep().await;
        }
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
                if references.as_ref().is_none_or(|known| known.has(namespace, name)) {
                    entry.touch();
                    continue;
                }
            }
            self.drop_replica(entry.replica().name()).await;
            // A request in between may have made it again.
            let mut entries = self.0.entries.lock();
            entries.retain(|_, held| !Arc::ptr_eq(held, &entry));
        }
    }

    /// True if a selection had no reader for a long time.
    fn is_idle(&self, entry: &Entry) -> bool {
        let is_up = self.0.means.reach.borrow().is_up();
        if !is_up || entry.is_in_use() || entry.key().is_essential(&self.0.means.node) {
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

    async fn drop_replica(&self, name: &str) {
        let data = &self.0.means.data;
        tracing::debug!(collection = name, "Dropping an idle selection");
        if let Err(error) = data.replicas().remove(name).await {
            tracing::warn!(collection = name, %error, "Failed to delete a cached selection");
        }
        data.partial_lists().remove(name).await;
        data.sources().remove(name);
        data.failures().forget(name);
        data.failures().forget(&budget::failure(name));
    }

    fn require_place(&self, entries: &BTreeMap<String, Arc<Entry>>, is_of_node: bool) -> Result<(), String> {
        let failures = self.0.means.data.failures();
        let of_tokens = entries.values().filter(|entry| !entry.is_of_node()).count();
        let why = if entries.len() >= SELECTIONS_MAX {
            format!("{SELECTIONS_MAX} selections are cached: further ones go to the cloud")
        } else if !is_of_node && of_tokens >= SELECTIONS_OF_TOKENS_MAX {
            format!(
                "{SELECTIONS_OF_TOKENS_MAX} selections of callers with tokens are cached: further ones go to the cloud"
            )
        } else {
            failures.works(CACHE);
            return Ok(());
        };
        failures.refused(CACHE, &why);
        Err(why)
    }

    fn kind(&self, key: &Key, about: Option<&SharedResource>) -> Result<&'static ResourceKind, String> {
        match (key.built_in(), about) {
            (Some(kind), _) => Ok(kind),
            (None, Some(about)) => {
                let kind = self.0.kinds.keep(&about.custom_kind());
                kind.map_err(|error| error.to_string())
            }
            (None, None) => Err("its kind is unknown".to_owned()),
        }
    }

    /// Describes a kind that is not built in, by the cloud's discovery.
    async fn describe_kind(&self, key: &Key, reader: &Reader) -> Result<Option<SharedResource>, String> {
        if key.built_in().is_some() {
            return Ok(None);
        }
        let mut described = self.0.described.lock().await;
        if let Some(known) = described.get(key.gvr()) {
            return Ok(Some(known.clone()));
        }
        let path = group_path(key.gvr());
        let mut request = Request::new(empty());
        *request.uri_mut() = path.parse().map_err(|_| format!("{path:?} is not a path"))?;
        request.headers_mut().insert(ACCEPT, APPLICATION_JSON);
        let server = self.0.means.cloud.server();
        let client = match reader {
            Reader::Node => &server.streams,
            Reader::Token(token) => {
                request.headers_mut().insert(AUTHORIZATION, token.clone());
                &server.token.single
            }
        };
        let answer = client.request_bytes(request, DISCOVERY_TIMEOUT, DOCUMENT_MAX).await;
        let (status, _, body) = answer.map_err(|error| error.to_string())?;
        if status != StatusCode::OK {
            return Err(format!("GET {path}: {}", describe_answer(status, &body)));
        }
        let document = serde_json::from_slice(&body).map_err(|error| format!("GET {path}: {error}"))?;
        let found = discovered(&document, key.gvr())?;
        described.insert(key.gvr().clone(), found.clone());
        Ok(Some(found))
    }

    fn follow(&self, entry: Arc<Entry>) {
        self.0.made.notify_waiters();
        let means = &self.0.means;
        let gone = entry.replica().gone().clone();
        let is_essential = entry.key().is_essential(&means.node);
        let following = Following {
            entry,
            data: means.data.clone(),
            cloud: means.cloud.clone(),
            reach: means.reach.clone(),
            wake: means.wake.clone(),
            turns: (!is_essential).then(|| self.0.turns.clone()),
        };
        let token = means.tasks.token();
        means.tasks.spawn("follow-selection", async move {
            tokio::select! {
                () = token.cancelled() => {}
                () = gone.cancelled() => {}
                () = following.run() => {}
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
    use std::sync::atomic::{AtomicI64, Ordering};

    use futures_util::FutureExt as _;
    use http::HeaderValue;
    use yurt_apimachinery::watch::EventType;
    use yurt_apimachinery::{Object, ResourceVersion};
    use yurt_runtime::Clock;
    use yurt_storage::OnlyWriter as _;
    use yurt_storage::embedded::{Disk, OpenError};
    use yurt_test_support::TestDir;

    use super::*;
    use crate::replicas::disk::failing_reads::FailingReads;

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
            let folder = TestDir::new();
            let file = crate::replicas::disk::FILE;
            std::fs::copy(self._folder.path().join(file), folder.path().join(file)).unwrap();
            let data = PoolData::open_with(folder.path(), "", usize::MAX.into(), clock, disk).unwrap();
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
            assert_eq!(entries, stored);
            entries
        }

        async fn after(&self, minutes: u64) {
            tokio::time::advance(Duration::from_secs(60 * minutes)).await;
            self.cache.sweep().await;
        }
    }

    const MAPS: &str = "/api/v1/namespaces/shop/configmaps";
    const OWN_PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";

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
        assert!(failures.why(CACHE).is_some());
        assert!(held.cache.get_or_create(&next, &Reader::Node).await.is_ok());
        assert_eq!(failures.why(CACHE), None);
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

    #[tokio::test(start_paused = true)]
    async fn read_that_fails_once_costs_a_start_no_selection() {
        const NAMES: [&str; 3] = ["/api/v1/namespaces/a/pods", "/api/v1/namespaces/b/pods", "/api/v1/pods"];
        let held = Held::new();
        for name in NAMES {
            let entry = held.complete(name).await;
            let restart = |held: &mut Collection| held.restart(0, vec![large_pod()], ResourceVersion(10));
            entry.replica().collection().update(restart);
        }
        held.cache.0.means.data.replicas().persist(None).await.unwrap();
        let mut failures = 0;
        for fails_at in 0..8 {
            let (clock, hand) = Clock::fake();
            let reads_left = Arc::new(AtomicI64::new(-1));
            let again = held.restarted_on(clock.clone(), &|path| {
                let reads_left = reads_left.clone();
                let fails = move |_| {
                    (reads_left.fetch_sub(1, Ordering::SeqCst) == 0).then(|| io::Error::other("the bus was reset"))
                };
                Disk::open_on(path, FailingReads::open(path, fails), clock.clone())
            });
            reads_left.store(fails_at, Ordering::SeqCst);
            let advancing = async {
                loop {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    hand.advance(Duration::from_millis(100));
                }
            };
            tokio::select! {
                () = again.cache.load() => {}
                () = advancing => {}
            }
            let loaded: Vec<_> = again.cache.0.entries.lock().keys().cloned().collect();
            assert_eq!(loaded, NAMES, "read {fails_at} fails");
            failures += usize::from(reads_left.load(Ordering::SeqCst) < 0);
        }
        assert!(failures > 3, "{failures} reads failed");
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
