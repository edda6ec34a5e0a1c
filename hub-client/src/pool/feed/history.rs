//! Generations that the leader begins: the coordinator's history differs from the cloud's.

use yurt_apimachinery::ResourceVersion;
use yurt_collection::generation;
use yurt_pool_protocol::history::next_generation;
use yurt_pool_protocol::resume::CopyState;

use super::Feeder;

// === impl Feeder ===

impl Feeder {
    /// Begins a generation if this hub's replica is proved to have the present cloud's history: the coordinator has
    /// another history under the same number.
    pub(super) fn begin_generation(&self, why: &str) {
        let generation = self.here().generation;
        if self.data.history().holds(self.replica.name(), generation) {
            tracing::error!(
                collection = self.replica.name(),
                why,
                "Coordinator has another history; starting new generation"
            );
            self.renumber(generation, next_generation(generation, fastrand::u64(..)));
        }
    }

    /// Handles a coordinator that stays ahead. If the cloud itself is behind that position, a former leader fed a
    /// history that never existed. Then this hub's replica, which is proved, begins a generation.
    pub(super) async fn leave_behind(&self, there: CopyState) {
        let (name, generation) = (self.replica.name(), self.here().generation);
        let head = match self.data.head_of(&self.replica, self.cloud.server()).await {
            Ok(head) => head,
            Err(why) => return tracing::debug!(collection = name, why, "Failed to read position of cloud"),
        };
        let is_behind = head < there.position;
        let why = match is_behind {
            true => "ahead of the cloud",
            false => "ahead of this hub, which has not read that far yet",
        };
        let why = format!(
            "the coordinator is at {}, {why}: the cloud is at {head}",
            there.position
        );
        self.data.failures().unanswered(&self.what(), &why);
        let is_ours = generation == there.generation && self.data.history().holds(name, generation);
        if let Some(next) = generation::next(there.generation, fastrand::u64(..)).filter(|_| is_behind && is_ours) {
            tracing::error!(
                collection = name,
                why,
                "Coordinator has a history that never existed; starting new generation"
            );
            self.renumber(generation, next);
        }
    }

    /// Changes the generation of this hub's replica, proved under `from`, to `to`.
    pub(super) fn renumber(&self, from: u64, to: u64) {
        let adopted = self
            .replica
            .collection()
            .update_of(from, ResourceVersion::ZERO, |c| c.adopt(to));
        match adopted {
            Ok(()) => self.data.history().extend(self.replica.name(), to),
            Err(error) => tracing::debug!(collection = self.replica.name(), %error, "Failed to change generation"),
        }
    }

    /// Relists after the fed data was voided; the coordinator requires generation `required`. This hub's replica, under
    /// `generation`, may be a copy of the void data. It keeps that number until the cloud has been listed: after a
    /// restart before that, the number still shows that the data is void.
    pub(super) fn list_again(&self, generation: u64, required: u64) {
        tracing::warn!(
            collection = self.replica.name(),
            "Administrator voided the collection; relisting"
        );
        self.data
            .history()
            .disown_below(self.replica.name(), generation, required);
    }
}

/// Returns the reason why nothing can be fed to a coordinator of this generation.
pub(super) fn exhausted(collection: &str, generation: u64) -> String {
    format!(
        "the coordinator holds {collection} under generation {generation}, which has no successor; an administrator has to \
         void it: DELETE /yurt/v1/feed/{collection} at the coordinator"
    )
}
