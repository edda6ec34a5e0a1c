//! Format of a file that outlives a power cut: one record with its key and a checksum over both. Pure.
//!
//! ```text
//!   magic (8) │ SHA-256 of the rest (32) │ length of the head (4, big endian) │ head (JSON) │ body
//! ```
//!
//! The file name is a hash of the key, so no part of a request becomes part of a path.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// First bytes of every file; the digit is the version of the layout.
const MAGIC: &[u8; 8] = b"yurtrec1";
/// Bytes of the checksum.
const SUM: usize = 32;
/// Bytes in front of the head.
const FRONT: usize = MAGIC.len() + SUM + 4;
/// Bytes of a file name before it is written in hexadecimal digits.
const NAME: usize = 16;

/// A record: its key, facts about it, and its bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Identifies the record in its folder.
    pub key: String,
    /// Facts about the body.
    pub facts: Value,
    /// The bytes.
    pub body: Bytes,
}

/// Name of a record's file: a hash of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName([u8; NAME]);

#[derive(Serialize, Deserialize)]
struct Head {
    key: String,
    facts: Value,
}

// === impl Record ===

impl Record {
    /// Bytes of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let head = Head {
            key: self.key.clone(),
            facts: self.facts.clone(),
        };
        let head = serde_json::to_vec(&head).unwrap_or_default();
        let mut file = Vec::with_capacity(FRONT + head.len() + self.body.len());
        file.extend_from_slice(MAGIC);
        file.extend_from_slice(&[0; SUM]);
        file.extend_from_slice(&u32::try_from(head.len()).unwrap_or(u32::MAX).to_be_bytes());
        file.extend_from_slice(&head);
        file.extend_from_slice(&self.body);
        let sum = sum(&file[MAGIC.len() + SUM..]);
        file[MAGIC.len()..MAGIC.len() + SUM].copy_from_slice(&sum);
        file
    }

    /// Reads a file. Returns `None` if any byte is missing, added or different.
    #[must_use]
    pub fn decode(file: &Bytes) -> Option<Self> {
        let rest = file.strip_prefix(MAGIC)?;
        let (claimed, rest) = rest.split_at_checked(SUM)?;
        if claimed != sum(rest) {
            return None;
        }
        let head = head_of(file)?;
        let Head { key, facts } = serde_json::from_slice(head).ok()?;
        Some(Self {
            key,
            facts,
            body: file.slice(FRONT + head.len()..),
        })
    }

    /// Reads the key in the first bytes of a file. It is not verified: the checksum covers the body, too.
    #[must_use]
    pub fn key_in(front: &[u8]) -> Option<String> {
        let head: Head = serde_json::from_slice(head_of(front)?).ok()?;
        Some(head.key)
    }
}

// === impl FileName ===

impl FileName {
    /// The file name of the record with this key.
    #[must_use]
    pub fn of(key: &str) -> Self {
        let mut name = [0; NAME];
        name.copy_from_slice(&sum(key.as_bytes())[..NAME]);
        Self(name)
    }

    /// Reads a file name; `None` for a file that is no record.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut name = [0; NAME];
        if text.len() != 2 * NAME || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        for (at, byte) in name.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(name))
    }
}

impl std::fmt::Display for FileName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The head in the first bytes of a file.
fn head_of(front: &[u8]) -> Option<&[u8]> {
    let rest = front.strip_prefix(MAGIC)?.get(SUM..)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    rest.get(..usize::try_from(u32::from_be_bytes(*length)).ok()?)
}

/// SHA-256 of `bytes`.
pub(super) fn sum(bytes: &[u8]) -> [u8; SUM] {
    let mut sum = [0; SUM];
    sum.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref());
    sum
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record() -> Record {
        Record {
            key: "[\"/version\"]".to_owned(),
            facts: json!({"contentType": "application/json"}),
            body: Bytes::from_static(b"{\"major\":\"1\"}"),
        }
    }

    #[test]
    fn record_comes_back_as_it_was() {
        let file = Bytes::from(record().encode());
        assert_eq!(Record::decode(&file), Some(record()));
        let front = &file[..file.len() - record().body.len()];
        assert_eq!(Record::key_in(front), Some(record().key));
        assert_eq!(Record::key_in(&front[..front.len() - 1]), None);
    }

    #[test]
    fn file_cut_at_any_byte_or_with_any_byte_changed_is_no_record() {
        let file = record().encode();
        for length in 0..file.len() {
            assert_eq!(
                Record::decode(&Bytes::copy_from_slice(&file[..length])),
                None,
                "{length}"
            );
            let mut changed = file.clone();
            changed[length] ^= 1;
            assert_eq!(Record::decode(&changed.into()), None, "{length}");
        }
        let longer = [&file[..], b"x"].concat();
        assert_eq!(Record::decode(&longer.into()), None);
    }

    #[test]
    fn file_name_has_nothing_of_the_key() {
        for key in ["../../etc/passwd", "/api/v1/..", "", "a\0b"] {
            let name = FileName::of(key).to_string();
            assert!(name.bytes().all(|b| b.is_ascii_hexdigit()), "{name}");
            assert_eq!(FileName::parse(&name), Some(FileName::of(key)));
        }
        for other in [
            "",
            "..",
            ".tmp",
            "0123",
            "zz000000000000000000000000000000",
            "+1000000000000000000000000000000",
        ] {
            assert_eq!(FileName::parse(other), None, "{other}");
        }
    }
}
