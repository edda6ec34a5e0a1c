//! Confirmed forgeries of pool data, and the nodes that may not lead because of them.

use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

/// Counters of forgeries; the barred nodes are set at every scrape.
pub(super) struct Forgeries {
    confirmed: IntCounterVec,
    barred: IntGaugeVec,
}

// === impl Forgeries ===

impl Forgeries {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let confirmed = super::counters(
            registry,
            "yurt_coordinator_forgeries_confirmed_total",
            "Forgeries of pool data that the members confirmed; the collection is voided.",
            &["collection"],
        )?;
        let barred = IntGaugeVec::new(
            Opts::new(
                "yurt_coordinator_barred",
                "1 for a node that may not hold the election lease because it forged pool data.",
            ),
            &["node"],
        )?;
        registry.register(Box::new(barred.clone()))?;
        Ok(Self { confirmed, barred })
    }

    /// Begins the series of a fed collection at zero, so that an increase is seen.
    pub(super) fn begin(&self, collection: &str) {
        self.confirmed.with_label_values(&[collection]);
    }

    pub(super) fn confirmed(&self, collection: &str) {
        self.confirmed.with_label_values(&[collection]).inc();
    }

    pub(super) fn set_barred<'a>(&self, nodes: impl Iterator<Item = &'a str>) {
        self.barred.reset();
        nodes.for_each(|node| self.barred.with_label_values(&[node]).set(1));
    }
}
