//! Resources that this node copies in addition to those of every pool. They may change while the hub runs. A file on
//! disk records them, so that a start without coordinator and cloud serves the same as the last run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{OwnedMutexGuard, watch};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::ResourceKind;
use yurt_pool_protocol::pool_scope::{Problem, SharedResource};
use yurt_runtime::pki::write_secret;
use yurt_storage::Replica;
use yurt_storage::kinds::Kinds;

use super::{POOL_SCOPE, PoolData};

/// Name of the file in the directory of the durable copy.
pub const FILE: &str = "pool-scope.json";
/// Time after which a copy that could not begin or end is tried again.
pub const SHARE_AGAIN: Duration = Duration::from_secs(5);
/// Name of the failure while the disk does not let a copy begin or end.
pub const SHARING: &str = "copies of shared resources";
/// Maximum number of additional resources, from the coordinator's command line and the operator's list together.
const SHARED_MAX: usize = 64;

/// The state of the scope.
#[derive(Debug)]
pub(super) struct Scope {
    file: PathBuf,
    kinds: Kinds,
    /// Resources copied now.
    shared: Mutex<Vec<SharedResource>>,
    /// Listed resources that are not copied, with reasons.
    problems: Mutex<Vec<Problem>>,
    /// Counts changes of `shared`.
    version: watch::Sender<u64>,
    /// Held by the present change, and by its write to the end.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// True during a write, and after a failed one.
    is_behind: Arc<AtomicBool>,
}

// === impl Scope ===

impl Scope {
    /// Reads the scope from `file`. If it cannot be read, the coordinator or the cloud provides the scope again.
    pub(super) fn open(file: PathBuf) -> Self {
        let shared = read(&file).unwrap_or_else(|error| {
            tracing::warn!(%error, path = %file.display(), "Failed to read the recorded pool-scope resources");
            Vec::new()
        });
        Self {
            file,
            kinds: Kinds::default(),
            shared: Mutex::new(sensible(&shared)),
            problems: Mutex::default(),
            version: watch::Sender::default(),
            turn: Arc::default(),
            is_behind: Arc::default(),
        }
    }

    /// Name and kind of each copied resource.
    pub(super) fn named(&self) -> Vec<(String, &'static ResourceKind)> {
        let shared = self.shared.lock().clone();
        let named = |one: &SharedResource| Some((one.name(), self.kinds.shared(&one.custom_kind()).ok()?));
        shared.iter().filter_map(named).collect()
    }

    /// Writes the record. The write ends also if the caller is gone, which is why it holds the `turn`.
    async fn save(&self, turn: OwnedMutexGuard<()>, shared: &[SharedResource]) -> std::io::Result<()> {
        let (file, text, is_behind) = (self.file.clone(), serde_json::to_vec(shared)?, self.is_behind.clone());
        let writing = tokio::task::spawn_blocking(move || {
            is_behind.store(true, Ordering::Relaxed);
            let written = write_secret(&file, text);
            is_behind.store(written.is_err(), Ordering::Relaxed);
            drop(turn);
            written
        });
        writing.await?
    }
}

fn read(file: &Path) -> std::io::Result<Vec<SharedResource>> {
    if !file.exists() {
        return Ok(Vec::new());
    }
    Ok(serde_json::from_slice(&std::fs::read(file)?)?)
}

/// Returns the resources of `wanted` that can be copied: each name once, without those of every pool.
fn sensible(wanted: &[SharedResource]) -> Vec<SharedResource> {
    let mut shared: Vec<SharedResource> = Vec::new();
    for one in wanted {
        let name = one.name();
        let is_new = !POOL_SCOPE.contains(&&*name) && shared.iter().all(|other| other.name() != name);
        if is_new && one.check().is_ok() && shared.len() < SHARED_MAX {
            shared.push(one.clone());
        }
    }
    shared
}

// === impl PoolData ===

impl PoolData {
    /// Resources copied in addition to those of every pool.
    #[must_use]
    pub fn shared(&self) -> Vec<SharedResource> {
        self.scope.shared.lock().clone()
    }

    /// Copies exactly these additional resources from now on. New replicas begin for new resources. Replicas of removed
    /// ones end: their data is deleted and their readers end. Returns the resources that the disk did not let begin or
    /// end; a repetition continues with them.
    pub async fn share(&self, wanted: &[SharedResource]) -> Vec<Problem> {
        let turn = self.scope.turn.clone().lock_owned().await;
        let was_behind = self.scope.is_behind.load(Ordering::Relaxed);
        let (mut wanted, held) = (sensible(wanted), self.shared());
        let is_missing = |one: &SharedResource| self.replicas().named(&one.name()).is_none();
        if wanted == held && !was_behind && !wanted.iter().any(is_missing) {
            self.failures().works(SHARING);
            return Vec::new();
        }
        let mut problems = Vec::new();
        let gone: Vec<_> = held.iter().filter(|one| !wanted.contains(one)).collect();
        for one in gone {
            let name = one.name();
            let removed = self.replicas().remove(&name).await;
            // A failed removal may have deleted rows of a partial list: a later save would not repeat them.
            self.partial_lists().remove(&name).await;
            if let Err(error) = removed {
                problems.push(Problem {
                    entry: name.clone(),
                    why: format!("its data could not be deleted: {error}"),
                });
                // It stays recorded, in the place of another version of it.
                wanted.retain(|other| other.name() != name);
                wanted.push(one.clone());
                continue;
            }
            tracing::info!(collection = name, "Resource is no longer pool-scope");
            self.sources().remove(&name);
            self.failures().forget(&name);
        }
        let mut has_begun = false;
        for one in wanted.iter().filter(|one| is_missing(one)) {
            let name = one.name();
            let added = match self.scope.kinds.shared(&one.custom_kind()) {
                Ok(kind) => self
                    .replicas()
                    .add(&name, kind)
                    .await
                    .map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match added {
                Ok(_) => {
                    has_begun = true;
                    tracing::info!(collection = name, "Resource is now pool-scope");
                }
                Err(why) => problems.push(Problem { entry: name, why }),
            }
        }
        if wanted != held || has_begun {
            *self.scope.shared.lock() = wanted.clone();
            self.scope.version.send_modify(|version| *version += 1);
        }
        // A call that finds the record behind repeats the write.
        if (wanted != held || was_behind)
            && let Err(error) = self.scope.save(turn, &wanted).await
            && !was_behind
        {
            tracing::warn!(%error, path = %self.scope.file.display(), "Failed to record the pool-scope resources");
        }
        let why = |Problem { entry, why }: &Problem| format!("{entry}: {why}");
        let failed = (!problems.is_empty()).then(|| problems.iter().map(why).collect::<Vec<_>>().join(", "));
        self.failures().tell(SHARING, failed);
        problems
    }

    /// Waits for the end of a write whose [`Self::share`] was cut.
    pub async fn shared_is_settled(&self) {
        drop(self.scope.turn.lock().await);
    }

    /// Records the listed resources that are not copied; logs them when they change.
    pub fn report_problems(&self, problems: Vec<Problem>) {
        let mut reported = self.scope.problems.lock();
        if *reported == problems {
            return;
        }
        for Problem { entry, why } in problems.iter().filter(|one| !reported.contains(one)) {
            tracing::warn!(entry, why, "Ignored an entry of ConfigMap yurt-hub-cfg");
        }
        *reported = problems;
    }

    /// The `scope` part of `/debug/state.json`.
    #[must_use]
    pub fn describe_scope(&self) -> Value {
        let names: Vec<String> = self.shared().iter().map(SharedResource::name).collect();
        json!({ "added": names, "problems": *self.scope.problems.lock() })
    }

    /// Calls `start` for every existing replica and every new one until `token` is cancelled. The caller's task for a
    /// replica has to end with the replica.
    pub async fn each_replica(self: Arc<Self>, token: CancellationToken, mut start: impl FnMut(Arc<Replica>)) {
        let mut changes = self.scope.version.subscribe();
        let mut known: Vec<Arc<Replica>> = Vec::new();
        loop {
            changes.borrow_and_update();
            known.retain(|replica| !replica.gone().is_cancelled());
            for replica in self.pool_replicas() {
                if !known.iter().any(|known| Arc::ptr_eq(known, &replica)) {
                    start(replica.clone());
                    known.push(replica);
                }
            }
            match token.run_until_cancelled(changes.changed()).await {
                Some(Ok(())) => {}
                _ => return,
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use futures_util::FutureExt as _;
    use yurt_apimachinery::ResourceVersion;
    use yurt_collection::Collection;
    use yurt_runtime::Clock;
    use yurt_storage::OnlyWriter as _;
    use yurt_test_support::TestDir;

    use super::*;
    use crate::replicas::disk::tests::filling;

    pub(crate) fn widget(kind: &str) -> SharedResource {
        SharedResource {
            group: "example.com".into(),
            version: "v1".into(),
            resource: format!("{}s", kind.to_lowercase()),
            singular: kind.to_lowercase(),
            kind: kind.into(),
            list_kind: format!("{kind}List"),
            namespaced: true,
        }
    }

    #[test]
    fn nobody_can_make_the_hub_copy_secrets_or_the_same_twice() {
        let secrets = SharedResource {
            group: String::new(),
            resource: "secrets".into(),
            ..widget("Secret")
        };
        let services = SharedResource {
            group: String::new(),
            ..widget("Service")
        };
        let pods = SharedResource {
            group: String::new(),
            ..widget("Pod")
        };
        let all = [widget("A"), secrets, services, pods, widget("A"), widget("B")];
        let names: Vec<String> = sensible(&all).iter().map(SharedResource::name).collect();
        assert_eq!(names, ["as.example.com", "bs.example.com"]);
        let many: Vec<_> = (0..100).map(|n| widget(&format!("K{n}"))).collect();
        assert_eq!(sensible(&many).len(), SHARED_MAX);
    }

    fn data(folder: &TestDir) -> PoolData {
        PoolData::open(folder.path(), "p", usize::MAX, Clock::system()).unwrap()
    }

    #[tokio::test]
    async fn write_that_is_cut_ends_before_the_scope_is_settled() {
        let folder = TestDir::new();
        let data = data(&folder);
        let turn = data.scope.turn.clone().lock_owned().await;
        // On a busy machine the write may have ended before the first poll.
        let _ = data.scope.save(turn, &[widget("A")]).now_or_never();
        data.shared_is_settled().await;
        assert_eq!(*Scope::open(folder.path().join(FILE)).shared.lock(), [widget("A")]);
    }

    #[tokio::test]
    async fn record_that_the_disk_did_not_take_is_written_again() {
        let folder = TestDir::new();
        let data = data(&folder);
        let file = folder.path().join(FILE);
        std::fs::create_dir(&file).unwrap();
        data.share(&[widget("A")]).await;
        assert_eq!(data.shared(), [widget("A")]);
        std::fs::remove_dir(&file).unwrap();
        data.share(&[widget("A")]).await;
        assert_eq!(*Scope::open(file).shared.lock(), [widget("A")]);
    }

    /// The disk fails while a resource comes, and while one goes.
    #[tokio::test]
    async fn copy_that_the_disk_did_not_let_begin_or_end_is_tried_again() {
        let (folder, (clock, hand)) = (TestDir::new(), Clock::fake());
        let is_full = Arc::new(AtomicBool::new(false));
        let disk = filling(is_full.clone(), clock.clone());
        let data = PoolData::open_with(folder.path(), "p", usize::MAX.into(), clock, &disk).unwrap();
        let data = Arc::new(data);
        let fail = async || {
            is_full.store(true, Ordering::Relaxed);
            let services = data.replicas().named("services").unwrap();
            let at = ResourceVersion(services.collection().read(Collection::position).0 + 1);
            services.collection().update(|held| held.restart(0, Vec::new(), at));
            data.persist_due().await;
        };
        let recover = || {
            is_full.store(false, Ordering::Relaxed);
            hand.advance(Duration::from_secs(30));
        };
        let is_copied = || data.pool_replicas().any(|one| one.name() == "as.example.com");
        let mut version = data.scope.version.subscribe();
        fail().await;
        assert_eq!(data.share(&[widget("A")]).await.len(), 1);
        assert!(!is_copied() && data.failures().why(SHARING).is_some());
        recover();
        version.mark_unchanged();
        assert_eq!(data.share(&[widget("A")]).await, []);
        assert!(is_copied() && version.has_changed().unwrap(), "it is followed");
        assert_eq!(data.failures().why(SHARING), None);

        fail().await;
        assert_eq!(data.share(&[]).await.len(), 1);
        assert!(is_copied() && data.shared() == [widget("A")]);
        recover();
        assert_eq!(data.share(&[]).await, []);
        assert!(!is_copied() && data.shared().is_empty());
    }

    #[test]
    fn file_that_names_pods_makes_nobody_copy_them() {
        let folder = TestDir::new();
        let pods = SharedResource {
            group: String::new(),
            ..widget("Pod")
        };
        let remembered = serde_json::to_vec(&[pods, widget("A")]).unwrap();
        let file = folder.write(FILE, remembered);
        let scope = Scope::open(file);
        assert_eq!(*scope.shared.lock(), [widget("A")]);
        let names: Vec<_> = scope.named().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["as.example.com"]);
    }
}
