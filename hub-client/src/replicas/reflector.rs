//! Follows one collection at one server: a list when needed (`listing.rs`), then a watch, applied to the replica event
//! by event.

mod answer;
mod request;
pub mod selected;
mod stream_end;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion};
use yurt_collection::generation::GENERATION_END;
use yurt_collection::{Collection, WriteError};
use yurt_pool_protocol::cloud_fallback::Begin;
use yurt_pool_protocol::history::next_generation;
use yurt_pool_protocol::members;
use yurt_pool_protocol::source::Source;
use yurt_runtime::http::client::HttpClient;
use yurt_storage::{NotApplied, Replica};

pub use selected::Selected;
pub use stream_end::StreamEnd;

pub(super) use answer::{ended_by, generation_of, read_all, read_checked};

use super::PoolData;
use super::nodepool::is_named;
use super::truth::ObjectState;
use crate::metrics::traffic::Traffic;

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

/// One collection at one server.
pub struct Reflector {
    /// The source.
    pub source: Source,
    /// The server.
    pub client: HttpClient,
    /// Counter of what the cloud sends.
    pub(crate) traffic: Traffic,
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
    pub has_fallback: bool,
    /// Part of the collection that is followed, and the rights to read it; `None` for all of it with the hub's rights.
    pub selected: Option<Selected>,
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
        match Box::pin(self.follow_node_pool()).await {
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
            // Boxed: a stream spends its life in the watch, and there are hundreds of streams.
            if let Err(ended) = Box::pin(self.list()).await {
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
        let has_other_form = self.has_other_form(&objects).await;
        let (is_gone, history) = (self.is_gone(), self.data.history());
        let taken = self.change(at, |collection| {
            let held = collection.generation();
            let objects = match self.reads_nodes() && !is_gone {
                true => members::going_on(collection, objects, at),
                false => objects,
            };
            let new = next_generation(history.last_generation(self.replica.name(), held), self.random);
            let begun = match generation {
                Some(other) if other != held => Some(other),
                _ if is_gone => Some(new),
                _ => match collection.replace(objects.clone(), at) {
                    // A list without resourceVersion is never older than earlier answers of the cloud, unless its store
                    // was rolled back: that begins a new generation. A coordinator may be behind, but never has another
                    // history under the same generation.
                    Err(error) if self.source == Source::Cloud || !matches!(error, WriteError::Behind { .. }) => {
                        tracing::error!(collection = self.replica.name(), %error, "The cloud was rolled back; beginning a new generation");
                        Some(new)
                    }
                    // Readers below the list start over, as they do at the cloud.
                    taken => taken.map(|()| has_other_form.then_some(held))?,
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
        self.data.sources().heard(self.replica.name(), self.source, None);
        // Events can be fetched again after a crash; the history before a list cannot. Clients that resume below the
        // next list would have to relist.
        if let Err(error) = self.data.replicas().persist(None).await {
            tracing::warn!(collection = self.replica.name(), %error, "Failed to store the list; the next commit includes it");
        }
        tracing::info!(collection = self.replica.name(), source = self.source.as_str(), objects = count, rv = %at, "Listed");
        Ok(())
    }

    /// True if the list of a selection has another content for a held object under the same RV: the cloud has another
    /// schema, conversion or version since. It sends no event then.
    async fn has_other_form(&self, list: &[Object]) -> bool {
        if self.selected.is_none() {
            // A coordinator keeps what it has under an RV, and its followers with it.
            return false;
        }
        for object in list {
            let held = self
                .replica
                .collection()
                .read(|held| held.object(object.key()).cloned());
            let is_other = |held: &Object| {
                let has_same_version = held.resource_version() == object.resource_version();
                has_same_version && held != object && ObjectState::of(held, true) != ObjectState::of(object, true)
            };
            if held.as_ref().is_some_and(is_other) {
                return true;
            }
            tokio::task::consume_budget().await;
        }
        false
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
pub(crate) mod tests;
