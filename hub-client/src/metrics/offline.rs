//! Metrics of what the hub keeps for the time without the cloud.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// Metrics of kept answers and local writes. Each scrape sets the gauges.
pub(crate) struct OfflineMetrics {
    pub(crate) answers: IntGauge,
    pub(crate) answer_bytes: IntGauge,
    pub(crate) events: IntGauge,
    pub(crate) events_dropped: IntCounter,
    pub(crate) pending_writes: IntGauge,
    /// Local writes that ended, by result: `written`, `gone`, `refused`.
    pub(crate) writes_settled: IntCounterVec,
}

// === impl OfflineMetrics ===

impl OfflineMetrics {
    /// Creates the metrics.
    ///
    /// # Errors
    /// A metric name is invalid.
    pub(super) fn new() -> prometheus::Result<Self> {
        let gauge = |short: &str, help: &str| IntGauge::with_opts(Opts::new(format!("node_yurthub_{short}"), help));
        let writes_settled = IntCounterVec::new(
            Opts::new(
                "node_yurthub_local_writes_total",
                "Local writes that ended: written, gone (no such object), refused by the cloud",
            ),
            &["result"],
        )?;
        for result in ["written", "gone", "refused"] {
            writes_settled.with_label_values(&[result]);
        }
        Ok(Self {
            answers: gauge(
                "kept_answers",
                "Answers of the cloud on the disk, for the time without it",
            )?,
            answer_bytes: gauge("kept_answer_bytes", "Bytes of the kept answers on the disk")?,
            events: gauge("kept_events", "Events that the cloud does not have yet")?,
            events_dropped: IntCounter::with_opts(Opts::new(
                "node_yurthub_kept_events_dropped_total",
                "Kept events that were dropped: too many, or refused by the cloud",
            ))?,
            pending_writes: gauge(
                "pending_local_writes",
                "Objects with a status that the cloud does not have yet",
            )?,
            writes_settled,
        })
    }

    /// Registers the metrics.
    ///
    /// # Errors
    /// Two metrics have the same name.
    pub(super) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.answers.clone()))?;
        registry.register(Box::new(self.answer_bytes.clone()))?;
        registry.register(Box::new(self.events.clone()))?;
        registry.register(Box::new(self.events_dropped.clone()))?;
        registry.register(Box::new(self.pending_writes.clone()))?;
        registry.register(Box::new(self.writes_settled.clone()))
    }
}
