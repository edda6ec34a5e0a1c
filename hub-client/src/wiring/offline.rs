//! Starts the parts that answer while the cloud is away.

use std::sync::Arc;

use super::Wiring;
use crate::config::WorkingMode;
use crate::offline::Offline;
use crate::offline::answers::Answers;
use crate::proxy::authorize::Authorizer;

// === impl Wiring ===

impl Wiring {
    /// Opens the kept answers and starts their writer.
    pub(super) fn offline(&self, authorizer: Authorizer) -> Arc<Offline> {
        let (token, is_foreign) = (self.tasks.token(), self.data.copy().is_foreign().clone());
        let (clock, failures) = (self.clock.clone(), self.data.failures().clone());
        let (answers, writer) = Answers::open(&self.config.cache_dir, clock, failures);
        let writing = writer.run(self.cloud.0.subscribe(), token, is_foreign);
        self.tasks.spawn_critical("keep-answers", writing);
        let agents = self.agents.clone();
        Arc::new(Offline {
            answers,
            authorizer,
            reach: self.cloud.0.subscribe(),
            is_cacheable: match self.config.mode {
                WorkingMode::Edge => Arc::new(move |component| agents.has(component)),
                WorkingMode::Cloud => Arc::new(|_| false),
            },
        })
    }
}
