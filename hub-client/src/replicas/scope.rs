//! Which resources this node copies beside those every pool shares: they come and go while the hub runs, and are
//! remembered on disk, so that a start without coordinator and cloud serves what the last one did.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::ResourceKind;
use yurt_apimachinery::pool_scope::{Problem, SharedResource};
use yurt_storage::Replica;
use yurt_storage::kinds::Kinds;

use super::{POOL_SCOPE, PoolData};

/// Name of the file in the folder of the durable copy.
pub const FILE: &str = "pool-scope.json";
/// Resources copied in addition, at most, whoever asks: those of a coordinator's command line and those of the list.
const SHARED_MAX: usize = 64;

/// The state of the scope.
#[derive(Debug)]
pub(super) struct Scope {
    file: PathBuf,
    kinds: Kinds,
    /// What is copied now.
    shared: Mutex<Vec<SharedResource>>,
    /// What an operator listed and is not copied.
    problems: Mutex<Vec<Problem>>,
    /// Counts changes of `shared`.
    version: watch::Sender<u64>,
    /// One change at a time.
    changing: tokio::sync::Mutex<()>,
}

// === impl Scope ===

impl Scope {
    /// The scope that `file` remembers. A file that cannot be read is told anew by the coordinator or the cloud.
    pub(super) fn open(file: PathBuf) -> Self {
        let shared = read(&file).unwrap_or_else(|error| {
            tracing::warn!(%error, path = %file.display(), "Pool-scope resources are not remembered");
            Vec::new()
        });
        Self {
            file,
            kinds: Kinds::default(),
            shared: Mutex::new(sensible(&shared)),
            problems: Mutex::default(),
            version: watch::Sender::default(),
            changing: tokio::sync::Mutex::default(),
        }
    }

    /// Name and kind of what is copied.
    pub(super) fn named(&self) -> Vec<(String, &'static ResourceKind)> {
        let shared = self.shared.lock().clone();
        let named = |one: &SharedResource| Some((one.name(), self.kinds.shared(one).ok()?));
        shared.iter().filter_map(named).collect()
    }

    /// Remembers nothing for the next start.
    pub(super) fn forget(&self) {
        if let Err(error) = std::fs::remove_file(&self.file) {
            tracing::debug!(%error, path = %self.file.display(), "No pool-scope resources to forget");
        }
    }

    fn save(&self, shared: &[SharedResource]) -> std::io::Result<()> {
        let temporary = self.file.with_extension("tmp");
        std::fs::write(&temporary, serde_json::to_vec(shared)?)?;
        std::fs::rename(&temporary, &self.file)
    }
}

fn read(file: &Path) -> std::io::Result<Vec<SharedResource>> {
    if !file.exists() {
        return Ok(Vec::new());
    }
    Ok(serde_json::from_slice(&std::fs::read(file)?)?)
}

/// What of `wanted` can be copied: each name once, and none of those that every pool shares.
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
    /// What is copied beside what every pool shares.
    #[must_use]
    pub fn shared(&self) -> Vec<SharedResource> {
        self.scope.shared.lock().clone()
    }

    /// Copies these resources from now on and no others. Replicas of new ones begin; those of others are given up: their
    /// readers end and their data is deleted.
    pub async fn share(&self, wanted: &[SharedResource]) {
        let _one = self.scope.changing.lock().await;
        let (wanted, held) = (sensible(wanted), self.shared());
        if wanted == held {
            return;
        }
        for one in held.iter().filter(|one| !wanted.contains(one)) {
            let name = one.name();
            tracing::info!(collection = name, "Not pool-scope any more");
            if let Err(error) = self.replicas().remove(&name).await {
                tracing::warn!(collection = name, %error, "Data of a resource that is not shared any more is left on the disk");
            }
            self.drafts().remove(&name).await;
            self.states.lock().remove(&name);
            self.troubles().forget(&name);
        }
        for one in wanted.iter().filter(|one| !held.contains(one)) {
            let name = one.name();
            let added = match self.scope.kinds.shared(one) {
                Ok(kind) => self
                    .replicas()
                    .add(&name, kind)
                    .await
                    .map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match added {
                Ok(_) => tracing::info!(collection = name, "Pool-scope from now on"),
                Err(error) => tracing::error!(collection = name, error, "Resource is not copied"),
            }
        }
        if let Err(error) = self.scope.save(&wanted) {
            tracing::warn!(%error, path = %self.scope.file.display(), "Pool-scope resources are not remembered");
        }
        *self.scope.shared.lock() = wanted;
        self.scope.version.send_modify(|version| *version += 1);
    }

    /// Says what an operator listed and is not copied; in the log when that changes.
    pub fn report_problems(&self, problems: Vec<Problem>) {
        let mut reported = self.scope.problems.lock();
        if *reported == problems {
            return;
        }
        for Problem { entry, why } in problems.iter().filter(|one| !reported.contains(one)) {
            tracing::warn!(entry, why, "Entry of ConfigMap yurt-hub-cfg is not used");
        }
        *reported = problems;
    }

    /// The `scope` part of `/debug/state.json`.
    #[must_use]
    pub fn describe_scope(&self) -> Value {
        let names: Vec<String> = self.shared().iter().map(SharedResource::name).collect();
        json!({ "added": names, "problems": *self.scope.problems.lock() })
    }

    /// Calls `start` for every replica there is and for every one that comes, until `token` is cancelled. What was started
    /// for one has to end when it is gone.
    pub async fn each_replica(self: Arc<Self>, token: CancellationToken, mut start: impl FnMut(Arc<Replica>)) {
        let mut changes = self.scope.version.subscribe();
        let mut known: Vec<Arc<Replica>> = Vec::new();
        loop {
            changes.borrow_and_update();
            known.retain(|replica| !replica.gone().is_cancelled());
            for replica in self.replicas().iter() {
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
    use yurt_test_support::TestDir;

    use super::*;

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
