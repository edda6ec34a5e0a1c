//! State of the check that the cloud still has the replicas' history, shared by the verifier and everything that waits
//! for a proof.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use yurt_pool_protocol::history::Lost;
use yurt_storage::Replica;

use crate::replicas::is_cached;

/// Minimum age of a verified history before a contradicting event can invalidate it.
const CONTRADICTED_AGAIN: Duration = Duration::from_secs(60);
/// Maximum time that a renewal waits for the proof.
const RENEWAL_WAIT: Duration = Duration::from_secs(3);

/// Shared state of the check that the cloud has the replicas' history.
#[derive(Clone, Debug, Default)]
pub struct HistoryState(watch::Sender<CheckState>);

#[derive(Clone, Debug, Default)]
struct CheckState {
    /// Number of ended connections and streams that a proof rested on. The history may have ended with them, so an
    /// earlier proof says nothing of later data.
    breaks: u64,
    /// The last proof, while it is valid: it covers data from these connections.
    proven: Option<Opened>,
    /// Replicas that the proof covers, with their generations.
    about: BTreeMap<String, u64>,
    /// True if the last attempt failed because the cloud does not answer.
    is_away: bool,
    /// Contradictions of pool data, and of selections.
    contradictions: [Contradiction; 2],
    /// Replicas whose history is gone, with the generation that had it.
    gone: BTreeMap<String, u64>,
    /// Generations that the coordinator requires since a void, by replica. A new generation is above that.
    required: BTreeMap<String, u64>,
}

/// Events that contradict replicas of one kind.
#[derive(Clone, Debug, Default)]
struct Contradiction {
    /// The event, until a proof has failed for it.
    against: Option<String>,
    /// Time of the last event that was accepted.
    last: Option<Instant>,
}

/// Receiver of the changes of a [`HistoryState`].
pub(super) struct Changes(watch::Receiver<CheckState>);

/// A connection that carries data of the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Index of the server.
    pub server: usize,
    /// Its client.
    pub kind: ConnectionKind,
    /// Number among the connections of its client, counted from 1 in the order in which they were opened.
    pub number: u64,
}

/// Client of the cloud that a connection belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionKind {
    /// Pool data.
    Pool,
    /// Cached selections, with the node's identity.
    Selections,
    /// Cached selections, with tokens of callers.
    TokenSelections,
}

/// Connections to one server that were open at some time, and all before them: the highest number of each client, 0
/// for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Index of the server.
    pub server: usize,
    /// Connection of pool data.
    pub pool: u64,
    /// Connections of cached selections, with the node's identity.
    pub selections: u64,
    /// Connections of cached selections, with tokens of callers.
    pub token_selections: u64,
}

// === impl Opened ===

impl Opened {
    /// True if a proof that began while these connections were open covers data from `connection`.
    ///
    /// A cloud is restored while all of its servers are down. So a connection that leads to a restored cloud was opened
    /// after the servers from before were gone. They answered no later request of the proof, over any connection.
    fn covers(self, connection: Connection) -> bool {
        let last = match connection.kind {
            ConnectionKind::Pool => self.pool,
            ConnectionKind::Selections => self.selections,
            ConnectionKind::TokenSelections => self.token_selections,
        };
        self.server == connection.server && connection.number <= last
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

    /// Waits until a proof is valid.
    pub async fn until_proven(&self) {
        let mut state = self.0.subscribe();
        // The sender is a part of this object.
        let _ = state.wait_for(|state| state.proven.is_some()).await;
    }

    /// Waits until a proof covers data from `connection`. False if there is none: the cloud does not answer, or another
    /// of its servers is in use.
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

    /// Invalidates every proof, including one in progress, because a stream of the cloud ended early or the hub turns
    /// to the cloud again.
    pub fn reopen(&self) {
        self.0.send_if_modified(|state| {
            let was_proven = state.proven.is_some();
            state.doubt();
            // No receiver waits for a further break. Hundreds of streams may end with one connection.
            was_proven
        });
    }

    /// Records that data of the cloud (`why`) contradicts what replica `name` holds under `generation`. The cloud
    /// returned with another history that had passed everything the proof checked. Returns false if that is not
    /// plausible: a contradiction was accepted shortly before and everything was listed since, so the server omits
    /// events.
    #[must_use]
    pub fn contradict(&self, name: &str, generation: u64, why: &dyn Display) -> bool {
        let mut is_believed = true;
        self.0.send_if_modified(|state| {
            let is_gone = state.gone.get(name) == Some(&generation);
            let known = &mut state.contradictions[usize::from(is_cached(name))];
            if is_gone || known.against.is_some() {
                // It is recorded, or will be very soon.
                return false;
            }
            is_believed = known.last.is_none_or(|last| last.elapsed() >= CONTRADICTED_AGAIN);
            if is_believed {
                known.against = Some(format!("{name}: {why}"));
                known.last = Some(Instant::now());
                state.doubt();
            }
            is_believed
        });
        is_believed
    }

    /// Records that the data of replica `name` under `generation` is not, or may not be, the cloud's. Its next list
    /// there begins a new generation.
    pub fn disown(&self, name: &str, generation: u64) {
        self.0.send_modify(|state| {
            state.gone.insert(name.to_owned(), generation);
        });
        self.reopen();
    }

    /// As [`Self::disown`]; the new generation is above `required`, too.
    pub fn disown_below(&self, name: &str, generation: u64, required: u64) {
        self.0.send_modify(|state| {
            state.required.insert(name.to_owned(), required);
        });
        self.disown(name, generation);
    }

    /// The number that a new generation of replica `name` follows, when the present one is `held`.
    #[must_use]
    pub fn last_generation(&self, name: &str, held: u64) -> u64 {
        self.0.borrow().required.get(name).copied().unwrap_or(0).max(held)
    }

    /// True if the data of replica `name` under `generation` is the present cloud's.
    #[must_use]
    pub fn holds(&self, name: &str, generation: u64) -> bool {
        self.is_about(name, generation) && !self.is_gone(name, generation)
    }

    /// True if the last proof covers the data of replica `name` under `generation`. It does not cover a replica that
    /// came from the coordinator later.
    #[must_use]
    pub fn is_about(&self, name: &str, generation: u64) -> bool {
        let state = self.0.borrow();
        state.proven.is_some() && state.about.get(name) == Some(&generation)
    }

    /// Records that the data of replica `name` under `generation` is the present cloud's as well: it was listed there,
    /// or only its number changed.
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

    /// True if no proof is valid; one is then due.
    pub(super) fn is_unproven(&self) -> bool {
        self.0.borrow().proven.is_none()
    }

    /// Receiver of all changes.
    pub(super) fn changes(&self) -> Changes {
        Changes(self.0.subscribe())
    }

    /// Number of ended connections and streams that a proof rested on.
    pub(super) fn breaks(&self) -> u64 {
        self.0.borrow().breaks
    }

    /// Takes the event that contradicts pool data, or a selection, if there is one.
    pub(super) fn take_against(&self, is_selection: bool) -> Option<String> {
        let mut against = None;
        self.0.send_if_modified(|state| {
            against = state.contradictions[usize::from(is_selection)].against.take();
            // No receiver waits for this change.
            false
        });
        against
    }

    /// Records the result of a proof `about` these replicas. It began after `breaks`, while `over` were open.
    pub(super) fn record_result(&self, about: BTreeMap<String, u64>, lost: Lost, breaks: u64, over: Opened) {
        self.0.send_modify(|state| {
            state.proven = (state.breaks == breaks).then_some(over);
            state.is_away = false;
            state.lose(&about, lost);
            state.about = about;
        });
    }

    /// Records what is gone of these replicas; no proof is complete with that.
    pub(super) fn lose(&self, replicas: &BTreeMap<String, u64>, lost: Lost) {
        self.0.send_modify(|state| state.lose(replicas, lost));
    }

    /// Records a proof about generation 0 of the services that finds nothing gone.
    #[cfg(test)]
    pub(crate) fn prove(&self, over: Opened) {
        self.record_result([("services".to_owned(), 0)].into(), Lost::Nothing, self.breaks(), over);
    }

    /// Records whether the cloud answers. Proofs from before an outage are invalid after it.
    pub(super) fn away(&self, is_away: bool) {
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

// === impl Changes ===

impl Changes {
    /// Waits for the next change of the state; false if there can be none.
    pub(super) async fn next(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }

    /// Marks the present state as seen.
    pub(super) fn mark_seen(&mut self) {
        self.0.mark_unchanged();
    }
}

// === impl CheckState ===

impl CheckState {
    /// True if a proof is complete or has failed.
    fn is_settled(&self) -> bool {
        self.proven.is_some() || self.is_away
    }

    fn lose(&mut self, replicas: &BTreeMap<String, u64>, lost: Lost) {
        let gone = replicas.iter().filter(|(name, _)| lost.includes(is_cached(name)));
        self.gone
            .extend(gone.map(|(name, generation)| (name.clone(), *generation)));
    }

    fn doubt(&mut self) {
        self.breaks += 1;
        self.proven = None;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const FIRST: Opened = Opened {
        server: 0,
        pool: 1,
        selections: 0,
        token_selections: 0,
    };

    fn connection(kind: ConnectionKind, number: u64) -> Connection {
        Connection {
            server: 0,
            kind,
            number,
        }
    }

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
        history.record_result(BTreeMap::new(), Lost::Nothing, breaks, FIRST);
        assert_eq!(is_proven(&history), None);
        history.prove(FIRST);
        assert_eq!(is_proven(&history), Some(true));
    }

    /// A connection that was opened later may lead to another cloud.
    #[test]
    fn proof_counts_for_connections_that_were_open_when_it_was_begun() {
        let history = HistoryState::default();
        let (first, second) = (connection(ConnectionKind::Pool, 1), connection(ConnectionKind::Pool, 2));
        history.prove(FIRST);
        assert_eq!(history.proven_over(first).now_or_never(), Some(true));
        let mut waits = Box::pin(history.proven_over(second));
        assert_eq!(waits.as_mut().now_or_never(), None);
        assert_eq!(is_proven(&history), None, "another one is to come");
        // One that began before.
        history.prove(FIRST);
        assert_eq!(waits.as_mut().now_or_never(), None);
        history.prove(Opened { pool: 2, ..FIRST });
        assert_eq!(waits.as_mut().now_or_never(), Some(true));
        assert_eq!(
            history.proven_over(first).now_or_never(),
            Some(true),
            "it was open, too"
        );
    }

    /// The streams of selections are spread over several connections, each opened when the others are full.
    #[test]
    fn one_of_several_connections_that_is_from_before_a_restore_covers_none_from_after_it() {
        for kind in [ConnectionKind::Selections, ConnectionKind::TokenSelections] {
            let history = HistoryState::default();
            let (before, after) = (connection(kind, 1), connection(kind, 2));
            let opened = |number| match kind {
                ConnectionKind::Selections => Opened {
                    selections: number,
                    ..FIRST
                },
                _ => Opened {
                    token_selections: number,
                    ..FIRST
                },
            };
            history.prove(opened(1));
            assert_eq!(history.proven_over(before).now_or_never(), Some(true));
            // The cloud was restored since: the first connection says nothing of that.
            let mut waits = Box::pin(history.proven_over(after));
            assert_eq!(waits.as_mut().now_or_never(), None, "{kind:?}");
            let renewed = [("services".to_owned(), 0)];
            history.record_result(renewed.into(), Lost::All, history.breaks(), opened(2));
            assert_eq!(
                waits.as_mut().now_or_never(),
                Some(true),
                "the data of the restored cloud may be read"
            );
            assert!(
                history.is_gone("services", 0),
                "and is of another history, over each connection"
            );
        }
    }

    #[test]
    fn connections_of_each_client_are_counted_apart() {
        let history = HistoryState::default();
        for kind in [ConnectionKind::Selections, ConnectionKind::TokenSelections] {
            history.prove(FIRST);
            let mut waits = Box::pin(history.proven_over(connection(kind, 1)));
            assert_eq!(waits.as_mut().now_or_never(), None, "it is newer than the proof");
            let (selections, token_selections) = match kind {
                ConnectionKind::Selections => (1, 0),
                _ => (0, 1),
            };
            history.prove(Opened {
                selections,
                token_selections,
                ..FIRST
            });
            assert_eq!(waits.as_mut().now_or_never(), Some(true));
        }
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
        history.record_result([("services".to_owned(), 7)].into(), Lost::All, history.breaks(), FIRST);
        assert!(history.is_about("services", 7) && !history.holds("services", 7), "gone");
        history.reopen();
        assert!(!history.is_about("services", 7));
    }

    #[test]
    fn what_a_server_tells_that_is_in_use_no_more_is_never_proved() {
        let history = HistoryState::default();
        let other = Connection {
            server: 1,
            ..connection(ConnectionKind::Pool, 1)
        };
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
        assert_eq!(
            history.take_against(false).as_deref(),
            Some("services: web has another uid")
        );
        assert_eq!(history.take_against(false), None);
        history.record_result([("services".to_owned(), 0)].into(), Lost::All, history.breaks(), FIRST);
        assert!(history.contradict("services", 0, &"old"), "it is given up already");
        assert_eq!(is_proven(&history), Some(true));

        assert!(!history.contradict("services", 1, &"a server that leaves events out"));
        assert_eq!(is_proven(&history), Some(true));
        tokio::time::advance(CONTRADICTED_AGAIN).await;
        assert!(history.contradict("services", 1, &"another backup"));
        assert_eq!(is_proven(&history), None);
    }

    /// A leader may have forged what the event of pool data contradicts. The selections are judged by their own events.
    #[tokio::test(start_paused = true)]
    async fn contradictions_of_pool_data_and_of_selections_count_apart() {
        let history = HistoryState::default();
        history.prove(FIRST);
        assert!(history.contradict("services", 0, &"web has another uid"));
        assert!(history.contradict("/api/v1/pods", 0, &"and so has db"));
        assert_eq!(
            [false, true].map(|is_selection| history.take_against(is_selection).is_some()),
            [true, true]
        );
        let all = BTreeMap::from([("services".to_owned(), 0), ("/api/v1/pods".to_owned(), 0)]);
        history.lose(&all, Lost::PoolData);
        assert!(history.is_gone("services", 0) && !history.is_gone("/api/v1/pods", 0));
        history.record_result(all, Lost::All, history.breaks(), FIRST);
        assert!(history.is_gone("/api/v1/pods", 0));
    }

    #[test]
    fn streams_that_end_together_wake_once() {
        let history = HistoryState::default();
        history.prove(FIRST);
        let mut changes = history.0.subscribe();
        history.reopen();
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        let breaks = history.breaks();
        history.reopen();
        assert!(!changes.has_changed().unwrap());
        assert_ne!(history.breaks(), breaks, "a proof in progress counts for none of them");
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
