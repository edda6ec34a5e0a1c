//! The feed's messages: what a leader sends, and what it is answered.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use yurt_apimachinery::ResourceVersion;

use super::fence::Claim;

/// `POST …/events`: facts of the cloud's log after `after`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EventsCall<'a> {
    pub(super) store: String,
    pub(super) epoch: u64,
    pub(super) generation: u64,
    /// Must be the collection's `C`.
    pub(super) after: ResourceVersion,
    #[serde(borrow)]
    pub(super) events: Vec<EventOnWire<'a>>,
    /// The collection's `C` afterwards: nothing else happened up to there.
    pub(super) up_to: ResourceVersion,
    #[serde(default)]
    pub(super) fresh: bool,
    /// Only the last state of each key is among the events: they count together or not at all.
    #[serde(default)]
    pub(super) step: bool,
}

/// One watch event.
#[derive(Debug, Deserialize)]
pub(super) struct EventOnWire<'a> {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(borrow)]
    pub(super) object: &'a RawValue,
}

/// `POST …/snapshot`: keys and RVs of everything there is at `at`.
#[derive(Debug, Deserialize)]
pub(super) struct SnapshotCall {
    pub(super) store: String,
    pub(super) epoch: u64,
    pub(super) generation: u64,
    pub(super) at: ResourceVersion,
    pub(super) index: Vec<(String, ResourceVersion)>,
    #[serde(default)]
    pub(super) fresh: Option<bool>,
}

/// `POST …/snapshot/bodies`: some of the objects that were missing.
#[derive(Debug, Deserialize)]
pub(super) struct BodiesCall<'a> {
    pub(super) store: String,
    pub(super) epoch: u64,
    pub(super) generation: u64,
    pub(super) at: ResourceVersion,
    #[serde(borrow)]
    pub(super) objects: Vec<&'a RawValue>,
    #[serde(default)]
    pub(super) fresh: Option<bool>,
}

/// Where a collection is after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) applied: ResourceVersion,
    pub(super) durable: ResourceVersion,
}

/// Why nothing was applied: 409, with what the leader needs to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The caller does not lead this store in this epoch.
    Fenced {
        /// Id of the store.
        store: String,
    },
    /// The batch does not continue at `C`; resend from there.
    Gap {
        /// `C`.
        applied: ResourceVersion,
    },
    /// The snapshot is older than what is held.
    Behind {
        /// `C`.
        applied: ResourceVersion,
    },
    /// An object of the list is older than the one held although the list is not: the cloud went back.
    Backwards {
        /// Which object and how.
        message: String,
    },
    /// The call belongs to another timeline; only a snapshot may raise it.
    Generation {
        /// Timeline held.
        generation: u64,
        /// `C`.
        applied: ResourceVersion,
    },
    /// The membership must come first, and must contain the caller.
    Members {
        /// What is expected.
        message: String,
    },
}

// === impl EventsCall, SnapshotCall, BodiesCall ===

impl EventsCall<'_> {
    pub(super) fn claim(&self) -> Claim {
        Claim {
            store: self.store.clone(),
            epoch: self.epoch,
        }
    }
}

impl SnapshotCall {
    pub(super) fn claim(&self) -> Claim {
        Claim {
            store: self.store.clone(),
            epoch: self.epoch,
        }
    }
}

impl BodiesCall<'_> {
    pub(super) fn claim(&self) -> Claim {
        Claim {
            store: self.store.clone(),
            epoch: self.epoch,
        }
    }
}

// === impl Progress ===

impl Progress {
    pub(super) fn to_json(self) -> Value {
        json!({ "appliedUpTo": self.applied, "durableUpTo": self.durable })
    }
}

// === impl Refusal ===

impl Refusal {
    /// Body of the 409.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Fenced { store } => json!({ "reason": "fenced", "store": store }),
            Self::Gap { applied } => json!({ "reason": "gap", "appliedUpTo": applied }),
            Self::Behind { applied } => json!({ "reason": "behind", "appliedUpTo": applied }),
            Self::Backwards { message } => json!({ "reason": "backwards", "message": message }),
            Self::Generation { generation, applied } => {
                json!({ "reason": "generation", "generation": generation, "appliedUpTo": applied })
            }
            Self::Members { message } => json!({ "reason": "members", "message": message }),
        }
    }
}
