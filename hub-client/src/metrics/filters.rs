//! Metrics of the data filters. Each scrape sets them.

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use crate::filter::binding::Table;

/// Metrics of the data filters; their labels are names of filters and of results.
pub(crate) struct Filters {
    objects: IntCounterVec,
    bindings: IntGaugeVec,
    faults: IntGauge,
    synced: IntGauge,
}

// === impl Filters ===

impl Filters {
    /// # Errors
    /// A metric name is invalid.
    pub(super) fn new() -> prometheus::Result<Self> {
        let opts = |short: &str, help: &str| Opts::new(format!("node_yurthub_{short}"), help);
        Ok(Self {
            objects: IntCounterVec::new(
                opts(
                    "filter_objects_total",
                    "Objects that a filter evaluated, by result; reevaluated: again, because an input changed",
                ),
                &["filter", "result"],
            )?,
            bindings: IntGaugeVec::new(
                opts(
                    "filter_bindings",
                    "Components that a filter is bound to; 0 if it does not run",
                ),
                &["filter"],
            )?,
            faults: IntGauge::with_opts(opts(
                "filter_config_errors",
                "Entries of ConfigMap yurt-hub-cfg that are not applied; /debug/filters lists them",
            ))?,
            synced: IntGauge::with_opts(opts(
                "filter_config_synced",
                "1 if ConfigMap yurt-hub-cfg is known; 0 while filtered requests are refused",
            ))?,
        })
    }

    /// # Errors
    /// A name is registered already.
    pub(super) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.objects.clone()))?;
        registry.register(Box::new(self.bindings.clone()))?;
        registry.register(Box::new(self.faults.clone()))?;
        registry.register(Box::new(self.synced.clone()))
    }

    /// Sets the metrics for a scrape; `is_synced` is true once the configuration of the filters is known.
    pub(crate) fn set(&self, table: &Table, is_synced: bool) {
        let number = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        for row in table.rows() {
            let filter = row.registration.filter.name();
            for (result, count) in row.counts.each() {
                let counter = self.objects.with_label_values(&[filter, result]);
                counter.inc_by(count.saturating_sub(counter.get()));
            }
            let bound = if row.off.is_none() { row.bound.len() } else { 0 };
            self.bindings.with_label_values(&[filter]).set(number(bound));
        }
        self.faults.set(number(table.fault_count()));
        self.synced.set(i64::from(is_synced));
    }
}
