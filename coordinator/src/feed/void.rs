//! Voids a collection: what was fed is forgotten, and the next leader feeds it from the start.

use yurt_apimachinery::Status;

use super::Feed;
use super::collection::PoolCollection;
use crate::status_error;

// === impl Feed ===

impl Feed {
    /// Forgets what was fed of the collection `name`, on the disk as well; readers of it end. `serve` shows readers the empty
    /// one in its place. Over a shared etcd what is stored goes; other coordinators keep what they have in memory until their
    /// next start.
    ///
    /// # Errors
    /// 404 for a collection that is not there; what the store says, and the collection may be gone until the next start.
    pub(crate) async fn void(&self, name: &str, serve: impl Fn()) -> Result<(), Status> {
        let missing = || Status::failure(404, "NotFound", format!("{name} is not a collection of this pool"));
        let old = self.collections.named(name).ok_or_else(missing)?;
        // No call may apply what it brought to the one that is given up.
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
        self.collections.insert(match old.is_told() {
            true => PoolCollection::told(replica),
            false => PoolCollection::new(replica),
        });
        serve();
        Ok(())
    }
}
