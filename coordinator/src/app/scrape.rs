//! The answer at `/metrics`: exports the figures of the components, then renders everything.

use yurt_collection::Collection;

use super::App;
use crate::metrics::{CollectionFigures, ElectionFigures};
use crate::registry::Authority;

// === impl App ===

impl App {
    /// All metrics in Prometheus' text format.
    pub(crate) fn scrape(&self) -> String {
        self.metrics.scrape(|| {
            self.filters.fair_queues.export(&self.metrics);
            self.export_barred();
            self.export_collections();
            self.export_election();
        })
    }

    /// Exports the nodes that may not hold the election lease.
    fn export_barred(&self) {
        let bars = self.own.guard().bars.lock();
        let nodes = bars.present(self.clock.boot()).map(|(node, _)| node);
        self.metrics.barred(nodes);
    }

    fn export_collections(&self) {
        let now = self.clock.boot();
        for fed in self.feed.collections() {
            self.metrics.fed(fed.name());
            self.feed.metrics().fed(fed.name());
            self.metrics.collection(&CollectionFigures {
                name: fed.name(),
                objects: fed.objects(),
                is_complete: fed.is_served(),
                is_fresh: fed.is_fresh(now),
                staleness: Some(fed.staleness(now)),
            });
        }
        let mut own_bytes = 0;
        for resource in self.served().registry.collections() {
            // Fed collections have the feed's name, which is not always the API's.
            let Authority::Own(objects) = &resource.authority else {
                continue;
            };
            own_bytes += objects.read(Collection::object_bytes);
            self.metrics.collection(&CollectionFigures {
                name: &resource.name,
                objects,
                is_complete: resource.is_served(),
                is_fresh: true,
                staleness: None,
            });
        }
        let (pool_bytes, pool_max) = (self.feed.held_bytes(), self.feed.bytes_max());
        self.metrics.stored_bytes(own_bytes, pool_bytes, pool_max);
    }

    fn export_election(&self) {
        let election = self.feed.fence().election();
        let is_silent = self.leader_silent_since().is_some();
        self.metrics.election(&ElectionFigures {
            leader: if is_silent { "" } else { &election.holder },
            epoch: election.epoch,
            members: self.feed.members().names().map_or(0, |names| names.len()),
            delegated_leases: self.feed.delegated_leases(),
        });
    }
}
