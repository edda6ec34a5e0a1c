//! Obtains proofs that the cloud still has the replicas' history. New cloud data waits for a proof, as do renewals, which would
//! overwrite part of the evidence.
//!
//! One proof covers all replicas. The hub obtains it at the start, when it turns to the cloud, and when a connection or a watch ends
//! early. It is valid for data from connections that were open when it began: a later connection may lead to another cloud. It is
//! valid for the replicas it covered: another one may have come from the coordinator since. [`history`](yurt_pool_protocol::history) judges the
//! answers. Before that, over each new connection, the hub checks that this is the cluster of the replicas (`cluster.rs`).

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
use yurt_pool_protocol::history::{HistoryVerdict, KnownHistory};

use super::PoolData;
use crate::health::{CloudReach, CoordinatorReach};
use crate::upstream::Cloud;

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
    pub lease: AcknowledgedLease,
    /// Path of that lease.
    pub lease_path: String,
    /// Reachability of the cloud.
    pub reach: watch::Receiver<CloudReach>,
    /// Status of the coordinator.
    pub coordinator: watch::Receiver<CoordinatorReach>,
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
            if !failed && history.is_unproven() {
                let (breaks, way) = (history.breaks(), self.way());
                let (known, generations) = self.known().await;
                let is_thorough = ground.as_ref().is_none_or(|ground| !ground.carries(&generations));
                match self.prove(&known, is_thorough).await {
                    Ok((true, _)) if !is_thorough && self.way() != way => {
                        // The connection had ended unnoticed, and the request opened a new one.
                        ground = None;
                    }
                    Ok((is_same, over)) => {
                        history.record_result(generations.clone(), is_same, breaks, over);
                        let way = self.way();
                        ground = Some(Ground { way, generations });
                        self.data.failures().works(HISTORY);
                    }
                    Err(_) if self.is_other_cluster => return,
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

    /// Returns whether the cloud still has the history of `known`, and the connections that this covers. Reads the past only if
    /// the proof has to be thorough.
    async fn prove(&mut self, known: &KnownHistory, is_thorough: bool) -> Result<(bool, Opened), String> {
        if is_thorough {
            self.check_cluster().await?;
        }
        let against = self.data.history().take_against();
        let over = self.opened(self.cloud.current());
        if known.is_nothing() {
            return Ok((true, over));
        }
        let (verdict, over) = match against {
            Some(why) => (HistoryVerdict::NewTimeline(why), over),
            None => self.ask_around(known, is_thorough).await?,
        };
        if let HistoryVerdict::NewTimeline(why) = &verdict {
            tracing::error!(
                why,
                "The cloud returned with another history; beginning a new generation"
            );
            self.lease.forget();
        }
        Ok((matches!(verdict, HistoryVerdict::Same | HistoryVerdict::Lagging), over))
    }

    /// Returns the verdict of the first server that gives one; that server is in use from then on.
    async fn ask_around(&self, known: &KnownHistory, is_thorough: bool) -> Result<(HistoryVerdict, Opened), String> {
        let (mut behind, mut failure) = (None, String::new());
        let servers = self.cloud.len();
        for left in (0..servers).rev() {
            let place = self.cloud.current();
            match self.ask(place, known, is_thorough).await {
                Ok((answers, over)) => match known.judge(&answers, left > 0) {
                    HistoryVerdict::Lagging => behind = Some((answers, over)),
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
