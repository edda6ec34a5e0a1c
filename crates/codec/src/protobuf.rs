//! Kubernetes protobuf: JSON to protobuf and back, driven by the table of [`crate::schema`].
//!
//! Objects are JSON everywhere else. Here the same bytes are rewritten field by field: without structs or a tree. A
//! body is an *envelope* (`k8s\0`, apiVersion, kind, message); an item of a list is the message alone; an event of a
//! watch has an envelope inside ([`frame`]).
//!
//! Content that the other form cannot express is left out. JSON fields the table does not know, and values of the wrong
//! type, are not written to protobuf ([`Encoded::is_partial`]). Unknown protobuf fields are not written to JSON.
//! kube-apiserver of the table's version does the same.
//!
//! ```
//! use yurt_codec::{protobuf, schema};
//!
//! let lease = schema::find("coordination.k8s.io", "v1", "Lease").unwrap();
//! let json = br#"{"metadata":{"name":"a"},"spec":{"leaseDurationSeconds":15}}"#;
//! let encoded = protobuf::encode(lease, json).unwrap();
//! assert_eq!(encoded.bytes, b"\x0a\x03\x0a\x01a\x12\x02\x10\x0f");
//! assert_eq!(protobuf::decode(lease, &encoded.bytes).unwrap(), json);
//! ```

mod cursor;
mod decode;
mod encode;
mod envelope;
mod replace;
mod wire;

#[cfg(test)]
mod tests;

pub use decode::decode;
pub use encode::{Encoded, encode};
pub use envelope::{Envelope, PREFIX, envelope, envelope_head, frame};
pub use replace::replace_text;

pub(crate) use wire::{field_len, put_field};

use crate::schema::{self, Message};
use yurt_apimachinery::{ResourceKind, gvr};

/// Deepest nesting of messages read. The deepest built-in type has about a dozen levels.
pub const MAX_DEPTH: usize = 64;
/// Longest JSON of one message, in bytes: a few bytes of protobuf can represent many fields that JSON spells out.
pub const MAX_JSON: usize = 8 << 20;

/// Bytes that cannot be rewritten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranscodeError {
    /// The body does not begin as an envelope does.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoPrefix,
    /// Nothing at all, or nothing after the prefix.
    #[error("{0}")]
    Empty(&'static str),
    /// A field ends after the bytes do.
    #[error("unexpected EOF")]
    Cut,
    /// A varint of more than ten bytes.
    #[error("proto: integer overflow")]
    Overflow,
    /// A tag or wire type that does not exist, or is not that of the field.
    #[error("proto: {0}")]
    Illegal(String),
    /// Nested above [`MAX_DEPTH`].
    #[error("proto: nested deeper than {MAX_DEPTH} messages")]
    TooDeep,
    /// The result would be above [`MAX_JSON`], or a message has too many fields.
    #[error(
        "the decoded object would be longer than {MAX_JSON} bytes, or has too many list elements; send fewer of them"
    )]
    TooLarge,
    /// The bytes are no JSON object.
    #[error("the object is not JSON")]
    NotJson,
}

/// True if objects of the kind can be written in protobuf: built-in kinds can, custom resources cannot.
pub fn supports(kind: &ResourceKind) -> bool {
    schema::find(&kind.group, &kind.version, &kind.kind).is_some()
}

/// The message of a kind by its apiVersion; kinds of `meta.k8s.io` also under the others as which they travel.
pub fn message(api_version: &str, kind: &str) -> Option<Message> {
    let (group, version) = gvr::split_api_version(api_version);
    let is_meta = match (group, version) {
        ("", "" | "v1") => true,
        ("meta.k8s.io", "v1beta1") if kind == "PartialObjectMetadata" => true,
        // client-go writes them in the version of the deleted object.
        _ => kind == "DeleteOptions",
    };
    let own = schema::find(group, version, kind);
    own.or_else(|| schema::find("meta.k8s.io", "v1", kind).filter(|_| is_meta))
}
