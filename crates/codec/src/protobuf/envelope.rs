//! Wrappers of a message: the envelope of a body, the frame of an event.

use super::wire::{Fields, Raw, put_field, put_key, put_varint, varint_len};
use super::{TranscodeError, message};
use crate::schema::Message;
use yurt_apimachinery::watch::EventType;

/// First bytes of every body.
pub const PREFIX: &[u8; 4] = b"k8s\0";

/// A body taken apart (`runtime.Unknown`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// `apiVersion`; empty if the client left it out.
    pub api_version: &'a str,
    /// `kind`; empty if the client left it out.
    pub kind: &'a str,
    /// The message.
    pub raw: &'a [u8],
}

// === impl Envelope ===

impl<'a> Envelope<'a> {
    /// Takes a body apart.
    ///
    /// # Errors
    ///
    /// When the prefix is missing or the rest is no message.
    pub fn parse(body: &'a [u8]) -> Result<Self, TranscodeError> {
        if body.is_empty() {
            return Err(TranscodeError::Empty("empty data"));
        }
        let rest = body.strip_prefix(PREFIX).ok_or(TranscodeError::NoPrefix)?;
        if rest.is_empty() {
            return Err(TranscodeError::Empty("empty body"));
        }
        let mut envelope = Self::default();
        for field in Fields::of(rest) {
            match field? {
                (1, Raw::Bytes(type_meta)) => envelope.read_type(type_meta)?,
                (2, Raw::Bytes(raw)) => envelope.raw = raw,
                (1 | 2, _) => return Err(TranscodeError::Illegal("wrong wireType in the envelope".to_owned())),
                _ => {}
            }
        }
        Ok(envelope)
    }

    /// The type of the message.
    pub fn message(&self) -> Option<Message> {
        message(self.api_version, self.kind)
    }

    fn read_type(&mut self, type_meta: &'a [u8]) -> Result<(), TranscodeError> {
        let text = |bytes: &'a [u8]| {
            std::str::from_utf8(bytes).map_err(|_| TranscodeError::Illegal("a type that is not UTF-8".to_owned()))
        };
        for field in Fields::of(type_meta) {
            match field? {
                (1, Raw::Bytes(api_version)) => self.api_version = text(api_version)?,
                (2, Raw::Bytes(kind)) => self.kind = text(kind)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// The body of a message.
pub fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut out = envelope_head(api_version, kind, raw.len());
    out.reserve_exact(raw.len());
    out.extend_from_slice(raw);
    out
}

/// Bytes before a message of `len` bytes in a body; nothing follows the message.
pub fn envelope_head(api_version: &str, kind: &str, len: usize) -> Vec<u8> {
    let mut type_meta = Vec::with_capacity(api_version.len() + kind.len() + 4);
    put_field(&mut type_meta, 1, api_version.as_bytes());
    put_field(&mut type_meta, 2, kind.as_bytes());
    let mut out = Vec::with_capacity(PREFIX.len() + type_meta.len() + 12);
    out.extend_from_slice(PREFIX);
    put_field(&mut out, 1, &type_meta);
    put_key(&mut out, 2);
    put_varint(&mut out, len as u64);
    out
}

/// An event of a watch: four bytes of length, most significant first, and a `WatchEvent` without envelope; `body` is
/// the object with its envelope.
pub fn frame(event_type: EventType, body: &[u8]) -> Vec<u8> {
    let word = event_type.as_str();
    let inner = 1 + varint_len(body.len() as u64) + body.len();
    let len = 2 + word.len() + 1 + varint_len(inner as u64) + inner;
    let mut out = Vec::with_capacity(4 + len);
    out.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    put_field(&mut out, 1, word.as_bytes());
    put_key(&mut out, 2);
    put_varint(&mut out, inner as u64);
    put_field(&mut out, 1, body);
    out
}
