//! The frames of a watch in JSON: one document per line. Crate `yurt-codec` writes other formats.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::json_text;
use crate::status::Status;

mod bookmark;
mod decoder;

pub use bookmark::Bookmark;
pub use decoder::{DecodeError, MAX_FRAME, RawEvent, WatchDecoder};

/// Annotation of the bookmark that ends the initial events.
pub const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Type of an event, by the change of its object.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum EventType {
    /// The object is new, or newly matches.
    Added,
    /// The object changed.
    Modified,
    /// The object is deleted, or no longer matches; the event has its last state with the version of the deletion.
    Deleted,
    /// No change: everything up to this version has been sent.
    Bookmark,
    /// The stream has ended; the object is a Status.
    Error,
}

// === impl EventType ===

impl EventType {
    /// The type in frames.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
            Self::Bookmark => "BOOKMARK",
            Self::Error => "ERROR",
        }
    }

    /// The type with this name in frames; `None` if there is none.
    fn parse(name: &[u8]) -> Option<Self> {
        let all = [Self::Added, Self::Modified, Self::Deleted, Self::Bookmark, Self::Error];
        all.into_iter().find(|one| one.as_str().as_bytes() == name)
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One frame: the event on one line, with its line break.
pub fn frame(event_type: EventType, object: &Bytes) -> Bytes {
    let object = json_text::single_line(object.clone());
    let head = format!("{{\"type\":\"{event_type}\",\"object\":");
    [head.as_bytes(), &object, b"}\n"].concat().into()
}

/// The last frame of a stream that failed.
pub fn error_frame(status: &Status) -> Bytes {
    frame(EventType::Error, &status.to_json())
}

#[cfg(test)]
mod tests;
