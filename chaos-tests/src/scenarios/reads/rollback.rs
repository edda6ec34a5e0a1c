//! The cloud of the simulated reads comes back from a backup: what then happens, and what clients may have been told.
//!
//! Everybody holds all the cloud had when it goes. It comes back without the last changes, all connections to it are gone, and
//! leaders change while hubs find out, one by one. A generation of the copies stands for one history: a client that reads generation 0
//! is told nothing but the lost history, one that reads any other nothing but the new one.

use yurt_chaos_validate::history::{Truth, check};

use super::Simulation;
use super::hub::Hub;
use crate::faults::Fault;

/// Changes that are lost, at most.
const LOST_MAX: u64 = 6;
/// Changes that the cloud has before the first hub asks again, at most.
const AHEAD_MAX: u64 = 12;

// === impl Simulation ===

impl Simulation {
    /// Comes to rest, and goes back. The history that ends; `None` when the pool did not come to rest.
    pub(super) fn roll_back(&mut self) -> Option<Truth> {
        if !self.come_to_rest() {
            return None;
        }
        let backup = self.cloud.backup();
        for _ in 0..=self.random.below(LOST_MAX) {
            self.cloud.change(&mut self.random);
        }
        // Where only deletions are lost and the new history repeats them, both have the same objects, and nobody is misled.
        while !self.cloud.has_changed_since(&backup) {
            self.cloud.change(&mut self.random);
        }
        if !self.come_to_rest() {
            return None;
        }
        // No process goes back to before it held what is lost: it could not know that it ever was.
        self.commit();
        let before = std::mem::take(&mut self.cloud.truth);
        self.struck.count(Fault::CloudRolledBack);
        self.cloud.restore(backup);
        self.hubs.iter_mut().for_each(Hub::lose_cloud);
        for _ in 0..self.random.below(AHEAD_MAX) {
            self.cloud.change(&mut self.random);
        }
        self.post.is_rough = true;
        if self.random.once_in(2) {
            let hub = self.random.index(self.hubs.len());
            self.struck.count(Fault::LeaderStepsDown);
            self.elect(hub);
        }
        Some(before)
    }

    /// What clients were told that they must not have been.
    pub(super) fn judge_histories(&self, before: &Truth) -> Option<String> {
        self.clients.iter().find_map(|client| {
            let last = (client.generation, &client.history);
            let all = client
                .former
                .iter()
                .map(|(generation, told)| (*generation, told))
                .chain([last]);
            let wrong = all.clone().find_map(|(generation, told)| {
                let truth = if generation == 0 { before } else { &self.cloud.truth };
                let wrong = check(told, truth, u32::MAX).violations.into_iter().next();
                wrong.map(|wrong| format!("{wrong} (generation {generation})"))
            });
            let wrong = wrong.or_else(|| client.violation.clone());
            let stays = || (client.generation == 0).then(|| "stays in the lost history".to_owned());
            let place = client.place;
            wrong
                .or_else(stays)
                .map(|wrong| format!("client at {place:?}: {wrong}"))
        })
    }
}
