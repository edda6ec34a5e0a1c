//! Pieces of a gzip stream that are compressed one by one. Each is compressed alone, or against a text that is known to
//! precede it. A piece that is sent often is compressed once. Sources: RFC 1951, RFC 1952.
//!
//! ```text
//!   HEAD │ piece │ piece │ … │ END │ crc32, length of the plain text
//! ```

use bytes::Bytes;
use flate2::{Compress, Compression, Crc, FlushCompress, Status};

/// Header of every gzip stream: deflate, no name, no time, the fastest level, an unknown system.
pub const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];
/// The last block: stored, empty.
const END: [u8; 5] = [1, 0, 0, 0xff, 0xff];
/// Most bytes of one stored block.
const STORED_MAX: usize = 0xffff;
/// Room that is added while a piece is compressed.
const ROOM: usize = 4 << 10;
/// Distance in bytes that a piece can refer back.
pub const WINDOW: usize = 32 << 10;
/// Level of whole answers. The level below it produces a third more output from its input, and more than kube-apiserver
/// sends.
pub const FAST: u32 = 2;
/// Level of pieces that are compressed once and sent to many.
const THOROUGH: u32 = 6;

/// A piece, compressed: whole deflate blocks that end at a byte, and none of them the last.
#[derive(Debug)]
pub struct Deflated {
    /// The blocks.
    pub blocks: Bytes,
    crc: Crc,
}

/// Compresses pieces; takes about 300 KiB from the first one on.
#[derive(Debug)]
pub struct Compressor {
    stream: Option<Compress>,
    level: Compression,
}

/// Running checksum and length of the pieces sent so far, for the trailer of the stream.
#[derive(Debug, Default)]
pub struct Sum(Crc);

// === impl Compressor ===

impl Default for Compressor {
    fn default() -> Self {
        Self::fast()
    }
}

impl Compressor {
    /// A compressor at level [`FAST`].
    pub const fn fast() -> Self {
        Self {
            stream: None,
            level: Compression::new(FAST),
        }
    }

    /// A compressor that takes three times as long and produces smaller output.
    pub const fn thorough() -> Self {
        Self {
            stream: None,
            level: Compression::new(THOROUGH),
        }
    }

    /// Compresses a piece that may come anywhere.
    pub fn deflate(&mut self, plain: &[u8]) -> Deflated {
        self.deflate_after(b"", plain)
    }

    /// Compresses a piece that comes right after `before`, and nowhere else.
    pub fn deflate_after(&mut self, before: &[u8], plain: &[u8]) -> Deflated {
        let level = self.level;
        let deflate = self.stream.get_or_insert_with(|| Compress::new(level, false));
        deflate.reset();
        let window = before.get(before.len().saturating_sub(WINDOW)..).unwrap_or_default();
        if !window.is_empty() && deflate.set_dictionary(window).is_err() {
            // Without one it is only longer.
            deflate.reset();
        }
        let mut blocks = Vec::with_capacity(plain.len() / 8 + ROOM);
        loop {
            let taken = usize::try_from(deflate.total_in()).unwrap_or(usize::MAX);
            let rest = plain.get(taken..).unwrap_or_default();
            let flushed = deflate.compress_vec(rest, &mut blocks, FlushCompress::Sync);
            // Room left over means that all output is written.
            match flushed {
                Ok(Status::Ok) if blocks.len() == blocks.capacity() => blocks.reserve(ROOM),
                Ok(_) => break,
                // The stream is new and the flush valid, so compression cannot fail.
                Err(_) => return stored(plain),
            }
        }
        Deflated {
            blocks: blocks.into_boxed_slice().into(),
            crc: sum_of(plain),
        }
    }
}

// === impl Sum ===

impl Sum {
    /// Counts a piece that was sent.
    pub fn add(&mut self, piece: &Deflated) {
        self.0.combine(&piece.crc);
    }

    /// Trailer of the stream.
    pub fn end(&self) -> Bytes {
        [&END[..], &self.0.sum().to_le_bytes(), &self.0.amount().to_le_bytes()]
            .concat()
            .into()
    }
}

/// A piece stored without compression, for short texts.
pub fn stored(plain: &[u8]) -> Deflated {
    let mut blocks = Vec::with_capacity(plain.len() + 5);
    for part in plain.chunks(STORED_MAX) {
        // A chunk is never longer than that.
        let len = u16::try_from(part.len()).unwrap_or(u16::MAX);
        blocks.push(0);
        blocks.extend_from_slice(&len.to_le_bytes());
        blocks.extend_from_slice(&(!len).to_le_bytes());
        blocks.extend_from_slice(part);
    }
    Deflated {
        blocks: blocks.into(),
        crc: sum_of(plain),
    }
}

fn sum_of(plain: &[u8]) -> Crc {
    let mut crc = Crc::new();
    crc.update(plain);
    crc
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use proptest::prelude::*;

    use super::*;

    fn inflate(pieces: &[Deflated]) -> Vec<u8> {
        let (mut stream, mut sum) = (HEAD.to_vec(), Sum::default());
        for piece in pieces {
            stream.extend_from_slice(&piece.blocks);
            sum.add(piece);
        }
        stream.extend_from_slice(&sum.end());
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&stream[..])
            .read_to_end(&mut plain)
            .unwrap();
        plain
    }

    #[test]
    fn a_repetitive_piece_becomes_small() {
        let plain = b"{\"addresses\":[\"10.0.0.1\"],\"conditions\":{\"ready\":true}},".repeat(400);
        let mut compressor = Compressor::default();
        let (one, two) = (compressor.deflate(&plain), compressor.deflate(&plain));
        assert_eq!(one.blocks, two.blocks, "a piece does not depend on those before it");
        assert!(one.blocks.len() < plain.len() / 10);
        assert_eq!(
            inflate(&[one, stored(b","), two]),
            [&plain[..], b",", &plain[..]].concat()
        );
    }

    #[test]
    fn a_piece_may_refer_to_what_comes_before_it() {
        let (one, two) = (vec![1; 40_000], [b"x".repeat(10), vec![1; 20_000]].concat());
        let noise: Vec<u8> = (0..9000_u32)
            .map(|i| (i.wrapping_mul(i).wrapping_mul(2_654_435_761) >> 21) as u8)
            .collect();
        let mut compressor = Compressor::thorough();
        let alone = compressor.deflate(&noise);
        let after = compressor.deflate_after(&noise, &noise);
        assert!(
            after.blocks.len() < 200 && alone.blocks.len() > 8000,
            "{}",
            after.blocks.len()
        );
        assert_eq!(inflate(&[alone, after]), noise.repeat(2));
        let pieces = [compressor.deflate(&one), compressor.deflate_after(&one, &two)];
        assert_eq!(inflate(&pieces), [one, two].concat());
    }

    #[test]
    fn long_pieces_are_stored_in_blocks() {
        let plain = vec![7; STORED_MAX * 2 + 1];
        assert_eq!(inflate(&[stored(&plain)]), plain);
        assert_eq!(inflate(&[]), b"");
    }

    proptest! {
        #[test]
        fn any_pieces_come_out_as_they_went_in(
            pieces in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..9000)), 0..5)
        ) {
            let mut compressor = Compressor::default();
            let made = pieces.iter().map(|(is_stored, plain)| {
                if *is_stored { stored(plain) } else { compressor.deflate(plain) }
            });
            let made: Vec<_> = made.collect();
            let all: Vec<u8> = pieces.iter().flat_map(|(_, plain)| plain.clone()).collect();
            prop_assert_eq!(inflate(&made), all);
        }
    }
}
