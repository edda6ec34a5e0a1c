//! Room for writes: the limit of all own bytes, and the shares of nodes.

use std::sync::Arc;

use yurt_apimachinery::Status;
use yurt_collection::Collection;
use yurt_pool_protocol::guard::Caller;
use yurt_storage::{Action, Cacher, Durability};

use super::shares::{self, Counted, Shares};
use super::{Intent, OwnStore, Write};
use crate::lease_objects;

/// Limit on own objects, in bytes.
pub(crate) struct Room {
    cacher: Arc<Cacher>,
    bytes_max: usize,
    shares: Shares,
}

// === impl Room ===

impl Room {
    /// Limits everything in `cacher` to `bytes_max`; nodes have `shares` of it.
    pub(crate) fn new(cacher: Arc<Cacher>, bytes_max: usize, shares: Shares) -> Self {
        Self {
            cacher,
            bytes_max,
            shares,
        }
    }

    /// Bytes of all own objects.
    fn held_bytes(&self) -> usize {
        let bytes = |(_, objects): &(_, Arc<yurt_storage::SharedCollection>)| objects.read(Collection::object_bytes);
        self.cacher.all().iter().map(bytes).sum()
    }
}

// === impl OwnStore ===

impl OwnStore {
    /// Checks that there is room for a write. Concurrent writes may pass together.
    ///
    /// # Errors
    /// 403 when all own objects would exceed the limit; 413 or 422 for a node.
    pub(super) fn require_room(&self, write: &Write<'_>, intent: &Intent) -> Result<(), Status> {
        let (Some(room), Some(new)) = (&self.room, write.new) else {
            return Ok(());
        };
        let is_lease = write.resource.name == lease_objects::COLLECTION;
        let is_of_node = matches!(intent.caller, Caller::Node(_)) && shares::is_shared_out(&write.resource.name);
        if is_of_node {
            shares::check_size(write)?;
        }
        let (before, after) = (write.old.map_or(0, |old| old.size()), new.size());
        // Heartbeats and elections go on in a full store: the leases of nodes are bounded by their names and sizes.
        let may_exceed = is_lease && (is_of_node || write.old.is_some());
        if after > before && !may_exceed {
            let bytes = room.held_bytes() + after - before;
            if bytes > room.bytes_max {
                let why = format!(
                    "own objects would have {bytes} bytes, limit is {} (--max-own-bytes); delete some",
                    room.bytes_max
                );
                let resource = write.resource.kind.group_resource();
                return Err(Status::forbidden_because(&resource, write.key.name(), &why));
            }
        }
        Ok(())
    }

    /// Counts a write of a node, unless it is a renewal of a lease. A write that the guard refuses is not counted:
    /// candidates try for a lease until it is free.
    ///
    /// # Errors
    /// 429 when the node writes too much.
    pub(super) fn count(&self, write: &Write<'_>, intent: &Intent) -> Result<(), Status> {
        let (Some(room), Some(new)) = (&self.room, write.new) else {
            return Ok(());
        };
        let is_of_node = matches!(intent.caller, Caller::Node(_)) && shares::is_shared_out(&write.resource.name);
        if !is_of_node || intent.dry_run {
            return Ok(());
        }
        let is_lease = write.resource.name == lease_objects::COLLECTION;
        let is_new = write.old.is_none();
        if is_lease && !is_new && matches!(write.action, Action::Put(_, Durability::Volatile)) {
            return Ok(());
        }
        let counted = Counted {
            user: &intent.author.user,
            namespace: write.key.namespace().unwrap_or_default(),
            is_event: !is_lease,
            is_new,
            bytes: new.size(),
        };
        room.shares.take(counted, self.clock.boot()).map_err(|seconds| {
            let resource = write.resource.kind.group_resource();
            let why =
                format!("this node writes too many {resource}, or too many bytes of them; try again in {seconds} s");
            Status::too_many_requests(why, seconds)
        })
    }
}
