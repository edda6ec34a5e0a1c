//! Feed of the leader: sends every replica to the coordinator, fenced, starting at the coordinator's position.
//!
//! One task per collection, one request in flight. While an answer is awaited, the next batch accumulates in the
//! collection itself, which is the only queue. `yurt_pool_protocol::resume` decides how to continue from the
//! coordinator's position, `yurt_pool_protocol::feed` builds the bodies, `snapshot` sends a whole state, [`progress`]
//! tracks the lag.

mod history;
pub mod progress;
mod snapshot;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::time::BootTime;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion, Status};
use yurt_collection::{Collection, Delivery, Expired, Reader};
use yurt_pool_protocol::feed::{self, Envelope, FeedAnswer, as_events, reason};
use yurt_pool_protocol::members;
use yurt_pool_protocol::names::FEED_PATH;
use yurt_pool_protocol::resume::{CopyState, ResumePlan};
use yurt_runtime::http::client::HttpClient;
use yurt_runtime::http::{APPLICATION_JSON, full, gzip_bytes};
use yurt_storage::Replica;

use crate::health::pool_status;
use crate::metrics::Metrics;
use crate::pool::election::driver::Leadership;
use crate::replicas::PoolData;
use crate::upstream::{Cloud, describe_answer, retry_after};
use progress::FeedProgress;

/// Maximum number of events in one batch.
const BATCH: usize = 120;
/// Approximate bytes of bodies in one request: some 100 KiB on the wire, which a thin link carries within [`TIMEOUT`].
const CHUNK_BYTES: usize = 512 << 10;
/// Bodies up to this size are sent uncompressed.
const GZIP_ABOVE: usize = 1 << 10;
/// Bodies below this size are compressed inline; handing them to a blocking thread costs more.
const GZIP_HERE: usize = 64 << 10;
/// Interval of empty batches for a quiet collection: they confirm that it is fresh.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Maximum wait for one answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failure, or while this hub may not act.
const PAUSE: Duration = Duration::from_millis(200);
/// Minimum and maximum pause after any other refusal; the coordinator's `Retry-After` is clamped to them.
const REFUSED_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Maximum pause after an object was refused as too large: the store's limit may have been raised.
const TOO_LARGE_PAUSE: Duration = Duration::from_secs(300);
/// Pause after a refusal because another hub leads.
const FENCED_PAUSE: Duration = Duration::from_secs(1);
/// Maximum size of an answer, bytes.
const ANSWER_BYTES: usize = 64 << 20;

/// Feed of one collection while this hub leads.
pub struct Feeder {
    /// Replica to feed.
    pub replica: Arc<Replica>,
    /// Pool data; source of freshness.
    pub data: Arc<PoolData>,
    /// Client of the coordinator.
    pub client: HttpClient,
    /// The cloud, source of the replica.
    pub cloud: Arc<Cloud>,
    /// Leadership that permits the feed.
    pub leadership: Arc<Leadership>,
    /// Metrics of the hub.
    pub metrics: Arc<Metrics>,
    /// Progress of the feed.
    pub progress: Arc<FeedProgress>,
    /// Cancelled when the feed must end.
    pub token: CancellationToken,
    /// True if the coordinator accepts gzip; read from its state before each start.
    pub gzip: AtomicBool,
    /// True if the last membership was refused because it lacks this node.
    pub is_no_member: AtomicBool,
}

/// Body ready to send.
struct Packed {
    body: Bytes,
    gzip: bool,
}

/// Reason to restart the feed.
#[derive(Debug)]
enum Interrupted {
    /// The coordinator is at another position, or one batch cannot hold what must stay together.
    Snapshot,
    /// The coordinator refused the membership, because it lacks this hub's node: a member has to lead.
    NotMember(String),
    /// The coordinator has another history under the same generation.
    Contradicted(String),
    /// Read the coordinator's position again.
    Reopen(String),
    /// The coordinator refused, possibly with a time to retry after.
    Refused(String, Option<Duration>),
    /// The coordinator's store does not accept the object with this key.
    TooLarge { why: String, key: ObjectKey },
    /// Another hub leads. The election ends this feed as soon as it sees that itself.
    Fenced,
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.data.failures().forget(&self.what());
    }
}

// === impl Feeder ===

impl Feeder {
    /// Feeds until the leadership's token is cancelled.
    pub async fn run(self) {
        let token = self.token.clone();
        token.run_until_cancelled(self.feed()).await;
    }

    async fn feed(&self) {
        self.replica.collection().reached(ResourceVersion::ZERO).await;
        let mut snapshot = false;
        loop {
            let outcome = match self.open(snapshot).await {
                Ok((reader, generation)) => self.follow(reader, generation).await,
                Err(interrupted) => interrupted,
            };
            match outcome {
                Interrupted::Snapshot => snapshot = true,
                Interrupted::Contradicted(why) => {
                    self.begin_generation(&why);
                    tokio::time::sleep(PAUSE).await;
                }
                Interrupted::Fenced => {
                    snapshot = false;
                    tokio::time::sleep(FENCED_PAUSE).await;
                }
                Interrupted::Refused(why, after) => {
                    snapshot = false;
                    self.data.failures().refused(&self.what(), &why);
                    tokio::time::sleep(after.unwrap_or(REFUSED_PAUSE.0).clamp(REFUSED_PAUSE.0, REFUSED_PAUSE.1)).await;
                }
                Interrupted::NotMember(why) => {
                    snapshot = false;
                    self.data.failures().refused(&self.what(), &why);
                    // Labels that are set one after the other make this node a member a moment later.
                    if self.is_no_member.swap(true, Ordering::Relaxed) {
                        self.leadership.not_a_member();
                    }
                    tokio::time::sleep(REFUSED_PAUSE.0).await;
                }
                Interrupted::TooLarge { why, key } => {
                    // Events would carry the object's earlier states, even if the object is small again.
                    snapshot = true;
                    self.data.failures().refused(&self.what(), &why);
                    self.another_state_of(&key).await;
                }
                Interrupted::Reopen(why) => {
                    snapshot = false;
                    tracing::debug!(collection = self.replica.name(), why, "Feed interrupted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Waits until the object has changed or is gone, or until the next try is due.
    async fn another_state_of(&self, key: &ObjectKey) {
        let collection = self.replica.collection();
        let version = || collection.read(|c| c.object(key).map(Object::resource_version));
        let mut changes = collection.subscribe();
        let before = version();
        tokio::time::sleep(REFUSED_PAUSE.1).await;
        let changed = async { while version() == before && changes.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(TOO_LARGE_PAUSE, changed).await;
    }

    /// Returns the failure key of a refusal by the coordinator.
    fn what(&self) -> String {
        format!("feed of {}", self.replica.name())
    }

    /// Returns a reader at the coordinator's position and its generation. Sends a snapshot first if the coordinator
    /// cannot resume.
    async fn open(&self, snapshot: bool) -> Result<(Reader, u64), Interrupted> {
        let there = self.ask().await?;
        self.open_at(there, snapshot).await
    }

    /// Same as [`Self::open`], for a coordinator that is at `there`.
    async fn open_at(&self, there: CopyState, snapshot: bool) -> Result<(Reader, u64), Interrupted> {
        let here = self.here();
        let proven = self.data.history().holds(self.replica.name(), here.generation);
        match ResumePlan::of(there, here, proven, fastrand::u64(..)) {
            ResumePlan::AwaitProof => Err(Interrupted::Reopen(
                "no proof yet that the replica has the present cloud's history".into(),
            )),
            ResumePlan::List => {
                self.list_again(here.generation, there.generation);
                Err(Interrupted::Reopen("the fed data is void".into()))
            }
            ResumePlan::Exhausted => Err(Interrupted::Refused(
                history::exhausted(self.replica.name(), there.generation),
                None,
            )),
            ResumePlan::Begin(generation) => {
                self.renumber(here.generation, generation);
                self.send_snapshot(there).await
            }
            ResumePlan::Wait if !snapshot => {
                let reached = self.replica.collection().reached(there.position);
                if tokio::time::timeout(KEEP_ALIVE, reached).await.is_err() {
                    self.leave_behind(there).await;
                }
                Err(Interrupted::Reopen("the coordinator is ahead".into()))
            }
            ResumePlan::Events if !snapshot => {
                let reader = self.reader_at(there.position, here.generation);
                Ok((reader.ok_or(Interrupted::Snapshot)?, here.generation))
            }
            ResumePlan::Snapshot | ResumePlan::Wait | ResumePlan::Events => self.send_snapshot(there).await,
        }
    }

    /// Returns a reader at `position` of `generation`; `None` if the collection has another generation by then.
    fn reader_at(&self, position: ResourceVersion, generation: u64) -> Option<Reader> {
        let open = |c: &Collection| (c.generation() == generation).then(|| c.open(position).ok());
        self.replica.collection().read(open).flatten()
    }

    fn here(&self) -> CopyState {
        self.replica.collection().read(|c| CopyState {
            position: c.position(),
            generation: c.generation(),
            complete: c.is_complete(),
        })
    }

    async fn ask(&self) -> Result<CopyState, Interrupted> {
        let status = pool_status(&self.client, TIMEOUT).await;
        let status = status.map_err(|why| Interrupted::Reopen(why.to_string()))?;
        if let Some(why) = status.other_version() {
            return Err(Interrupted::Refused(why, None));
        }
        let gzip = status.encodings.iter().any(|encoding| encoding == "gzip");
        self.gzip.store(gzip, Ordering::Relaxed);
        let there = status.collections.get(self.replica.name());
        Ok(there.map_or_else(CopyState::default, |collection| CopyState {
            position: ResourceVersion::parse(&collection.applied_up_to).unwrap_or_default(),
            generation: collection.generation,
            complete: collection.complete,
        }))
    }

    async fn follow(&self, mut reader: Reader, generation: u64) -> Interrupted {
        let mut changes = self.replica.collection().subscribe();
        let mut fed = reader.position();
        // True if the last batch reported fresh data.
        let mut reported_fresh = false;
        loop {
            changes.borrow_and_update();
            let mut read_at = self.progress.now();
            let Ok((deliveries, step)) = self.read(&mut reader) else {
                return Interrupted::Snapshot;
            };
            if deliveries.is_empty() && reader.position() == fed {
                match self.has_changed(&mut changes, reported_fresh).await {
                    Ok(true) => continue,
                    // Nothing came in between.
                    Ok(false) => read_at = self.progress.now(),
                    Err(interrupted) => return interrupted,
                }
            }
            self.progress.sending(self.replica.name(), read_at);
            let Some(events) = as_events(fed, &deliveries) else {
                return Interrupted::Snapshot;
            };
            let batches = feed::batches(events, reader.position(), CHUNK_BYTES);
            if step && batches.len() > 1 {
                return Interrupted::Snapshot;
            }
            for (batch, up_to) in batches {
                // If no answer comes, the coordinator's position shows whether it accepted the batch.
                match self.send_until_accepted(generation, fed, (&batch, up_to), step).await {
                    Ok(fresh) => (fed, reported_fresh) = (up_to, fresh),
                    Err(interrupted) => return interrupted,
                }
                if up_to == reader.position() {
                    self.delivered(up_to, read_at);
                }
            }
        }
    }

    /// Waits until the collection has changed (true), or an empty batch is due (false). Fresh data is reported at once,
    /// everything else after [`KEEP_ALIVE`]: the cloud confirms the replica of a new leader a moment later.
    async fn has_changed(&self, changes: &mut watch::Receiver<u64>, reported_fresh: bool) -> Result<bool, Interrupted> {
        let due = Instant::now() + KEEP_ALIVE;
        loop {
            if !reported_fresh && self.data.is_fresh_from_cloud(self.replica.name()) {
                // The replica changes before its source counts as heard.
                return Ok(changes.has_changed().unwrap_or(false));
            }
            let wake_at = if reported_fresh {
                due
            } else {
                due.min(Instant::now() + PAUSE)
            };
            match tokio::time::timeout_at(wake_at, changes.changed()).await {
                Ok(Ok(())) => return Ok(true),
                Ok(Err(_)) => return Err(Interrupted::Reopen("the collection is gone".into())),
                Err(_) if Instant::now() >= due => return Ok(false),
                Err(_) => {}
            }
        }
    }

    /// Returns the next deliveries, and whether they are one step. A step is read as a whole: the coordinator must
    /// never hold a part of it.
    fn read(&self, reader: &mut Reader) -> Result<(Vec<Delivery>, bool), Expired> {
        self.replica.collection().read(|collection| {
            let mut deliveries = collection.read(reader, BATCH)?;
            let step = matches!(deliveries.first(), Some(Delivery::DiffBegin(_)));
            while step && !matches!(deliveries.last(), Some(Delivery::DiffEnd { .. })) {
                deliveries.extend(collection.read(reader, usize::MAX)?);
            }
            Ok((deliveries, step))
        })
    }

    /// Sends one batch. Returns whether it reported fresh data. With the failpoint `leader-clock-check=off` it repeats
    /// the batch after a fence.
    async fn send_until_accepted(
        &self,
        generation: u64,
        after: ResourceVersion,
        batch: (&[(EventType, Object)], ResourceVersion),
        step: bool,
    ) -> Result<bool, Interrupted> {
        loop {
            match self.send_events(generation, after, batch, step).await {
                Err(Interrupted::Fenced) if self.leadership.is_blind() => tokio::time::sleep(PAUSE).await,
                sent => return sent,
            }
        }
    }

    async fn send_events(
        &self,
        generation: u64,
        after: ResourceVersion,
        (events, up_to): (&[(EventType, Object)], ResourceVersion),
        step: bool,
    ) -> Result<bool, Interrupted> {
        let fresh = self.data.is_fresh_from_cloud(self.replica.name());
        let body = self.envelope(generation).events(after, events, up_to, fresh, step);
        self.post("events", self.pack(body).await?).await?;
        Ok(fresh)
    }

    /// Records that the coordinator has everything that was here at `read_at`.
    fn delivered(&self, up_to: ResourceVersion, read_at: BootTime) {
        self.is_no_member.store(false, Ordering::Relaxed);
        let position = self.replica.collection().read(|c| c.position());
        self.progress.delivered(self.replica.name(), up_to, position, read_at);
        let took = self.progress.now().since(read_at);
        self.metrics.feed_delivery.observe(took.as_secs_f64());
    }

    fn envelope(&self, generation: u64) -> Envelope<'_> {
        let fence = &self.leadership.fence;
        Envelope {
            store: &fence.store,
            epoch: fence.epoch,
            generation,
        }
    }

    /// Same as [`Self::pack`], for an optional body.
    async fn packed(&self, body: Option<Bytes>) -> Result<Option<Packed>, Interrupted> {
        match body {
            Some(body) => self.pack(body).await.map(Some),
            None => Ok(None),
        }
    }

    /// Compresses `body` where that pays and the coordinator accepts it.
    async fn pack(&self, body: Bytes) -> Result<Packed, Interrupted> {
        let gzip = self.gzip.load(Ordering::Relaxed) && body.len() > GZIP_ABOVE;
        let body = if gzip { compressed(body).await? } else { body };
        Ok(Packed { body, gzip })
    }

    async fn post(&self, endpoint: &str, Packed { body, gzip }: Packed) -> Result<FeedAnswer, Interrupted> {
        if !self.leadership.may_act() {
            return Err(Interrupted::Reopen("leadership is uncertain".into()));
        }
        let path = format!(
            "{FEED_PATH}/{}/{endpoint}?version={}",
            self.replica.name(),
            feed::VERSION
        );
        let reopen = |why: String| Interrupted::Reopen(why);
        let mut request = Request::new(full(body));
        if gzip {
            let encoding = http::HeaderValue::from_static("gzip");
            request.headers_mut().insert(http::header::CONTENT_ENCODING, encoding);
        }
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path.parse().map_err(|_| reopen(format!("{path:?} is not a path")))?;
        request
            .headers_mut()
            .insert(http::header::CONTENT_TYPE, APPLICATION_JSON);
        let answered = self.client.request_bytes(request, TIMEOUT, ANSWER_BYTES).await;
        let (status, headers, body) = answered.map_err(|error| reopen(error.to_string()))?;
        let answer: FeedAnswer = serde_json::from_slice(&body).unwrap_or_default();
        match status {
            StatusCode::OK => {
                self.metrics.feed_batches.inc();
                self.data.failures().works(&self.what());
                Ok(answer)
            }
            StatusCode::CONFLICT => {
                let why = answer.reason.unwrap_or_default();
                if why == reason::FENCED {
                    self.metrics.feed_fenced.inc();
                    return Err(Interrupted::Fenced);
                }
                if why == reason::MEMBERS && self.replica.name() == members::COLLECTION {
                    return Err(Interrupted::NotMember(answer.message.unwrap_or(why)));
                }
                if [reason::VERSION, reason::POSITION].contains(&why.as_str()) {
                    return Err(Interrupted::Refused(answer.message.unwrap_or(why), None));
                }
                if why == reason::BACKWARDS {
                    return Err(Interrupted::Contradicted(answer.message.unwrap_or_default()));
                }
                Err(reopen(format!(
                    "{why} (the coordinator is at {:?})",
                    answer.applied_up_to
                )))
            }
            status => {
                let why = describe_answer(status, &body);
                Err(match self.too_large(status, &body) {
                    Some(key) => Interrupted::TooLarge { why, key },
                    None => Interrupted::Refused(why, retry_after(&headers)),
                })
            }
        }
    }

    /// Returns the key of the object of this collection that the coordinator's store rejects as too large, if the
    /// answer names one.
    fn too_large(&self, status: StatusCode, body: &[u8]) -> Option<ObjectKey> {
        let said = Status::from_json(body).filter(|_| status == StatusCode::PAYLOAD_TOO_LARGE)?;
        let details = said.details()?;
        (details.kind == self.replica.name() && !details.name.is_empty()).then(|| ObjectKey::parse(&details.name))
    }
}

/// Compresses `body` with gzip; large ones on a blocking thread.
async fn compressed(body: Bytes) -> Result<Bytes, Interrupted> {
    if body.len() < GZIP_HERE {
        return Ok(gzip_bytes(&body));
    }
    let made = tokio::task::spawn_blocking(move || gzip_bytes(&body)).await;
    made.map_err(|error| Interrupted::Reopen(error.to_string()))
}

#[cfg(test)]
mod tests;
