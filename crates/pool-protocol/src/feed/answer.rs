//! Answers of the coordinator to calls of the feed.

use serde::Deserialize;
use serde_json::{Value, json};
use yurt_apimachinery::ResourceVersion;
use yurt_collection::generation::{self, POSITION_END};

use super::VERSIONS;

/// Values of `reason` in a refusal that the leader distinguishes.
pub mod reason {
    /// See [`Refusal::Fenced`](super::Refusal::Fenced).
    pub const FENCED: &str = "fenced";
    /// See [`Refusal::Backwards`](super::Refusal::Backwards).
    pub const BACKWARDS: &str = "backwards";
    /// See [`Refusal::Members`](super::Refusal::Members).
    pub const MEMBERS: &str = "members";
    /// See [`Refusal::Position`](super::Refusal::Position).
    pub const POSITION: &str = "position";
    /// See [`Refusal::Version`](super::Refusal::Version).
    pub const VERSION: &str = "version";
}

/// Answer to a call as the leader reads it, for any status.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FeedAnswer {
    /// Position of the collection.
    pub applied_up_to: Option<String>,
    /// Kind of the refusal; see [`reason`].
    pub reason: Option<String>,
    /// Text of the refusal.
    pub message: Option<String>,
    /// Keys of the missing bodies, or their number.
    pub missing: Option<Value>,
}

/// Position of a collection after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Everything up to this RV is applied.
    pub applied: ResourceVersion,
    /// Everything up to this RV survives a crash.
    pub durable: ResourceVersion,
}

/// Reason for which nothing was applied: 409, with the data that the leader needs to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
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
    /// The snapshot is older than the held data.
    Behind {
        /// `C`.
        applied: ResourceVersion,
    },
    /// An object of the list is older than the one held although the list is not: the cloud was restored from a
    /// backup.
    Backwards {
        /// The object and the difference.
        message: String,
    },
    /// The call belongs to another generation; only a snapshot may raise it.
    Generation {
        /// Generation held.
        generation: u64,
        /// `C`.
        applied: ResourceVersion,
    },
    /// The snapshot's generation is far above the one held. After a few such jumps no later leader could begin a
    /// generation.
    Leap {
        /// Accepted generations.
        message: String,
    },
    /// The call reaches a position that no cloud gets to: readers there would be ahead of every leader.
    Position {
        /// Accepted positions.
        message: String,
    },
    /// The call is in a version of the feed that is not spoken here.
    Version {
        /// The versions of each side, and the side to upgrade.
        message: String,
    },
    /// The membership must come first, and must contain the caller's node.
    Members {
        /// The expected membership.
        message: String,
    },
}

// === impl Progress ===

impl Progress {
    /// Body of the 200.
    #[must_use]
    pub fn to_json(self) -> Value {
        json!({ "appliedUpTo": self.applied, "durableUpTo": self.durable })
    }
}

// === impl Refusal ===

impl Refusal {
    /// Refuses a position that no cloud gets to.
    ///
    /// # Errors
    /// [`Self::Position`].
    pub fn check_position(field: &str, told: ResourceVersion) -> Result<(), Self> {
        if told < POSITION_END {
            return Ok(());
        }
        let message = format!("{field} {told} is refused: positions are below {POSITION_END}");
        Err(Self::Position { message })
    }

    /// Refuses a generation that is not one of the next steps after the held one.
    ///
    /// # Errors
    /// [`Self::Leap`].
    pub fn check_generation(held: u64, told: u64) -> Result<(), Self> {
        if generation::may_follow(held, told) {
            return Ok(());
        }
        let message = format!(
            "generation {told} is refused after {held}: it has to be one of the next steps, and below {}",
            generation::GENERATION_END
        );
        Err(Self::Leap { message })
    }

    /// Body of the 409.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Fenced { store } => json!({ "reason": reason::FENCED, "store": store }),
            Self::Gap { applied } => json!({ "reason": "gap", "appliedUpTo": applied }),
            Self::Behind { applied } => json!({ "reason": "behind", "appliedUpTo": applied }),
            Self::Backwards { message } => json!({ "reason": reason::BACKWARDS, "message": message }),
            Self::Generation { generation, applied } => {
                json!({ "reason": "generation", "generation": generation, "appliedUpTo": applied })
            }
            Self::Version { message } => {
                json!({ "reason": reason::VERSION, "versions": VERSIONS, "message": message })
            }
            Self::Leap { message } => json!({ "reason": "generation", "message": message }),
            Self::Position { message } => json!({ "reason": reason::POSITION, "message": message }),
            Self::Members { message } => json!({ "reason": reason::MEMBERS, "message": message }),
        }
    }
}
