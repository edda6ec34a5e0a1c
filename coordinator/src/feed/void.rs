//! Voids a collection: its fed data is deleted, and the next leader feeds it from the start.

use yurt_apimachinery::Status;
// No other code has a reference to the collection yet.
use yurt_storage::{Collection, OnlyWriter as _, generation};

use super::collection::PoolCollection;
use super::{Feed, members};
use crate::status_error;

// === impl Feed ===

impl Feed {
    /// Deletes the fed data of the collection `name`, on the disk as well, and ends its readers. `serve` shows readers the empty
    /// one in its place. Except for the members, it is fed again under a later generation only, so that hubs drop their copies.
    /// Until the next start the coordinator refuses any other generation. Over a shared etcd the stored data is deleted; other
    /// coordinators keep their data in memory until their next start.
    ///
    /// # Errors
    /// 404 for a collection that does not exist; errors of the store, after which the collection may be missing until the next
    /// start.
    pub(crate) async fn void(&self, name: &str, serve: impl Fn()) -> Result<(), Status> {
        let missing = || Status::failure(404, "NotFound", format!("{name} is not a collection of this pool"));
        let old = self.collections.named(name).ok_or_else(missing)?;
        // No running call may apply its data to the collection that is dropped.
        let _turn = old.turn().await;
        let _one = self.scope.changing().await;
        self.pending.lock().remove(name);
        let of_storage = |error| status_error::of_storage(&error);
        self.replicas.remove(name).await.map_err(of_storage)?;
        self.replicas.forget(name).await.map_err(of_storage)?;
        let replica = self
            .replicas
            .add(name, old.objects().kind())
            .await
            .map_err(of_storage)?;
        let mut required = 0;
        if name != members::COLLECTION {
            let last = old.objects().read(Collection::generation);
            let random = uuid::Uuid::new_v4().as_u64_pair().0;
            let next = generation::next(last, random).or_else(|| generation::next(0, random));
            required = next.unwrap_or_default();
            replica.collection().update(|held| held.require(required));
        }
        let empty = match old.is_told() {
            true => PoolCollection::told(replica),
            false => PoolCollection::new(replica),
        };
        self.collections.insert(empty.voided(required));
        serve();
        Ok(())
    }

    /// Lowest generation of the collection `name` that is not void; `None` if there is no such collection.
    pub(crate) fn required_generation(&self, name: &str) -> Option<u64> {
        Some(self.collections.named(name)?.required_generation())
    }

    /// The node that alone has fed everything since the collection `name` was voided. `None` over a shared etcd, where others feed
    /// through other coordinators.
    pub(crate) fn sole_feeder(&self, name: &str) -> Option<String> {
        let collection = self.collections.named(name)?;
        collection.sole_feeder().filter(|_| !self.replicas.is_pooled())
    }
}
