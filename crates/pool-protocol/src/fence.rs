//! Fencing of feed calls: store, epoch and caller must be those of the current leader *in the same step* as the data
//! changes.
//!
//! The epoch record lies next to the election lease and changes, in the same transaction, only when the holder does.
//! The fence follows it at publication, before readers see the lease. A call that applies data holds the fence's lock.
//! A holder change is therefore either before the batch (refused) or after it.

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use yurt_apimachinery::ResourceVersion;

use crate::guard::{Author, is_of_node};

/// State of the election that fencing needs; see the module header.
#[derive(Debug)]
pub struct Fence {
    store: String,
    // Lock order: this lock first, a collection's lock inside it.
    election: Mutex<Election>,
}

/// The present leader and its epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Election {
    /// Number of holder changes so far.
    pub epoch: u64,
    /// Identity of the leader; empty when there is none.
    pub holder: String,
    /// Author of the acquisition.
    pub owner: Option<Author>,
    /// RV of the record; `None` before the first election.
    pub record: Option<ResourceVersion>,
}

/// Credentials of leadership in a feed call.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Claim {
    /// Id of the store the leader was elected in.
    pub store: String,
    /// Epoch it was elected with.
    pub epoch: u64,
}

/// The caller does not lead (any more).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fenced;

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
    pub fn new(store: &str) -> Self {
        Self {
            store: store.to_owned(),
            election: Mutex::default(),
        }
    }

    /// Id of the store.
    pub fn store(&self) -> &str {
        &self.store
    }

    /// The election as published last.
    pub fn election(&self) -> Election {
        self.election.lock().clone()
    }

    /// Follows a newly published epoch record; the record is never deleted.
    ///
    /// # Errors
    /// The record cannot be read. No caller leads then: no leader is safer than a wrong one.
    pub fn published(&self, rv: ResourceVersion, value: &[u8]) -> Result<(), serde_json::Error> {
        let decoded = Election::decode(rv, value);
        let mut election = self.election.lock();
        match decoded {
            Ok(published) => *election = published,
            Err(error) => {
                election.holder.clear();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Checks a claim and keeps the election from changing until the returned lock is dropped.
    ///
    /// # Errors
    /// [`Fenced`] when the caller, a process on `node`, is not the leader that the claim names.
    pub fn enter(&self, claim: &Claim, node: Option<&str>) -> Result<MutexGuard<'_, Election>, Fenced> {
        let election = self.election.lock();
        let leads = node.is_some_and(|node| is_of_node(&election.holder, node));
        if claim.store == self.store && claim.epoch == election.epoch && leads {
            Ok(election)
        } else {
            Err(Fenced)
        }
    }

    /// True if `node` leads now.
    pub fn leads(&self, node: Option<&str>) -> bool {
        node.is_some_and(|node| is_of_node(&self.election.lock().holder, node))
    }
}

// === impl Election ===

impl Election {
    /// The election after its holder became `holder`.
    #[must_use]
    pub fn next(&self, holder: &str, owner: Option<Author>) -> Self {
        Self {
            epoch: self.epoch + 1,
            holder: holder.to_owned(),
            owner,
            record: self.record,
        }
    }

    /// The record to store.
    pub fn encode(&self) -> Vec<u8> {
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
    fn claim(store: &str, epoch: u64) -> Claim {
        Claim {
            store: store.into(),
            epoch,
        }
    }

    #[test]
    fn only_the_present_leader_of_this_store_enters() {
        let fence = Fence::new("s1");
        assert!(fence.enter(&claim("s1", 0), Some("a")).is_err(), "nobody leads yet");
        let owner = Author {
            user: "system:node:a".into(),
            manager: None,
        };
        let record = Election::default().next("a_1", Some(owner.clone())).encode();
        fence.published(ResourceVersion(7), &record).unwrap();
        assert!(fence.enter(&claim("s1", 1), Some("a")).is_ok());
        assert!(fence.enter(&claim("s1", 0), Some("a")).is_err(), "older epoch");
        assert!(fence.enter(&claim("s2", 1), Some("a")).is_err(), "other store");
        assert!(fence.enter(&claim("s1", 1), Some("b")).is_err(), "other node");
        let election = fence.election();
        assert_eq!(
            (election.owner.as_ref(), election.record),
            (Some(&owner), Some(ResourceVersion(7)))
        );
        fence
            .published(ResourceVersion(8), &election.next("", None).encode())
            .unwrap();
        assert!(fence.enter(&claim("s1", 2), Some("a")).is_err(), "released");
    }

    #[test]
    fn damaged_record_lets_nobody_in() {
        let fence = Fence::new("s1");
        let record = Election::default().next("a_1", None).encode();
        fence.published(ResourceVersion(7), &record).unwrap();
        assert!(fence.published(ResourceVersion(8), b"{").is_err());
        assert!(fence.enter(&claim("s1", 1), Some("a")).is_err());
    }
}
