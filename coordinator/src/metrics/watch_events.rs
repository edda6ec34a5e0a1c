//! Counts events sent to watches. All cores send a change to a thousand watchers at the same time. Each thread counts
//! for itself: contention on a shared counter would cost a microsecond per event.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Counter, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// Upper bounds of the buckets, in bytes; the last bucket has none.
const SIZES: [f64; 8] = [1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131_072.0];
/// ResourceLabels in alphabetical order, as they are exported.
const LABELS: [&str; 3] = ["group", "resource", "version"];
const TOTAL: (&str, &str) = (
    "apiserver_watch_events_total",
    "Events sent to watches, bookmarks included.",
);
const BYTES: (&str, &str) = (
    "apiserver_watch_events_sizes",
    "Bytes of events sent to watches, before compression.",
);
/// Maximum number of shards; further threads share them.
const SHARDS: usize = 4;

/// ResourceLabels of a resource: group, resource, version.
type ResourceLabels = [&'static str; 3];

/// Counters of every resource that was ever watched; clones share them.
#[derive(Clone)]
pub(super) struct WatchEvents {
    counters: Arc<RwLock<BTreeMap<ResourceLabels, Arc<WatchEventCounter>>>>,
    about: [Desc; 2],
}

/// Events of one resource.
#[derive(Default)]
pub(super) struct WatchEventCounter([Shard; SHARDS]);

/// Events of one thread, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    by_size: [AtomicU64; SIZES.len() + 1],
    bytes: AtomicU64,
}

// === impl WatchEvents ===

impl WatchEvents {
    pub(super) fn new() -> prometheus::Result<Self> {
        let about = |(name, help): (&str, &str)| {
            let labels = LABELS.map(str::to_owned).to_vec();
            Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new())
        };
        Ok(Self {
            counters: Arc::default(),
            about: [about(TOTAL)?, about(BYTES)?],
        })
    }

    pub(super) fn of(&self, labels: ResourceLabels) -> Arc<WatchEventCounter> {
        Arc::clone(self.counters.write().entry(labels).or_default())
    }
}

impl Collector for WatchEvents {
    fn desc(&self) -> Vec<&Desc> {
        self.about.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let (mut total, mut sizes) = (Vec::new(), Vec::new());
        for (labels, counters) in self.counters.read().iter() {
            let histogram = counters.histogram();
            let mut counter = Counter::default();
            counter.set_value(histogram.get_sample_count() as f64);
            let mut metric = Metric::from_label(pairs(labels));
            metric.set_counter(counter);
            total.push(metric);
            let mut metric = Metric::from_label(pairs(labels));
            metric.set_histogram(histogram);
            sizes.push(metric);
        }
        let family = |(name, help): (&str, &str), kind, metrics: Vec<Metric>| {
            let mut family = MetricFamily::default();
            family.set_name(name.to_owned());
            family.set_help(help.to_owned());
            family.set_field_type(kind);
            family.set_metric(metrics);
            family
        };
        let families = [
            family(TOTAL, MetricType::COUNTER, total),
            family(BYTES, MetricType::HISTOGRAM, sizes),
        ];
        // The encoder treats a family without metrics as an error.
        families
            .into_iter()
            .filter(|family| !family.get_metric().is_empty())
            .collect()
    }
}

fn pairs(labels: &ResourceLabels) -> Vec<LabelPair> {
    let pair = |(name, value): (&str, &&str)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    LABELS.into_iter().zip(labels).map(pair).collect()
}

// === impl WatchEventCounter ===

impl WatchEventCounter {
    /// Counts an event of so many bytes.
    pub(super) fn add(&self, bytes: usize) {
        let shard = &self.0[place()];
        let size = SIZES.partition_point(|bound| *bound < bytes as f64);
        shard.by_size[size].fetch_add(1, Ordering::Relaxed);
        shard.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn histogram(&self) -> Histogram {
        let sum = |number: &dyn Fn(&Shard) -> &AtomicU64| -> u64 {
            let numbers = self.0.iter().map(|shard| number(shard).load(Ordering::Relaxed));
            numbers.sum()
        };
        let mut count = 0;
        let mut buckets = Vec::new();
        for size in 0..=SIZES.len() {
            count += sum(&|shard| &shard.by_size[size]);
            if let Some(bound) = SIZES.get(size) {
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(*bound);
                bucket.set_cumulative_count(count);
                buckets.push(bucket);
            }
        }
        let mut histogram = Histogram::default();
        histogram.set_sample_count(count);
        histogram.set_sample_sum(sum(&|shard| &shard.bytes) as f64);
        histogram.set_bucket(buckets);
        histogram
    }
}

/// The shard of this thread.
fn place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static PLACE: Cell<Option<usize>> = const { Cell::new(None) });
    PLACE.with(|place| {
        place.get().unwrap_or_else(|| {
            let mine = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
            place.set(Some(mine));
            mine
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_threads_told_is_shown_together() {
        let events = WatchEvents::new().unwrap();
        assert!(events.collect().is_empty());
        let counters = events.of(["", "pods", "v1"]);
        std::thread::scope(|scope| {
            for bytes in [1, 1024, 1025, 200_000, 7] {
                let counters = &counters;
                scope.spawn(move || (0..100).for_each(|_| counters.add(bytes)));
            }
        });
        let [total, sizes] = events.collect().try_into().unwrap();
        assert_eq!(total.get_metric()[0].get_counter().get_value(), 500.0);
        let sizes = sizes.get_metric()[0].get_histogram().clone();
        let cumulative: Vec<u64> = sizes.get_bucket().iter().map(Bucket::cumulative_count).collect();
        assert_eq!(cumulative, [300, 400, 400, 400, 400, 400, 400, 400]);
        assert_eq!((sizes.get_sample_count(), sizes.get_sample_sum()), (500, 20_205_700.0));
    }
}
