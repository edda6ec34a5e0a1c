//! The etcd backend: several coordinators over one etcd, with kube-apiserver's semantics.
//!
//! ```text
//!   write(ops) ──► one transaction with compares ──► etcd ──► the watch of every coordinator ──► sink ──► answer
//! ```
//!
//! In reading order:
//!
//! * `wire` (etcd's messages), `grpc` (their transport), `version` (usable versions), `endpoints` (choice of the
//!   member),
//! * `timeline` (revisions as RVs), `start` (finding the store), `revision_checkpoint` (highest position seen),
//! * `txn` (transactions of this crate as etcd's), `load` (the complete state), `watch_loop` (the watch that
//!   publishes),
//! * `read_index` (reads that reflect other coordinators' writes), `write_health` (refused writes), `compact`.
//!
//! The RV of a value is the revision of its last write, in its timeline. Only the watch publishes, so readers see
//! committed state in etcd's order. Lease renewals are ordinary writes here.

mod compact;
mod endpoints;
mod error;
#[cfg(test)]
mod fake_member;
mod grpc;
mod load;
mod read_index;
mod revision_checkpoint;
mod start;
mod timeline;
mod txn;
mod version;
mod watch_loop;
mod wire;
mod write_health;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::{ResourceVersion, Space};
use yurt_runtime::TaskGroup;
use yurt_runtime::tls::{ClientTls, TlsError};

use crate::backend::{Op, Sink, Storage, StorageError, TXN_OPS_MAX};
use endpoints::Endpoints;
use grpc::CallError;
use revision_checkpoint::RevisionCheckpoint;
use timeline::Timeline;
use txn::{Layout, Written};
use watch_loop::WatchLoop;
use write_health::WriteHealth;

/// Time after which a writer is answered although the watch has not delivered its write yet: it is committed.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time that a stop waits for etcd.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Default of etcd's `--max-request-bytes`: 1.5 MiB.
pub const MAX_REQUEST_BYTES: usize = 3 << 19;
/// Part of a request reserved for everything but the value: its key, two compares, and etcd's own overhead. A key
/// (prefix, collection, namespace and name at their longest) has 1.3 KiB.
const REQUEST_OVERHEAD: usize = 8 << 10;
/// Maximum length of the prefix in bytes.
const PREFIX_BYTES_MAX: usize = 512;

/// Connection and use of etcd.
#[derive(Clone, Debug)]
pub struct Config {
    /// `http://` or `https://` URLs of the members.
    pub servers: Vec<String>,
    /// Needed for https.
    pub tls: Option<ClientTls>,
    /// Prefix of every key; coordinators with the same prefix share one store.
    pub prefix: String,
    /// Tags the RVs, see [`crate::Embedded::open`].
    pub space: Space,
    /// History older than this is compacted; `None` disables compaction by this process.
    pub compaction_interval: Option<Duration>,
    /// File for the highest position seen. Without it, a rollback of etcd while no coordinator runs is detected only if
    /// the cluster is another one.
    pub mark: Option<PathBuf>,
    /// Maximum size of a request in bytes: etcd's `--max-request-bytes`.
    pub max_request_bytes: usize,
}

/// Reason why etcd cannot be used. Every message names the flag of its cause.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The given servers are invalid.
    #[error("--etcd-servers: {0}")]
    Servers(String),
    /// The prefix is invalid.
    #[error("--etcd-prefix: {0:?} must begin with / and have at most {PREFIX_BYTES_MAX} bytes")]
    Prefix(String),
    /// A certificate file.
    #[error("--etcd-cafile, --etcd-certfile, --etcd-keyfile: {0}")]
    Tls(#[from] TlsError),
    /// The credentials.
    #[error("--etcd-servers: etcd rejects this client: {0}; check --etcd-certfile")]
    Refused(String),
    /// The version of every member.
    #[error("--etcd-servers: {0}")]
    Outdated(String),
    /// The file for the highest position seen.
    #[error("--data-dir: cannot read {0}")]
    Checkpoint(String),
}

/// The etcd-backed store; see the module header.
pub struct Etcd {
    shared: Arc<EtcdState>,
    tasks: TaskGroup,
    compaction_interval: Option<Duration>,
    max_request_bytes: usize,
    waiting: mpsc::Sender<read_index::Waiting>,
    /// Handed to its task by [`Storage::attach`].
    queue: Mutex<Option<mpsc::Receiver<read_index::Waiting>>>,
}

/// State shared by the tasks of a store.
struct EtcdState {
    endpoints: Endpoints,
    layout: Layout,
    /// As found at the start.
    identity: Identity,
    checkpoint: Option<RevisionCheckpoint>,
    /// Everything up to this revision is published.
    published: watch::Sender<i64>,
    /// Wakes the watch to request the next progress notification.
    asked: Notify,
    /// The store may be another one: it must be verified before anything else is published.
    doubted: Notify,
    /// Reason why the watch is not open; `None` if it is open.
    trouble: Mutex<Option<String>>,
    writes: Mutex<WriteHealth>,
}

/// Identity of the store, and its present position.
#[derive(Clone, Debug)]
struct Identity {
    /// `None` before there is a store.
    timeline: Option<Timeline>,
    /// Revision of the timeline's record.
    written: i64,
    cluster: u64,
    revision: i64,
}

/// Reason why the store is not known to be the published one.
#[derive(Debug)]
enum Unverified {
    /// etcd gave no answer.
    Unanswered(CallError),
    /// It is another store, or has gone back.
    Other(String),
}

// === impl Etcd ===

impl Etcd {
    /// Connects to etcd, waiting for it without limit, and creates the store id on first use. Tasks run in `tasks`; a
    /// task that ends without a stop has found another store than before.
    ///
    /// # Errors
    /// [`OpenError`], naming the cause that waiting does not resolve.
    pub async fn connect(config: Config, tasks: &TaskGroup) -> Result<Self, OpenError> {
        let prefix = config.prefix.trim_end_matches('/').to_owned();
        if !config.prefix.starts_with('/') || prefix.len() > PREFIX_BYTES_MAX {
            return Err(OpenError::Prefix(config.prefix));
        }
        let tag = match config.space {
            Space::Own => ResourceVersion::OWN_BIT,
            Space::Cloud => 0,
        };
        let mut layout = Layout {
            prefix,
            tag,
            // Placeholder until the timeline is found.
            timeline: Timeline::begin(String::new(), 0, 0, 0),
        };
        let endpoints = Endpoints::new(&config.servers, config.tls, tasks)?;
        let checkpoint = config
            .mark
            .as_deref()
            .map(RevisionCheckpoint::open)
            .transpose()
            .map_err(OpenError::Checkpoint)?;
        let identity = start::find(&endpoints, &mut layout, checkpoint.as_ref()).await?;
        let (waiting, queue) = mpsc::channel(read_index::WAITING_MAX);
        Ok(Self {
            shared: Arc::new(EtcdState {
                endpoints,
                layout,
                identity,
                checkpoint,
                published: watch::Sender::new(0),
                asked: Notify::new(),
                doubted: Notify::new(),
                trouble: Mutex::new(None),
                writes: Mutex::default(),
            }),
            tasks: tasks.clone(),
            compaction_interval: config.compaction_interval,
            max_request_bytes: config.max_request_bytes,
            waiting,
            queue: Mutex::new(Some(queue)),
        })
    }

    async fn load(&self, sink: Arc<dyn Sink>, queue: mpsc::Receiver<read_index::Waiting>) -> Result<(), StorageError> {
        let shared = &self.shared;
        let mut wait = start::Wait::default();
        let (mut loaded, at) = loop {
            match load::live(&shared.endpoints, &shared.layout).await {
                Ok(live) => break live,
                Err(error) => wait.after(error).await.map_err(|error| error::of_read(&error))?,
            }
        };
        load::add_deletions(&shared.endpoints, &shared.layout, &mut loaded, at).await;
        loaded.floor = loaded.floor.max(shared.layout.floor());
        sink.load(loaded)?;
        shared.published.send_replace(at);
        let watch_loop = WatchLoop {
            shared: shared.clone(),
            sink,
            last: at,
            stop: self.tasks.token(),
        };
        self.tasks.spawn_critical("etcd-watch", watch_loop.run());
        let index = read_index::run(shared.clone(), queue, self.tasks.token());
        self.tasks.spawn_critical("etcd-read-index", index);
        self.tasks
            .spawn_critical("etcd-verify", watch_loop::verify(shared.clone(), self.tasks.token()));
        if shared.checkpoint.is_some() {
            self.tasks.spawn_critical(
                "etcd-mark",
                revision_checkpoint::run(shared.clone(), self.tasks.token()),
            );
        }
        if let Some(interval) = self.compaction_interval {
            let compact = compact::run(shared.clone(), interval, self.tasks.token());
            self.tasks.spawn_critical("etcd-compact", compact);
        }
        Ok(())
    }
}

impl Storage for Etcd {
    fn id(&self) -> &str {
        &self.shared.layout.timeline.id
    }

    fn attach(&self, sink: Arc<dyn Sink>) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move {
            let queue = self.queue.lock().take();
            let queue = queue.ok_or_else(|| StorageError::Unavailable("already attached".into()))?;
            self.load(sink, queue).await
        })
    }

    fn write(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<ResourceVersion, StorageError>> {
        if ops.len() > TXN_OPS_MAX {
            return Box::pin(std::future::ready(Err(StorageError::TooLarge(ops.len()))));
        }
        let (shared, stop) = (self.shared.clone(), self.tasks.token());
        let written = self
            .tasks
            .detached("etcd-write", async move { shared.commit(&ops, &stop).await });
        Box::pin(async {
            written
                .await
                .unwrap_or_else(|lost| Err(StorageError::Unknown(lost.to_string())))
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

    fn value_bytes_max(&self) -> Option<usize> {
        Some(self.max_request_bytes.saturating_sub(REQUEST_OVERHEAD))
    }

    /// Sends no request: the watch and the writes of this process show the state.
    fn check(&self) -> BoxFuture<'_, Result<(), StorageError>> {
        let trouble = self.shared.trouble.lock().clone();
        let is_open = trouble.map_or(Ok(()), |why| Err(StorageError::Unavailable(why)));
        let checked = is_open.and_then(|()| self.shared.writes.lock().check(Instant::now()));
        Box::pin(std::future::ready(checked))
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StorageError>> {
        // Everything acknowledged is stored in etcd already; the tasks end with their group.
        Box::pin(async {
            let noted = tokio::time::timeout(CLOSE_TIMEOUT, revision_checkpoint::note(&self.shared));
            if noted.await.is_err() {
                self.shared.note_mark();
            }
            Ok(())
        })
    }
}

// === impl Identity ===

impl Identity {
    /// Contradiction between this store, with everything published up to the revision `published`, and a later `now`;
    /// `None` if it is the same store.
    fn contradicts(&self, published: i64, now: &Self) -> Option<String> {
        if now.timeline != self.timeline {
            return Some(format!("the store was {:?} and is {:?}", self.timeline, now.timeline));
        }
        if now.cluster != self.cluster {
            return Some(format!("etcd cluster was {:x} and is {:x}", self.cluster, now.cluster));
        }
        let is_back = now.revision < published;
        is_back.then(|| format!("etcd went back from revision {published} to {}", now.revision))
    }
}

// === impl EtcdState ===

impl EtcdState {
    /// Executes one transaction; answers once this process has published it, too.
    async fn commit(&self, ops: &[Op], stop: &CancellationToken) -> Result<ResourceVersion, StorageError> {
        let written = self.transact(ops).await;
        self.writes.lock().note(ops, &written, Instant::now());
        let written = written?;
        if written.is_new {
            let mut published = self.published.subscribe();
            let told = published.wait_for(|revision| *revision >= written.revision);
            if tokio::time::timeout(PUBLISH_TIMEOUT, stop.run_until_cancelled(told))
                .await
                .is_err()
            {
                tracing::warn!(
                    revision = written.revision,
                    "Write committed, but not yet delivered by the watch"
                );
            }
        }
        Ok(self.layout.rv(written.revision))
    }

    async fn transact(&self, ops: &[Op]) -> Result<Written, StorageError> {
        let answer = self.endpoints.txn(&self.layout.request(ops)).await;
        let answer = answer.map_err(|error| error::of_write(&error))?;
        self.layout.outcome(ops, &answer)
    }

    /// Reads from etcd, linearizably, the store's identity and position. A contradiction wakes the watch.
    async fn identity(&self) -> Result<Identity, Unverified> {
        // Before the request: the watch may be ahead of the answer.
        let published = *self.published.borrow();
        let now = start::look(&self.endpoints, &self.layout).await;
        let now = now.map_err(Unverified::Unanswered)?;
        match self.identity.contradicts(published, &now) {
            None => Ok(now),
            Some(why) => {
                self.doubted.notify_one();
                Err(Unverified::Other(why))
            }
        }
    }

    /// Writes the highest position seen into the file. Not into etcd, which may be another one now.
    fn note_mark(&self) {
        let published = *self.published.borrow();
        if let Some(checkpoint) = self.checkpoint.as_ref().filter(|_| published > 0) {
            checkpoint.write(self.layout.timeline.number(published), &self.identity);
        }
    }

    fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock() = trouble;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::HeaderValue;
    use prost::Message as _;

    use super::*;
    use crate::backend::{Committed, Loaded};
    use crate::etcd3::wire::{
        KeyValue, RANGE, RangeRequest, RangeResponse, ResponseHeader, STATUS, StatusResponse, WATCH,
    };

    /// Number of values loaded.
    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Sink for Counting {
        fn load(&self, loaded: Loaded) -> Result<(), StorageError> {
            self.0.store(loaded.live.len(), Ordering::SeqCst);
            Ok(())
        }

        fn committed(&self, _rv: ResourceVersion, _changes: &[Committed]) {}

        fn reloaded(&self, _loaded: Loaded) {}
    }

    /// A member with one value, whose first page fails: it answers the record, then it elects again.
    async fn member_that_elects_once(tasks: &TaskGroup) -> String {
        let pages = AtomicUsize::new(0);
        let unavailable = || fake_member::refusal(HeaderValue::from_static("14"));
        let answer = move |path: &str, message| match path {
            STATUS => fake_member::message(&StatusResponse {
                version: "3.6.6".into(),
            }),
            WATCH => unavailable(),
            RANGE => {
                let RangeRequest { key, range_end, .. } = RangeRequest::decode(message).expect("a range");
                if !range_end.is_empty() && pages.fetch_add(1, Ordering::SeqCst) == 0 {
                    return unavailable();
                }
                let kv = |key, value: &str| KeyValue {
                    key,
                    mod_revision: 2,
                    version: 1,
                    value: value.to_owned().into(),
                };
                let found = match range_end.is_empty() {
                    true => kv(key, "id 100 1 1"),
                    false => kv("/yurt/configmaps/x/a".into(), "{}"),
                };
                fake_member::message(&RangeResponse {
                    header: Some(ResponseHeader {
                        cluster_id: 1,
                        revision: 3,
                    }),
                    kvs: vec![found],
                    more: false,
                })
            }
            path => panic!("{path} is not called"),
        };
        fake_member::start(tasks, answer).await
    }

    #[tokio::test(start_paused = true)]
    async fn start_waits_for_an_etcd_that_fails_while_it_is_loaded() {
        let tasks = TaskGroup::new();
        let config = Config {
            servers: vec![member_that_elects_once(&tasks).await],
            tls: None,
            prefix: "/yurt".into(),
            space: Space::Own,
            compaction_interval: None,
            mark: None,
            max_request_bytes: MAX_REQUEST_BYTES,
        };
        let etcd = Etcd::connect(config, &tasks).await.expect("the store is found");
        let sink = Arc::new(Counting::default());
        etcd.attach(sink.clone()).await.expect("the state is loaded");
        assert_eq!(sink.0.load(Ordering::SeqCst), 1);
    }
}
