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
use yurt_runtime::http::Decoded;
use yurt_runtime::http::client::HttpClient;
use yurt_storage::collection::WriteError;
use yurt_storage::generation::GENERATION_END;
use yurt_storage::serve::{ANNOTATION_DIFF_DONE, ANNOTATION_DIFF_TO, ANNOTATION_DIFF_WATCHED, ANNOTATION_STALE};
use yurt_storage::{Collection, Replica};

pub(super) use answer::{ended_by, generation_of, read_all};

use super::budget::Oversized;
use super::detour::Begin;
use super::nodepool::is_named;
use super::source::Source;
use super::timeline::next_generation;
use super::{PoolData, members, silence_of};

/// A list page, or the headers of a watch, must make progress within this.
pub(super) const IDLE: Duration = Duration::from_secs(30);
/// Watches are asked to last between this and twice this.
const WATCH_SECONDS: u64 = 300;
/// A watch that ends this long before its time, or less, ended by it: the server's clock began earlier than ours.
const TIMER_SLACK: Duration = Duration::from_secs(1);
/// What does not work while no Node carries the pool's label any more.
const LABELS: &str = "labels of the pool's Nodes";
/// Proofs that a stream of the cloud waits for, until there is one about what is held.
const PROOFS_MAX: u32 = 3;
/// A watch that its server does not end this long after its time is left.
const OVERDUE: Duration = Duration::from_secs(30);
/// Header by which a replica tells the coordinator that it is one.
pub const REPLICA_HEADER: &str = "yurt-replica";
/// Header that carries the timeline of pool data.
pub const GENERATION_HEADER: &str = "yurt-generation";

/// Why a stream ended.
#[derive(Debug)]
pub enum Ended {
    /// Cleanly: watch again from where it stopped.
    Closed,
    /// The server does not remember our position.
    Expired,
    /// The server asks to come again, after this long where it says so.
    NotReady(Option<Duration>),
    /// The server says no; the text is its reason.
    Refused(String),
    /// What the server says does not fit beside what is held.
    Oversized(Oversized),
    /// The server has another timeline than we have: list.
    OtherHistory,
    /// Another source began another generation of the replica: what this one tells does not belong to it.
    Overtaken,
    /// The server says something that cannot be read; the text is why.
    Unreadable(String),
    /// The server keeps the watch open and sends nothing, or does not end it; the text is for the log.
    Silent(String),
    /// Anything else; the text is for the log.
    Failed(String),
    /// As [`Self::Failed`], but something came that is kept.
    Interrupted(String),
}

/// One collection at one server.
pub struct Stream {
    /// Where.
    pub source: Source,
    /// The server.
    pub client: HttpClient,
    /// Place of that server in the cloud.
    pub place: usize,
    /// Into which replica.
    pub replica: Arc<Replica>,
    /// Where signs of life are noted.
    pub data: Arc<PoolData>,
    /// The pool, for the membership.
    pub pool: String,
    /// Random number of the caller, for the length of the watch.
    pub random: u64,
    /// Told once the server has confirmed a position at or above ours.
    pub confirmed: Option<oneshot::Sender<()>>,
    /// When the watch began.
    pub opened: Option<Instant>,
    /// Generation of the replica that this stream was opened for, or began: it changes no other.
    pub generation: u64,
    /// There may be another way than a jump that readers would be lost in.
    pub has_detour: bool,
}

/// Events between an announced step and its end. A cut drops them: `C` did not move.
struct PendingStep {
    /// Where it begins, at the server.
    from: ResourceVersion,
    events: Vec<(EventType, Object)>,
    /// Their size.
    bytes: usize,
}

// === impl Ended ===

impl Ended {
    /// Whether the server may have ended the stream because it has another history: a proof is asked for. It has not where it
    /// says why, nor where the end is ours; a resource that is refused for days would ask all the time.
    fn may_be_of_the_history(&self) -> bool {
        match self {
            Self::NotReady(_) | Self::Overtaken | Self::Refused(_) | Self::Oversized(_) | Self::Unreadable(_) => false,
            Self::Closed
            | Self::Expired
            | Self::OtherHistory
            | Self::Silent(_)
            | Self::Failed(_)
            | Self::Interrupted(_) => true,
        }
    }
}

// === impl Stream ===

impl Stream {
    /// Runs until the stream ends.
    pub async fn run(mut self, begin: Begin) -> Ended {
        if self.source != Source::Cloud {
            return self.follow(begin).await;
        }
        let timeline = self.data.timeline().clone();
        let Some(may_resume) = self.prove().await else {
            return Ended::Failed("the cloud does not answer".into());
        };
        let replica = self.replica.clone();
        let is_gone = self.is_gone();
        let begin = match (may_resume, begin) {
            (false, Begin::ResumeOnly) => return Ended::Expired,
            (false, _) => Begin::List,
            (true, begin) => begin,
        };
        let lost = async {
            match is_gone {
                // The list that comes now begins a new generation.
                true => std::future::pending().await,
                false => timeline.lost(&replica).await,
            }
        };
        let ended = tokio::select! {
            ended = self.follow(begin) => ended,
            () = lost => return Ended::Closed,
        };
        let lasted = self.opened.map_or(Duration::ZERO, |opened| opened.elapsed());
        let timed_out = matches!(ended, Ended::Closed) && lasted + TIMER_SLACK >= self.lasts();
        if !timed_out && ended.may_be_of_the_history() {
            timeline.reopen();
        }
        ended
    }

    /// Waits for a proof about what is held. Whether the cloud has its history; `None` when there is no proof to be had.
    async fn prove(&mut self) -> Option<bool> {
        let (timeline, name) = (self.data.timeline(), self.replica.name());
        for _ in 0..PROOFS_MAX {
            if !timeline.proven().await {
                return None;
            }
            let held = |held: &Collection| (held.generation(), held.is_complete());
            let (generation, is_complete) = self.replica.collection().read(held);
            self.generation = generation;
            if timeline.is_gone(name, generation) || !is_complete {
                return Some(false);
            }
            if timeline.is_about(name, generation) {
                return Some(true);
            }
            // A list of the coordinator was taken while the proof was being had.
            timeline.reopen();
        }
        None
    }

    async fn follow(&mut self, begin: Begin) -> Ended {
        if !self.reads_nodes() {
            return self.follow_objects(begin).await;
        }
        match self.follow_node_pool().await {
            Err(ended) => ended,
            Ok(None) => self.follow_objects(begin).await,
            Ok(Some(node_pool)) => tokio::select! {
                ended = self.follow_objects(begin) => ended,
                () = node_pool.decides() => Ended::Closed,
            },
        }
    }

    async fn follow_objects(&mut self, begin: Begin) -> Ended {
        let is_known = |held: &Collection| {
            // What happened to the Nodes while a NodePool decided, nobody watched.
            let is_of_node_pool = self.reads_nodes() && held.objects().any(is_named);
            held.is_complete() && !is_of_node_pool
        };
        // A member that only an earlier leader told would outlive a watch that goes on from there.
        let begin = match begin {
            Begin::Resume if self.reads_nodes() && !self.followed_the_cloud() => Begin::List,
            begin => begin,
        };
        let is_known = self.replica.collection().read(is_known);
        if begin == Begin::List || !is_known {
            if begin == Begin::ResumeOnly {
                return Ended::Expired;
            }
            if let Err(ended) = self.list().await {
                return ended;
            }
        }
        match self.watch().await {
            Ok(ended) | Err(ended) => ended,
        }
    }

    /// Whether no other source was confirmed since the cloud was.
    fn followed_the_cloud(&self) -> bool {
        self.data.source(self.replica.name()).confirmed == Source::Cloud
    }

    /// The cloud does not have the history any more that our objects come from.
    pub(super) fn is_gone(&self) -> bool {
        self.source == Source::Cloud && self.data.timeline().is_gone(self.replica.name(), self.generation)
    }

    /// Changes the replica, as long as it is of the generation that this stream is of.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Collection) -> T) -> Result<T, Ended> {
        let changed = self.replica.collection().update_of(self.generation, change);
        changed.map_err(|_| Ended::Overtaken)
    }

    /// Looks at the replica, as long as it is of the generation that this stream is of.
    fn look<T>(&self, look: impl FnOnce(&Collection) -> T) -> Result<T, Ended> {
        let look = |held: &Collection| (held.generation() == self.generation).then(|| look(held));
        self.replica.collection().read(look).ok_or(Ended::Overtaken)
    }

    /// How long the watch is asked to last.
    pub(super) fn lasts(&self) -> Duration {
        Duration::from_secs(WATCH_SECONDS + self.random % WATCH_SECONDS)
    }

    pub(super) async fn take_list(
        &mut self,
        objects: Vec<Object>,
        at: ResourceVersion,
        generation: Option<u64>,
    ) -> Result<(), Ended> {
        let count = objects.len();
        if self.reads_nodes() && objects.is_empty() {
            return Err(Ended::Refused(self.nobody()));
        }
        if let Some(told) = generation.filter(|told| *told >= GENERATION_END) {
            return Err(Ended::Refused(format!(
                "generation {told} is not taken, numbers are below {GENERATION_END}; the leader, or an administrator who voids the \
                 collection at the coordinator, has to begin another one"
            )));
        }
        self.require_room(objects.iter().map(Object::size).sum())?;
        let is_gone = self.is_gone();
        let taken = self.change(|collection| {
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
                    // Lists without resourceVersion are never older than what the cloud served before, unless its
                    // store was rolled back: that is a new timeline. A coordinator may be behind, but never have
                    // another history under our number.
                    Err(error) if self.source == Source::Cloud || !matches!(error, WriteError::Behind { .. }) => {
                        tracing::error!(collection = self.replica.name(), %error, "The cloud was rolled back: new generation");
                        Some(new)
                    }
                    taken => taken.map(|()| None)?,
                },
            };
            if let Some(begun) = begun {
                collection.restart(begun, objects, at);
            }
            Ok(collection.generation())
        })?;
        self.generation = taken.map_err(|error: WriteError| Ended::Failed(error.to_string()))?;
        if self.source == Source::Cloud {
            self.data.timeline().extend(self.replica.name(), self.generation);
        }
        if self.reads_nodes() {
            self.data.troubles().works(LABELS);
        }
        self.data.fits(self.replica.name());
        self.data.heard(self.replica.name(), self.source, false);
        // Events can be had again after a crash. What went before a list cannot: clients that are resumed below the next
        // one would have to list.
        if let Err(error) = self.data.replicas().persist(None).await {
            tracing::warn!(collection = self.replica.name(), %error, "List not stored yet, trying again");
        }
        tracing::info!(collection = self.replica.name(), source = self.source.as_str(), objects = count, rv = %at, "Listed");
        Ok(())
    }

    async fn watch(&mut self) -> Result<Ended, Ended> {
        let position = self.look(Collection::position)?;
        let response = self.send_as(&self.watch_query(position), true).await?;
        let response = self.require_ok(response).await?;
        self.opened = Some(Instant::now());
        if generation_of(response.headers()).is_some_and(|generation| generation != self.generation) {
            return Ok(Ended::OtherHistory);
        }
        self.data.heard(self.replica.name(), self.source, false);
        self.data.drafts().tidy(self.replica.name()).await;
        if self.source == Source::Cloud {
            // The cloud is where every position comes from: whatever ours is, it is covered.
            self.confirm();
        }
        let connection = HttpClient::connection_of(&response);
        let body = Decoded::of(response).map_err(|error| Ended::Failed(error.to_string()))?;
        let ended = self.pump(body, position).await;
        if matches!(ended, Err(Ended::Silent(_))) {
            // A balancer may answer pings for a server that is dead.
            self.client.leave(connection);
        }
        ended
    }

    pub(super) fn watch_query(&self, position: ResourceVersion) -> String {
        let seconds = self.lasts().as_secs();
        format!("watch=1&allowWatchBookmarks=true&resourceVersion={position}&timeoutSeconds={seconds}")
    }

    async fn pump(&mut self, mut body: Decoded, opened_at: ResourceVersion) -> Result<Ended, Ended> {
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
                // A cut is as good as an end: the next watch starts at the same position.
                Ok(_) => return Ok(Ended::Closed),
                Err(_) if Instant::now() >= ends => return Err(Ended::Silent("the watch outlives its time".into())),
                Err(_) => return Err(Ended::Silent(format!("nothing came for {} s", silence.as_secs()))),
            };
            decoder.push(&data);
            for event in decoder.by_ref() {
                let event = event.map_err(|error| Ended::Unreadable(error.to_string()))?;
                has_bookmarks |= event.event_type == EventType::Bookmark;
                self.take_event(event, &mut step, opened_at)?;
            }
        }
    }

    fn take_event(
        &mut self,
        event: RawEvent,
        step: &mut Option<PendingStep>,
        opened_at: ResourceVersion,
    ) -> Result<(), Ended> {
        if event.event_type == EventType::Error {
            let is_confirmed = self.confirmed.is_none();
            return Err(match ended_by(&event.object) {
                // It may have begun another history: what a new stream is answered says whether.
                Ended::Expired if is_confirmed && self.source == Source::Coordinator => Ended::Closed,
                ended => ended,
            });
        }
        let unreadable = Ended::Unreadable;
        let (rv, stale) = if event.event_type == EventType::Bookmark {
            let bookmark = Bookmark::parse(&event.object).map_err(|error| unreadable(error.to_string()))?;
            (bookmark.resource_version, self.take_bookmark(&bookmark, step)?)
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
                        self.take_members(step, rv)?;
                    }
                }
                (None, Some(object)) if self.leaves_nobody(event.event_type, &object) => {
                    self.data.troubles().refused(LABELS, &self.nobody());
                    *step = Some(PendingStep {
                        from: rv,
                        bytes: object.size(),
                        events: vec![(event.event_type, object)],
                    });
                }
                (None, Some(object)) => self.apply(event.event_type, object)?,
            }
            (rv, false)
        };
        if rv >= opened_at {
            self.confirm();
        }
        self.data.heard(self.replica.name(), self.source, stale);
        Ok(())
    }

    /// Returns whether the bookmark says that the data is stale.
    fn take_bookmark(&self, bookmark: &Bookmark, step: &mut Option<PendingStep>) -> Result<bool, Ended> {
        let to = bookmark.resource_version;
        if bookmark.annotations.contains_key(ANNOTATION_DIFF_TO) {
            // A server that could not go on by its log announces the rest of the same step again.
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
                    return Err(Ended::Expired);
                }
                let stretch = (pending.from, to);
                let followed = self.change(|c| c.follow_step(stretch, pending.events, jumped))?;
                followed.map_err(|_| Ended::Expired)?;
            }
        } else if step.is_none() && to > self.look(Collection::position)? {
            self.change(|c| c.advance(to))?;
        }
        let stale = bookmark.annotations.get(ANNOTATION_STALE);
        Ok(stale.is_some_and(|value| value == "true"))
    }

    /// Applies an event of the source's log.
    fn apply(&self, event: EventType, object: Object) -> Result<(), Ended> {
        let (name, of_members) = (self.replica.name(), self.replica.name() == members::COLLECTION);
        if self.source == Source::Cloud && !of_members {
            let follows = self.look(|c| c.check_follows(event, &object))?;
            if let Err(why) = follows {
                if self.data.timeline().contradict(name, self.generation, &why) {
                    return Err(Ended::Closed);
                }
                tracing::warn!(collection = name, %why, "The cloud left events out");
            }
        }
        if event != EventType::Deleted {
            let (all, old) = self.replica.collection().read(|held| {
                let old = held.object(object.key()).map_or(0, Object::size);
                (held.size(), old)
            });
            // The recent history has it, too.
            self.require_room(all.saturating_sub(old) + 2 * object.size())?;
            self.data.fits(name);
        }
        self.change(|collection| {
            let is_held = |held: &Object| held.uid() == object.uid();
            if of_members && event != EventType::Deleted && collection.object(object.key()).is_some_and(is_held) {
                // A Node changes every few minutes, its membership does not.
                collection.advance(object.resource_version());
            } else {
                collection.apply(event, object);
            }
        })
    }

    /// Whether the replica may grow to `size` bytes.
    pub(super) fn require_room(&self, size: usize) -> Result<(), Ended> {
        let room = self.data.require_room(self.replica.name(), size);
        room.map_err(Ended::Oversized)
    }

    /// Why there is no membership. Labels may be gone by mistake, or while somebody rewrites them; a pool that believed it
    /// could be told by nobody that they are back.
    fn nobody(&self) -> String {
        format!(
            "no Node carries the label {}={}; the members are not known until one does",
            members::POOL_LABEL,
            self.pool
        )
    }

    /// Whether the last labelled Node goes with this event: it waits for the next one that comes.
    fn leaves_nobody(&self, event: EventType, object: &Object) -> bool {
        let is_last = |c: &Collection| c.len() == 1 && c.object(object.key()).is_some();
        self.reads_nodes() && event == EventType::Deleted && self.replica.collection().read(is_last)
    }

    /// Somebody is a member again.
    fn take_members(&self, step: &mut Option<PendingStep>, at: ResourceVersion) -> Result<(), Ended> {
        if let Some(step) = step.take() {
            self.change(|c| c.catch_up_to(at, step.events))?;
            self.data.troubles().works(LABELS);
        }
        Ok(())
    }

    pub(super) fn confirm(&mut self) {
        if let Some(confirmed) = self.confirmed.take() {
            // Nobody waits any more when the hub went on to another source.
            let _ = confirmed.send(());
        }
    }

    /// Kind of the objects on the wire: membership is read from Nodes in the cloud.
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
        // Items of a list may be slices of its body; on their own they do not keep all of it in memory.
        Some(object.clone())
    }
}

#[cfg(test)]
mod tests;
