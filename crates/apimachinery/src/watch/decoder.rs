//! Reading a watch stream of another server.

use bytes::{Buf, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::EventType;

/// Longest frame accepted, client-go's limit too.
pub const MAX_FRAME: usize = 16 * 1024 * 1024;

/// Splits a byte stream into events. Feed it with [`WatchDecoder::push`] and drain it as an iterator after each push;
/// it yields `None` while a frame is incomplete. After an error it yields nothing more: the rest of the stream is
/// unreliable.
#[derive(Debug, Default)]
pub struct WatchDecoder {
    buffer: BytesMut,
    /// Number of bytes of the buffer that were searched for a line break.
    searched: usize,
    failed: bool,
}

/// One event; its object is not parsed yet, and may be no JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawEvent {
    /// Type of the event.
    pub event_type: EventType,
    /// The object's bytes: an object of the kind, a bookmark or a Status.
    pub object: Bytes,
}

/// A stream that is no watch.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// A line above [`MAX_FRAME`].
    #[error("a watch frame is longer than {MAX_FRAME} bytes")]
    TooLong,
    /// A line that is no event, or an event of an unknown type.
    #[error("a watch frame cannot be read: {0}")]
    Json(#[from] serde_json::Error),
}

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(rename = "type")]
    event_type: EventType,
    #[serde(borrow)]
    object: &'a RawValue,
}

// === impl WatchDecoder ===

impl WatchDecoder {
    /// A decoder at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        if !self.failed {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// Bytes of a frame that is not complete yet. Above zero at the end of a stream, the stream was cut.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    fn next_line(&mut self) -> Option<Result<Bytes, DecodeError>> {
        loop {
            let found = memchr::memchr(b'\n', &self.buffer[self.searched..]);
            let Some(length) = found.map(|at| self.searched + at) else {
                self.searched = self.buffer.len();
                return (self.searched > MAX_FRAME).then_some(Err(DecodeError::TooLong));
            };
            self.searched = 0;
            if length > MAX_FRAME {
                return Some(Err(DecodeError::TooLong));
            }
            // A separate copy: a stored object must not keep the whole read buffer alive.
            let line = Bytes::copy_from_slice(self.buffer[..length].trim_ascii());
            self.buffer.advance(length + 1);
            if !line.is_empty() {
                return Some(Ok(line));
            }
        }
    }
}

impl Iterator for WatchDecoder {
    type Item = Result<RawEvent, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let event = self.next_line()?.and_then(|line| RawEvent::parse(&line));
        if event.is_err() {
            self.failed = true;
            self.buffer = BytesMut::new();
        }
        Some(event)
    }
}

// === impl RawEvent ===

impl RawEvent {
    /// Reads one line.
    fn parse(line: &Bytes) -> Result<Self, DecodeError> {
        if let Some(event) = Self::split(line) {
            return Ok(event);
        }
        let frame: Frame<'_> = crate::mapping::from_slice(line)?;
        Ok(Self {
            event_type: frame.event_type,
            object: line.slice_ref(frame.object.get().as_bytes()),
        })
    }
    /// Splits a line in the form of apiservers, without a look at the object: its parser checks the text once.
    fn split(line: &Bytes) -> Option<Self> {
        let rest = line.strip_prefix(br#"{"type":""#)?;
        let (event_type, rest) = rest.split_at(memchr::memchr(b'"', rest)?);
        let object = rest.strip_prefix(br#"","object":"#)?.strip_suffix(b"}")?;
        let is_object = object.starts_with(b"{") && object.ends_with(b"}");
        Some(Self {
            event_type: EventType::parse(event_type)?,
            object: is_object.then(|| line.slice_ref(object))?,
        })
    }
}
