//! Restore of the simulated cloud from a backup: the events that follow, and the statements that clients may have
//! received.
//!
//! All hubs hold the cloud's full state when it stops. It comes back without the last changes, all connections to it
//! are gone, and leaders change while hubs detect it, one by one. It may be restored twice from the same backup: then a
//! node that was off in between leads next, which has seen neither. A generation of the copies names one history, at
//! every source. Generation 0 is the first history; the generation in which a client ends is the present one.

use std::collections::BTreeMap;

use yurt_chaos_validate::history::{Truth, check};

use super::cloud::Backup;
use super::hub::Hub;
use super::{HUBS, Simulation};
use crate::faults::Fault;

/// Most changes that are lost.
const LOST_MAX: u64 = 6;
/// Most changes of the cloud before the first hub's next request.
const AHEAD_MAX: u64 = 12;

// === impl Simulation ===

impl Simulation {
    /// Comes to rest and restores the backup, as often as the setting says. Returns the histories that end, the first
    /// one first; `None` when the pool did not come to rest.
    pub(super) fn roll_back(&mut self) -> Option<Vec<Truth>> {
        let mut ended = Vec::new();
        if self.setting.rollbacks == 0 {
            return Some(ended);
        }
        if !self.come_to_rest() {
            return None;
        }
        let backup = self.cloud.backup();
        ended.push(self.lose(&backup)?);
        if self.setting.rollbacks > 1 {
            // The first hub leads whenever the pool comes to rest.
            let off = 1 + self.random.index(HUBS - 1);
            self.hubs[off].cut();
            self.off = Some(off);
            ended.push(self.lose(&backup)?);
            self.off = None;
            self.elect(off);
        }
        self.post.is_rough = true;
        if self.random.once_in(2) {
            let hub = self.random.index(HUBS);
            self.struck.count(Fault::LeaderStepsDown);
            self.elect(hub);
        }
        Some(ended)
    }

    /// Restores `backup` in the cloud. Returns the history that ends.
    fn lose(&mut self, backup: &Backup) -> Option<Truth> {
        for _ in 0..=self.random.below(LOST_MAX) {
            self.cloud.change(&mut self.random);
        }
        // If only deletions are lost and the new history repeats them, both histories have the same objects and answer
        // alike.
        while !self.cloud.has_changed_since(backup) {
            self.cloud.change(&mut self.random);
        }
        if !self.come_to_rest() {
            return None;
        }
        // No process returns to a commit from before the lost changes: it could not detect that they ever existed.
        self.commit();
        let ended = std::mem::take(&mut self.cloud.truth);
        self.struck.count(Fault::CloudRolledBack);
        self.cloud.restore(backup.clone());
        self.hubs.iter_mut().for_each(Hub::lose_cloud);
        for _ in 0..self.random.below(AHEAD_MAX) {
            self.cloud.change(&mut self.random);
        }
        Some(ended)
    }

    /// Returns the first wrong statement to a client; `ended` are the histories before the present one.
    pub(super) fn judge_histories(&self, ended: &[Truth]) -> Option<String> {
        if ended.is_empty() {
            return None;
        }
        let truths: Vec<_> = ended.iter().chain([&self.cloud.truth]).collect();
        // The histories that each generation may represent.
        let mut meant = BTreeMap::from([(0, vec![0])]);
        for client in &self.clients {
            let last = (client.generation, &client.history);
            let former = client.former.iter().map(|(generation, told)| (*generation, told));
            for (generation, told) in former.chain([last]) {
                let histories = meant
                    .entry(generation)
                    .or_insert_with(|| (1..truths.len()).collect::<Vec<_>>());
                let mut wrong = None;
                histories.retain(|history| {
                    let violation = check(told, truths[*history], u32::MAX).violations.into_iter().next();
                    let is_meant = violation.is_none();
                    wrong = violation.or(wrong.take());
                    is_meant
                });
                if histories.is_empty() {
                    let (place, wrong) = (client.place, wrong.unwrap_or_default());
                    return Some(format!("client at {place:?}: {wrong} (generation {generation})"));
                }
            }
        }
        self.clients.iter().find_map(|client| {
            let is_present = meant[&client.generation].contains(&ended.len());
            let stays = || (!is_present).then(|| "stays in a lost history".to_owned());
            let wrong = client.violation.clone().or_else(stays);
            wrong.map(|wrong| format!("client at {:?}: {wrong}", client.place))
        })
    }
}
