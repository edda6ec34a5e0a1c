//! Metrics, under kube-apiserver's names where it has one.
//!
//! [`requests`]: requests and watches; [`told`]: events sent to watches; [`collections`]: size, freshness and forced
//! relists of collections; [`election`]: the pool's leader; [`budgets`]: bytes and their limits.

mod budgets;
mod collections;
mod election;
mod forgeries;
mod requests;
mod told;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::Response;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};
use yurt_apimachinery::time::BootTime;
use yurt_collection::Collection;
use yurt_runtime::Clock;
use yurt_runtime::http::Body;
use yurt_runtime::http::server::ConnectionMetrics;
use yurt_runtime::metrics::Metrics as Render;
use yurt_storage::embedded::Disk;

use budgets::Budgets;
use collections::Collections;
use election::Election;
use forgeries::Forgeries;
use requests::Requests;
pub(crate) use requests::{RequestLabels, WatchCount};

use crate::audit::Counters;
use crate::feed::{Feed, Refusal};
use crate::lanes::Refusals;
use crate::registry::{Authority, Registry as Resources};

/// All counters of this process.
pub(crate) struct Metrics {
    custom: IntCounterVec,
    custom_kinds: prometheus::IntGauge,
    render: Render,
    requests: Requests,
    connections: ConnectionMetrics,
    lanes: [IntGaugeVec; 2],
    refused: IntCounterVec,
    audit: Counters,
    feed: FeedMetrics,
    collections: Collections,
    election: Election,
    forgeries: Forgeries,
    budgets: Budgets,
    disk: DiskMetrics,
}

/// Disk use of the store's file; set at every scrape.
struct DiskMetrics {
    disk: OnceLock<Arc<Disk>>,
    errors: IntGaugeVec,
    written: prometheus::IntGauge,
    syncs: prometheus::IntGauge,
    size: prometheus::IntGauge,
}

/// Counters of the feed; clones share them.
#[derive(Clone)]
pub(crate) struct FeedMetrics {
    batches: IntCounterVec,
    refused: IntCounterVec,
    fenced: prometheus::IntCounter,
    gaps: prometheus::IntCounter,
    late_accepted: prometheus::IntCounter,
    voids: IntCounterVec,
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
        let lane = |name: &str, help: &str| {
            let gauge = IntGaugeVec::new(Opts::new(name, help), &["request_kind"])?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let lanes = [
            lane("apiserver_current_inflight_requests", "Requests being answered.")?,
            lane("apiserver_current_inqueue_requests", "Requests waiting for a place.")?,
        ];
        let refused = counters(
            registry,
            "apiserver_flowcontrol_rejected_requests_total",
            "Requests rejected with 429, by lane and reason: queue-full or time-out.",
            &["priority_level", "reason"],
        )?;
        let counter = |name: &str, help: &str| {
            let counter = prometheus::IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let audit = Counters {
            events: counter("apiserver_audit_event_total", "Audit events made.")?,
            lost: counter("apiserver_audit_error_total", "Audit events that were lost.")?,
        };
        let connections = ConnectionMetrics::new("yurt_coordinator", &render)?;
        let feed = FeedMetrics::new(registry)?;
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
            lanes,
            refused,
            audit,
            feed,
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

    /// The feed's part.
    pub(crate) fn feed(&self) -> FeedMetrics {
        self.feed.clone()
    }

    /// Counters of the server's connections.
    pub(crate) fn connections(&self) -> ConnectionMetrics {
        self.connections.clone()
    }

    /// Counts a request that was answered after `took`.
    pub(crate) fn answered(&self, labels: RequestLabels, response: &Response<Body>, took: Duration) {
        self.requests.answered(labels, response, took);
    }

    /// The audit log's part.
    pub(crate) fn audit(&self) -> Counters {
        self.audit.clone()
    }

    /// Sets the load of a lane: requests being answered, and waiting.
    pub(crate) fn lane(&self, request_kind: &str, load: (usize, usize)) {
        for (gauge, value) in self.lanes.iter().zip([load.0, load.1]) {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            gauge.with_label_values(&[request_kind]).set(value);
        }
    }

    /// Counters of requests that were rejected by a lane.
    pub(crate) fn refusals(&self, lane: &str) -> Refusals {
        let of = |reason| self.refused.with_label_values(&[lane, reason]);
        Refusals {
            full: of("queue-full"),
            late: of("time-out"),
        }
    }

    /// Counts a watch of the resource `name` while the returned value lives.
    pub(crate) fn watch(&self, labels: RequestLabels, name: &str, clock: &Clock) -> WatchCount {
        self.requests.watch(labels, name, clock)
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

    /// Everything in Prometheus' text format.
    pub(crate) fn render(&self, resources: &Resources, feed: &Feed, now: BootTime) -> String {
        for fed in feed.collections() {
            let flags = (fed.is_served(), fed.is_fresh(now));
            let staleness = Some(fed.staleness(now));
            self.collections.set(fed.name(), fed.objects(), flags, staleness);
        }
        let mut own_bytes = 0;
        for resource in resources.collections() {
            // Fed collections have the feed's name, which is not always the API's.
            if let Authority::Own(objects) = &resource.authority {
                own_bytes += objects.read(Collection::object_bytes);
                self.collections
                    .set(&resource.name, objects, (resource.is_served(), true), None);
            }
        }
        self.disk.update();
        self.budgets.set(feed, own_bytes);
        self.election.set(feed);
        self.render.render()
    }
}

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
    let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(counters.clone()))?;
    Ok(counters)
}

// === impl FeedMetrics ===

impl FeedMetrics {
    fn new(registry: &Registry) -> prometheus::Result<Self> {
        let single = |name: &str, help: &str| {
            let counter = prometheus::IntCounter::new(name, help)?;
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

// === impl DiskMetrics ===

impl DiskMetrics {
    fn new(registry: &Registry) -> prometheus::Result<Self> {
        let errors = IntGaugeVec::new(
            Opts::new(
                "yurt_coordinator_storage_errors_total",
                "Transactions the store's file refused, by reason: full, io or corrupt.",
            ),
            &["reason"],
        )?;
        registry.register(Box::new(errors.clone()))?;
        let gauge = |name: &str, help: &str| {
            let gauge = prometheus::IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        Ok(Self {
            disk: OnceLock::new(),
            errors,
            written: gauge(
                "yurt_coordinator_storage_written_bytes_total",
                "Bytes written to the store's file.",
            )?,
            syncs: gauge("yurt_coordinator_storage_syncs_total", "Flushes of the store's file.")?,
            size: gauge("yurt_coordinator_storage_file_bytes", "Size of the store's file.")?,
        })
    }

    fn update(&self) {
        let Some(disk) = self.disk.get() else { return };
        let stats = disk.stats();
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        for (reason, count) in [("full", stats.full), ("io", stats.io), ("corrupt", stats.corrupt)] {
            self.errors.with_label_values(&[reason]).set(number(count));
        }
        self.written.set(number(stats.bytes_written));
        self.syncs.set(number(stats.syncs));
        self.size.set(number(stats.file_bytes));
    }
}

/// Metrics shared by all components.
pub(crate) type SharedMetrics = Arc<Metrics>;
