//! Obtains proofs that the cloud still has the replicas' history. New cloud data waits for a proof, as do renewals,
//! which would overwrite part of the evidence.
//!
//! One proof covers all replicas. Only what this hub read from the cloud itself is evidence for the cached selections.
//! The hub obtains it at the start, when it turns to the cloud, and when a connection or a watch ends early. It is
//! valid for data from connections that were open when it began: a later connection may lead to another cloud. It is
//! valid for the replicas it covered: another one may have come from the coordinator since.
//! [`history`](yurt_pool_protocol::history) judges the answers. Before that, over each new connection, the hub checks
//! that this is the cluster of the replicas (`cluster.rs`).

mod answers;
mod cluster;
mod evidence;
mod lease;
mod state;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_pool_protocol::history::{HistoryVerdict, KnownHistory, Lost, Verdicts};

use super::PoolData;
use crate::health::{CloudReach, CoordinatorReach};
use crate::upstream::Cloud;

use answers::judge_behind;
use evidence::Known;

pub use cluster::ClusterCheck;
pub use lease::{AcknowledgedLease, lease_version};
pub use state::{Connection, ConnectionKind, HistoryState, Opened};

/// Pause after a failed proof.
const AGAIN: Duration = Duration::from_secs(1);
/// Time between checks that the connection of the last proof is still open.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Name of the failure without a proof: the hub applies nothing of the cloud's.
const HISTORY: &str = "proof of the cloud's history";

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
    /// True if a proof about replicas of `generations` may skip reads of the past. Over a connection that stayed open,
    /// the server cannot have been restored from a backup. A replica of another generation may still come from a
    /// coordinator that was fed before a restore.
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
    pub lease: AcknowledgedLease,
    /// Path of that lease.
    pub lease_path: String,
    /// Reachability of the cloud.
    pub reach: watch::Receiver<CloudReach>,
    /// Status of the coordinator.
    pub coordinator: watch::Receiver<CoordinatorReach>,
    /// True if pool data may come from a coordinator, and so from a leader that lies.
    pub has_coordinator: bool,
    /// Result of the last comparison of the clusters.
    pub cluster: ClusterCheck,
}

// === impl HistoryVerifier ===

impl HistoryVerifier {
    /// Obtains proofs until `token` is cancelled. Ends by itself if the replicas are of another cluster.
    pub async fn run(mut self, token: CancellationToken) {
        token.run_until_cancelled(self.keep_proving()).await;
    }

    async fn keep_proving(&mut self) {
        let history = self.data.history().clone();
        let mut changes = history.changes();
        let mut ground: Option<Ground> = None;
        loop {
            if ground.as_ref().is_some_and(|ground| ground.way != self.way()) {
                // The server may have ended just after the proof, without ending a stream.
                history.reopen();
                ground = None;
            }
            let failed = self.reach.borrow_and_update().is_failing();
            history.away(failed);
            changes.mark_seen();
            if !failed && self.cluster.take_due() && self.check_cluster().await.is_err() {
                if matches!(self.cluster, ClusterCheck::Other) {
                    return;
                }
                // Nothing of the cloud is applied until it answers.
                history.reopen();
                ground = None;
            }
            if !failed && history.is_unproven() {
                let (breaks, way) = (history.breaks(), self.way());
                let mut known = self.known().await;
                let is_thorough = ground.as_ref().is_none_or(|ground| !ground.carries(&known.generations));
                match self.prove(&mut known, is_thorough).await {
                    Ok((Lost::Nothing, _)) if !is_thorough && self.way() != way => {
                        // The connection had ended unnoticed, and the request opened a new one.
                        ground = None;
                    }
                    Ok((lost, over)) => {
                        let (generations, way) = (known.generations, self.way());
                        history.record_result(generations.clone(), lost, breaks, over);
                        ground = Some(Ground { way, generations });
                        self.data.failures().works(HISTORY);
                    }
                    Err(_) if matches!(self.cluster, ClusterCheck::Other) => return,
                    Err(why) => {
                        tracing::debug!(why, "Failed to prove the cloud's history");
                        self.data.failures().unanswered(HISTORY, &why);
                        history.away(true);
                        // A change of the cloud's reachability ends the pause.
                        let _ = tokio::time::timeout(AGAIN, self.reach.changed()).await;
                    }
                }
                continue;
            }
            tokio::select! {
                changed = self.reach.changed() => if changed.is_err() { return },
                is_open = changes.next() => if !is_open { return },
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// Server in use, and the number of connections to it so far. Probes use the same connections.
    fn way(&self) -> Route {
        let place = self.cloud.current();
        (place, self.cloud.at(place).beats.connections())
    }

    /// Data connections to the server at this index that are open now.
    fn opened(&self, server: usize) -> Opened {
        let clients = self.cloud.at(server);
        Opened {
            server,
            pool: clients.streams.connections(),
            selections: clients.selections.opened(),
            token_selections: clients.token_selections.opened(),
        }
    }

    /// Returns what of `known` is no longer the cloud's history, and the connections that this covers. Reads the past
    /// only if the proof has to be thorough.
    async fn prove(&mut self, known: &mut Known, is_thorough: bool) -> Result<(Lost, Opened), String> {
        if is_thorough {
            self.check_cluster().await?;
        }
        // Without evidence of their own, the selections rather begin a new generation.
        let trusts_pool = !self.has_coordinator || known.selections.is_nothing();
        let contradicted = self.contradicted();
        let over = self.opened(self.cloud.current());
        if known.is_nothing() {
            return Ok((Lost::Nothing, over));
        }
        let (verdicts, over) = match contradicted.lost(trusts_pool) {
            Lost::All => (contradicted, over),
            lost => {
                if lost == Lost::PoolData {
                    report(&contradicted, lost);
                    // It stays lost if no server answers now.
                    self.data.history().lose(&known.generations, lost);
                    known.pool = KnownHistory::default();
                }
                self.ask_around(known, is_thorough).await?
            }
        };
        let lost = verdicts.lost(trusts_pool);
        report(&verdicts, lost);
        if lost == Lost::All {
            self.lease.forget();
        }
        Ok((lost, over))
    }

    /// Takes the events that contradict replicas, as verdicts.
    fn contradicted(&self) -> Verdicts {
        let verdict = |is_selection| {
            let against = self.data.history().take_against(is_selection);
            against.map_or(HistoryVerdict::Same, HistoryVerdict::NewTimeline)
        };
        Verdicts {
            selections: verdict(true),
            pool: verdict(false),
        }
    }

    /// Returns the verdicts of the first server that gives some; that server is in use from then on.
    async fn ask_around(&self, known: &Known, is_thorough: bool) -> Result<(Verdicts, Opened), String> {
        let (mut behind, mut failure) = (Vec::new(), String::new());
        let servers = self.cloud.len();
        for _ in 0..servers {
            let place = self.cloud.current();
            match self.ask(place, known, is_thorough).await {
                Ok((found, over)) => {
                    // The last one may be behind as well.
                    let verdicts = found.judge(known, true);
                    if !verdicts.is_lagging() {
                        return Ok((verdicts, over));
                    }
                    behind.push((found, over));
                }
                Err(why) => failure = why,
            }
            self.cloud.try_next();
        }
        judge_behind(behind, known).ok_or(failure)
    }
}

/// Logs what is lost.
fn report(verdicts: &Verdicts, lost: Lost) {
    let why = verdicts.selections.went_back().or(verdicts.pool.went_back());
    match lost {
        Lost::Nothing => {}
        Lost::PoolData => tracing::error!(
            why,
            "The cloud contradicts the pool data; beginning a new generation of it"
        ),
        Lost::All => tracing::error!(
            why,
            "The cloud returned with another history; beginning a new generation"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
