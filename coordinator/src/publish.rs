//! Where the store's commits go: the fence first, then the collections that readers see.

use std::sync::Arc;

use yurt_apimachinery::ResourceVersion;
use yurt_runtime::Clock;
use yurt_storage::backend::{Committed, Loaded, Sink};
use yurt_storage::{Cacher, StorageError};

use crate::feed::fence::{EPOCH_KEY, Fence};
use crate::registry::leases::{self, Guard};

/// Publishes commits, in order, on the store's own thread.
pub(crate) struct Publisher {
    cacher: Arc<Cacher>,
    fence: Arc<Fence>,
    /// Hears of lease writes by other coordinators, where there can be any.
    guard: Option<(Arc<Guard>, Clock)>,
}

// === impl Publisher ===

impl Publisher {
    /// Publishes to both.
    pub(crate) fn new(cacher: Arc<Cacher>, fence: Arc<Fence>) -> Self {
        Self {
            cacher,
            fence,
            guard: None,
        }
    }

    /// Tells `guard` of every lease write, too.
    pub(crate) fn telling(self, guard: Arc<Guard>, clock: Clock) -> Self {
        Self {
            guard: Some((guard, clock)),
            ..self
        }
    }

    /// The guard before the lease, as the fence: whoever may replace a holder has seen its last renewal.
    fn tell_guard(&self, key: &str, value: &[u8], deleted: bool) {
        let Some((guard, clock)) = &self.guard else { return };
        let Some(lease) = leases::guarded(key) else { return };
        let holder = if deleted { String::new() } else { leases::holder(value) };
        guard.observed(lease, &holder, clock.boot());
    }

    /// The owner of the election is on record.
    fn tell_owner(&self) {
        if let Some((guard, _)) = &self.guard {
            let election = self.fence.election();
            if let Some(owner) = election.owner {
                guard.restore(leases::ELECTION_KEY, &election.holder, owner);
            }
        }
    }

    fn publish_epoch(&self, loaded: &Loaded) {
        if let Some(record) = loaded.live.iter().find(|stored| stored.key == EPOCH_KEY) {
            self.fence.published(record.rv, &record.value);
        }
    }
}

impl Sink for Publisher {
    fn load(&self, loaded: Loaded) -> Result<(), StorageError> {
        self.publish_epoch(&loaded);
        self.cacher.load(loaded)
    }

    /// The fence before the lease: whoever sees the new holder finds the old one already shut out.
    fn committed(&self, rv: ResourceVersion, changes: &[Committed]) {
        for change in changes {
            self.tell_guard(&change.key, &change.value, change.deleted);
        }
        if let Some(record) = changes.iter().find(|change| change.key == EPOCH_KEY && !change.deleted) {
            self.fence.published(rv, &record.value);
            self.tell_owner();
        }
        self.cacher.committed(rv, changes);
    }

    fn reloaded(&self, loaded: Loaded) {
        for stored in &loaded.live {
            self.tell_guard(&stored.key, &stored.value, false);
        }
        self.publish_epoch(&loaded);
        self.tell_owner();
        self.cacher.reloaded(loaded);
    }
}
