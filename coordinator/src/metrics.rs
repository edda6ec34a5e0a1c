//! Metrics, under kube-apiserver's names where it has one.
//!
//! Imports no other module: components export figures here, or register metrics of their own ([`Metrics::registry`]).
//!
//! [`requests`]: requests and watches; [`watch_events`]: events sent to watches; [`collections`]: size, freshness and
//! forced relists of collections; [`election`]: the pool's leader; [`budgets`]: bytes and their limits.

mod budgets;
mod collections;
mod election;
mod forgeries;
mod requests;
mod watch_events;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::Response;
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};
use yurt_runtime::Clock;
use yurt_runtime::fair_queue::Refusals;
use yurt_runtime::http::Body;
use yurt_runtime::http::server::ConnectionMetrics;
use yurt_runtime::metrics::Metrics as Render;
use yurt_storage::embedded::Disk;

use budgets::Budgets;
pub(crate) use collections::CollectionFigures;
use collections::Collections;
use election::Election;
pub(crate) use election::ElectionFigures;
use forgeries::Forgeries;
use requests::Requests;
pub(crate) use requests::{RequestLabels, WatchCount};

/// All counters of this process.
pub(crate) struct Metrics {
    custom: IntCounterVec,
    custom_kinds: prometheus::IntGauge,
    render: Render,
    requests: Requests,
    connections: ConnectionMetrics,
    in_flight: [IntGaugeVec; 2],
    refused: IntCounterVec,
    collections: Collections,
    election: Election,
    forgeries: Forgeries,
    budgets: Budgets,
    disk: DiskMetrics,
}

/// Disk use of the store's file; set at every scrape.
struct DiskMetrics {
    disk: OnceLock<Arc<Disk>>,
    errors: IntCounterVec,
    written: IntCounter,
    syncs: IntCounter,
    size: prometheus::IntGauge,
}

// === impl Metrics ===

impl Metrics {
    /// Counters at zero.
    ///
    /// # Errors
    /// When two metrics have the same name, which is a programming error.
    pub(crate) fn new() -> prometheus::Result<Self> {
        let render = Render::new();
        let registry = render.registry();
        let requests = Requests::new(registry)?;
        let gauge = |name: &str, help: &str| {
            let gauge = IntGaugeVec::new(Opts::new(name, help), &["request_kind"])?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let in_flight = [
            gauge("apiserver_current_inflight_requests", "Requests being answered.")?,
            gauge("apiserver_current_inqueue_requests", "Requests waiting for a place.")?,
        ];
        let refused = counters(
            registry,
            "apiserver_flowcontrol_rejected_requests_total",
            "Requests rejected with 429, by kind of request (readOnly, mutating) and reason (queue-full, time-out).",
            &["priority_level", "reason"],
        )?;
        let connections = ConnectionMetrics::new("yurt_coordinator", &render)?;
        let collections = Collections::new(registry)?;
        let election = Election::new(registry)?;
        let forgeries = Forgeries::new(registry)?;
        let budgets = Budgets::new(registry)?;
        let disk = DiskMetrics::new(registry)?;
        let custom = counters(
            registry,
            "yurt_coordinator_custom_resources_loads_total",
            "Reloads of changed declarations of custom resources, by result: taken or refused.",
            &["result"],
        )?;
        let custom_kinds = prometheus::IntGauge::new(
            "yurt_coordinator_custom_resources",
            "Kinds of custom resources that are declared.",
        )?;
        registry.register(Box::new(custom_kinds.clone()))?;
        Ok(Self {
            disk,
            requests,
            connections,
            in_flight,
            refused,
            collections,
            election,
            forgeries,
            budgets,
            custom,
            custom_kinds,
            render,
        })
    }

    /// Exports the figures of `disk`.
    pub(crate) fn watch_disk(&self, disk: Arc<Disk>) {
        // There is one store; a second call would pass the same disk.
        let _ = self.disk.disk.set(disk);
    }

    /// Records that the declarations of so many custom resources were accepted; `None` when they were rejected.
    pub(crate) fn custom_loaded(&self, kinds: Option<usize>) {
        let result = if kinds.is_some() { "taken" } else { "refused" };
        self.custom.with_label_values(&[result]).inc();
        if let Some(kinds) = kinds {
            self.custom_kinds.set(i64::try_from(kinds).unwrap_or(i64::MAX));
        }
    }

    /// Removes the metrics of a collection that is no longer served.
    pub(crate) fn forget_collection(&self, name: &str) {
        self.collections.remove(name);
    }

    /// Registry of the exported metrics; a component may register its own.
    pub(crate) fn registry(&self) -> &Registry {
        self.render.registry()
    }

    /// Counters of the server's connections.
    pub(crate) fn connections(&self) -> ConnectionMetrics {
        self.connections.clone()
    }

    /// Counts a request that was answered after `took`.
    pub(crate) fn answered(&self, labels: RequestLabels, response: &Response<Body>, took: Duration) {
        self.requests.answered(labels, response, took);
    }

    /// Sets the load of a fair queue: requests being answered, and waiting.
    pub(crate) fn requests_in_flight(&self, request_kind: &str, load: (usize, usize)) {
        for (gauge, value) in self.in_flight.iter().zip([load.0, load.1]) {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            gauge.with_label_values(&[request_kind]).set(value);
        }
    }

    /// Counters of requests that were rejected by a fair queue.
    pub(crate) fn rejections(&self, request_kind: &str) -> Refusals {
        let of = |reason| self.refused.with_label_values(&[request_kind, reason]);
        Refusals {
            full: of("queue-full"),
            late: of("time-out"),
        }
    }

    /// Counts a watch of the resource `name` while the returned value lives.
    pub(crate) fn watch(&self, labels: RequestLabels, name: &str, clock: &Clock) -> WatchCount {
        self.requests.watch(labels, name, clock)
    }

    /// Begins the counters of a fed collection at zero, so that an increase is seen.
    pub(crate) fn fed(&self, collection: &str) {
        self.forgeries.begin(collection);
    }

    /// Counts a confirmed forgery in `collection`.
    pub(crate) fn forgery_confirmed(&self, collection: &str) {
        self.forgeries.confirmed(collection);
    }

    /// Sets the nodes that may not hold the election lease.
    pub(crate) fn barred<'a>(&self, nodes: impl Iterator<Item = &'a str>) {
        self.forgeries.set_barred(nodes);
    }

    /// Sets the limit of own bytes.
    pub(crate) fn own_bytes_limit(&self, limit: usize) {
        self.budgets.set_own_limit(limit);
    }

    /// Exports the figures of a collection.
    pub(crate) fn collection(&self, figures: &CollectionFigures<'_>) {
        self.collections.set(figures);
    }

    /// Exports the bytes of stored objects: own ones, and those of the pool with their limit.
    pub(crate) fn stored_bytes(&self, own: usize, pool: usize, pool_max: usize) {
        self.budgets.set(own, pool, pool_max);
    }

    /// Exports the state of the election.
    pub(crate) fn election(&self, figures: &ElectionFigures<'_>) {
        self.election.set(figures);
    }

    /// Everything in Prometheus' text format, with the figures that `export` sets. One scrape at a time.
    pub(crate) fn scrape(&self, export: impl FnOnce()) -> String {
        self.render.scrape(|| {
            export();
            self.disk.update();
        })
    }
}

/// Registers counters.
///
/// # Errors
/// When another metric has their name, which is a programming error.
pub(crate) fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntCounterVec> {
    let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(counters.clone()))?;
    Ok(counters)
}

// === impl DiskMetrics ===

impl DiskMetrics {
    fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let size = prometheus::IntGauge::new("yurt_coordinator_storage_file_bytes", "Size of the store's file.")?;
        registry.register(Box::new(size.clone()))?;
        Ok(Self {
            disk: OnceLock::new(),
            errors: counters(
                registry,
                "yurt_coordinator_storage_errors_total",
                "Transactions the store's file refused, by reason: full, io or corrupt.",
                &["reason"],
            )?,
            written: counter(
                "yurt_coordinator_storage_written_bytes_total",
                "Bytes written to the store's file.",
            )?,
            syncs: counter("yurt_coordinator_storage_syncs_total", "Flushes of the store's file.")?,
            size,
        })
    }

    fn update(&self) {
        let Some(disk) = self.disk.get() else { return };
        let stats = disk.stats();
        let raise = |counter: &IntCounter, to: u64| counter.inc_by(to.saturating_sub(counter.get()));
        for (reason, count) in [("full", stats.full), ("io", stats.io), ("corrupt", stats.corrupt)] {
            raise(&self.errors.with_label_values(&[reason]), count);
        }
        raise(&self.written, stats.bytes_written);
        raise(&self.syncs, stats.syncs);
        self.size.set(i64::try_from(stats.file_bytes).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use yurt_test_support::misnamed_counters;

    use super::*;
    use crate::feed::FeedMetrics;

    /// `increase()` does not see the first count of a series that begins with it.
    #[test]
    fn counters_of_a_fed_collection_begin_at_zero() {
        let metrics = Metrics::new().unwrap();
        let feed = FeedMetrics::new(metrics.registry()).unwrap();
        metrics.fed("services");
        feed.fed("services");
        let text = metrics.scrape(|| {});
        for what in ["forgeries_confirmed", "feed_voids"] {
            let line = format!("yurt_coordinator_{what}_total{{collection=\"services\"}} 0\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    }

    #[test]
    fn name_ends_in_total_if_it_is_a_counter() {
        let metrics = Metrics::new().unwrap();
        // A family with labels is empty until it has a series.
        metrics.disk.errors.with_label_values(&["io"]);
        metrics.requests_in_flight("readOnly", (0, 0));
        metrics.rejections("readOnly");
        metrics.custom_loaded(None);
        metrics.forgery_confirmed("core-pods");
        let text = metrics.scrape(|| {});
        assert!(text.contains("storage_errors_total"));
        assert_eq!(misnamed_counters(&text), [""; 0]);
    }
}
