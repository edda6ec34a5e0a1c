//! The storage trait: durable own objects behind one compare-and-write operation and one ordered stream of commits.
//!
//! Two backends stand behind it: [`crate::embedded`] (redb, default) and [`crate::etcd3`]. Both pass [`crate::contract`].
//! Values are object bytes *without* `metadata.resourceVersion`: the RV of a value is the revision of the commit that
//! wrote it, as in kube-apiserver over etcd.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use yurt_apimachinery::{Object, ResourceVersion};

/// Most operations in one transaction.
pub const TXN_OPS_MAX: usize = 128;

/// What a key must be like for a transaction to go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The key must not exist.
    Absent,
    /// The key must exist with exactly this RV.
    At(ResourceVersion),
    /// Anything.
    Any,
}

/// When a value must be safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// On the disk before the answer.
    Durable,
    /// In memory, stored at a clean stop (lease renewals, `docs/ARCHITECTURE.md`); etcd stores it all the same.
    Volatile,
}

/// A value: object bytes without resourceVersion, and the object itself where its writer has it at hand, so that nobody
/// reads the bytes again.
#[derive(Clone, Debug)]
pub struct Value {
    bytes: Bytes,
    object: Option<Object>,
}

/// What happens to a key.
#[derive(Clone, Debug)]
pub enum Action {
    /// Store this value.
    Put(Value, Durability),
    /// Delete the key; `last` is its last state, kept as a tombstone for watchers that resume.
    Delete {
        /// Last state without resourceVersion.
        last: Value,
    },
    /// Only compare.
    Check,
}

/// One operation of a transaction.
#[derive(Clone, Debug)]
pub struct Op {
    /// `/<collection>/<object key>`.
    pub key: String,
    /// Precondition.
    pub expect: Expect,
    /// Effect.
    pub action: Action,
}

/// Why a transaction did not happen. `Full` and `Unavailable` are worth a retry later. Nothing was written, except
/// perhaps with `Unknown`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// A precondition failed.
    #[error("{key}: expected another state, found {found:?}")]
    Conflict {
        /// Which key.
        key: String,
        /// Its RV now; `None` when it does not exist.
        found: Option<ResourceVersion>,
    },
    /// The disk is full: reads go on, writes are refused until there is space.
    #[error("no space left for the store: {0}")]
    Full(String),
    /// The backend does not answer, or it is being closed.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// The stored data is damaged; the text names what and where.
    #[error("store damaged: {0}")]
    Corrupt(String),
    /// The backend did not say what became of the write: it may have happened, or happen yet.
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// A value, or all of them together, are larger than the backend takes.
    #[error("{0}")]
    TooManyBytes(String),
    /// One object is larger than the backend takes.
    #[error(
        "{collection} {key} has {bytes} bytes, which is too much for the store ({why}): make it smaller, or let etcd take more (--max-request-bytes there, --etcd-max-request-bytes here)"
    )]
    Oversized {
        /// Which collection of pool data.
        collection: String,
        /// Which object.
        key: String,
        /// Its size.
        bytes: usize,
        /// The limit, or the backend's own words.
        why: String,
    },
    /// More than [`TXN_OPS_MAX`] operations.
    #[error("transaction of {0} operations is too large")]
    TooLarge(usize),
}

/// A stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// `/<collection>/<object key>`.
    pub key: String,
    /// RV of the commit that wrote it.
    pub rv: ResourceVersion,
    /// Object bytes without resourceVersion.
    pub value: Bytes,
}

/// One change of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// `/<collection>/<object key>`.
    pub key: String,
    /// New value, or the last one when `deleted`.
    pub value: Value,
    /// Whether the key is gone.
    pub deleted: bool,
}

/// Everything a backend holds when a sink is attached.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// Live values in key order.
    pub live: Vec<Stored>,
    /// Deletions remembered, oldest first.
    pub tombstones: Vec<Stored>,
    /// Watches below this may have missed a deletion.
    pub floor: ResourceVersion,
    /// Position of the state: every RV issued so far is ≤ this.
    pub at: ResourceVersion,
}

// === impl Value ===

impl Value {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The same as an object, if it was made of one.
    #[must_use]
    pub fn object(&self) -> Option<&Object> {
        self.object.as_ref()
    }
}

impl From<Bytes> for Value {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, object: None }
    }
}

/// `object` has no resourceVersion.
impl From<&Object> for Value {
    fn from(object: &Object) -> Self {
        Self {
            bytes: object.bytes().clone(),
            object: Some(object.clone()),
        }
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Value {}

/// Where commits are published: called in RV order, one call at a time, before the writer gets its answer.
pub trait Sink: Send + Sync {
    /// The state at attachment; called exactly once, first.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] naming a value that cannot be read: what is left of its collection must not be served
    /// as if it were all.
    fn load(&self, loaded: Loaded) -> Result<(), StorageError>;
    /// One commit. A deletion without a value means the last one published.
    fn committed(&self, rv: ResourceVersion, changes: &[Committed]);
    /// The whole state again, for a backend that lost sight of the commits since the last one it published: what differs
    /// is to be published as one step up to `loaded.at`. Backends that see every commit never call it.
    fn reloaded(&self, loaded: Loaded);
}

/// A backend for own objects.
pub trait Storage: Send + Sync {
    /// Random id of this store; another id means another history (all readers start over).
    fn id(&self) -> &str;

    /// Publishes the present state and then every commit to `sink`. May be called once.
    ///
    /// # Errors
    /// [`StorageError`] when the state cannot be read or a sink is attached already.
    fn attach(&self, sink: Arc<dyn Sink>) -> BoxFuture<'_, Result<(), StorageError>>;

    /// Applies all operations or none, under one RV, and answers when they are as durable as asked and published.
    /// Runs to its end even when the caller goes away.
    fn write(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<ResourceVersion, StorageError>>;

    /// For a store that other processes write to as well: resolves when everything they were acknowledged before this
    /// call is published here, with an RV up to which all has been. `None` for a store with one writer, where that always
    /// holds.
    fn caught_up(&self) -> Option<BoxFuture<'_, Result<ResourceVersion, StorageError>>> {
        None
    }

    /// Largest value that is taken, as far as that is known before it is written. `None`: no limit of the store's own.
    fn value_bytes_max(&self) -> Option<usize> {
        None
    }

    /// Whether writes go through, as far as is known; after a failure, tries. Called every few seconds, so that a store
    /// recovers when nobody writes.
    fn check(&self) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Stores what is only in memory; the last call before the process ends.
    fn close(&self) -> BoxFuture<'_, Result<(), StorageError>>;
}
