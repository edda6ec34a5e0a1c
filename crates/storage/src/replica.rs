//! Replicas of cloud collections: cloud resourceVersions, cloud bytes, a durable copy that is never ahead of itself.
//!
//! The same set of replicas exists in the leader hub (source: cloud), in the coordinator (source: the feed) and in
//! every other hub. A hub's source is the coordinator, else the cloud, else none. The owner of the source applies to
//! [`SharedCollection::update_of`]; [`Replicas::persist`] commits the changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::collecting::inserted;
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion};
use yurt_collection::Collection;

use crate::backend::{Committed, Loaded, Op, Storage, StorageError};
use crate::embedded::replicas::{Meta, ReplicaStore};
use crate::shared::SharedCollection;

mod commit;
mod open;
pub mod shared_store;

pub use commit::POSITIONS_EVERY;
pub use open::Oversized;

use shared_store::SharedStore;

/// One replica with its state on the disk.
#[derive(Debug)]
pub struct Replica {
    name: String,
    collection: Arc<SharedCollection>,
    durable: watch::Sender<Durable>,
    gone: CancellationToken,
}

/// State of the last commit that succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durable {
    /// `C` of that commit.
    pub position: ResourceVersion,
    /// True if the collection was complete at that commit.
    pub complete: bool,
    /// Generation of that commit.
    pub generation: u64,
}

/// All replicas of a process and the store they share.
pub struct Replicas {
    store: Store,
    // Guards the pointer only, so that an iteration sees a consistent set of replicas.
    replicas: Arc<RwLock<Arc<ByName>>>,
    /// One commit at a time: dirty records of a failed commit go back before the next one is taken. Holds the time of
    /// the last successful commit. A commit to a file continues when its caller is cancelled, and keeps this lock until
    /// it is done.
    committing: Arc<tokio::sync::Mutex<Option<Instant>>>,
}

/// Lock held by the present committer.
type Committing = tokio::sync::OwnedMutexGuard<Option<Instant>>;

type ByName = BTreeMap<String, Arc<Replica>>;

/// Storage of replicas.
enum Store {
    /// In memory only.
    Nowhere,
    /// In a file of this process.
    File(ReplicaStore),
    /// Together with the own objects of several coordinators.
    Shared(Arc<SharedStore>),
}

// === impl Replica ===

impl Replica {
    /// Name of the collection: `<resource>` or `<resource>.<group>`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The collection itself.
    #[must_use]
    pub fn collection(&self) -> &Arc<SharedCollection> {
        &self.collection
    }

    /// True if readers may see it: it is complete, and a complete commit contains this generation. So no crash can
    /// return to the previous generation, and every crash leaves a mark of the RVs served.
    #[must_use]
    pub fn is_served(&self) -> bool {
        let durable = self.durable();
        let (complete, generation) = self.collection.read(|held| (held.is_complete(), held.generation()));
        complete && durable.complete && durable.generation == generation
    }

    /// State at the last commit.
    #[must_use]
    pub fn durable(&self) -> Durable {
        *self.durable.borrow()
    }

    /// True if readers may see it ([`Self::is_served`]). Complete data whose commit is missing is awaited for `max`.
    ///
    /// # Cancel safety
    /// Holds nothing; may be dropped at any point.
    pub async fn is_served_within(&self, max: Duration) -> bool {
        let awaits_commit = || self.collection.read(Collection::is_complete);
        self.is_served() || (awaits_commit() && tokio::time::timeout(max, self.served()).await.is_ok())
    }

    /// Waits until readers may see it ([`Self::is_served`]). The caller bounds the time.
    ///
    /// # Cancel safety
    /// Holds nothing; may be dropped at any point.
    pub async fn served(&self) {
        let (mut durable, mut changes) = (self.durable.subscribe(), self.collection.subscribe());
        while !self.is_served() {
            // Both senders are in `self`.
            tokio::select! {
                _ = durable.changed() => {}
                _ = changes.changed() => {}
            }
        }
    }

    /// Cancelled when the replica is removed, which ends its readers and its source.
    #[must_use]
    pub fn gone(&self) -> &CancellationToken {
        &self.gone
    }

    fn new(name: &str, kind: &'static ResourceKind, is_durable: bool) -> Self {
        Self {
            name: name.to_owned(),
            collection: Arc::new(SharedCollection::new(kind, is_durable)),
            durable: watch::Sender::default(),
            gone: CancellationToken::new(),
        }
    }
}

// === impl Replicas ===

impl Replicas {
    fn of(replicas: ByName, store: Store) -> Self {
        Self {
            replicas: Arc::new(RwLock::new(Arc::new(replicas))),
            store,
            committing: Arc::default(),
        }
    }

    /// Replicas of `kinds` that several coordinators share in `storage`. They are filled by [`Self::load`] and
    /// [`Self::committed`], which the sink of that storage has to call.
    #[must_use]
    pub fn shared(kinds: &[(String, &'static ResourceKind)], storage: Arc<dyn Storage>) -> Self {
        let replica =
            |(name, kind): &(String, &'static ResourceKind)| (name.clone(), Arc::new(Replica::new(name, kind, true)));
        let store = Store::Shared(Arc::new(SharedStore::new(storage)));
        Self::of(inserted(kinds.iter().map(replica)), store)
    }

    /// Adds a replica at runtime, with its state in the store; an existing one stays. Waits for a commit in flight;
    /// other callers do not wait.
    ///
    /// # Errors
    /// [`StorageError`] when the store cannot be read.
    ///
    /// # Cancel safety
    /// Dropped before its end, it has added nothing.
    pub async fn add(&self, name: &str, kind: &'static ResourceKind) -> Result<Arc<Replica>, StorageError> {
        // The read must not race with a deletion.
        let place = self.committing.clone().lock_owned().await;
        if let Some(replica) = self.named(name) {
            return Ok(replica);
        }
        let (replica, _place) = match &self.store {
            Store::Nowhere => (Replica::new(name, kind, false), place),
            Store::Shared(_) => (Replica::new(name, kind, true), place),
            Store::File(store) => {
                let (store, name) = (store.clone(), name.to_owned());
                let read = tokio::task::spawn_blocking(move || Ok((Replica::load(&name, kind, &store)?, place))).await;
                read.map_err(|error| StorageError::Unavailable(format!("reading was interrupted: {error}")))??
            }
        };
        let replica = Arc::new(replica);
        Arc::make_mut(&mut self.replicas.write()).insert(name.to_owned(), replica.clone());
        if let Store::Shared(shared) = &self.store {
            shared.adopt(&replica);
        }
        Ok(replica)
    }

    /// Adds an empty replica at runtime, whose name the store does not have; an existing one stays.
    #[must_use]
    pub fn create(&self, name: &str, kind: &'static ResourceKind) -> Arc<Replica> {
        let mut replicas = self.replicas.write();
        if let Some(replica) = replicas.get(name) {
            return replica.clone();
        }
        let is_durable = !matches!(self.store, Store::Nowhere);
        let replica = Arc::new(Replica::new(name, kind, is_durable));
        Arc::make_mut(&mut replicas).insert(name.to_owned(), replica.clone());
        replica
    }

    /// Names in the file that begin with `prefix`, each with the bytes that [`Self::add`] would read; none without a
    /// file. Blocks.
    ///
    /// # Errors
    /// [`StorageError`] when the file cannot be read.
    pub fn stored(&self, prefix: &str) -> Result<Vec<(String, usize)>, StorageError> {
        match &self.store {
            Store::File(store) => {
                let names = store.names(prefix)?.into_iter();
                let sized = names.map(|name| store.bytes(&name).map(|bytes| (name, bytes)));
                sized.collect()
            }
            Store::Nowhere | Store::Shared(_) => Ok(Vec::new()),
        }
    }

    /// Names in the file that neither a replica nor `keeps` has. Blocks.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn leftovers(&self, keeps: impl Fn(&str) -> bool) -> Result<Vec<String>, StorageError> {
        let Store::File(store) = &self.store else {
            return Ok(Vec::new());
        };
        let names = store.names("")?.into_iter();
        Ok(names
            .filter(|name| self.named(name).is_none() && !keeps(name))
            .collect())
    }

    /// Deletes what the file has of the name of no replica. Blocks.
    ///
    /// # Errors
    /// [`StorageError`]; nothing is deleted then.
    pub fn forget_stored(&self, name: &str) -> Result<(), StorageError> {
        match &self.store {
            Store::File(store) => store.forget(name),
            Store::Nowhere | Store::Shared(_) => Ok(()),
        }
    }

    /// Removes a replica: in a file its data is deleted, then its readers end. Where replicas are shared, other
    /// coordinators may still have it, and [`Self::forget`] deletes it. A deletion that has begun ends also if its
    /// caller is gone.
    ///
    /// # Errors
    /// [`StorageError`] when the data could not be deleted. The replica stays then, and a repetition continues. Until
    /// then it is served again only once a commit has stored it, since its rows may be gone.
    pub async fn remove(&self, name: &str) -> Result<(), StorageError> {
        // No commit may restore deleted data.
        let place = self.committing.clone().lock_owned().await;
        let (replicas, name) = (self.replicas.clone(), name.to_owned());
        let leave = move |name: &str| {
            let removed = Arc::make_mut(&mut replicas.write()).remove(name);
            if let Some(replica) = removed {
                replica.gone.cancel();
            }
        };
        let Store::File(store) = &self.store else {
            leave(&name);
            return Ok(());
        };
        let Some(replica) = self.named(&name) else {
            return Ok(());
        };
        let store = store.clone();
        let deleted = tokio::task::spawn_blocking(move || {
            let _place = place;
            // A failed transaction may have reached the file.
            store.forget(&name).inspect_err(|_| replica.distrust_stored())?;
            leave(&name);
            Ok(())
        })
        .await;
        deleted.map_err(|error| StorageError::Unavailable(format!("the deletion was interrupted: {error}")))?
    }

    /// Operation with which a transaction of the caller deletes the shared data of a replica, as it is known here. The
    /// transaction conflicts if the data has changed. `None` if there is no shared data.
    #[must_use]
    pub fn deletion(&self, name: &str) -> Option<Op> {
        match &self.store {
            Store::Shared(shared) => shared.deletion(name),
            Store::Nowhere | Store::File(_) => None,
        }
    }

    /// Deletes the shared data of a replica in one step with `with`. Every coordinator then drops what it holds of it.
    ///
    /// # Errors
    /// [`StorageError`]; a part may be left that no coordinator reads.
    pub async fn forget(&self, name: &str, with: Option<Op>) -> Result<(), StorageError> {
        match &self.store {
            Store::Shared(shared) => shared.forget(name, with).await,
            Store::Nowhere | Store::File(_) => Ok(()),
        }
    }

    /// Checks that the store accepts `object` in the replica `name`, as far as that is known before the write.
    ///
    /// # Errors
    /// [`StorageError::Oversized`] when it does not: everything after the object would have to wait for it.
    pub fn admit(&self, name: &str, object: &Object) -> Result<(), StorageError> {
        match &self.store {
            Store::Shared(shared) => shared.admit(name, object),
            Store::Nowhere | Store::File(_) => Ok(()),
        }
    }

    /// True if several coordinators share the replicas.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self.store, Store::Shared(_))
    }

    /// Takes the storage's state, if replicas are shared.
    pub fn load(&self, loaded: &Loaded) {
        if let Store::Shared(shared) = &self.store {
            shared.load(|name| self.named(name), loaded);
            self.iter().for_each(|replica| shared.drop_deleted(&replica));
        }
    }

    /// Takes a commit of the storage, if replicas are shared.
    pub fn committed(&self, rv: ResourceVersion, changes: &[Committed]) {
        if let Store::Shared(shared) = &self.store {
            shared.committed(|name| self.named(name), rv, changes);
        }
    }

    /// The replica called `name`.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<Arc<Replica>> {
        self.replicas.read().get(name).cloned()
    }

    /// All present replicas, by name.
    pub fn iter(&self) -> impl Iterator<Item = Arc<Replica>> {
        let all: Vec<_> = self.all().values().cloned().collect();
        all.into_iter()
    }

    fn all(&self) -> Arc<ByName> {
        self.replicas.read().clone()
    }
}

impl Replica {
    fn mark_durable(&self, meta: &Meta) {
        let (generation, mark) = (meta.generation(), meta.mark());
        self.collection
            .update_quietly(|held| held.mark_stored(generation, mark));
        self.durable.send_replace(Durable {
            position: meta.position(),
            complete: meta.is_complete(),
            generation,
        });
    }

    /// Stops serving until the next commit, which writes everything.
    fn distrust_stored(&self) {
        self.collection.update_quietly(Collection::distrust_stored);
        self.durable.send_modify(|durable| durable.complete = false);
    }

    /// Records that a commit stored `mark` where other coordinators read it, too.
    fn mark_shared(&self, generation: u64, mark: ResourceVersion) {
        self.collection
            .update_quietly(|held| held.mark_shared(generation, mark));
    }

    /// Records that a commit was seen in the store, of this coordinator or another one.
    fn mark_followed(&self, generation: u64, position: ResourceVersion) {
        self.durable.send_replace(Durable {
            position,
            complete: true,
            generation,
        });
    }
}
