//! Metrics of what the hub keeps for the time without the cloud.

use prometheus::{IntGauge, Opts, Registry};

/// Metrics of kept answers. Each scrape sets them.
pub(crate) struct OfflineMetrics {
    pub(crate) answers: IntGauge,
    pub(crate) answer_bytes: IntGauge,
}

// === impl OfflineMetrics ===

impl OfflineMetrics {
    /// Creates the metrics.
    ///
    /// # Errors
    /// A metric name is invalid.
    pub(super) fn new() -> prometheus::Result<Self> {
        let gauge = |short: &str, help: &str| IntGauge::with_opts(Opts::new(format!("node_yurthub_{short}"), help));
        Ok(Self {
            answers: gauge(
                "kept_answers",
                "Answers of the cloud on the disk, for the time without it",
            )?,
            answer_bytes: gauge("kept_answer_bytes", "Bytes of the kept answers on the disk")?,
        })
    }

    /// Registers the metrics.
    ///
    /// # Errors
    /// Two metrics have the same name.
    pub(super) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.answers.clone()))?;
        registry.register(Box::new(self.answer_bytes.clone()))
    }
}
