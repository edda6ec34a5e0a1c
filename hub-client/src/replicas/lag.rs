//! Detects a replica of a resource shared by every pool that is behind the coordinator. A hub with such a replica
//! should not lead.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::ResourceVersion;
use yurt_pool_protocol::feed::{CollectionStatus, PoolStatus};

use super::{POOL_SCOPE, PoolData};
use crate::health::CoordinatorReach;

/// Time between comparisons while the coordinator reports nothing new.
const AGAIN: Duration = Duration::from_secs(5);

/// State of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldReplica {
    /// True if everything up to `position` has been applied.
    pub complete: bool,
    /// `C`.
    pub position: ResourceVersion,
    /// Generation.
    pub generation: u64,
}

/// True if the replica lacks data. `before` is the coordinator's status one answer ago: later data may still be on its
/// way.
#[must_use]
pub fn is_behind(held: HeldReplica, before: &CollectionStatus, now: &CollectionStatus) -> bool {
    if !before.complete || !now.complete || before.generation != now.generation {
        return false;
    }
    let had = ResourceVersion::parse(&before.applied_up_to).unwrap_or_default();
    !held.complete || held.generation < now.generation || held.position < had
}

/// Compares after each answer of the coordinator, until `token` is cancelled.
pub async fn compare(
    data: Arc<PoolData>,
    mut reach: watch::Receiver<CoordinatorReach>,
    behind: watch::Sender<bool>,
    token: CancellationToken,
) {
    let mut before: Option<Arc<PoolStatus>> = None;
    loop {
        let status = reach.borrow_and_update().status.clone();
        if let (Some(before), Some(now)) = (&before, &status) {
            let lacks = lacks(&data, &before.collections, &now.collections);
            behind.send_if_modified(|held| std::mem::replace(held, lacks) != lacks);
        }
        before = status;
        // An unchanged answer does not wake the receiver, but the replica may have caught up.
        let changed = tokio::time::timeout(AGAIN, reach.changed());
        match token.run_until_cancelled(changed).await {
            Some(Ok(Ok(())) | Err(_)) => {}
            _ => return,
        }
    }
}

fn lacks(
    data: &PoolData,
    before: &BTreeMap<String, CollectionStatus>,
    now: &BTreeMap<String, CollectionStatus>,
) -> bool {
    POOL_SCOPE.iter().any(|name| {
        let (Some(before), Some(now), Some(replica)) = (before.get(*name), now.get(*name), data.replicas().named(name))
        else {
            return false;
        };
        let held = replica.collection().read(|c| HeldReplica {
            complete: c.is_complete(),
            position: c.position(),
            generation: c.generation(),
        });
        is_behind(held, before, now)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(complete: bool, generation: u64, at: u64) -> CollectionStatus {
        CollectionStatus {
            generation,
            applied_up_to: at.to_string(),
            complete,
            fresh: true,
            ..CollectionStatus::default()
        }
    }

    #[test]
    fn only_what_the_coordinator_had_for_a_while_counts() {
        let held = |complete, generation, at| HeldReplica {
            complete,
            position: ResourceVersion(at),
            generation,
        };
        let (before, now) = (status(true, 1, 100), status(true, 1, 200));
        assert!(!is_behind(held(true, 1, 200), &before, &now));
        assert!(!is_behind(held(true, 1, 150), &before, &now), "the rest is on its way");
        assert!(is_behind(held(true, 1, 99), &before, &now));
        assert!(is_behind(held(false, 1, 300), &before, &now));
        assert!(is_behind(held(true, 0, 300), &before, &now), "another timeline");
        let empty = status(false, 0, 0);
        assert!(!is_behind(held(false, 0, 0), &empty, &empty), "none has more");
        assert!(
            !is_behind(held(true, 0, 10), &status(true, 0, 100), &now),
            "the timeline just began"
        );
    }
}
