//! Limit on the bytes of pool data at the coordinator: those held of all collections, and those that arrive for them.
//!
//! Bytes are those of objects as the cloud sent them. A call that would exceed the limit is refused before any of it is
//! applied; data already held stays, and is served.

use std::collections::BTreeMap;

use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, Status};
use yurt_collection::Collection;
use yurt_pool_protocol::feed::snapshot::Pending;
use yurt_pool_protocol::fence::Claim;

use super::Feed;
use super::bodies::Bodies;
use super::collection::PoolCollection;

// === impl Feed ===

impl Feed {
    /// Bytes of the objects of all collections.
    pub(crate) fn held_bytes(&self) -> usize {
        self.collections()
            .map(|one| one.objects().read(Collection::object_bytes))
            .sum()
    }

    /// Limit of [`Self::held_bytes`], and separately of the bytes that arrive.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Checks that there is room for a batch of events. Runs while the fence is held, so that the answer stays true.
    ///
    /// # Errors
    /// 413 without room.
    pub(super) fn require_room(
        &self,
        collection: &PoolCollection,
        events: &[(EventType, Object)],
    ) -> Result<(), Status> {
        let growth = collection.objects().read(|held| growth(held, events));
        if growth <= 0 {
            return Ok(());
        }
        self.require(collection, self.held_bytes().saturating_add_signed(growth))
    }

    /// Checks that there is room for a snapshot that has arrived in full. Runs as [`Self::require_room`] does.
    ///
    /// # Errors
    /// 413 without room.
    pub(super) fn require_room_of(
        &self,
        collection: &PoolCollection,
        pending: &Pending<Bodies>,
        bodies: &BTreeMap<String, Object>,
    ) -> Result<(), Status> {
        let (before, after) = collection
            .objects()
            .read(|held| (held.object_bytes(), pending.bytes_with(bodies, held)));
        if after <= before {
            return Ok(());
        }
        self.require(collection, self.held_bytes() - before + after)
    }

    /// Checks that `more` bytes may arrive for `collection`, on top of those arriving for all collections. What other
    /// leaders than that of `claim` left unfinished gives way. The caller locks none of the collections.
    ///
    /// # Errors
    /// 413 without room.
    pub(super) fn require_room_to_arrive(
        &self,
        collection: &PoolCollection,
        claim: &Claim,
        more: usize,
    ) -> Result<(), Status> {
        let bytes = || more + self.collections().map(|one| one.arriving().bytes()).sum::<usize>();
        if bytes() > self.bytes_max {
            self.collections().for_each(|one| one.arriving().keep_only(claim));
        }
        self.require(collection, bytes())
    }

    fn require(&self, collection: &PoolCollection, bytes: usize) -> Result<(), Status> {
        if bytes <= self.bytes_max {
            return Ok(());
        }
        let (name, limit) = (collection.name(), self.bytes_max);
        let message = format!(
            "with this of {name} the pool's data would have {bytes} bytes, limit is {limit} (--max-pool-bytes); the data \
             already held stays"
        );
        tracing::warn!(collection = name, bytes, limit, "Leader's data refused: too many bytes");
        Err(Status::too_large(&message))
    }
}

/// Bytes that a batch adds.
fn growth(held: &Collection, events: &[(EventType, Object)]) -> isize {
    let size = |object: &Object| isize::try_from(object.size()).unwrap_or(isize::MAX);
    let mut sizes = BTreeMap::new();
    for (event, object) in events {
        let after = if *event == EventType::Deleted { 0 } else { size(object) };
        sizes.insert(object.key(), after);
    }
    let before = |key| held.object(key).map_or(0, size);
    sizes.into_iter().map(|(key, after)| after - before(key)).sum()
}
