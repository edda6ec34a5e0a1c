//! The feed's messages: calls of a leader, and the answers to them.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use yurt_apimachinery::{ResourceKind, ResourceVersion, Status};
use yurt_collection::generation::POSITION_END;
use yurt_collection::{Gap, History, RangeTombstone, generation};

use super::events::read_object;
use super::fence::Claim;

/// `POST …/events`: events of the cloud's log after `after`.
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
    /// The collection's `C` afterwards: there were no other events up to it.
    pub(super) up_to: ResourceVersion,
    #[serde(default)]
    pub(super) fresh: bool,
    /// True if the events contain only the last state of each key: they apply together or not at all.
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

/// `POST …/snapshot`: keys and RVs of all objects at `at`.
#[derive(Debug, Deserialize)]
pub(super) struct SnapshotCall<'a> {
    pub(super) store: String,
    pub(super) epoch: u64,
    pub(super) generation: u64,
    pub(super) at: ResourceVersion,
    pub(super) index: Vec<(String, ResourceVersion)>,
    /// Number of keys in earlier parts of the index.
    #[serde(default)]
    pub(super) from: usize,
    /// True if other parts of the index follow.
    #[serde(default)]
    pub(super) more: bool,
    /// For a coordinator that has no data.
    #[serde(default, borrow)]
    pub(super) history: Option<HistoryOnWire<'a>>,
    #[serde(default)]
    pub(super) fresh: Option<bool>,
}

/// The leader's history before `at`.
#[derive(Debug, Deserialize)]
pub(super) struct HistoryOnWire<'a> {
    floor: ResourceVersion,
    gaps: Vec<Gap>,
    #[serde(borrow)]
    tombstones: Vec<&'a RawValue>,
    #[serde(borrow)]
    ranges: Vec<RangeOnWire<'a>>,
}

#[derive(Debug, Deserialize)]
struct RangeOnWire<'a> {
    after: ResourceVersion,
    to: ResourceVersion,
    #[serde(borrow)]
    object: &'a RawValue,
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

/// Position of a collection after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) applied: ResourceVersion,
    pub(super) durable: ResourceVersion,
}

/// Reason for which nothing was applied: 409, with the data that the leader needs to go on.
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

// === impl EventsCall, SnapshotCall, HistoryOnWire, BodiesCall ===

impl EventsCall<'_> {
    pub(super) fn claim(&self) -> Claim {
        Claim {
            store: self.store.clone(),
            epoch: self.epoch,
        }
    }
}

impl SnapshotCall<'_> {
    pub(super) fn claim(&self) -> Claim {
        Claim {
            store: self.store.clone(),
            epoch: self.epoch,
        }
    }

    /// Parses the history in the call.
    ///
    /// # Errors
    /// 400 when it is not the time before `at`.
    pub(super) fn history(&self, kind: &ResourceKind) -> Result<Option<History>, Status> {
        let history = self.history.as_ref().map(|history| history.read(self.at, kind));
        history
            .transpose()
            .map_err(|why| Status::bad_request(format!("history of a snapshot: {why}")))
    }
}

impl HistoryOnWire<'_> {
    fn read(&self, at: ResourceVersion, kind: &ResourceKind) -> Result<History, String> {
        let floor = self.floor;
        let within = |from: ResourceVersion, to: ResourceVersion| match from < to && floor < to && to <= at {
            true => Ok(()),
            false => Err(format!("({from}, {to}] is not within ({floor}, {at}]")),
        };
        if floor > at {
            return Err(format!("it begins at {floor} and ends at {at}"));
        }
        let mut history = History {
            floor,
            ..History::default()
        };
        for gap in &self.gaps {
            within(gap.from, gap.to)?;
            history.gaps.push(*gap);
        }
        for raw in &self.tombstones {
            let object = read_object(raw.get(), kind)?;
            within(floor, object.resource_version())?;
            history.tombstones.push(object);
        }
        for RangeOnWire { after, to, object } in &self.ranges {
            within(*after, *to)?;
            // Zero means that the entry is left from an earlier generation.
            if after.is_zero() {
                return Err(format!("a range to {to} has no start"));
            }
            history.ranges.push(RangeTombstone {
                after: *after,
                to: *to,
                object: read_object(object.get(), kind)?,
            });
        }
        Ok(history)
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
    /// Refuses a position that no cloud gets to.
    ///
    /// # Errors
    /// [`Self::Position`].
    pub(super) fn check_position(field: &str, told: ResourceVersion) -> Result<(), Self> {
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
    pub(super) fn check_generation(held: u64, told: u64) -> Result<(), Self> {
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
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Fenced { store } => json!({ "reason": "fenced", "store": store }),
            Self::Gap { applied } => json!({ "reason": "gap", "appliedUpTo": applied }),
            Self::Behind { applied } => json!({ "reason": "behind", "appliedUpTo": applied }),
            Self::Backwards { message } => json!({ "reason": "backwards", "message": message }),
            Self::Generation { generation, applied } => {
                json!({ "reason": "generation", "generation": generation, "appliedUpTo": applied })
            }
            Self::Version { message } => {
                json!({ "reason": "version", "versions": super::VERSIONS, "message": message })
            }
            Self::Leap { message } => json!({ "reason": "generation", "message": message }),
            Self::Position { message } => json!({ "reason": "position", "message": message }),
            Self::Members { message } => json!({ "reason": "members", "message": message }),
        }
    }
}
