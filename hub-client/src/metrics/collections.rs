//! Metrics per collection: data, source, time since it was last known to be up to date, and the coordinator's lag
//! while this hub feeds it.

use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec, Opts, Registry};

/// Metrics of the collections. Each scrape sets them, except those counted on the event.
pub(crate) struct Collections {
    /// Samples of the replicas that were compared with the cloud.
    pub(crate) samples: IntCounterVec,
    /// Samples in which the coordinator's data differs from any state of the cloud.
    pub(crate) forgeries: IntCounterVec,
    pub(crate) complete: IntGaugeVec,
    pub(crate) fresh: IntGaugeVec,
    pub(crate) staleness: GaugeVec,
    pub(crate) source: IntGaugeVec,
    pub(crate) switches: IntCounterVec,
    pub(crate) oversized: IntCounterVec,
    pub(crate) relists: IntCounterVec,
    pub(crate) objects: IntGaugeVec,
    pub(crate) bytes: IntGaugeVec,
    pub(crate) rv: GaugeVec,
    pub(crate) lag_versions: GaugeVec,
    pub(crate) lag_seconds: GaugeVec,
}

// === impl Collections ===

impl Collections {
    /// Creates the metrics, with counters at zero.
    ///
    /// # Errors
    /// A metric name is invalid.
    pub(super) fn new() -> prometheus::Result<Self> {
        let opts = |short: &str, help: &str| Opts::new(format!("node_yurthub_{short}"), help);
        let by = &["collection"];
        let counter = |short, help| IntCounterVec::new(opts(short, help), by);
        Ok(Self {
            samples: counter(
                "pool_data_samples_total",
                "Samples of pool data from the coordinator that were compared with the cloud",
            )?,
            forgeries: counter(
                "pool_data_forgeries_total",
                "Samples of pool data that the coordinator has in a state the cloud never had",
            )?,
            complete: IntGaugeVec::new(
                opts("collection_complete", "1 while the collection is complete and served"),
                by,
            )?,
            fresh: IntGaugeVec::new(opts("collection_fresh", "1 while complete and fresh"), by)?,
            staleness: GaugeVec::new(
                opts(
                    "collection_staleness_seconds",
                    "Time since it was last known to be up to date; +Inf if it has not been since the start",
                ),
                by,
            )?,
            source: IntGaugeVec::new(
                opts("collection_source", "1 for the current source of the collection"),
                &["collection", "source"],
            )?,
            switches: IntCounterVec::new(
                opts(
                    "collection_source_switches_total",
                    "Changes of the source of the collection",
                ),
                by,
            )?,
            oversized: counter(
                "collection_oversized_total",
                "Lists and changes rejected because of --max-pool-bytes",
            )?,
            relists: IntCounterVec::new(
                opts(
                    "collection_relists_forced_total",
                    "Watches answered with 410 Gone, so that their client relists; must stay 0",
                ),
                by,
            )?,
            objects: IntGaugeVec::new(opts("collection_objects", "Live objects"), by)?,
            bytes: IntGaugeVec::new(opts("collection_bytes", "Bytes in memory, history included"), by)?,
            rv: GaugeVec::new(
                opts(
                    "collection_rv",
                    "Everything up to this resourceVersion has been applied",
                ),
                by,
            )?,
            lag_versions: GaugeVec::new(
                opts(
                    "feed_lag_resource_versions",
                    "Resource versions the coordinator is behind this leader; no series while another hub leads",
                ),
                by,
            )?,
            lag_seconds: GaugeVec::new(
                opts(
                    "feed_lag_seconds",
                    "Age of the oldest change that the coordinator lacks; +Inf before the first delivery",
                ),
                by,
            )?,
        })
    }

    /// Registers all metrics.
    ///
    /// # Errors
    /// A name is already registered.
    pub(super) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        let gauges = [&self.complete, &self.fresh, &self.source, &self.objects, &self.bytes];
        for gauge in gauges {
            registry.register(Box::new(gauge.clone()))?;
        }
        for gauge in [&self.staleness, &self.rv, &self.lag_versions, &self.lag_seconds] {
            registry.register(Box::new(gauge.clone()))?;
        }
        for counter in [&self.samples, &self.forgeries, &self.switches, &self.oversized] {
            registry.register(Box::new(counter.clone()))?;
        }
        registry.register(Box::new(self.relists.clone()))
    }
}
