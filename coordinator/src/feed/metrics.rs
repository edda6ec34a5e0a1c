//! Counters of the feed.

use prometheus::{IntCounter, IntCounterVec, Registry};
use yurt_pool_protocol::feed::Refusal;

use crate::metrics::counters;

/// Counters of the feed; clones share them.
#[derive(Clone)]
pub(crate) struct FeedMetrics {
    batches: IntCounterVec,
    refused: IntCounterVec,
    fenced: IntCounter,
    gaps: IntCounter,
    late_accepted: IntCounter,
    voids: IntCounterVec,
}

// === impl FeedMetrics ===

impl FeedMetrics {
    /// Registers the counters.
    ///
    /// # Errors
    /// When another metric has one of their names, which is a programming error.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let single = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        Ok(Self {
            batches: counters(
                registry,
                "yurt_coordinator_feed_batches_total",
                "Batches applied.",
                &["collection"],
            )?,
            refused: counters(
                registry,
                "yurt_coordinator_feed_refused_total",
                "Feed calls refused.",
                &["reason"],
            )?,
            fenced: single(
                "yurt_coordinator_feed_fenced_total",
                "Feed calls of callers that do not lead.",
            )?,
            gaps: single(
                "yurt_coordinator_feed_gaps_total",
                "Batches that did not continue at C.",
            )?,
            late_accepted: single(
                "yurt_coordinator_feed_late_accepted_total",
                "Batches applied although the election lease named another holder. Must stay 0.",
            )?,
            voids: counters(
                registry,
                "yurt_coordinator_feed_voids_total",
                "Collections voided through this coordinator, by an administrator or a majority of the members.",
                &["collection"],
            )?,
        })
    }

    /// Begins the counter of voids of a fed collection at zero, so that an increase is seen.
    pub(crate) fn fed(&self, collection: &str) {
        self.voids.with_label_values(&[collection]);
    }

    /// Counts an applied batch.
    pub(crate) fn batch(&self, collection: &str, is_late: bool) {
        self.batches.with_label_values(&[collection]).inc();
        if is_late {
            self.late_accepted.inc();
            tracing::error!(
                collection,
                "Batch applied although another hub holds the election lease"
            );
        }
    }

    /// Counts a void of fed data.
    pub(crate) fn voided(&self, collection: &str) {
        self.voids.with_label_values(&[collection]).inc();
    }

    /// Counts a refused call.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        let reason = match refusal {
            Refusal::Fenced { .. } => {
                self.fenced.inc();
                "fenced"
            }
            Refusal::Gap { .. } => {
                self.gaps.inc();
                "gap"
            }
            Refusal::Behind { .. } => "behind",
            Refusal::Backwards { .. } => "backwards",
            Refusal::Generation { .. } | Refusal::Leap { .. } => "generation",
            Refusal::Position { .. } => "position",
            Refusal::Members { .. } => "members",
            Refusal::Version { .. } => "version",
        };
        self.refused.with_label_values(&[reason]).inc();
    }
}
