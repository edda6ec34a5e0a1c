//! Obtains proofs that the cloud still has the replicas' history. New cloud data waits for a proof, as do renewals, which would
//! overwrite part of the evidence.
//!
//! One proof covers all replicas. The hub obtains it at the start, when it turns to the cloud, and when a connection or a watch ends
//! early. It is valid for data from connections that were open when it began: a later connection may lead to another cloud. It is
//! valid for the replicas it covered: another one may have come from the coordinator since. [`timeline`](super::history) judges the
//! answers. Before that, over each new connection, the hub checks that this is the cluster of the replicas (`cluster.rs`).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::{Object, ObjectKey, ResourceKind, ResourceVersion};
use yurt_pool_protocol::history::{Answers, Held, Known, NEWEST, Place, Verdict};
use yurt_pool_protocol::members;
use yurt_storage::Replica;

use super::partial_list_store::Evidence;
use super::questions::{first, get, head_of};
use super::{POOL_SCOPE, PoolData};
use crate::health::{CloudReach, CoordinatorReach};
use crate::pool::heartbeat::node_lease::{self, OwnHeartbeat};
use crate::upstream::{Cloud, CloudServer};

/// Pause after a failed proof.
const AGAIN: Duration = Duration::from_secs(1);
/// Time between checks that the connection of the last proof is still open.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Name of the failure without a proof: the hub applies nothing of the cloud's.
pub const TIMELINE: &str = "proof of the cloud's history";
/// Minimum age of a verified history before a contradicting event can invalidate it.
const CONTRADICTED_AGAIN: Duration = Duration::from_secs(60);
/// Maximum time that a renewal waits for the proof.
const RENEWAL_WAIT: Duration = Duration::from_secs(3);

/// Shared state of the check that the cloud has the replicas' history.
#[derive(Clone, Debug, Default)]
pub struct HistoryState(watch::Sender<CheckState>);

#[derive(Clone, Debug, Default)]
struct CheckState {
    /// Number of ended connections and streams that a proof rested on. The history may have ended with them, so an earlier proof
    /// says nothing of later data.
    breaks: u64,
    /// The last proof, while it is valid: it covers data from this connection and those before it.
    proven: Option<Connection>,
    /// Replicas that the proof covers, with their generations.
    about: BTreeMap<String, u64>,
    /// True if the last attempt failed because the cloud does not answer.
    is_away: bool,
    /// Event that contradicts a replica: the next proof fails.
    against: Option<String>,
    /// Time of the last contradiction that was accepted.
    contradicted: Option<Instant>,
    /// Replicas whose history is gone, with the generation that had it.
    gone: BTreeMap<String, u64>,
}

/// A connection that carries data of the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Index of the server.
    pub server: usize,
    /// Number among the connections of its `streams` client.
    pub number: u64,
}

// === impl Connection ===

impl Connection {
    /// True if a proof that began while this connection was open covers data from `other`.
    fn covers(self, other: Self) -> bool {
        self.server == other.server && other.number <= self.number
    }
}

// === impl HistoryState ===

impl HistoryState {
    /// Waits until the cloud's data may be requested; false if the cloud does not answer.
    pub async fn proven(&self) -> bool {
        let mut state = self.0.subscribe();
        let settled = state.wait_for(CheckState::is_settled).await;
        settled.is_ok_and(|state| state.proven.is_some())
    }

    /// Waits until a proof covers data from `connection`. False if there is none: the cloud does not answer, or another of its
    /// servers is in use.
    pub async fn proven_over(&self, connection: Connection) -> bool {
        // A proof in progress may have begun too early; the one after it did not.
        for _ in 0..2 {
            if !self.proven().await {
                return false;
            }
            if !self.doubt_over(connection) {
                return true;
            }
        }
        self.proven().await && !self.doubt_over(connection)
    }

    /// True if the last proof does not cover `connection`; it is then discarded, and another one follows.
    fn doubt_over(&self, connection: Connection) -> bool {
        let mut is_covered = false;
        self.0.send_if_modified(|state| {
            is_covered = state.proven.is_some_and(|proven| proven.covers(connection));
            let is_in_doubt = state.proven.is_some() && !is_covered;
            if is_in_doubt {
                state.doubt();
            }
            is_in_doubt
        });
        !is_covered
    }

    /// Waits until a renewal may go to the cloud: a proof is complete, has failed, or took too long.
    pub async fn renewal_may_go(&self) {
        let mut state = self.0.subscribe();
        // After the timeout the proof lacks the lease as evidence, but keeps the rest.
        let _ = tokio::time::timeout(RENEWAL_WAIT, state.wait_for(CheckState::is_settled)).await;
    }

    /// Invalidates every proof, including one in progress, because a stream of the cloud ended early or the hub turns to the cloud
    /// again.
    pub fn reopen(&self) {
        self.0.send_modify(CheckState::doubt);
    }

    /// Records that data of the cloud (`why`) contradicts what replica `name` holds under `generation`. The cloud returned with
    /// another history that had passed everything the proof checked. Returns false if that is not plausible: a contradiction was
    /// accepted shortly before and everything was listed since, so the server omits events.
    #[must_use]
    pub fn contradict(&self, name: &str, generation: u64, why: &dyn Display) -> bool {
        let mut is_believed = true;
        self.0.send_if_modified(|state| {
            if state.gone.get(name) == Some(&generation) || state.against.is_some() {
                // It is recorded, or will be very soon.
                return false;
            }
            is_believed = state
                .contradicted
                .is_none_or(|last| last.elapsed() >= CONTRADICTED_AGAIN);
            if is_believed {
                state.doubt();
                state.against = Some(format!("{name}: {why}"));
                state.contradicted = Some(Instant::now());
            }
            is_believed
        });
        is_believed
    }

    /// Records that the data of replica `name` under `generation` is not, or may not be, the cloud's. Its next list there begins a
    /// new generation.
    pub fn disown(&self, name: &str, generation: u64) {
        self.0.send_modify(|state| {
            state.gone.insert(name.to_owned(), generation);
        });
        self.reopen();
    }

    /// True if the data of replica `name` under `generation` is the present cloud's.
    #[must_use]
    pub fn holds(&self, name: &str, generation: u64) -> bool {
        self.is_about(name, generation) && !self.is_gone(name, generation)
    }

    /// True if the last proof covers the data of replica `name` under `generation`. It does not cover a replica that came from the
    /// coordinator later.
    #[must_use]
    pub fn is_about(&self, name: &str, generation: u64) -> bool {
        let state = self.0.borrow();
        state.proven.is_some() && state.about.get(name) == Some(&generation)
    }

    /// Records that the data of replica `name` under `generation` is the present cloud's as well: it was listed there, or only its
    /// number changed.
    pub fn extend(&self, name: &str, generation: u64) {
        self.0.send_if_modified(|state| {
            if state.proven.is_some() {
                state.about.insert(name.to_owned(), generation);
            }
            // No receiver waits for this change.
            false
        });
    }

    /// True if the history of replica `name` under `generation` is gone.
    #[must_use]
    pub fn is_gone(&self, name: &str, generation: u64) -> bool {
        self.0.borrow().gone.get(name) == Some(&generation)
    }

    /// Resolves when a proof shows that the history of `replica` is gone.
    pub async fn lost(&self, replica: &Replica) {
        let mut state = self.0.subscribe();
        let is_gone = |state: &CheckState| {
            let generation = state.gone.get(replica.name());
            generation.is_some_and(|gone| *gone == replica.collection().read(|c| c.generation()))
        };
        if state.wait_for(is_gone).await.is_err() {
            std::future::pending().await
        }
    }

    fn breaks(&self) -> u64 {
        self.0.borrow().breaks
    }

    fn take_against(&self) -> Option<String> {
        let mut against = None;
        self.0.send_if_modified(|state| {
            against = state.against.take();
            // No receiver waits for this change.
            false
        });
        against
    }

    /// Records the result of a proof `about` these replicas. It began after `breaks`, while `over` was open.
    fn reconcile(&self, about: BTreeMap<String, u64>, is_same: bool, breaks: u64, over: Connection) {
        self.0.send_modify(|state| {
            state.proven = (state.breaks == breaks).then_some(over);
            state.is_away = false;
            if !is_same {
                state.gone.extend(about.clone());
            }
            state.about = about;
        });
    }

    /// Records a proof about generation 0 of the services that finds nothing gone.
    #[cfg(test)]
    pub(crate) fn prove(&self, over: Connection) {
        self.reconcile([("services".to_owned(), 0)].into(), true, self.breaks(), over);
    }

    /// Records whether the cloud answers. Proofs from before an outage are invalid after it.
    fn away(&self, is_away: bool) {
        self.0.send_if_modified(|state| {
            let is_news = state.is_away != is_away;
            if is_away && (is_news || state.proven.is_some()) {
                state.doubt();
            }
            state.is_away = is_away;
            is_news
        });
    }
}

impl CheckState {
    /// True if a proof is complete or has failed.
    fn is_settled(&self) -> bool {
        self.proven.is_some() || self.is_away
    }

    fn doubt(&mut self) {
        self.breaks += 1;
        self.proven = None;
    }
}

/// Index of a cloud server, and the number of connections to it so far.
type Route = (usize, u64);

/// Basis of the last proof.
struct Ground {
    way: Route,
    /// Generations of the replicas it covered.
    generations: BTreeMap<String, u64>,
}

// === impl Ground ===

impl Ground {
    /// True if a proof about replicas of `generations` may skip reads of the past. Over a connection that stayed open, the server
    /// cannot have been restored from a backup. A replica of another generation may still come from a coordinator that was fed
    /// before a restore.
    fn carries(&self, generations: &BTreeMap<String, u64>) -> bool {
        generations
            .iter()
            .all(|(name, generation)| self.generations.get(name) == Some(generation))
    }
}

/// Obtains the proofs.
pub struct HistoryVerifier {
    /// The replicas.
    pub data: Arc<PoolData>,
    /// The cloud's servers.
    pub cloud: Arc<Cloud>,
    /// The cloud's last acknowledged state of this node's lease.
    pub heartbeat: Arc<OwnHeartbeat>,
    /// Reachability of the cloud.
    pub reach: watch::Receiver<CloudReach>,
    /// Status of the coordinator.
    pub coordinator: watch::Receiver<CoordinatorReach>,
    /// Name of this node.
    pub node: String,
    /// True once the replicas turn out to be of another cluster and are dropped: the process has to exit.
    pub is_other_cluster: bool,
}

// === impl HistoryVerifier ===

impl HistoryVerifier {
    /// Obtains proofs until `token` is cancelled. Ends by itself if the replicas are of another cluster.
    pub async fn run(mut self, token: CancellationToken) {
        token.run_until_cancelled(self.keep_proving()).await;
    }

    async fn keep_proving(&mut self) {
        let history = self.data.history().clone();
        let mut state = history.0.subscribe();
        let mut ground: Option<Ground> = None;
        loop {
            if ground.as_ref().is_some_and(|ground| ground.way != self.way()) {
                // The server may have ended just after the proof, without ending a stream.
                history.reopen();
                ground = None;
            }
            let failed = self.reach.borrow_and_update().failed_probes.unwrap_or(0) > 0;
            history.away(failed);
            if !failed && state.borrow_and_update().proven.is_none() {
                let (breaks, way) = (history.breaks(), self.way());
                let (known, generations) = self.known().await;
                let is_thorough = ground.as_ref().is_none_or(|ground| !ground.carries(&generations));
                match self.prove(&known, is_thorough).await {
                    Ok((true, _)) if !is_thorough && self.way() != way => {
                        // The connection had ended unnoticed, and the request opened a new one.
                        ground = None;
                    }
                    Ok((is_same, over)) => {
                        history.reconcile(generations.clone(), is_same, breaks, over);
                        let way = self.way();
                        ground = Some(Ground { way, generations });
                        self.data.failures().works(TIMELINE);
                    }
                    Err(_) if self.is_other_cluster => return,
                    Err(why) => {
                        tracing::debug!(why, "Failed to prove the cloud's history");
                        self.data.failures().unanswered(TIMELINE, &why);
                        history.away(true);
                        // A change of the cloud's reachability ends the pause.
                        let _ = tokio::time::timeout(AGAIN, self.reach.changed()).await;
                    }
                }
                continue;
            }
            tokio::select! {
                changed = self.reach.changed() => if changed.is_err() { return },
                changed = state.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// Server in use, and the number of connections to it so far. Probes use the same connections.
    fn way(&self) -> Route {
        let place = self.cloud.current();
        (place, self.cloud.at(place).beats.connections())
    }

    /// Latest data connection to the server at this index.
    fn connection(&self, server: usize) -> Connection {
        let number = self.cloud.at(server).streams.connections();
        Connection { server, number }
    }

    /// Returns whether the cloud still has the history of `known`, and the last connection that this covers. Reads the past only if
    /// the proof has to be thorough.
    async fn prove(&mut self, known: &Known, is_thorough: bool) -> Result<(bool, Connection), String> {
        if is_thorough {
            self.check_cluster().await?;
        }
        let against = self.data.history().take_against();
        let over = self.connection(self.cloud.current());
        if known.is_nothing() {
            return Ok((true, over));
        }
        let (verdict, over) = match against {
            Some(why) => (Verdict::NewTimeline(why), over),
            None => self.ask_around(known, is_thorough).await?,
        };
        if let Verdict::NewTimeline(why) = &verdict {
            tracing::error!(
                why,
                "The cloud returned with another history; beginning a new generation"
            );
            self.heartbeat.forget_acknowledged();
        }
        Ok((matches!(verdict, Verdict::Same | Verdict::Lagging), over))
    }

    /// Returns the verdict of the first server that gives one; that server is in use from then on.
    async fn ask_around(&self, known: &Known, is_thorough: bool) -> Result<(Verdict, Connection), String> {
        let (mut behind, mut failure) = (None, String::new());
        let servers = self.cloud.len();
        for left in (0..servers).rev() {
            let place = self.cloud.current();
            match self.ask(place, known, is_thorough).await {
                Ok((answers, over)) => match known.judge(&answers, left > 0) {
                    Verdict::Lagging => behind = Some((answers, over)),
                    verdict => return Ok((verdict, over)),
                },
                Err(why) => failure = why,
            }
            self.cloud.try_next();
        }
        // No server that answers is ahead.
        let behind = behind.map(|(answers, over)| (known.judge(&answers, false), over));
        behind.ok_or(failure)
    }

    /// Returns the state of all histories that are not known to be gone, partial lists included, and their generations.
    async fn known(&self) -> (Known, BTreeMap<String, u64>) {
        let mut known = Known {
            lease: self.heartbeat.acknowledged(),
            ..Known::default()
        };
        let (mut generations, mut last_deleted) = (BTreeMap::new(), Vec::new());
        for replica in self.data.replicas().iter() {
            let (name, kind) = (replica.name(), replica.collection().kind());
            let (generation, at, held, deleted) = replica.collection().read(|c| {
                let newest = c.newest(NEWEST).map(|(key, rv)| (key.clone(), rv));
                let held: Option<Evidence> = c.is_complete().then(|| (c.position(), newest.collect()));
                let deleted: Vec<_> = c.deletions().take(NEWEST).cloned().collect();
                (c.generation(), c.position(), held, deleted)
            });
            let coming = self.data.partial_lists().evidence(name, kind, at, NEWEST).await;
            if self.data.history().is_gone(name, generation) {
                continue;
            }
            // The position is compared with the head of Services. Other resources may have RVs of another etcd.
            let numbered = POOL_SCOPE.contains(&name) || name == members::COLLECTION;
            if let Some(there) = self.at_coordinator(name, generation) {
                if numbered {
                    known.position = known.position.max(there);
                }
                generations.insert(name.to_owned(), generation);
            }
            let held = held.map(|(at, newest)| (at, newest, Some(at)));
            // A partial list is not one state yet: only the existence of its objects is known.
            let coming = coming.map(|(at, newest)| (at, newest, None));
            for (position, newest, at) in held.into_iter().chain(coming) {
                if numbered {
                    known.position = known.position.max(position);
                }
                generations.insert(name.to_owned(), generation);
                for (key, version) in newest.into_iter().filter(|_| POOL_SCOPE.contains(&name)) {
                    let at = at.unwrap_or(version);
                    let held = known.newest.entry((name.to_owned(), key)).or_default();
                    *held = Held { version, at }.max(*held);
                }
            }
            if POOL_SCOPE.contains(&name) {
                last_deleted.extend(deleted.into_iter().map(|object| (name.to_owned(), object)));
            }
        }
        let mut by_version: Vec<_> = known.newest.values().copied().collect();
        by_version.sort_unstable_by(|a, b| b.cmp(a));
        let least = by_version.get(NEWEST - 1).copied().unwrap_or_default();
        known.newest.retain(|_, held| *held >= least);
        last_deleted.sort_unstable_by_key(|(_, object)| Reverse(object.resource_version()));
        let of_uid = |(name, object): (String, Object)| ((name, object.key().clone()), object.uid().to_owned());
        known.deleted = last_deleted.into_iter().take(NEWEST).map(of_uid).collect();
        (known, generations)
    }

    /// Position of the coordinator's replica `name`, if it has the same history.
    fn at_coordinator(&self, name: &str, generation: u64) -> Option<ResourceVersion> {
        let reach = self.coordinator.borrow();
        let there = reach.status.as_ref()?.collections.get(name)?;
        let same = there.complete && there.generation == generation;
        ResourceVersion::parse(&there.applied_up_to).ok().filter(|_| same)
    }

    /// Reads without resourceVersion, so that the answer has everything acknowledged before. Also returns the data connection that
    /// was open before the first read.
    async fn ask(&self, place: usize, known: &Known, is_thorough: bool) -> Result<(Answers, Connection), String> {
        let server = self.cloud.at(place);
        let services = find_kind("", "services").ok_or("services are not built in")?;
        let path = format!("{}?limit=1", services.collection_path());
        // Uses the connection that will carry the data, or opens it. It may be busy with a list.
        let (over, list) = match first(server, &path).await {
            Some((number, list)) => (Connection { server: place, number }, Some(list)),
            None => {
                let over = self.connection(place);
                (over, get(server, &path, "PartialObjectMetadataList").await?)
            }
        };
        let list = list.ok_or("services cannot be listed")?;
        let mut answers = Answers {
            head: head_of(list, services)?,
            ..Answers::default()
        };
        if answers.head < known.position {
            // The head decides; the server cannot return the state at our `C` yet.
            return Ok((answers, over));
        }
        if known.lease.is_some() {
            let path = format!(
                "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}",
                node_lease::NAMESPACE,
                self.node
            );
            answers.lease = get(server, &path, "").await?.and_then(|lease| lease_version(&lease));
        }
        for (place, held) in &known.newest {
            let now = self.at_place(server, place).await?;
            let now = now.and_then(|now| version_of(&now));
            answers.newest.extend(now.map(|now| (place.clone(), now)));
            if is_thorough
                && !answers.settles(place, *held)
                && let Some(then) = self.at_place_then(server, place, held.at).await?
            {
                answers.then.insert(place.clone(), then);
            }
        }
        for (place, uid) in &known.deleted {
            let now = self.at_place(server, place).await?;
            if now.is_some_and(|now| now["metadata"]["uid"] == **uid) {
                answers.back.insert(place.clone());
            }
        }
        Ok((answers, over))
    }

    /// Returns the metadata of the object that is there now.
    async fn at_place(&self, server: &CloudServer, (name, key): &Place) -> Result<Option<Value>, String> {
        let Some(replica) = self.data.replicas().named(name) else {
            return Ok(None);
        };
        let path = path_of(replica.collection().kind(), key);
        let object = get(server, &path, "PartialObjectMetadata").await?;
        Ok(object.and_then(|object| serde_json::from_slice(&object).ok()))
    }

    /// Returns the RV of the object at `at`; the outer `None` if the server has compacted that RV or does not return it.
    async fn at_place_then(
        &self,
        server: &CloudServer,
        (name, key): &Place,
        at: ResourceVersion,
    ) -> Result<Option<Option<ResourceVersion>>, String> {
        let Some(replica) = self.data.replicas().named(name) else {
            return Ok(None);
        };
        let kind = replica.collection().kind();
        let path = format!(
            "{}?fieldSelector=metadata.name%3D{}&limit=1&resourceVersion={at}&resourceVersionMatch=Exact",
            collection_of(kind, key),
            key.name()
        );
        let Some(list) = get(server, &path, "PartialObjectMetadataList").await? else {
            return Ok(None);
        };
        let list: Value = serde_json::from_slice(&list).map_err(|error| error.to_string())?;
        // A server that does not support the parameter returns the current object.
        let is_then = version_of(&list) == Some(at);
        Ok(is_then.then(|| version_of(&list["items"][0])))
    }
}

fn collection_of(kind: &ResourceKind, key: &ObjectKey) -> String {
    match key.namespace() {
        Some(namespace) => kind.namespaced_path(namespace),
        None => kind.collection_path(),
    }
}

fn path_of(kind: &ResourceKind, key: &ObjectKey) -> String {
    format!("{}/{}", collection_of(kind, key), key.name())
}

fn version_of(object: &Value) -> Option<ResourceVersion> {
    ResourceVersion::parse(object["metadata"]["resourceVersion"].as_str()?).ok()
}

/// RV of a lease in JSON.
#[must_use]
pub fn lease_version(lease: &[u8]) -> Option<ResourceVersion> {
    version_of(&serde_json::from_slice(lease).ok()?)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const FIRST: Connection = Connection { server: 0, number: 1 };

    fn is_proven(history: &HistoryState) -> Option<bool> {
        history.proven().now_or_never()
    }

    #[test]
    fn whatever_ends_puts_every_proof_in_doubt() {
        let history = HistoryState::default();
        assert_eq!(is_proven(&history), None);
        history.prove(FIRST);
        assert_eq!(is_proven(&history), Some(true));

        // A stream continues while the cloud fails its probes, and ends later.
        history.away(true);
        assert_eq!(is_proven(&history), Some(false));
        history.away(false);
        history.prove(FIRST);
        assert_eq!(is_proven(&history), Some(true));
        history.reopen();
        assert_eq!(is_proven(&history), None, "after a stream of any age");
    }

    #[test]
    fn proof_begun_before_a_break_proves_nothing_after_it() {
        let history = HistoryState::default();
        let breaks = history.breaks();
        history.reopen();
        history.reconcile(BTreeMap::new(), true, breaks, FIRST);
        assert_eq!(is_proven(&history), None);
        history.prove(FIRST);
        assert_eq!(is_proven(&history), Some(true));
    }

    /// A connection that was opened later may lead to another cloud.
    #[test]
    fn proof_counts_for_connections_that_were_open_when_it_was_begun() {
        let history = HistoryState::default();
        let second = Connection { number: 2, ..FIRST };
        history.prove(FIRST);
        assert_eq!(history.proven_over(FIRST).now_or_never(), Some(true));
        let mut waits = Box::pin(history.proven_over(second));
        assert_eq!(waits.as_mut().now_or_never(), None);
        assert_eq!(is_proven(&history), None, "another one is to come");
        // One that began before.
        history.prove(FIRST);
        assert_eq!(waits.as_mut().now_or_never(), None);
        history.prove(second);
        assert_eq!(waits.as_mut().now_or_never(), Some(true));
        assert_eq!(
            history.proven_over(FIRST).now_or_never(),
            Some(true),
            "it was open, too"
        );
    }

    #[test]
    fn proof_counts_for_the_copies_it_was_about() {
        let history = HistoryState::default();
        history.extend("services", 0);
        assert!(!history.holds("services", 0), "there is no proof");
        history.prove(FIRST);
        assert!(history.holds("services", 0));
        assert!(!history.holds("services", 7), "it came from the coordinator since");
        assert!(!history.holds("endpoints", 0));
        history.extend("endpoints", 0);
        assert!(history.holds("endpoints", 0), "the cloud listed it");
        history.reconcile([("services".to_owned(), 7)].into(), false, history.breaks(), FIRST);
        assert!(history.is_about("services", 7) && !history.holds("services", 7), "gone");
        history.reopen();
        assert!(!history.is_about("services", 7));
    }

    #[test]
    fn what_a_server_tells_that_is_in_use_no_more_is_never_proved() {
        let history = HistoryState::default();
        let other = Connection { server: 1, number: 1 };
        history.prove(FIRST);
        let mut waits = Box::pin(history.proven_over(other));
        for _ in 0..2 {
            assert_eq!(waits.as_mut().now_or_never(), None);
            history.prove(FIRST);
        }
        assert_eq!(waits.as_mut().now_or_never(), Some(false));
    }

    #[tokio::test(start_paused = true)]
    async fn what_contradicts_puts_a_proof_in_doubt_but_not_all_the_time() {
        let history = HistoryState::default();
        history.prove(FIRST);
        assert!(history.contradict("services", 0, &"web has another uid"));
        assert!(history.contradict("endpoints", 0, &"and so has db"), "the same one");
        assert_eq!(is_proven(&history), None);
        assert_eq!(history.take_against().as_deref(), Some("services: web has another uid"));
        assert_eq!(history.take_against(), None);
        history.reconcile([("services".to_owned(), 0)].into(), false, history.breaks(), FIRST);
        assert!(history.contradict("services", 0, &"old"), "it is given up already");
        assert_eq!(is_proven(&history), Some(true));

        assert!(!history.contradict("services", 1, &"a server that leaves events out"));
        assert_eq!(is_proven(&history), Some(true));
        tokio::time::advance(CONTRADICTED_AGAIN).await;
        assert!(history.contradict("services", 1, &"another backup"));
        assert_eq!(is_proven(&history), None);
    }

    #[test]
    fn past_is_left_out_only_for_what_was_proved_before() {
        let held = |replicas: &[(&str, u64)]| {
            let replicas = replicas
                .iter()
                .map(|(name, generation)| ((*name).to_owned(), *generation));
            replicas.collect::<BTreeMap<_, _>>()
        };
        let ground = Ground {
            way: (0, 1),
            generations: held(&[("services", 0), ("endpoints", 7)]),
        };
        assert!(ground.carries(&held(&[("services", 0)])));
        assert!(!ground.carries(&held(&[("services", 0), ("members", 0)])), "came later");
        assert!(!ground.carries(&held(&[("services", 1)])), "another history");
    }

    #[test]
    fn cloud_that_stays_away_wakes_nobody_again() {
        let history = HistoryState::default();
        history.away(true);
        let told = history.0.subscribe();
        history.away(true);
        assert!(!told.has_changed().unwrap());
    }
}
