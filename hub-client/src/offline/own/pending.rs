//! Statuses that the kubelet wrote without the cloud, one per object, on the disk before they are answered.
//!
//! An entry holds the object's status before the first such write (base) and the object after the last one (local).
//! Writes merge into their entry, so the number of entries is that of the node's objects. Bounded: a further object
//! gets
//! 503. All functions that change something block.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::{ResourceVersion, Status, meta};

use super::local_pods::Published;
use super::merge::part;
use super::write::{self, KnownObject, OwnKey, Write};
use crate::failures::Failures;
use crate::filter::context::LocalPods;
use crate::health::CloudReach;
use crate::offline::record::Record;
use crate::offline::reply::RETRY_AFTER;
use crate::offline::shelf::{Limits, Share, Shelf, ShelfError};

/// Name of the folder below the cache folder.
pub const FOLDER: &str = "local-writes";
/// Maximum number of entries; a kubelet runs 110 pods by default and 500 at most in practice.
const ENTRIES_MAX: usize = 1024;
/// Maximum bytes of all entries.
const BYTES_MAX: usize = 16 << 20;
/// Limits of the folder, above those of the entries: no entry is evicted.
const LIMITS: Limits = Limits {
    file: 8 << 20,
    share_of: |_| Share {
        name: "local writes",
        records: 2 * ENTRIES_MAX,
        bytes: 4 * BYTES_MAX as u64,
    },
};
/// Failure key: the disk does not take an entry.
pub(crate) const DISK: &str = "local writes";
/// Fact of a record: the entry's key.
const KEY: &str = "object";

/// The entries.
pub struct Pending {
    shelf: Shelf,
    // Leaf lock: never held during I/O.
    entries: Mutex<BTreeMap<OwnKey, Entry>>,
    /// Held during a change and its write: files and entries change in the same order.
    changing: Mutex<()>,
    count: AtomicUsize,
    /// Signals a new entry.
    added: Notify,
    /// Entries that the disk did not take, or did not delete. Leaf lock.
    unsaved: Mutex<BTreeSet<OwnKey>>,
    /// Signals one of them.
    refused: Notify,
    pods: Published,
    failures: Failures,
}

/// An entry, encoded.
#[derive(Clone)]
struct Entry {
    /// Changes with every write.
    revision: u64,
    body: Bytes,
}

/// Content of an entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocalState {
    /// [`part`] of the object before the first write.
    pub base: Value,
    /// The object after the last write.
    pub local: Value,
}

// === impl Pending ===

impl Pending {
    /// Opens the folder with the entries of earlier runs.
    #[must_use]
    pub fn open(cache: &std::path::Path, failures: Failures) -> Self {
        let folder: PathBuf = cache.join(FOLDER);
        let shelf = Shelf::open(folder, LIMITS);
        let pods = Published::default();
        let entry = |record: Record| {
            let key = OwnKey::parse(record.facts[KEY].as_str()?)?;
            let state: LocalState = serde_json::from_slice(&record.body).ok()?;
            pods.wrote(&key, &state.local);
            let body = record.body;
            Some((key, Entry { revision: 1, body }))
        };
        let entries: BTreeMap<_, _> = shelf.all().filter_map(entry).collect();
        Self {
            shelf,
            count: AtomicUsize::new(entries.len()),
            entries: Mutex::new(entries),
            changing: Mutex::default(),
            added: Notify::new(),
            unsaved: Mutex::default(),
            refused: Notify::new(),
            pods,
            failures,
        }
    }

    /// Applies a write of the kubelet of `node`. Returns the object after it, once it is on the disk. The latest state
    /// that is `known` counts if there is no entry, or if the entry is about a former object of that name; the listed
    /// one for the conditions in a patch of the Node ([`write::target`]). A disk that fails or is full does not refuse
    /// the write: it is in memory then, and shown as a failure.
    ///
    /// # Errors
    /// As [`write::apply`]; 503 for an object that is not known, and above the limits.
    pub fn accept(&self, key: &OwnKey, node: &str, known: KnownObject, write: Write<'_>) -> Result<Value, Status> {
        let KnownObject { latest: held, listed } = known;
        key.check_owner(node, held.as_ref())?;
        let _one = self.changing.lock();
        let entry = self.entries.lock().get(key).cloned();
        let revision = entry.as_ref().map_or(0, |entry| entry.revision);
        let state = match (entry.as_ref().and_then(Entry::state), &held) {
            (Some(state), Some(held)) if is_successor(&state.local, held) => LocalState::of(held.clone()),
            (Some(state), _) => state,
            (None, Some(held)) => LocalState::of(held.clone()),
            (None, None) => {
                let why = format!(
                    "the cloud is unreachable, and this node holds no copy of {}",
                    key.path()
                );
                return Err(Status::service_unavailable(why, RETRY_AFTER));
            }
        };
        let target = write::target(key, &state.local, listed.as_ref(), write);
        let new = write::apply(key, node, &target, write)?;
        if new == state.local {
            return Ok(new);
        }
        let changed = LocalState {
            base: state.base,
            local: new.clone(),
        };
        self.store(key, revision + 1, &changed)?;
        self.pods.wrote(key, &new);
        self.added.notify_one();
        Ok(new)
    }

    /// Returns the object after the last local write.
    #[must_use]
    pub fn local(&self, key: &OwnKey) -> Option<Value> {
        Some(self.state(key)?.1.local)
    }

    /// Returns the revision and content of an entry.
    #[must_use]
    pub fn state(&self, key: &OwnKey) -> Option<(u64, LocalState)> {
        let entry = self.entries.lock().get(key).cloned()?;
        Some((entry.revision, entry.state()?))
    }

    /// Ends an entry whose content at `revision` the cloud has since the RV `known_at` of the object, or will never
    /// take. If the kubelet wrote since, only that later difference stays. An entry about a later object of that name
    /// stays as it is.
    pub fn settle(&self, key: &OwnKey, revision: u64, sent: &LocalState, known_at: Option<ResourceVersion>) {
        let _one = self.changing.lock();
        let Some((now, state)) = self.state(key) else { return };
        if meta::text(&state.local, "uid") != meta::text(&sent.local, "uid") {
            return;
        }
        if now != revision {
            let rest = LocalState {
                base: part(&sent.local),
                local: state.local,
            };
            // It was within the limits before.
            let _ = self.store(key, now, &rest);
            return;
        }
        match known_at {
            Some(known_at) => self.pods.sent(key, known_at),
            None => self.pods.dropped(key),
        }
        self.entries.lock().remove(key);
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.delete(key);
    }

    /// Deletes the file of an ended entry. One that stays is sent once more after a restart; the kubelet corrects what
    /// it wrote since.
    fn delete(&self, key: &OwnKey) {
        let deleted = self.shelf.remove(&key.to_string());
        self.record(key, deleted.map_err(ShelfError::Disk));
    }

    /// Records whether the disk has the present state of an object.
    fn record(&self, key: &OwnKey, done: Result<(), ShelfError>) {
        let mut unsaved = self.unsaved.lock();
        match done {
            Ok(()) => {
                unsaved.remove(key);
                if unsaved.is_empty() {
                    self.failures.works(DISK);
                }
            }
            Err(error) => {
                unsaved.insert(key.clone());
                self.refused.notify_one();
                self.failures.refused(DISK, &error.to_string());
            }
        }
    }

    /// The first key above `last`, else the first one, of those that are not under way.
    #[must_use]
    pub fn next(&self, last: Option<&OwnKey>, is_under_way: impl Fn(&OwnKey) -> bool) -> Option<OwnKey> {
        let entries = self.entries.lock();
        let keys = || entries.keys().filter(|key| !is_under_way(key));
        let above = last.and_then(|last| keys().find(|key| *key > last));
        above.or_else(|| keys().next()).cloned()
    }

    /// True if there is an entry for `key`.
    #[must_use]
    pub fn contains(&self, key: &OwnKey) -> bool {
        !self.is_empty() && self.entries.lock().contains_key(key)
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// True if there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names of the objects with an entry.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.entries.lock().keys().map(ToString::to_string).collect()
    }

    /// Pods whose status the cloud's endpoints may not show yet.
    #[must_use]
    pub fn local_pods(&self) -> watch::Receiver<Arc<LocalPods>> {
        self.pods.subscribe()
    }

    /// True if the cloud has the last local status of this pod, and its endpoints may not show it yet.
    #[must_use]
    pub fn awaits_answer(&self, key: &OwnKey) -> bool {
        self.pods.awaits_answer(key)
    }

    /// The cloud answered a later status of such a pod with this object.
    pub fn rewrote(&self, key: &OwnKey, object: &Value) {
        self.pods.rewrote(key, object);
    }

    /// Ends the publication of pods in time, until `token` is cancelled.
    pub async fn expire_local_pods(&self, reach: watch::Receiver<CloudReach>, token: CancellationToken) {
        self.pods.expire(reach, token).await;
    }

    /// Resolves once there are more entries than `count`.
    pub async fn more_than(&self, count: usize) {
        while self.len() <= count {
            self.added.notified().await;
        }
    }

    /// Resolves once the disk did not take an entry, or did not delete one.
    pub async fn any_unsaved(&self) {
        while self.unsaved.lock().is_empty() {
            self.refused.notified().await;
        }
    }

    /// Writes the entries that the disk did not take before, and deletes those that it kept. Blocks.
    pub fn save_unsaved(&self) {
        let unsaved = self.unsaved.lock().clone();
        for key in &unsaved {
            let _one = self.changing.lock();
            match self.state(key) {
                // It was within the limits before.
                Some((revision, state)) => drop(self.store(key, revision, &state)),
                None => self.delete(key),
            }
        }
    }

    /// Deletes all entries: the cloud is another cluster.
    pub fn clear(&self) {
        let _one = self.changing.lock();
        self.entries.lock().clear();
        self.unsaved.lock().clear();
        self.count.store(0, Ordering::Relaxed);
        self.pods.clear();
        self.shelf.clear();
    }

    fn store(&self, key: &OwnKey, revision: u64, state: &LocalState) -> Result<(), Status> {
        let body = Bytes::from(serde_json::to_vec(state).unwrap_or_default());
        {
            let mut entries = self.entries.lock();
            let others = entries.iter().filter(|(other, _)| *other != key);
            let (count, bytes) = others.fold((0, 0), |(count, bytes), (_, entry)| {
                (count + 1, bytes + entry.body.len())
            });
            if count + 1 > ENTRIES_MAX || bytes + body.len() > BYTES_MAX {
                let why = format!(
                    "the cloud is unreachable, and this node keeps statuses of at most {ENTRIES_MAX} objects and {BYTES_MAX} bytes"
                );
                return Err(Status::service_unavailable(why, RETRY_AFTER));
            }
            let body = body.clone();
            entries.insert(key.clone(), Entry { revision, body });
            self.count.store(entries.len(), Ordering::Relaxed);
        }
        let text = key.to_string();
        let record = Record {
            facts: json!({KEY: text}),
            key: text,
            body,
        };
        self.record(key, self.shelf.put(&record).map(drop));
        Ok(())
    }
}

// === impl Entry ===

impl Entry {
    fn state(&self) -> Option<LocalState> {
        serde_json::from_slice(&self.body).ok()
    }
}

// === impl LocalState ===

impl LocalState {
    fn of(held: Value) -> Self {
        Self {
            base: part(&held),
            local: held,
        }
    }
}

/// True if `held` is a later object of the same name than `local`.
fn is_successor(local: &Value, held: &Value) -> bool {
    let version = |object: &Value| meta::text(object, "resourceVersion").parse::<u64>().unwrap_or(0);
    meta::text(local, "uid") != meta::text(held, "uid") && version(held) > version(local)
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_TYPE;
    use http::{HeaderMap, Method};
    use yurt_runtime::Clock;
    use yurt_test_support::TestDir;

    use super::*;

    fn open(folder: &TestDir) -> Pending {
        Pending::open(folder.path(), Failures::new(Clock::fake().0))
    }

    fn pod(uid: &str, version: u64) -> Value {
        json!({"metadata": {"namespace": "shop", "name": "web", "uid": uid, "resourceVersion": version.to_string()},
            "spec": {"nodeName": "n1"}, "status": {"phase": "Pending", "message": "m"}})
    }

    fn key() -> OwnKey {
        OwnKey::parse("shop/web").unwrap()
    }

    fn merge(pending: &Pending, held: Option<Value>, patch: &Value) -> Result<Value, u16> {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, "application/merge-patch+json".parse().unwrap())]);
        let body = patch.to_string().into();
        let write = Write {
            method: &Method::PATCH,
            headers: &headers,
            body: &body,
        };
        pending
            .accept(&key(), "n1", held.into(), write)
            .map_err(|status| status.code())
    }

    fn running() -> Value {
        json!({"status": {"phase": "Running"}})
    }

    #[test]
    fn writes_merge_into_one_entry_that_outlives_the_process() {
        let folder = TestDir::new();
        let pending = open(&folder);
        merge(&pending, Some(pod("u1", 7)), &running()).unwrap();
        let last = merge(&pending, Some(pod("u1", 9)), &json!({"status": {"podIP": "10.0.0.7"}})).unwrap();
        let again = open(&folder);
        assert_eq!((again.len(), again.local(&key())), (1, Some(last.clone())));
        assert_eq!(
            last["status"],
            json!({"phase": "Running", "message": "m", "podIP": "10.0.0.7"})
        );
        let (_, state) = again.state(&key()).unwrap();
        assert_eq!(state.base, part(&pod("u1", 7)), "the base is that of the first write");
    }

    /// kubelet `tryUpdateNodeStatus`: a patch is the difference between the status and the Node that the kubelet lists.
    #[test]
    fn report_of_the_node_replaces_the_one_before_it_and_nothing_else() {
        let folder = TestDir::new();
        let pending = open(&folder);
        let key = OwnKey::node("n1").unwrap();
        let held = json!({"metadata": {"name": "n1", "uid": "u1", "resourceVersion": "7"}, "status": {"conditions": [
            {"type": "DiskPressure", "status": "False", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}});
        let accept = |patch: Value| {
            let strategic = "application/strategic-merge-patch+json".parse().unwrap();
            let write = Write {
                method: &Method::PATCH,
                headers: &HeaderMap::from_iter([(CONTENT_TYPE, strategic)]),
                body: &patch.to_string().into(),
            };
            pending.accept(&key, "n1", Some(held.clone()).into(), write).unwrap()
        };
        let report = |condition: Value| json!({"status": {"conditions": [condition]}});
        accept(json!({"metadata": {"labels": {"zone": "a"}}, "status": {"phase": "Running"}}));
        accept(report(json!({"type": "Autonomy", "status": "True"})));
        let pressure = json!({"type": "DiskPressure", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:01Z"});
        let other = accept(report(json!({"type": "PIDPressure", "status": "True"})));
        let reported = accept(report(pressure.clone()));
        let of = |node: &Value, name: &str| {
            let conditions = node["status"]["conditions"].as_array().unwrap().iter();
            conditions.clone().find(|condition| condition["type"] == name).cloned()
        };
        assert_eq!(of(&reported, "DiskPressure"), Some(pressure));
        let last = accept(report(
            json!({"type": "DiskPressure", "lastHeartbeatTime": "2026-01-01T00:00:02Z"}),
        ));
        let back = json!({"type": "DiskPressure", "status": "False", "lastHeartbeatTime": "2026-01-01T00:00:02Z"});
        assert_eq!(of(&last, "DiskPressure"), Some(back));
        for kept in ["Autonomy", "PIDPressure"] {
            assert_eq!(of(&last, kept), of(&other, kept), "{kept}");
        }
        assert_eq!(
            (&last["metadata"]["labels"]["zone"], &last["status"]["phase"]),
            (&json!("a"), &json!("Running"))
        );
    }

    #[test]
    fn write_without_a_held_object_is_not_accepted() {
        let folder = TestDir::new();
        let pending = open(&folder);
        assert_eq!(merge(&pending, None, &running()), Err(503));
        let mut other = pod("u1", 7);
        other["spec"]["nodeName"] = "n2".into();
        assert_eq!(merge(&pending, Some(other), &running()), Err(403));
        assert!(pending.is_empty() && open(&folder).is_empty());
    }

    #[test]
    fn write_that_changes_nothing_leaves_no_entry() {
        let folder = TestDir::new();
        let pending = open(&folder);
        merge(&pending, Some(pod("u1", 7)), &json!({"status": {"phase": "Pending"}})).unwrap();
        assert!(pending.is_empty());
    }

    #[test]
    fn new_object_of_the_same_name_begins_anew() {
        let folder = TestDir::new();
        let pending = open(&folder);
        merge(&pending, Some(pod("u1", 7)), &running()).unwrap();
        merge(&pending, Some(pod("u2", 9)), &json!({"status": {"reason": "r"}})).unwrap();
        let (_, state) = pending.state(&key()).unwrap();
        assert_eq!(
            (&state.local["metadata"]["uid"], &state.local["status"]["phase"]),
            (&json!("u2"), &json!("Pending"))
        );
        assert_eq!(state.base, part(&pod("u2", 9)));
    }

    #[test]
    fn only_what_was_sent_is_settled() {
        let folder = TestDir::new();
        let pending = open(&folder);
        merge(&pending, Some(pod("u1", 7)), &running()).unwrap();
        let (revision, sent) = pending.state(&key()).unwrap();
        let later = merge(&pending, None, &json!({"status": {"podIP": "10.0.0.7"}})).unwrap();
        pending.settle(&key(), revision, &sent, None);
        let (revision, rest) = open(&folder)
            .state(&key())
            .map(|(_, rest)| (pending.state(&key()).unwrap().0, rest))
            .unwrap();
        assert_eq!((&rest.base, &rest.local), (&part(&sent.local), &later));
        pending.settle(&key(), revision, &rest, None);
        assert!(pending.is_empty() && open(&folder).is_empty());
    }

    #[test]
    fn answer_about_a_former_object_leaves_the_status_of_its_successor() {
        for writes in [1, 2] {
            let folder = TestDir::new();
            let pending = open(&folder);
            for number in 0..writes {
                let status = json!({"status": {"phase": "Running", "message": number.to_string()}});
                merge(&pending, Some(pod("u1", 7)), &status).unwrap();
            }
            let (revision, sent) = pending.state(&key()).unwrap();
            let accepted = merge(&pending, Some(pod("u2", 9)), &running()).unwrap();
            pending.settle(&key(), revision, &sent, None);
            let (_, kept) = open(&folder).state(&key()).expect("the write was answered");
            assert_eq!((kept.base, kept.local), (part(&pod("u2", 9)), accepted), "{writes}");
        }
    }

    #[test]
    fn failing_disk_keeps_the_write_in_memory_and_stores_it_once_it_works() {
        let folder = TestDir::new();
        std::fs::write(folder.path().join(FOLDER), "a file where the folder would be").unwrap();
        let pending = open(&folder);
        merge(&pending, Some(pod("u1", 7)), &running()).unwrap();
        assert_eq!(pending.local(&key()).unwrap()["status"]["phase"], "Running");
        assert!(pending.failures.why(DISK).is_some());
        pending.save_unsaved();
        assert!(pending.failures.why(DISK).is_some() && open(&folder).is_empty());
        std::fs::remove_file(folder.path().join(FOLDER)).unwrap();
        pending.save_unsaved();
        assert_eq!(pending.failures.why(DISK), None);
        assert_eq!(open(&folder).local(&key()), pending.local(&key()));
    }

    #[test]
    fn entry_that_the_cloud_has_is_deleted_once_the_disk_works() {
        let folder = TestDir::new();
        let pending = open(&folder);
        merge(&pending, Some(pod("u1", 7)), &running()).unwrap();
        let (revision, sent) = pending.state(&key()).unwrap();
        let file = std::fs::read_dir(folder.path().join(FOLDER)).unwrap().next().unwrap();
        let (file, aside) = (file.unwrap().path(), folder.path().join("aside"));
        std::fs::rename(&file, &aside).unwrap();
        std::fs::create_dir(&file).unwrap();
        pending.settle(&key(), revision, &sent, Some(ResourceVersion(9)));
        assert!(pending.is_empty() && pending.failures.why(DISK).is_some());
        pending.save_unsaved();
        assert!(pending.failures.why(DISK).is_some());
        std::fs::remove_dir(&file).unwrap();
        std::fs::rename(&aside, &file).unwrap();
        pending.save_unsaved();
        assert_eq!(pending.failures.why(DISK), None);
        assert!(open(&folder).is_empty(), "a restart would send it again");
    }

    #[test]
    fn entries_are_bounded() {
        let folder = TestDir::new();
        let pending = open(&folder);
        let large = json!({"status": {"message": "x".repeat(1 << 20)}});
        let names: Vec<OwnKey> = (0..20)
            .map(|number| OwnKey::parse(&format!("shop/web-{number}")).unwrap())
            .collect();
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, "application/merge-patch+json".parse().unwrap())]);
        let body = large.to_string().into();
        let write = Write {
            method: &Method::PATCH,
            headers: &headers,
            body: &body,
        };
        let accept = |key: &OwnKey| {
            let mut held = pod("u1", 7);
            held["metadata"]["name"] = key.name.as_str().into();
            pending
                .accept(key, "n1", Some(held).into(), write)
                .map_err(|status| status.code())
        };
        let results: Vec<_> = names.iter().map(|key| accept(key).err()).collect();
        assert_eq!((results[0], results[19]), (None, Some(503)));
        assert_eq!(open(&folder).len(), pending.len());
    }
}
