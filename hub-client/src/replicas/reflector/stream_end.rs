//! Reasons for the end of a stream.

use std::time::Duration;

use http::StatusCode;

use crate::replicas::budget::Oversized;

/// Reason for the end of a stream.
#[derive(Debug)]
pub enum StreamEnd {
    /// Normal end: watch again from the last position.
    Closed,
    /// The server is down: the stream goes on at another one, if there is one.
    ServerDown,
    /// The server has compacted our position.
    Expired,
    /// The server asks to retry later, after this time if it sent one.
    NotReady(Option<Duration>),
    /// The server refused; the text is its reason.
    Refused(String),
    /// As [`Self::Refused`], because of the credential (401, 403) or because there is no such resource (404).
    Denied(StatusCode, String),
    /// The server's data exceeds the limit of bytes of all replicas.
    Oversized(Oversized),
    /// The disk does not store the mark that the server's next change needs; the text has the details.
    Unstored(String),
    /// The server has another generation than the replica: list.
    OtherHistory,
    /// Another source began another generation of the replica: this stream's data does not belong to it.
    Overtaken,
    /// The server sent unreadable data; the text has the details.
    Unreadable(String),
    /// The server keeps the watch open and sends nothing, or does not end it; the text is for the log.
    Silent(String),
    /// Any other reason; the text is for the log.
    Failed(String),
    /// As [`Self::Failed`], but some received data is kept.
    Interrupted(String),
}

// === impl StreamEnd ===

impl StreamEnd {
    /// True if the next stream may begin at once.
    pub(crate) fn is_normal(&self) -> bool {
        matches!(self, Self::Closed | Self::Overtaken | Self::OtherHistory)
    }

    /// True if the source can no longer be followed as it is.
    pub(crate) fn loses_source(&self) -> bool {
        matches!(
            self,
            Self::Failed(_)
                | Self::Silent(_)
                | Self::Refused(_)
                | Self::Denied(..)
                | Self::Oversized(_)
                | Self::Unstored(_)
                | Self::Unreadable(_)
                // A list follows, which may take minutes.
                | Self::Expired
                | Self::Interrupted(_)
        )
    }

    /// True if the server may have ended the stream because it has another history, so that a proof is needed. False if
    /// the server gave a reason or the hub ended the stream: a resource that is refused for days would otherwise cause
    /// permanent proofs.
    pub(super) fn may_be_of_the_history(&self) -> bool {
        match self {
            Self::NotReady(_)
            | Self::ServerDown
            | Self::Overtaken
            | Self::Refused(_)
            | Self::Denied(..)
            | Self::Oversized(_)
            | Self::Unstored(_)
            | Self::Unreadable(_) => false,
            Self::Closed
            | Self::Expired
            | Self::OtherHistory
            | Self::Silent(_)
            | Self::Failed(_)
            | Self::Interrupted(_) => true,
        }
    }
}
