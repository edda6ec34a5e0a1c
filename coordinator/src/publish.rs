//! Where the store's commits go: the fence first, then the collections that readers see.

use std::sync::Arc;

use yurt_apimachinery::ResourceVersion;
use yurt_storage::backend::{Committed, Loaded, Sink};
use yurt_storage::{Cacher, StorageError};

use crate::feed::fence::{EPOCH_KEY, Fence};

/// Publishes commits, in order, on the store's own thread.
pub(crate) struct Publisher {
    cacher: Arc<Cacher>,
    fence: Arc<Fence>,
}

// === impl Publisher ===

impl Publisher {
    /// Publishes to both.
    pub(crate) fn new(cacher: Arc<Cacher>, fence: Arc<Fence>) -> Self {
        Self { cacher, fence }
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
        if let Some(record) = changes.iter().find(|change| change.key == EPOCH_KEY && !change.deleted) {
            self.fence.published(rv, &record.value);
        }
        self.cacher.committed(rv, changes);
    }

    fn reloaded(&self, loaded: Loaded) {
        self.publish_epoch(&loaded);
        self.cacher.reloaded(loaded);
    }
}
