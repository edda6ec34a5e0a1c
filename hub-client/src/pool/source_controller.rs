//! Watches the inputs of the choice of a source, and sends the chosen one to the followers.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_pool_protocol::cloud_fallback::Wanted;
use yurt_pool_protocol::source::{CoordinatorState, Situation, Source, choose, fallback_pause, jitter};
use yurt_runtime::Clock;

use super::election::driver::ElectionView;
use crate::health::{CloudReach, CoordinatorReach};
use crate::replicas::history_check::HistoryState;

/// Inputs of the choice.
pub struct SourceController {
    /// The election.
    pub election: watch::Receiver<ElectionView>,
    /// The cloud's prober.
    pub cloud: watch::Receiver<CloudReach>,
    /// The coordinator's prober; `None` without a coordinator.
    pub coordinator: Option<watch::Receiver<CoordinatorReach>>,
    /// Number of members of the pool.
    pub members: watch::Receiver<u32>,
    /// Check of the cloud's history, due when the hub turns to the cloud.
    pub history: HistoryState,
    /// Clock.
    pub clock: Clock,
}

// === impl SourceController ===

impl SourceController {
    /// Runs until `token` is cancelled.
    pub async fn run(mut self, wanted: watch::Sender<Wanted>, token: CancellationToken) {
        let draw = (fastrand::u64(..) % 1000) as f64 / 1000.0;
        loop {
            let now = self.clock.boot();
            let situation = Situation {
                leading: self.election.borrow_and_update().leadership.is_some(),
                coordinator: self
                    .coordinator
                    .as_mut()
                    .map_or(CoordinatorState::NotConfigured, |reach| reach.borrow_and_update().state),
                cloud_reachable: self.cloud.borrow_and_update().is_up(),
                jitter: jitter(*self.members.borrow(), draw),
                now,
            };
            let (source, again_at) = choose(situation);
            if source == Source::Cloud && wanted.borrow().source != Source::Cloud {
                self.history.reopen();
            }
            let now_wanted = Wanted {
                source,
                fallback: fallback_pause(self.cloud.borrow().failed_probes, situation.jitter),
            };
            wanted.send_if_modified(|current| std::mem::replace(current, now_wanted) != now_wanted);
            let again = again_at.map_or(Duration::MAX, |at| at.since(now));
            tokio::select! {
                () = token.cancelled() => return,
                Ok(()) = self.election.changed() => {}
                Ok(()) = self.cloud.changed() => {}
                () = changed(&mut self.coordinator) => {}
                () = tokio::time::sleep(again.min(Duration::from_secs(3600))) => {}
            }
        }
    }
}

async fn changed(reach: &mut Option<watch::Receiver<CoordinatorReach>>) {
    let ended = match reach {
        Some(reach) => reach.changed().await.is_err(),
        None => true,
    };
    if ended {
        std::future::pending().await
    }
}
