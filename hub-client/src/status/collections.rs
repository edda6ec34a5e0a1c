//! Collections of the hub in `/debug/state.json` and in the metrics: data, source, age, and the coordinator's lag.

use prometheus::IntCounterVec;
use serde_json::{Value, json};
use yurt_apimachinery::ResourceVersion;
use yurt_pool_protocol::source::Source;

use crate::metrics::collections::Collections;
use crate::pool::feed::progress::FeedProgress;
use crate::replicas::PoolData;

/// Returns the `collections` part of `/debug/state.json`.
pub(super) fn describe(data: &PoolData) -> Value {
    let mut described = serde_json::Map::new();
    for replica in data.pool_replicas() {
        let name = replica.name();
        let state = data.sources().of(name);
        let staleness = data.staleness(name).map(|time| time.as_secs());
        let is_served = replica.is_served();
        let value = replica.collection().read(|c| {
            json!({
                "source": state.source.as_str(),
                "complete": is_served,
                "fresh": false,
                "rv": c.position().to_string(),
                "generation": c.generation(),
                "objects": c.len(),
                "bytes": c.size(),
                "durableRv": replica.durable().position.to_string(),
                "stalenessSeconds": staleness,
                "oversized": state.oversized.0,
                "sourceSwitches": state.switches,
                "relistsForced": replica.collection().relists_forced(),
            })
        });
        described.insert(name.to_owned(), value);
        described[name]["fresh"] = data.is_fresh(name).into();
        if let Some((objects, bytes, stuck)) = data.partial_lists().progress(name) {
            described[name]["listing"] = json!({ "objects": objects, "bytes": bytes, "stuck": stuck });
        }
    }
    Value::Object(described)
}

// === impl Collections ===

impl Collections {
    /// Sets the metrics within a scrape; `feed` is given while this hub leads.
    pub(crate) fn set(&self, data: &PoolData, feed: Option<&FeedProgress>) {
        // Series of removed replicas disappear. A replica that returns counts from zero.
        let numbers = [&self.complete, &self.fresh, &self.objects, &self.bytes, &self.source];
        numbers.into_iter().for_each(|one| one.reset());
        let counters = [&self.switches, &self.oversized, &self.relists];
        counters.into_iter().for_each(|one| one.reset());
        let measures = [&self.staleness, &self.rv, &self.lag_versions, &self.lag_seconds];
        measures.into_iter().for_each(|one| one.reset());
        for replica in data.pool_replicas() {
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
            let state = data.sources().of(replica.name());
            for source in [Source::None, Source::Cloud, Source::Coordinator] {
                let is_it = i64::from(state.source == source);
                let labels = &[replica.name(), source.as_str()];
                self.source.with_label_values(labels).set(is_it);
            }
            let count = |counter: &IntCounterVec, total| counter.with_label_values(name).inc_by(total);
            count(&self.switches, state.switches);
            count(&self.oversized, state.oversized.0);
            count(&self.relists, replica.collection().relists_forced());
            // Counted on the event: the series must exist before, so that an increase is seen.
            for counter in [&self.samples, &self.forgeries] {
                counter.with_label_values(name);
            }
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

#[cfg(test)]
mod tests {
    use yurt_runtime::Clock;
    use yurt_test_support::TestDir;

    use super::*;
    use crate::metrics::Metrics;

    const SERVICES: &str = "services";

    fn pool_data(folder: &TestDir) -> PoolData {
        PoolData::open(folder.path(), "hangzhou", usize::MAX, Clock::system()).unwrap()
    }

    /// `increase()` does not see the first count of a series that begins with it.
    #[test]
    fn counters_of_samples_and_forgeries_begin_at_zero() {
        let folder = TestDir::new();
        let (data, metrics) = (pool_data(&folder), Metrics::new().unwrap());
        metrics.collections.set(&data, None);
        let shown = metrics.registry.render();
        for what in ["samples", "forgeries"] {
            let line = format!("node_yurthub_pool_data_{what}_total{{collection=\"{SERVICES}\"}} 0\n");
            assert!(shown.contains(&line), "{line}{shown}");
        }
    }

    /// A resource may leave the pool's scope and return.
    #[test]
    fn counters_of_a_collection_that_returns_begin_again() {
        let folder = TestDir::new();
        let (data, metrics) = (pool_data(&folder), Metrics::new().unwrap());
        let switches = || {
            metrics.collections.set(&data, None);
            metrics.collections.switches.with_label_values(&[SERVICES]).get()
        };
        let change_source = || {
            data.sources().confirmed(SERVICES, Source::Cloud);
            data.sources().confirmed(SERVICES, Source::Coordinator);
        };
        change_source();
        change_source();
        assert_eq!(switches(), 3);
        data.sources().remove(SERVICES);
        change_source();
        assert_eq!(switches(), 1);
    }
}
