//! Layout of the generated table: numbers only, so that it is part of the program file, is shared between processes and
//! needs no work at the start.

use super::FieldType;

/// A row of `MESSAGES`.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedMessage {
    pub(super) name: Word,
    pub(super) first: u16,
    pub(super) count: u16,
    pub(super) is_atomic: bool,
}

/// A row of `FIELDS`.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedField {
    pub(super) name: Word,
    pub(super) number: u16,
    pub(super) ty: FieldType,
    pub(super) message: u16,
    pub(super) flags: u16,
    pub(super) merge_key: Word,
    pub(super) keys: Word,
}

/// Place and length in `NAMES`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) at: u16,
    pub(super) len: u8,
}

// The generator has the same list.
pub(super) const LIST: u16 = 1 << 0;
pub(super) const MAP: u16 = 1 << 1;
pub(super) const POINTER: u16 = 1 << 2;
pub(super) const INLINE: u16 = 1 << 3;
pub(super) const EMITS_ZERO: u16 = 1 << 4;
pub(super) const PATCH_MERGE: u16 = 1 << 5;
pub(super) const PATCH_RETAIN_KEYS: u16 = 1 << 6;
pub(super) const PATCH_REPLACE: u16 = 1 << 7;
pub(super) const APPLY_SET: u16 = 1 << 8;
pub(super) const APPLY_KEYED: u16 = 1 << 9;
pub(super) const APPLY_ATOMIC: u16 = 1 << 10;

/// A message: name, first field, number of fields.
pub(super) const fn m(at: u16, len: u8, first: u16, count: u16) -> PackedMessage {
    PackedMessage {
        name: Word { at, len },
        first,
        count,
        is_atomic: false,
    }
}

/// A message that server-side apply replaces as a whole: as [`m`].
pub(super) const fn a(at: u16, len: u8, first: u16, count: u16) -> PackedMessage {
    PackedMessage {
        is_atomic: true,
        ..m(at, len, first, count)
    }
}

/// A field: name, number, type, message, flags, strategic merge key, apply keys.
#[allow(clippy::too_many_arguments)] // one call per row of the table: names would treble its length
pub(super) const fn f(
    at: u16,
    len: u8,
    number: u16,
    ty: FieldType,
    message: u16,
    flags: u16,
    merge_at: u16,
    merge_len: u8,
    keys_at: u16,
    keys_len: u8,
) -> PackedField {
    PackedField {
        name: Word { at, len },
        number,
        ty,
        message,
        flags,
        merge_key: Word {
            at: merge_at,
            len: merge_len,
        },
        keys: Word {
            at: keys_at,
            len: keys_len,
        },
    }
}
