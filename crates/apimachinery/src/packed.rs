//! Bodies of objects in a file or in memory: as they are, or deflated. In a file a deflated one may have a head. The
//! first byte tells them apart; JSON begins with neither.
//!
//! ```text
//!   {"kind":…                        as it is
//!   1 │ length │ deflate              the length of the plain text (RFC 1951)
//!   2 │ CRC-32 │ length │ head │ 1 …  the length of the head, and a deflated body; the CRC covers all that follows it
//! ```
//!
//! CRC and length of the text have four bytes, the length of the head two, the lowest byte first.

use std::cell::RefCell;

use bytes::Bytes;
use flate2::{Compress, Compression, Crc, Decompress, FlushCompress, FlushDecompress, Status};

/// First byte of a deflated body.
const DEFLATED: u8 = 1;
/// First byte of a deflated body with a head.
const HEADED: u8 = 2;
/// Bytes before the deflated text.
const HEADER: usize = 1 + size_of::<u32>();
/// Bytes before a head: the first byte, the CRC, the head's length.
const HEAD_HEADER: usize = HEADER + size_of::<u16>();
/// Minimum bytes of a body that is deflated. Shorter ones are read more often than they are worth, and a start would
/// inflate each of them.
pub const LEAST: usize = 2048;
/// Maximum bytes of a plain body. etcd accepts 1.5 MiB, and JSON of protobuf may be some times as long.
const PLAIN_MAX: usize = 64 << 20;
/// A disk is slower than this level.
const LEVEL: Compression = Compression::new(2);

thread_local! {
    /// The state of inflating, some 50 KiB for each thread: to make it takes as long as to inflate a body.
    static STREAM: RefCell<Decompress> = RefCell::new(Decompress::new(false));
}

/// Head and deflated body of a row.
pub type HeadAndBody<'a> = (&'a [u8], &'a [u8]);

/// Packs bodies; takes about 300 KiB from the first one on, and the bytes of the longest one.
#[derive(Default)]
pub struct Packer {
    stream: Option<Compress>,
    /// The row before it is allocated. A row that is shrunk from the size of its text stays where that text fits, so
    /// each would keep a page of its own from the kernel.
    row: Vec<u8>,
}

// === impl Packer ===

impl Packer {
    /// The row for `text`: deflated if it is long, and if that makes it shorter.
    pub fn row(&mut self, text: &Bytes) -> Bytes {
        let is_ambiguous = is_deflated(text);
        let length = u32::try_from(text.len()).ok().filter(|_| text.len() <= PLAIN_MAX);
        let Some(length) = length.filter(|_| is_ambiguous || text.len() >= LEAST) else {
            return text.clone();
        };
        let stream = self.stream.get_or_insert_with(|| Compress::new(LEVEL, false));
        stream.reset();
        let row = &mut self.row;
        row.clear();
        // Deflate stores what it cannot compress: five bytes for each block.
        row.reserve(HEADER + text.len() + text.len() / 1024 + 64);
        row.push(DEFLATED);
        row.extend_from_slice(&length.to_le_bytes());
        let done = stream.compress_vec(text, row, FlushCompress::Finish);
        let is_shorter = matches!(done, Ok(Status::StreamEnd)) && row.len() < text.len();
        match is_shorter || is_ambiguous {
            true => Bytes::copy_from_slice(row),
            false => text.clone(),
        }
    }
}

/// The deflated `body` with `head`; `None` if the head is too long, or the body is not deflated.
#[must_use]
pub fn with_head(head: &[u8], body: &[u8]) -> Option<Bytes> {
    let length = u16::try_from(head.len()).ok().filter(|_| is_packed(body))?;
    let mut row = Vec::with_capacity(HEAD_HEADER + head.len() + body.len());
    row.push(HEADED);
    row.extend_from_slice(&[0; size_of::<u32>()]);
    row.extend_from_slice(&length.to_le_bytes());
    row.extend_from_slice(head);
    row.extend_from_slice(body);
    let sum = checksum(&row[HEADER..]);
    row[1..HEADER].copy_from_slice(&sum.to_le_bytes());
    Some(row.into())
}

/// Head and deflated body of a row that has both, whose checksum is right.
///
/// # Errors
/// The row is damaged.
pub fn split_head(row: &[u8]) -> Result<Option<HeadAndBody<'_>>, String> {
    if row.first() != Some(&HEADED) {
        return Ok(None);
    }
    let (Some(parts), Some(sum)) = (head_and_body(row), row.get(1..HEADER)) else {
        return Err("a deflated body with half a head".to_owned());
    };
    if checksum(&row[HEADER..]).to_le_bytes() != sum {
        return Err("its checksum is wrong".to_owned());
    }
    Ok(Some(parts))
}

/// The body of a row.
///
/// # Errors
/// The row is damaged.
pub fn unpack(row: &Bytes) -> Result<Bytes, String> {
    let body = split_head(row)?.map_or(&**row, |(_, body)| body);
    let Some((length, deflated)) = split(body) else {
        return Ok(row.clone());
    };
    if length > PLAIN_MAX {
        return Err(format!("a deflated body of {length} bytes"));
    }
    let mut body = Vec::with_capacity(length);
    let inflated = STREAM.with_borrow_mut(|stream| {
        stream.reset(false);
        stream.decompress_vec(deflated, &mut body, FlushDecompress::Finish)
    });
    match inflated {
        // The end of a text that is longer than announced is not reached.
        Ok(Status::StreamEnd) if body.len() == length => Ok(body.into()),
        Ok(_) => Err(format!("its deflated body has not the announced {length} bytes")),
        Err(error) => Err(format!("its deflated body: {error}")),
    }
}

/// `row` without its head, if it has one; its memory is shared.
#[must_use]
pub fn without_head(row: &Bytes) -> Bytes {
    head_and_body(row).map_or_else(|| row.clone(), |(_, body)| row.slice_ref(body))
}

/// True for a row that is deflated, with a head or without.
#[must_use]
pub fn is_deflated(row: &[u8]) -> bool {
    matches!(row.first(), Some(&(DEFLATED | HEADED)))
}

/// True for a deflated body without a head.
#[must_use]
pub fn is_packed(row: &[u8]) -> bool {
    row.first() == Some(&DEFLATED)
}

/// Bytes of the body of a row, as announced there.
#[must_use]
pub fn plain_len(row: &[u8]) -> usize {
    let row = head_and_body(row).map_or(row, |(_, body)| body);
    split(row).map_or(row.len(), |(length, _)| length)
}

/// Head and body of a row that has both, unchecked.
fn head_and_body(row: &[u8]) -> Option<HeadAndBody<'_>> {
    let (header, rest) = row.split_at_checked(HEAD_HEADER)?;
    let length = header[HEADER..].try_into().ok().filter(|_| header[0] == HEADED)?;
    let parts = rest.split_at_checked(usize::from(u16::from_le_bytes(length)))?;
    Some(parts).filter(|(_, body)| split(body).is_some())
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut sum = Crc::new();
    sum.update(bytes);
    sum.sum()
}

/// Length of the plain text, and the deflated one; `None` for a body as it is.
fn split(row: &[u8]) -> Option<(usize, &[u8])> {
    let (header, deflated) = row.split_at_checked(HEADER)?;
    let (first, length) = header.split_first()?;
    let length = length.try_into().ok().filter(|_| *first == DEFLATED)?;
    Some((
        usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX),
        deflated,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(body: &[u8]) -> Bytes {
        Packer::default().row(&Bytes::copy_from_slice(body))
    }

    #[test]
    fn every_body_comes_back() {
        let noise: Vec<u8> = (0..100_000_u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        let text = br#"{"addresses":["10.0.0.1"]}"#.repeat(1000);
        let ambiguous = [&[DEFLATED][..], &noise[..600]].concat();
        let headed = [&[HEADED][..], &noise[..600]].concat();
        let bodies = [
            &b""[..],
            b"{}",
            &[DEFLATED],
            &[HEADED],
            &noise,
            &text,
            &ambiguous,
            &headed,
        ];
        let mut packer = Packer::default();
        for body in bodies {
            let row = packer.row(&Bytes::copy_from_slice(body));
            assert_eq!((unpack(&row).unwrap().as_ref(), plain_len(&row)), (body, body.len()));
        }
        assert!(packed(&text).len() * 20 < text.len());
        assert_eq!(packed(b"{}"), "{}", "small ones stay as they are");
    }

    #[test]
    fn row_with_a_head_has_both() {
        let text = br#"{"addresses":["10.0.0.1"]}"#.repeat(1000);
        let body = packed(&text);
        for head in [&b""[..], b"{}", &[HEADED; 0xffff]] {
            let row = with_head(head, &body).unwrap();
            assert_eq!(split_head(&row), Ok(Some((head, &*body))));
            assert_eq!((unpack(&row).unwrap().as_ref(), plain_len(&row)), (&*text, text.len()));
            assert!(!is_packed(&row));
        }
        assert_eq!(with_head(&[0; 0x1_0000], &body), None, "too long");
        assert_eq!(with_head(b"", b"{}"), None, "not deflated");
        for row in [&body, &Bytes::from_static(b"{}"), &Bytes::new()] {
            assert_eq!(split_head(row), Ok(None));
        }
    }

    #[test]
    fn each_damaged_byte_of_a_row_with_a_head_is_found() {
        let row = with_head(b"head", &packed(&br#"{"addresses":["10.0.0.1"]}"#.repeat(100))).unwrap();
        for at in 1..row.len() {
            let mut damaged = row.to_vec();
            damaged[at] ^= 0x10;
            assert!(split_head(&damaged).is_err(), "{at}");
            assert!(unpack(&damaged.into()).is_err(), "{at}");
            assert!(split_head(&row[..at]).is_err(), "{at}");
        }
    }

    #[test]
    fn damaged_row_is_an_error_of_bounded_cost() {
        let text = br#"{"addresses":["10.0.0.1"]}"#.repeat(100);
        let row = packed(&text);
        for length in [0, 1, text.len() - 1, text.len() + 1, PLAIN_MAX + 1, usize::MAX] {
            let mut lies = row.to_vec();
            lies[1..HEADER].copy_from_slice(&(length as u32).to_le_bytes());
            assert!(unpack(&lies.into()).is_err(), "{length}");
        }
        for cut in [HEADER, row.len() / 2, row.len() - 1] {
            assert!(unpack(&row.slice(..cut)).is_err(), "{cut}");
        }
    }
}
