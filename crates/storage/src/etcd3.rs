//! The etcd backend: several coordinators over one etcd, with kube-apiserver's semantics.
//!
//! ```text
//!   write(ops) ──► one transaction with compares ──► etcd ──► the watch of every coordinator ──► sink ──► answer
//! ```
//!
//! In reading order: `wire` (etcd's messages), `grpc` (how they travel), `endpoints` (which member is asked),
//! `txn` (our transactions as etcd's), `load` (everything there is), `follow` (the watch that publishes),
//! `index` (reads that reflect other coordinators' writes), `compact`.
//!
//! The RV of a value is the revision of its last write. Nothing is published but by the watch: what a reader sees was
//! committed, in etcd's order. Lease renewals are writes like others here.

mod compact;
mod endpoints;
mod error;
mod follow;
mod grpc;
mod index;
mod load;
mod txn;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use yurt_apimachinery::{ResourceVersion, Space};
use yurt_runtime::TaskGroup;
use yurt_runtime::tls::{ClientTls, TlsError};

use crate::backend::{Action, Durability, Expect, Op, Sink, Storage, StorageError, TXN_OPS_MAX};
use endpoints::Endpoints;
use follow::Follower;
use grpc::CallError;
use txn::Layout;
use wire::RangeRequest;

/// etcd gets this long to answer at the start.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Pause between attempts at the start.
const START_PAUSE: Duration = Duration::from_secs(1);
/// A writer is answered after this long even when the watch has not told its write yet: it is committed.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest prefix of keys.
const PREFIX_BYTES_MAX: usize = 512;
/// Random id of the store; behind the prefix itself, where the watch does not look.
const ID_KEY: &str = "~store-id";

/// How etcd is reached and used.
#[derive(Clone, Debug)]
pub struct Config {
    /// `http://` or `https://` URLs of the members.
    pub servers: Vec<String>,
    /// Needed for https.
    pub tls: Option<ClientTls>,
    /// Before every key; coordinators with the same prefix share one store.
    pub prefix: String,
    /// Tags the RVs, see [`crate::Embedded::open`].
    pub space: Space,
    /// History older than this is forgotten; `None` leaves that to others.
    pub compaction_interval: Option<Duration>,
}

/// Why etcd cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The servers given make no sense.
    #[error("etcd servers: {0}")]
    Servers(String),
    /// The prefix makes no sense.
    #[error("etcd prefix {0:?}: it must begin with / and be at most {PREFIX_BYTES_MAX} bytes long")]
    Prefix(String),
    /// A certificate file.
    #[error("etcd certificates: {0}")]
    Tls(#[from] TlsError),
    /// No member answered in time.
    #[error("etcd does not answer: {0}")]
    Unavailable(String),
}

/// The etcd-backed store; see the module header.
pub struct Etcd {
    id: String,
    shared: Arc<Shared>,
    tasks: TaskGroup,
    compaction_interval: Option<Duration>,
    waiting: mpsc::Sender<index::Waiting>,
    /// Handed to its task by [`Storage::attach`].
    queue: Mutex<Option<mpsc::Receiver<index::Waiting>>>,
}

/// What the tasks of a store share.
struct Shared {
    endpoints: Endpoints,
    layout: Layout,
    /// As found at the start.
    identity: Identity,
    /// Everything up to this revision is published.
    published: watch::Sender<i64>,
    /// Somebody waits for the next sign of progress.
    asked: Notify,
    /// Why the watch is not open, if it is not.
    trouble: Mutex<Option<String>>,
}

/// Which store this is, and how far it is.
#[derive(Clone, Debug)]
struct Identity {
    id: Option<String>,
    cluster: u64,
    revision: i64,
}

// === impl Etcd ===

impl Etcd {
    /// Reaches etcd, trying for `START_PATIENCE`, and creates the store id on first use. Tasks run in `tasks`; one that
    /// ends unasked has found another store than before.
    ///
    /// # Errors
    /// [`OpenError`], naming the member or file.
    pub async fn connect(config: Config, tasks: &TaskGroup) -> Result<Self, OpenError> {
        let prefix = config.prefix.trim_end_matches('/').to_owned();
        if !config.prefix.starts_with('/') || prefix.len() > PREFIX_BYTES_MAX {
            return Err(OpenError::Prefix(config.prefix));
        }
        let tag = match config.space {
            Space::Own => ResourceVersion::OWN_BIT,
            Space::Cloud => 0,
        };
        let layout = Layout { prefix, tag };
        let endpoints = Endpoints::new(&config.servers, config.tls, tasks)?;
        let identity = start(&endpoints, &layout).await?;
        let (waiting, queue) = mpsc::channel(index::WAITING_MAX);
        Ok(Self {
            id: identity.id.clone().unwrap_or_default(),
            shared: Arc::new(Shared {
                endpoints,
                layout,
                identity,
                published: watch::Sender::new(0),
                asked: Notify::new(),
                trouble: Mutex::new(None),
            }),
            tasks: tasks.clone(),
            compaction_interval: config.compaction_interval,
            waiting,
            queue: Mutex::new(Some(queue)),
        })
    }

    async fn load(&self, sink: Arc<dyn Sink>, queue: mpsc::Receiver<index::Waiting>) -> Result<(), StorageError> {
        let shared = &self.shared;
        let (mut loaded, at) = load::live(&shared.endpoints, &shared.layout)
            .await
            .map_err(|error| error::of_read(&error))?;
        load::add_deletions(&shared.endpoints, &shared.layout, &mut loaded, at).await;
        sink.load(loaded)?;
        shared.published.send_replace(at);
        let follower = Follower {
            shared: shared.clone(),
            sink,
            last: at,
            stop: self.tasks.token(),
        };
        self.tasks.spawn_critical("etcd-watch", follower.run());
        let index = index::run(shared.clone(), queue, self.tasks.token());
        self.tasks.spawn_critical("etcd-read-index", index);
        if let Some(interval) = self.compaction_interval {
            let compact = compact::run(shared.clone(), interval, self.tasks.token());
            self.tasks.spawn_critical("etcd-compact", compact);
        }
        Ok(())
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<ResourceVersion, StorageError> {
        let shared = &self.shared;
        let answer = shared.endpoints.txn(&shared.layout.request(&ops)).await;
        let answer = answer.map_err(|error| error::of_write(&error))?;
        let written = shared.layout.outcome(&ops, &answer)?;
        if written.is_new {
            let mut published = shared.published.subscribe();
            let told = published.wait_for(|revision| *revision >= written.revision);
            let stop = self.tasks.token();
            let told = tokio::time::timeout(PUBLISH_TIMEOUT, stop.run_until_cancelled(told));
            if told.await.is_err() {
                tracing::warn!(
                    revision = written.revision,
                    "Write committed, the watch has not told it yet"
                );
            }
        }
        Ok(shared.layout.rv(written.revision))
    }
}

impl Storage for Etcd {
    fn id(&self) -> &str {
        &self.id
    }

    fn attach(&self, sink: Arc<dyn Sink>) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move {
            let queue = self.queue.lock().take();
            let queue = queue.ok_or_else(|| StorageError::Unavailable("already attached".into()))?;
            self.load(sink, queue).await
        })
    }

    fn write(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<ResourceVersion, StorageError>> {
        Box::pin(async move {
            if ops.len() > TXN_OPS_MAX {
                return Err(StorageError::TooLarge(ops.len()));
            }
            self.commit(ops).await
        })
    }

    fn caught_up(&self) -> Option<BoxFuture<'_, Result<ResourceVersion, StorageError>>> {
        Some(Box::pin(async move {
            let closed = |_| StorageError::Unavailable("the store is closed".into());
            let (answer, answered) = oneshot::channel();
            let busy = |_| StorageError::Unavailable("too many reads wait for etcd".into());
            self.waiting.try_send(answer).map_err(busy)?;
            answered.await.map_err(closed)?
        }))
    }

    /// Asks nobody: the watch tells.
    fn check(&self) -> BoxFuture<'_, Result<(), StorageError>> {
        let trouble = self.shared.trouble.lock().clone();
        Box::pin(std::future::ready(
            trouble.map_or(Ok(()), |why| Err(StorageError::Unavailable(why))),
        ))
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StorageError>> {
        // Everything acknowledged is etcd's already; the tasks end with their group.
        Box::pin(async { Ok(()) })
    }
}

// === impl Shared ===

impl Shared {
    /// Asks etcd, linearizably, which store this is and how far it is.
    async fn identity(&self) -> Result<Identity, CallError> {
        identity(&self.endpoints, &self.layout).await
    }

    fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock() = trouble;
    }
}

async fn identity(endpoints: &Endpoints, layout: &Layout) -> Result<Identity, CallError> {
    let request = RangeRequest {
        key: layout.key(ID_KEY),
        ..RangeRequest::default()
    };
    let answer = endpoints.range(&request).await?;
    let header = answer.header.unwrap_or_default();
    let id = answer
        .kvs
        .first()
        .map(|kv| String::from_utf8_lossy(&kv.value).into_owned());
    Ok(Identity {
        id,
        cluster: header.cluster_id,
        revision: header.revision,
    })
}

/// The store's identity, made on first use; waits for etcd for a bounded time.
async fn start(endpoints: &Endpoints, layout: &Layout) -> Result<Identity, OpenError> {
    let give_up = Instant::now() + START_PATIENCE;
    loop {
        let error = match identify(endpoints, layout).await {
            Ok(identity) if identity.id.is_some() => return Ok(identity),
            Ok(_) => "the store id was not kept".to_owned(),
            Err(error) => error.to_string(),
        };
        let left = give_up.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(OpenError::Unavailable(error));
        }
        tracing::warn!(error, seconds_left = left.as_secs(), "Waiting for etcd");
        tokio::time::sleep(START_PAUSE).await;
    }
}

async fn identify(endpoints: &Endpoints, layout: &Layout) -> Result<Identity, CallError> {
    let found = identity(endpoints, layout).await?;
    if found.id.is_some() {
        return Ok(found);
    }
    // Of several coordinators that start together, one wins.
    let create = Op {
        key: ID_KEY.to_owned(),
        expect: Expect::Absent,
        action: Action::Put(
            bytes::Bytes::from(uuid::Uuid::new_v4().to_string()).into(),
            Durability::Durable,
        ),
    };
    endpoints.txn(&layout.request(&[create])).await?;
    identity(endpoints, layout).await
}
