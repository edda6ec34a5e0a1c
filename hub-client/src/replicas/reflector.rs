//! Follows one collection at one server: a list when needed (`listing.rs`), then a watch, applied to the replica event
//! by event.

mod answer;
mod request;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::watch::{Bookmark, EventType, RawEvent, WatchDecoder};
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion};
use yurt_collection::generation::GENERATION_END;
use yurt_collection::{Collection, WriteError};
use yurt_pool_protocol::cloud_fallback::Begin;
use yurt_pool_protocol::history::next_generation;
use yurt_pool_protocol::members;
use yurt_pool_protocol::source::Source;
use yurt_runtime::http::Decoded;
use yurt_runtime::http::client::HttpClient;
use yurt_storage::serve::{ANNOTATION_DIFF_DONE, ANNOTATION_DIFF_TO, ANNOTATION_DIFF_WATCHED, ANNOTATION_STALE};
use yurt_storage::{NotApplied, Replica};

pub(super) use answer::{ended_by, generation_of, read_all, read_checked};

use super::PoolData;
use super::budget::Oversized;
use super::nodepool::is_named;
use super::sources::silence_of;

/// Maximum time without progress of a list page, or of the headers of a watch.
pub(super) const IDLE: Duration = Duration::from_secs(30);
/// Minimum duration requested for a watch; the maximum is twice that.
const WATCH_SECONDS: u64 = 300;
/// Time before its end from which a watch's end counts as its regular one: the server's clock began earlier than ours.
const TIMER_SLACK: Duration = Duration::from_secs(1);
/// Name of the failure while no Node carries the pool's label.
const LABELS: &str = "labels of the pool's Nodes";
/// Maximum proofs that a stream of the cloud waits for until one covers the replica.
const PROOFS_MAX: u32 = 3;
/// Time after its regular end at which the hub abandons a watch that its server does not end.
const OVERDUE: Duration = Duration::from_secs(30);
/// Request header of a replica at the coordinator.
pub const REPLICA_HEADER: &str = "yurt-replica";
/// Header that carries the generation of pool data.
pub const GENERATION_HEADER: &str = "yurt-generation";

/// Reason for the end of a stream.
#[derive(Debug)]
pub enum StreamEnd {
    /// Normal end: watch again from the last position.
    Closed,
    /// The server has compacted our position.
    Expired,
    /// The server asks to retry later, after this time if it sent one.
    NotReady(Option<Duration>),
    /// The server refused; the text is its reason.
    Refused(String),
    /// The server's data exceeds the limit of bytes of all replicas.
    Oversized(Oversized),
    /// The disk does not store the mark that the server's next change needs; the text has the details.
    Unstored(String),
    /// The server has another generation than the replica: list.
    OtherHistory,
    /// Another source began another generation of the replica: this stream's data does not belong to it.
    Overtaken,
    /// The server sent unreadable data; the text has the details.
    Unreadable(String),
    /// The server keeps the watch open and sends nothing, or does not end it; the text is for the log.
    Silent(String),
    /// Any other reason; the text is for the log.
    Failed(String),
    /// As [`Self::Failed`], but some received data is kept.
    Interrupted(String),
}

/// One collection at one server.
pub struct Reflector {
    /// The source.
    pub source: Source,
    /// The server.
    pub client: HttpClient,
    /// Index of that server in the cloud.
    pub place: usize,
    /// Replica to update.
    pub replica: Arc<Replica>,
    /// Records signs of life.
    pub data: Arc<PoolData>,
    /// Name of the pool, for the membership.
    pub pool: String,
    /// Random number of the caller, for the length of the watch.
    pub random: u64,
    /// Notified once the server has confirmed a position at or above ours.
    pub confirmed: Option<oneshot::Sender<()>>,
    /// Start of the watch.
    pub opened: Option<Instant>,
    /// Generation of the replica that this stream was opened for, or that it began; it changes no other.
    pub generation: u64,
    /// True if the replica may resume elsewhere instead of relisting.
    pub has_detour: bool,
}

/// Events between an announced step and its end. A cut drops them: `C` did not move.
struct PendingStep {
    /// Position at the server where the step begins.
    from: ResourceVersion,
    events: Vec<(EventType, Object)>,
    /// Size of the events.
    bytes: usize,
}

// === impl StreamEnd ===

impl StreamEnd {
    /// True if the server may have ended the stream because it has another history, so that a proof is needed. False if the
    /// server gave a reason or the hub ended the stream: a resource that is refused for days would otherwise cause permanent
    /// proofs.
    fn may_be_of_the_history(&self) -> bool {
        match self {
            Self::NotReady(_)
            | Self::Overtaken
            | Self::Refused(_)
            | Self::Oversized(_)
            | Self::Unstored(_)
            | Self::Unreadable(_) => false,
            Self::Closed
            | Self::Expired
            | Self::OtherHistory
            | Self::Silent(_)
            | Self::Failed(_)
            | Self::Interrupted(_) => true,
        }
    }
}

// === impl Reflector ===

impl Reflector {
    /// Runs until the stream ends.
    pub async fn run(mut self, begin: Begin) -> StreamEnd {
        if self.source != Source::Cloud {
            return self.follow(begin).await;
        }
        let history = self.data.history().clone();
        let Some(may_resume) = self.prove().await else {
            return StreamEnd::Failed("the cloud does not answer".into());
        };
        let replica = self.replica.clone();
        let is_gone = self.is_gone();
        let begin = match (may_resume, begin) {
            (false, Begin::ResumeOnly) => return StreamEnd::Expired,
            (false, _) => Begin::List,
            (true, begin) => begin,
        };
        let lost = async {
            match is_gone {
                // The next list begins a new generation.
                true => std::future::pending().await,
                false => history.lost(&replica).await,
            }
        };
        let ended = tokio::select! {
            ended = self.follow(begin) => ended,
            () = lost => return StreamEnd::Closed,
        };
        let lasted = self.opened.map_or(Duration::ZERO, |opened| opened.elapsed());
        let timed_out = matches!(ended, StreamEnd::Closed) && lasted + TIMER_SLACK >= self.lasts();
        if !timed_out && ended.may_be_of_the_history() {
            history.reopen();
        }
        ended
    }

    /// Waits for a proof about the replica. Returns whether the cloud has its history; `None` if there is no proof.
    async fn prove(&mut self) -> Option<bool> {
        let (history, name) = (self.data.history(), self.replica.name());
        for _ in 0..PROOFS_MAX {
            if !history.proven().await {
                return None;
            }
            let held = |held: &Collection| (held.generation(), held.is_complete());
            let (generation, is_complete) = self.replica.collection().read(held);
            self.generation = generation;
            if history.is_gone(name, generation) || !is_complete {
                return Some(false);
            }
            if history.is_about(name, generation) {
                return Some(true);
            }
            // A list of the coordinator was applied during the proof.
            history.reopen();
        }
        None
    }

    async fn follow(&mut self, begin: Begin) -> StreamEnd {
        if !self.reads_nodes() {
            return self.follow_objects(begin).await;
        }
        match self.follow_node_pool().await {
            Err(ended) => ended,
            Ok(None) => self.follow_objects(begin).await,
            Ok(Some(node_pool)) => tokio::select! {
                ended = self.follow_objects(begin) => ended,
                () = node_pool.decides() => StreamEnd::Closed,
            },
        }
    }

    async fn follow_objects(&mut self, begin: Begin) -> StreamEnd {
        let is_known = |held: &Collection| {
            // No watch saw the changes of the Nodes while a NodePool decided.
            let is_of_node_pool = self.reads_nodes() && held.objects().any(is_named);
            held.is_complete() && !is_of_node_pool
        };
        // A member that only an earlier leader fed would survive a watch that resumes there.
        let begin = match begin {
            Begin::Resume if self.reads_nodes() && !self.followed_the_cloud() => Begin::List,
            begin => begin,
        };
        let is_known = self.replica.collection().read(is_known);
        if begin == Begin::List || !is_known {
            if begin == Begin::ResumeOnly {
                return StreamEnd::Expired;
            }
            if let Err(ended) = self.list().await {
                return ended;
            }
        }
        match self.watch().await {
            Ok(ended) | Err(ended) => ended,
        }
    }

    /// True if no other source was confirmed since the cloud was.
    fn followed_the_cloud(&self) -> bool {
        self.data.sources().of(self.replica.name()).confirmed == Source::Cloud
    }

    /// True if the cloud has lost the history of our objects.
    pub(super) fn is_gone(&self) -> bool {
        self.source == Source::Cloud && self.data.history().is_gone(self.replica.name(), self.generation)
    }

    /// Changes the replica up to `to` if it is still of this stream's generation. Waits for the disk if the stored mark
    /// does not cover `to`.
    pub(super) async fn change<T>(
        &self,
        to: ResourceVersion,
        change: impl FnOnce(&mut Collection) -> T,
    ) -> Result<T, StreamEnd> {
        let replicas = self.data.replicas();
        let covered = replicas.cover(&self.replica, self.generation, to, None).await;
        covered.map_err(|error| {
            StreamEnd::Unstored(format!("changes up to resourceVersion {to} wait for the disk: {error}"))
        })?;
        let changed = self.replica.collection().update_of(self.generation, to, change);
        changed.map_err(|error| match error {
            NotApplied::OtherHistory { .. } => StreamEnd::Overtaken,
            NotApplied::Uncovered { .. } => StreamEnd::Unstored(error.to_string()),
        })
    }

    /// Reads the replica if it is still of this stream's generation.
    fn look<T>(&self, look: impl FnOnce(&Collection) -> T) -> Result<T, StreamEnd> {
        let look = |held: &Collection| (held.generation() == self.generation).then(|| look(held));
        self.replica.collection().read(look).ok_or(StreamEnd::Overtaken)
    }

    /// Duration to request for the watch.
    pub(super) fn lasts(&self) -> Duration {
        Duration::from_secs(WATCH_SECONDS + self.random % WATCH_SECONDS)
    }

    pub(super) async fn take_list(
        &mut self,
        objects: Vec<Object>,
        at: ResourceVersion,
        generation: Option<u64>,
    ) -> Result<(), StreamEnd> {
        let count = objects.len();
        if self.reads_nodes() && objects.is_empty() {
            return Err(StreamEnd::Refused(self.nobody()));
        }
        if let Some(told) = generation.filter(|told| *told >= GENERATION_END) {
            return Err(StreamEnd::Refused(format!(
                "generation {told} is not taken, numbers are below {GENERATION_END}; the leader, or an administrator who voids the \
                 collection at the coordinator, has to begin another one"
            )));
        }
        self.require_room(objects.iter().map(Object::size).sum())?;
        let is_gone = self.is_gone();
        let taken = self.change(at, |collection| {
            let held = collection.generation();
            let objects = match self.reads_nodes() && !is_gone {
                true => members::going_on(collection, objects, at),
                false => objects,
            };
            let new = next_generation(held, self.random);
            let begun = match generation {
                Some(other) if other != held => Some(other),
                _ if is_gone => Some(new),
                _ => match collection.replace(objects.clone(), at) {
                    // A list without resourceVersion is never older than earlier answers of the cloud, unless its store was
                    // rolled back: that begins a new generation. A coordinator may be behind, but never has another history
                    // under the same generation.
                    Err(error) if self.source == Source::Cloud || !matches!(error, WriteError::Behind { .. }) => {
                        tracing::error!(collection = self.replica.name(), %error, "The cloud was rolled back; beginning a new generation");
                        Some(new)
                    }
                    taken => taken.map(|()| None)?,
                },
            };
            if let Some(begun) = begun {
                collection.restart(begun, objects, at);
            }
            Ok(collection.generation())
        });
        self.generation = taken
            .await?
            .map_err(|error: WriteError| StreamEnd::Failed(error.to_string()))?;
        if self.source == Source::Cloud {
            self.data.history().extend(self.replica.name(), self.generation);
        }
        if self.reads_nodes() {
            self.data.failures().works(LABELS);
        }
        self.data.fits(self.replica.name());
        self.data.sources().heard(self.replica.name(), self.source, false);
        // Events can be fetched again after a crash; the history before a list cannot. Clients that resume below the next
        // list would have to relist.
        if let Err(error) = self.data.replicas().persist(None).await {
            tracing::warn!(collection = self.replica.name(), %error, "Failed to store the list; the next commit includes it");
        }
        tracing::info!(collection = self.replica.name(), source = self.source.as_str(), objects = count, rv = %at, "Listed");
        Ok(())
    }

    async fn watch(&mut self) -> Result<StreamEnd, StreamEnd> {
        let position = self.look(Collection::position)?;
        let response = self.send_as(&self.watch_query(position), true).await?;
        let response = self.require_ok(response).await?;
        self.opened = Some(Instant::now());
        if generation_of(response.headers()).is_some_and(|generation| generation != self.generation) {
            return Ok(StreamEnd::OtherHistory);
        }
        self.data.sources().heard(self.replica.name(), self.source, false);
        self.data.partial_lists().tidy(self.replica.name()).await;
        if self.source == Source::Cloud {
            // Every position comes from the cloud, so it covers ours.
            self.confirm();
        }
        let connection = HttpClient::connection_of(&response);
        let body = Decoded::of(response).map_err(|error| StreamEnd::Failed(error.to_string()))?;
        let ended = self.pump(body, position).await;
        if matches!(ended, Err(StreamEnd::Silent(_))) {
            // A load balancer may answer pings for a dead server.
            self.client.leave(connection);
        }
        ended
    }

    pub(super) fn watch_query(&self, position: ResourceVersion) -> String {
        let seconds = self.lasts().as_secs();
        format!("watch=1&allowWatchBookmarks=true&resourceVersion={position}&timeoutSeconds={seconds}")
    }

    async fn pump(&mut self, mut body: Decoded, opened_at: ResourceVersion) -> Result<StreamEnd, StreamEnd> {
        let mut decoder = WatchDecoder::new();
        let mut step = None;
        let ends = Instant::now() + self.lasts() + OVERDUE;
        // An aggregated API may send no bookmarks at all.
        let mut has_bookmarks = self.source == Source::Coordinator;
        loop {
            let silence = silence_of(self.source);
            let quiet = if has_bookmarks { silence } else { self.lasts() + OVERDUE };
            let next = tokio::time::timeout_at(ends.min(Instant::now() + quiet), body.next()).await;
            let data = match next {
                Ok(Some(Ok(data))) => data,
                // A broken connection equals a normal end: the next watch starts at the same position.
                Ok(_) => return Ok(StreamEnd::Closed),
                Err(_) if Instant::now() >= ends => {
                    return Err(StreamEnd::Silent("the server did not end the watch in time".into()));
                }
                Err(_) => return Err(StreamEnd::Silent(format!("no data for {} s", silence.as_secs()))),
            };
            decoder.push(&data);
            for event in decoder.by_ref() {
                let event = event.map_err(|error| StreamEnd::Unreadable(error.to_string()))?;
                has_bookmarks |= event.event_type == EventType::Bookmark;
                self.take_event(event, &mut step, opened_at).await?;
            }
        }
    }

    async fn take_event(
        &mut self,
        event: RawEvent,
        step: &mut Option<PendingStep>,
        opened_at: ResourceVersion,
    ) -> Result<(), StreamEnd> {
        if event.event_type == EventType::Error {
            let is_confirmed = self.confirmed.is_none();
            return Err(match ended_by(&event.object) {
                // The source may have begun another history; the answer to a new stream shows that.
                StreamEnd::Expired if is_confirmed && self.source == Source::Coordinator => StreamEnd::Closed,
                ended => ended,
            });
        }
        let unreadable = StreamEnd::Unreadable;
        let (rv, stale) = if event.event_type == EventType::Bookmark {
            let bookmark = Bookmark::parse(&event.object).map_err(|error| unreadable(error.to_string()))?;
            (bookmark.resource_version, self.take_bookmark(&bookmark, step).await?)
        } else {
            let object =
                Object::parse(event.object, self.wire_kind()).map_err(|error| unreadable(error.to_string()))?;
            let rv = object.resource_version();
            match (step.as_mut(), self.reduce(&object)) {
                (_, None) => {}
                (Some(pending), Some(object)) => {
                    pending.bytes += object.size();
                    self.require_room(self.replica.collection().read(Collection::size) + pending.bytes)?;
                    pending.events.push((event.event_type, object));
                    if self.reads_nodes() && event.event_type != EventType::Deleted {
                        self.take_members(step, rv).await?;
                    }
                }
                (None, Some(object)) if self.leaves_nobody(event.event_type, &object) => {
                    self.data.failures().refused(LABELS, &self.nobody());
                    *step = Some(PendingStep {
                        from: rv,
                        bytes: object.size(),
                        events: vec![(event.event_type, object)],
                    });
                }
                (None, Some(object)) => self.apply(event.event_type, object).await?,
            }
            (rv, false)
        };
        if rv >= opened_at {
            self.confirm();
        }
        self.data.sources().heard(self.replica.name(), self.source, stale);
        Ok(())
    }

    /// Applies a bookmark. Returns true if it reports that the data is stale.
    async fn take_bookmark(&self, bookmark: &Bookmark, step: &mut Option<PendingStep>) -> Result<bool, StreamEnd> {
        let to = bookmark.resource_version;
        if bookmark.annotations.contains_key(ANNOTATION_DIFF_TO) {
            // A server that could not continue by its log announces the rest of the same step again.
            step.get_or_insert_with(|| PendingStep {
                from: to,
                events: Vec::new(),
                bytes: 0,
            });
        } else if bookmark.annotations.contains_key(ANNOTATION_DIFF_DONE) {
            if let Some(pending) = step.take() {
                let jumped = !bookmark.annotations.contains_key(ANNOTATION_DIFF_WATCHED);
                let is_behind = |c: &Collection| c.may_be_behind() && c.position() < to;
                if jumped && self.has_detour && self.replica.collection().read(is_behind) {
                    return Err(StreamEnd::Expired);
                }
                let stretch = (pending.from, to);
                let followed = self
                    .change(to, |c| c.follow_step(stretch, pending.events, jumped))
                    .await?;
                followed.map_err(|_| StreamEnd::Expired)?;
            }
        } else if step.is_none() && to > self.look(Collection::position)? {
            self.change(to, |c| c.advance(to)).await?;
        }
        let stale = bookmark.annotations.get(ANNOTATION_STALE);
        Ok(stale.is_some_and(|value| value == "true"))
    }

    /// Applies an event of the source's log.
    async fn apply(&self, event: EventType, object: Object) -> Result<(), StreamEnd> {
        let (name, of_members) = (self.replica.name(), self.replica.name() == members::COLLECTION);
        if self.source == Source::Cloud && !of_members {
            let follows = self.look(|c| c.check_follows(event, &object))?;
            if let Err(why) = follows {
                if self.data.history().contradict(name, self.generation, &why) {
                    return Err(StreamEnd::Closed);
                }
                tracing::warn!(collection = name, %why, "The cloud omitted events");
            }
        }
        if event != EventType::Deleted {
            let (all, old) = self.replica.collection().read(|held| {
                let old = held.object(object.key()).map_or(0, Object::size);
                (held.size(), old)
            });
            // The recent history holds the object, too.
            self.require_room(all.saturating_sub(old) + 2 * object.size())?;
            self.data.fits(name);
        }
        self.change(object.resource_version(), |collection| {
            let is_held = |held: &Object| held.uid() == object.uid();
            if of_members && event != EventType::Deleted && collection.object(object.key()).is_some_and(is_held) {
                // A Node changes every few minutes, its membership does not.
                collection.advance(object.resource_version());
            } else {
                collection.apply(event, object);
            }
        })
        .await
    }

    /// Checks that the replica may grow to `size` bytes.
    pub(super) fn require_room(&self, size: usize) -> Result<(), StreamEnd> {
        let room = self.data.require_room(self.replica.name(), size);
        room.map_err(StreamEnd::Oversized)
    }

    /// Returns the reason for an unknown membership. The labels may have been removed by mistake, or while an operator
    /// rewrites them. A pool that applied the removal would have no members left to report their return.
    fn nobody(&self) -> String {
        format!(
            "no Node carries the label {}={}; the members are unknown until one does",
            members::POOL_LABEL,
            self.pool
        )
    }

    /// True if this event removes the last labelled Node. It is held back until the next Node appears.
    fn leaves_nobody(&self, event: EventType, object: &Object) -> bool {
        let is_last = |c: &Collection| c.len() == 1 && c.object(object.key()).is_some();
        self.reads_nodes() && event == EventType::Deleted && self.replica.collection().read(is_last)
    }

    /// Applies the members again once there is one.
    async fn take_members(&self, step: &mut Option<PendingStep>, at: ResourceVersion) -> Result<(), StreamEnd> {
        if let Some(step) = step.take() {
            self.change(at, |c| c.catch_up_to(at, step.events)).await?;
            self.data.failures().works(LABELS);
        }
        Ok(())
    }

    pub(super) fn confirm(&mut self) {
        if let Some(confirmed) = self.confirmed.take() {
            // No receiver is left when the hub has moved to another source.
            let _ = confirmed.send(());
        }
    }

    /// Kind of the objects on the wire: the membership is read from Nodes in the cloud.
    pub(super) fn wire_kind(&self) -> &'static ResourceKind {
        let nodes = find_kind("", "nodes").filter(|_| self.reads_nodes());
        nodes.unwrap_or(self.replica.collection().kind())
    }

    fn reads_nodes(&self) -> bool {
        self.source == Source::Cloud && self.replica.name() == members::COLLECTION
    }

    pub(super) fn reduce(&self, object: &Object) -> Option<Object> {
        if self.reads_nodes() {
            return members::of_node(object);
        }
        // Items of a list may be slices of its body; single items must not keep all of it in memory.
        Some(object.clone())
    }
}

#[cfg(test)]
mod tests;
