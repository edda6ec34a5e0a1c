//! A collection shared by one writer and many readers: a lock and a wake-up, no queues.

use parking_lot::RwLock;
use tokio::sync::watch;
use yurt_apimachinery::{ResourceKind, ResourceVersion};

use crate::collection::Collection;

/// A [`Collection`] that wakes its readers after every change.
///
/// Lock order: this lock is a leaf; nothing else is locked, awaited or called back while it is held.
#[derive(Debug)]
pub struct SharedCollection {
    kind: &'static ResourceKind,
    inner: RwLock<Collection>,
    version: watch::Sender<u64>,
}

// === impl SharedCollection ===

impl SharedCollection {
    /// An empty collection of `kind`; `durable` keeps a record of changes for a store.
    #[must_use]
    pub fn new(kind: &'static ResourceKind, durable: bool) -> Self {
        Self {
            kind,
            inner: RwLock::new(Collection::new(durable)),
            version: watch::Sender::new(0),
        }
    }

    /// What is in it.
    #[must_use]
    pub fn kind(&self) -> &'static ResourceKind {
        self.kind
    }

    /// Looks at the collection.
    pub fn read<T>(&self, look: impl FnOnce(&Collection) -> T) -> T {
        look(&self.inner.read())
    }

    /// Changes the collection and wakes the readers.
    pub fn update<T>(&self, change: impl FnOnce(&mut Collection) -> T) -> T {
        let result = change(&mut self.inner.write());
        self.version.send_modify(|version| *version += 1);
        result
    }

    /// Changes book-keeping no reader can see (dirty records), without waking anybody.
    pub fn update_quietly<T>(&self, change: impl FnOnce(&mut Collection) -> T) -> T {
        change(&mut self.inner.write())
    }

    /// A handle that resolves after every change; the value is only a counter.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Waits until the collection is complete and `C` ≥ `rv`. The caller bounds the time.
    ///
    /// # Cancel safety
    /// Holds nothing; may be dropped at any point.
    pub async fn reached(&self, rv: ResourceVersion) {
        let mut changes = self.subscribe();
        loop {
            if self.read(|collection| collection.is_complete() && collection.position() >= rv) {
                return;
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}
