//! The storage trait: durable own objects behind one compare-and-write operation and one ordered stream of commits.
//!
//! It has two backends: [`crate::embedded`] (redb, default) and [`crate::etcd3`]. Both pass [`crate::contract`]. Values
//! are object bytes *without* `metadata.resourceVersion`. As in kube-apiserver over etcd, the RV of a value is the
//! revision of the commit that wrote it.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use yurt_apimachinery::{Object, ResourceVersion};

/// Maximum number of operations in one transaction.
pub const TXN_OPS_MAX: usize = 128;

/// Precondition on a key for a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The key must not exist.
    Absent,
    /// The key must exist with exactly this RV.
    At(ResourceVersion),
    /// No precondition.
    Any,
}

/// Durability of a value at the time of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// On the disk before the answer.
    Durable,
    /// In memory, stored at a clean stop (lease renewals, `docs/ARCHITECTURE.md`); etcd stores it durably.
    Volatile,
}

/// A value: object bytes without resourceVersion. It carries the object itself if its writer has it at hand, which
/// saves parsing the bytes again.
#[derive(Clone, Debug)]
pub struct Value {
    bytes: Bytes,
    object: Option<Object>,
}

/// Effect of an operation on a key.
#[derive(Clone, Debug)]
pub enum Action {
    /// Store this value.
    Put(Value, Durability),
    /// Delete the key; `last` is its last state, kept as a tombstone for watchers that resume.
    Delete {
        /// Last state without resourceVersion.
        last: Value,
    },
    /// Only check the precondition.
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

/// Reason why a transaction failed. `Full` and `Unavailable` are worth a retry later. Nothing was written, except
/// perhaps with `Unknown`, and with `Full` by the write that fills an etcd: etcd applies it and reports this error. A
/// commit that the embedded store refused may be on the disk until it is reverted; a kill before that shows it (ADR
/// 0003).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// A precondition failed.
    #[error("{key}: expected another state, found {found:?}")]
    Conflict {
        /// The key.
        key: String,
        /// Its RV now; `None` when it does not exist.
        found: Option<ResourceVersion>,
    },
    /// The disk is full: reads continue, writes are rejected until there is space.
    #[error("no space left for the store: {0}")]
    Full(String),
    /// The backend does not answer, or it is being closed.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// The stored data is damaged; the text names the fault and its place.
    #[error("store damaged: {0}")]
    Corrupt(String),
    /// The backend did not report the outcome of the write: it may have happened, or still happen.
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// A value, or all of them together, exceed the backend's limit in bytes.
    #[error("{0}")]
    TooManyBytes(String),
    /// One object exceeds the backend's limit in bytes.
    #[error(
        "{collection} {key} has {bytes} bytes, which exceeds the limit of the store ({why}): make it smaller, or raise the limits of etcd (--max-request-bytes there, --etcd-max-request-bytes here)"
    )]
    Oversized {
        /// The collection of pool data.
        collection: String,
        /// The object's key.
        key: String,
        /// The object's size in bytes.
        bytes: usize,
        /// The limit, or the backend's own message.
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
    /// True if the key was deleted.
    pub deleted: bool,
}

/// The complete state of a backend when a sink is attached.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// Live values in key order.
    pub live: Vec<Stored>,
    /// Remembered deletions, oldest first.
    pub tombstones: Vec<Stored>,
    /// Watches below this may have missed a deletion.
    pub floor: ResourceVersion,
    /// Position of the state: every RV issued so far is ≤ this.
    pub at: ResourceVersion,
}

// === impl Op ===

impl Op {
    /// Bytes of the key and the value.
    pub(crate) fn size(&self) -> usize {
        let value = match &self.action {
            Action::Put(value, _) | Action::Delete { last: value } => value.bytes().len(),
            Action::Check => 0,
        };
        self.key.len() + value
    }
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

/// Expects `object` to have no resourceVersion.
impl From<&Object> for Value {
    fn from(object: &Object) -> Self {
        Self {
            bytes: object.bytes(),
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

/// Receiver of commits. It is called in RV order, one call at a time, before the writer gets its answer.
pub trait Sink: Send + Sync {
    /// Receives the state at attachment; called exactly once, first.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] naming a value that cannot be read. The rest of its collection must not be served as
    /// if it were complete.
    fn load(&self, loaded: Loaded) -> Result<(), StorageError>;
    /// Receives one commit. A deletion without a value means the last published value.
    fn committed(&self, rv: ResourceVersion, changes: &[Committed]);
    /// Receives the whole state again, from a backend that missed commits since the last one it published. The sink
    /// publishes the differences as one step up to `loaded.at`. Backends that see every commit never call it.
    fn reloaded(&self, loaded: Loaded);
}

/// A backend for own objects.
pub trait Storage: Send + Sync {
    /// Random id of this store. Another id means another history, so all readers start over.
    fn id(&self) -> &str;

    /// Publishes the present state and then every commit to `sink`. May be called once.
    ///
    /// # Errors
    /// [`StorageError`] when the state cannot be read or a sink is attached already.
    fn attach(&self, sink: Arc<dyn Sink>) -> BoxFuture<'_, Result<(), StorageError>>;

    /// Applies all operations or none, under one RV. Answers when they are published and as durable as requested. Runs
    /// to its end even when the caller goes away.
    fn write(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<ResourceVersion, StorageError>>;

    /// Waits for the writes of other processes, in a store that several processes write to. Resolves when every write
    /// acknowledged to them before this call is published here, with an RV up to which everything is published. `None`
    /// for a store with one writer, where that always holds.
    fn caught_up(&self) -> Option<BoxFuture<'_, Result<ResourceVersion, StorageError>>> {
        None
    }

    /// Maximum size of a value in bytes, as far as it is known before the write. `None`: the store has no limit of its
    /// own.
    fn value_bytes_max(&self) -> Option<usize> {
        None
    }

    /// Checks that writes succeed, as far as is known; after a failure, tries one. Called every few seconds, so that a
    /// store recovers without client writes.
    fn check(&self) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Stores the data that is only in memory; the last call before the process ends.
    fn close(&self) -> BoxFuture<'_, Result<(), StorageError>>;
}
