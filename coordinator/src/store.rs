//! All durable state: own objects and the durable copies of pool data in one file, or both in etcd.

use std::path::Path;
use std::sync::Arc;

use yurt_apimachinery::ResourceKind;
use yurt_pool_protocol::members;
use yurt_runtime::{Clock, TaskGroup};
use yurt_storage::backend::Sink;
use yurt_storage::embedded::Disk;
use yurt_storage::embedded::replicas::ReplicaStore;
use yurt_storage::{Embedded, Etcd, Replicas, Storage, StorageError};

use crate::StartError;
use crate::config::{Config, Profile};
use crate::feed::collection::{PoolCollection, PoolCollections};

/// Name of the store's file in the data folder.
const FILE: &str = "store.redb";

/// The open stores.
pub(crate) struct Stores {
    storage: Arc<dyn Storage>,
    /// The disk below the embedded store.
    disk: Option<Arc<Disk>>,
    replicas: Arc<Replicas>,
    /// Pool-scope collections and the members, by name.
    collections: Arc<PoolCollections>,
    profile: Profile,
}

// === impl Stores ===

impl Stores {
    /// Opens the store: in the data folder, or in etcd, which may take a while. The pool-scope kinds are the built-in
    /// ones of `config` and `pool_custom`. Its tasks run in `tasks`.
    ///
    /// # Errors
    /// The file or flag, and its fault.
    pub(crate) async fn open(
        config: &Config,
        pool_custom: impl IntoIterator<Item = &'static ResourceKind>,
        clock: Clock,
        tasks: &TaskGroup,
    ) -> Result<Self, StartError> {
        let pool = config.pool_kinds().iter().copied().chain(pool_custom);
        let named = |kind: &'static ResourceKind| (kind.group_resource().to_string(), kind);
        let mut kinds: Vec<(String, &'static ResourceKind)> = pool.map(named).collect();
        kinds.push((members::COLLECTION.to_owned(), members::kind()));
        if config.etcd.is_used() {
            let etcd = config.etcd.store(config.profile.space(), &config.data_dir);
            let etcd = Etcd::connect(etcd, tasks).await;
            let etcd = etcd.map_err(|error| StartError::new(error.to_string()))?;
            create_folder(&config.data_dir)?;
            let etcd: Arc<dyn Storage> = Arc::new(etcd);
            let replicas = Replicas::shared(&kinds, etcd.clone());
            return Ok(Self::new(config.profile, etcd, None, replicas));
        }
        create_folder(&config.data_dir)?;
        let path = config.data_dir.join(FILE);
        let in_store = |error: StorageError| StartError::new(format!("{}: {error}", path.display()));
        let embedded = Embedded::open(&path, clock, config.profile.space())
            .map_err(|error| StartError::new(format!("--data-dir: {error}")))?;
        let disk = embedded.disk();
        let replica_store = ReplicaStore::open(disk.clone()).map_err(in_store)?;
        let replicas = Replicas::open(&kinds, Some(replica_store)).map_err(in_store)?;
        Ok(Self::new(config.profile, Arc::new(embedded), Some(disk), replicas))
    }

    fn new(profile: Profile, storage: Arc<dyn Storage>, disk: Option<Arc<Disk>>, replicas: Replicas) -> Self {
        Self {
            collections: Arc::new(PoolCollections::new(replicas.iter())),
            profile,
            disk,
            storage,
            replicas: Arc::new(replicas),
        }
    }

    /// Loads own objects and publishes every commit from now on.
    ///
    /// # Errors
    /// The error of the store.
    pub(crate) async fn attach(&self, commits: Arc<dyn Sink>) -> Result<(), StartError> {
        let attached = self.storage.attach(commits).await;
        attached.map_err(|error| StartError::new(format!("failed to load the store: {error}")))
    }

    /// The disk that holds all of it.
    pub(crate) fn disk(&self) -> Option<&Arc<Disk>> {
        self.disk.as_ref()
    }

    /// Random id of the store.
    pub(crate) fn id(&self) -> &str {
        self.storage.id()
    }

    /// True if other coordinators write to the same store.
    pub(crate) fn is_shared(&self) -> bool {
        self.storage.caught_up().is_some()
    }

    /// Own objects.
    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// Durable copies of pool data.
    pub(crate) fn replicas(&self) -> &Arc<Replicas> {
        &self.replicas
    }

    /// Everything the feed may fill.
    pub(crate) fn collections(&self) -> &Arc<PoolCollections> {
        &self.collections
    }

    /// The collections served to readers. The members are one of them: followers need them for their filters. A
    /// standalone control plane has none.
    pub(crate) fn pool(&self) -> Vec<Arc<PoolCollection>> {
        let is_pool = self.profile == Profile::Pool;
        self.collections.all().filter(|_| is_pool).collect()
    }
}

fn create_folder(folder: &Path) -> Result<(), StartError> {
    let failed = |error| StartError::new(format!("--data-dir: cannot create {}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)
}
