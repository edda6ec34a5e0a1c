//! Per collection: its size, the time since it was last known to be up to date, and the number of forced relists.

use std::time::Duration;

use prometheus::{GaugeVec, IntCounterVec, Opts, Registry};
use yurt_apimachinery::GroupResource;
use yurt_storage::SharedCollection;

/// Gauges, set at every scrape.
pub(super) struct Collections {
    objects: GaugeVec,
    bytes: GaugeVec,
    rv: GaugeVec,
    complete: GaugeVec,
    fresh: GaugeVec,
    staleness: GaugeVec,
    relists: IntCounterVec,
    /// Under kube-apiserver's names; it has deprecated the first in favour of the second.
    stored: [GaugeVec; 2],
}

/// Figures of one collection.
#[derive(Clone, Copy)]
pub(crate) struct CollectionFigures<'a> {
    pub(crate) name: &'a str,
    pub(crate) objects: &'a SharedCollection,
    /// True if it is served.
    pub(crate) is_complete: bool,
    /// True if changes are known to arrive.
    pub(crate) is_fresh: bool,
    /// Of a fed collection: the time since the leader last reported that changes arrive, if it did.
    pub(crate) staleness: Option<Option<Duration>>,
}

// === impl Collections ===

impl Collections {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |what: &str, help: &str| {
            let gauge = GaugeVec::new(
                Opts::new(format!("yurt_coordinator_collection_{what}"), help),
                &["collection"],
            )?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let relists = IntCounterVec::new(
            Opts::new(
                "yurt_coordinator_collection_relists_forced_total",
                "Watches that were answered with 410 Gone, so that their client lists again. Must stay 0 for pool data.",
            ),
            &["collection"],
        )?;
        registry.register(Box::new(relists.clone()))?;
        let stored = |what: &str, labels: &[&str]| {
            let help = "Stored objects of a resource.";
            let gauge = GaugeVec::new(Opts::new(format!("apiserver_{what}_objects"), help), labels)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        Ok(Self {
            stored: [
                stored("storage", &["resource"])?,
                stored("resource", &["group", "resource"])?,
            ],
            objects: gauge("objects", "Live objects.")?,
            bytes: gauge("bytes", "Bytes held, history included.")?,
            rv: gauge("rv", "C: everything up to this resourceVersion has been applied.")?,
            complete: gauge("complete", "1 if the collection is served.")?,
            fresh: gauge("fresh", "1 if changes are known to arrive.")?,
            staleness: gauge(
                "staleness_seconds",
                "Time since the leader last reported that the cloud's changes arrive; +Inf without a report since the start.",
            )?,
            relists,
        })
    }

    pub(super) fn remove(&self, name: &str) {
        for gauge in self.gauges() {
            // A series that was never set does not exist.
            let _ = gauge.remove_label_values(&[name]);
        }
        let _ = self.relists.remove_label_values(&[name]);
        let GroupResource { group, resource } = GroupResource::parse(name);
        let _ = self.stored[0].remove_label_values(&[name]);
        let _ = self.stored[1].remove_label_values(&[&*group, &*resource]);
    }

    /// Sets everything about a collection.
    pub(super) fn set(&self, figures: &CollectionFigures<'_>) {
        let CollectionFigures {
            name,
            objects,
            is_complete,
            is_fresh,
            staleness,
        } = *figures;
        let flag = |value: bool| if value { 1.0 } else { 0.0 };
        let (count, bytes, rv) = objects.read(|held| (held.len(), held.size(), held.position()));
        for (gauge, value) in [
            (&self.objects, count as f64),
            (&self.bytes, bytes as f64),
            (&self.rv, rv.0 as f64),
            (&self.complete, flag(is_complete)),
            (&self.fresh, flag(is_fresh)),
        ] {
            gauge.with_label_values(&[name]).set(value);
        }
        let kind = objects.kind();
        // Some collections are no resource, such as the members of the pool.
        if name == GroupResource::new(&*kind.group, &*kind.plural).to_string() {
            self.stored[0].with_label_values(&[name]).set(count as f64);
            self.stored[1]
                .with_label_values(&[&*kind.group, &*kind.plural])
                .set(count as f64);
        }
        if let Some(staleness) = staleness {
            let seconds = staleness.map_or(f64::INFINITY, |time| time.as_secs_f64());
            self.staleness.with_label_values(&[name]).set(seconds);
        }
        let relists = self.relists.with_label_values(&[name]);
        relists.inc_by(objects.relists_forced().saturating_sub(relists.get()));
    }

    fn gauges(&self) -> [&GaugeVec; 6] {
        [
            &self.objects,
            &self.bytes,
            &self.rv,
            &self.complete,
            &self.fresh,
            &self.staleness,
        ]
    }
}
