//! Which history the coordinator is fed under, where it has another one than the cloud: the numbers that the leader begins.

use yurt_apimachinery::kind::find_kind;
use yurt_storage::generation;

use super::Feeder;
use super::way::Place;
use crate::random::random;
use crate::replicas::timeline::next_generation;
use crate::replicas::{members, questions};

// === impl Feeder ===

impl Feeder {
    /// What is here is the present cloud's, what the coordinator has under the same number is not.
    pub(super) fn begin_generation(&self, why: &str) {
        let generation = self.here().generation;
        if self.data.timeline().holds(self.replica.name(), generation) {
            tracing::error!(
                collection = self.replica.name(),
                why,
                "The coordinator has another history: new generation"
            );
            self.renumber(generation, next_generation(generation, random()));
        }
    }

    /// The coordinator stays ahead. Where the cloud is not that far itself, a former leader fed what never was: ours, which is
    /// proved, begins a generation.
    pub(super) async fn leave_behind(&self, there: Place) {
        let (name, kind) = (self.replica.name(), self.replica.collection().kind());
        // Members are read from Nodes, and those of every pool come from one etcd.
        let kind = find_kind("", "services")
            .filter(|_| name == members::COLLECTION)
            .unwrap_or(kind);
        let generation = self.here().generation;
        let head = match questions::head(self.cloud.server(), kind).await {
            Ok(head) => head,
            Err(why) => return tracing::debug!(collection = name, why, "The cloud's position cannot be had"),
        };
        let is_behind = head < there.position;
        let why = match is_behind {
            true => "ahead of the cloud",
            false => "ahead of this hub, which has not read so far yet",
        };
        let why = format!(
            "the coordinator is at {}, {why}: the cloud is at {head}",
            there.position
        );
        self.data.troubles().unanswered(&self.what(), &why);
        let is_ours = generation == there.generation && self.data.timeline().holds(name, generation);
        if let Some(next) = generation::next(there.generation, random()).filter(|_| is_behind && is_ours) {
            tracing::error!(
                collection = name,
                why,
                "What the coordinator has never was: new generation"
            );
            self.renumber(generation, next);
        }
    }

    /// Ours, of which generation `from` was proved to be the present cloud's, has this number from now on.
    pub(super) fn renumber(&self, from: u64, to: u64) {
        match self.replica.collection().update_of(from, |c| c.adopt(to)) {
            Ok(()) => self.data.timeline().extend(self.replica.name(), to),
            Err(error) => tracing::debug!(collection = self.replica.name(), %error, "Not numbered again"),
        }
    }

    /// What was fed is void. Ours, under `from`, may be a copy of it: it has the number `to` until the cloud has been listed.
    pub(super) fn list_again(&self, from: u64, to: u64) {
        tracing::warn!(
            collection = self.replica.name(),
            "An administrator has voided the collection: it is listed again"
        );
        self.renumber(from, to);
        self.data.timeline().disown(self.replica.name(), to);
    }
}

/// Why nothing can be fed to a coordinator of this generation.
pub(super) fn exhausted(collection: &str, generation: u64) -> String {
    format!(
        "the coordinator holds {collection} under generation {generation}, and no number comes after it; an administrator has to \
         void it: DELETE /yurt/v1/feed/{collection} at the coordinator"
    )
}
