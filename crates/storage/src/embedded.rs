//! The embedded backend: one redb file, one writer thread, group commit, resourceVersions that never go back.
//!
//! ```text
//!   write(ops) ──► bounded queue ──► writer thread: drain ► check ► assign RV ► one redb commit ► publish ► answer
//! ```
//!
//! Lease renewals ([`Durability::Volatile`](crate::backend::Durability::Volatile)) ride along without a commit (one costs ≈ 28 KB of writes); a durable mark
//! above every RV issued lets a killed process restart above all of them. Pool replicas share the file: [`replicas`].

mod engine;
mod mark;
pub mod replicas;
mod tables;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use redb::{Database, ReadableDatabase};
use tokio::sync::{mpsc, oneshot};
use yurt_apimachinery::{ResourceVersion, Space};
use yurt_runtime::Clock;

use crate::backend::{Op, Sink, Storage, StorageError, TXN_OPS_MAX};
use engine::{Engine, Request};

/// Most transactions waiting for the writer thread.
const QUEUE_MAX: usize = 1024;
/// redb's page cache, bytes. Objects are held in memory anyway.
const PAGE_CACHE_BYTES: usize = 1 << 20;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder or file cannot be used.
    #[error("cannot open store {path}: {why}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Cause, with what to do about it.
        why: String,
    },
    /// The file is damaged.
    #[error("store {path} is damaged: {why}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What redb found.
        why: String,
    },
}

/// The redb-backed store; see the module header.
pub struct Embedded {
    id: String,
    database: Arc<Database>,
    requests: mpsc::Sender<Request>,
    /// Handed to the writer thread by [`Storage::attach`].
    pending: Mutex<Option<(Engine, mpsc::Receiver<Request>)>>,
}

// === impl Embedded ===

impl Embedded {
    /// Opens or creates the store at `path` (its folder must exist). `space` tags its RVs: [`Space::Own`] beside pool
    /// data, [`Space::Cloud`] for a control plane that hubs take for the cloud.
    ///
    /// # Errors
    /// [`OpenError`], naming the file.
    pub fn open(path: &Path, clock: Clock, space: Space) -> Result<Self, OpenError> {
        let database = Arc::new(open_database(path)?);
        let (engine, id) = Engine::open(database.clone(), clock, space).map_err(|error| OpenError::Corrupt {
            path: path.to_owned(),
            why: error.to_string(),
        })?;
        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        Ok(Self {
            id,
            database,
            requests,
            pending: Mutex::new(Some((engine, queue))),
        })
    }

    /// The database file, for the replicas that share it.
    #[must_use]
    pub fn database(&self) -> Arc<Database> {
        self.database.clone()
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
            let (mut engine, queue) = taken.ok_or_else(|| StorageError::Unavailable("already attached".into()))?;
            sink.load(engine.load()?);
            std::thread::Builder::new()
                .name("embedded-writer".into())
                .stack_size(512 * 1024)
                .spawn(move || engine.run(queue, &*sink))
                .map_err(|error| StorageError::Unavailable(format!("cannot start the writer thread: {error}")))?;
            Ok(())
        })
    }

    fn write(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<ResourceVersion, StorageError>> {
        Box::pin(async move {
            if ops.len() > TXN_OPS_MAX {
                return Err(StorageError::TooLarge(ops.len()));
            }
            self.ask(|answer| Request::Write { ops, answer }).await?
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move { self.ask(|answer| Request::Close { answer }).await? })
    }
}

/// Opens a redb file for replicas alone (a hub's disk cache) or for everything.
///
/// # Errors
/// [`OpenError`], naming the file and what to do.
pub fn open_database(path: &Path) -> Result<Database, OpenError> {
    let unusable = |why: String| OpenError::Unusable {
        path: path.to_owned(),
        why,
    };
    let opened = redb::Builder::new().set_cache_size(PAGE_CACHE_BYTES).create(path);
    let database = opened.map_err(|error| match error {
        redb::DatabaseError::DatabaseAlreadyOpen => unusable("another process has it open".into()),
        redb::DatabaseError::Storage(redb::StorageError::Corrupted(why)) => OpenError::Corrupt {
            path: path.to_owned(),
            why,
        },
        other => unusable(other.to_string()),
    })?;
    database.begin_read().map_err(|error| unusable(error.to_string()))?;
    Ok(database)
}
