//! Metrics of the hub; names begin with upstream's prefix `node_yurthub_`.
//!
//! `collections`: data, source and age of each collection, and the lag of the coordinator. `filters`: results of the
//! data filters. `offline`: what is kept for the time without the cloud. `traffic`: bytes on the link to the cloud.

pub(crate) mod collections;
pub(crate) mod filters;
pub(crate) mod offline;
pub(crate) mod traffic;

use collections::Collections;
use filters::Filters;
use offline::OfflineMetrics;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts};
use yurt_runtime::http::server::ConnectionMetrics;
use yurt_runtime::metrics::Metrics as Registry;

/// Upper bounds of the delivery histogram, s: a LAN answers in a millisecond, a request waits 20 s at most.
const DELIVERY_BUCKETS: [f64; 10] = [0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0];

/// Counters and gauges of the hub.
pub struct Metrics {
    /// Registry behind `/metrics`.
    pub registry: Registry,
    /// Connections to the proxy's ports.
    pub connections: ConnectionMetrics,
    /// Feed batches that the coordinator applied from this hub.
    pub feed_batches: IntCounter,
    /// Feed batches refused because another hub leads.
    pub feed_fenced: IntCounter,
    /// Heartbeats of cut-off nodes forwarded to the cloud.
    pub heartbeats_forwarded: IntCounter,
    /// Heartbeats of this node sent through a relay.
    pub heartbeats_relayed: IntCounter,
    /// Open tunnels of other nodes through this hub.
    pub relay_tunnels: IntGauge,
    /// Tunnels refused, by reason.
    pub relay_refused: IntCounterVec,
    /// Requests by the component that answered them (`replica`, `cloud`, `refused`).
    pub requests: IntCounterVec,
    /// 1 leader, 2 follower, 3 pending (upstream's numbers).
    pub role: IntGauge,
    /// Health of each server: `host:port` of those of the cloud, and `coordinator`.
    pub reachable: IntGaugeVec,
    /// Metrics per collection.
    pub(crate) collections: Collections,
    /// Metrics of the data filters.
    pub(crate) filters: Filters,
    /// Metrics of what is kept for the time without the cloud.
    pub(crate) offline: OfflineMetrics,
    /// Time from reading a batch to the coordinator's answer, s.
    pub feed_delivery: Histogram,
    /// Number of times this hub became leader.
    pub elections_won: IntCounter,
    /// 1 while this hub leads, under client-go's name.
    pub leads: IntGaugeVec,
    /// 1 while the cloud does not acknowledge this node's heartbeats.
    pub cut_off: IntGauge,
    /// End of the node's client certificate, Unix seconds; 0 without one.
    pub certificate_end: IntGauge,
    /// Number of current failures; `/debug/state.json` has their reasons.
    pub failures: IntGauge,
    /// Requests in flight, without watches.
    pub in_flight: IntGauge,
    /// Requests rejected because of the limit of concurrent requests.
    pub rejected: IntCounter,
}

// === impl Metrics ===

impl Metrics {
    /// Registers all metrics.
    ///
    /// # Errors
    /// Two metrics have the same name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let metrics = Self {
            connections: ConnectionMetrics::new("node_yurthub", &registry)?,
            registry,
            feed_batches: counter("feed_batches_total", "Feed batches applied by the coordinator")?,
            feed_fenced: counter("feed_fenced_total", "Feed batches refused because another hub leads")?,
            heartbeats_forwarded: counter(
                "heartbeats_forwarded_total",
                "Heartbeats of cut-off nodes forwarded to the cloud",
            )?,
            heartbeats_relayed: counter(
                "heartbeats_relayed_total",
                "Heartbeats of this node that reached the cloud through another hub",
            )?,
            relay_tunnels: gauge("relay_tunnels", "Open tunnels of other nodes through this hub")?,
            relay_refused: IntCounterVec::new(
                name("relay_tunnels_refused_total", "Tunnels refused, by reason"),
                &["reason"],
            )?,
            requests: IntCounterVec::new(name("requests_total", "Requests by answering component"), &["by"])?,
            role: gauge("yurt_coordinator_yurthub_role", "1 leader, 2 follower, 3 pending")?,
            reachable: IntGaugeVec::new(
                name("server_healthy_status", "1 while the server is up: its probes succeed"),
                &["server"],
            )?,
            collections: Collections::new()?,
            filters: Filters::new()?,
            offline: OfflineMetrics::new()?,
            feed_delivery: Histogram::with_opts(
                HistogramOpts::from(name(
                    "feed_delivery_seconds",
                    "Time from reading a batch of the feed to the coordinator's answer",
                ))
                .buckets(DELIVERY_BUCKETS.to_vec()),
            )?,
            elections_won: counter("elections_won_total", "Times this hub became leader")?,
            leads: IntGaugeVec::new(
                Opts::new(
                    "leader_election_master_status",
                    "1 while this hub holds the election lease",
                ),
                &["name"],
            )?,
            certificate_end: gauge(
                "client_certificate_expiration_timestamp_seconds",
                "End of the node's client certificate, Unix seconds; 0 without one",
            )?,
            cut_off: gauge("cut_off", "1 while this node's heartbeats fail at the cloud")?,
            failures: gauge(
                "troubles",
                "Current failures; /debug/state.json lists them with reasons",
            )?,
            in_flight: gauge("in_flight_requests_total", "Requests in flight, without watches")?,
            rejected: counter(
                "rejected_requests_counter",
                "Requests rejected because of the limit of concurrent requests",
            )?,
        };
        metrics.register()?;
        Ok(metrics)
    }

    fn register(&self) -> Result<(), prometheus::Error> {
        let registry = self.registry.registry();
        registry.register(Box::new(self.feed_batches.clone()))?;
        registry.register(Box::new(self.feed_fenced.clone()))?;
        registry.register(Box::new(self.heartbeats_forwarded.clone()))?;
        registry.register(Box::new(self.heartbeats_relayed.clone()))?;
        registry.register(Box::new(self.relay_tunnels.clone()))?;
        registry.register(Box::new(self.relay_refused.clone()))?;
        registry.register(Box::new(self.requests.clone()))?;
        registry.register(Box::new(self.role.clone()))?;
        registry.register(Box::new(self.reachable.clone()))?;
        self.collections.register(registry)?;
        self.filters.register(registry)?;
        self.offline.register(registry)?;
        registry.register(Box::new(self.feed_delivery.clone()))?;
        registry.register(Box::new(self.elections_won.clone()))?;
        registry.register(Box::new(self.leads.clone()))?;
        registry.register(Box::new(self.cut_off.clone()))?;
        registry.register(Box::new(self.certificate_end.clone()))?;
        registry.register(Box::new(self.failures.clone()))?;
        registry.register(Box::new(self.in_flight.clone()))?;
        registry.register(Box::new(self.rejected.clone()))
    }
}

fn name(short: &str, help: &str) -> Opts {
    Opts::new(format!("node_yurthub_{short}"), help)
}

fn counter(short: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    IntCounter::with_opts(name(short, help))
}

fn gauge(short: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    IntGauge::with_opts(name(short, help))
}

#[cfg(test)]
mod tests {
    use yurt_test_support::misnamed_counters;

    use super::*;

    /// `increase()` does not see the first count of a series that begins with it.
    #[test]
    fn counter_of_local_writes_begins_at_zero() {
        let shown = Metrics::new().unwrap().registry.render();
        for result in ["written", "gone", "refused"] {
            let line = format!("node_yurthub_local_writes_total{{result=\"{result}\"}} 0\n");
            assert!(shown.contains(&line), "{line}{shown}");
        }
    }

    #[test]
    fn name_ends_in_total_if_it_is_a_counter_except_for_upstreams_names() {
        let metrics = Metrics::new().unwrap();
        // A family with labels is empty until it has a series.
        for family in [&metrics.relay_refused, &metrics.requests] {
            family.with_label_values(&["x"]);
        }
        for family in [&metrics.reachable, &metrics.leads] {
            family.with_label_values(&["x"]);
        }
        let of_upstream = [
            "# TYPE node_yurthub_in_flight_requests_total gauge",
            "# TYPE node_yurthub_rejected_requests_counter counter",
        ];
        assert_eq!(misnamed_counters(&metrics.registry.render()), of_upstream);
    }
}
