//! Keys, varints and lengths.

use super::TranscodeError;

/// Type of a value that follows its key.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Raw<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 2.
    Bytes(&'a [u8]),
    /// Wire types 1 and 5, which no field of the table has.
    Fixed,
}

/// Walks the fields of one message.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

/// Length of a number as varint.
pub(super) fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Appends a varint.
#[inline]
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the key of a field that has a length.
pub(super) fn put_key(out: &mut Vec<u8>, number: u32) {
    put_varint(out, u64::from(number) << 3 | 2);
}

/// Appends a field of bytes.
pub(crate) fn put_field(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    put_key(out, number);
    put_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Length of a field of `len` bytes, its key included.
pub(crate) fn field_len(number: u32, len: usize) -> usize {
    varint_len(u64::from(number) << 3) + varint_len(len as u64) + len
}

/// Appends a field with a number.
pub(super) fn put_number(out: &mut Vec<u8>, number: u32, value: u64) {
    put_varint(out, u64::from(number) << 3);
    put_varint(out, value);
}

/// Begins a field whose length is not known yet; give the answer to [`end`].
pub(super) fn begin(out: &mut Vec<u8>, number: u32) -> usize {
    put_key(out, number);
    out.push(0);
    out.len()
}

/// Ends a field that began at `start`.
pub(super) fn end(out: &mut Vec<u8>, start: usize) {
    let len = out.len() - start;
    let mut extra = varint_len(len as u64) - 1;
    if extra > 0 {
        out.resize(out.len() + extra, 0);
        out.copy_within(start..start + len, start + extra);
    }
    let (mut at, mut rest) = (start - 1, len);
    while extra > 0 {
        out[at] = (rest & 0x7f) as u8 | 0x80;
        rest >>= 7;
        at += 1;
        extra -= 1;
    }
    out[at] = rest as u8;
}

/// Takes a varint from the front.
pub(super) fn take_varint(rest: &mut &[u8]) -> Result<u64, TranscodeError> {
    let mut value = 0_u64;
    for at in 0..10 {
        let byte = *rest.get(at).ok_or(TranscodeError::Cut)?;
        // The tenth byte has room for one bit; Go drops the others, too.
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            *rest = &rest[at + 1..];
            return Ok(value);
        }
    }
    Err(TranscodeError::Overflow)
}

// === impl Fields ===

impl<'a> Fields<'a> {
    /// The fields of a message.
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Bytes that are not read yet.
    pub(super) fn rest_len(&self) -> usize {
        self.rest.len()
    }

    fn take(&mut self) -> Result<(u32, Raw<'a>), TranscodeError> {
        let key = take_varint(&mut self.rest)?;
        let illegal = |what: String| TranscodeError::Illegal(what);
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0);
        let number = number.ok_or_else(|| illegal(format!("illegal tag {} (wire type {})", key >> 3, key & 7)))?;
        let value = match key & 7 {
            0 => Raw::Varint(take_varint(&mut self.rest)?),
            1 => self.bytes(8).map(|_| Raw::Fixed)?,
            2 => {
                let len = take_varint(&mut self.rest)?;
                let len = usize::try_from(len).map_err(|_| TranscodeError::Cut)?;
                Raw::Bytes(self.bytes(len)?)
            }
            5 => self.bytes(4).map(|_| Raw::Fixed)?,
            other => return Err(illegal(format!("illegal wireType {other}"))),
        };
        Ok((number, value))
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], TranscodeError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(TranscodeError::Cut)?;
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Raw<'a>), TranscodeError>;

    /// Number and value of the next field; after an error nothing more.
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let taken = self.take();
        if taken.is_err() {
            self.rest = &[];
        }
        Some(taken)
    }
}
