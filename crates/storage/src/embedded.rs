//! The embedded backend: one redb file, one writer thread, group commit, resourceVersions that never go back.
//!
//! ```text
//!   write(ops) ──► bounded queue ──► writer thread: drain ► stage ► one redb commit ► settle ► answer
//!        └──── in memory only: check ► assign RV ► publish ───────────────────────────────►
//! ```
//!
//! Lease renewals ([`Durability::Volatile`](crate::backend::Durability::Volatile)) need no commit of their own, which
//! would cost ≈ 28 KB of writes. A durable mark above every RV issued lets a killed process restart above all of them.
//! Pool replicas share the file: [`replicas`].
//!
//! A commit may take long, because the medium is slow or pool data is being written. Reads and renewals continue in the
//! meantime, by these rules:
//!
//! 1. The engine is locked to stage a group (check, assign RVs) and to settle it (publish, answer), not in between.
//!    Only one group is in flight, so groups are published in the order in which they were staged.
//! 2. A group's RVs are in its rows, so they are fixed when it is staged. Numbers below the first of them are left free
//!    for writes in memory. Those are published immediately: they come before the group, in RV and in time (`mark`). So
//!    nothing is published at or below an RV that was published, and no list or bookmark names an RV that is not
//!    complete. A group is staged when the disk is free, to need few such numbers. Once they are used up, such writes
//!    wait for the group.
//! 3. Such a write must be right *before* the group, so it is checked against the published state. A write that names a
//!    key of the group, changed or only compared there, waits in the queue. So the state that the group was checked
//!    against holds until the group is published.
//! 4. It is published only if the stored mark covers its RV: a group's own mark counts once it is on the disk.
//! 5. A commit that failed may have reached the disk, and a restart may find it. So its group stays in flight until its
//!    rows are reverted: no reader passes its RVs. In the meantime writes in memory continue below it, all others fail.

mod beside;
mod disk;
pub mod drafts;
mod engine;
mod file_backend;
mod format;
mod ledger;
mod mark;
mod open;
mod overlay;
pub mod replicas;
mod rows;
mod tables;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use yurt_apimachinery::{ResourceVersion, Space};
use yurt_runtime::Clock;

use crate::backend::{Op, Sink, Storage, StorageError, TXN_OPS_MAX};
use beside::MarkFile;
pub use disk::{Disk, DiskStats};
use engine::Engine;
pub use file_backend::{FileBackend, LockedFile};
use ledger::Ledger;
use writer::{Request, Writer};

/// Maximum number of transactions waiting for the writer thread.
const QUEUE_MAX: usize = 1024;
/// Maximum bytes of their keys and values: 64 MiB. Abandoned transactions count until they are committed or refused.
const QUEUE_BYTES_MAX: usize = 64 << 20;

/// Reason why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder or file cannot be used.
    #[error("cannot open store {path}: {why}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Cause, with the remedy.
        why: String,
    },
    /// The medium does not return bytes of the file.
    #[error("cannot open store {path}: {why}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Cause.
        why: String,
    },
    /// There is no space to open it: recovery after an unclean stop needs space.
    #[error("cannot open store {path}: {why}; free some space there")]
    Full {
        /// The file.
        path: PathBuf,
        /// Cause.
        why: String,
    },
    /// Its file system is read-only.
    #[error("cannot open store {path}: {why}; the store must be writable")]
    ReadOnly {
        /// The file.
        path: PathBuf,
        /// Cause.
        why: String,
    },
    /// The file is damaged.
    #[error("store is damaged: {}", open::with_advice(path, why))]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Finding of redb.
        why: String,
    },
    /// Another version of this program wrote it.
    #[error("cannot open store {path}: its format is {found}, this program reads {supported}; {}", format::advice(*found, *supported))]
    Format {
        /// The file.
        path: PathBuf,
        /// Number of its format; 0 when it has none.
        found: u64,
        /// The number this program reads and writes.
        supported: u64,
    },
}

/// The redb-backed store; see the module header.
pub struct Embedded {
    id: String,
    disk: Arc<Disk>,
    requests: mpsc::Sender<Request>,
    /// Bytes that further transactions may queue.
    queue_bytes: Arc<Semaphore>,
    /// Handed to the writer thread by [`Storage::attach`].
    pending: Mutex<Option<(Engine, Ledger, mpsc::Receiver<Request>)>>,
    /// State shared with the writer thread, once it runs.
    writer: OnceLock<Arc<Writer>>,
}

// === impl OpenError ===

impl OpenError {
    fn of(path: &Path, error: StorageError) -> Self {
        let path = path.to_owned();
        match error {
            StorageError::Full(why) => Self::Full { path, why },
            StorageError::Corrupt(why) => Self::Corrupt { path, why },
            other => Self::Unusable {
                path,
                why: other.to_string(),
            },
        }
    }

    /// The same error without the file's name.
    fn into_storage_error(self) -> StorageError {
        match self {
            Self::Unusable { why, .. } | Self::Unreadable { why, .. } | Self::ReadOnly { why, .. } => {
                StorageError::Unavailable(why)
            }
            Self::Full { why, .. } => StorageError::Full(why),
            Self::Corrupt { why, .. } => StorageError::Corrupt(why),
            other @ Self::Format { .. } => StorageError::Unavailable(other.to_string()),
        }
    }
}

// === impl Embedded ===

impl Embedded {
    /// Opens or creates the store at `path` (its folder must exist). A store that is behind the mark in the file next
    /// to it was restored from a copy: it gets another id, and its readers start over. `space` tags its RVs:
    /// [`Space::Own`] next to pool data, [`Space::Cloud`] for a control plane that hubs use as the cloud.
    ///
    /// # Errors
    /// [`OpenError`], naming the file.
    pub fn open(path: &Path, clock: Clock, space: Space) -> Result<Self, OpenError> {
        let disk = Disk::open(path, clock.clone())?;
        let opened = Self::beside(disk, clock, space, Some(MarkFile::of(path)));
        opened.map_err(|error| OpenError::of(path, error))
    }

    /// The store on a disk that is already open, without a mark file.
    ///
    /// # Errors
    /// [`StorageError`] when its tables cannot be read or made.
    pub fn on(disk: Arc<Disk>, clock: Clock, space: Space) -> Result<Self, StorageError> {
        Self::beside(disk, clock, space, None)
    }

    fn beside(disk: Arc<Disk>, clock: Clock, space: Space, noted: Option<MarkFile>) -> Result<Self, StorageError> {
        let (mut ledger, identity) = Ledger::open(disk.clone(), noted)?;
        let mut engine = Engine::new(identity.mark, clock, space);
        let id = match identity.id {
            Some(id) => id,
            None => {
                let (floor, mark) = engine.begin_timeline(identity.is_mark_lost);
                let id = ledger.begin_timeline(floor, mark)?;
                engine.stored(mark);
                id
            }
        };
        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        Ok(Self {
            id,
            disk,
            requests,
            queue_bytes: Arc::new(Semaphore::new(QUEUE_BYTES_MAX)),
            pending: Mutex::new(Some((engine, ledger, queue))),
            writer: OnceLock::new(),
        })
    }

    /// The underlying disk, for the replicas that share it.
    #[must_use]
    pub fn disk(&self) -> Arc<Disk> {
        self.disk.clone()
    }

    /// Waits until `ops` fit into the queue.
    async fn queue_place(&self, ops: &[Op]) -> Result<OwnedSemaphorePermit, StorageError> {
        // A transaction that is larger than the queue waits for an empty one.
        let bytes = ops.iter().map(Op::size).sum::<usize>().min(QUEUE_BYTES_MAX);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let place = self.queue_bytes.clone().acquire_many_owned(permits).await;
        place.map_err(|_| StorageError::Unavailable("the store is closed".into()))
    }

    async fn ask<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, StorageError> {
        let closed = || StorageError::Unavailable("the store is closed".into());
        let (answer, answered) = oneshot::channel();
        self.requests.send(make(answer)).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())
    }
}

impl Storage for Embedded {
    fn id(&self) -> &str {
        &self.id
    }

    fn attach(&self, sink: Arc<dyn Sink>) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move {
            let taken = self.pending.lock().take();
            let already = || StorageError::Unavailable("already attached".into());
            let (mut engine, mut ledger, queue) = taken.ok_or_else(already)?;
            let mut loaded = ledger.load()?;
            if let Some(mark) = engine.load(&mut loaded) {
                ledger.store_mark(mark)?;
                engine.stored(mark);
            }
            sink.load(loaded)?;
            let writer = self.writer.get_or_init(|| Arc::new(Writer::new(engine, sink))).clone();
            std::thread::Builder::new()
                .name("embedded-writer".into())
                .stack_size(512 * 1024)
                .spawn(move || writer.run(ledger, queue))
                .map_err(|error| StorageError::Unavailable(format!("cannot start the writer thread: {error}")))?;
            Ok(())
        })
    }

    fn write(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<ResourceVersion, StorageError>> {
        Box::pin(async move {
            if ops.len() > TXN_OPS_MAX {
                return Err(StorageError::TooLarge(ops.len()));
            }
            let ops = match self.writer.get() {
                None => ops,
                Some(writer) => match writer.write_in_memory(ops) {
                    Ok(written) => return written,
                    Err(ops) => ops,
                },
            };
            let place = self.queue_place(&ops).await?;
            self.ask(|answer| Request::Write { ops, answer, place }).await?
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move { self.ask(|answer| Request::Check { answer }).await? })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move { self.ask(|answer| Request::Close { answer }).await? })
    }
}
