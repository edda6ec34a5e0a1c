//! One registry of Prometheus metrics per process, with the process' own resource usage.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Encoder as _, Gauge, Registry, TextEncoder};
use tracing::warn;

/// The metrics of this process. Cheap to clone; clones share the registry.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    /// Held by the present scrape.
    scraping: Arc<Mutex<()>>,
}

/// Reads /proc/self whenever the metrics are rendered.
struct ProcessCollector {
    memory: Gauge,
    cpu: Counter,
    open_fds: Gauge,
    start_time: Gauge,
}

/// Contents of /proc about this process.
struct Usage {
    resident_bytes: f64,
    cpu_seconds: f64,
    /// Seconds after boot.
    started: f64,
}

// === impl Metrics ===

impl Metrics {
    /// A registry that contains the metrics of the process.
    #[must_use]
    pub fn new() -> Self {
        let metrics = Metrics {
            registry: Registry::new(),
            scraping: Arc::default(),
        };
        match ProcessCollector::new() {
            Ok(collector) => metrics.register(collector),
            Err(error) => warn!(%error, "Failed to create process metrics"),
        }
        metrics
    }

    /// Adds a metric. A second metric of the same name is a bug of the program; it is logged and not rendered.
    pub fn register(&self, collector: impl Collector + 'static) {
        if let Err(error) = self.registry.register(Box::new(collector)) {
            warn!(%error, "Failed to register metric");
        }
    }

    /// For `prometheus::register_*_with_registry!`.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// As [`Self::render`], after `export` has set the figures that are read at a scrape. One scrape at a time: an
    /// export may empty series and fill them again.
    #[must_use]
    pub fn scrape(&self, export: impl FnOnce()) -> String {
        let _one = self.scraping.lock();
        export();
        self.render()
    }

    /// All metrics in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            warn!(%error, "Failed to render some metrics");
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

// === impl ProcessCollector ===

impl ProcessCollector {
    fn new() -> prometheus::Result<Self> {
        Ok(ProcessCollector {
            memory: Gauge::new("process_resident_memory_bytes", "Resident memory size in bytes.")?,
            cpu: Counter::new(
                "process_cpu_seconds_total",
                "Total user and system CPU time spent in seconds.",
            )?,
            open_fds: Gauge::new("process_open_fds", "Number of open file descriptors.")?,
            start_time: Gauge::new(
                "process_start_time_seconds",
                "Start time of the process since 1970 in seconds.",
            )?,
        })
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        let parts: [&dyn Collector; 4] = [&self.memory, &self.cpu, &self.open_fds, &self.start_time];
        parts.into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // Unreadable values keep their last state: a scrape must not fail.
        if let Some(usage) = Usage::read() {
            self.memory.set(usage.resident_bytes);
            self.cpu.inc_by((usage.cpu_seconds - self.cpu.get()).max(0.0));
            if let Some(boot) = boot_time() {
                self.start_time.set(boot + usage.started);
            }
        }
        if let Ok(fds) = std::fs::read_dir("/proc/self/fd") {
            // One of them is the listing itself.
            self.open_fds.set(fds.count().saturating_sub(1) as f64);
        }
        let parts: [&dyn Collector; 4] = [&self.memory, &self.cpu, &self.open_fds, &self.start_time];
        parts.into_iter().flat_map(Collector::collect).collect()
    }
}

// === impl Usage ===

impl Usage {
    fn read() -> Option<Self> {
        Self::parse(
            &std::fs::read_to_string("/proc/self/stat").ok()?,
            rustix::param::clock_ticks_per_second() as f64,
            rustix::param::page_size() as f64,
        )
    }

    /// See proc(5); the second field is the program's name in parentheses and may hold spaces and parentheses.
    fn parse(stat: &str, ticks_per_second: f64, page_bytes: f64) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        // The first of `fields` is field 3 of the manual.
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(Usage {
            resident_bytes: field(24)? * page_bytes,
            cpu_seconds: (field(14)? + field(15)?) / ticks_per_second,
            started: field(22)? / ticks_per_second,
        })
    }
}

/// Boot time of the machine, in seconds since 1970.
fn boot_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_metrics_are_rendered() {
        let metrics = Metrics::new();
        let text = metrics.render();
        for name in [
            "process_resident_memory_bytes",
            "process_cpu_seconds_total",
            "process_open_fds",
            "process_start_time_seconds",
        ] {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            let value: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            assert!(value > 0.0 || name.contains("cpu"), "{line}");
        }
        assert!(text.contains("# TYPE process_cpu_seconds_total counter"));
    }

    /// Another one would render series that the first has emptied and not filled again.
    #[test]
    fn no_scrape_begins_while_another_one_exports() {
        let metrics = Metrics::new();
        let mut is_exclusive = false;
        let _text = metrics.scrape(|| is_exclusive = metrics.clone().scraping.try_lock().is_none());
        assert!(is_exclusive);
    }

    #[test]
    fn strange_program_names_do_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 9 0 1000 999 256 0";
        let usage = Usage::parse(stat, 100.0, 4096.0).unwrap();
        assert_eq!(
            (usage.cpu_seconds, usage.started, usage.resident_bytes),
            (2.0, 10.0, 1_048_576.0)
        );
    }

    #[test]
    fn second_metric_of_a_name_is_not_fatal() {
        let metrics = Metrics::new();
        let gauge = || Gauge::new("yurt_test", "help").unwrap();
        metrics.register(gauge());
        metrics.register(gauge());
        assert_eq!(metrics.render().matches("# TYPE yurt_test gauge").count(), 1);
    }
}
