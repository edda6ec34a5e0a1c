//! Fencing of feed calls: store, epoch and caller must be those of the current leader *in the same step* as the data
//! changes.
//!
//! The epoch record lies next to the election lease and changes, in the same transaction, only when the holder does. The
//! fence follows it at publication, before readers see the lease. A call that applies data holds the fence's lock. A
//! holder change is therefore either before the batch (refused) or after it.

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use yurt_apimachinery::ResourceVersion;
use yurt_storage::{Action, Expect, Op};

use crate::authn::User;
use crate::registry::leases::Author;

/// Storage key of the epoch record. `~` keeps it apart from every collection.
pub(crate) const EPOCH_KEY: &str = "/~epochs/kube-system/yurthub";

/// State of the election that fencing needs; see the module header.
#[derive(Debug)]
pub(crate) struct Fence {
    store: String,
    // Lock order: this lock first, a collection's lock inside it.
    election: Mutex<Election>,
}

/// The present leader and its epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Election {
    /// Number of holder changes so far.
    pub(crate) epoch: u64,
    /// Identity of the leader; empty when there is none.
    pub(crate) holder: String,
    /// Author of the acquisition.
    pub(crate) owner: Option<Author>,
    /// RV of the record; `None` before the first election.
    pub(crate) record: Option<ResourceVersion>,
}

/// Credentials of leadership in a feed call.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Claim {
    /// Id of the store the leader was elected in.
    pub(crate) store: String,
    /// Epoch it was elected with.
    pub(crate) epoch: u64,
}

/// The caller does not lead (any more).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fenced;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EpochRecord {
    epoch: u64,
    holder: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner_user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner_manager: Option<String>,
}

// === impl Fence ===

impl Fence {
    /// A fence of the store `store` before any election is known.
    pub(crate) fn new(store: &str) -> Self {
        Self {
            store: store.to_owned(),
            election: Mutex::default(),
        }
    }

    /// Id of the store.
    pub(crate) fn store(&self) -> &str {
        &self.store
    }

    /// The election as published last.
    pub(crate) fn election(&self) -> Election {
        self.election.lock().clone()
    }

    /// Follows a newly published epoch record; the record is never deleted.
    pub(crate) fn published(&self, rv: ResourceVersion, value: &[u8]) {
        match Election::decode(rv, value) {
            Ok(election) => *self.election.lock() = election,
            Err(error) => {
                // No leader is safer than a wrong one.
                tracing::error!(%error, "Failed to read the epoch record, refusing all feed calls");
                self.election.lock().holder.clear();
            }
        }
    }

    /// Checks a claim and keeps the election from changing until the returned lock is dropped.
    ///
    /// # Errors
    /// [`Fenced`] when the caller is not the leader that the claim names.
    pub(crate) fn enter(&self, claim: &Claim, user: &User) -> Result<MutexGuard<'_, Election>, Fenced> {
        let election = self.election.lock();
        let leads = user.owns_identity(&election.holder);
        if claim.store == self.store && claim.epoch == election.epoch && leads {
            Ok(election)
        } else {
            Err(Fenced)
        }
    }

    /// Precondition for writes of data in the store: no other node has been elected.
    pub(crate) fn guard(&self) -> Option<Op> {
        self.election.lock().guard()
    }

    /// True if the caller's node leads now.
    pub(crate) fn leads(&self, user: &User) -> bool {
        user.owns_identity(&self.election.lock().holder)
    }
}

// === impl Election ===

impl Election {
    /// See [`Fence::guard`].
    pub(crate) fn guard(&self) -> Option<Op> {
        self.record.map(|rv| Op {
            key: EPOCH_KEY.to_owned(),
            expect: Expect::At(rv),
            action: Action::Check,
        })
    }

    /// The election after its holder became `holder`.
    pub(crate) fn next(&self, holder: &str, owner: Option<Author>) -> Self {
        Self {
            epoch: self.epoch + 1,
            holder: holder.to_owned(),
            owner,
            record: self.record,
        }
    }

    /// The record to store.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let owner = self.owner.as_ref();
        let record = EpochRecord {
            epoch: self.epoch,
            holder: self.holder.clone(),
            owner_user: owner.map(|owner| owner.user.clone()),
            owner_manager: owner.and_then(|owner| owner.manager.clone()),
        };
        serde_json::to_vec(&record).expect("an epoch record has string keys only, so it must serialize")
    }

    fn decode(rv: ResourceVersion, value: &[u8]) -> Result<Self, serde_json::Error> {
        let record: EpochRecord = serde_json::from_slice(value)?;
        let owner = record.owner_user.map(|user| Author {
            user,
            manager: record.owner_manager,
        });
        Ok(Self {
            epoch: record.epoch,
            holder: record.holder,
            owner,
            record: Some(rv),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::NODES;

    fn node(name: &str) -> User {
        User::new(&format!("system:node:{name}"), &[NODES])
    }

    fn claim(store: &str, epoch: u64) -> Claim {
        Claim {
            store: store.into(),
            epoch,
        }
    }

    #[test]
    fn only_the_present_leader_of_this_store_enters() {
        let fence = Fence::new("s1");
        assert!(fence.enter(&claim("s1", 0), &node("a")).is_err(), "nobody leads yet");
        let owner = Author {
            user: "system:node:a".into(),
            manager: None,
        };
        let record = Election::default().next("a_1", Some(owner.clone())).encode();
        fence.published(ResourceVersion(7), &record);
        assert!(fence.enter(&claim("s1", 1), &node("a")).is_ok());
        assert!(fence.enter(&claim("s1", 0), &node("a")).is_err(), "older epoch");
        assert!(fence.enter(&claim("s2", 1), &node("a")).is_err(), "other store");
        assert!(fence.enter(&claim("s1", 1), &node("b")).is_err(), "other node");
        let election = fence.election();
        assert_eq!(
            (election.owner.as_ref(), election.record),
            (Some(&owner), Some(ResourceVersion(7)))
        );
        fence.published(ResourceVersion(8), &election.next("", None).encode());
        assert!(fence.enter(&claim("s1", 2), &node("a")).is_err(), "released");
    }

    #[test]
    fn damaged_record_lets_nobody_in() {
        let fence = Fence::new("s1");
        fence.published(ResourceVersion(7), &Election::default().next("a_1", None).encode());
        fence.published(ResourceVersion(8), b"{");
        assert!(fence.enter(&claim("s1", 1), &node("a")).is_err());
    }
}
