//! The tail of recent steps: exact history, with each event encoded at most once per format and event type.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use yurt_apimachinery::negotiation::{Format, Negotiated};
use yurt_apimachinery::time::Time;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion};

/// Bookkeeping bytes counted for one step beside the objects it holds.
const STEP_OVERHEAD: usize = 160;

/// What happened to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The key did not exist before.
    Created,
    /// The key existed and has a new state.
    Updated,
    /// The key is gone; the change's object is its last state with the RV of the deletion.
    Deleted,
}

/// One change of one key, immutable and shared by all readers.
#[derive(Debug)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// New state, or the last state carrying the deletion's RV.
    pub object: Object,
    /// State before the change, if the object was held; selectors decide transitions with it.
    pub previous: Option<Object>,
    /// It is part of a step, which tells the last state of each key: other states may have come after `previous`.
    pub is_conflated: bool,
    /// What was asked for so far: one or two of the few that are possible.
    frames: Mutex<Vec<(EventType, Format, Bytes)>>,
}

/// One entry of the log.
#[derive(Clone, Debug)]
pub enum Step {
    /// A change with an RV of its own.
    Change(Arc<Change>),
    /// The changes up to the matching [`Step::DiffEnd`] lead to `to` as one step: only the last state of each key is among
    /// them, so between two of them nothing can be said of the rest.
    DiffBegin {
        /// Position after the step.
        to: ResourceVersion,
    },
    /// A deletion nobody watched: it has no RV, so it carries the position every reader already has.
    Unwatched(Arc<Change>),
    /// End of a step; `C` is `to` from here on.
    DiffEnd {
        /// Position after the step.
        to: ResourceVersion,
        /// It came from comparing lists: objects may have come and gone unseen.
        jumped: bool,
    },
}

// === impl Change ===

impl Change {
    pub(crate) fn new(kind: ChangeKind, object: Object, previous: Option<Object>, is_conflated: bool) -> Arc<Self> {
        Arc::new(Self {
            kind,
            object,
            previous,
            is_conflated,
            frames: Default::default(),
        })
    }

    /// RV of the change.
    #[must_use]
    pub fn resource_version(&self) -> ResourceVersion {
        self.object.resource_version()
    }

    /// The watch frame of this change's object as `event`, for clients that want it as it is
    /// ([`Negotiated::is_shared`]); encoded on first use, shared afterwards.
    #[must_use]
    pub fn frame(&self, event: EventType, how: Negotiated, kind: &ResourceKind) -> Bytes {
        let mut frames = self.frames.lock();
        if let Some(known) = frames.iter().find(|known| (known.0, known.1) == (event, how.format)) {
            return known.2.clone();
        }
        // No table, hence no age: the time does not matter.
        let frame = how.frame(event, kind, self.object.bytes(), Time::from_unix(0), false);
        frames.push((event, how.format, frame.clone()));
        frame
    }
}

// === impl Step ===

impl Step {
    /// Bytes this step is charged in the log's budget.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Change(change) | Self::Unwatched(change) => {
                STEP_OVERHEAD + change.object.size() + change.previous.as_ref().map_or(0, Object::size)
            }
            Self::DiffBegin { .. } | Self::DiffEnd { .. } => STEP_OVERHEAD,
        }
    }
}
