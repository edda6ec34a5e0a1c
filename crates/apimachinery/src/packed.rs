//! Bodies of objects in a file or in memory: as they are, or deflated. The first byte is that of a deflated one; JSON
//! never begins with it.
//!
//! ```text
//!   {"kind":…            as it is
//!   1 │ length │ deflate  the length of the plain text in four bytes, the lowest first (RFC 1951)
//! ```

use std::cell::RefCell;

use bytes::Bytes;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// First byte of a deflated body.
const DEFLATED: u8 = 1;
/// Bytes before the deflated text.
const HEADER: usize = 1 + size_of::<u32>();
/// Minimum bytes of a body that is deflated. The rows of a page share it, so less would save nothing.
const LEAST: usize = 512;
/// Maximum bytes of a plain body. etcd accepts 1.5 MiB, and JSON of protobuf may be some times as long.
const PLAIN_MAX: usize = 64 << 20;
/// A disk is slower than this level.
const LEVEL: Compression = Compression::new(2);

thread_local! {
    /// The state of inflating, some 50 KiB for each thread: to make it takes as long as to inflate a body.
    static STREAM: RefCell<Decompress> = RefCell::new(Decompress::new(false));
}

/// Packs bodies; takes about 300 KiB from the first one on, and the bytes of the longest one.
#[derive(Default)]
pub struct Packer {
    stream: Option<Compress>,
    /// The row before it is allocated. A row that is shrunk from the size of its text stays where that text fits, so each
    /// would keep a page of its own from the kernel.
    row: Vec<u8>,
}

// === impl Packer ===

impl Packer {
    /// The row for `text`: deflated if it is long, and if that makes it shorter.
    pub fn row(&mut self, text: &Bytes) -> Bytes {
        let is_ambiguous = is_packed(text);
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

/// The body of a row.
///
/// # Errors
/// The row is damaged.
pub fn unpack(row: &Bytes) -> Result<Bytes, String> {
    let Some((length, deflated)) = split(row) else {
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

/// True for a deflated body.
#[must_use]
pub fn is_packed(row: &[u8]) -> bool {
    row.first() == Some(&DEFLATED)
}

/// Bytes of the body of a row, as announced there.
#[must_use]
pub fn plain_len(row: &[u8]) -> usize {
    split(row).map_or(row.len(), |(length, _)| length)
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
        let bodies = [&b""[..], b"{}", &[DEFLATED], &noise, &text, &ambiguous];
        let mut packer = Packer::default();
        for body in bodies {
            let row = packer.row(&Bytes::copy_from_slice(body));
            assert_eq!((unpack(&row).unwrap().as_ref(), plain_len(&row)), (body, body.len()));
        }
        assert!(packed(&text).len() * 20 < text.len());
        assert_eq!(packed(b"{}"), "{}", "small ones stay as they are");
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
