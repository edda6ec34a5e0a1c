//! Reaction of this hub to forged data of the coordinator: it leaves the coordinator for that collection.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use yurt_apimachinery::{ObjectKey, ResourceVersion};
use yurt_collection::Collection;
use yurt_pool_protocol::source::Source;
use yurt_runtime::Clock;

use super::PoolData;
use crate::health::CoordinatorReach;
use crate::metrics::Metrics;

/// Maximum findings that wait to be reported; further ones are found again by the next sample.
pub const FINDINGS_MAX: usize = 16;

/// State of an object at the coordinator that contradicts the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Name of the collection.
    pub collection: String,
    /// Generation of the collection at the coordinator.
    pub generation: u64,
    /// The object.
    pub key: ObjectKey,
    /// RV of the object at the coordinator; zero if the coordinator lacks it.
    pub version: ResourceVersion,
    /// Kind of the forgery.
    pub reason: String,
}

/// Reacts to forgeries.
#[derive(Clone)]
pub struct Alarm {
    /// The replicas.
    pub data: Arc<PoolData>,
    /// Status of the coordinator, including the leader.
    pub coordinator: watch::Receiver<CoordinatorReach>,
    /// Receiver of the findings of this hub.
    pub findings: mpsc::Sender<Finding>,
    /// Counts forgeries.
    pub metrics: Arc<Metrics>,
    /// Clock.
    pub clock: Clock,
}

// === impl Alarm ===

impl Alarm {
    /// As [`Self::leave`], and reports the finding to the pool.
    pub fn raise(&self, finding: Finding) {
        if self.leave(&finding)
            && let Err(error) = self.findings.try_send(finding)
        {
            tracing::debug!(%error, "Forgery not reported");
        }
    }

    /// Switches the collection from the coordinator to the cloud. The list there replaces the data as a new generation,
    /// so that no reader keeps any of it. Returns false if the collection does not follow the coordinator now.
    pub fn leave(&self, finding: &Finding) -> bool {
        let Finding {
            collection: name,
            key,
            reason: why,
            ..
        } = finding;
        if self.data.sources().of(name).source != Source::Coordinator
            || self.data.distrust().has(name, self.clock.boot())
        {
            return false;
        }
        let status = self.coordinator.borrow().status.clone();
        let leader = status.map(|status| status.holder.clone());
        let leader = leader
            .filter(|holder| !holder.is_empty())
            .unwrap_or_else(|| "nobody".to_owned());
        let message = format!("{name} {key} of the coordinator is forged: {why}; {leader} leads");
        // Must precede the follower's notification: the next list begins a new generation.
        if let Some(replica) = self.data.replicas().named(name) {
            let held = replica.collection().read(Collection::generation);
            self.data.history().disown(name, held);
        }
        let lasts = self.data.distrust().caught(name, &message, self.clock.boot());
        tracing::error!(collection = name, %key, why, leader, seconds = lasts.as_secs(), "The coordinator's data is forged; following the cloud");
        self.metrics.collections.forgeries.with_label_values(&[name]).inc();
        self.data.failures().refused(&failure(name), &message);
        true
    }
}

/// Name of the failure while `collection` does not follow the coordinator.
pub(super) fn failure(collection: &str) -> String {
    format!("truth of {collection}")
}
