//! Shared store for tests, which decide its answers.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::ResourceVersion;
use yurt_pool_protocol::fence::Fence;
use yurt_pool_protocol::guard::Guard;
use yurt_runtime::Clock;
use yurt_storage::backend::Sink;
use yurt_storage::{Cacher, Op, Storage, StorageError};

use super::OwnStore;
use crate::config::Profile;
use crate::registry::{Registry, stored_kinds};

/// Outcome of a write or a read.
pub(crate) type Outcome = Result<ResourceVersion, StorageError>;

/// A store that holds nothing.
pub(crate) struct FakeStorage {
    /// Answers a write.
    pub(crate) write: Box<dyn Fn(Vec<Op>) -> BoxFuture<'static, Outcome> + Send + Sync>,
    /// Answers a read.
    pub(crate) caught_up: Box<dyn Fn() -> Outcome + Send + Sync>,
}

// === impl FakeStorage ===

impl FakeStorage {
    /// The own objects of a pool over this store, and its resources.
    pub(crate) fn open(self) -> (OwnStore, Registry) {
        let clock = Clock::system();
        let (fence, guard) = (Arc::new(Fence::new("fake")), Arc::new(Guard::new(clock.boot())));
        let own = OwnStore::new(Arc::new(self), fence, guard, None, clock);
        let cacher = Arc::new(Cacher::new(stored_kinds(Profile::Pool)));
        let stop = CancellationToken::new();
        let registry = Registry::new(Profile::Pool, |_| None, &cacher, &[], &stop);
        (own, registry)
    }
}

impl Storage for FakeStorage {
    fn id(&self) -> &str {
        "fake"
    }

    fn attach(&self, _: Arc<dyn Sink>) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn write(&self, ops: Vec<Op>) -> BoxFuture<'_, Outcome> {
        (self.write)(ops)
    }

    fn caught_up(&self) -> Option<BoxFuture<'_, Outcome>> {
        // Answered when it is awaited: the store is also asked whether it is shared.
        Some(Box::pin(async { (self.caught_up)() }))
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
