//! Everything on the disk: one file with own objects and with the durable copies of pool data.

use std::collections::BTreeMap;
use std::sync::Arc;

use yurt_apimachinery::ResourceKind;
use yurt_runtime::Clock;
use yurt_storage::embedded::Disk;
use yurt_storage::embedded::replicas::ReplicaStore;
use yurt_storage::{Embedded, Replicas, Storage, StorageError, members};

use crate::StartError;
use crate::config::{Config, Profile};
use crate::feed::collection::PoolCollection;
use crate::publish::Publisher;

/// Name of the store's file in the data folder.
const FILE: &str = "store.redb";

/// The open stores.
pub(crate) struct Stores {
    storage: Arc<dyn Storage>,
    disk: Arc<Disk>,
    replicas: Arc<Replicas>,
    /// Pool-scope collections and the members, by name.
    collections: BTreeMap<String, Arc<PoolCollection>>,
    profile: Profile,
}

// === impl Stores ===

impl Stores {
    /// Opens or creates the data folder and the store in it.
    ///
    /// # Errors
    /// Which file, and what is wrong with it.
    pub(crate) fn open(config: &Config, clock: Clock) -> Result<Self, StartError> {
        let folder = &config.data_dir;
        std::fs::create_dir_all(folder)
            .map_err(|error| StartError::new(format!("--data-dir: cannot create {}: {error}", folder.display())))?;
        let path = folder.join(FILE);
        let in_store = |error: StorageError| StartError::new(format!("{}: {error}", path.display()));
        let embedded = Embedded::open(&path, clock, config.profile.space())
            .map_err(|error| StartError::new(format!("--data-dir: {error}")))?;
        let replica_store = ReplicaStore::open(embedded.disk()).map_err(in_store)?;
        let mut kinds: Vec<(String, &'static ResourceKind)> = Vec::new();
        kinds.extend(
            config
                .pool_kinds()
                .iter()
                .map(|kind| (kind.group_resource().to_string(), *kind)),
        );
        kinds.push((members::COLLECTION.to_owned(), members::kind()));
        let replicas = Replicas::open(&kinds, Some(replica_store)).map_err(in_store)?;
        let collections = replicas.iter().map(|replica| {
            (
                replica.name().to_owned(),
                Arc::new(PoolCollection::new(replica.clone())),
            )
        });
        Ok(Self {
            collections: collections.collect(),
            profile: config.profile,
            disk: embedded.disk(),
            storage: Arc::new(embedded),
            replicas: Arc::new(replicas),
        })
    }

    /// Loads own objects and publishes every commit from now on.
    ///
    /// # Errors
    /// What is wrong with the store.
    pub(crate) async fn attach(&self, publisher: Publisher) -> Result<(), StartError> {
        let attached = self.storage.attach(Arc::new(publisher)).await;
        attached.map_err(|error| StartError::new(format!("--data-dir: cannot load {FILE}: {error}")))
    }

    /// The disk all of it is on.
    pub(crate) fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// Random id of the store.
    pub(crate) fn id(&self) -> &str {
        self.storage.id()
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
    pub(crate) fn collections(&self) -> &BTreeMap<String, Arc<PoolCollection>> {
        &self.collections
    }

    /// The collections served to readers: the members are one of them, followers need them for their filters. A control
    /// plane of its own has none.
    pub(crate) fn pool(&self) -> impl Iterator<Item = &Arc<PoolCollection>> {
        let is_pool = self.profile == Profile::Pool;
        self.collections.values().filter(move |_| is_pool)
    }

    /// The members of the pool.
    pub(crate) fn members(&self) -> Arc<PoolCollection> {
        self.collections
            .get(members::COLLECTION)
            .expect("the members collection must exist, open() made it")
            .clone()
    }
}
