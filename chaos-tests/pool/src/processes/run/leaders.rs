//! Leaders and relays that the hubs report.

use std::time::Duration;

use yurt_testbed::pool::TestPool;

/// Time limit for the question whether a hub leads; it may be paused.
const ASK_LIMIT: Duration = Duration::from_millis(300);

/// Reports of the hubs, at each fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Leaders {
    /// Epochs that passed.
    pub(in super::super) epochs: u64,
    epoch: u64,
    /// Number of times a hub was seen to send its heartbeats through another one.
    pub(in super::super) relayed: u64,
}

// === impl Leaders ===

impl Leaders {
    /// Queries all hubs; returns the one that reports to lead, the first if there are several.
    pub(super) async fn ask(&mut self, pool: &TestPool) -> Option<usize> {
        let mut leader = None;
        for (index, hub) in pool.hubs.iter().enumerate().filter(|(_, hub)| hub.process.runs()) {
            let Ok(Ok(state)) = tokio::time::timeout(ASK_LIMIT, hub.state()).await else {
                continue;
            };
            self.relayed += u64::from(state.is_relayed());
            if state.leads() && leader.is_none() {
                leader = Some(index);
                // A coordinator that lost its disk counts epochs from one again.
                let epoch = state.epoch();
                self.epochs += epoch.checked_sub(self.epoch).unwrap_or(epoch);
                self.epoch = epoch;
            }
        }
        leader
    }
}
