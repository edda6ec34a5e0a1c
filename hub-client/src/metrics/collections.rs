//! Metrics per collection: data, source, time since it was last known to be up to date, and the coordinator's lag
//! while this hub feeds it.

use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec, Opts, Registry};
use yurt_apimachinery::ResourceVersion;
use yurt_pool_protocol::source::Source;

use crate::pool::feed::progress::FeedProgress;
use crate::replicas::PoolData;

/// Metrics of the collections. Each scrape sets them, except those counted on the event.
pub(crate) struct Collections {
    /// Samples of the replicas that were compared with the cloud.
    pub(crate) samples: IntCounterVec,
    /// Samples in which the coordinator's data differs from any state of the cloud.
    pub(crate) forgeries: IntCounterVec,
    complete: IntGaugeVec,
    fresh: IntGaugeVec,
    staleness: GaugeVec,
    source: IntGaugeVec,
    switches: IntCounterVec,
    oversized: IntCounterVec,
    relists: IntCounterVec,
    objects: IntGaugeVec,
    bytes: IntGaugeVec,
    rv: GaugeVec,
    lag_versions: GaugeVec,
    lag_seconds: GaugeVec,
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
            complete: IntGaugeVec::new(opts("collection_complete", "1 while it is complete and served"), by)?,
            fresh: IntGaugeVec::new(opts("collection_fresh", "1 while complete and fresh"), by)?,
            staleness: GaugeVec::new(
                opts(
                    "collection_staleness_seconds",
                    "Time since it was last known to be up to date; +Inf if it has not been since the start",
                ),
                by,
            )?,
            source: IntGaugeVec::new(
                opts("collection_source", "1 for its current source"),
                &["collection", "source"],
            )?,
            switches: IntCounterVec::new(opts("collection_source_switches_total", "Changes of its source"), by)?,
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

    /// Sets the metrics for a scrape; `feed` is given while this hub leads.
    pub(crate) fn set(&self, data: &PoolData, feed: Option<&FeedProgress>) {
        // Series of removed replicas disappear.
        let numbers = [&self.complete, &self.fresh, &self.objects, &self.bytes, &self.source];
        numbers.into_iter().for_each(|one| one.reset());
        let measures = [&self.staleness, &self.rv, &self.lag_versions, &self.lag_seconds];
        measures.into_iter().for_each(|one| one.reset());
        for replica in data.replicas().iter() {
            let name = &[replica.name()];
            let complete = replica.is_served();
            let (count, bytes, rv) = replica.collection().read(|c| (c.len(), c.size(), c.position()));
            let number = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
            self.complete.with_label_values(name).set(i64::from(complete));
            let fresh = data.is_fresh(replica.name());
            self.fresh.with_label_values(name).set(i64::from(fresh));
            let staleness = data.staleness(replica.name());
            let staleness = staleness.map_or(f64::INFINITY, |time| time.as_secs_f64());
            self.staleness.with_label_values(name).set(staleness);
            self.objects.with_label_values(name).set(number(count));
            self.bytes.with_label_values(name).set(number(bytes));
            self.rv.with_label_values(name).set(rv.0 as f64);
            let state = data.source(replica.name());
            for source in [Source::None, Source::Cloud, Source::Coordinator] {
                let is_it = i64::from(state.source == source);
                let labels = &[replica.name(), source.as_str()];
                self.source.with_label_values(labels).set(is_it);
            }
            let raise = |counter: &IntCounterVec, to: u64| {
                let counter = counter.with_label_values(name);
                counter.inc_by(to.saturating_sub(counter.get()));
            };
            raise(&self.switches, state.switches);
            raise(&self.oversized, state.oversized.0);
            raise(&self.relists, replica.collection().relists_forced());
            if let Some(feed) = feed {
                self.set_lag(replica.name(), rv, feed);
            }
        }
    }

    fn set_lag(&self, name: &str, rv: ResourceVersion, feed: &FeedProgress) {
        let lag = feed.lag(name, rv);
        let versions = lag.map_or(f64::INFINITY, |lag| lag.versions as f64);
        let seconds = lag.map_or(f64::INFINITY, |lag| lag.time.as_secs_f64());
        self.lag_versions.with_label_values(&[name]).set(versions);
        self.lag_seconds.with_label_values(&[name]).set(seconds);
    }
}
