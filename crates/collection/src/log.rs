//! The tail of recent steps: exact history, with each event encoded at most once per format and event type.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion};
use yurt_codec::negotiation::{Format, Negotiated};

/// Overhead in bytes counted for one step, in addition to the objects it holds.
const STEP_OVERHEAD: usize = 160;

/// Kind of a change of one key.
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
    /// Kind of the change.
    pub kind: ChangeKind,
    /// New state, or the last state carrying the deletion's RV.
    pub object: Object,
    /// State before the change, if the object was held; selectors decide transitions with it.
    pub previous: Option<Object>,
    /// True if the change is part of a step, which contains the last state of each key: other states may have come
    /// after `previous`.
    pub is_conflated: bool,
    /// Frames encoded so far: one or two of the few possible ones.
    frames: Mutex<Vec<(EventType, Format, Bytes)>>,
}

/// One entry of the log.
#[derive(Clone, Debug)]
pub enum Step {
    /// A change with an RV of its own.
    Change(Arc<Change>),
    /// Begin of a step up to the matching [`Step::DiffEnd`], which leads to `to` as a whole. It contains only the last
    /// state of each key, so between two of its changes the state of the other keys is undefined.
    DiffBegin {
        /// Position after the step.
        to: ResourceVersion,
    },
    /// An unwatched deletion: it has no RV, so it carries the position that every reader already has.
    Unwatched(Arc<Change>),
    /// End of a step; `C` is `to` from here on.
    DiffEnd {
        /// Position after the step.
        to: ResourceVersion,
        /// True if it results from comparing lists: objects may have come and gone unseen.
        jumped: bool,
    },
}

// === impl Change ===

impl Change {
    /// A change to `object`. `previous` is the state before; `is_conflated` says that states between may be missing.
    #[must_use]
    pub fn new(kind: ChangeKind, object: Object, previous: Option<Object>, is_conflated: bool) -> Arc<Self> {
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

    /// The watch frame of this change's object as `event`, for clients that accept the shared form
    /// ([`Negotiated::is_shared`]). It is encoded on first use and shared afterwards.
    #[must_use]
    pub fn frame(&self, event: EventType, how: Negotiated, kind: &ResourceKind) -> Bytes {
        let mut frames = self.frames.lock();
        if let Some(known) = frames.iter().find(|known| (known.0, known.1) == (event, how.format)) {
            return known.2.clone();
        }
        // Without a table no age is written, so the time does not matter.
        let frame = how.frame(event, kind, &self.object.bytes(), Time::from_unix(0), false);
        frames.push((event, how.format, frame.clone()));
        frame
    }
}

// === impl Step ===

impl Step {
    /// Bytes that this step counts in the log's budget.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Change(change) | Self::Unwatched(change) => {
                STEP_OVERHEAD + change.object.size() + change.previous.as_ref().map_or(0, Object::size)
            }
            Self::DiffBegin { .. } | Self::DiffEnd { .. } => STEP_OVERHEAD,
        }
    }
}
